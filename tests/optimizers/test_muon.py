"""Muon for the matrices of the layers, AdamW for everything else."""

import pytest
import torch
from builders import VOCAB, assert_resumes, tiny_trainer
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, GPT2Model

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments
from headless_trainer.models.trunk import layer_matrices
from headless_trainer.optimizers.muon import MuonAnd


def names(model) -> set[str]:
    matrices = {id(parameter) for parameter in layer_matrices(model)}
    return {name for name, parameter in model.named_parameters() if id(parameter) in matrices}


def test_which_parameters_are_matrices_of_layers():
    small = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 16, "vocab_size": VOCAB}
    layers = {
        f"h.0.{name}.weight" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    assert names(GPT2Model(GPT2Config(**small))) == layers
    for tied in (True, False):
        model = GPT2LMHeadModel(GPT2Config(**small, tie_word_embeddings=tied))
        assert names(model) == {f"transformer.{name}" for name in layers}
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
    }
    bert = BertForMaskedLM(BertConfig(**sizes, vocab_size=VOCAB))
    assert "cls.predictions.transform.dense.weight" in names(bert) and len(names(bert)) == 7
    bert.requires_grad_(False)
    assert not names(bert)


def by_singular_values(matrix, coefficients, steps, eps):
    """What torch's iteration on the matrix does to each singular value alone, without its rounding
    to bfloat16.
    """
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.norm().clamp(min=eps)
    for _ in range(steps):
        values = sum(
            factor * values**power for factor, power in zip(coefficients, (1, 3, 5), strict=True)
        )
    return ((left * values) @ right).to(matrix.dtype)


@pytest.mark.parametrize("task", ["clm", "mlm"])
@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_steps_are_those_of_two_optimizers(tmp_path, monkeypatch, task, objective):
    """The same gradients, written down and given to AdamW and to Muon apart; a CPU iterates in
    float32.
    """
    settings = {"weight_decay": 0.1, "max_grad_norm": 0.0}
    run = tiny_trainer(
        tmp_path, task=task, objective=objective, learning_rate=1e-2, muon_learning_rate=2e-2,
        lr_scheduler_type="constant", **settings,
    )  # fmt: skip
    model = run.model.eval()
    other = tiny_trainer(tmp_path, task=task, objective=objective, **settings).model.eval()
    other.load_state_dict(model.state_dict())
    optimizer = run.create_optimizer()
    assert isinstance(optimizer, MuonAnd)
    matrices, decayed = names(other), set(run.get_decay_parameter_names(model))
    groups = {(own, decay): [] for own in (True, False) for decay in (True, False)}
    for name, parameter in other.named_parameters():
        groups[name in matrices, name in decayed].append(parameter)
    adamw = torch.optim.AdamW(
        [{"params": groups[False, True], "weight_decay": 0.1}, {"params": groups[False, False], "weight_decay": 0.0}],
        lr=1e-2, betas=(0.9, 0.999), eps=1e-8,
    )  # fmt: skip
    muon = torch.optim.Muon(
        groups[True, True], lr=2e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    assert groups[True, True] and not groups[True, False]
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for parameter, twin in zip(model.parameters(), other.parameters(), strict=True):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            twin.grad = parameter.grad.clone()
        optimizer.step()
        adamw.step()
        with monkeypatch.context() as exact:
            exact.setattr(torch.optim._muon, "_zeropower_via_newtonschulz", by_singular_values)
            muon.step()
    for (name, parameter), twin in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, twin, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("sparse", [False, True])
def test_resume_is_exact(tmp_path, sparse):
    settings = {
        "muon_learning_rate": 2e-2,
        "lr_scheduler_type": "linear",
        "warmup_steps": 1,
        "weight_decay": 0.01,
    }
    settings |= {"sparse_embedding_updates": sparse, "task": "clm", "learning_rate": 1e-2}
    settings |= {"save_strategy": "steps", "save_steps": 1}
    whole, resumed = assert_resumes(lambda folder: tiny_trainer(folder, **settings), tmp_path, 1)
    rates = [[group["lr"] for group in run.optimizer.param_groups] for run in (whole, resumed)]
    assert rates[0] == rates[1]


def test_sparse_rows_stay_what_dense_ones_would_be(tmp_path):
    settings = {
        "task": "clm",
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "muon_learning_rate": 2e-2,
    }
    runs = []
    for sparse in (False, True):
        runs.append(
            tiny_trainer(tmp_path / str(sparse), **settings, sparse_embedding_updates=sparse)
        )
        runs[-1].train()
    for (name, want), got in zip(
        runs[0].model.state_dict().items(), runs[1].model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=name)


def test_the_log_has_the_rate_of_the_others_and_both_follow_the_schedule(tmp_path):
    run = tiny_trainer(
        tmp_path,
        task="clm",
        learning_rate=1e-2,
        muon_learning_rate=4e-2,
        lr_scheduler_type="linear",
    )
    run.train()
    rates = [logs["learning_rate"] for logs in run.state.log_history if "loss" in logs]
    assert rates == pytest.approx([1e-2, 0.5e-2])
    both = run.optimizer.optimizer
    groups = {
        group["lr"]
        for group in [*both.param_groups, *both.other.param_groups, *both.muon.param_groups]
    }
    assert groups == {0.0}
    assert {group["initial_lr"] for group in run.optimizer.param_groups} == {1e-2, 4e-2}


@pytest.mark.parametrize(("schedule", "kwargs", "last"), [
    ("polynomial", {"lr_end": 1e-3}, 0.1), ("cosine_with_min_lr", {"min_lr": 5e-3}, 0.5),
])  # fmt: skip
def test_schedules_that_end_above_zero(tmp_path, schedule, kwargs, last):
    settings = {"learning_rate": 1e-2, "muon_learning_rate": 4e-2, "lr_scheduler_kwargs": kwargs}
    run = tiny_trainer(tmp_path, task="clm", lr_scheduler_type=schedule, **settings)
    run.train()
    for group in run.optimizer.param_groups:
        assert group["lr"] == pytest.approx(last * group["initial_lr"])


def test_what_it_cannot_work_with(tmp_path):
    args = HeadlessTrainingArguments(
        str(tmp_path), muon_learning_rate=0.1, use_cpu=True, report_to="none"
    )
    model = GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=1, n_positions=16, vocab_size=VOCAB))
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="muon_learning_rate is 0.1 but optimizers"):
        HeadlessTrainer(model, args, optimizers=(own, None))
    with pytest.raises(
        ValueError, match="muon_learning_rate is 0.1 but the model trains no linear layer"
    ):
        HeadlessTrainer(model.requires_grad_(False), args)
    model.config.output_router_logits = True
    said = "output_router_logits is True but no trainer here adds the loss of routers: set it"
    with pytest.raises(ValueError, match=said):
        HeadlessTrainer(model, args)
