"""Between the drawing of its targets and its end, a step asks the device for no number but those
listed here: `.item()`, `nonzero`, `unique` and the like wait for all that the host asked of it
before.
"""

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from builders import tiny_trainer
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback

from headless_trainer import HeadlessTrainer
from headless_trainer.trainers.finite import FiniteCheck

WAITING = {"_local_scalar_dense", "nonzero", "_unique", "_unique2", "unique_dim", "unique_consecutive", "is_nonzero",
           "equal", "masked_select", "allclose", "bincount", "repeat_interleave"}  # fmt: skip
# File and function -> why it may.
REASONS = {
    ("adam.py", "*"): "counts of steps, which torch keeps on the host",
    # transformers asks of every decoder whether its rows are packed
    ("masking_utils.py", "find_packed_sequence_indices"): "of another library",
}
SPARSE = {
    (
        "sparse_adamw.py",
        "*",
    ): "the rows of a step are found on the device, their last step is kept on the host"
}


class Waits(TorchDispatchMode, TrainerCallback):
    """Keeps where the host asked for a number, from the drawing of a step's targets to the end of
    the step.
    """

    def __init__(self):
        super().__init__()
        self.found, self.counting, self.steps = Counter(), False, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masked = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if self.counting and (name in WAITING or masked):
            frame = sys._getframe(1)
            while (
                frame.f_code.co_filename.find("/torch/") >= 0
                and "/optim/" not in frame.f_code.co_filename
            ):
                frame = frame.f_back
            self.found[Path(frame.f_code.co_filename).name, frame.f_code.co_name] += 1
        return func(*args, **kwargs or {})

    def on_step_end(self, args, state, control, **kwargs):
        self.counting, self.steps = False, self.steps + 1


def waits_of(folder, waits, **settings) -> Counter:
    run = tiny_trainer(
        folder, **{"eval_strategy": "no", "max_steps": 3, "logging_steps": 100} | settings
    )
    run.finite.late = True
    draw = run.get_batch_samples

    def drawn(*args):
        waits.counting = False
        result = draw(*args)
        waits.counting = True
        return result

    run.get_batch_samples = drawn
    run.add_callback(waits)
    with waits:
        run.train()
    assert waits.steps == 3
    return waits.found


CASES = {
    "mlm": {}, "clm": {"task": "clm"}, "accumulation": {"gradient_accumulation_steps": 2},
    "micro-batch": {"negatives": "micro_batch"}, "pools": {"task": "clm", "pool_size": 5, "negatives": "micro_batch"},
    "drawn": {"task": "clm", "sampled_negatives": 8}, "Muon": {"muon_learning_rate": 1e-3},
    "vanilla mlm": {"objective": "vanilla"}, "vanilla clm": {"objective": "vanilla", "task": "clm"},
    "sampled softmax": {"objective": "sampled_softmax", "task": "clm", "exact_every": 2},
    "sparse": {"sparse_embedding_updates": True}, "no clipping": {"max_grad_norm": 0.0},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_step_waits_for_nothing_else(tmp_path, name):
    allowed = REASONS | {"sparse": SPARSE}.get(name, {})
    found = waits_of(tmp_path, Waits(), **CASES[name])
    assert not {place for place in found if place not in allowed and (place[0], "*") not in allowed}


def test_a_wait_is_seen(tmp_path, monkeypatch):
    compute_loss = HeadlessTrainer.compute_loss

    def waiting(self, model, inputs, **kwargs):
        loss = compute_loss(self, model, inputs, **kwargs)
        return loss * loss.detach().item()

    monkeypatch.setattr(HeadlessTrainer, "compute_loss", waiting)
    found = waits_of(tmp_path, Waits())
    assert found[Path(__file__).name, "waiting"] == 3


@pytest.mark.parametrize("at", [2, 3], ids=["in the middle", "the last step"])
def test_a_run_that_reads_late_stops_too_and_saves_nothing(tmp_path, at):
    run = tiny_trainer(
        tmp_path, eval_strategy="no", max_steps=3, save_strategy="steps", save_steps=1, task="clm",
        logging_strategy="no",
    )  # fmt: skip
    run.finite.late = True
    compute_loss = run.compute_loss
    run.compute_loss = lambda *given, **named: (
        compute_loss(*given, **named) * (float("nan") if run.state.global_step + 1 == at else 1.0)
    )
    with pytest.raises(FloatingPointError, match=f"The loss is nan at step {at}, so the run stops"):
        run.train()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        f"checkpoint-{n}" for n in range(1, at)
    ]


def test_a_run_without_logs_and_checkpoints_reads_now_and_then(tmp_path):
    check = FiniteCheck(
        SimpleNamespace(device=torch.device("cuda"), output_dir=tmp_path, save_strategy="no")
    )
    with pytest.raises(FloatingPointError, match="The loss is nan at step 0, so"):
        for step, number in enumerate([torch.tensor(float("nan")), *torch.ones(2_000)]):
            check.watch(step, number, "The loss")
    assert step < 1_000
