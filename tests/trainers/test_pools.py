"""Pools smaller and larger than the targets of a forward, and negatives drawn besides them."""

import processes
import pytest
import torch
from builders import (
    VOCAB,
    Gradients,
    Tokenizer,
    assert_gradients,
    assert_resumes,
    make_trainer,
    tiny_model,
    token_rows,
)
from transformers import AutoModel

from headless_trainer import (
    HeadlessTrainer,
    NegativePool,
    attach_lm_head,
    load_token_counts,
)
from headless_trainer.models.candidate_head import untie
from headless_trainer.objective.losses import cwt_loss
from headless_trainer.objective.negatives import draw_uniform, generator_of_step
from headless_trainer.objective.prior import candidate_log_prior, log_prior

ROWS = token_rows(Tokenizer(), 8, lengths=(10,))


def trunk():
    return tiny_model("clm", positions=16)


def trainer(folder, callbacks=(), model=None, **settings):
    settings = {
        "task": "clm", "per_device_train_batch_size": 4, "max_steps": 3, "save_strategy": "no", "max_grad_norm": 0.0,
        "learning_rate": 1e-2, "train_sampling_strategy": "sequential",
    } | settings  # fmt: skip
    return make_trainer(
        folder, trunk() if model is None else model, ROWS, settings, eval_dataset=ROWS,
        processing_class=Tokenizer(), callbacks=list(callbacks),
    )  # fmt: skip


def naive_step(batches: list[list[dict]], groups: list[list[int]], drawn: list[int], whole: bool):
    """Loss and gradients of a step, by position; ``groups`` are sizes of pools in each forward,
    ``whole`` is one of all.
    """
    model = trunk().double()
    embedding = model.get_input_embeddings().weight
    outputs, targets = [], []
    for batch in batches:
        ids = torch.stack([row["input_ids"] for row in batch])
        outputs.append(model(input_ids=ids).last_hidden_state[:, :-1].reshape(-1, 16))
        targets.append(ids[:, 1:].reshape(-1))
    everyone, losses = torch.cat(targets), []
    for hidden, own, sizes in zip(outputs, targets, groups, strict=True):
        assert sum(sizes) == len(own)
        forward = []
        for vectors, ids in zip(hidden.split(sizes), own.split(sizes), strict=True):
            candidates = torch.cat(
                [everyone if whole else ids, torch.tensor(drawn, dtype=torch.long)]
            )
            for vector, target in zip(vectors, ids, strict=True):
                scores = torch.stack([vector @ embedding[candidate] for candidate in candidates])
                forward.append(scores.logsumexp(0) - vector @ embedding[target])
        losses.append(torch.stack(forward))
    loss = (
        torch.cat(losses).mean() if whole else torch.stack([each.mean() for each in losses]).mean()
    )
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("settings", "groups"), [
    ({"pool_size": 10}, [[9, 9, 9, 9]]),
    ({"pool_size": 16}, [[12, 12, 12]]),
    ({"pool_size": 7, "gradient_accumulation_steps": 2}, [[6] * 6] * 2),
    ({"pool_size": 36}, [[36]]),
    ({"sampled_negatives": 20}, [[36]]),
    ({"sampled_negatives": 20, "pool_size": 16, "gradient_accumulation_steps": 2}, [[12, 12, 12]] * 2),
    ({"sampled_negatives": 20, "negatives": "step", "gradient_accumulation_steps": 2}, [[36], [36]]),
    ({"sampled_negatives": 20, "pool_size": 16, "sparse_embedding_updates": True}, [[12, 12, 12]]),
])  # fmt: skip
def test_a_step_is_that_of_every_candidate_written_out(tmp_path, settings, groups):
    steps, drawn = Gradients(), settings.get("sampled_negatives", 0)
    run = trainer(tmp_path, [steps], model=trunk().double(), max_steps=1, **settings)
    run.train()
    ids = draw_uniform(drawn, VOCAB, run.args.seed, 0).tolist()
    batches = [ROWS[:4], ROWS[4:]][: len(groups)]
    loss, gradients = naive_step(batches, groups, ids, settings.get("negatives") == "step")
    logs = run.state.log_history[0]
    assert logs["loss"] == pytest.approx(loss, rel=1e-6)
    assert (
        logs["pool_size"] == (72 if settings.get("negatives") == "step" else groups[0][0]) + drawn
    )
    assert_gradients(steps.kept, gradients, 1e-9)


def test_what_is_drawn_is_uniform_and_depends_on_seed_and_step_alone():
    drawn = draw_uniform(100_000, 50, seed=3, step=7)
    assert (
        torch.equal(draw_uniform(100_000, 50, seed=3, step=7), drawn) and drawn.dtype == torch.long
    )
    assert not torch.equal(draw_uniform(100_000, 50, seed=3, step=8), drawn)
    assert not torch.equal(draw_uniform(100_000, 50, seed=4, step=7), drawn)
    shares = drawn.bincount(minlength=50) / 100_000
    assert shares == pytest.approx(torch.full((50,), 0.02), abs=0.003)


def test_drawn_candidates_join_the_pool():
    pool = NegativePool(torch.tensor([2, 5]), torch.tensor([3, 1]), 4).with_drawn(
        torch.tensor([5, 7, 5])
    )
    assert (
        pool.ids.tolist() == [2, 5, 7] and pool.counts.tolist() == [3, 3, 1] and pool.targets == 4
    )
    assert pool.with_drawn(None) is pool


def test_the_mixture_by_hand():
    counts = torch.tensor([2**30, 2**30, 2**31])
    assert candidate_log_prior(counts, 0.6).exp().tolist() == pytest.approx([0.3, 0.3, 0.4])
    assert torch.equal(candidate_log_prior(counts), log_prior(counts))


def test_what_is_learned_and_the_prior_make_the_language_model():
    """One context: the scores at the minimum of the loss and the log of what the candidates were
    give the frequencies.
    """
    targets, drawn = (
        torch.tensor([0] * 50 + [1] * 30 + [2] * 20),
        torch.arange(4).repeat_interleave(25),
    )
    scores = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    pool = NegativePool.from_targets(targets).with_drawn(drawn)
    table = torch.eye(4, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(
        [scores], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def loss():
        optimizer.zero_grad()
        value = cwt_loss(scores.expand(100, 4), targets, lambda ids: table[ids], pool)
        value.backward()
        return value

    optimizer.step(loss)
    # So many that the token never seen takes nothing from the others.
    counts = 10**6 * targets.bincount(minlength=4)
    found = (scores + candidate_log_prior(counts, len(drawn) / pool.size)).softmax(-1)
    assert found[:3].tolist() == pytest.approx([0.5, 0.3, 0.2], abs=1e-3)


def test_the_head_knows_what_was_drawn(tmp_path):
    run = trainer(tmp_path, max_steps=2, sampled_negatives=108, pool_size=12)
    run.train()
    run.save_model()
    counts, facts = load_token_counts(tmp_path)
    assert (facts["drawn_candidates"], facts["candidates"]) == (2 * 3 * 108, 2 * 3 * 120)
    prior = candidate_log_prior(counts, 0.9)
    assert (prior - log_prior(counts)).abs().max() > 0.2
    ids = torch.stack([row["input_ids"] for row in ROWS])
    model = AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        want = (
            model(ids).last_hidden_state @ model.get_input_embeddings().weight.T + prior
        ).log_softmax(-1)
        got = attach_lm_head(tmp_path)(ids).logits.log_softmax(-1)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)

    cross_entropy = -want[:, :-1].gather(-1, ids[:, 1:, None]).mean().item()
    assert run.evaluate()["eval_cross_entropy"] == pytest.approx(cross_entropy, abs=1e-5)
    again = trainer(tmp_path / "again", model=AutoModel.from_pretrained(tmp_path))
    assert again.evaluate()["eval_cross_entropy"] == pytest.approx(cross_entropy, abs=1e-5)
    again.train()  # without draws: their share falls
    again.save_model()
    totals = {"drawn_candidates": 648, "candidates": 720 + 36 * again.state.global_step}
    assert totals.items() <= load_token_counts(tmp_path / "again")[1].items()


class FurtherDraws(HeadlessTrainer):
    """Adds twenty candidates of its own to each pool."""

    def candidates_of_step(self, targets):
        return [
            (tuple(pool.with_drawn(torch.arange(20)) for pool in pools), divisor)
            for pools, divisor in super().candidates_of_step(targets)
        ]


def test_the_head_knows_what_a_subclass_has_drawn(tmp_path):
    settings = {
        "task": "clm", "per_device_train_batch_size": 4, "max_steps": 2, "save_strategy": "no",
        "pool_size": 12, "sampled_negatives": 10,
    }  # fmt: skip
    run = make_trainer(
        tmp_path, trunk(), ROWS, settings, processing_class=Tokenizer(),
        kind=FurtherDraws,
    )  # fmt: skip
    run.train()
    run.save_model()
    facts = load_token_counts(tmp_path)[1]
    assert (facts["drawn_candidates"], facts["candidates"]) == (2 * 3 * 30, 2 * 3 * 42)


def test_resumed_draws_what_would_have_been_drawn(tmp_path):
    settings = {
        "sampled_negatives": 30,
        "pool_size": 16,
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    for run in assert_resumes(lambda folder: trainer(folder, **settings), tmp_path, 2):
        run.save_model(str(tmp_path / "end"))
        assert load_token_counts(tmp_path / "end")[1]["drawn_candidates"] == 4 * 3 * 30


def test_each_step_draws_anew(tmp_path):
    run, targets = trainer(tmp_path, sampled_negatives=20), torch.tensor([2, 2, 3])
    for step in (0, 1):
        run.state.global_step = step
        (((pool,), _),) = run.candidates_of_step([targets])
        want = NegativePool.from_targets(targets).with_drawn(
            draw_uniform(20, VOCAB, run.args.seed, step)
        )
        assert torch.equal(pool.ids, want.ids) and torch.equal(pool.counts, want.counts)


def topped_up_step(run, batches: list[list[dict]], earlier: torch.Tensor):
    """Loss and gradients, by position, of a step whose ``batches`` share a pool with
    ``earlier``.
    """
    model = trunk().double()
    embedding = model.get_input_embeddings().weight
    losses = []
    for batch in batches:
        ids = torch.stack([row["input_ids"] for row in batch])
        hidden = model(input_ids=ids).last_hidden_state[:, :-1].reshape(-1, 16)
        targets = ids[:, 1:].reshape(-1)
        candidates = embedding[torch.cat([targets, earlier])]
        for vector, target in zip(hidden, targets, strict=True):
            losses.append((candidates @ vector).logsumexp(0) - vector @ embedding[target])
    loss = torch.stack(losses).mean()
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.item(), gradients


class SecondGradients(Gradients):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 1:
            super().on_pre_optimizer_step(args, state, control, **kwargs)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("pool_size", "earlier"), [(36, 0), (37, 1), (50, 14), (72, 36), (900, 36)]
)
def test_a_small_batch_is_topped_up_with_the_targets_of_the_step_before(
    tmp_path, pool_size, earlier, sparse
):
    gradients = SecondGradients()
    run = trainer(
        tmp_path, [gradients], model=trunk().double(), max_steps=2, pool_size=pool_size,
        learning_rate=0.0, sparse_embedding_updates=sparse,
    )  # fmt: skip
    run.train()
    # What the first step left: its targets, in another order.
    first = torch.stack([row["input_ids"] for row in ROWS[:4]])[:, 1:].flatten()
    shuffled = first.sort().values[torch.randperm(36, generator=generator_of_step(42, 0))]
    loss, expected = topped_up_step(run, [ROWS[4:]], shuffled[36 - earlier :])
    logs = run.state.log_history[1]
    assert logs["pool_size"] == 36 + earlier
    assert logs["loss"] == pytest.approx(loss, rel=1e-6)
    pool = torch.cat(
        [
            torch.stack([row["input_ids"] for row in ROWS[4:]])[:, 1:].flatten(),
            shuffled[36 - earlier :],
        ]
    )
    assert logs["pool_tokens"] == len(pool.unique())
    targets = pool[:36]
    floor = (pool == targets[:, None]).sum(1).double().log().mean().item()
    assert logs["loss_floor"] == pytest.approx(floor, rel=1e-6)
    assert_gradients(gradients.kept, expected, 1e-9)


def test_targets_of_the_same_step_do_not_top_up_each_other(tmp_path):
    run = trainer(
        tmp_path, max_steps=2, pool_size=90, per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    run.train()
    sizes = [logs["pool_size"] for logs in run.state.log_history if "pool_size" in logs]
    assert sizes == [18, 18 + 36]


@pytest.mark.parametrize("pool_size", [50, 100])
def test_an_accumulated_step_has_the_pool_of_one_batch(tmp_path, pool_size):
    settings = {"negatives": "step", "pool_size": pool_size, "max_steps": 4}
    whole = trainer(tmp_path / "whole", model=trunk().double(), **settings)
    parts = trainer(
        tmp_path / "parts", model=trunk().double(), per_device_train_batch_size=1,
        gradient_accumulation_steps=4, **settings,
    )  # fmt: skip
    for run in (whole, parts):
        run.train()
    names = ("loss", "pool_size", "pool_tokens", "loss_floor")
    histories = [
        [[logs[name] for name in names] for logs in run.state.log_history if "loss" in logs]
        for run in (whole, parts)
    ]
    assert histories[1] == pytest.approx(torch.tensor(histories[0]).double(), rel=1e-6)
    assert histories[0][-1][1] == pool_size


@pytest.mark.parametrize("settings", [
    {}, {"sparse_embedding_updates": True}, {"negatives": "step", "gradient_accumulation_steps": 2},
    {"sampled_negatives": 5},
])  # fmt: skip
def test_a_resumed_run_tops_up_with_the_targets_of_before(tmp_path, settings):
    settings = {
        "pool_size": 90, "max_steps": 5, "save_strategy": "steps", "save_steps": 3,
    } | settings  # fmt: skip
    whole, resumed = assert_resumes(lambda folder: trainer(folder, **settings), tmp_path, 3)
    assert whole.state.log_history[3]["pool_size"] == 90 + settings.get("sampled_negatives", 0)
    assert torch.equal(whole.pools.further_targets.ids, resumed.pools.further_targets.ids)


def test_a_candidate_matrix_is_topped_up(tmp_path):
    model = tiny_model("clm", positions=16)
    untie(model)
    run = trainer(tmp_path, model=model, max_steps=2, pool_size=72)
    run.train()
    assert run.state.log_history[1]["pool_size"] == 72


def test_a_loss_outside_training_is_not_remembered(tmp_path):
    run = trainer(tmp_path, pool_size=72, max_steps=1)
    batch = run.data_collator(ROWS[:4])
    run.compute_loss(run.model, batch)
    assert run.pools.further_targets.ids.tolist() == []
    run.train()
    assert len(run.pools.further_targets.ids) == 36


def test_sampled_softmax_expects_the_targets_that_top_up(tmp_path):
    """The weight of a candidate is its count over its expected count among all 72 targets."""
    counts = torch.arange(1, VOCAB + 1)
    run = make_trainer(
        tmp_path, tiny_model("clm", objective="sampled_softmax", positions=16), ROWS,
        {"objective": "sampled_softmax", "task": "clm", "per_device_train_batch_size": 4,
         "max_steps": 1, "pool_size": 72, "sampled_negatives": 0, "save_strategy": "no",
         "train_sampling_strategy": "sequential"},
        processing_class=Tokenizer(), token_counts=counts,
    )  # fmt: skip
    run.train()
    targets = torch.stack([row["input_ids"] for row in ROWS[4:]])[:, 1:].flatten()
    (((pool,), _),) = run.candidates_of_step([targets])
    assert (pool.targets, pool.size) == (72, 72)


def _resumed_process(rank: int, folder: str, settings: dict) -> None:
    """Train without a stop, then from the checkpoint of step 3; leave logs, weights
    and candidates.
    """
    results = {}
    for name, checkpoint in (("whole", None), ("resumed", f"{folder}/whole/checkpoint-3")):
        objective = settings.get("objective", "headless")
        run = make_trainer(
            f"{folder}/{name}",
            tiny_model("clm", objective=objective, positions=16),
            ROWS,
            {
                "task": "clm", "per_device_train_batch_size": 2, "max_steps": 5, "save_steps": 3,
                "num_train_epochs": 9,
            } | settings,
            processing_class=Tokenizer(), token_counts=torch.arange(VOCAB),
        )  # fmt: skip
        run.train(resume_from_checkpoint=checkpoint)
        logs = [
            (logs["loss"], logs["pool_size"], logs["pool_tokens"])
            for logs in run.state.log_history
            if "pool_size" in logs
        ]
        results[name] = logs, run.pools.further_targets.ids, run.model.state_dict()
    torch.save(results, f"{folder}/results-{rank}.pt")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {"pool_size": 50}, {"pool_size": 50, "negatives": "world"},
    {"pool_size": 50, "objective": "sampled_softmax", "exact_every": 2, "sampled_negatives": 9},
])  # fmt: skip
def test_two_processes_resume_with_their_own_earlier_targets(tmp_path, settings):
    processes.run(_resumed_process, 2, str(tmp_path), settings)
    of_processes = [torch.load(tmp_path / f"results-{rank}.pt") for rank in range(2)]
    for results in of_processes:
        (logs, recent, weights), (resumed_logs, resumed_recent, resumed_weights) = results.values()
        assert resumed_logs == logs and len(logs) >= 2
        assert logs[-1][1] == 50 + settings.get("sampled_negatives", 0)
        assert torch.equal(recent, resumed_recent)
        assert all(torch.equal(weights[name], resumed_weights[name]) for name in weights)
    first, second = (results["whole"][1] for results in of_processes)
    is_shared = settings.get("negatives") == "world" or "objective" in settings
    assert torch.equal(first, second) == is_shared
