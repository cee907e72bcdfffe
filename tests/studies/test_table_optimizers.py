"""Optimizers with one second moment for each row, each against its definition."""

import math

import pytest
import torch
from builders import Tokenizer, make_trainer, tiny_model, token_rows
from torch import nn

STEPS = 4
RATE = 0.1
BETAS = (0.9, 0.95)
EPSILON = 1e-3
WEIGHT_DECAY = 0.5


def table_and_gradients():
    """Return a ``(3, 2)`` table and its gradients in each step; the last row has none at first."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 2, generator=generator, dtype=torch.double)
    gradients = torch.randn(STEPS, 3, 2, generator=generator, dtype=torch.double)
    gradients[:2, 2] = 0
    return weights, gradients


def optimizer_of(study, parameters, tables, **settings):
    settings = {
        "lr": RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": WEIGHT_DECAY,
    } | settings  # fmt: skip
    return study("table_optimizers").RowWiseAdamW(parameters, tables=tables, **settings)


def stepped(optimizer, table, gradients):
    for gradient in gradients:
        table.grad = gradient.clone()
        optimizer.step()


def naive_row(row, gradients, *, momentum, decays, factor):
    """Return a row after all steps, number by number."""
    row = row.tolist()
    first = [0.0] * len(row)
    square = 0.0
    for number, gradient in enumerate(gradients.tolist(), start=1):
        mean_square = sum(value**2 for value in gradient) / len(gradient)
        if decays:
            square = BETAS[1] * square + (1 - BETAS[1]) * mean_square
            scale = math.sqrt(square / (1 - BETAS[1] ** number)) + EPSILON
        else:
            square += mean_square
            scale = math.sqrt(square) + EPSILON
        for column, value in enumerate(gradient):
            first[column] = BETAS[0] * first[column] + (1 - BETAS[0]) * value
            direction = value
            if momentum:
                direction = first[column] / (1 - BETAS[0] ** number)
            row[column] *= 1 - RATE * WEIGHT_DECAY
            row[column] -= factor * RATE * direction / scale
    return row


@pytest.mark.parametrize("momentum", [True, False])
@pytest.mark.parametrize("decays", [True, False])
@pytest.mark.parametrize("factor", [1.0, 20.0])
def test_each_row_is_updated_by_its_own_mean_square(study, momentum, decays, factor):
    weights, gradients = table_and_gradients()
    table = nn.Parameter(weights.clone())
    settings = {"momentum": momentum, "second_moments_decay": decays, "rate_factor": factor}
    optimizer = optimizer_of(study, [table], [table], **settings)
    stepped(optimizer, table, gradients)
    expected = [
        naive_row(row, gradients[:, number], momentum=momentum, decays=decays, factor=factor)
        for number, row in enumerate(weights)
    ]
    torch.testing.assert_close(table.detach(), torch.tensor(expected, dtype=torch.double))


def test_a_row_of_one_column_and_other_parameters_are_those_of_adamw(study):
    _, gradients = table_and_gradients()
    ones = torch.ones(3, 1, dtype=torch.double)
    table, other, table_of_adamw, other_of_adamw = (nn.Parameter(ones.clone()) for _ in range(4))
    row_wise = optimizer_of(study, [table, other], [table])
    adamw = torch.optim.AdamW(
        [table_of_adamw, other_of_adamw],
        lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY,
    )  # fmt: skip
    for gradient in gradients:
        for parameter in (table, table_of_adamw):
            parameter.grad = gradient[:, :1].clone()
        for parameter in (other, other_of_adamw):
            parameter.grad = gradient[:, 1:].clone()
        row_wise.step()
        adamw.step()
    torch.testing.assert_close(table, table_of_adamw)
    assert torch.equal(other, other_of_adamw)


def test_a_flat_rate_stays_where_the_schedule_falls(study):
    weights, gradients = table_and_gradients()
    tables = []
    for rates, flat in (((RATE, RATE / 2), True), ((RATE, RATE), False)):
        table = nn.Parameter(weights.clone())
        optimizer = optimizer_of(study, [table], [table], flat_rate=flat, weight_decay=0.0)
        optimizer.param_groups[0]["initial_lr"] = RATE
        for rate, gradient in zip(rates, gradients[:2], strict=True):
            optimizer.param_groups[0]["lr"] = rate
            table.grad = gradient.clone()
            optimizer.step()
        tables.append(table)
    assert torch.equal(*tables)


def test_saved_and_loaded_equals_never_saved(study):
    weights, gradients = table_and_gradients()
    whole = nn.Parameter(weights.clone())
    stepped(optimizer_of(study, [whole], [whole]), whole, gradients)
    first = nn.Parameter(weights.clone())
    optimizer = optimizer_of(study, [first], [first])
    stepped(optimizer, first, gradients[:2])
    resumed = nn.Parameter(first.detach().clone())
    loaded = optimizer_of(study, [resumed], [resumed])
    loaded.load_state_dict(optimizer.state_dict())
    stepped(loaded, resumed, gradients[2:])
    assert torch.equal(resumed, whole)


@pytest.mark.parametrize(
    ("name", "objective", "state"),
    [
        ("RowWiseAdam", "headless", {"step", "row_square", "exp_avg"}),
        ("RowWiseAdamOfVanilla", "vanilla", {"step", "row_square", "exp_avg"}),
        ("RowWiseAdamWithoutMomentum", "headless", {"step", "row_square"}),
        ("RowWiseAdamWithoutMomentumOfVanilla", "vanilla", {"step", "row_square"}),
        ("RowWiseAdagrad", "headless", {"step", "row_square"}),
        ("RowWiseAdagradAtAFlatRate", "headless", {"step", "row_square"}),
        ("RowWiseAdagradAtAFlatRateOfVanilla", "vanilla", {"step", "row_square"}),
    ],
)
def test_training_keeps_one_second_moment_for_each_token(study, tmp_path, name, objective, state):
    settings = {
        "task": "clm", "objective": objective, "per_device_train_batch_size": 4, "max_steps": 2,
        "save_strategy": "no", "learning_rate": 1e-3, "muon_learning_rate": 1e-3,
    }  # fmt: skip
    kind = getattr(study("table_optimizers"), name)
    model = tiny_model("clm", objective=objective, positions=16)
    rows = token_rows(Tokenizer(), 8, lengths=(10,))
    run = make_trainer(tmp_path, model, rows, settings, kind, processing_class=Tokenizer())
    table = run.model.get_input_embeddings().weight
    before = table.detach().clone()
    run.train()
    assert not torch.equal(table, before)
    of_table = run.optimizer.optimizer.other.state[table]
    assert set(of_table) == state
    assert of_table["row_square"].shape == (len(table), 1)
