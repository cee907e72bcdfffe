"""Runs whose rows can no longer be read leave a checkpoint and say how to go on."""

import itertools
import json
import os
import signal
from pathlib import Path

import processes
import pytest
import torch
from builders import assert_same_weights, make_trainer, tiny_model
from safetensors.torch import load_file
from torch.utils.data import IterableDataset

from headless_trainer import PackedStream
from headless_trainer.arguments import DataArguments
from headless_trainer.checkpoints.finding import checkpoints_in
from headless_trainer.corpus.texts import load_texts
from headless_trainer.files.manifest import find_fault
from headless_trainer.trainers.reading import lost_workers_named

VOCAB = 300


def trainer(folder, rows, held_out=None, **settings):
    defaults = {"task": "clm", "max_steps": 40, "save_steps": 30, "per_device_train_batch_size": 2}
    defaults |= {"lr_scheduler_type": "constant", "learning_rate": 1e-2}
    model = tiny_model("clm", VOCAB, layers=1, positions=8)
    return make_trainer(folder, model, rows, defaults | settings, eval_dataset=held_out)


def names(folder) -> list[str]:
    return sorted(path.name for path in checkpoints_in(folder))


def stream(file, tokenizer, row: str) -> PackedStream:
    """11,200 documents of four tokens, each a row of the run; the 11,041st is as it is given.

    Thousands of documents are read at once, so that 5 steps of 2,000 rows come before it.
    """
    lines = [json.dumps({"text": f"{number % 1000:03d}"}) for number in range(11200)]
    lines[11040] = row
    file.write_text("\n".join(lines) + "\n")
    held_out = file.with_name("held_out.jsonl")
    held_out.write_text(lines[0] + "\n")
    files = {"train_file": [str(file)], "validation_file": [str(held_out)]}
    texts = load_texts(DataArguments(**files, streaming=True, text_column="text"))["train"]
    return PackedStream(texts, tokenizer, max_seq_length=4, shuffle_buffer_size=20)


class TestMalformedRow:
    def test_it_leaves_a_checkpoint_and_names_file_row_and_remedy(self, tmp_path, clm_tokenizer):
        rows = stream(tmp_path / "rows.jsonl", clm_tokenizer, '{"text": "broken')
        run = trainer(tmp_path / "run", rows, per_device_train_batch_size=2000)
        with pytest.raises(
            OSError, match=r"train_file .*rows\.jsonl.*row 11,041 .*checkpoint-5"
        ) as end:
            run.train()
        assert "--ignore_data_skip" in str(end.value) and "\n" not in str(end.value)
        (checkpoint,) = checkpoints_in(tmp_path / "run")
        assert find_fault(checkpoint) is None

    def test_the_checkpoint_is_that_of_a_run_without_it(self, tmp_path, clm_tokenizer):
        size = {"per_device_train_batch_size": 2000}
        broken = stream(tmp_path / "rows.jsonl", clm_tokenizer, '{"text": "broken')
        with pytest.raises(OSError, match="row 11,041"):
            trainer(tmp_path / "broken", broken, **size).train()
        whole = stream(tmp_path / "rows.jsonl", clm_tokenizer, '{"text": "040"}')
        trainer(tmp_path / "whole", whole, max_steps=5, **size).train()
        want = load_file(tmp_path / "whole" / "checkpoint-5" / "model.safetensors")
        got = load_file(tmp_path / "broken" / "checkpoint-5" / "model.safetensors")
        assert got.keys() == want.keys()
        assert all(torch.equal(got[name], want[name]) for name in want)
        resumed = trainer(tmp_path / "broken", whole, max_steps=7, ignore_data_skip=True, **size)
        resumed.train(resume_from_checkpoint="last")
        assert resumed.state.global_step == 7

    def test_the_same_in_a_worker_process(self, tmp_path, clm_tokenizer):
        rows = stream(tmp_path / "rows.jsonl", clm_tokenizer, '{"text": "broken')
        settings = {"per_device_train_batch_size": 2000, "dataloader_num_workers": 1}
        run = trainer(tmp_path / "run", rows, **settings)
        with pytest.raises(OSError, match=r"^train_file .*row 11,041 .*checkpoint-5") as end:
            run.train()
        assert "Traceback" not in str(end.value)


class Rows(IterableDataset):
    """Twenty rows, and then an error, or the end of the process that reads them."""

    def __init__(self, error: Exception | None):
        self.error = error

    def __iter__(self):
        for start in range(20):
            yield {"input_ids": torch.arange(start, start + 8)}
        if self.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise self.error


@pytest.mark.parametrize("error", [OSError("the disk is gone"), ValueError("row 7 is none")])
def test_the_last_step_is_saved_and_named_whatever_a_dataset_raises(tmp_path, error):
    run = trainer(tmp_path, Rows(error))
    # A loader of accelerate reads one batch ahead.
    with pytest.raises(type(error), match=rf"{error}.*'{tmp_path}/checkpoint-9'.*--resume_from"):
        run.train()
    assert names(tmp_path) == ["checkpoint-9"] and find_fault(tmp_path / "checkpoint-9") is None


def test_an_error_in_the_code_of_a_dataset_is_raised_itself(tmp_path):
    error = KeyError("text")
    with pytest.raises(KeyError) as end:
        trainer(tmp_path, Rows(error)).train()
    assert end.value is error and "checkpoint-9" in "".join(error.__notes__)
    assert names(tmp_path) == ["checkpoint-9"]


def _process_with_a_bad_row(rank: int, folder: str, error: Exception | None) -> None:
    """Read rows of which the dataset, or the collator of one process, cannot read the 21st."""
    rows = Rows(error)
    if error is None:
        rows = Endless()
    with pytest.raises((OSError, ValueError), match="checkpoint-4'.*--resume_from") as end:
        trainer(folder, rows, ddp_timeout=60).train()
    Path(folder, f"message-{rank}").write_text(str(end.value))


class Endless(IterableDataset):
    """Rows of two lengths, of which one has no token."""

    def __iter__(self):
        for start in itertools.count():
            length = 5 + start % 3
            if start == 20:
                length = 0
            yield {"input_ids": torch.arange(start, start + length)}


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError("the disk is gone"), None])
def test_every_process_ends_if_one_cannot_read_a_row_of_a_dataset_without_a_length(tmp_path, error):
    processes.run(_process_with_a_bad_row, 2, str(tmp_path), error)
    messages = [(tmp_path / f"message-{rank}").read_text() for rank in range(2)]
    if error is not None:
        assert all("the disk is gone" in message for message in messages)
    else:
        assert "Another process cannot read its rows" in messages[1]
    assert names(tmp_path) == ["checkpoint-4"]


def test_before_the_first_step_nothing_is_saved(tmp_path):
    run = trainer(tmp_path, Rows(OSError("the disk is gone")), per_device_train_batch_size=30)
    with pytest.raises(OSError, match="the disk is gone"):
        run.train()
    assert names(tmp_path) == []


def test_a_checkpoint_that_exists_is_not_written_again(tmp_path):
    run = trainer(tmp_path, Rows(OSError("the disk is gone")), save_steps=9)
    saved = []
    run._save_checkpoint = lambda *args, save=run._save_checkpoint: saved.append(save(*args))
    with pytest.raises(OSError, match="'.*checkpoint-9'"):
        run.train()
    assert names(tmp_path) == ["checkpoint-9"] and len(saved) == 1


def test_the_fault_of_a_run_does_not_end_the_next(tmp_path):
    run = trainer(tmp_path, Rows(OSError("the disk is gone")))
    with pytest.raises(OSError, match="the disk is gone"):
        run.train()
    run.train_dataset = [{"input_ids": torch.arange(8)}] * 100
    run.args.output_dir, run.args.max_steps = str(tmp_path / "next"), 3
    run.train()
    assert run.state.global_step == 3 and not run.signal.stopped


def test_a_worker_process_that_is_killed_ends_the_run_in_one_line(tmp_path):
    run = trainer(tmp_path, Rows(None), dataloader_num_workers=1, save_steps=3)
    with pytest.raises(OSError, match=r"dataloader_num_workers is 1 .*checkpoint-\d") as end:
        run.train()
    assert "\n" not in str(end.value)


TRAINED = [{"input_ids": torch.arange(start, start + 8)} for start in range(100)]
EVALUATED = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 3}


class TestEvaluation:
    @pytest.mark.parametrize("strategy", ["steps", "best", "no"])
    def test_rows_that_cannot_be_read_leave_a_checkpoint(self, tmp_path, strategy):
        settings = EVALUATED | {"save_strategy": strategy, "metric_for_best_model": "loss"}
        run = trainer(tmp_path, TRAINED, Rows(OSError("the disk is gone")), **settings)
        with pytest.raises(OSError, match=rf"the disk is gone.*'{tmp_path}/checkpoint-3'.*resume"):
            run.train()
        assert names(tmp_path) == ["checkpoint-3"]
        assert find_fault(tmp_path / "checkpoint-3") is None

    def test_the_run_that_resumes_is_that_which_read_them(self, tmp_path):
        broken = Rows(OSError("the disk is gone"))
        with pytest.raises(OSError, match="the disk is gone"):
            trainer(tmp_path / "broken", TRAINED, broken, **EVALUATED).train()
        resumed = trainer(tmp_path / "broken", TRAINED, TRAINED[:9], **EVALUATED)
        resumed.train(resume_from_checkpoint="last")
        whole = trainer(tmp_path / "whole", TRAINED, TRAINED[:9], **EVALUATED)
        whole.train()
        assert_same_weights(resumed, whole)

    def test_rows_without_a_target_end_the_run_in_the_same_way(self, tmp_path):
        unlabelled = {"input_ids": torch.arange(8), "labels": torch.full((8,), -100)}
        run = trainer(tmp_path, TRAINED, [unlabelled] * 2, **EVALUATED)
        with pytest.raises(OSError, match="eval_dataset has no token to predict.*checkpoint-3"):
            run.train()

    def test_before_the_first_step_nothing_is_saved(self, tmp_path):
        settings = EVALUATED | {"eval_on_start": True}
        run = trainer(tmp_path, TRAINED, Rows(OSError("the disk is gone")), **settings)
        with pytest.raises(OSError, match="^the disk is gone$"):
            run.train()
        assert names(tmp_path) == []


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_lost_worker_of_a_stream_is_told_how_streams_go_on(tmp_path, is_stream):
    trainer(tmp_path, TRAINED, max_steps=1).train()
    lost = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    with (
        pytest.raises(OSError, match="dataloader_num_workers is 1") as end,
        lost_workers_named(str(tmp_path), workers=1, is_stream=is_stream),
    ):
        raise lost
    assert ("--ignore_data_skip" in str(end.value)) == is_stream
