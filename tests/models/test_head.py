"""Whoever scores tokens honours all that a head says of a score: vectors, a scale per token, bias
and soft cap.
"""

import pytest
import torch
import torch.nn.functional as F
from builders import VOCAB, Tokenizer, make_trainer, tiny_model, token_rows

from headless_trainer import (
    HeadlessTrainer,
    SampledSoftmaxTrainer,
    VanillaTrainer,
    attach_lm_head,
)
from headless_trainer.models.candidate_head import CandidateHead
from headless_trainer.models.head import Head
from headless_trainer.models.vocabulary_head import VocabularyHead

ROWS = token_rows(Tokenizer(), 4, lengths=(10,))
SCALE = torch.linspace(0.5, 2.0, VOCAB)
BIAS = torch.linspace(-1.0, 1.0, VOCAB)
SOFTCAP = 0.5


class OtherCandidateHead(CandidateHead):
    softcap = SOFTCAP

    def vectors(self, ids):
        return super().vectors(ids) * SCALE[ids, None]

    def bias(self, ids):
        return BIAS[ids]


class OtherVocabularyHead(VocabularyHead):
    token_scale = SCALE

    def __init__(self, model):
        super().__init__(model)
        self.softcap = SOFTCAP


class OtherHeadless(HeadlessTrainer):
    head_class = OtherCandidateHead


class OtherVanilla(VanillaTrainer):
    head_class = OtherVocabularyHead


class OtherSampledSoftmax(SampledSoftmaxTrainer):
    head_class = OtherVocabularyHead


def trainer_with(kind, folder, model, **settings):
    settings = {
        "objective": kind.objective, "task": "clm", "per_device_train_batch_size": 4, "max_steps": 1,
        "save_strategy": "no", "learning_rate": 0.0, "eval_pool_size": 20,
    } | settings  # fmt: skip
    counts = torch.ones(VOCAB, dtype=torch.long)
    return make_trainer(
        folder, model, ROWS, settings, kind, processing_class=Tokenizer(), eval_dataset=ROWS,
        token_counts=counts,
    )  # fmt: skip


def scores_and_targets(trunk, vectors, bias=0.0):
    """Return the ``(36, VOCAB)`` scores of all predictions, and their targets."""
    ids = torch.stack([row["input_ids"] for row in ROWS])
    hidden = trunk(input_ids=ids).last_hidden_state[:, :-1].flatten(0, 1)
    scores = hidden @ (vectors * SCALE[:, None]).T + bias
    return SOFTCAP * torch.tanh(scores / SOFTCAP), ids[:, 1:].flatten()


def test_both_heads_keep_the_protocol():
    assert isinstance(CandidateHead(tiny_model("clm")), Head)
    assert isinstance(VocabularyHead(tiny_model("clm", objective="vanilla")), Head)


def test_headless_trains_and_evaluates_scaled_and_capped_scores(tmp_path):
    trunk = tiny_model("clm").eval()
    run = trainer_with(OtherHeadless, tmp_path, trunk)
    scores, targets = scores_and_targets(trunk, trunk.get_input_embeddings().weight, BIAS)
    own = scores.gather(1, targets[:, None])[:, 0]
    loss = (scores[:, targets].logsumexp(1) - own).mean().item()
    assert loss < (scores * 0).new_tensor(36.0).log() + 2 * SOFTCAP
    run.train()
    assert run.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-5)
    found = run.evaluate()
    pool = targets[:20]
    in_pool = (pool[None] == targets[:, None]).any(1)
    partition = scores[:, pool].logsumexp(1)
    partition = torch.where(in_pool, partition, torch.logaddexp(partition, own))
    assert found["eval_loss"] == pytest.approx((partition - own).mean().item(), rel=1e-5)
    cross_entropy = F.cross_entropy(scores, targets).item()
    assert found["eval_cross_entropy_without_bias"] == pytest.approx(cross_entropy, rel=1e-5)


def test_a_free_head_refuses_a_cap(tmp_path):
    counts = torch.ones(VOCAB, dtype=torch.long)
    with pytest.raises(ValueError, match="OtherCandidateHead has a softcap of 0.5"):
        attach_lm_head(tiny_model("clm"), counts, head_class=OtherCandidateHead)


@pytest.mark.parametrize("kind", [OtherVanilla, OtherSampledSoftmax])
@pytest.mark.parametrize("settings", [{}, {"sparse_embedding_updates": True}, {"exact_every": 0}])
def test_a_vocabulary_head_trains_and_evaluates_scaled_and_capped_scores(tmp_path, kind, settings):
    if kind is OtherVanilla and settings:
        pytest.skip("vanilla has no candidates")
    model = tiny_model("clm", objective=kind.objective).eval()
    run = trainer_with(kind, tmp_path, model, **settings)
    scores, targets = scores_and_targets(model.transformer, model.lm_head.weight)
    cross_entropy = F.cross_entropy(scores, targets).item()
    assert run.evaluate()["eval_loss"] == pytest.approx(cross_entropy, rel=1e-5)
    run.train()
    loss = cross_entropy
    if settings.get("exact_every") == 0:
        (((pool,), _),) = run.candidates_of_step([targets])
        run.state.global_step = 0
        (((pool,), _),) = run.candidates_of_step([targets])
        weighted = scores[:, pool.ids] + pool.log_weights()
        is_target = pool.ids == targets[:, None]
        own = scores.gather(1, targets[:, None])
        terms = torch.cat([weighted.masked_fill(is_target, -torch.inf), own], dim=1)
        loss = (terms.logsumexp(1) - own[:, 0]).mean().item()
    assert run.state.log_history[-2]["loss"] == pytest.approx(loss, rel=1e-5)
