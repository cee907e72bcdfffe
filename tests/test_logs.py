"""docs/logs.md names every figure that trainings log, says when each is logged, and how trackers call it."""

import os
import re
import sys
from pathlib import Path

import processes
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, GPT2Config, GPT2LMHeadModel, GPT2Model, PrinterCallback
from transformers.integrations.integration_utils import rewrite_logs

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, VanillaTrainer

DOCUMENT = Path(__file__).parents[1] / "docs" / "logs.md"
VOCAB = 50
RUNS = {
    "headless mlm": {"task": "mlm"},
    "headless clm": {"task": "clm"},
    "corrected clm": {"task": "clm", "log_q_correction": True},
    "pool only": {"task": "mlm", "eval_full_vocabulary": False},
    "vanilla mlm": {"task": "mlm", "objective": "vanilla"},
    "vanilla clm": {"task": "clm", "objective": "vanilla", "head_bias": "prior", "eval_full_vocabulary": False},
    "world": {"task": "clm", "negatives": "world"},
    "sparse": {"task": "mlm", "negatives": "step", "sparse_embedding_updates": True},
}
# Words of the table's last column, as conditions on the settings of a run.
PROCESSES = " on several processes"


def documented() -> dict[str, dict[str, str]]:
    """Unit, meaning and condition of every name in the tables of the document."""
    found = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"`[a-z_<>]+`", cells[0]) and len(cells) == 4:
            name = cells[0].strip("`")
            assert name not in found, f"{name} has two rows"
            found[name] = dict(zip(("unit", "meaning", "logged"), cells[1:], strict=True))
    return found


def is_logged(condition: str, settings: dict, rows: dict) -> bool:
    """Whether the document says that a run with these settings, on one process, logs a name."""
    headless, task = settings.get("objective", "headless") == "headless", settings["task"]
    parts = {
        "always": True,
        "headless": headless,
        "clm": task == "clm",
        "headless without `--log_q_correction`": headless and not settings.get("log_q_correction"),
        "unless `--eval_full_vocabulary false` (headless)": not headless or settings.get("eval_full_vocabulary", True),
    }
    if condition.endswith(PROCESSES):
        return False
    answer = True
    for part in condition.split(", "):
        other = re.fullmatch(r"as `(\w+)`", part)
        answer &= is_logged(rows[other[1]]["logged"], settings, rows) if other else parts[part]
    return answer


class Tokenizer:
    """What a trainer asks of a tokenizer."""

    pad_token_id, mask_token_id, all_special_ids, name_or_path = 0, 1, [0, 1], "toy"

    def __len__(self) -> int:
        return VOCAB

    def save_pretrained(self, folder) -> None:
        """Nothing to save."""


def trainer(folder, **settings):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    data = [{"input_ids": torch.randint(2, VOCAB, (12,), generator=generator)} for _ in range(8)]
    args = HeadlessTrainingArguments(
        str(folder), max_steps=2, logging_steps=1, eval_strategy="steps", eval_steps=2, save_strategy="no", use_cpu=True,
        disable_tqdm=True, per_device_train_batch_size=2, mlm_probability=0.4, **settings,
    )  # fmt: skip
    headless = args.objective == "headless"
    if args.task == "clm":
        config = GPT2Config(n_embd=8, n_layer=1, n_head=1, n_positions=16, vocab_size=VOCAB)
        model = GPT2Model(config) if headless else GPT2LMHeadModel(config)
    else:
        config = BertConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=VOCAB
        )
        model = BertModel(config) if headless else BertForMaskedLM(config)
    counts = torch.ones(VOCAB, dtype=torch.long)
    made = (HeadlessTrainer if headless else VanillaTrainer)(
        model, args, token_counts=counts, train_dataset=data, eval_dataset=data, processing_class=Tokenizer()
    )
    made.pop_callback(PrinterCallback)
    return made


def names_of(history: list[dict]) -> set[str]:
    """Names in a log, layers made one."""
    return {re.sub(r"layer_\d+_", "layer_<i>_", name) for logs in history for name in logs} - {"step"}


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> dict[str, set[str]]:
    """Names that each of the runs logs."""
    found = {}
    for name, settings in RUNS.items():
        run = trainer(tmp_path_factory.mktemp("run"), **settings)
        run.train()
        found[name] = names_of(run.state.log_history)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_run_logs_what_the_document_says(logged, name):
    rows = documented()
    assert logged[name] == {each for each, row in rows.items() if is_logged(row["logged"], RUNS[name], rows)}


def test_the_document_has_no_name_that_nothing_logs(logged):
    of_processes = {name for name, row in documented().items() if row["logged"].endswith(PROCESSES)}
    assert of_processes == {"pool_exchange_bytes", "row_exchange_bytes"}  # test_several_processes_log_their_exchange
    assert documented().keys() - of_processes == set.union(*logged.values())


def test_every_name_has_a_unit_and_a_meaning():
    assert all(row["unit"] and len(row["meaning"]) > 5 for row in documented().values())


def _process(rank: int, folder: str) -> None:
    run = trainer(folder, task="clm", negatives="world", sparse_embedding_updates=True)
    run.train()
    if rank == 0:
        torch.save(run.state.log_history, os.path.join(folder, "history.pt"))


@pytest.mark.slow
def test_several_processes_log_their_exchange(tmp_path):
    processes.run(_process, 2, str(tmp_path))
    rows = documented()
    want = {name for name, row in rows.items() if is_logged(row["logged"], {"task": "clm"}, rows)}
    assert names_of(torch.load(tmp_path / "history.pt")) == want | {"pool_exchange_bytes", "row_exchange_bytes"}


# Trackers --------------------------------------------------------------------------------------------------------------


def test_names_in_trackers_are_those_of_the_document():
    names = ["loss", "tokens_seen", "train_seconds", "eval_accuracy"]
    renamed = rewrite_logs(dict.fromkeys(names))
    text = " ".join(DOCUMENT.read_text(encoding="utf-8").split())
    assert all(f"`{name}` is `{new}`" in text for name, new in zip(names, renamed, strict=True))


def test_tensorboard_gets_every_name(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trainer(tmp_path / "run", task="clm", report_to=["tensorboard"])
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
    run = trainer(tmp_path / "study" / "run", task="mlm", report_to=[name])
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
