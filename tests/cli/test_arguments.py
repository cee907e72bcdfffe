"""One door for files and flags: the same types, choices, names and errors whichever way a value comes in."""

import json
import sys

import pytest
import yaml
from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from headless_trainer.arguments import (
    DataArguments,
    HeadlessTrainingArguments,
    LMHeadArguments,
    ModelArguments,
)
from headless_trainer.command_line import parse_args, parse_yaml
from headless_trainer.fine_tuning.glue_arguments import GlueArguments, GlueTrainingArguments
from headless_trainer.objective.masking import MaskingRule

ALL = [ModelArguments, DataArguments, HeadlessTrainingArguments]


def parse(*argv: object):
    return parse_args(ALL, [str(token) for token in argv])


@pytest.fixture
def write(tmp_path):
    """Write a configuration file and return its path: a mapping as YAML or JSON, a text as it is."""

    def write(content, name: str = "run.yaml"):
        path = tmp_path / name
        if not isinstance(content, str):
            content = json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content)
        path.write_text(content, encoding="utf-8")
        return path

    return write


VALUES = {
    "model_type": "gpt_neox",
    "config_overrides": {"hidden_size": 192, "hidden_dropout": 0.1, "use_parallel_residual": False},
    "train_tokenizer": True, "train_file": ["a.txt", "b.txt"], "max_seq_length": 64, "output_dir": "runs/x",
    "learning_rate": 0.001, "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "warmup_steps": 0.1, "objective": "vanilla", "logging_nan_inf_filter": False,
}  # fmt: skip
FLAGS = """--model_type gpt_neox --config_overrides hidden_size=192,hidden_dropout=0.1,use_parallel_residual=false
    --train_tokenizer --train_file a.txt b.txt --max_seq_length 64 --output_dir runs/x --learning_rate 0.001
    --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {"min_lr_rate":0.1} --warmup_steps 0.1
    --objective vanilla --logging_nan_inf_filter false""".split()
WRONG = {"objective": "headles", "lr_scheduler_type": "triangular", "max_seq_length": "long"}


def test_defaults_are_the_papers(tmp_path):
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


@pytest.mark.parametrize("source", ["run.yaml", "run.yml", "run.json", "flags"])
def test_files_and_flags_give_the_same_arguments(write, source):
    model, data, training = parse(*FLAGS) if source == "flags" else parse(write(VALUES, source))
    found = (
        vars(model)
        | vars(data)
        | vars(training)
        | {"config_overrides": model.parsed_config_overrides()}
    )
    assert {name: found[name] for name in VALUES} == VALUES


# Overrides


def test_flags_override_the_file(write):
    path = write(VALUES)
    _, data, training = parse(
        path, "--learning_rate", "5e-4", "--objective", "headless", "--train_file", "c.txt"
    )
    assert (training.learning_rate, training.objective) == (5e-4, "headless")
    assert data.train_file == ["c.txt"]  # replaces the list
    assert training.warmup_steps == 0.1  # untouched
    assert parse(path, "--train_tokenizer", "false")[0].train_tokenizer is False
    assert (
        parse("--block_size", 64)[1].max_seq_length
        == parse(write({"block_size": 64}))[1].max_seq_length
        == 64
    )


# Types


@pytest.mark.parametrize(("text", "expected"), [
    ("learning_rate: 1e-4", 1e-4), ("learning_rate: '1e-4'", 1e-4), ("max_steps: 1_000_000", 1_000_000),
    ("max_steps: -1", -1), ("use_cpu: true", True), ("do_train: yes", True), ("do_train: 'no'", False),
    ("eval_strategy: no", "no"), ("run_name: a run = of mine", "a run = of mine"), ("run_name: -x", "-x"),
    ("run_name:", None), ("run_name: 2024_01", "2024_01"), ("seed: 010", 10),
])  # fmt: skip
def test_values_of_a_file(write, text, expected):
    name = text.partition(":")[0]
    value = getattr(parse(write(f"{text}\nmodel_type: bert\n"))[2], name)
    assert value == expected and type(value) in (type(expected), IntervalStrategy)


def test_a_list_may_be_one_value_or_empty(write):
    assert parse(write("train_file: corpus/*.txt"))[1].train_file == ["corpus/*.txt"]
    assert parse(write("train_file: []"))[1].train_file is None
    assert (
        parse("--streaming")[1].streaming is True
        and parse("--streaming", "0")[1].streaming is False
    )
    assert (
        parse(*"--dataset_name a/b --eval_old_file c.txt --sample_by paragraph".split())[
            1
        ].sample_by
        == "paragraph"
    )


def test_config_overrides_as_pairs_and_as_json():
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


# Names and choices


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("max_step", "max_steps"), ("sequence_length_max", "max_seq_length")]
)
def test_an_unknown_name_suggests_the_nearest(write, wrong, nearest):
    for argv in ([f"--{wrong}", "1"], [f"--{wrong}=1"], [write({wrong: 1})]):
        with pytest.raises(
            ValueError,
            match=f"Unknown argument '--{wrong}'. The nearest known one is '--{nearest}'",
        ):
            parse(*argv)
    for name in ("past_index", "ray_scope", "sharded_ddp"):  # like no other
        with pytest.raises(ValueError, match=f"Unknown argument '--{name}'. --help-all"):
            parse(f"--{name}")


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("source", ["file", "flag"])
def test_choices_and_types_are_checked_in_files_and_flags(write, capsys, name, source):
    with pytest.raises(SystemExit):
        parse(write({name: WRONG[name]})) if source == "file" else parse(f"--{name}", WRONG[name])
    error = capsys.readouterr().err
    assert f"--{name}" in error and WRONG[name] in error


# Files


def test_a_file_that_is_not_a_mapping_or_not_first_is_refused(write):
    for text, kind in (("- a\n- b\n", r"\['a', 'b'\]"), ("", "None")):
        with pytest.raises(ValueError, match=f"must hold name: value pairs, got {kind}"):
            parse(write(text))
    with pytest.raises(ValueError, match=r"run.yaml' must be the first argument"):
        parse("--max_steps", 5, write({"model_type": "bert"}))


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
def test_tokens_are_not_shown(tmp_path, kind):
    """Neither where arguments are printed, nor where trackers copy them: they call `to_dict` and its relatives."""
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


def test_null_takes_a_value_of_a_file_back(write):
    path = write("muon-learning-rate: 1e-3\nlearning_rate: 2.0\nwarmup_steps: null\n")
    assert parse(path)[-1].muon_learning_rate == 1e-3
    for flags in (
        ["--muon_learning_rate=null"],
        ["--learning_rate", "null", "--muon-learning-rate", "null"],
    ):
        training = parse(path, *flags)[-1]
        assert training.muon_learning_rate is None and training.learning_rate == (
            5e-5 if len(flags) > 2 else 2.0
        )
    assert parse("--cache_dir", "null")[0].cache_dir is None
    assert parse(path, "--config_overrides", "n_inner=null")[0].config_overrides == "n_inner=null"
    assert parse(write('{\n\t"max_steps": 5\n}', "run.json"))[-1].max_steps == 5


def test_a_name_that_stands_twice_in_a_file_is_an_error(write):
    with pytest.raises(ValueError, match=r"line 3, .*'max_steps' occurs twice, give it once"):
        parse(write("max_steps: 5\nlearning_rate: 1.0\nmax_steps: 6\n"))
    for text, said in (
        ("a: &x [1]\nb: *x\n", "line 2, .*x refers to an earlier value"),
        ("[" * 3000, "recursion"),
    ):
        with pytest.raises(ValueError, match=said):
            parse_yaml(text, "a file")
    with pytest.raises(ValueError, match="'n_layer' occurs twice"):
        parse(write("config_overrides:\n  n_layer: 1\n  n_layer: 2\n"))
    with pytest.raises(ValueError, match="'max-steps' occurs twice"):
        parse(write("max_steps: 5\nmax-steps: 6\n"))


@pytest.mark.parametrize("argv", [["--max_steps", "5", "6"], ["--learning_rate", "1e-3", "no"]])
def test_several_values_for_an_argument_that_takes_one(argv, write):
    with pytest.raises(
        ValueError, match=f"{argv[2]!r} belongs to no argument: an argument that takes one value"
    ):
        parse(*argv)
    with pytest.raises(ValueError, match=f"{argv[2]!r} belongs to no argument"):
        parse(write({argv[0].removeprefix("--"): argv[1:]}))


@pytest.mark.parametrize("words", [["--hub_token", SECRET], [f"--hub_token={SECRET}"]])
def test_the_command_line_that_trackers_publish_holds_no_token(tmp_path, monkeypatch, words):
    """wandb keeps sys.argv beside the settings, which have none."""
    monkeypatch.setattr(
        sys, "argv", ["run_pretrain.py", "--output_dir", str(tmp_path), *words, "--use_cpu"]
    )
    (args,) = parse_args([HeadlessTrainingArguments])
    assert args.hub_token == SECRET and SECRET not in " ".join(sys.argv)
    assert sys.argv[1:3] == ["--output_dir", str(tmp_path)] and sys.argv[-1] == "--use_cpu"
