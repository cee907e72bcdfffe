"""Training on a stream: resumed equals never stopped, in any pass, with workers and with several
processes.
"""

import itertools
import json
import os

import datasets
import processes
import pytest
import torch
from builders import DECODER, QUICK, assert_same_weights, byte_level_bpe, make_trainer, tiny_model
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from headless_trainer import HeadlessTrainer, PackedStream
from headless_trainer.cli.pretrain import main
from headless_trainer.files.manifest import read_facts, write_manifest
from headless_trainer.trainers.data_loading import Passes
from headless_trainer.trainers.resume import check_resume

STEPS, ROWS, MICRO_BATCHES, LENGTH = 24, 3, 2, 12


def tokenizer_of(lines, task):
    special = ["[PAD]", "[MASK]", "[SEP]"]
    names = dict(zip(("pad_token", "mask_token", "sep_token"), special, strict=True)) | {
        "eos_token": "[SEP]"
    }
    return PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(lines, special), **names)


def trainer(folder, lines, task: str, *, stream=None, **settings) -> HeadlessTrainer:
    """Dropout is on, and a pass over the texts ends before the run does."""
    tokenizer = tokenizer_of(lines, task)
    texts = Dataset.from_dict({"text": lines[::7]}).to_iterable_dataset(num_shards=3)
    stream = {"max_seq_length": LENGTH, "shuffle_buffer_size": 12, "seed": 1} | (stream or {})
    settings = {
        "max_steps": STEPS, "per_device_train_batch_size": ROWS, "gradient_accumulation_steps": MICRO_BATCHES,
        "learning_rate": 1e-2, "save_steps": 5, "task": task,
    } | settings  # fmt: skip
    rows = PackedStream(texts, tokenizer, **stream)
    model = tiny_model(task, len(tokenizer), positions=16, dropout=0.1)
    return make_trainer(folder, model, rows, settings, processing_class=tokenizer)


def logs_of(run) -> dict[int, tuple]:
    logged = [log for log in run.state.log_history if "loss" in log]
    return {
        log["step"]: (log["loss"], log["grad_norm"], log["epoch"], log["tokens_seen"])
        for log in logged
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "workers", "pool_size"), [("clm", 2, None), ("mlm", 0, None), ("clm", 0, 300)]
)
def test_resumed_equals_never_stopped(tmp_path, text_lines, task, workers, pool_size):
    settings = {"dataloader_num_workers": workers, "negatives": "step", "pool_size": pool_size}
    whole = trainer(tmp_path / "whole", text_lines, task, **settings)
    whole.train()
    passes = []
    for step in (5, 15):
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        passes.append(json.loads((checkpoint / "stream_0.json").read_text())["places"][0]["epoch"])
        resumed = trainer(
            tmp_path / f"from-{step}", text_lines, task, save_strategy="no", **settings
        )
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert logs_of(resumed) == logs_of(whole) and len(logs_of(whole)) == STEPS
        assert_same_weights(whole, resumed)
        assert resumed.train_dataset.state_dict() == whole.train_dataset.state_dict()
    assert passes == [0, 1]


def test_a_second_training_begins_at_the_start(tmp_path, text_lines):
    run = trainer(tmp_path, text_lines, "clm", max_steps=2, save_strategy="no", learning_rate=0.0)
    seen = []
    for _ in range(2):
        run.train()
        seen.append(run.train_dataset.state_dict())
    assert seen[0] == seen[1] and seen[0]["places"][0]["document"] > 0
    with pytest.raises(ValueError, match="eval_dataset is a PackedStream, which never ends"):
        run.evaluate(run.train_dataset)


@pytest.mark.slow
def test_ignore_data_skip_begins_anew(tmp_path, text_lines):
    whole = trainer(tmp_path / "a", text_lines, "clm", max_steps=6)
    whole.train()
    places = whole.train_dataset.state_dict()["places"]
    settings = {"max_steps": 11, "ignore_data_skip": True, "stream": {"max_seq_length": LENGTH}}
    again = trainer(tmp_path / "b", text_lines, "clm", **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-5"))
    # After 6 steps.
    assert again.state.global_step == 11 and again.train_dataset.state_dict()["places"] == places


def test_refused(tmp_path, text_lines):
    trainer(tmp_path / "a", text_lines, "clm", max_steps=5).train()
    checkpoint = str(tmp_path / "a" / "checkpoint-5")
    with pytest.raises(ValueError, match="dataloader_num_workers is 2 .* with 1"):
        other = trainer(tmp_path / "b", text_lines, "clm", dataloader_num_workers=2)
        other.train(resume_from_checkpoint=checkpoint)
    plain = trainer(tmp_path / "d", text_lines, "clm")
    plain.stream, plain.train_dataset = None, [{"input_ids": [1, 2]}]
    with pytest.raises(
        ValueError,
        match="no position in these rows, since its run read a stream: add --streaming, or",
    ):
        check_resume(plain.run, checkpoint)
    # As a run that read no stream leaves a checkpoint.
    os.remove(os.path.join(checkpoint, "stream_0.json"))
    write_manifest(checkpoint, **read_facts(checkpoint) | {"stream": False})
    with pytest.raises(ValueError, match="stream_0.json.*--ignore_data_skip"):
        trainer(tmp_path / "c", text_lines, "clm").train(resume_from_checkpoint=checkpoint)


def test_the_position_of_an_earlier_version_is_refused_with_that_reason(tmp_path, text_lines):
    stream = trainer(tmp_path, text_lines, "clm").train_dataset
    state = stream.state_dict()
    del state["settings"]["hash of the files"]
    with pytest.raises(ValueError, match="earlier version .*hash of the files.*--ignore_data_skip"):
        stream.load_state_dict(state)


class Unsized(torch.utils.data.IterableDataset):
    """Rows without a length, whose order is drawn again in each pass."""

    def __init__(self, rows: list[dict]):
        self.rows = rows

    def set_epoch(self, number: int) -> None:
        self.epoch = number

    def __iter__(self):
        return iter(self.rows[self.epoch % 3 :] + self.rows[: self.epoch % 3])


def rows_of_nine(count: int) -> list[dict]:
    generator = torch.Generator().manual_seed(2)
    return [{"input_ids": torch.randint(1, 50, (9,), generator=generator)} for _ in range(count)]


def losses_on(folder, data, *, resume=None, **settings) -> dict[int, tuple]:
    """Losses and tokens by step."""
    settings = {
        "max_steps": 7, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "learning_rate": 1e-2,
        "save_steps": 5, "train_sampling_strategy": "sequential", "max_grad_norm": 0.0,
    } | settings  # fmt: skip
    run = make_trainer(folder, tiny_model("clm", layers=1, positions=16), data, settings)
    run.train(resume_from_checkpoint=resume)
    return {
        log["step"]: (log["loss"], log["tokens_seen"])
        for log in run.state.log_history
        if "loss" in log
    }


@pytest.mark.parametrize("count, negatives", [(10, "micro_batch"), (11, "world"), (5, "world")])
def test_a_dataset_without_a_length_has_whole_steps(tmp_path, count, negatives):
    """A step takes 8 rows: a pass ends inside of a step, inside of a batch (11), and before the
    first step does (5).
    """
    data = Unsized(rows_of_nine(count))
    # Pass after pass, in one list.
    same = [row for data.epoch in range(99 // count + 1) for row in data]
    want = losses_on(tmp_path / "list", same, negatives=negatives, save_strategy="no")
    got = losses_on(tmp_path / "stream", data, negatives=negatives)
    assert got == want and [seen for _, seen in got.values()] == [
        8 * 9 * step for step in range(1, 8)
    ]
    # In a later pass as well a run that was stopped goes on at its row.
    checkpoint = str(tmp_path / "stream" / "checkpoint-5")
    again = losses_on(
        tmp_path / "b", data, resume=checkpoint, negatives=negatives, save_strategy="no"
    )
    assert again == want


def rows_of_several_lengths() -> Unsized:
    rows = rows_of_nine(11)
    return Unsized([{"input_ids": row["input_ids"][: 9 - i % 4]} for i, row in enumerate(rows)])


def _process_without_a_length(rank: int, folder: str, resume: str | None) -> None:
    settings = {
        "max_steps": 6, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2, "save_steps": 4, "max_grad_norm": 0.0, "ddp_timeout": 60,
    }  # fmt: skip
    model = tiny_model("clm", layers=1, positions=16)
    run = make_trainer(folder, model, rows_of_several_lengths(), settings)
    trained = []
    draw = run._draw

    def keep_and_draw(batches: list[dict]):
        for batch in batches:
            # The padding id is no token here.
            trained.extend(row[row > 0].tolist() for row in batch["input_ids"])
        return draw(batches)

    run._draw = keep_and_draw
    run.train(resume_from_checkpoint=resume)
    found = {"rows": trained, "logs": logs_of(run), "weights": run.model.state_dict()}
    torch.save(found, os.path.join(folder, f"found-{rank}.pt"))


@pytest.mark.slow
def test_two_processes_share_a_dataset_without_a_length_and_resume_exactly(tmp_path):
    """Each takes every other batch, also of rows of different lengths."""

    def run(name, resume=None):
        folder = tmp_path / name
        folder.mkdir()
        processes.run(_process_without_a_length, 2, str(folder), resume)
        return [torch.load(folder / f"found-{rank}.pt") for rank in range(2)]

    whole = run("whole")
    rows = [
        row["input_ids"].tolist() for row in itertools.islice(Passes(rows_of_several_lengths()), 48)
    ]
    batches = [rows[start : start + 2] for start in range(0, 48, 2)]
    for rank, found in enumerate(whole):
        assert found["rows"] == sum(batches[rank::2], [])
    resumed = run("resumed", str(tmp_path / "whole" / "checkpoint-4"))
    for want, got in zip(whole, resumed, strict=True):
        assert got["rows"] == want["rows"][16:]
        assert got["logs"] == want["logs"]
        for name, weight in want["weights"].items():
            assert torch.equal(got["weights"][name], weight)


def test_a_dataset_without_a_length_has_no_epochs(tmp_path):
    model, settings = (
        tiny_model("clm", layers=1, positions=16),
        {"max_steps": 9, "save_strategy": "epoch"},
    )
    with pytest.raises(
        ValueError, match="save_strategy is 'epoch' but train_dataset has no length"
    ):
        make_trainer(tmp_path, model, Unsized([]), settings)


@pytest.mark.parametrize("length", [{"max_steps": 2}, {"num_train_epochs": 2}])
def test_a_run_without_a_whole_batch_saves_no_random_weights(tmp_path, length):
    settings = {"per_device_train_batch_size": 4, "dataloader_drop_last": True} | length
    run = make_trainer(
        tmp_path,
        tiny_model("clm", layers=1, positions=16),
        [{"input_ids": [1, 2, 3]}] * 3,
        settings,
    )
    with pytest.raises(
        ValueError, match="train_dataset fills no batch: lower per_device_train_batch_size"
    ):
        run.train()


def test_rows_that_can_be_read_once_are_named(tmp_path):
    class Once(Unsized):
        def __iter__(self):
            while self.rows:
                yield self.rows.pop()

    rows = [{"input_ids": torch.arange(1, 10)} for _ in range(13)]
    run = make_trainer(
        tmp_path, tiny_model("clm", layers=1, positions=16), Once(rows), {"max_steps": 9}
    )
    with pytest.raises(ValueError, match="train_dataset has no length .*pass 2.* max_steps"):
        run.train()


def test_a_window_that_the_length_promised_is_not_added_to_the_next_step(tmp_path, caplog):
    """The length says 16 rows, two steps a pass, and there are 13."""

    class Longer(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(rows)

        def __len__(self):
            return len(rows) + 3

    rows, settings = rows_of_nine(13), {"negatives": "world", "max_steps": 3, "max_grad_norm": 1.0}
    settings |= {"save_strategy": "no", "lr_scheduler_type": "constant"}
    longer, whole = (losses_on(tmp_path, data, **settings) for data in (Longer(), rows[:8]))
    assert [*longer.values()] == [*whole.values()][:2] and len(longer) == 2
    assert "its last batches fill no step and are skipped" in caplog.text


def _process(rank: int, folder: str, lines: list[str], resume: str | None) -> None:
    run = trainer(folder, lines, "mlm", negatives="world", dataloader_num_workers=2)
    run.train(resume_from_checkpoint=resume)
    found = {
        "logs": logs_of(run),
        "weights": run.model.state_dict(),
        "stream": run.train_dataset.state_dict(),
    }
    torch.save(found, os.path.join(folder, f"found-{rank}.pt"))


@pytest.mark.slow
def test_two_processes_resume_exactly(tmp_path, text_lines):
    def run(name, resume=None):
        folder = tmp_path / name
        folder.mkdir()
        processes.run(_process, 2, str(folder), text_lines, resume)
        return [torch.load(folder / f"found-{rank}.pt") for rank in range(2)]

    whole = run("whole")
    checkpoint = tmp_path / "whole" / "checkpoint-15"
    places = [
        json.loads((checkpoint / f"stream_{rank}.json").read_text())["places"] for rank in range(2)
    ]
    assert all(place["epoch"] > 0 for of_process in places for place in of_process)
    resumed = run("resumed", str(checkpoint))
    for want, got in zip(whole, resumed, strict=True):
        assert got["logs"] == want["logs"] and got["stream"] == want["stream"]
        assert all(
            torch.equal(got["weights"][name], weight) for name, weight in want["weights"].items()
        )
    # As many rows a step.
    one = trainer(tmp_path / "one", text_lines, "mlm", per_device_train_batch_size=2 * ROWS)
    with pytest.raises(ValueError, match="processes is 1 .* 2"):
        one.train(resume_from_checkpoint=str(checkpoint))


def _script(rank: int, cache: str, command: list[str]) -> None:
    datasets.config.HF_DATASETS_CACHE = cache
    main(command)


@pytest.mark.slow
def test_the_script_streams_on_two_processes(tmp_path):
    """One document a row, of many lengths, trained on and held out."""
    lines = [f"a document of {'many ' * (i % 9)}words, number {i}" for i in range(120)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    command = [
        *(
            *DECODER,
            *QUICK,
            "--train_file",
            str(tmp_path / "texts.txt"),
            "--output_dir",
            str(tmp_path / "run"),
        ),
        *"--streaming --line_by_line --max_seq_length 32 --max_steps 6 --save_strategy steps --save_steps 6".split(),
        *"--data_seed 3 --shuffle_buffer_size 200".split(),
    ]
    processes.run(_script, 2, str(tmp_path / "cache"), command)
    assert (
        json.loads((tmp_path / "run" / "eval_results.json").read_text())["eval_predicted_tokens"]
        > 0
    )
    states = [
        json.loads((tmp_path / f"run/checkpoint-6/stream_{rank}.json").read_text())
        for rank in range(2)
    ]
    assert [state["places"][0]["document"] for state in states] == [24, 24]
    assert [states[0]["settings"][name] for name in ("data_seed", "shuffle_buffer_size")] == [
        3,
        200,
    ]


def test_the_generator_of_a_dataset_is_seeded_with_each_pass():
    class Drawn(torch.utils.data.IterableDataset):
        generator = torch.Generator()

        def __iter__(self):
            yield from torch.randperm(50, generator=self.generator).tolist()

    found = list(itertools.islice(Passes(Drawn()), 150))
    want = [
        torch.randperm(50, generator=torch.Generator().manual_seed(number)).tolist()
        for number in range(3)
    ]
    assert found == sum(want, [])
