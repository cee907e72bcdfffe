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
    assert all(each.unit and len(each.meaning) > 5 and each.better in (None, "lower", "higher") for each in MEASURES)
    assert all(each.short for each in MEASURES if each.shown)


def test_the_document_has_the_tables():
    printed = subprocess.run(
        [sys.executable, "-m", "headless_trainer.measures"], capture_output=True, text=True, check=True
    )
    tables = re.findall(r"^\| name \|.*?(?=\n\n)", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert "\n\n".join(tables) == printed.stdout.strip(), (
        "put what python -m headless_trainer.measures prints into docs/logs.md"
    )


def test_the_table_imports_nothing_heavy():
    script = "import sys, headless_trainer.measures; assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


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
    run.train()
    folder = next((tmp_path / "run" / "runs").iterdir())
    events = EventAccumulator(str(folder)).Reload()
    history = run.state.log_history
    assert set(events.Tags()["scalars"]) == {
        *rewrite_logs({name: 0 for logs in history for name in logs if name != "step"})
    }
    losses = [(logs["step"], logs["loss"]) for logs in history if "loss" in logs]
    assert {event.step: event.value for event in events.Scalars("train/loss")} == pytest.approx(dict(losses))


class FakeTracker:
    """Takes what the integrations of wandb and trackio say, and keeps what they log."""

    def __init__(self, monkeypatch, name: str):
        self.started, self.logged, self.run, self.config = [], [], None, {}
        self.summary: dict[str, float] = {}
        self.context_vars = self.current_space_id = self.settings = self
        for module in ("", ".sdk", ".sdk.lib", ".sdk.lib.config_util"):  # what the integration of wandb imports
            monkeypatch.setitem(sys.modules, name + module, self)
        monkeypatch.setattr(f"transformers.integrations.integration_utils.is_{name}_available", lambda: True)

    def init(self, **settings):
        self.started.append(settings)
        self.run = self

    def log(self, logs):
        self.logged.append(logs)

    def get(self, *_):
        return None

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_wandb_and_trackio_get_every_name(tmp_path, monkeypatch, name):
    """The integration is transformers'; what the package itself does with the figures is not looked at here."""
    fake = FakeTracker(monkeypatch, name)
    run = tiny_trainer(tmp_path / "study" / "run", task="mlm", report_to=[name])
    run.train()
    run.evaluate()
    assert {each["name"] for each in fake.started} == {"study_run"}  # an evaluation afterwards does not start another
    ends = {name for name in names_of(run.state.log_history) if name.startswith("train_") and name != "train_seconds"}
    ends.add("total_flos")
    want = rewrite_logs({key: 0 for logs in run.state.log_history for key in logs if key not in ends | {"step"}})
    assert {key for logs in fake.logged for key in logs} == {*want, "train/global_step"}
    assert fake.logged[0]["train/loss"] == run.state.log_history[0]["loss"]


def arguments(folder, *names: str) -> HeadlessTrainingArguments:
    return HeadlessTrainingArguments(str(folder), use_cpu=True, report_to=list(names))


def test_a_tracker_that_is_not_there_is_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.integrations.integration_utils.is_wandb_available", lambda: False)
    with pytest.raises(
        ValueError, match="report_to names 'wandb', which is not installed or switched off: pip install w"
    ):
        arguments(tmp_path, "wandb")
    with pytest.raises(
        ValueError, match="report_to names 'tensorbord', which is none of .*tensorboard, trackio, wandb"
    ):
        arguments(tmp_path, "tensorbord")
    assert arguments(tmp_path, "none").report_to == [] and arguments(tmp_path, "none").run_name is None
