"""Findings about decoders that are pretrained from random weights."""

from findings.cards import Card, Conditions
from findings.records import check, figure, results

TITLE = "Pretraining a decoder from random weights"

HEADLESS = "headless untied + Muon + beta2 0.999"
VANILLA = "vanilla untied + bias log q + Muon + beta2 0.999 + epsilon 1e-5"
SMALL_DECODER = "GPT-2 with two layers of width 128, untied"


def does_the_lead_last() -> Card:
    early = results("studies/results/recipe_32k_epsilon")
    middle = results("studies/results/recipe_32k_epsilon_6400")
    late = results("studies/results/recipe_32k_24400")
    runs = [
        (early[f"{HEADLESS} + epsilon 1e-5"], early[VANILLA]),
        (middle[HEADLESS], middle[VANILLA]),
        (late[HEADLESS], late[VANILLA]),
    ]
    check(max(runs[0][0]["perplexity"]) < min(runs[0][1]["perplexity"]), "headless leads first")
    check(min(runs[1][0]["perplexity"]) > max(runs[1][1]["perplexity"]), "vanilla leads at 6.6 M")
    check(min(runs[2][0]["perplexity"]) > max(runs[2][1]["perplexity"]), "vanilla leads at 25 M")
    headless, vanilla = runs[2]
    return Card(
        name="does_the_lead_last",
        question="Does headless training stay ahead of the exact softmax at equal tokens?",
        answer="Vanilla overtakes after about seven million tokens",
        figure=f"perplexity {figure(headless['perplexity'])} against "
        f"{figure(vanilla['perplexity'])} after 25 M tokens",
        text="With the targets of one small batch as candidates, headless training leads early and "
        "trails late, since a batch of about a thousand targets cannot tell finer scores apart. "
        "Larger pools remove most of the deficit.",
        columns=("tokens", "headless: perplexity", "vanilla: perplexity"),
        rows=[
            (
                f"{first['tokens'] / 1e6:.1f} M",
                figure(first["perplexity"]),
                figure(second["perplexity"]),
            )
            for first, second in runs
        ],
        picture="studies/results/recipe_32k_24400/results.png",
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="32,000",
            tokens="as in the table, in batches of 8 rows of 128",
            machine="CPU, but an H100 for four of the six longest runs",
            seeds="two, two and three",
            rates="searched for each method and length",
        ),
        would_change="Larger pools of candidates (`--pool_size`), wider models, other texts.",
        records=(
            "studies/results/recipe_32k_epsilon",
            "studies/results/recipe_32k_epsilon_6400",
            "studies/results/recipe_32k_24400",
        ),
    )


CARDS = (does_the_lead_last,)
