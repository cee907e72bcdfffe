"""Other pools, each against its definition."""

import pytest
import torch
from builders import VOCAB, Tokenizer, make_trainer, tiny_model, token_rows

from headless_trainer.objective.prior import log_prior

ROWS = token_rows(Tokenizer(), 8, lengths=(10,))


def trained(study, folder, name: str, **settings):
    settings = {
        "task": "clm", "per_device_train_batch_size": 4, "max_steps": 4, "save_strategy": "no",
        "learning_rate": 0.0, "train_sampling_strategy": "sequential", "num_train_epochs": 9,
    } | settings  # fmt: skip
    kind = getattr(study("pool_variants"), name)
    model = tiny_model("clm", positions=16).double()
    run = make_trainer(folder, model, ROWS, settings, kind, processing_class=Tokenizer())
    run.train()
    return run, [logs for logs in run.state.log_history if "loss" in logs]


def scores_and_targets(run, rows):
    """Return ``(36, VOCAB)`` scores, ``(36,)`` targets and the rows that they stand in."""
    ids = torch.stack([row["input_ids"] for row in rows])
    hidden = run.model(input_ids=ids).last_hidden_state[:, :-1].flatten(0, 1)
    scores = hidden @ run.model.get_input_embeddings().weight.T
    return scores, ids[:, 1:].flatten(), torch.arange(4).repeat_interleave(9)


def test_negatives_of_other_rows_are_the_targets_of_other_rows_and_the_own_target(study, tmp_path):
    run, logs = trained(study, tmp_path, "OtherRows", max_steps=1)
    scores, targets, rows = scores_and_targets(run, ROWS[:4])
    losses = []
    for score, target, row in zip(scores, targets, rows, strict=True):
        negatives = [token for token, other in zip(targets, rows, strict=True) if other != row]
        negatives = [token for token in negatives if token != target]
        candidates = torch.stack([target, *negatives])
        losses.append(score[candidates].logsumexp(0) - score[target])
    assert logs[0]["loss"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-6)
    # Each target counts once in its own row, so nothing lies under the loss.
    assert logs[0]["loss_floor"] == 0


def test_a_growing_pool_ends_near_its_size(study, tmp_path):
    _, logs = trained(study, tmp_path, "GrowingPool", pool_size=144)
    assert [log["pool_size"] for log in logs] == [36, 36, 72, 108]


@pytest.mark.parametrize(("name", "exact"), [("ExactEnd", 9), ("ExactNowAndThen", 8)])
def test_an_exact_step_is_the_softmax_with_the_frequencies_as_a_bias(study, tmp_path, name, exact):
    run, logs = trained(study, tmp_path, name, max_steps=10)
    steps = [log["step"] - 1 for log in logs if "pool_size" not in log]  # there was no pool
    assert steps == {"ExactEnd": [9], "ExactNowAndThen": [0, 8]}[name]
    rows = ROWS[:4] if exact % 2 == 0 else ROWS[4:]
    scores, targets, _ = scores_and_targets(run, rows)
    # The counts at that step: 36 targets of each step so far, without its own.
    counts = torch.zeros(VOCAB, dtype=torch.long)
    for step in range(exact):
        seen = torch.stack([row["input_ids"] for row in (ROWS[4:] if step % 2 else ROWS[:4])])
        counts += seen[:, 1:].flatten().bincount(minlength=VOCAB)
    biased = scores + log_prior(counts)
    own = scores.gather(1, targets[:, None])[:, 0]
    loss = (biased.logsumexp(1) - own).mean().item()
    assert logs[exact]["loss"] == pytest.approx(loss, rel=1e-6)


def test_draws_by_frequency_fill_a_pool_with_tokens_that_were_targets(study, tmp_path):
    run, logs = trained(study, tmp_path, "DrawnByFrequency", pool_size=500)
    assert [log["pool_size"] for log in logs] == [36, 500, 500, 500]
    drawn = run.pools.further_targets.top_up(20_000, 4)
    shares = drawn.bincount(minlength=VOCAB) / 20_000
    expected = run.token_counts / run.token_counts.sum()
    torch.testing.assert_close(shares, expected, rtol=0, atol=0.01)
