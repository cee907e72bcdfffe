"""What a user gets wrong ends with one line, which names the argument, its value and what to do: a
table for each script.

A row is what is typed in the folder of `inputs`, and what the line says. The exit code is 1; 2
where argparse itself speaks.
"""

import dataclasses
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from builders import OPTIONS, SMALL
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    T5Config,
    T5Model,
)

from headless_trainer.checkpoints.token_counts import save_token_counts
from headless_trainer.command_line import COMMANDS, MODULES

ROOT = Path(__file__).parents[2]
ARGPARSE = 2


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, text_lines, clm_tokenizer, mlm_tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("inputs")

    def write(name: str, content: str | bytes):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    text = "\n".join(text_lines) + "\n"
    as_json = "".join(json.dumps({"text": line}) + "\n" for line in text_lines)
    write("good.txt", text)
    write("latin.txt", text.encode() + "à la crème\n".encode("latin-1"))
    write("short.txt", "a few words\nand a few more\n")
    write("good.jsonl", as_json)
    write("bad.jsonl", f'{as_json}{{"text": "cut\n')
    write("two.jsonl", '{"a": "x", "b": "y"}\n')
    message = {"role": "user", "content": "How deep?"}
    write("chats.jsonl", f"{json.dumps({'id': 'x', 'messages': [message]})}\n" * 3)
    write("latin.csv", "sentence,label\ncafé,1\nb,0\n".encode("latin-1"))
    write("long.csv", "w" * 5_000_000 + ",label\n1,0\n2,1\n")
    pq.write_table(pa.table({"text": text_lines}), folder / "good.parquet")
    write("cut.parquet", (folder / "good.parquet").read_bytes()[:200])
    (folder / "folder" / "deep").mkdir(parents=True)
    write("bad.yaml", "model_type: bert\nmax_steps: [1, 2\nlearning_rate: 1e-4\n")
    write("latin.yaml", "model_type: bert # café\n".encode("latin-1"))

    bert = BertConfig(**SMALL, vocab_size=300, max_position_embeddings=32)
    gpt2 = GPT2Config(
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=64,
        vocab_size=300,
        bos_token_id=0,
        eos_token_id=0,
    )
    t5 = T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=300)
    models = {
        "bert": (BertModel(bert, add_pooling_layer=False), mlm_tokenizer),
        "gpt2": (GPT2Model(gpt2), clm_tokenizer),
        "lm": (GPT2LMHeadModel(gpt2), clm_tokenizer),
        "no_tokenizer": (BertModel(bert), None),
        "small": (BertModel(BertConfig(**bert.to_dict() | {"vocab_size": 100})), None),
        "t5": (T5Model(t5), mlm_tokenizer),
    }
    for name, (model, tokenizer) in models.items():
        model.save_pretrained(folder / name)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder / name)
    save_token_counts(
        folder / "bert",
        torch.ones(300, dtype=torch.long),
        {"tokens_seen": 1.0, "train_seconds": 1.0},
    )
    for name in ("cut", "no_weights", "no_json", "unknown_weight"):
        shutil.copytree(folder / "lm", folder / name)
    write("cut/model.safetensors", (folder / "lm" / "model.safetensors").read_bytes()[:999])
    (folder / "no_weights" / "model.safetensors").unlink()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n"
    shutil.copytree(folder / "lm", folder / "pointer")
    write("pointer/model.safetensors", pointer)
    write("pointer_tokenizer/vocab.txt", pointer)
    write("no_json/config.json", "{ no json")
    weights = load_file(folder / "lm" / "model.safetensors") | {"lm_head.bias": torch.zeros(300)}
    save_file(weights, folder / "unknown_weight" / "model.safetensors", {"format": "pt"})

    labelled = [f"{line},{'yes' if 'river' in line else 'no'}" for line in text_lines]
    write("train.csv", "\n".join(["sentence,label", *labelled[:40]]))
    write("dev.csv", "\n".join(["sentence,label", *labelled[40:60]]))
    write("no_rows.csv", "sentence,label\n")
    write("one_class.csv", "sentence,label\na,yes\nb,yes\n")
    write("other_class.csv", "sentence,label\na,maybe\nb,yes\n")
    write("long_label.csv", "sentence,label\na," + "w" * 3_000_000 + "\nb,yes\n")
    for number in range(300):
        write(f"empty/{number}.txt", "")
    write("other_column.csv", "phrase,label\na,yes\nb,no\n")
    write("adapter/adapter_model.safetensors", "")
    write("predicted.csv", "sentence,prediction\na,yes\n")
    write("whole_floats.csv", "sentence,label\na,0.0\nb,1.0\n")

    logs = {
        "global_step": 2,
        "max_steps": 2,
        "log_history": [{"step": 2, "loss": 1.0, "tokens_seen": 9, "train_seconds": 1.0}],
    }
    write("run/trainer_state.json", json.dumps(logs))
    totals = {"tokens_seen": 2.0, "train_seconds": 1.0, "process_seconds": 1.0}
    save_token_counts(folder / "run", torch.ones(3, dtype=torch.long), totals)
    write("cut_run/trainer_state.json", '{"global_step": 2,')
    write("no_logs/trainer_state.json", json.dumps(logs | {"log_history": []}))
    write("bad_settings/trainer_state.json", json.dumps(logs))
    write("bad_settings/settings.json", "[1,")
    write("bom.yaml", b"\xef\xbb\xbfmodel_type: bert\n")

    return folder


DECODER = "--model_type gpt2 --config_overrides n_embd=16,n_layer=1,n_head=2,n_positions=32"
QUICK = (
    "--max_seq_length 16 --max_steps 2 --per_device_train_batch_size 4 --use_cpu --save_strategy "
    "no --validation_split_percentage 20 --preprocessing_num_workers 1 --output_dir OUT"
)
NEW = f"{QUICK} --train_tokenizer --vocab_size 320"
RUN = f"{DECODER} {NEW} --train_file good.txt"
FILES = f"{DECODER} {NEW} --train_file"
FROM = f"{QUICK} --train_file good.txt --model_name_or_path"
SIZES = f"{NEW} --train_file good.txt --model_type"

PRETRAIN = {
    # Values
    f"{RUN} --lr_scheduler_kwargs {{bad": "must be a JSON object, got '{bad'",
    f"{RUN} --max_seq_length 64": "max_seq_length is 64 but ... 32 positions",
    f"{DECODER} {NEW}": "No texts are named ... --train_file",
    f"{RUN} --streaming --do_eval --validation_file short.txt --max_seq_length 32": "max_seq_length is 32 but ... the held-out documents",
    f"{RUN} --streaming --max_steps -1": "streaming is True but",
    f"{RUN} --streaming --train_sampling_strategy sequential": "train_sampling_strategy is 'sequential' but",
    f"{RUN} --streaming --logging_strategy epoch": "logging_strategy is 'epoch' but",
    f"{RUN} --eval_old_file good.txt": "eval_old_file is ['good.txt'] but nothing is evaluated",
    f"{RUN} --validation_file good.txt": "validation_file is ['good.txt'] but nothing is evaluated",
    f"{RUN} --do_train false": "do_train is False but this command trains",
    f"{RUN} --hub_model_id me/x": "hub_model_id is 'me/x' but nothing is pushed",
    f"{RUN} --fsdp full_shard": "fsdp is 'full_shard' but no launcher",
    f"{RUN.replace('--train_tokenizer --vocab_size 320', '--tokenizer_name lm')} --mask_token [M]": "mask_token is '[M]' but task is 'clm'",
    f"{RUN.replace('--train_tokenizer --vocab_size 320', '--tokenizer_name bert')} --task mlm": "task is 'mlm' but ... GPT2Model do not depend",
    f"{RUN} --replay_file good.txt --replay_share 1": "replay_share is 1.0 but",
    f"{RUN} --replay_share 0.2": "replay_share is 0.2 but",
    f"{RUN} --replay_file no.txt": "replay_file 'no.txt'",
    f"{RUN} --replay_file good.txt --streaming": "replay_file is ['good.txt'] but",
    f"{RUN} --report_to comet_ml": "report_to is ['comet_ml']",
    f"{RUN} --lr_scheduler_type cosine_with_min_lr": "lr_scheduler_type is 'cosine_with_min_lr'",
    f"{RUN} --optim adamw_8bit": "optim is 'adamw_8bit'",
    f"{RUN} --use_liger_kernel": "use_liger_kernel is True",
    f"{RUN} --metric_for_best_model f1": "metric_for_best_model is 'f1' but",
    f"{RUN} --resize_embeddings": "resize_embeddings is True but",
    f"{DECODER} {NEW} --dataset_name .. --sample_by document": "sample_by is 'document' but",
    f"{RUN} --dataset_name ..": "train_file is ['good.txt'] but",
    f"{DECODER} {NEW} --dataset_name folder/deep/..": "EmptyDatasetError: The directory at",
    RUN.replace("OUT", "''"): "output_dir is '' but",
    f"{RUN} --adam_beta2 1": "adam_beta2 is 1.0 but",
    # Sizes of the model
    f"{SIZES} gtp2": "model_type 'gtp2' ... 'gpt2'",
    f"{SIZES} gpt2 --config_overrides n_embd=16,n_head=3": "config_overrides is 'n_embd=16,n_head=3'",
    f"{SIZES} gpt2 --config_overrides n_embd=[1": "config_overrides 'n_embd=[1', line 1",
    f"{SIZES} gpt2 --config_overrides model_type=bert": "config_overrides ... 'model_type'",
    f"{SIZES} gpt2 --config_overrides n_embdd=1": "config_overrides ... 'n_embdd'",
    # Files of settings
    "latin.yaml": "Configuration file 'latin.yaml'",
    "bom.yaml --max_step 1": "'--max_step' ... '--max_steps'",
    f"paper_glue_balanced {RUN}": "Preset 'paper_glue_balanced' ... 'tasks'",
    # Files of texts: tests/corpus/test_texts.py and test_files.py have the others
    f"{FILES} good.txt latin.txt": "train_file 'latin.txt'",
    f"{FILES} good.jsonl bad.jsonl --streaming": "train_file 'bad.jsonl' ... row 217",
    f"{FILES} good.parquet cut.parquet --streaming": "train_file 'cut.parquet'",
    f"{FILES} short.txt --do_eval --validation_file short.txt --max_seq_length 32": "max_seq_length is 32",
    f"{FILES} short.txt --do_eval --eval_old_file no.txt": "eval_old_file 'no.txt'",
    f"{FILES} {' '.join(f'empty/{number}.txt' for number in range(300))}": "Add text, or change --validation_split",
    f"{FILES} good.txt --max_steps {'7' * 9_000}x": "--max_steps ... '777",
    f"{FILES} long.csv": "must name a text column: 2 columns hold",
    f"{FILES} two.jsonl --text_column text": "text_column is 'text' but",
    # Models and tokenizers
    f"{FROM} runs/missing": "model_name_or_path 'runs/missing'",
    f"{FROM} good.txt": "model_name_or_path 'good.txt'",
    f"{FROM} folder": "model_name_or_path 'folder'",
    f"{FROM} no_weights": "model_name_or_path 'no_weights'",
    f"{FROM} no_json": "model_name_or_path 'no_json'",
    f"{FROM} cut": "model_name_or_path 'cut'",
    f"{FROM} no_tokenizer": "model_name_or_path 'no_tokenizer'",
    f"{FROM} unknown_weight --objective vanilla": "'unknown_weight' holds lm_head.bias",
    f"{QUICK} --train_file good.txt": "--model_type",
    f"{FROM} lm --objective sampled_softmax --tie_word_embeddings false": "'lm' lacks lm_head.weight",
    f"{FROM} bert --objective sampled_softmax": "head of this headless checkpoint first",
    f"{FROM} no_tokenizer --tokenizer_name bert --objective sampled_softmax": "a trunk without a head. Train one",
    f"{FROM} pointer": "model_name_or_path 'pointer'",
    f"{FROM} lm --tokenizer_name pointer_tokenizer": "tokenizer_name 'pointer_tokenizer'",
    f"{FILES} chats.jsonl": "'messages' holds conversations",
    f"{FILES} chats.jsonl --text_column messages": "a tokenizer that is yet to be trained has no",
    f"{QUICK} --model_name_or_path lm --train_file chats.jsonl --text_column messages": "'lm' has no chat template",
    f"{FROM} small --tokenizer_name bert": "'small' ... 299 ... 100",
    f"{FROM} lm --train_tokenizer": "train_tokenizer is True but",
    f"{FILES} good.txt --replay_file short.txt --max_seq_length 32": "max_seq_length is 32 but ... replay_file",
    f"{FROM} t5 --task mlm": "T5Config is an encoder-decoder",
    f"{QUICK} --train_file good.txt --model_type bert --tokenizer_name gpt2": "no mask token",
    # Folders
    RUN.replace("OUT", "good.txt"): "output_dir 'good.txt'",
    f"{RUN} --cache_dir good.txt": "cache_dir 'good.txt'",
    f"{RUN} --resume_from_checkpoint missing": "resume_from_checkpoint 'missing'",
    f"{RUN} --resume_from_checkpoint last": "resume_from_checkpoint is 'last' but",
}

HEAD = "--use_cpu --output_dir OUT --model_name_or_path"
TRAIN = (
    f"{HEAD} gpt2 --init embeddings --do_train --train_file good.txt --max_steps 2 "
    "--max_seq_length 16 --per_device_train_batch_size 4 --preprocessing_num_workers 1"
)
LM_HEAD = {
    "--use_cpu --output_dir OUT": "model_name_or_path is not given",
    f"{HEAD} missing": "model_name_or_path 'missing'",
    f"{HEAD} no_tokenizer": "model_name_or_path 'no_tokenizer'",
    f"{HEAD} gpt2": "'gpt2' holds no token_counts.safetensors",
    f"{HEAD} lm": "GPT2LMHeadModel",
    TRAIN.replace(" gpt2", " lm"): "GPT2LMHeadModel",
    f"{HEAD} bert --train_file good.txt": "train_file is ['good.txt'] but",
    f"{HEAD} bert --max_train_samples 5": "max_train_samples is 5 but",
    f"{HEAD} bert --counts_from corpus --train_file good.txt --eval_old_file good.txt": "eval_old_file is ['good.txt'] but",
    f"{HEAD} bert --counts_from corpus --train_file good.txt --max_eval_samples 5": "max_eval_samples is 5 but",
    f"{HEAD} bert --init embeddings --counts_from corpus --train_file good.txt": "counts_from is 'corpus' but",
    f"{HEAD} bert --max_steps 5": "max_steps is 5 but",
    f"{HEAD} bert --train_tokenizer": "train_tokenizer is True but",
    f"{HEAD} small --tokenizer_name bert": "299 ... 100",
    f"{HEAD} gpt2 --mask_token <mask>": "mask_token is '<mask>' but",
    f"{HEAD} gpt2 --counts_from corpus": "No texts are named ... --train_file",
    f"{HEAD.replace('OUT', 'good.txt')} bert": "output_dir 'good.txt'",
    f"{HEAD.replace('OUT', 'bert')} bert": "output_dir 'bert'",
    f"{HEAD.replace('OUT', 'adapter')} bert": "output_dir 'adapter' ... 'adapter_model.safetensors'",
    f"{TRAIN} --max_seq_length 100": "max_seq_length is 100 but ... 64 positions",
}

GRID = "--seeds 0 --max_seq_length 32 --num_train_epochs 1 --use_cpu --output_dir OUT --model_name_or_path"
PREDICTION = "--use_cpu --output_dir OUT --do_predict --model_name_or_path"
OWN = f"{GRID} bert --train_file train.csv --validation_file dev.csv"
GLUE = {
    "": "model_name_or_path is not given",
    f"{GRID} bert": "tasks is None ... dataset_name is None",
    f"{GRID} bert --tasks colla": "got 'colla'. Did you mean 'cola'?",
    f"{GRID} bert --tasks cola": "Couldn't reach 'nyu-mll/glue' on the Hub",
    f"{GRID} bert --tasks cola --data_dir folder": "data_dir 'folder/cola/train.jsonl'",
    f"{GRID} bert --tasks xnli --languages xx": "languages must be of ar, bg,",
    f"{GRID} bert --tasks cola --languages de": "languages is ['de'] but",
    f"{GRID} missing --tasks cola": "model_name_or_path 'missing'",
    f"{GRID} cut --tasks cola": "model_name_or_path 'cut'",
    f"{GRID} bert bert --tasks cola": "which names a model twice: name each once",
    OWN.replace("train.csv", "missing.csv"): "train_file 'missing.csv'",
    OWN.replace("train.csv", "good.txt"): "train_file 'good.txt'",
    OWN.replace("dev.csv", "./train.csv"): "(train train.csv, validation ./train.csv)",
    f"{OWN} --report_to tensorboard": "but a tracker would take all runs of a grid",
    f"{OWN} --languages de": "languages is ['de'] but",
    f"{OWN} --validation_split dev": "validation_split is 'dev' but",
    f"{OWN} --text_columns a b c": "text_columns is ['a', 'b', 'c'] but",
    f"{OWN} --text_columns label": "one or two different columns, other than the",
    f"{OWN} --text_columns phrase": "train_file 'train.csv' ... 'phrase'",
    f"{OWN} --problem_type regression": "train_file 'train.csv' ... 'yes' ... regression",
    f"{OWN} --problem_type multi_label --loss balanced": "loss is 'balanced' but",
    OWN.replace("train.csv", "whole_floats.csv"): "--problem_type",
    f"{OWN} --metric acuracy": "metric is 'acuracy'",
    f"{OWN} --metric mse": "metric is 'mse'",
    f"{GRID} bert --tasks cola --metric f1": "metric is 'f1' but",
    f"{OWN} --test_file dev.csv": "test_file or test_split is 'dev.csv' but",
    f"{OWN} --test_split test": "test_file or test_split is 'test' but",
    f"{OWN} --dataloader_drop_last true": "every row is scored",
    f"{OWN} --do_predict --test_file other.csv --save_models false": "save_models is False, but",
    f"{OWN} --do_predict": "do_predict is True but",
    f"{PREDICTION} bert --test_file dev.csv --loss balanced": "loss is 'balanced' but",
    f"{GRID} bert --do_predict --dataset_name me/mine --test_file dev.csv --test_split test": "test_split is 'test' but",
    f"{OWN} --problem_type multi_label --metric log_loss": "metric is 'log_loss'",
    f"{OWN} --do_predict --test_file dev.csv": "(train train.csv, validation dev.csv, test dev.csv)",
    f"{OWN} --do_predict --test_file predicted.csv": "has a column 'prediction'",
    f"{OWN} --do_predict --test_file other_class.csv": "'other_class.csv' ... 'maybe'",
    f"{PREDICTION} bert --test_file dev.csv": "model_name_or_path 'bert'",
    f"{OWN} --load_best_model_at_end": "load_best_model_at_end is True but",
    f"{OWN} --early_stopping_patience 0": "early_stopping_patience is 0 but",
    f"{OWN} --task_label ../x": "task_label is '../x' but",
    f"{GRID} bert --dataset_name me/mine": "Couldn't reach 'me/mine' on the Hub",
    f"{GRID} bert --dataset_name me/mine --validation_split train": "the same rows are named twice",
    OWN.replace("train.csv", "latin.csv"): "train_file 'latin.csv'",
    OWN.replace("train.csv", "one_class.csv"): "train_file 'one_class.csv'",
    OWN.replace("dev.csv", "no_rows.csv"): "validation_file 'no_rows.csv'",
    OWN.replace("dev.csv", "other_class.csv"): "'other_class.csv' ... 'maybe'",
    OWN.replace("dev.csv", "long_label.csv"): "www, which must be of no, yes.",
    OWN.replace("dev.csv", "other_column.csv"): "'other_column.csv' ... 'sentence'",
    f"{OWN} --max_seq_length 512": "max_seq_length is 512 but ... 32 positions",
    f"{OWN} --max_train_samples 0": "max_train_samples is 0 but",
    f"{OWN} --seeds 0 0": "seeds is [0, 0] but",
    f"{OWN} --label_smoothing_factor 0.1": "label_smoothing_factor is 0.1 but",
    f"{GRID} bert --train_file train.csv": "give both or neither",
    f"{OWN} --seed 3": "`headless-trainer glue` ... --seeds",
    OWN.replace("OUT", "good.txt"): "output_dir 'good.txt'",
    "--report_only --output_dir folder": "output_dir 'folder'",
}

SCORE = "--device cpu --limit 3 --output_dir OUT --model_name_or_path"
LAMBADA = f"{SCORE} lm --data_files lambada_openai=good.jsonl"
LM_EVAL = {
    "": "model_name_or_path is not given",
    "--model_name_or_path lm": "output_dir is not given",
    f"{SCORE} missing": "model 'missing'",
    f"{SCORE} gpt2": "'gpt2' ... GPT2Model",
    f"{LAMBADA.replace('lm ', 'cut ')}": "model 'cut'",
    f"{LAMBADA.replace('lm ', 'unknown_weight ')}": "'unknown_weight' holds lm_head.bias",
    f"{LAMBADA.replace('good.jsonl', 'missing.jsonl')}": "data_files must be task=file items of files",
    f"{LAMBADA.replace('good.jsonl', 'pointer/model.safetensors')}": "data_files 'pointer/model.safetensors'",
    f"{LAMBADA.replace('lambada_openai=', '')}": "data_files ... 'good.jsonl'",
    f"{LAMBADA.replace('good', 'two')}": "Task 'lambada_openai'",
    f"{LAMBADA} --limit 0": "limit ... 0.0",
    f"{LAMBADA} --limit inf": "limit ... inf",
    f"{LAMBADA} --num_fewshot -2": "num_fewshot is -2 but",
    f"{LAMBADA} --batch_size 0": "batch_size is '0' but it must be a number above 0",
    f"{LAMBADA} --batch_size auto:x": "batch_size is 'auto:x' but it must be a number above 0",
    f"{LAMBADA} --device nowhere": "device is 'nowhere', which torch cannot use here",
    f"{LAMBADA} --max_length 0": "max_length is 0 but",
    f"{LAMBADA.replace('OUT', 'good.txt')}": "output_dir 'good.txt'",
    LAMBADA.replace("OUT", "''"): "output_dir is '' but",
    "--compare lm --output_dir OUT": "compare ... ['lm']",
    "--compare lm lm --output_dir OUT": "compare ... ['lm', 'lm']",
    "--compare missing lm --output_dir OUT": "model 'missing'",
}

REPORT = {
    "": "the following arguments are required",
    "missing --output_dir OUT": "run 'missing'",
    "folder --output_dir OUT": "'folder' is not a run: it lacks",
    "cut_run --output_dir OUT": "'cut_run/trainer_state.json'",
    "no_logs --output_dir OUT": "'no_logs' has no 'tokens_seen' in its logs",
    "bad_settings --output_dir OUT": "'bad_settings/settings.json'",
    "a=run run --output_dir OUT": "is named twice: name each run once",
    "a= --output_dir OUT": "'a=' names no run: write NAME=RUN1,RUN2",
    "run --output_dir good.txt": "output_dir 'good.txt'",
    "run --output_dir ''": "output_dir is '' but",
}

TABLES = {
    "pretrain": PRETRAIN,
    "lm-head": LM_HEAD,
    "glue": GLUE,
    "lm-eval": LM_EVAL,
    "report": REPORT,
}
NEEDS = {"glue": "sklearn", "report": "sklearn", "lm-eval": "lm_eval"}


@pytest.mark.parametrize(("command", "typed", "said"), [
    (command, typed, said) for command, table in TABLES.items() for typed, said in table.items()
])  # fmt: skip
def test_a_bad_input_is_refused_in_one_line(
    command, typed, said, inputs, tmp_path, own_cache, monkeypatch, capsys, request
):
    if command in NEEDS:
        pytest.importorskip(NEEDS[command])
    if command == "lm-eval":
        request.getfixturevalue("few_tasks")
    monkeypatch.chdir(inputs)
    argv = [word.replace("OUT", str(tmp_path / "out")) for word in shlex.split(typed)]
    main = importlib.import_module(f"headless_trainer.cli.{MODULES[command]}").main
    with pytest.raises(SystemExit) as end:
        main(argv)
    if isinstance(end.value.code, str):  # Python writes it to stderr and ends with 1
        line = end.value.code
    else:
        assert end.value.code == ARGPARSE
        line = capsys.readouterr().err.splitlines()[-1]
    for fragment in said.split(" ... "):
        assert fragment in line
    assert "\n" not in line
    assert len(line) < 2_100
    # Flags that stand in a command are those of that command; all others are those of this one.
    line = re.sub(r"`[^`]*`|headless-trainer [a-z]+-?[a-z]* --.*|Unknown argument '\S+'", "", line)
    named = {name.replace("-", "_") for name in re.findall(r"--([a-z][\w-]+)", line)}
    known = {field.name for kind in OPTIONS[command] for field in dataclasses.fields(kind)}
    assert named <= {"help", "help_all"} | known


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_process_ends_with_one_line_and_1(command, inputs):
    script = ROOT / f"run_{command.replace('-', '_')}.py"
    end = subprocess.run(
        [sys.executable, script, "bad.yaml"], cwd=inputs, capture_output=True, text=True
    )
    assert end.returncode == 1 and not end.stdout
    (line,) = end.stderr.splitlines()
    assert line.startswith(
        "ValueError: Configuration file 'bad.yaml', line 3, is neither YAML nor JSON"
    )
