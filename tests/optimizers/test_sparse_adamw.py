"""Updates of the embedding by rows are those of dense AdamW, and cost nothing that grows with the
vocabulary.
"""

import math
import os
from copy import deepcopy

import processes
import pytest
import torch
from builders import Gradients, Tokenizer, assert_resumes, logged, make_trainer, tiny_model
from safetensors.torch import load_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments
from headless_trainer.models.candidate_head import candidate_matrix, untie
from headless_trainer.optimizers.sparse_adamw import (
    SparseAdamW,
    average_row_gradients,
    clip_gradients,
    quadrature,
)

ROWS, WIDTH = 60, 4


def sparse(ids: torch.Tensor, rows: torch.Tensor, size=(ROWS, WIDTH)) -> torch.Tensor:
    return torch.sparse_coo_tensor(ids[None], rows, size, check_invariants=True)


def pair(dtype=torch.float64, **settings):
    """The same table twice, one for each optimizer."""
    torch.manual_seed(0)
    tables = [
        nn.Parameter(torch.randn(ROWS, WIDTH, dtype=torch.float64).to(dtype)) for _ in range(2)
    ]
    tables[1].data.copy_(tables[0].data)
    settings = {"lr": 1e-2, "weight_decay": 0.1} | settings
    return (
        tables,
        SparseAdamW([tables[0]], embeddings=[tables[0]], **settings),
        torch.optim.AdamW([tables[1]], **settings),
    )


def train_pair(tables, ours, dense, steps: int, gradient_size=lambda shape, generator: 1.0):
    """Both optimizers on the same gradients; the largest difference in a row that a step was about
    to read.
    """
    generator = torch.Generator().manual_seed(1)
    # The last row is never read, some rarely.
    shares, worst = (
        1.0 / torch.arange(1, ROWS).double() ** 1.5,
        0.0,
    )
    for step in range(steps):
        for optimizer in (ours, dense):
            optimizer.param_groups[0]["lr"] = 1e-2 * (step % 5) / 4  # now and then 0
        ids = torch.multinomial(shares, 20, True, generator=generator).unique()
        rows = torch.randn(len(ids), WIDTH, generator=generator, dtype=torch.float64)
        rows = (rows * gradient_size(rows.shape, generator)).to(tables[0].dtype)
        ours.catch_up(ids)
        worst = max(worst, (tables[0][ids] - tables[1][ids]).abs().max().item())
        tables[0].grad = sparse(ids, rows)
        tables[1].grad = sparse(ids, rows).to_dense()
        ours.step()
        dense.step()
    return worst


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.95), (0.0, 0.9)])
def test_it_is_dense_adamw(weight_decay, betas):
    tables, ours, dense = pair(weight_decay=weight_decay, betas=betas, eps=1e-16)
    before = tables[0].detach().clone()
    worst = train_pair(tables, ours, dense, 150)
    assert worst < 1e-12
    state, want = ours.state[tables[0]], dense.state[tables[1]]
    stale = state["last_step"] < 150
    assert stale[-1] and 10 < stale.sum() < ROWS
    lagging = (tables[0] - tables[1]).abs().max()
    assert lagging > 1e-4 or betas[0] == weight_decay == 0  # nothing is caught up before it is read
    ours.catch_up()
    assert (
        (tables[0] - tables[1]).abs().max() < 1e-12 < 0.01 < (tables[0] - before)[:-1].abs().max()
    )
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(state[name], want[name], rtol=1e-10, atol=1e-30)


@pytest.mark.parametrize(
    "betas, one, late, wide", [((0.9, 0.999), 5e-3, 2e-9, 2e-10), ((0.9, 0.95), 4e-2, 6e-3, 2e-5)]
)
def test_two_terms_stand_for_the_sum(betas, one, late, wide):
    beta1, beta2 = betas
    root = torch.logspace(-4, 5, 80, dtype=torch.float64)  # sqrt(v) over eps
    for last, bound in ((1, one), (1000, late)):
        worst = worst_large = 0.0
        for missed in (1, 2, 3, 7, 30, 300):
            n = torch.arange(1, missed + 1, dtype=torch.float64)
            unbiased = (1 - beta2 ** (last + n)).sqrt()
            weights = (beta1 / math.sqrt(beta2)) ** n * unbiased / (1 - beta1 ** (last + n))
            sizes = unbiased * beta2 ** (-n / 2)
            moments = torch.stack([(weights * sizes**j).sum() for j in (-1, 0, 1, 2)])
            a1, e1, a2, e2 = quadrature(moments[None], 1e-8)
            got = a1 / (1e-8 * root + e1) + a2 / (1e-8 * root + e2)
            want = (weights / 1e-8 / (root[:, None] + sizes)).sum(-1)
            error = (got / want - 1).abs()
            worst, worst_large = (
                max(worst, error.max().item()),
                max(worst_large, error[root > 50].max().item()),
            )
        assert bound / 20 < worst < bound
        assert worst_large < wide


def test_only_rows_that_are_asked_for_are_caught_up():
    tables, ours, _ = pair(weight_decay=0.5)
    before = tables[0].detach().clone()
    for _ in range(3):
        tables[0].grad = sparse(torch.tensor([0]), torch.ones(1, WIDTH, dtype=torch.float64))
        ours.step()
    ours.catch_up(torch.tensor([[7, 7], [9, 7]]))
    before[[7, 9]] *= 0.995**3  # never read, they decay alone
    torch.testing.assert_close(tables[0][1:], before[1:], rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_goes_on_from_a_file_bit_by_bit(tmp_path, dtype):
    tables, ours, dense = pair(dtype)
    train_pair(tables, ours, dense, 70)
    torch.save(ours.state_dict(), tmp_path / "optimizer.pt")
    copy = nn.Parameter(tables[0].detach().clone())
    loaded = SparseAdamW([copy], embeddings=[copy])
    loaded.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    assert {each.state[each.embeddings[0]]["exp_avg"].dtype for each in (ours, loaded)} == {dtype}
    history = loaded.state[copy]["history"]
    assert history.dtype == torch.float64 and torch.equal(history, ours.state[tables[0]]["history"])
    for table, optimizer in ((tables[0], ours), (copy, loaded)):
        table.grad = sparse(torch.tensor([3, 50]), torch.ones(2, WIDTH, dtype=dtype))
        optimizer.step()
        optimizer.catch_up()
    assert torch.equal(tables[0], copy)


def test_steps_leave_the_state_that_was_loaded_as_it_is():
    tables, ours, dense = pair(torch.float32)
    train_pair(tables, ours, dense, 3)
    saved = deepcopy(ours.state_dict())
    before = deepcopy(saved)
    copy = nn.Parameter(tables[0].detach().clone())
    loaded = SparseAdamW([copy], embeddings=[copy])
    loaded.load_state_dict(saved)
    copy.grad = sparse(torch.tensor([3, 50]), torch.ones(2, WIDTH))
    loaded.step()
    (state,) = saved["state"].values()
    (state_before,) = before["state"].values()
    for name, value in state_before.items():
        assert torch.equal(state[name], value), name


def test_a_float16_scaler_skips_the_step_of_an_infinite_row():
    torch.manual_seed(0)
    table, other = nn.Parameter(torch.randn(ROWS, WIDTH)), nn.Parameter(torch.ones(2))
    ours = SparseAdamW([table, other], embeddings=[table], lr=0.1, fused=True)
    scaler, before = torch.amp.GradScaler("cpu", init_scale=4.0), table.detach().clone()
    for value in (math.inf, 8.0):
        table.grad = sparse(torch.tensor([1, 1]), torch.full((2, WIDTH), value))
        other.grad = torch.ones(2)
        scaler.scale(torch.ones(()))  # starts the scaler
        scaler.step(ours)
        scaler.update()
        assert torch.equal(table, before) == (value == math.inf) and (other == 1).all() == (
            value == math.inf
        )
    torch.testing.assert_close(ours.state[table]["exp_avg"][1], torch.full((WIDTH,), 0.1 * 16 / 2))
    assert int(ours.state[table]["step"]) == 1


@pytest.mark.parametrize("settings, message", [
    ({"betas": (0.99, 0.95)}, "adam_beta1 is 0.99 and adam_beta2 is 0.95"),
    ({"eps": 0.0}, "adam_epsilon .*got 0.0"),
    *(({name: True}, "amsgrad or maximize is True") for name in ("amsgrad", "maximize")),
])  # fmt: skip
def test_settings_and_gradients_it_refuses(settings, message):
    with pytest.raises(ValueError, match=message):
        pair(**settings)
    tables, ours, _ = pair(lr=2.0, weight_decay=0.5)
    tables[0].grad = torch.ones(ROWS, WIDTH).double()
    with pytest.raises(ValueError, match="sparse_embedding_updates"):
        ours.step()
    tables[0].grad = tables[0].grad.to_sparse(1)
    with pytest.raises(ValueError, match=r"lr \* weight_decay .*got 2.0 \* 0.5"):
        ours.step()


@pytest.mark.parametrize("max_norm", [1.0, 1e6, math.inf])
def test_clipping_is_that_of_dense_gradients(max_norm):
    torch.manual_seed(0)
    ids, rows = torch.tensor([3, 3, 3, 8]), torch.randn(4, WIDTH)
    ours = [
        nn.Parameter(torch.zeros(ROWS, WIDTH)),
        nn.Parameter(torch.zeros(5)),
        nn.Parameter(torch.zeros(1)),
    ]
    dense = [nn.Parameter(torch.zeros(ROWS, WIDTH)), nn.Parameter(torch.zeros(5))]
    ours[0].grad, ours[1].grad = sparse(ids, rows), torch.randn(5)
    dense[0].grad, dense[1].grad = ours[0].grad.to_dense(), ours[1].grad.clone()
    want = torch.nn.utils.clip_grad_norm_(dense, max_norm)
    torch.testing.assert_close(clip_gradients(iter(ours), max_norm), want)
    torch.testing.assert_close(ours[0].grad.to_dense(), dense[0].grad)
    torch.testing.assert_close(ours[1].grad, dense[1].grad)
    assert ours[0].grad.is_sparse and ours[2].grad is None


def test_rows_of_processes_are_averaged():
    """Process 0 has rows 1 and 4, this one row 4 twice; lengths, ids and rows are
    gathered in turn.
    """
    weight = nn.Parameter(torch.zeros(6, 2))
    weight.grad = sparse(torch.tensor([4, 4]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (6, 2))
    others = iter([torch.tensor([2]), torch.tensor([1, 4]), torch.tensor([[8.0, 0.0], [2.0, 2.0]])])
    received = average_row_gradients(weight, lambda own: torch.cat([next(others), own]), 2)
    assert weight.grad.is_coalesced() and weight.grad.indices().tolist() == [[1, 4]]
    assert weight.grad.values().tolist() == [[4.0, 0.0], [3.0, 4.0]]
    assert received == 2 * (8 + 2 * 4)  # two rows of the other process, padding included
    weight.grad = None  # a process without a gradient takes part
    others = iter([torch.tensor([1]), torch.tensor([5]), torch.tensor([[2.0, 4.0]])])
    average_row_gradients(weight, lambda own: torch.cat([own, next(others)]), 2)
    assert weight.grad.indices().tolist() == [[5]] and weight.grad.values().tolist() == [[1.0, 2.0]]
    weight.grad = None
    assert (
        average_row_gradients(weight, lambda own: torch.cat([own, own]), 2) == 0
        and weight.grad is None
    )


VOCAB, LENGTH = 200, 12


def trunk(task: str, dropout: float = 0.0, vocab_size: int = VOCAB, untied: bool = False):
    ids = {"bos_token_id": None, "eos_token_id": None} if task == "clm" else {}
    model = tiny_model(task, vocab_size, layers=1, positions=16, dropout=dropout, **ids)
    return untie(model) if untied else model


def data() -> list[dict]:
    generator = torch.Generator().manual_seed(1)
    shares = 1.0 / torch.arange(1, VOCAB - 1)
    return [
        {"input_ids": 2 + torch.multinomial(shares, LENGTH, True, generator=generator)}
        for _ in range(24)
    ]


def trainer(
    folder, task: str, *, dropout=0.0, model=None, untied=False, callbacks=(), **settings
) -> HeadlessTrainer:
    settings = {
        "per_device_train_batch_size": 2, "max_steps": 8, "save_strategy": "no", "learning_rate": 1e-2, "weight_decay": 0.1,
        "lr_scheduler_type": "cosine", "warmup_steps": 3, "mlm_probability": 0.3 if task == "mlm" else 0.15, "task": task,
        "train_sampling_strategy": "sequential", "sparse_embedding_updates": True,
    } | settings  # fmt: skip
    parameters = {
        "eval_dataset": data()[:4],
        "processing_class": Tokenizer(VOCAB),
        "callbacks": list(callbacks),
    }
    return make_trainer(
        folder, model or trunk(task, dropout, untied=untied), data(), settings, **parameters
    )


@pytest.mark.parametrize("task, settings", [
    ("clm", {"gradient_accumulation_steps": 2}),
    ("mlm", {"gradient_accumulation_steps": 2, "max_grad_norm": 0.05}),
    ("clm", {"max_grad_norm": 0.0, "negatives": "step", "eval_strategy": "steps", "eval_steps": 3}),
    ("mlm", {"optim": "adamw_torch"}),
    ("mlm", {"bf16": True}),
    ("clm", {"untied": True, "gradient_accumulation_steps": 2, "max_grad_norm": 0.05, "negatives": "step"}),
    ("mlm", {"untied": True, "eval_strategy": "steps", "eval_steps": 3}),
])  # fmt: skip
def test_a_training_is_that_with_dense_updates(tmp_path, task, settings):
    gradients, half = Gradients(), "bf16" in settings
    rows = trainer(tmp_path / "rows", task, callbacks=[gradients], **settings)
    rows.train()
    dense = trainer(tmp_path / "dense", task, sparse_embedding_updates=False, **settings)
    dense.train()
    assert sum(each.is_sparse for each in gradients.kept.values()) == 1 + settings.get(
        "untied", False
    )
    assert not rows.embedding.sparse
    for name in ("loss", "grad_norm", "eval_loss"):
        assert logged(rows, name) == pytest.approx(
            logged(dense, name), rel=2e-2 if half else 2e-6
        ), name
    if half:
        return
    before, counted = trunk(task, untied=settings.get("untied", False)).state_dict(), 0
    for name, want in dense.model.state_dict().items():
        moved = (want - before[name]).norm()
        # The gradient of a key's bias is rounding alone, which AdamW makes into steps of its usual
        # length.
        assert (rows.model.state_dict()[name] - want).norm() <= 1e-3 * moved + 1e-5, name
        counted += bool(moved > 0)
    assert counted > 10


@pytest.mark.parametrize(
    "task, accumulation, untied", [("clm", 1, False), ("mlm", 2, False), ("clm", 2, True)]
)
def test_resume_is_exact(tmp_path, task, accumulation, untied):
    settings = {
        "gradient_accumulation_steps": accumulation,
        "untied": untied,
        "dropout": 0.1,
        "max_steps": 10,
    }
    settings |= {"save_strategy": "steps", "save_steps": 6, "train_sampling_strategy": "random"}
    assert_resumes(lambda folder: trainer(folder, task, **settings), tmp_path, 6)


def test_what_is_saved_has_every_row(tmp_path):
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 4}
    found = []
    for sparse_updates in (True, False):
        folder = tmp_path / str(sparse_updates)
        trainer(folder, "clm", sparse_embedding_updates=sparse_updates, **settings).train()
        found.append(load_file(folder / "checkpoint-4" / "model.safetensors")["wte.weight"])
    never = torch.ones(VOCAB, dtype=torch.bool)
    never[torch.cat([row["input_ids"] for row in data()])] = False
    assert never.sum() > 5
    torch.testing.assert_close(found[0][never], found[1][never], rtol=1e-6, atol=0)
    assert (found[0][never] != trunk("clm").wte.weight[never]).any()


def test_a_language_model_within_the_run_has_every_row(tmp_path):
    heads = []

    class Keep(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 6:
                heads.append(run.language_model().get_output_embeddings().weight)

    for sparse_updates in (True, False):
        settings = {"sparse_embedding_updates": sparse_updates, "callbacks": [Keep()]}
        run = trainer(tmp_path / str(sparse_updates), "clm", **settings)
        run.train()
    torch.testing.assert_close(*heads, rtol=0, atol=1e-5)


def test_the_best_checkpoint_is_loaded_as_it_was(tmp_path):
    settings = {
        "save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 6,
        "load_best_model_at_end": True, "learning_rate": 0.5, "lr_scheduler_type": "constant", "warmup_steps": 0,
    }  # fmt: skip
    run = trainer(tmp_path, "clm", **settings)
    run.train()
    best = load_file(os.path.join(run.state.best_model_checkpoint, "model.safetensors"))[
        "wte.weight"
    ]
    assert run.state.best_global_step < 6 and torch.equal(run.embedding.weight, best)
    run.evaluate()
    assert torch.equal(run.embedding.weight, best)


class Largest(TorchDispatchMode):
    """Names the operations that make something of at least ``size`` elements out of anything but
    ``tables``.
    """

    def __init__(self, size: int, tables: list[torch.Tensor]):
        super().__init__()
        self.size, self.tables, self.found, self.calls = (
            size,
            {table.data_ptr() for table in tables},
            set(),
            0,
        )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        for value in result if isinstance(result, tuple | list) else [result]:
            if (
                isinstance(value, torch.Tensor)
                and value.layout == torch.strided
                and value.numel() >= self.size
            ):
                if value.data_ptr() not in self.tables:
                    self.found.add(str(func))
        return result


@pytest.mark.parametrize("sparse_updates, untied", [(True, False), (False, False), (True, True)])
def test_a_step_makes_nothing_of_the_vocabularys_size(tmp_path, sparse_updates, untied):
    size = 50_000
    watch = []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                watch.append(Largest(size, tables()))
                watch[0].__enter__()
            elif state.global_step == 4:
                watch[0].__exit__(None, None, None)

    def tables():
        weights = [run.embedding.weight, *([candidate_matrix(run.model).weight] if untied else [])]
        known = [
            each for weight in weights for each in run.optimizer.optimizer.state[weight].values()
        ]
        return [*weights, run.token_counts, *known]

    run = trainer(
        tmp_path, "clm", model=trunk("clm", vocab_size=size, untied=untied), callbacks=[Watch()], max_steps=4,
        logging_strategy="no",
        sparse_embedding_updates=sparse_updates,
    )  # fmt: skip
    run.train()
    assert watch[0].calls > 300
    assert bool(watch[0].found) != sparse_updates, watch[0].found


def test_shards_are_refused(tmp_path, sharded):
    with pytest.raises(ValueError, match="sparse_embedding_updates .*DeepSpeed and FSDP"):
        trainer(tmp_path, "clm")


def test_models_and_optimizers_it_refuses(tmp_path):
    frozen = trunk("clm").requires_grad_(False)
    frozen.h.requires_grad_(True)
    with pytest.raises(
        ValueError,
        match="sparse_embedding_updates is True but the embedding of the model is frozen",
    ):
        trainer(tmp_path, "clm", model=frozen)
    model = trunk("clm")
    args = HeadlessTrainingArguments(
        str(tmp_path), use_cpu=True, sparse_embedding_updates=True, task="clm"
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name, value in (
        ("optimizers", (optimizer, None)),
        ("optimizer_cls_and_kwargs", (torch.optim.SGD, {"lr": 1})),
    ):
        with pytest.raises(ValueError, match=f"{name} also chooses an optimizer"):
            HeadlessTrainer(
                model,
                args,
                train_dataset=data(),
                processing_class=Tokenizer(VOCAB),
                **{name: value},
            )


def _process(rank: int, folder: str, task: str, accumulation: int, untied: bool) -> None:
    model = trunk(task, untied=untied)
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(rank)  # what one process holds counts
        if untied:
            candidate_matrix(model).weight.add_(rank)
    settings = {"negatives": "world", "per_device_train_batch_size": 4 // accumulation // 2}
    run = trainer(folder, task, model=model, gradient_accumulation_steps=accumulation, **settings)
    run.train()
    state = run.optimizer.optimizer.state[run.embedding.weight]
    # Another training may share it densely.
    assert not hasattr(run.model, "_ddp_params_and_buffers_to_ignore")
    logs = [logged(run, name) for name in ("loss", "grad_norm", "row_exchange_bytes")]
    torch.save((run.model.state_dict(), dict(state), *logs), f"{folder}/{rank}.pt")


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, accumulation, untied", [("clm", 1, False), ("clm", 2, False), ("clm", 2, True)]
)
def test_two_processes_are_one(tmp_path, task, accumulation, untied):
    processes.run(_process, 2, str(tmp_path), task, accumulation, untied)
    weights, state, losses, norms, exchanged = torch.load(tmp_path / "0.pt")
    other, other_state, *_ = torch.load(tmp_path / "1.pt")
    assert all(torch.equal(weights[name], other[name]) for name in weights)
    assert all(torch.equal(state[name], other_state[name]) for name in state)
    settings = {
        "per_device_train_batch_size": 4,
        "negatives": "step",
        "sparse_embedding_updates": False,
    }
    one = trainer(tmp_path / "one", task, untied=untied, **settings)
    one.train()
    assert losses == pytest.approx(logged(one, "loss"), rel=1e-5)
    assert norms == pytest.approx(logged(one, "grad_norm"), rel=1e-5)
    # Between one row and all that can be: an id and 16 numbers for each of the other process's 24
    # inputs and of the candidates, which are the targets of both where they have rows of their own.
    most = (24 + (48 if untied else 24)) * (8 + 64)
    assert len(exchanged) == 8 and all(8 + 64 < received <= most for received in exchanged)
    moved = (one.embedding.weight - trunk(task).get_input_embeddings().weight).norm()
    for name, want in one.model.state_dict().items():
        assert (weights[name] - want).norm() < 1e-3 * moved, name
