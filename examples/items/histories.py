"""What users had, in the order of time: read from files, numbered, and split into training,
validation and test.
"""

import io
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from headless_trainer.corpus.files import opened

logger = logging.getLogger("items")

# Token id of the first item. Id 0 fills the shorter rows of a batch.
FIRST_ID = 1


@dataclass
class FileArguments:
    """How files of interactions are read."""

    user_column: str = field(
        default="user", metadata={"help": "Column of a table that holds the user."}
    )
    item_column: str = field(
        default="item", metadata={"help": "Column of a table that holds the item."}
    )
    time_column: str = field(
        default="time",
        metadata={"help": "Column of a table that holds the time, as numbers or dates."},
    )


def read_interactions(paths: Sequence[str], columns: FileArguments) -> pd.DataFrame:
    """Read files of interactions.

    Tables (.parquet, .csv, .jsonl) have one interaction in each row, in any order. A line of a
    .txt file is one user and its items, the oldest first, separated by spaces. All but .parquet
    may be compressed (.gz).

    Returns:
        The columns user and item, both strings. A user's rows stand together, the oldest first;
        those of one time keep the order of the files.

    Raises:
        ValueError: if a file is named twice, a column or a value is missing, times cannot be
            compared, or two lines of .txt begin alike.
    """
    if len({*map(os.path.realpath, paths)}) < len(paths):
        raise ValueError(f"{list(paths)} name a file twice: name each once.")
    texts = [path for path in paths if ".txt" in Path(path).suffixes]
    frames = [_read_table(path, columns) for path in paths if path not in texts]
    frame = pd.concat([*frames, *([_read_lines(texts)] if texts else [])], ignore_index=True)
    if "time" in frame:
        if frame["time"].isna().any() or frame["time"].dtype == object:
            raise ValueError(
                f"{list(paths)} hold tables and .txt files, or numbers as times and dates: "
                "convert one kind."
            )
        frame = frame.sort_values("time", kind="stable")
    user_numbers = pd.factorize(frame["user"])[0]
    frame = frame.iloc[np.argsort(user_numbers, kind="stable")].reset_index(drop=True)
    logger.info(
        "%d interactions of %d users with %d items", len(frame), *frame[["user", "item"]].nunique()
    )
    return frame[["user", "item"]]


def _read_table(path: str, columns: FileArguments) -> pd.DataFrame:
    names = [columns.user_column, columns.item_column, columns.time_column]
    as_text = dict.fromkeys(names[:2], str)  # or 007 would be 7
    suffix = Path(path.removesuffix(".gz")).suffix
    if suffix == ".parquet":
        frame = pd.read_parquet(path)
    elif suffix == ".jsonl":
        with opened(path) as file:
            frame = pd.read_json(file, lines=True, dtype=False)
    elif suffix == ".csv":  # where what is empty is missing, and NA the name of an item
        with opened(path) as file:
            frame = pd.read_csv(file, dtype=as_text, keep_default_na=False, na_values=[""])
    else:
        raise ValueError(
            f"{path!r} ends in {suffix!r}: convert it to .parquet, .csv, .jsonl or .txt."
        )
    if missing := set(names) - set(frame.columns):
        raise ValueError(
            f"{path!r} has no column {sorted(missing)}, only {list(frame.columns)}: name the "
            "column."
        )
    # Pandas shifts the columns to make one.
    if suffix == ".csv" and not isinstance(frame.index, pd.RangeIndex):
        raise ValueError(
            f"{path!r} has more values in a row than names of columns: name all columns."
        )
    frame = frame[names].set_axis(["user", "item", "time"], axis=1)
    if frame.isna().any(axis=None):
        raise ValueError(
            f"{path!r} has {int(frame.isna().any(axis=1).sum())} rows without a value: fill or "
            "remove them."
        )
    if not pd.api.types.is_numeric_dtype(frame["time"]):
        frame["time"] = pd.to_datetime(frame["time"], format="ISO8601", utc=True)
    return frame.astype({"user": str, "item": str})


def _read_lines(paths: Sequence[str]) -> pd.DataFrame:
    lines = []
    for path in paths:
        with opened(path) as file:
            for line in io.TextIOWrapper(file, encoding="utf-8-sig"):
                words = line.split()
                if words:
                    lines.append(words)
    users = [words[0] for words in lines]
    if len(set(users)) < len(users):
        raise ValueError(
            f"Two lines of {paths} begin alike: a line is the name of one user, and then its items."
        )
    counts = [len(words) - 1 for words in lines]
    return pd.DataFrame(
        {
            "user": np.repeat(np.array(users, object), counts),
            "item": [item for words in lines for item in words[1:]],
        }
    )


def catalogue(interactions: pd.DataFrame) -> list[str]:
    """Names of the items, the most frequent first. The token id of an item is its place plus
    ``FIRST_ID``.
    """
    return (
        interactions["item"]
        .value_counts()
        .sort_index()
        .sort_values(ascending=False, kind="stable")
        .index.tolist()
    )


def token_ids(interactions: pd.DataFrame, items: list[str]) -> tuple[list[str], list[np.ndarray]]:
    """Users, and the token ids of each one's items, oldest first. Items not in the catalogue are
    left out, and said.
    """
    places = pd.Index(items).get_indexer(interactions["item"])
    known = places >= 0
    if not known.all():
        logger.warning(
            "%d of %d interactions are with unknown items: they are left out",
            (~known).sum(),
            len(known),
        )
    numbers, users = pd.factorize(interactions["user"].to_numpy()[known])
    if not len(users):
        raise ValueError(
            "No item of these interactions is known: check the column of the items and their names."
        )
    starts = np.flatnonzero(np.diff(numbers)) + 1
    return users.tolist(), np.split(places[known] + FIRST_ID, starts)


@dataclass(frozen=True)
class HeldOut:
    """The next item of some users. ``histories`` are the token ids before it, ``targets`` its own,
    ``(H,)`` int64.
    """

    histories: list[np.ndarray]
    targets: np.ndarray


def leave_one_out(
    histories: list[np.ndarray], keep_seen: bool
) -> tuple[list[np.ndarray], HeldOut, HeldOut]:
    """Training histories, validation and test: the last item of a user is the test, the one before
    it validation.

    Users with fewer than three items are trained on, and not scored.

    Args:
        histories: token ids of each user's items.
        keep_seen: whether items that a user had before are ranked. Where they are not, a next item
            that is one of them is never found.

    Raises:
        ValueError: if no next item can be found.
    """
    scored = [ids for ids in histories if len(ids) >= 3]
    train = [ids[:-2] if len(ids) >= 3 else ids for ids in histories]
    parts = [
        HeldOut([ids[:end] for ids in scored], np.array([ids[end] for ids in scored], int))
        for end in (-2, -1)
    ]
    logger.info(
        "%d of %d users have three items or more, and are scored", len(scored), len(histories)
    )
    for name, part in zip(("validation", "test"), parts, strict=True):
        lost = sum(
            target in history for history, target in zip(part.histories, part.targets, strict=True)
        )
        lost = 0 if keep_seen else lost
        if lost == len(scored):
            raise ValueError(
                f"No next item of {name} can be found: give longer histories, or set --keep_seen."
            )
        if lost:
            logger.warning(
                "%d next items of %s are ones that their users had before: --keep_seen ranks them",
                lost,
                name,
            )
    return train, *parts


def training_rows(histories: list[np.ndarray], length: int) -> list[dict[str, np.ndarray]]:
    """The most recent items of each user: at most ``length``, and the last to predict. A single
    item gives no row.
    """
    return [with_positions(ids[-length - 1 :], length) for ids in histories if len(ids) >= 2]


def with_positions(ids: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """A row with positions counted from its end, so that the item that predicts the next is always
    at ``length - 1``.
    """
    return {
        "input_ids": ids,
        "position_ids": np.minimum(np.arange(len(ids)) + length + 1 - len(ids), length - 1),
    }


def evaluation_rows(held_out: HeldOut, length: int) -> list[dict[str, np.ndarray]]:
    """Histories with their next item, which alone has a label, those of one length together, which
    costs no padding.
    """
    rows = []
    for history, target in zip(held_out.histories, held_out.targets, strict=True):
        ids = np.append(history, target)[-length - 1 :]
        rows.append(
            with_positions(ids, length) | {"labels": np.append(np.full(len(ids) - 1, -100), target)}
        )
    return sorted(rows, key=lambda row: len(row["input_ids"]))
