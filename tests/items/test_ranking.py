"""Ranks, figures and lists of the best, against the plainest computation; an index's inner products against scores."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from builders import tiny_model
from safetensors.numpy import load_file

from headless_trainer.items import ranking
from headless_trainer.items.histories import Histories
from headless_trainer.items.ranking import ChooseTau, Ranker, by_popularity, full_figures, rank_figures, target_ranks
from headless_trainer.items.splits import leave_one_out
from headless_trainer.items.vectors import item_vectors, known, query_vectors, write_best, write_vectors

FIRST, ITEMS = 3, 47  # token ids below FIRST are special
KINDS = [("clm", "headless"), ("mlm", "headless"), ("clm", "vanilla"), ("mlm", "vanilla")]


def made_histories(users: int = 12, seed: int = 0) -> Histories:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, 14, users)
    ids = generator.integers(0, ITEMS, lengths.sum())
    names = np.array([f"item {number}" for number in range(ITEMS)], dtype=object)
    people = np.array([f"user {number}" for number in range(users)], dtype=object)
    return Histories(people, names, ids, np.append(0, lengths.cumsum()), None)


def made_ranker(task="clm", objective="headless", length=8, temperature=1.0) -> Ranker:
    model = tiny_model(task, FIRST + ITEMS, objective, positions=length)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(20.0 if "wte" in name or "word_embeddings" in name else 1.0)
        if objective == "vanilla" and task == "mlm":
            model.cls.predictions.bias.normal_(generator=torch.Generator().manual_seed(1))
    log_q = torch.randn(FIRST + ITEMS, generator=torch.Generator().manual_seed(2)).log_softmax(-1)
    mask_id = 2 if task == "mlm" else None
    return Ranker(model, log_q, first_id=FIRST, mask_id=mask_id, max_seq_length=length, temperature=temperature)


@torch.no_grad()
def plain_scores(ranker: Ranker, history: np.ndarray, tau: float) -> np.ndarray:
    """Scores of all items after one history, ``(I,)``, by the model's own logits where it has a head."""
    ranker.model.eval()
    ids = [*(history + FIRST)[-ranker.recent :], *([] if ranker.mask_id is None else [ranker.mask_id])]
    output = ranker.model(input_ids=torch.tensor([ids]))
    if hasattr(output, "logits"):
        scores = output.logits[0, -1]
    else:
        scores = output.last_hidden_state[0, -1] @ ranker.model.get_input_embeddings().weight.T / ranker.temperature
    return (scores + tau * ranker.log_q)[FIRST:].numpy()


def plain_order(ranker, history, tau, keep_seen) -> list[int]:
    """Items from the best to the worst, without those of the history."""
    scores = plain_scores(ranker, history, tau)
    items = [item for item in range(ITEMS) if keep_seen or item not in history]
    return sorted(items, key=lambda item: -scores[item])


def plain_figures(lists: list[list[int]], targets: list[int], k: int) -> dict[str, float]:
    """Recall, NDCG and MRR as they are defined: relevance is 1 for the next item and 0 for others, the best sum is 1."""
    recall = ndcg = mrr = 0.0
    for best, target in zip(lists, targets, strict=True):
        recall += target in best[:k]
        ndcg += sum((item == target) / math.log2(place + 1) for place, item in enumerate(best[:k], start=1))
        mrr += sum((item == target) / place for place, item in enumerate(best, start=1))
    return {f"recall@{k}": recall / len(lists), f"ndcg@{k}": ndcg / len(lists), "mrr": mrr / len(lists)}


@pytest.mark.parametrize("keep_seen", [False, True])
@pytest.mark.parametrize("task, objective", KINDS)
@pytest.mark.parametrize("elements", [2**20, 30])
def test_figures_are_those_of_the_plain_computation(monkeypatch, task, objective, keep_seen, elements):
    """Chunks of 30 scores are of 6 items for 5 users, which leaves a partial chunk and a partial batch."""
    monkeypatch.setattr(ranking, "CHUNK_ELEMENTS", elements)
    temperature = 0.5 if objective == "headless" else 1.0
    histories, ranker, tau = made_histories(), made_ranker(task, objective, temperature=temperature), 0.75
    targets = leave_one_out(histories).test
    counts = np.arange(ITEMS) % 7
    found = full_figures(ranker, histories, targets, counts, tau, keep_seen=keep_seen, batch_size=5)
    spans = zip(targets.starts, targets.places, strict=True)
    lists = [plain_order(ranker, histories.ids[start:place], tau, keep_seen) for start, place in spans]
    own = histories.ids[targets.places].tolist()
    for k in (5, 10, 20):
        expected = plain_figures(lists, own, k)
        assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert 0 < found["recall@20"] < 1
    shown = [item for best in lists for item in best[:10]]
    assert found["coverage@10"] == len(set(shown)) / ITEMS
    assert found["popularity@10"] == pytest.approx(sum(counts[item] for item in shown) / len(shown))


def test_several_taus_at_once_are_one_after_the_other():
    histories, ranker, taus = made_histories(), made_ranker(), (0.0, 0.5, 2.0)
    targets, options = leave_one_out(histories).test, {"keep_seen": True, "batch_size": 5}
    together = target_ranks(ranker, histories, targets, taus, **options)
    alone = [target_ranks(ranker, histories, targets, (tau,), **options)[0] for tau in taus]
    assert together.tolist() == [ranks.tolist() for ranks in alone]
    assert len({tuple(ranks) for ranks in together.tolist()}) == 3


def test_scores_that_are_all_alike_or_no_numbers_are_worth_nothing():
    histories, targets = made_histories(), leave_one_out(made_histories()).test
    for value in (0.0, math.nan):
        ranker = made_ranker()
        with torch.no_grad():
            ranker.model.get_input_embeddings().weight.fill_(value)
        ranks = target_ranks(ranker, histories, targets, (0.0,), keep_seen=True, batch_size=5)
        assert (ranks >= ITEMS - 1).all()


def test_an_item_that_a_user_had_before_is_never_found_again():
    histories = made_histories(1)
    histories.ids[-1] = histories.ids[-2]
    ranks = target_ranks(made_ranker(), histories, leave_one_out(histories).test, (0.0,), keep_seen=False, batch_size=5)
    assert ranks.tolist() == [[math.inf]] and rank_figures(ranks[0])["mrr"] == 0.0


def test_figures_by_hand():
    found = rank_figures(np.array([0.0, 2.0, 7.0, 30.0]))
    assert found["recall@5"] == 0.5 and found["recall@10"] == 0.75
    assert found["ndcg@5"] == pytest.approx((1 + 0.5) / 4)  # 1 / log2(4) for the third place
    assert found["mrr"] == pytest.approx((1 + 1 / 3 + 1 / 8 + 1 / 31) / 4)


def test_tenths_begin_with_the_rarest():
    ranks, counts = np.array([0.0] * 10 + [99.0] * 10), np.arange(20)[::-1]
    assert by_popularity(ranks, counts) == [0.0] * 5 + [1.0] * 5


# The choice of tau, and when to end --------------------------------------------------------------------------------------


def stopping(values: list[float], patience: int) -> list[bool]:
    """Whether the training is to end after each evaluation; ``values`` are ranks of the one user at the better tau."""
    state, ends = SimpleNamespace(log_history=[]), []
    for value in values:
        callback = ChooseTau(lambda: np.array([[50.0], [value]]), state.log_history.append, (0.0, 1.5), patience)  # noqa: B023
        control, metrics = SimpleNamespace(should_training_stop=False), {}
        callback.on_train_begin(None, state, control)
        callback.on_evaluate(None, state, control, metrics=metrics)
        assert metrics == state.log_history[-1] and metrics["eval_tau"] == 1.5
        ends.append(control.should_training_stop)
    return ends


def test_training_ends_when_nothing_gets_better():
    """The callback is made anew for every evaluation, as where a run is resumed: the log is all it remembers."""
    assert stopping([9, 5, 6, 7, 7], 2) == [False, False, False, True, True]
    assert stopping([9, 5, 6, 7, 8], 0) == [False] * 5


# Lists and vectors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_seen", [False, True])
def test_the_best_items_of_users(tmp_path, monkeypatch, keep_seen):
    monkeypatch.setattr(ranking, "CHUNK_ELEMENTS", 30)
    histories, ranker = made_histories(), made_ranker()
    items = histories.items.tolist()
    write_best(tmp_path / "best.jsonl", ranker, items, histories, 0.5, k=45, keep_seen=keep_seen, batch_size=5)
    lines = [json.loads(line) for line in (tmp_path / "best.jsonl").read_text().splitlines()]
    assert [line["user"] for line in lines] == histories.users.tolist()
    for line, start, end in zip(lines, histories.offsets[:-1], histories.offsets[1:], strict=True):
        history = histories.ids[start:end]
        best = plain_order(ranker, history, 0.5, keep_seen)[:45]
        assert line["items"] == [items[item] for item in best]
        expected = [plain_scores(ranker, history, 0.5)[item].item() for item in best]
        assert line["scores"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("task, objective", KINDS)
def test_an_exact_index_over_the_vectors_gives_the_same_best_items(tmp_path, task, objective):
    histories, ranker, tau = made_histories(), made_ranker(task, objective), 0.75
    write_vectors(tmp_path, ranker, histories.items.tolist(), histories, tau, batch_size=5)
    items, queries = (np.load(tmp_path / f"{name}_vectors.npy") for name in ("item", "query"))
    assert items.dtype == queries.dtype == np.float32 and len(items) == ITEMS
    assert items[:, -1].tolist() == ranker.log_q[FIRST:].tolist() and set(queries[:, -1]) == {np.float32(tau)}
    found = np.argsort(-(queries @ items.T), axis=1)[:, :10]  # what an index of inner products computes
    for row, start, end in zip(found, histories.offsets[:-1], histories.offsets[1:], strict=True):
        assert row.tolist() == plain_order(ranker, histories.ids[start:end], tau, keep_seen=True)[:10]
    for name, vectors in (("item", items), ("query", queries)):
        assert np.array_equal(load_file(tmp_path / f"{name}_vectors.safetensors")[f"{name}_vectors"], vectors)
    assert json.loads((tmp_path / "query_names.json").read_text()) == histories.users.tolist()
    assert json.loads((tmp_path / "item_names.json").read_text()) == histories.items.tolist()


def test_vectors_are_made_some_at_a_time(monkeypatch):
    histories, ranker = made_histories(), made_ranker()
    whole = item_vectors(ranker), query_vectors(ranker, histories, 1.0, 100)
    monkeypatch.setattr("headless_trainer.items.vectors.ITEMS_AT_ONCE", 10)
    parts = item_vectors(ranker), query_vectors(ranker, histories, 1.0, 5)
    assert np.array_equal(parts[0], whole[0]) and np.allclose(parts[1], whole[1], atol=1e-5)


def test_items_that_the_model_does_not_know_are_left_out_and_said(caplog):
    found = Histories(np.array(["a", "b"], dtype=object), np.array(["x", "item 3"], dtype=object), np.array([0, 1, 0]),
                      np.array([0, 2, 3]), None)  # fmt: skip
    kept = known(found, made_histories().items.tolist())
    assert kept.users.tolist() == ["a"] and kept.ids.tolist() == [3]
    assert "2 of 3 interactions are with items that the model does not know: they are left out" in caplog.text
    assert "1 users are left without an item and are left out, 'b' for one" in caplog.text
    with pytest.raises(
        ValueError, match="history_file names no item that the model knows, 'x' for one: check item_column"
    ):
        known(found, ["other"])
