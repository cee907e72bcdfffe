"""Checkpoints as the harness's models: which can score, and what projecting less changes."""

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from builders import SMALL, save
from harness_inputs import TINY, arguments, naive_scores, scored
from tokenizers import Tokenizer
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXModel,
    PreTrainedTokenizerFast,
)

pytest.importorskip("lm_eval")

from lm_eval.models.huggingface import HFLM

from headless_trainer.scoring import harness_model


def harness_requests(tokenizer) -> list[tuple]:
    heron = "a grey heron watched the"
    pairs = [("the miller crossed", " the river."), (heron, " w"), (heron, " r")]
    # The last too long.
    pairs += [("my sister " * n + "mended", " a broken wheel" * (n % 3 + 1)) for n in range(1, 9)]
    encoded = [
        (tokenizer(context).input_ids, tokenizer(target).input_ids) for context, target in pairs
    ]
    return [(pair, *ids) for pair, ids in zip(pairs, encoded, strict=True)]


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_projecting_the_scored_positions_changes_no_score(
    inputs, clm_tokenizer, batch_size, caplog
):
    ours = harness_model.load_scored_model(
        inputs.path, arguments(batch_size=str(batch_size), max_length=24)
    )
    plain = HFLM(
        pretrained=inputs.model, tokenizer=clm_tokenizer, batch_size=batch_size, max_length=24
    )
    requests = harness_requests(clm_tokenizer)
    assert max(len(context) + len(target) for _, context, target in requests) > 25
    for got, want in zip(
        ours._loglikelihood_tokens(requests), plain._loglikelihood_tokens(requests), strict=True
    ):
        assert got == (pytest.approx(want[0], rel=1e-5, abs=1e-5), want[1])
    assert (
        "6 of 11 inputs are longer than the 24 tokens that the model reads, and lose their "
        "beginning." in caplog.text
    )


def test_half_precision_is_summed_in_float32(inputs, clm_tokenizer):
    lm = harness_model.load_scored_model(inputs.path, arguments(dtype="bfloat16"))
    request = harness_requests(clm_tokenizer)[-2]
    naive, _ = naive_scores(lm.model, clm_tokenizer, *request[0])
    assert lm._loglikelihood_tokens([request])[0][0] == pytest.approx(naive, rel=1e-4)


def test_a_token_that_closes_texts_is_no_part_of_an_answer(tmp_path, mlm_tokenizer):
    model = GPT2LMHeadModel(GPT2Config(**TINY | {"vocab_size": len(mlm_tokenizer)}))
    lm = harness_model.load_scored_model(save(tmp_path, model, mlm_tokenizer), arguments())
    _, answer = lm._encode_pair("the miller crossed", " the river")
    assert answer == mlm_tokenizer(" the river", add_special_tokens=False).input_ids


def test_a_context_begins_as_texts_do_if_the_tokenizer_also_closes_them(tmp_path, mlm_tokenizer):
    model = GPT2LMHeadModel(GPT2Config(**TINY | {"vocab_size": len(mlm_tokenizer)}))
    lm = harness_model.load_scored_model(save(tmp_path, model, mlm_tokenizer), arguments())
    begin = mlm_tokenizer.cls_token_id
    close = mlm_tokenizer.sep_token_id
    context = "the miller crossed"
    bare = mlm_tokenizer(context, add_special_tokens=False).input_ids
    assert mlm_tokenizer(context).input_ids == [begin, *bare, close]
    ids, _ = lm._encode_pair(context, " the river")
    assert ids == [begin, *bare]
    # Once, where the text has it; and not within a text.
    assert lm.tok_encode(f"{mlm_tokenizer.cls_token}{context}") == [begin, *bare]
    assert lm.tok_encode(context, add_special_tokens=False) == bare
    assert lm.tok_encode(context, left_truncate_len=2) == bare[-2:]
    # Contexts of texts to generate are padded on the left.
    rows, mask = lm.tok_batch_encode([context, "the"])
    assert rows[0].tolist() == [begin, *bare]
    assert rows[1][mask[1].bool()].tolist() == lm.tok_encode("the")
    assert mask[1].tolist() == sorted(mask[1].tolist())
    rows, _ = lm.tok_batch_encode([context], left_truncate_len=2)
    assert rows.tolist() == [bare[-2:]]


def test_whole_texts_are_scored_without_what_begins_them(tmp_path, mlm_tokenizer):
    """The harness puts its own prefix there."""
    mlm_tokenizer = copy.deepcopy(mlm_tokenizer)
    mlm_tokenizer.bos_token = mlm_tokenizer.cls_token
    model = GPT2LMHeadModel(GPT2Config(**TINY | {"vocab_size": len(mlm_tokenizer)})).eval()
    path = save(tmp_path, model, mlm_tokenizer)
    ours = harness_model.load_scored_model(path, arguments())
    plain = HFLM(pretrained=model, tokenizer=mlm_tokenizer, batch_size=1, add_bos_token=False)
    text = "the miller crossed the river."
    requests = [SimpleNamespace(args=(text,))]
    expected = plain.loglikelihood_rolling(requests)
    assert ours.loglikelihood_rolling(requests) == pytest.approx(expected, rel=1e-5)
    # Afterwards texts begin as before.
    assert ours.tok_encode(text)[0] == mlm_tokenizer.cls_token_id


def test_the_harness_encodes_texts_that_the_tokenizer_does_not_close(inputs, clm_tokenizer):
    lm = harness_model.load_scored_model(inputs.path, arguments())
    plain = HFLM(pretrained=inputs.model, tokenizer=clm_tokenizer, batch_size=1)
    assert not lm.begins_texts
    for text in ("the miller crossed", "the"):
        assert lm.tok_encode(text) == plain.tok_encode(text)
    texts = ["the miller crossed", "the"]
    for found, wanted in zip(
        lm.tok_batch_encode(texts), plain.tok_batch_encode(texts), strict=True
    ):
        assert found.tolist() == wanted.tolist()


def test_only_the_scored_positions_are_projected(inputs, clm_tokenizer):
    ours = harness_model.load_scored_model(inputs.path, arguments(batch_size="64"))
    sizes = []
    ours.model.lm_head.register_forward_hook(
        lambda _module, _inputs, output: sizes.append(tuple(output.shape))
    )
    context = clm_tokenizer("the miller crossed the river. " * 3).input_ids
    ours._loglikelihood_tokens(
        [(("", ""), context, [5]), (("", ""), context[:-2], [6, 7]), (("", ""), context, [9])]
    )
    # of two inputs (two requests share one) the longest has length n; the other ends one before,
    # and two of it are scored
    assert sizes == [(2, 3, 300)]


def test_rolling_likelihoods_are_those_of_the_harness(inputs, clm_tokenizer):
    requests = [
        SimpleNamespace(args=(text,)) for text in ("the miller crossed. " * 20, "a small boat")
    ]
    ours = harness_model.load_scored_model(inputs.path, arguments(batch_size="2"))
    plain = HFLM(pretrained=inputs.model, tokenizer=clm_tokenizer, batch_size=2)
    assert ours.loglikelihood_rolling(requests) == pytest.approx(
        plain.loglikelihood_rolling(requests), rel=1e-5
    )


def test_a_tokenizer_that_allows_less_than_the_positions_is_warned_of(
    inputs, tmp_path, clm_tokenizer, caplog
):
    model = save(tmp_path, inputs.model, clm_tokenizer)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 32}))
    for length, remarked in ((None, True), (32, False)):
        caplog.clear()
        harness_model.load_scored_model(model, arguments(max_length=length))
        assert ("--max_length 32" in caplog.text) == remarked


def test_a_tokenizer_without_special_tokens_scores_too(inputs, tmp_path, clm_tokenizer):
    backend = Tokenizer.from_str(clm_tokenizer.backend_tokenizer.to_str())
    # Which names a padding token, and which other tests of the shared tokenizer turn on.
    backend.no_padding()
    bare = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert (bare.pad_token, bare.bos_token, bare.eos_token) == (None, None, None)
    before = bare("the miller crossed!").input_ids
    model = save(tmp_path / "lm", inputs.model, bare)
    lm = harness_model.load_scored_model(model, arguments(batch_size="auto"))
    assert lm.batch_size == harness_model.CPU_BATCH_SIZE  # not tried out
    assert lm.tokenizer("the miller crossed!").input_ids == before and len(lm.tokenizer) == len(
        bare
    )
    assert scored(
        model,
        arguments(tmp_path / "out", tasks=["tiny_group"], include_path=inputs.tasks, limit=4.0),
    )
    # An empty context needs a token to begin with.
    ((score, _),) = lm.loglikelihood([SimpleNamespace(args=("", "the miller"))])
    assert math.isfinite(score)


def test_a_model_without_a_causal_head_is_refused(tmp_path, clm_tokenizer):
    t5 = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=300
    )
    models = {
        "classifier": transformers.GPT2ForSequenceClassification(GPT2Config(**TINY)),
        "t5": transformers.T5ForConditionalGeneration(t5),
        "unknown": transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, vocab_size=300)),
    }
    for name, model in models.items():
        folder = save(tmp_path / name, model, clm_tokenizer)
        if name == "unknown":  # transformers would load it as a decoder that sees what comes
            set_architectures(folder, None)
        with pytest.raises(ValueError, match=f"{folder}.*`headless-trainer lm-head`"):
            harness_model.check_checkpoint(folder)


def set_architectures(folder: str, names: list[str] | None) -> None:
    config = Path(folder, "config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": names}))


def test_weights_that_are_missing_or_left_out_and_tokens_without_a_row_are_refused(
    tmp_path, clm_tokenizer
):
    small = save(
        tmp_path / "small", GPT2LMHeadModel(GPT2Config(**TINY | {"vocab_size": 90})), clm_tokenizer
    )
    headless = save(
        tmp_path / "neox", GPTNeoXModel(GPTNeoXConfig(**SMALL, vocab_size=300)), clm_tokenizer
    )
    set_architectures(headless, ["GPTNeoXForCausalLM"])
    biased = GPT2LMHeadModel(GPT2Config(**TINY))
    biased.lm_head.bias = torch.nn.Parameter(torch.ones(300))
    biased = save(tmp_path / "biased", biased, clm_tokenizer)
    for model, named in (
        (small, "ids up to 299.*90 rows"),
        (biased, "lm_head.bias, which GPT2LMHeadModel ignores"),
        (headless, "lm_head.weight.*headless-trainer lm-head"),
    ):
        harness_model.check_checkpoint(model)
        with pytest.raises(ValueError, match=named):
            harness_model.load_scored_model(model, arguments())


def test_code_of_a_model_is_refused_and_not_asked_about(tmp_path, monkeypatch):
    """transformers would ask on the terminal, and run it where the answer, or what is piped in, is
    "y".
    """
    ran = tmp_path / "ran"
    (tmp_path / "model").mkdir()
    source = f"import pathlib\nfrom transformers import GPT2Config\npathlib.Path({str(ran)!r}).touch()\nConfig = GPT2Config\n"
    (tmp_path / "model" / "code.py").write_text(source)
    config = {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    }
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda text: "y")
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    with pytest.raises(ValueError, match="custom code"):
        harness_model.check_checkpoint(str(tmp_path / "model"))
    assert not ran.exists()
