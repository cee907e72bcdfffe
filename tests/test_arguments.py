"""The argument classes of the commands that train on text: defaults, precision, tokens."""

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainingArguments

from headless_trainer.arguments import (
    DataArguments,
    HeadlessTrainingArguments,
    LMHeadArguments,
    ModelArguments,
    choose_precision,
)
from headless_trainer.command_line import parse_args
from headless_trainer.fine_tuning.glue_arguments import GlueArguments, GlueTrainingArguments
from headless_trainer.objective.masking import MaskingRule


def parse(preset: str, *flags: str) -> HeadlessTrainingArguments:
    kinds = [ModelArguments, DataArguments, HeadlessTrainingArguments]
    return parse_args(kinds, [preset, *flags, "--use_cpu"])[2]


def test_defaults_are_those_of_the_paper(tmp_path):
    pretraining, head = (
        kind(str(tmp_path), use_cpu=True) for kind in (HeadlessTrainingArguments, LMHeadArguments)
    )
    assert (pretraining.objective, pretraining.negatives, pretraining.pool_size) == (
        "headless",
        "micro_batch",
        None,
    )
    masking = (pretraining.mlm_probability, MaskingRule.mask_share, MaskingRule.random_share)
    assert (
        masking == (0.15, 0.8, 0.1)
        and DataArguments().max_seq_length == GlueArguments().max_seq_length == 128
    )
    assert (head.init, head.learning_rate, GlueArguments().seeds) == ("prior", 1e-4, [0, 1, 2])


def test_config_overrides_are_read_as_pairs_and_as_json():
    def overrides(text):
        return ModelArguments(config_overrides=text).parsed_config_overrides()

    expected = {
        "n_layer": 3,
        "dropout": 0.1,
        "tie_word_embeddings": True,
        "activation_function": "gelu",
    }
    pairs = "n_layer=3, dropout=0.1, tie_word_embeddings=true, activation_function=gelu"
    assert overrides(pairs) == overrides(json.dumps(expected)) == expected
    assert overrides('{"rope_parameters": {"rope_theta": 10000.0}}') == {
        "rope_parameters": {"rope_theta": 10000.0}
    }
    assert overrides(None) == overrides("") == {}
    assert overrides("range=1e-2,size=1_000,kind=no") == {"range": 0.01, "size": 1000, "kind": "no"}
    faults = {
        "n_layer": "must be name=value,name=value or a JSON",
        "{n_layer: 3": ", line 1, is neither",
    }
    for wrong, said in faults.items():
        with pytest.raises(ValueError, match=f"config_overrides '{wrong}'.*{said}"):
            overrides(wrong)


SECRET = "hf_secretOfTheTests"


@pytest.mark.parametrize(
    "kind",
    [
        ModelArguments,
        GlueArguments,
        HeadlessTrainingArguments,
        LMHeadArguments,
        GlueTrainingArguments,
    ],
)
def test_tokens_are_shown_neither_in_print_nor_to_trackers(tmp_path, kind):
    """Neither where arguments are printed, nor where trackers copy them: they call `to_dict` and
    its relatives.
    """
    training = issubclass(kind, TrainingArguments)
    arguments = (
        kind(str(tmp_path), use_cpu=True, hub_token=SECRET) if training else kind(token=SECRET)
    )
    assert SECRET in vars(arguments).values()
    assert SECRET not in f"{arguments} {arguments!r} {[arguments]}"
    if training:
        assert (
            SECRET
            not in f"{arguments.to_dict()} {arguments.to_sanitized_dict()} {arguments.to_json_string()}"
        )


@pytest.mark.parametrize(("gpu", "has_bf16", "given", "bf16", "fp16"), [
    (False, False, {"fp16": "auto"}, False, False),
    (True, False, {"fp16": "auto"}, False, True),  # the paper's precision 16
    (True, True, {"fp16": "auto", "bf16": "auto"}, True, False),
    (True, False, {"fp16": "auto", "bf16": "auto"}, False, True),
    (True, True, {"fp16": True, "bf16": "auto"}, False, True),
    (True, True, {"fp16": "auto", "bf16": True}, True, False),
    (True, True, {"bf16": "auto"}, True, False),
    (True, True, {"bf16": "auto", "use_cpu": True}, False, False),
    (False, False, {"bf16": "auto"}, False, False),
    (False, False, {"bf16": True}, True, False),  # what was asked for is left to transformers
])  # fmt: skip
def test_auto_is_16_bits_where_a_gpu_has_them(monkeypatch, gpu, has_bf16, given, bf16, fp16):
    """Emulated bfloat16, which torch counts as support, is not meant."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    supported = lambda including_emulation=True: including_emulation or has_bf16  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    settings = SimpleNamespace(**{"bf16": False, "fp16": False, "use_cpu": False} | given)
    choose_precision(settings)
    assert (settings.bf16, settings.fp16) == (bf16, fp16)


@pytest.mark.parametrize(
    "flags", [("--bf16", "auto"), ("--bf16=auto", "--fp16", "true", "--fp16=auto"), ()]
)
def test_auto_leaves_true_or_false(flags):
    training = parse("paper_encoder_headless", *flags)
    assert training.bf16 is False and training.fp16 is False and training.mixed_precision == "no"
    assert HeadlessTrainingArguments("runs", bf16="auto", use_cpu=True).bf16 is False
    assert all(getattr(parse("demo", f"--{name}"), name) is True for name in ("bf16", "fp16"))


def test_fine_tuning_takes_auto_too():
    _, training = parse_args(
        [GlueArguments, GlueTrainingArguments],
        ["--model_name_or_path", "m", "--tasks", "cola", "--output_dir", "o", "--bf16", "auto"],
    )
    assert training.bf16 is False and training.mixed_precision == "no"
