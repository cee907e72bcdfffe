"""On a device without float64 (Apple's MPS) evaluation, logs and heads give the
numbers of the CPU.
"""

import pytest
import torch
import transformers
from accelerator import DEVICE, Accelerator
from builders import Table
from packaging.version import Version
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from headless_trainer import attach_lm_head
from headless_trainer.models.fold import fold_head_bias, unfold
from headless_trainer.models.projection import find_head
from headless_trainer.objective.masking import MaskingRule, content_seeds, mask_tokens
from headless_trainer.objective.negatives import NegativePool
from headless_trainer.objective.prior import log_prior
from headless_trainer.trainers.evaluation import (
    generators_set_aside,
    pool_scores,
    vocabulary_scores,
)
from headless_trainer.trainers.step import Candidates
from headless_trainer.trainers.window import TrainingWindow, count_pool

# Whose eager attention makes a scalar of its mask on the device in a way that no dispatch mode
# sees.
BEFORE_5_21 = Version(transformers.__version__) < Version("5.21")

V = 31
SMALL = {"vocab_size": V, "attn_implementation": "eager", "bos_token_id": 0, "eos_token_id": 0}
MODELS = {
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16},
    "phi": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    },
    "bert": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    },
}


@pytest.fixture(autouse=True)
def accelerator():
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    with Accelerator(), torch.no_grad():
        yield
    torch.__future__.set_overwrite_module_params_on_conversion(before)


def same(compute, *tensors):
    """The same numbers on both devices."""
    want, got = compute(*tensors), compute(*(tensor.to(DEVICE) for tensor in tensors))
    for here, there in zip(
        torch.utils._pytree.tree_leaves(want), torch.utils._pytree.tree_leaves(got), strict=True
    ):
        assert there.device == DEVICE
        torch.testing.assert_close(there.cpu(), here)


def test_the_stand_in_refuses_float64():
    with pytest.raises(TypeError, match="float64"):
        torch.ones(3, device=DEVICE).double()
    with pytest.raises(TypeError, match="float64"):
        torch.zeros(3, dtype=torch.float64, device=DEVICE)
    with pytest.raises(RuntimeError, match="two devices"):
        torch.ones(3, device=DEVICE) + torch.ones(3)


def test_scores():
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(20, 8), torch.randn(V, 8), torch.randint(V, (20,))
    counts = targets.bincount(minlength=V)
    same(log_prior, counts)
    prior, rest = log_prior(counts), (hidden, targets, weight)
    same(
        lambda hidden, ids, rows, bias: vocabulary_scores(hidden, ids, Table(rows), bias),
        *rest,
        prior,
    )
    same(
        lambda hidden, ids, rows: pool_scores(
            hidden, ids, Table(rows), NegativePool.from_targets(ids)
        ),
        *rest,
    )
    rule = MaskingRule(mask_token_id=1, vocab_size=V, special_ids=torch.tensor([0, 1]))
    same(lambda ids: mask_tokens(ids, rule, content_seeds(ids, (0, 1))), targets.view(2, 10))


def test_sums():
    window = TrainingWindow()
    window.start_step()
    window.add_batch(2**25 + 1, 3)  # more than float32 counts to
    targets = torch.tensor([4, 4, 5]).to(DEVICE)
    pool = NegativePool.from_targets(targets)
    part = Candidates(pool, pool.index_of(targets), None, targets, targets)
    count_pool(window, part, pool.log_weights(), len(targets))
    window.on_step_end(None, None, None)
    assert window.flush(DEVICE)["tokens_seen"] == 2**25 + 1


@pytest.mark.parametrize("model_type", MODELS)
def test_heads(model_type):
    if BEFORE_5_21 and model_type != "bert":
        pytest.skip("the stand-in does not see every tensor that transformers < 5.21 makes")
    torch.manual_seed(0)
    trunk = AutoModel.from_config(
        AutoConfig.for_model(model_type, **SMALL, **MODELS[model_type])
    ).eval()
    counts, ids = torch.arange(V), torch.tensor([[3, 1, 2]])
    want = attach_lm_head(trunk, counts)(ids).logits
    for given in (counts, counts.to(DEVICE)):
        model = attach_lm_head(trunk.to(DEVICE), given)
        torch.testing.assert_close(model(ids.to(DEVICE)).logits.cpu(), want, rtol=1e-4, atol=1e-4)
    if model_type == "gpt2":
        model.lm_head.bias = torch.nn.Parameter(torch.randn(V).to(DEVICE))
        got, want = (each(ids.to(DEVICE)).logits.cpu() for each in (fold_head_bias(model), model))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert unfold(model.base_model).device == DEVICE


@pytest.mark.skipif(
    BEFORE_5_21, reason="the stand-in does not see every tensor that transformers < 5.21 makes"
)
def test_the_scale_of_logits():
    layer = MODELS["phi"] | {"logits_scaling": 4.0}
    model = (
        AutoModelForCausalLM.from_config(AutoConfig.for_model("granite", **SMALL, **layer))
        .eval()
        .to(DEVICE)
    )
    assert find_head(model)[1:] == (0.25, None)


def test_an_evaluation_leaves_the_random_numbers_of_training(monkeypatch):
    states = ["of training"]
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda device: states[-1])
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state, device: states.append(state))
    monkeypatch.setattr(torch.mps, "manual_seed", states.append)
    with generators_set_aside(42, torch.device("mps")):
        assert states == ["of training", 42]
    assert states[-1] == "of training"
