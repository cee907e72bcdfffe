"""docs/reference/logs.md names every figure that training runs log, and says when each is logged; so do the
rows of those shown.
"""

import os
import re
from pathlib import Path

import processes
import pytest
import torch
from builders import make_trainer, tiny_model, tiny_trainer
from transformers.integrations.integration_utils import rewrite_logs

from headless_trainer.measures import MEASURES

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "logs.md"
RUNS = {
    "headless mlm": {"task": "mlm"}, "headless clm": {"task": "clm"},
    "pool only": {"task": "mlm", "eval_full_vocabulary": False}, "vanilla mlm": {"task": "mlm", "objective": "vanilla"},
    "vanilla clm": {"task": "clm", "objective": "vanilla", "head_bias": "prior"},
    "sampled softmax": {"task": "clm", "objective": "sampled_softmax"}, "world": {"task": "clm", "negatives": "world"},
    "sparse": {"task": "mlm", "negatives": "step", "sparse_embedding_updates": True},
}  # fmt: skip


def names_of(history: list[dict]) -> set[str]:
    """Names in a log."""
    return {name for logs in history for name in logs} - {"step"}


# What the column "logged" of the document says.
CONDITIONS = {
    "always": lambda args: True,
    "headless": lambda args: args.objective == "headless",
    "with candidates": lambda args: args.objective != "vanilla",
    "with a head": lambda args: args.objective != "headless",
    "sampled_softmax": lambda args: args.objective == "sampled_softmax",
    "clm": lambda args: args.task == "clm",
    "full vocabulary": lambda args: args.objective != "headless" or args.eval_full_vocabulary,
    "`--negatives world`": lambda args: args.negatives == "world",
    "`--sparse_embedding_updates`": lambda args: args.sparse_embedding_updates,
    "on several processes": lambda args: args.world_size > 1,
}
ROWS = [
    line.split(" | ")
    for line in re.findall(r"^\| (`.* \|.*) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
]
DOCUMENTED = [
    (name.strip("`"), [CONDITIONS[each] for each in when.split(", ")])
    for name, _, _, when, *_ in ROWS
]


def expected(args) -> set[str]:
    """Names that the document says a run with these settings logs."""
    return {name for name, conditions in DOCUMENTED if all(holds(args) for holds in conditions)}


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> dict[str, tuple[set[str], set[str]]]:
    """Names that each of the runs logs, and those that it should."""
    found = {}
    for name, settings in RUNS.items():
        run = tiny_trainer(tmp_path_factory.mktemp("run"), **settings)
        run.train()
        found[name] = names_of(run.state.log_history), expected(run.args)
        shown = {each.name for each in MEASURES if each.is_logged(run.args)}
        assert shown == found[name][0] & {each.name for each in MEASURES}
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_run_logs_what_the_document_says(logged, name):
    found, want = logged[name]
    assert found == want


def test_the_document_has_no_name_that_nothing_logs(logged):
    elsewhere = {
        "pool_exchange_bytes",
        "row_exchange_bytes",
    }  # test_several_processes_log_their_exchange
    assert {name for name, _ in DOCUMENTED} - elsewhere == set.union(
        *(found for found, _ in logged.values())
    )


def _process(rank: int, folder: str) -> None:
    run = tiny_trainer(folder, task="clm", negatives="world", sparse_embedding_updates=True)
    run.train()
    if rank == 0:
        torch.save(
            (names_of(run.state.log_history), expected(run.args)), os.path.join(folder, "names.pt")
        )


@pytest.mark.slow
def test_several_processes_log_their_exchange(tmp_path):
    processes.run(_process, 2, str(tmp_path))
    found, want = torch.load(tmp_path / "names.pt")
    assert found == want and {"pool_exchange_bytes", "row_exchange_bytes"} <= found


@pytest.mark.parametrize(("targets", "warnings"), [(0, 3), (1, 2), (60, 0)])
def test_logs_without_a_target_are_warnings(tmp_path, caplog, targets, warnings):
    rows = [
        {"input_ids": [1, 2, 3], "labels": [-100, -100, 3 if row < targets else -100]}
        for row in range(60)
    ]
    settings = {
        "task": "clm",
        "max_steps": 60,
        "logging_steps": 30,
        "per_device_train_batch_size": 1,
    }
    make_trainer(tmp_path, tiny_model("clm"), rows, settings).train()
    assert caplog.text.count("No row had a target since the last log") == warnings


@pytest.mark.parametrize(("rows_at_once", "warnings"), [(1, 3), (2, 0)])
def test_logs_of_pools_of_one_candidate_are_warnings(tmp_path, caplog, rows_at_once, warnings):
    rows = [
        {"input_ids": [1 + row % 7, 2, 3 + row], "labels": [-100, -100, 3 + row]}
        for row in range(8)
    ]
    settings = {
        "task": "clm",
        "max_steps": 4,
        "logging_steps": 2,
        "per_device_train_batch_size": rows_at_once,
    }
    make_trainer(tmp_path, tiny_model("clm"), rows, settings).train()
    # After the first, the second and the fourth step.
    assert caplog.text.count("a single candidate since the last log") == warnings


def test_tensorboard_gets_every_name(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tiny_trainer(tmp_path / "run", task="clm", report_to=["tensorboard"])
    assert run.args.run_name == f"{tmp_path.name}_run"
    run.train()
    folder = next((tmp_path / "run" / "runs").iterdir())
    events = EventAccumulator(str(folder)).Reload()
    history = run.state.log_history
    names = {name: 0 for logs in history for name in logs if name != "step"}
    assert set(events.Tags()["scalars"]) == {*rewrite_logs(names)}
    losses = [(logs["step"], logs["loss"]) for logs in history if "loss" in logs]
    assert {event.step: event.value for event in events.Scalars("train/loss")} == pytest.approx(
        dict(losses)
    )


def test_tokens_are_counted_where_a_mask_holds_the_numbers_of_documents(tmp_path):
    row = {"input_ids": torch.arange(6), "attention_mask": torch.tensor([1, 1, 2, 2, 3, 0])}
    run = make_trainer(
        tmp_path,
        tiny_model("clm"),
        [row] * 4,
        {"task": "clm", "max_steps": 1, "save_strategy": "no"},
    )
    run.train()
    assert run.window.tokens_seen == 5 * 4
