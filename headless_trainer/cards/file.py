"""The file of a model card: made from the template, and later given results, always a whole README.md with valid metadata."""

import dataclasses
import logging
import math
import re
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..command_line import as_typed
from ..runtime.checkpoints import write_whole
from ..tables import markdown as table

logger = logging.getLogger(__name__)

CARD_NAME = "README.md"
TEMPLATE_NAME = "model_card_template.md"
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
            logger.warning(
                "A model card could not be written (%s: %s). Nothing else is lost.", type(error).__name__, error
            )

    return guarded


@cache
def _template(name: str) -> jinja2.Template:
    def load(name: str) -> str:
        return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")

    # A name that the template has and its caller has not is an error and no gap in the card.
    options = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(loader=jinja2.FunctionLoader(load), keep_trailing_newline=True, **options)
    environment.filters["percent"] = lambda share: f"{round(100 * share, 6):g} %"
    return environment.get_template(name)


def save_card(
    folder: str | Path, facts: dict[str, Any], metadata: dict[str, Any], template: str = TEMPLATE_NAME
) -> None:
    """Write a card, unless the folder has a README.md that someone else wrote.

    Args:
        facts: the names in the template.
        metadata: arguments of `huggingface_hub.ModelCardData`; what is None is left out.
    """
    path = Path(folder) / CARD_NAME
    if (path.is_symlink() or path.is_file()) and read_card(folder) is None:
        logger.warning("%s is not a card of headless_trainer, so it is left as it is and no card is written.", path)
        return
    data = ModelCardData(**{name: value for name, value in metadata.items() if value is not None})
    write_whole(
        path, f"---\n{data.to_yaml()}\n---\n\n{as_typed(_template(template).render(facts)).rstrip()}\n".encode()
    )


def read_card(folder: str | Path) -> ModelCard | None:
    """The card of a folder, None if it has none, or one that was not written here, lies elsewhere or cannot be read."""
    path = Path(folder) / CARD_NAME
    if not is_inside(path, folder):
        return None
    try:
        card = ModelCard.load(path)
        return card if OWN_TAG in (card.data.tags or ()) else None
    except Exception:  # noqa: BLE001  not UTF-8, not YAML, not a mapping
        return None


def is_inside(path: Path, folder: str | Path) -> bool:
    """Whether a file is there and lies in a folder, and no link in it leads to somewhere else."""
    return path.is_file() and path.resolve().is_relative_to(Path(folder).resolve())


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
    card.text = _with_table(card.text, results_table(card.data.eval_results))
    write_whole(Path(folder) / CARD_NAME, str(card).encode())


def finite(results: Sequence[EvalResult]) -> list[EvalResult]:
    """Results whose value is a number: no card says that a score is nan."""
    return [result for result in results if math.isfinite(result.metric_value)]


def _figure(result: EvalResult) -> tuple:
    """What a result measures: everything but its value and the arguments it was obtained with."""
    fields = dataclasses.asdict(result)
    return tuple(fields[name] for name in sorted(fields) if name not in ("metric_value", "metric_args", "verify_token"))


def _with_table(text: str, results: str) -> str:
    if _RESULTS.search(text):
        return _RESULTS.sub(lambda _: results, text, count=1)
    before, citation, after = text.rpartition(_CITATION)
    if not citation:
        before, after = text, ""
    return f"{before.rstrip()}\n\n## Evaluation\n\n{results}\n{citation}{after}"


def results_table(results: Sequence[EvalResult]) -> str | None:
    """A Markdown table of results, with what they were obtained with; None without results."""
    rows = []
    for result in results:
        how = [f"{name.replace('_', ' ')} {_short(value)}" for name, value in (result.metric_args or {}).items()]
        figure = result.metric_name or result.metric_type
        rows.append((result.dataset_name, figure, _short(result.metric_value), ", ".join(how)))
    text = table(("data", "figure", "value", "obtained with"), rows)
    return text and f"{RESULTS_BEGIN}\n{text}\n{RESULTS_END}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def six_digits(value: float) -> float:
    """A figure for metadata: more digits are noise, and would be others on other machines."""
    return float(f"{value:.6g}")
