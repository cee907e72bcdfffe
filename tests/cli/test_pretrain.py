"""run_pretrain.py end to end, on tiny models: what it leaves, what it refuses, and how it survives
being killed.
"""

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from builders import DECODER, ENCODER, QUICK, refused, save, text_of, tiny_model
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from headless_trainer import HeadlessTrainer, load_token_counts
from headless_trainer.arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from headless_trainer.checkpoints.settings import read_settings
from headless_trainer.cli.preparation import make_trainer
from headless_trainer.cli.pretrain import main
from headless_trainer.command_line import parse_args
from headless_trainer.objective.prior import log_prior
from headless_trainer.trainers import pretraining

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("own_cache")


def run(text_file, folder, *flags):
    main([*QUICK, "--train_file", str(text_file), "--output_dir", str(folder), *flags])
    return json.loads((folder / "eval_results.json").read_text())


@pytest.mark.parametrize("objective", ["sampled_softmax", "headless"])
def test_weights_are_saved_in_the_precision_that_they_were_loaded_in(
    tmp_path, text_file, clm_tokenizer, objective
):
    base, out = tmp_path / "base", tmp_path / "run"
    save(base, tiny_model("clm", len(clm_tokenizer), "vanilla").to(torch.bfloat16), clm_tokenizer)
    flags = "--max_steps 2 --save_strategy steps --save_steps 1 --max_seq_length 16 --per_device_train_batch_size 4 --use_cpu"
    flags = [
        *flags.split(),
        "--objective",
        objective,
        "--learning_rate",
        "1e-2",
        "--train_file",
        str(text_file),
    ]
    main([*flags, "--model_name_or_path", str(base), "--output_dir", str(out)])
    assert AutoTokenizer.from_pretrained(out).model_max_length == 32  # the positions of the model
    kind = AutoModel if objective == "headless" else AutoModelForCausalLM
    left = kind.from_pretrained(out, dtype="auto")
    trained = kind.from_pretrained(out / "checkpoint-2", dtype="auto")
    # A run that resumes has lost nothing.
    assert left.dtype == torch.bfloat16 and trained.dtype == torch.float32
    for name, weight in trained.named_parameters():
        assert torch.equal(left.get_parameter(name), weight.to(torch.bfloat16))
    assert (load_token_counts(out)[0] > 0).any()


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_all_rows_of_a_decoder_begin_as_texts_do(tmp_path, text_file, clm_tokenizer, streaming):
    """Those of training, of evaluation and of earlier texts."""
    begun = copy.deepcopy(clm_tokenizer)
    begin = begun.convert_tokens_to_ids("e")
    begun.backend_tokenizer.post_processor = TemplateProcessing(
        single="e $A", special_tokens=[("e", begin)]
    )
    save(tmp_path / "base", tiny_model("clm", len(begun), "vanilla"), begun)
    flags = [
        *("--model_name_or_path", str(tmp_path / "base"), "--output_dir", str(tmp_path / "run")),
        *("--train_file", str(text_file), "--eval_old_file", str(text_file)),
        *("--max_seq_length", "16", "--max_steps", "2", "--use_cpu", "--streaming", streaming),
        *("--objective", "sampled_softmax", "--eval_strategy", "steps"),
    ]
    trainer = make_trainer(
        *parse_args([ModelArguments, DataArguments, HeadlessTrainingArguments], flags)
    )
    of_training = next(iter(trainer.get_train_dataloader()))["input_ids"]
    of_evaluation = [
        torch.tensor(row["input_ids"])
        for rows in (trainer.eval_dataset, trainer.old_eval_dataset)
        for row in rows
    ]
    for row in [*of_training, *of_evaluation]:
        assert len(row) == 16 and row[0] == begin


@pytest.mark.parametrize("task, flags", [("clm", DECODER), ("mlm", ENCODER)])
def test_a_headless_run_leaves_a_trunk_its_tokenizer_counts_and_a_picture(
    tmp_path, text_file, task, flags, monkeypatch
):
    folder, alone = tmp_path / "run", MagicMock()
    monkeypatch.setattr("headless_trainer.cli.preparation.first_process_first", alone)
    metrics = run(text_file, folder, *flags)
    # One tokenizer is trained for all machines.
    assert alone.call_args_list[0].kwargs == {"local": False}
    assert metrics["eval_loss"] > 0 and 0 <= metrics["eval_accuracy"] <= 1
    assert ("eval_perplexity" in metrics) == (task == "clm")
    trunk = AutoModel.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert trunk.get_input_embeddings().num_embeddings == len(tokenizer)
    ids = tokenizer("the miller crossed the river.", return_tensors="pt").input_ids
    assert trunk(input_ids=ids).last_hidden_state.shape == (*ids.shape, 16)
    counts, totals = load_token_counts(folder)
    assert len(counts) == len(tokenizer) and totals["tokens_seen"] == 4 * 4 * 16
    assert (folder / "loss.png").read_bytes()[:4] == b"\x89PNG"
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    assert [log["step"] for log in history if "loss" in log] == [1, 2, 4]


@pytest.mark.parametrize("auto_class, flags", [
    (AutoModelForCausalLM, [*DECODER, "--tie_word_embeddings", "false", "--head_bias", "prior"]),
    (AutoModelForCausalLM, [*DECODER, "--tie_word_embeddings", "true"]),
    (AutoModelForMaskedLM, ENCODER),
])  # fmt: skip
def test_a_vanilla_run_leaves_a_model_with_its_head_tied_or_not(
    tmp_path, text_file, auto_class, flags
):
    folder = tmp_path / "run"
    metrics = run(text_file, folder, *flags, "--objective", "vanilla")
    assert metrics["eval_loss"] == metrics["eval_cross_entropy"]
    model = auto_class.from_pretrained(folder)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert tied == ("false" not in flags)


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_both_objectives_see_the_same_rows(tmp_path, text_file, objective):
    """The counts of the targets are those of the shuffled rows of the first steps: equal for equal
    seeds.
    """
    for name, flags in (("a", ["--objective", "headless"]), ("b", ["--objective", objective])):
        run(text_file, tmp_path / name, *DECODER, *flags)
    assert torch.equal(load_token_counts(tmp_path / "a")[0], load_token_counts(tmp_path / "b")[0])
    assert load_token_counts(tmp_path / "a")[1]["candidates"] > 0  # a later run may draw more


@pytest.mark.parametrize("flags", [
    *(["--streaming"], ["--line_by_line"], ["--isolate_documents"], ["--negatives", "step"]),
    ["--line_by_line", "--isolate_documents"],
    ["--line_by_line", "--isolate_documents", "--streaming"],
    ["--line_by_line", "--train_sampling_strategy", "group_by_length"],
])  # fmt: skip
@pytest.mark.parametrize("model", [DECODER, ENCODER])
def test_a_run_evaluates_with_other_models_and_negatives(tmp_path, text_file, model, flags):
    flags = [*model, *flags, "--gradient_accumulation_steps", "2", "--max_eval_samples", "8"]
    metrics = run(text_file, tmp_path / "run", *flags)
    assert metrics["eval_predicted_tokens"] > 0


def test_what_is_another_run_is_refused_in_one_line(tmp_path, text_file, monkeypatch):
    saving = "--save_strategy steps --save_steps 1 --max_steps 2 --output_dir"
    flags = [*DECODER, *QUICK, *saving.split(), tmp_path / "run"]
    main([*map(str, flags), "--train_file", str(text_file)])
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    again = [*flags, "--resume_from_checkpoint", "last", "--train_file"]
    said = refused(main, *again, text_file, "--seed", "7")
    assert said.startswith("ValueError: seed is 7 but checkpoint") and "\n" not in said
    # Before the texts are looked for.
    assert refused(main, *again, tmp_path / "missing.txt", "--seed", "7") == said
    assert "n_head is 1, that of" in refused(
        main, *again, text_file, *(x.replace("head=2", "head=1") for x in DECODER)
    )
    (tmp_path / "other.txt").write_text(
        text_file.read_text() + "One line more, and another run.\n" * 9
    )
    said = refused(main, *again, tmp_path / "other.txt")
    assert (
        said.startswith("ValueError: The checkpoint was written with other training rows (")
        and "\n" not in said
    )
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", text_file)  # where no rows can be kept
    assert "PermissionError: HF_DATASETS_CACHE" in refused(main, *again, text_file)


@pytest.mark.slow
def test_a_run_resumes_from_its_last_checkpoint(tmp_path, text_file):
    folder, flags = tmp_path / "run", [*DECODER, "--save_strategy", "steps", "--save_steps", "2"]
    run(text_file, folder, *flags)
    again = [*QUICK, *flags, "--train_file", text_file, "--output_dir", folder]
    assert (
        "already holds" in (message := refused(main, *again))
        and "--resume_from_checkpoint" in message
    )
    weights = load_file(folder / "model.safetensors")
    # What is finished is not trained one step further.
    main([*map(str, again), "--resume_from_checkpoint", "last"])
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == [
        "checkpoint-2",
        "checkpoint-4",
    ]
    assert all(
        torch.equal(weight, weights[name])
        for name, weight in load_file(folder / "model.safetensors").items()
    )
    main([*map(str, again), "--resume_from_checkpoint", "last", "--max_steps", "6"])
    assert (folder / "checkpoint-6").is_dir()
    missing = refused(
        main, *again, "--output_dir", tmp_path / "empty", "--resume_from_checkpoint", "last"
    )
    assert "resume_from_checkpoint is 'last' but output_dir" in missing


def faults(*flags: str) -> str:
    command = [sys.executable, "benchmarks/faults.py", *flags]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["rows", "workers", "stream", "processes"])
def test_a_run_that_was_stopped_and_resumed_equals_one_that_was_not(variant):
    """A short run of the benchmark, at random moments."""
    shown = faults(
        "--variants", variant, *"--attacks kill signal --kills 1 --signals 1 --seed 3".split()
    )
    assert "weights and 165 losses bit-identical to the undisturbed run" in shown
    assert (
        f"| SIGKILL | {variant} | 1 | 1 |" in shown
        and f"| SIGTERM to all processes | {variant} | 1 | 1 |" in shown
    )


@pytest.mark.slow
def test_damaged_files_second_runs_and_full_disks_are_refused_in_one_line():
    shown = faults("--attacks", "damage", "second run", "full disk", "--flips", "3")
    assert "| a damaged file | model.safetensors | 8 | 8 |" in shown
    assert "| a second run in the same folder | rows | 2 | 2 |" in shown
    assert "| a full disk at the last save | rows | 1 | 1 |" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "evaluations"), [([], 2), (["--load_best_model_at_end", "true"], 3)]
)
def test_the_last_step_is_evaluated_once_unless_others_come_back(
    tmp_path, text_file, monkeypatch, flags, evaluations
):
    calls, evaluate = [], HeadlessTrainer.evaluate
    monkeypatch.setattr(
        HeadlessTrainer, "evaluate", lambda *a, **k: calls.append(evaluate(*a, **k)) or calls[-1]
    )
    command = [
        *QUICK,
        *DECODER,
        "--train_file",
        str(text_file),
        "--output_dir",
        str(tmp_path),
        "--max_steps",
        "4",
    ]
    command += "--eval_strategy steps --eval_steps 2 --save_strategy steps --save_steps 2".split()
    main([*command, *flags])
    assert len(calls) == evaluations
    assert json.loads((tmp_path / "eval_results.json").read_text()) == calls[-1] | {"step": 4}
    # Perhaps with other held-out texts.
    main([*command, *flags, "--resume_from_checkpoint", "last"])
    assert len(calls) == evaluations + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, flags, kind",
    [("clm", DECODER, AutoModelForCausalLM), ("mlm", ENCODER, AutoModelForMaskedLM)],
)
def test_a_language_model_is_trained_on_with_its_own_head(tmp_path, text_file, task, flags, kind):
    """In memory and streamed, with what it forgets beside what it learns, before the first step
    and after the last.
    """
    # The old texts are lines, and have no columns.
    base, new = (
        tmp_path / "base",
        tmp_path / "new.jsonl",
    )
    run(text_file, base, *flags, "--objective", "vanilla", "--task", task)
    new.write_text(
        "\n".join(f'{{"body": "ships sail north {number} times a year."}}' for number in range(60))
    )
    for name, more in (
        ("memory", ["--eval_on_start"]),
        ("stream", ["--streaming", "--shuffle_buffer_size", "20"]),
    ):
        folder = tmp_path / name
        given = [
            *"--text_column body --train_file".split(),
            new,
            "--eval_old_file",
            text_file,
            "--output_dir",
            folder,
        ]
        main(
            [
                *map(
                    str,
                    [
                        *QUICK[3:],
                        "--objective",
                        "sampled_softmax",
                        "--model_name_or_path",
                        base,
                        *given,
                        *more,
                    ],
                )
            ]
        )
        metrics = json.loads((folder / "eval_results.json").read_text())
        assert {
            "eval_loss",
            "eval_old_loss",
            "eval_unseen_token_mass",
        } <= metrics.keys() and metrics["epoch"] > 0
        model = kind.from_pretrained(folder)
        assert type(model) is type(kind.from_pretrained(base))
        assert "drawn tokens (sampled softmax)" in (folder / "README.md").read_text()
    history = json.loads((tmp_path / "memory" / "trainer_state.json").read_text())["log_history"]
    before = {name: logs[name] for logs in history if logs["step"] == 0 for name in logs}
    old, after = (
        json.loads((tmp_path / name / "eval_results.json").read_text())
        for name in ("base", "memory")
    )
    assert before["eval_old_loss"] == pytest.approx(old["eval_loss"], abs=0.2)
    # 5 of 20 %, as any earlier run holds out.
    assert before["eval_old_predicted_tokens"] < old["eval_predicted_tokens"]
    assert before["eval_loss"] > after["eval_loss"]
    texts = [
        read_settings(tmp_path / name)["held_out_texts"] for name in ("base", "memory", "stream")
    ]
    assert texts[0] != texts[1] == texts[2]
    settings = read_settings(tmp_path / "stream")  # a report shows what differs
    assert settings["data: streaming"] is True and settings["data: train_file"] == str(new)
    assert settings["model: started from"] == str(base)
    assert settings["held_out_rows"] is None
    rows_of = {name: read_settings(tmp_path / name)["held_out_rows"] for name in ("base", "memory")}
    assert rows_of["base"].partition(", ")[0].endswith(" rows")
    assert rows_of["base"] != rows_of["memory"]


def test_a_run_counts_its_own_rows_and_seeds_its_stream(tmp_path, text_file):
    def made(name, *flags):
        flags = [
            *QUICK,
            *DECODER,
            "--train_file",
            str(text_file),
            "--output_dir",
            str(tmp_path / name),
            *flags,
        ]
        return make_trainer(
            *parse_args([ModelArguments, DataArguments, HeadlessTrainingArguments], flags)
        )

    run = made("memory", "--objective", "sampled_softmax")
    counts = torch.zeros(run.head.size, dtype=torch.long)
    for row in run.train_dataset:
        counts += torch.tensor(row["input_ids"][1:]).bincount(minlength=run.head.size)
    torch.testing.assert_close(run.frequency, log_prior(counts).exp())
    assert made("stream", "--streaming", "--data_seed", "7").stream.stream.seed == 7


@pytest.mark.parametrize("objective", ["headless", "sampled_softmax", "vanilla"])
def test_the_trainer_checks_nothing_that_the_command_has_checked(
    tmp_path, text_file, monkeypatch, objective
):
    for check in ("check_settings", "check_model"):
        monkeypatch.setattr(pretraining, check, MagicMock(side_effect=AssertionError(check)))
    flags = [*QUICK, *DECODER, "--objective", objective, "--train_file", str(text_file)]
    flags += ["--output_dir", str(tmp_path / "run")]
    make_trainer(*parse_args([ModelArguments, DataArguments, HeadlessTrainingArguments], flags))


def test_earlier_texts_are_mixed_in_without_those_that_are_held_out(tmp_path):
    new = tmp_path / "new.jsonl"  # the earlier texts are lines, and have no columns
    new.write_text(
        "\n".join(f'{{"body": "ships sail north {number} times"}}' for number in range(90))
    )
    earlier = tmp_path / "earlier.txt"
    earlier.write_text("\n".join(f"clock {number}" for number in range(200)))
    flags = [
        *QUICK,
        *DECODER,
        *("--objective", "sampled_softmax"),
        *("--text_column", "body", "--line_by_line", "--eval_strategy", "steps"),
        *("--train_file", str(new), "--output_dir", str(tmp_path / "run")),
        *("--replay_file", str(earlier), "--eval_old_file", str(earlier)),
        *("--replay_share", "0.25", "--max_seq_length", "32"),
    ]
    run = make_trainer(
        *parse_args([ModelArguments, DataArguments, HeadlessTrainingArguments], flags)
    )
    texts = [run.processing_class.decode(row["input_ids"]) for row in run.train_dataset]
    replayed = [text for text in texts if "clock" in text]
    assert len(replayed) == round(len(texts) / 4) and len(set(replayed)) == len(replayed)
    held_out = [run.processing_class.decode(row["input_ids"]) for row in run.old_eval_dataset]
    assert held_out and not set(held_out) & set(texts)
    counts = torch.zeros(run.head.size, dtype=torch.long)
    for row in run.train_dataset:
        counts += torch.tensor(row["input_ids"][1:]).bincount(minlength=run.head.size)
    torch.testing.assert_close(run.frequency, log_prior(counts).exp())
    run.save_model()
    settings = read_settings(tmp_path / "run")
    assert settings["data: replay_file"] == str(earlier)
    assert settings["data: replay_share"] == 0.25
    card = text_of(tmp_path / "run")
    assert "25 % of the rows" in card and "`earlier.txt`" in card


@pytest.mark.parametrize("streaming", [False, True])
def test_conversations_are_written_with_the_template_and_the_column_is_recorded(
    tmp_path, streaming, clm_tokenizer
):
    tokenizer = copy.deepcopy(clm_tokenizer)
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\\n{% endfor %}"
    )
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    rows = [{"from": "human", "value": f"How deep is well {number}?"} for number in range(200)]
    lines = [json.dumps({"id": "x", "conversations": [row]}) for row in rows]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    flags = [
        *QUICK[3:],  # without a new tokenizer
        *DECODER,
        *("--tokenizer_name", str(tmp_path / "tokenizer"), "--text_column", "conversations"),
        *("--train_file", str(tmp_path / "chats.jsonl"), "--output_dir", str(tmp_path / "run")),
        *(["--streaming"] if streaming else []),
    ]
    run = make_trainer(
        *parse_args([ModelArguments, DataArguments, HeadlessTrainingArguments], flags)
    )
    row = next(iter(run.train_dataset))
    assert "user: How deep" in run.processing_class.decode(row["input_ids"])
    run.save_model()
    assert read_settings(tmp_path / "run")["data: text_column"] == "conversations"
    assert "column `conversations`: conversations" in text_of(tmp_path / "run")


def test_the_column_that_was_chosen_is_recorded(tmp_path):
    lines = [json.dumps({"id": number, "phrase": f"ship {number}"}) for number in range(200)]
    (tmp_path / "phrases.jsonl").write_text("\n".join(lines))
    flags = [*QUICK, *DECODER, "--train_file", str(tmp_path / "phrases.jsonl")]
    run = make_trainer(
        *parse_args(
            [ModelArguments, DataArguments, HeadlessTrainingArguments],
            [*flags, "--output_dir", str(tmp_path / "run")],
        )
    )
    run.save_model()
    assert read_settings(tmp_path / "run")["data: text_column"] == "phrase"
    assert "column `phrase`" in text_of(tmp_path / "run")


def test_a_checkpoint_without_weights_is_refused_before_texts_are_read(
    tmp_path, text_file, clm_tokenizer, monkeypatch
):
    folder = save(tmp_path / "base", tiny_model("clm", 300, "vanilla"), clm_tokenizer)
    Path(folder, "model.safetensors").unlink()
    monkeypatch.setattr("headless_trainer.corpus.texts.find_texts", None)  # not reached
    flags = ["--train_file", text_file, "--output_dir", tmp_path / "run", "--use_cpu"]
    said = refused(main, "--model_name_or_path", folder, "--max_seq_length", "16", *flags)
    assert "model_name_or_path" in said
    assert folder in said


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("mobilebert", ["--objective", "sampled_softmax"], "changes its logits"),
        (
            "llama",
            ["--objective", "vanilla", "--head_bias", "prior"],
            "does not end in a LayerNorm with a bias",
        ),
    ],
)
@pytest.mark.parametrize("trains_tokenizer", [False, True])
def test_a_head_that_cannot_be_trained_is_refused_before_texts_are_read(
    tmp_path, text_file, mlm_tokenizer, monkeypatch, model, flags, message, trains_tokenizer
):
    tokenizer = ["--train_tokenizer", "--vocab_size", "300"]
    if not trains_tokenizer:
        mlm_tokenizer.save_pretrained(tmp_path / "tokenizer")
        tokenizer = ["--tokenizer_name", tmp_path / "tokenizer"]
    monkeypatch.setattr("headless_trainer.corpus.texts.find_texts", None)  # not reached
    sizes = {
        "mobilebert": "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=16,"
        "embedding_size=8,intra_bottleneck_size=8",
        "llama": "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=16",
    }
    said = refused(
        main,
        *("--model_type", model, "--config_overrides", sizes[model]),
        *(*tokenizer, "--max_seq_length", "16", "--use_cpu"),
        *("--train_file", text_file, "--output_dir", tmp_path / "run"),
        *flags,
    )
    assert message in said


def test_a_final_evaluation_that_fails_loses_nothing_else(tmp_path, text_file, monkeypatch):
    def fails(*args, **kwargs):
        raise ValueError("eval_dataset has no token to predict.")

    monkeypatch.setattr(HeadlessTrainer, "evaluate", fails)
    flags = [*DECODER, *QUICK, "--train_file", text_file, "--output_dir", tmp_path / "run"]
    said = refused(main, *flags)
    assert "eval_dataset has no token to predict" in said
    assert str(tmp_path / "run") in said
    assert AutoModel.from_pretrained(tmp_path / "run").config.n_layer == 2
    assert (tmp_path / "run" / "README.md").is_file()
