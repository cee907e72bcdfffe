"""Write model cards, and add results to them later.

A card is always a complete README.md with valid metadata.
"""

import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..files.manifest import CARD_NAME
from ..files.whole import write_whole
from ..presentation.tables import markdown

logger = logging.getLogger(__name__)

OWN_TAG = "headless-trainer"
# Marks by which `add_results` finds the table of an earlier call.
RESULTS_BEGIN = "<!-- results, from the metadata: begin -->"
RESULTS_END = "<!-- end -->"


@contextmanager
def never_raises() -> Iterator[None]:
    """Turn a failure into a warning: the model is saved, and its card must not stop the run."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        logger.warning("A model card could not be written (%r). Nothing else is lost.", error)


def save_card(folder: str | Path, card: ModelCard) -> None:
    """Write a card into a folder, whole or not at all."""
    write_whole(Path(folder, CARD_NAME), f"{str(card).rstrip()}\n".encode())


def read_card(folder: str | Path) -> ModelCard | None:
    """Return the card of a folder; None without one, or if it is not ours or not readable."""
    try:
        card = ModelCard.load(Path(folder, CARD_NAME))
        is_ours = OWN_TAG in (card.data.tags or ())
    except Exception:  # noqa: BLE001  no file, not UTF-8, not YAML, not a mapping
        return None
    if is_ours:
        return card
    return None


@never_raises()
def add_results(folder: str | Path, results: Sequence[EvalResult]) -> None:
    """Add results to the metadata and the table of a model's card.

    They replace earlier values of the same figures. Users' own text in the card stays. A folder
    without a card of headless_trainer, or a Hub name, is not changed. Values that are not finite
    are skipped.
    """
    added = {_figure(result): result for result in finite(results)}
    card = read_card(folder)
    if not added or card is None:
        return
    data = card.data
    assert isinstance(data, ModelCardData)  # annotated as that of any card
    earlier = {_figure(result): result for result in data.eval_results or ()}
    data.eval_results = [*(earlier | added).values()]
    # huggingface_hub refuses results of a model without a name.
    data.model_name = data.model_name or Path(folder).resolve().name
    shown = results_table(data.eval_results)
    # A function, because a backslash in a replacement text would have a meaning of its own.
    card.text = re.sub(
        f"{RESULTS_BEGIN}.*?{RESULTS_END}", lambda _: shown, card.text, count=1, flags=re.DOTALL
    )
    save_card(folder, card)


def finite(results: Sequence[EvalResult]) -> list[EvalResult]:
    """Return the results whose value is finite: no card should show nan as a score."""
    return [result for result in results if math.isfinite(result.metric_value)]


def _figure(result: EvalResult) -> tuple:
    """Return what makes a figure: a result with the same replaces an earlier one."""
    return (*result.unique_identifier, result.dataset_name, result.metric_type, result.metric_name)


def results_table(results: Sequence[EvalResult]) -> str:
    """Return the section of a card with results, and how each was obtained.

    It stands between marks, by which `add_results` finds it again.
    """
    rows = []
    for result in results:
        conditions = [
            f"{name.replace('_', ' ')} {_short(value)}"
            for name, value in (result.metric_args or {}).items()
        ]
        figure = result.metric_name or result.metric_type
        value = _short(result.metric_value)
        rows.append((result.dataset_name, figure, value, ", ".join(conditions)))
    section = ""
    if rows:
        table = markdown(("data", "figure", "value", "obtained with"), rows)
        section = f"## Evaluation\n\n{table}\n"
    return f"{RESULTS_BEGIN}\n{section}{RESULTS_END}"


def _short(value: Any) -> str:
    """Return a number with thousands separators if it is whole or large, else with four digits."""
    # In four digits, such a number would have an exponent.
    if isinstance(value, int) or (isinstance(value, float) and abs(value) >= 9_999.5):
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def six_digits(value: float) -> float:
    """Round a figure for metadata: more digits are noise, and would differ between machines."""
    return float(f"{value:.6g}")
