"""Command lines of transformers' own scripts, from their READMEs and from forums: each is read, or says what to use instead."""

import re
from dataclasses import fields

import pytest

from headless_trainer.arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from headless_trainer.command_line import INSTEAD, parse_args
from headless_trainer.fine_tuning.glue_arguments import GlueArguments, GlueTrainingArguments

TEXT = [ModelArguments, DataArguments, HeadlessTrainingArguments]
GLUE = [GlueArguments, GlueTrainingArguments]
WIKITEXT = "--dataset_name Salesforce/wikitext --dataset_config_name wikitext-2-raw-v1 --do_train --do_eval"
COMMANDS = [
    f"{WIKITEXT} --per_device_train_batch_size 8 --per_device_eval_batch_size 8 --block_size 512",
    "--train_file a.txt --validation_file b.txt --do_train --do_eval --line_by_line",
    f"{WIKITEXT} --streaming --max_steps 10 --gradient_checkpointing --bf16 --use_cpu",
    f"{WIKITEXT} --mlm_probability 0.2 --preprocessing_num_workers 4 --validation_split_percentage 10 --overwrite_cache",
    f"{WIKITEXT} --trust_remote_code --token hf_x --cache_dir c --save_steps 500 --save_total_limit 2 --seed 3",
    "--do_train --do_eval --max_seq_length 128 --tasks mrpc --learning_rate 2e-5 --num_train_epochs 3",
    "--do_train --do_eval --task_name mrpc",
    "--train_file a.csv --validation_file b.csv --label_column label --text_columns text",
]


@pytest.mark.parametrize(("place", "flags"), [*enumerate(COMMANDS)])
def test_a_command_of_transformers(tmp_path, monkeypatch, place, flags):
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
    assert parse_args(TEXT if place < 5 else GLUE, argv)[-1].output_dir == f"{tmp_path}/run"


OLD = [  # with the command, and flags of its own that the message names
    (kinds, name, instead)
    for kinds, own in ((TEXT, "DataArguments"), (GLUE, "GlueArguments"))
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
