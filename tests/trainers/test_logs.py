"""The table of measures, and docs/logs.md with it, names every figure that training runs log, and says when each is logged."""

import os
import re
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import torch
from builders import tiny_trainer
from transformers.integrations.integration_utils import rewrite_logs

from headless_trainer import HeadlessTrainingArguments
from headless_trainer.measures import MEASURES, higher_is_better

DOCUMENT = Path(__file__).parents[2] / "docs" / "logs.md"
RUNS = {
    "headless mlm": {"task": "mlm"},
    "headless clm": {"task": "clm"},
    "pool only": {"task": "mlm", "eval_full_vocabulary": False},
    "vanilla mlm": {"task": "mlm", "objective": "vanilla"},
    "vanilla clm": {"task": "clm", "objective": "vanilla", "head_bias": "prior"},
    "world": {"task": "clm", "negatives": "world"},
    "sparse": {"task": "mlm", "negatives": "step", "sparse_embedding_updates": True},
}


def names_of(history: list[dict]) -> set[str]:
    """Names in a log, layers made one."""
    return {re.sub(r"layer_\d+_", "layer_<i>_", name) for logs in history for name in logs} - {"step"}


def expected(args) -> set[str]:
    """Names that the table says a run with these settings logs."""
    return {each.name for each in MEASURES if each.is_logged(args)}


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> dict[str, tuple[set[str], set[str]]]:
    """Names that each of the runs logs, and those that it should."""
    found = {}
    for name, settings in RUNS.items():
        run = tiny_trainer(tmp_path_factory.mktemp("run"), **settings)
        run.train()
        found[name] = names_of(run.state.log_history), expected(run.args)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_run_logs_what_the_table_says(logged, name):
    found, want = logged[name]
    assert found == want


def test_the_table_has_no_name_that_nothing_logs(logged):
    elsewhere = {"pool_exchange_bytes", "row_exchange_bytes"}  # test_several_processes_log_their_exchange
    assert {each.name for each in MEASURES} - elsewhere == set.union(*(found for found, _ in logged.values()))


def test_every_name_has_one_row():
    names = [(each.name, each.logged) for each in MEASURES]  # eval_loss is another quantity for each objective
    assert len(names) == len(set(names))
    assert all(each.short for each in MEASURES if each.shown)


def test_the_document_has_the_tables_whose_module_imports_nothing_heavy():
    script = "import runpy, sys; runpy.run_module('headless_trainer.measures', run_name='__main__'); "
    script += "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    tables = re.findall(r"^\| name \|.*?(?=\n\n)", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert "\n\n".join(tables) == printed.strip(), (
        "put what python -m headless_trainer.measures prints into docs/logs.md"
    )


@pytest.mark.parametrize(
    "name, higher",
    [
        *((f"eval_{data}{name}", True) for data in ("", "wiki_") for name in ("accuracy", "pool_accuracy")),
        *((name, False) for name in ("loss", "eval_wiki_loss", "perplexity", "cross_entropy_without_bias")),
    ],
)
def test_the_direction_is_that_of_the_row(name, higher):
    assert higher_is_better(name) == higher


def _process(rank: int, folder: str) -> None:
    run = tiny_trainer(folder, task="clm", negatives="world", sparse_embedding_updates=True)
    run.train()
    if rank == 0:
        torch.save((names_of(run.state.log_history), expected(run.args)), os.path.join(folder, "names.pt"))


@pytest.mark.slow
def test_several_processes_log_their_exchange(tmp_path):
    processes.run(_process, 2, str(tmp_path))
    found, want = torch.load(tmp_path / "names.pt")
    assert found == want and {"pool_exchange_bytes", "row_exchange_bytes"} <= found


# Trackers --------------------------------------------------------------------------------------------------------------


def test_names_in_trackers_are_those_of_the_document():
    names = ["loss", "tokens_seen", "train_seconds", "eval_accuracy"]
    renamed = rewrite_logs(dict.fromkeys(names))
    text = " ".join(DOCUMENT.read_text(encoding="utf-8").split())
    assert all(f"`{name}` is `{new}`" in text for name, new in zip(names, renamed, strict=True))


def test_tensorboard_gets_every_name(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tiny_trainer(tmp_path / "run", task="clm", report_to=["tensorboard"])
    assert run.args.run_name == f"{tmp_path.name}_run"
    run.train()
    folder = next((tmp_path / "run" / "runs").iterdir())
    events = EventAccumulator(str(folder)).Reload()
    history = run.state.log_history
    assert set(events.Tags()["scalars"]) == {
        *rewrite_logs({name: 0 for logs in history for name in logs if name != "step"})
    }
    losses = [(logs["step"], logs["loss"]) for logs in history if "loss" in logs]
    assert {event.step: event.value for event in events.Scalars("train/loss")} == pytest.approx(dict(losses))


def test_without_trackers_a_run_has_no_name(tmp_path):
    args = HeadlessTrainingArguments(str(tmp_path), use_cpu=True, report_to=["none"])
    assert args.report_to == [] and args.run_name is None
