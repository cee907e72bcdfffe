"""Tables of examples/items/README.md, which recommends items."""

import statistics

from findings.cards import Card
from findings.records import check, figure, of_each_seed, results
from headless_trainer.presentation.significance import mean_test
from headless_trainer.presentation.tables import markdown

POSITIONS = "examples/items/results/positions"
IN_BATCH = "examples/items/results/in_batch"

# Labels of the table, by the names of the methods in the record.
METHODS = {
    "Beauty, positions from the end": "Beauty",
    "Beauty, positions from the end, full softmax": "Beauty, full softmax",
    "Toys_and_Games, positions from the end": "Toys and Games",
    "Sports_and_Outdoors, positions from the end": "Sports and Outdoors",
}
# The highest figures of arXiv 2508.06450, calculated there for all methods on one code base.
BEST_PUBLISHED = {
    "Beauty, positions from the end": {"ndcg@10": 0.0531, "recall@10": 0.0928},
    "Toys_and_Games, positions from the end": {"ndcg@10": 0.0580, "recall@10": 0.0970},
    "Sports_and_Outdoors, positions from the end": {"ndcg@10": 0.0323, "recall@10": 0.0569},
}


def range_of_taus(method: dict) -> str:
    taus = of_each_seed(method, "tau")
    if min(taus) == max(taus):
        return f"{taus[0]:g}"
    return f"{min(taus):g} to {max(taus):g}"


def rows(methods: dict[str, dict], labels: dict[str, str]) -> list[tuple[str, ...]]:
    """Return a row for each method: its seeds, tau and figures on the test."""
    return [
        (
            label,
            str(len(methods[name]["seeds"])),
            range_of_taus(methods[name]),
            figure(of_each_seed(methods[name], "test_ndcg@10"), 4),
            figure(of_each_seed(methods[name], "test_recall@10"), 4),
            figure(of_each_seed(methods[name], "test_at_tau_0_ndcg@10"), 4),
            figure(of_each_seed(methods[name], "test_coverage@10"), 0, factor=100),
        )
        for name, label in labels.items()
    ]


COLUMNS = (
    "seeds",
    "tau",
    "NDCG@10",
    "recall@10",
    "NDCG@10 at tau 0",
    "coverage (%)",
)


def measured_table(cards: dict[str, Card]) -> str:
    """Return what the example reaches on three data sets."""
    methods = results(POSITIONS)
    headless = methods["Beauty, positions from the end"]
    full = methods["Beauty, positions from the end, full softmax"]
    level = mean_test(
        of_each_seed(headless, "test_ndcg@10"), of_each_seed(full, "test_ndcg@10"), paired=False
    )
    check(level > 0.05, "headless and the full softmax are level on the test of Beauty")
    check(
        max(of_each_seed(headless, "validation_ndcg@10"))
        < min(of_each_seed(full, "validation_ndcg@10")),
        "the full softmax leads on the validation of Beauty",
    )
    without_tau = statistics.mean(of_each_seed(headless, "test_at_tau_0_ndcg@10"))
    share_lost = 1 - without_tau / statistics.mean(of_each_seed(headless, "test_ndcg@10"))
    check(0.08 < share_lost < 0.12, "headless loses a tenth on Beauty without log frequencies")
    return markdown(("data set", *COLUMNS), rows(methods, METHODS), left=1)


def published_table(cards: dict[str, Card]) -> str:
    """Return how far headless is from the best published figures."""
    methods = results(POSITIONS)
    lines = []
    for name, best in BEST_PUBLISHED.items():
        cells = [METHODS[name]]
        for measure, published in best.items():
            ours = statistics.mean(of_each_seed(methods[name], f"test_{measure}"))
            cells += [f"{published:.4f}", f"{100 * (ours / published - 1):+.1f} %"]
        lines.append(cells)
    columns = (
        "data set",
        "best published NDCG@10",
        "headless",
        "best published recall@10",
        "headless",
    )
    return markdown(columns, lines, left=1)


def in_batch_table(cards: dict[str, Card]) -> str:
    """Return what candidates do on MovieLens 100K, with and without tau."""
    labels = {
        "in-batch negatives": "in-batch (`--sampled_negatives 0`)",
        "in-batch negatives and 1,024 drawn": "and 1,024 drawn",
        "full softmax": "all items (`--objective vanilla`)",
    }
    methods = results(IN_BATCH)
    lines = rows(methods, labels)
    in_batch = methods["in-batch negatives"]
    full = methods["full softmax"]
    share_at_0 = statistics.mean(of_each_seed(in_batch, "test_at_tau_0_ndcg@10")) / statistics.mean(
        of_each_seed(full, "test_ndcg@10")
    )
    share = statistics.mean(of_each_seed(in_batch, "test_ndcg@10")) / statistics.mean(
        of_each_seed(full, "test_ndcg@10")
    )
    check(share_at_0 < 0.4, "in-batch negatives reach less than two fifths without tau")
    check(share > 0.9, "in-batch negatives reach nine tenths with tau")
    return markdown(("candidates", *COLUMNS), lines, left=1)
