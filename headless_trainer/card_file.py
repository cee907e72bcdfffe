"""The file of a model card: made from the template, and later given results, always a whole README.md with valid metadata.

The template is Markdown with ``$facts``. A line that names a fact which is not known is left out, and so is a line that
begins with ``[condition]`` where none of the conditions (``[this|that]``) holds. A heading with nothing below it goes too.
"""

import dataclasses
import fcntl
import logging
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from string import Template

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from .checkpoints import write_whole

logger = logging.getLogger(__name__)

CARD_NAME = "README.md"
TEMPLATE_NAME = "model_card_template.md"
OWN_TAG = "headless-trainer"
# Where `add_results` finds the table of an earlier call.
RESULTS_BEGIN, RESULTS_END = "<!-- results, from the metadata: begin -->", "<!-- end -->"
_CONDITION = re.compile(r"^\[([a-z_|]+)\] ")
_HEADING = re.compile(r"^(#+) ")


def render(facts: dict[str, str | None], conditions: set[str]) -> str:
    """The text of a card, without its metadata.

    Args:
        facts: the template's ``$names``; None or "" where something is not known.
        conditions: those of the template that hold.
    """
    known = {name: value for name, value in facts.items() if value}
    template = resources.files(__package__).joinpath(TEMPLATE_NAME).read_text(encoding="utf-8")
    kept: list[str] = []
    for line in template.splitlines():
        condition = _CONDITION.match(line)
        if condition and not conditions & set(condition.group(1).split("|")):
            continue
        line = Template(line[condition.end() :] if condition else line)
        if set(line.get_identifiers()) <= known.keys():
            kept.append(line.substitute(known))
    return _tidy(kept)


def _tidy(lines: list[str]) -> str:
    """Drop headings without content and repeated blank lines; an element of ``lines`` may be several lines."""
    kept: list[str] = []
    empty, next_level = True, 0  # whether nothing stands before the next heading, and its level; 0 is the end
    for line in reversed(lines):
        heading = _HEADING.match(line)
        if heading and "\n" not in line:
            level = len(heading.group(1))
            if empty and next_level <= level:
                continue
            empty, next_level = True, level
        elif line.strip():
            empty = False
        kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(reversed(kept))).strip() + "\n"


def save_card(folder: str | Path, text: str, metadata: dict) -> None:
    """Write a card, unless the folder has a README.md of somebody else's.

    Args:
        folder: of the model.
        text: from `render`.
        metadata: arguments of `huggingface_hub.ModelCardData`; what is None is left out.
    """
    path = Path(folder) / CARD_NAME
    if path.is_file() and read_card(folder) is None:
        logger.warning("%s is not a card of headless_trainer, so it is left as it is and no card is written.", path)
        return
    data = ModelCardData(**{name: value for name, value in metadata.items() if value is not None})
    write_whole(path, f"---\n{data.to_yaml()}\n---\n\n{text}".encode())


def read_card(folder: str | Path) -> ModelCard | None:
    """The card of a folder, None if it has none or one that was not written here."""
    path = Path(folder) / CARD_NAME
    if not path.is_file():
        return None
    try:
        card = ModelCard.load(path, ignore_metadata_errors=True)
    except Exception:  # noqa: BLE001  not UTF-8, not YAML, not a mapping
        return None
    return card if OWN_TAG in (card.data.tags or ()) else None


def add_results(folder: str | Path, results: Sequence[EvalResult]) -> bool:
    """Add results to the metadata and to the table of a model's card; an earlier value of the same figure is replaced.

    What a user wrote into the card stays. Never raises: a failure is a warning.

    Args:
        folder: of the model. One without a card of headless_trainer, or a name on the Hub, is left as it is.
        results: values that are not finite are left out.

    Returns:
        Whether the card has them now.
    """
    results = [result for result in results if math.isfinite(result.metric_value)]
    if not results or read_card(folder) is None:
        return False
    try:
        with _alone_in(folder):
            card = read_card(folder)  # again: another process may have added its own
            added = {_figure(result): result for result in results}
            earlier = [result for result in card.data.eval_results or () if _figure(result) not in added]
            card.data.eval_results = [*earlier, *added.values()]
            card.data.model_name = card.data.model_name or Path(folder).resolve().name
            card.text = _with_table(card.text, results_table(card.data.eval_results))
            write_whole(Path(folder) / CARD_NAME, str(card).encode())
    except Exception as error:  # noqa: BLE001
        logger.warning("The results could not be added to the card in %s: %s", folder, error)
        return False
    return True


def _figure(result: EvalResult) -> tuple:
    """What a result measures: everything but its value and the arguments it was obtained with."""
    fields = dataclasses.asdict(result)
    return tuple(fields[name] for name in sorted(fields) if name not in ("metric_value", "metric_args", "verify_token"))


@contextmanager
def _alone_in(folder: str | Path) -> Iterator[None]:
    """One process at a time. The folder itself is the lock, so that no file is left in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def results_table(results: Sequence[EvalResult]) -> str | None:
    """A Markdown table of results, with what they were obtained with."""
    if not results:
        return None
    lines = ["| data | figure | value | |", "|---|---|---|---|"]
    for result in results:
        how = ", ".join(
            f"{name.replace('_', ' ')} {_short(value)}" for name, value in (result.metric_args or {}).items()
        )
        figure = result.metric_name or result.metric_type
        lines.append(f"| {result.dataset_name} | {figure} | {_short(result.metric_value)} | {how} |")
    return "\n".join([RESULTS_BEGIN, *lines, RESULTS_END])


def _short(value) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _with_table(text: str, table: str) -> str:
    before, begin, rest = text.partition(RESULTS_BEGIN)
    if begin:
        return before + table + rest.partition(RESULTS_END)[2]
    head, citation, tail = text.rpartition("\n## Citation\n")
    if not citation:
        return f"{text.rstrip()}\n\n## Evaluation\n\n{table}\n"
    return f"{head.rstrip()}\n\n## Evaluation\n\n{table}\n{citation}{tail}"
