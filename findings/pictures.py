"""The picture of the front page, drawn from the results."""

import math
from collections.abc import Sequence

from findings.recipes import HEADLESS, LARGE_POOLS, VANILLA
from findings.records import ROOT, curve, results
from headless_trainer.presentation.pictures import Panel, Series, draw_panels, to_png

FRONT_PAGE = "docs/findings/front_page.png"
COLOURS = {"exact softmax": "tab:orange", "headless": "tab:blue"}
WITH_POOLS = "headless, pools of 32,512 targets"


def perplexity_series(label: str, colour: str, recipe: dict, x: Sequence[float]) -> Series:
    """Return the mean held-out perplexity of a recipe over what ``x`` measures."""
    cross_entropy = curve(recipe, "eval_cross_entropy")
    perplexity = [math.exp(value) for value in cross_entropy]
    return Series(x, perplexity, "o-", label=label, color=colour)


def millions_of_tokens(recipe: dict) -> list[float]:
    """Return the millions of tokens that a recipe had seen at its evaluations."""
    return [tokens / 1e6 for tokens in curve(recipe, "tokens_seen")]


def minutes(recipe: dict) -> list[float]:
    """Return the minutes of training of a recipe at its evaluations."""
    return [seconds / 60 for seconds in curve(recipe, "seconds")]


def front_page() -> bytes:
    """Return the picture: perplexity over tokens at the left, over time at the right."""
    equal_tokens = results("studies/results/recipe_32k_24400")
    large_pools = results("studies/results/recipe_32k_24400_pools")[LARGE_POOLS]
    equal_time = results("studies/results/recipe_32k_equal_time")
    over_tokens = [
        perplexity_series(label, colour, recipe, millions_of_tokens(recipe))
        for label, colour, recipe in (
            ("exact softmax", COLOURS["exact softmax"], equal_tokens[VANILLA]),
            ("headless", COLOURS["headless"], equal_tokens[HEADLESS]),
            (WITH_POOLS, "tab:green", large_pools),
        )
    ]
    over_time = [
        perplexity_series(label, colour, recipe, minutes(recipe))
        for label, colour, recipe in (
            ("exact softmax", COLOURS["exact softmax"], equal_time[VANILLA]),
            ("headless", COLOURS["headless"], equal_time[HEADLESS]),
        )
    ]
    axis = {"yscale": "log", "ylabel": "held-out perplexity (lower is better)"}
    panels = [
        Panel(
            over_tokens,
            title="At equal tokens, only large pools keep up",
            xlabel="tokens read (millions)",
            **axis,
        ),
        Panel(
            over_time,
            title="In equal time, headless is ahead",
            xlabel="minutes of training, one CPU thread",
            **axis,
        ),
    ]
    return to_png(draw_panels(panels, size=(5.0, 3.8), legend="below", sharey=True))


def write_front_page() -> None:
    (ROOT / FRONT_PAGE).write_bytes(front_page())
