"""Command lines of transformers' own scripts, from their READMEs and from forums: each is read, or says what to use instead."""

import pytest

from headless_trainer.arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from headless_trainer.command_line import parse_args
from headless_trainer.fine_tuning.glue_arguments import GlueArguments, GlueTrainingArguments

TEXT = [ModelArguments, DataArguments, HeadlessTrainingArguments]
GLUE = [GlueArguments, GlueTrainingArguments]
WIKITEXT = "--dataset_name Salesforce/wikitext --dataset_config_name wikitext-2-raw-v1 --do_train --do_eval"
BATCHES = "--per_device_train_batch_size 8 --per_device_eval_batch_size 8"
MRPC = "--model_name_or_path google-bert/bert-base-cased --do_train --do_eval --max_seq_length 128 --learning_rate 2e-5"

# Kind of arguments, flags, and what is said: nothing where all is taken.
COMMANDS = [
    (TEXT, f"--model_name_or_path FacebookAI/roberta-base {WIKITEXT} {BATCHES}", ""),
    (TEXT, "--model_name_or_path FacebookAI/roberta-base --train_file a.txt --validation_file b.txt --do_train --do_eval", ""),
    (TEXT, "--model_name_or_path FacebookAI/roberta-base --train_file a.txt --line_by_line --do_train", ""),
    (TEXT, f"--model_name_or_path openai-community/gpt2 {WIKITEXT} {BATCHES} --block_size 512", ""),
    (TEXT, f"--model_type gpt2 --tokenizer_name openai-community/gpt2 {WIKITEXT} --config_overrides n_embd=64,n_head=2", ""),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --streaming --max_steps 10", ""),
    (TEXT, f"--model_name_or_path bert-base-cased {WIKITEXT} --gradient_checkpointing --bf16 --use_cpu", ""),
    (TEXT, f"--model_name_or_path xlm-roberta-base {WIKITEXT} --mlm_probability 0.2 --preprocessing_num_workers 4", ""),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --validation_split_percentage 10 --overwrite_cache --seed 3", ""),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --trust_remote_code --token hf_x --cache_dir c --model_revision main", ""),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --save_steps 500 --save_total_limit 2 --logging_steps 10", ""),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --overwrite_output_dir", "no run is written over; go on with --resume_from"),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --keep_linebreaks false", "those of --sample_by paragraph or document keep"),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --warmup_ratio 0.1", "give --warmup_steps a share of the steps, below 1"),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --torch_dtype bfloat16", "--bf16 true computes in bfloat16"),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --dtype=bfloat16", "--bf16 true computes in bfloat16"),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --low_cpu_mem_usage", "transformers loads so by itself; leave it out"),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --use_fast_tokenizer", "tokenizers are always the fast ones; leave it out"),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --evaluation_strategy steps", "use --eval_strategy"),
    (TEXT, "--model_name_or_path bert-base-cased --train_file a.txt --pad_to_max_length", "padded to the longest"),
    (TEXT, f"--model_name_or_path gpt2 {WIKITEXT} --no_cuda", "use --use_cpu"),
    (GLUE, f"{MRPC} --tasks mrpc --per_device_train_batch_size 32 --num_train_epochs 3", ""),
    (GLUE, f"{MRPC} --task_name mrpc", ""),
    (GLUE, f"{MRPC} --task_name mrpc --max_predict_samples 5", "cut the --test_file to the rows that are wanted"),
    (GLUE, f"{MRPC} --train_file a.csv --validation_file b.csv --label_column label --text_columns text", ""),
    (GLUE, f"{MRPC} --tasks mrpc --pad_to_max_length False", "rows are packed full"),
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "flags", "said"), COMMANDS, ids=[flags[-40:] for _, flags, _ in COMMANDS])
def test_a_command_of_transformers(tmp_path, monkeypatch, kinds, flags, said):
    monkeypatch.setattr("sys.argv", ["script"])
    argv = [*flags.split(), "--output_dir", str(tmp_path / "run"), "--report_to", "none"]
    if said:
        with pytest.raises(ValueError, match="^There is no --.*: .*" + said):
            parse_args(kinds, argv)
    else:
        parsed = parse_args(kinds, argv)
        assert parsed[-1].output_dir == str(tmp_path / "run")
