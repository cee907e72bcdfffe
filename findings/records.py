"""Read the results of studies and benchmarks, and write them as figures."""

import json
import math
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from headless_trainer.presentation.significance import LEVEL

ROOT = Path(__file__).parents[1]


@cache
def results(folder: str) -> Any:
    """Return what a results.json holds, as its study or benchmark arranges it.

    Cards ask for the same file many times, and share what is read: change nothing in it.
    """
    return json.loads((ROOT / folder / "results.json").read_text(encoding="utf-8"))["results"]


def parts(folder: str) -> Any:
    """Return the parts of a results.json of benchmarks/accelerator.py."""
    return results(folder)["parts"]


def having(records: Sequence[dict], **values: Any) -> list[dict]:
    """Return the records that have these values."""
    return [
        record for record in records if all(record[name] == value for name, value in values.items())
    ]


def one_having(records: Sequence[dict], **values: Any) -> dict:
    """Return the only record that has these values.

    Raises:
        ValueError: none has them, or several have.
    """
    matching = having(records, **values)
    if len(matching) != 1:
        raise ValueError(f"{len(matching)} records have {values!r}, and one was expected.")
    return matching[0]


def figure(values: float | Sequence[float], digits: int = 1, factor: float = 1.0) -> str:
    """Return the mean of values and, of several, the standard error of the mean.

    Example:
        >>> figure([82.0, 83.0])
        '82.5 ± 0.5'
        >>> figure(0.2305, factor=100)
        '23.1'
    """
    scaled = factor * np.atleast_1d(np.asarray(values, dtype=np.float64))
    mean = f"{scaled.mean():,.{digits}f}"
    if len(scaled) == 1:
        return mean
    return f"{mean} ± {scaled.std(ddof=1) / math.sqrt(len(scaled)):,.{digits}f}"


def percent(values: float | Sequence[float], digits: int = 0) -> str:
    """Return a share as a percentage, with its standard error if there are several."""
    return f"{figure(values, digits, factor=100)} %"


def below(first: Sequence[float], second: Sequence[float]) -> float:
    """Return by which share of the second mean the first mean is below it."""
    return 1 - statistics.mean(first) / statistics.mean(second)


def paired_difference(
    first: Sequence[float], second: Sequence[float]
) -> tuple[float, float, float]:
    """Return the mean difference of paired values and the bounds of its 95 % interval.

    Unlike `mean_difference`, it takes every value as a measurement, never as a yes or no.
    """
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    quantile = stats.t.ppf((1 + LEVEL) / 2, len(differences) - 1)
    half = float(stats.sem(differences) * quantile)
    middle = float(differences.mean())
    return middle, middle - half, middle + half


def difference(
    first: Sequence[float], second: Sequence[float], digits: int = 1, factor: float = 1.0
) -> str:
    """Return the mean paired difference with its 95 % interval, and whether it is clear.

    A single pair has no interval, and the text says so.

    Example:
        >>> difference([1.0, 2.0, 3.0], [1.5, 1.5, 3.0])
        '0.0 (95 %: -1.2 to 1.2), no clear difference'
        >>> difference([1.0], [1.5])
        '-0.5 (one run each)'
    """
    if len(first) == len(second) == 1:
        return f"{without_negative_zero(factor * (first[0] - second[0]), digits)} (one run each)"
    middle, low, high = paired_difference(first, second)
    middle_text, low_text, high_text = (
        without_negative_zero(factor * value, digits) for value in (middle, low, high)
    )
    text = f"{middle_text} (95 %: {low_text} to {high_text})"
    if not is_clear(first, second):
        text += ", no clear difference"
    return text


def is_clear(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether the 95 % interval of the mean paired difference excludes zero."""
    _, low, high = paired_difference(first, second)
    return not low <= 0 <= high


def without_negative_zero(value: float, digits: int) -> str:
    """Return a rounded value; what rounds to zero has no sign.

    Example:
        >>> without_negative_zero(-0.04, 1)
        '0.0'
    """
    return f"{round(value, digits) + 0.0:,.{digits}f}"


NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def in_words(number: int) -> str:
    """Return a number up to ten as a word.

    Example:
        >>> in_words(3)
        'three'
    """
    return NUMBERS[number]


def millions(tokens: float) -> str:
    """Return a number of tokens in millions.

    Example:
        >>> millions(819200)
        '0.8 M'
    """
    return f"{tokens / 1e6:.1f} M"


def is_searched(recipe: dict) -> bool:
    """Return whether a recipe's rate had a worse one tried on both sides.

    Source: a recipe is an entry of a results.json of studies/recipe.py.
    """
    tried = [float(rate) for rate in recipe["rates_tried"]]
    return min(tried) < recipe["rate"] < max(tried)


def of_seeds(recipe: dict, key: str, seeds: list[int]) -> list[float]:
    """Return what a recipe has under a key for these seeds, in their order.

    Source: a recipe is an entry of a results.json of studies/recipe.py.
    """
    by_seed = dict(zip(recipe["seeds"], recipe[key], strict=True))
    return [by_seed[seed] for seed in seeds]


def joined(*recipes: dict) -> dict:
    """Return one recipe with the seeds of several records and what each of them ended with.

    Source: a recipe is an entry of a results.json of studies/recipe.py.
    """
    whole: dict[str, list] = {"seeds": [], "perplexity": [], "accuracy": []}
    for recipe in recipes:
        for name, values in whole.items():
            values.extend(recipe[name])
    return whole


BATCH_ALONE = "the batch alone"
LARGER_POOLS = "larger pools"


def by_candidates(key: str, pools: dict, headless: dict, vanilla: dict) -> dict[str, list[float]]:
    """Return what headless has under a key with larger pools and with the batch alone, and
    vanilla, for the seeds that the larger pools have: they may be fewer.

    Source: all are recipes of results.json files of studies/recipe.py.
    """
    return {
        BATCH_ALONE: of_seeds(headless, key, pools["seeds"]),
        LARGER_POOLS: pools[key],
        "vanilla": of_seeds(vanilla, key, pools["seeds"]),
    }


def of_each_seed(method: dict, name: str) -> list[float]:
    """Return a figure of a method of examples/items, one for each seed."""
    return [seed[name] for seed in method["seeds"].values()]


def curve(recipe: dict, key: str) -> list[float]:
    """Return what the evaluations of a recipe have under a key, mean over its seeds.

    Source: a recipe is an entry of a results.json of studies/recipe.py.
    """
    curves = [[point[key] for point in points] for points in recipe["curves"].values()]
    return np.mean(curves, axis=0).tolist()


def share_to_match(recipe: dict, baseline: dict, axis: str = "tokens") -> float:
    """Return after which share of a baseline's tokens or seconds a recipe is as good as the
    baseline at its end, by the mean curves of both.
    """
    # np.interp needs values that rise, and a cross-entropy falls.
    gains = [-loss for loss in curve(recipe, "eval_cross_entropy")]
    end_of_baseline = -np.log(baseline["perplexity"]).mean()
    tokens = np.interp(end_of_baseline, gains, curve(recipe, "tokens_seen"))
    return float(tokens / recipe["tokens"] * recipe[axis] / baseline[axis])


def check(holds: bool, statement: str) -> None:
    """Stop where the records no longer say what a card says in words.

    Raises:
        ValueError: the statement does not hold.
    """
    if not holds:
        raise ValueError(f"the records do not say that {statement}.")
