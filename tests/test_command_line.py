"""One door for files and flags: the same types, choices, names and errors whichever way a value
comes in.
"""

import json
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from transformers.trainer_utils import IntervalStrategy

from headless_trainer.arguments import (
    DataArguments,
    HeadlessTrainingArguments,
    ModelArguments,
)
from headless_trainer.command_line import INSTEAD, PRESETS, find_config, parse_args, parse_yaml
from headless_trainer.fine_tuning.glue_arguments import GlueArguments, GlueTrainingArguments

ALL = [ModelArguments, DataArguments, HeadlessTrainingArguments]


def parse(*argv: object):
    return parse_args(ALL, [str(token) for token in argv])


@pytest.fixture
def write(tmp_path):
    """Write a configuration file and return its path: a mapping as YAML or JSON, a text
    as it is.
    """

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
    ("learning_rate: 1e-4", 1e-4), ("learning_rate: '1e-4'", 1e-4),
    ("max_steps: 1_000_000", 1_000_000),
    ("max_steps: -1", -1), ("use_cpu: true", True), ("do_train: yes", True),
    ("do_train: 'no'", False),
    ("eval_strategy: no", "no"), ("run_name: a run = of mine", "a run = of mine"),
    ("run_name: -x", "-x"),
    ("run_name:", None), ("run_name: 2024_01", "2024_01"), ("seed: 010", 10),
])  # fmt: skip
def test_values_of_a_file_are_read_as_people_mean_them(write, text, expected):
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


# Names and choices


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("max_step", "max_steps"), ("sequence_length_max", "max_seq_length")]
)
def test_an_unknown_name_suggests_the_nearest(write, wrong, nearest):
    for argv in ([f"--{wrong}", "1"], [f"--{wrong}=1"], [write({wrong: 1})]):
        with pytest.raises(
            ValueError,
            match=f"'--{wrong}'.*'--{nearest}'",
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


def test_the_home_folder_is_found_where_a_shell_does_not_look_for_it(write, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    file = write({"train_file": ["~/a.txt", "~/b.txt"], "output_dir": "~/runs/a"})
    model, data, training = parse(file, "--cache_dir=~/cache", "--config_overrides", "a=~/b")
    assert data.train_file == ["/home/someone/a.txt", "/home/someone/b.txt"]
    assert training.output_dir == "/home/someone/runs/a"
    assert model.cache_dir == "/home/someone/cache"
    assert model.config_overrides == "a=~/b"


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
    escaped = json.dumps({"output_dir": "runs/\U0001f600"})
    assert "\\ud83d\\ude00" in escaped
    assert parse(write(escaped, "run.json"))[-1].output_dir == "runs/\U0001f600"


def test_a_name_that_stands_twice_in_a_file_is_an_error(write):
    with pytest.raises(ValueError, match=r"line 3, .*'max_steps'"):
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
def test_several_values_for_an_argument_that_takes_one_are_refused(argv, write):
    with pytest.raises(ValueError, match=f"^{argv[2]!r} "):
        parse(*argv)
    with pytest.raises(ValueError, match=f"{argv[2]!r} belongs to no argument"):
        parse(write({argv[0].removeprefix("--"): argv[1:]}))


SECRET = "hf_secretOfTheTests"


@pytest.mark.parametrize("words", [
    ["--hub_token", SECRET], [f"--hub_token={SECRET}"], ["--hub-token", SECRET], [f"--hub-token={SECRET}"],
])  # fmt: skip
def test_the_command_line_that_trackers_publish_holds_no_token(tmp_path, monkeypatch, words):
    """wandb keeps sys.argv beside the settings, which have none."""
    monkeypatch.setattr(
        sys, "argv", ["run_pretrain.py", "--output_dir", str(tmp_path), *words, "--use_cpu"]
    )
    (args,) = parse_args([HeadlessTrainingArguments])
    assert args.hub_token == SECRET and SECRET not in " ".join(sys.argv)
    assert sys.argv[1:3] == ["--output_dir", str(tmp_path)] and sys.argv[-1] == "--use_cpu"


def test_null_reaches_a_setting_under_each_of_its_names(write):
    for name, flag in (("block_size", "max_seq_length"), ("max_seq_length", "block_size")):
        _, data_args, _ = parse(write({name: 64}), f"--{flag}", "null", "--output_dir", "runs/x")
        assert data_args.max_seq_length == DataArguments.max_seq_length
    with pytest.raises(ValueError, match="another name of 'max_seq_length' both occur"):
        parse(write("block_size: 5\nmax_seq_length: 6\n"))


def test_dates_and_octal_numbers_in_a_nested_value_stay_words():
    values = parse_yaml("a: {b: 2024-01-01, c: 010, d: 1:30, e: 2024-13-45, f: 12, g: 0}", "a file")
    assert values == {
        "a": {"b": "2024-01-01", "c": "010", "d": "1:30", "e": "2024-13-45", "f": 12, "g": 0}
    }


def test_a_preset_is_found_by_its_name_and_a_file_by_its_suffix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("demo.yaml").write_text("max_steps: 1")
    Path("demo").mkdir()
    # A preset's own name is never a folder, or a file without a suffix.
    assert find_config("demo") == PRESETS["demo"]
    assert find_config("demo.yaml") == Path("demo.yaml")
    nearest_of = {
        "paper_encoder_headles": "paper_encoder_headless",
        "runs/demo.yaml": "demo",
        "a.txt": "",
    }
    for name, nearest in nearest_of.items():
        with pytest.raises(FileNotFoundError, match=f"{name!r}.*{nearest}"):
            find_config(name)


# Command lines of transformers' own scripts, from their READMEs and from forums

GLUE = [GlueArguments, GlueTrainingArguments]
WIKITEXT = "--dataset_name Salesforce/wikitext --dataset_config_name wikitext-2-raw-v1 --do_train --do_eval"
COMMANDS = [
    f"{WIKITEXT} --per_device_train_batch_size 8 --per_device_eval_batch_size 8 --block_size 512",
    "--train_file a.txt --validation_file b.txt --do_train --do_eval --line_by_line",
    f"{WIKITEXT} --streaming --max_steps 10 --gradient_checkpointing --bf16 --use_cpu",
    f"{WIKITEXT} --mlm_probability 0.2 --preprocessing_num_workers 4 "
    "--validation_split_percentage 10 --overwrite_cache",
    f"{WIKITEXT} --trust_remote_code --token hf_x --cache_dir c --save_steps 500 "
    "--save_total_limit 2 --seed 3",
    "--do_train --do_eval --max_seq_length 128 --tasks mrpc --learning_rate 2e-5 "
    "--num_train_epochs 3",
    "--do_train --do_eval --task_name mrpc",
    "--train_file a.csv --validation_file b.csv --label_column label --text_columns text",
]


@pytest.mark.parametrize(("place", "flags"), [*enumerate(COMMANDS)])
def test_a_command_line_of_transformers_is_read(tmp_path, monkeypatch, place, flags):
    monkeypatch.setattr("sys.argv", ["script"])
    argv = [
        "--model_name_or_path",
        "gpt2",
        *flags.split(),
        "--output_dir",
        f"{tmp_path}/run",
        "--report_to",
        "none",
    ]
    assert parse_args(ALL if place < 5 else GLUE, argv)[-1].output_dir == f"{tmp_path}/run"


OLD = [  # with the command, and flags of its own that the message names
    (kinds, name, instead)
    for kinds, own in ((ALL, "DataArguments"), (GLUE, "GlueArguments"))
    for names, instead in {**INSTEAD[own], **INSTEAD["TrainingArguments"]}.items()
    for name in names.split()
]


@pytest.mark.parametrize(("kinds", "name", "instead"), OLD)
def test_a_flag_that_is_not_here_says_what_to_use(monkeypatch, kinds, name, instead):
    monkeypatch.setattr("sys.argv", ["script"])
    for flags in ([f"--{name}"], [f"--{name}=x"], [f"--{name}", "x"]):
        with pytest.raises(ValueError, match=f"^There is no --{name}: {re.escape(instead)}"):
            parse_args(kinds, ["--output_dir", "run", *flags])
    known = {field.name for kind in kinds for field in fields(kind)}
    assert {*re.findall(r"--(\w+)", instead)} <= known
