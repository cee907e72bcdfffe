"""The file of a model card: made from the template, and later given results, always a whole README.md with valid metadata."""

import logging
import math
import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..runtime.checkpoints import write_whole
from ..tables import markdown as table

logger = logging.getLogger(__name__)

CARD_NAME = "README.md"
TEMPLATE = Path(__file__).with_name("model_card_template.md")
OWN_TAG = "headless-trainer"
# Where `add_results` finds the table of an earlier call.
RESULTS_BEGIN, RESULTS_END = "<!-- results, from the metadata: begin -->", "<!-- end -->"
_RESULTS = re.compile(f"{RESULTS_BEGIN}.*?{RESULTS_END}", re.DOTALL)
_CITATION = "\n## Citation\n"


def never_raises(write: Callable[..., None]) -> Callable[..., None]:
    """Make a failure a warning: what a card describes is saved by now, and its description may not lose it."""

    @wraps(write)
    def guarded(*args, **kwargs) -> None:
        try:
            write(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            problem = f"{type(error).__name__}: {error}"
            logger.warning("A model card could not be written (%s). Nothing else is lost.", problem)

    return guarded


def save_card(folder: str | Path, facts: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Write a card, unless the folder has a README.md that someone else wrote.

    ``facts`` are the names in the template, ``metadata`` arguments of `ModelCardData`; what is None of them is left out.
    """
    path = Path(folder) / CARD_NAME
    if path.is_file() and read_card(folder) is None:
        logger.warning("%s was not written by headless_trainer; it is kept, and no card is written.", path)
        return
    data = ModelCardData(**{name: value for name, value in metadata.items() if value is not None})
    card = ModelCard.from_template(data, template_path=str(TEMPLATE), **facts)
    write_whole(path, f"{str(card).rstrip()}\n".encode())


def read_card(folder: str | Path) -> ModelCard | None:
    """The card of a folder, None if it has none, or one that was not written here or cannot be read."""
    try:
        card = ModelCard.load(Path(folder, CARD_NAME))
        return card if OWN_TAG in (card.data.tags or ()) else None
    except Exception:  # noqa: BLE001  no file, not UTF-8, not YAML, not a mapping
        return None


@never_raises
def add_results(folder: str | Path, results: Sequence[EvalResult]) -> None:
    """Add results to the metadata and to the table of a model's card; an earlier value of the same figure is replaced.

    What a user wrote into the card stays. A folder without a card of headless_trainer, or a name on the Hub, is left as it
    is, and values that are not finite are left out. Never raises: a failure is a warning.
    """
    added = {_figure(result): result for result in finite(results)}
    card = read_card(folder)
    if not added or card is None:
        return
    earlier = {_figure(result): result for result in card.data.eval_results or ()}
    card.data.eval_results = [*(earlier | added).values()]
    card.data.model_name = card.data.model_name or Path(folder).resolve().name
    shown = results_table(card.data.eval_results)
    if _RESULTS.search(card.text):
        card.text = _RESULTS.sub(lambda _: shown, card.text, count=1)
    else:
        before, citation, after = card.text.rpartition(_CITATION)
        before, after = (before, after) if citation else (after, "")
        card.text = f"{before.rstrip()}\n\n## Evaluation\n\n{shown}\n{citation}{after}"
    write_whole(Path(folder, CARD_NAME), f"{str(card).rstrip()}\n".encode())


def finite(results: Sequence[EvalResult]) -> list[EvalResult]:
    """Results whose value is a number: no card says that a score is nan."""
    return [result for result in results if math.isfinite(result.metric_value)]


def _figure(result: EvalResult) -> tuple:
    """What a result measures: everything but its value and what it was obtained with."""
    return (*result.unique_identifier, result.dataset_name, result.metric_type, result.metric_name)


def results_table(results: Sequence[EvalResult]) -> str:
    """A Markdown table of results, with what they were obtained with."""
    rows = []
    for each in results:
        how = ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in (each.metric_args or {}).items())
        rows.append((each.dataset_name, each.metric_name or each.metric_type, _short(each.metric_value), how))
    return f"{RESULTS_BEGIN}\n{table(('data', 'figure', 'value', 'obtained with'), rows)}\n{RESULTS_END}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def six_digits(value: float) -> float:
    """A figure for metadata: more digits are noise, and would be others on other machines."""
    return float(f"{value:.6g}")
