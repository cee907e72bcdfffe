"""Interactions of users with items, read from files as one history a user.

Letters used in shapes: U users, I items, N interactions.
"""

import io
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, json, parquet

from ..corpus.text_files import encoding_fault, unpacked
from ..corpus.text_stream import DAMAGED
from ..corpus.texts import expand, extension

logger = logging.getLogger(__name__)

TABLES = (".parquet", ".csv", ".jsonl", ".json")
COLUMNS = {"user_column": "user", "item_column": "item", "time_column": "time"}  # by default
NAMES_SHOWN = 10


@dataclass(frozen=True)
class Histories:
    """What each user had, in the order of time.

    Attributes:
        users: ``(U,)`` names, strings.
        items: ``(I,)`` names, strings, each once.
        ids: ``(N,)`` int64 positions in ``items``, user after user.
        offsets: ``(U + 1,)`` int64, where each user begins in ``ids`` and the last one ends.
        times: ``(N,)``, whatever can be compared; None where the files give only the order.
    """

    users: np.ndarray
    items: np.ndarray
    ids: np.ndarray
    offsets: np.ndarray
    times: np.ndarray | None

    def counts(self) -> np.ndarray:
        """``(I,)`` int64 occurrences of each item."""
        return np.bincount(self.ids, minlength=len(self.items))

    def with_items(self, items: np.ndarray) -> "Histories":
        """These histories with the numbers of another list of items; what is not in it is left out, and users left without any.

        Args:
            items: ``(J,)`` names, strings, each once.
        """
        found = pc.index_in(pa.array(self.items, pa.string()), value_set=pa.array(items, pa.string()))
        new = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)[self.ids]
        kept = new >= 0
        lengths = counts_between(kept, self.offsets)
        times = None if self.times is None else self.times[kept]
        offsets = np.append(0, lengths[lengths > 0].cumsum())
        return Histories(self.users[lengths > 0], items, new[kept], offsets, times)

    def with_frequent_items(self, minimum: int) -> "Histories":
        """These histories with the items that occur at least ``minimum`` times, the most frequent first.

        Raises:
            ValueError: if no item does.
        """
        counts = self.counts()
        order = np.argsort(-counts, kind="stable")
        kept = order[counts[order] >= minimum]
        if not len(kept):
            raise ValueError(
                f"min_item_count is {minimum} but no item occurs so often, the most frequent {counts.max()} times: lower it."
            )
        if len(kept) < len(self.items):
            logger.info("%s of %s items occur less than %s times and are left out",
                        f"{len(self.items) - len(kept):,}", f"{len(self.items):,}", minimum)  # fmt: skip
        return self.with_items(self.items[kept])


def counts_between(flags: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """``(U,)`` how many of the ``(N,)`` flags are true from each offset to the next."""
    sums = np.append(0, flags.cumsum())
    return sums[offsets[1:]] - sums[offsets[:-1]]


def read_histories(
    argument: str,
    names: list[str],
    *,
    user_column: str = COLUMNS["user_column"],
    item_column: str = COLUMNS["item_column"],
    time_column: str = COLUMNS["time_column"],
    lines_begin_with: str = "auto",
) -> Histories:
    """Read files of interactions.

    Tables have a row for each interaction, in any order: they are sorted by time, those of one time in the order of the file.
    In a .txt file each line is the history of one user, oldest item first, items separated by spaces.

    Args:
        argument: that names the files, for messages.
        names: files, folders or globs of .parquet, .csv, .jsonl or .txt, each but .parquet also as .gz.
        user_column: of tables.
        item_column: of tables.
        time_column: of tables.
        lines_begin_with: ``user`` or ``item``, what comes first in the lines of a .txt file. ``auto``: the user, if in no two
            lines it is the same.

    Raises:
        ValueError: if the files have no interactions, lack a column or a value, or cannot be read, or a setting is for files of
            the other kind.
        FileNotFoundError: if a name matches nothing.
    """
    paths = [path for name in names for path in expand(argument, name) if path.stat().st_size]
    if not paths:
        raise ValueError(f"{argument} {names!r} holds no interactions: every file is empty. Name a file with some.")
    kinds = {extension(path) in TABLES for path in paths}
    if len(kinds) > 1:
        raise ValueError(f"{argument} {names!r} holds tables and .txt files: convert them to one of the two.")
    columns = {"user_column": user_column, "item_column": item_column, "time_column": time_column}
    if kinds == {True}:
        if lines_begin_with != "auto":
            raise ValueError(
                f"lines_begin_with is {lines_begin_with!r} but {argument} {names!r} holds tables, which have columns: leave it "
                "out."
            )
        tables = [_read_table(argument, path, columns) for path in paths]
        _check_times(argument, paths, [table["time"] for table in tables], time_column)
        tables = [table.set_column(2, "time", _as_time(argument, table["time"], path, time_column))
                  for table, path in zip(tables, paths, strict=True)]  # fmt: skip
        found = _of_table(argument, pa.concat_tables(tables), columns)
    else:
        for setting, name in columns.items():
            if name != COLUMNS[setting]:
                raise ValueError(
                    f"{setting} is {name!r} but {argument} {names!r} holds .txt files, which have no columns: leave it out."
                )
        found = _of_lines(argument, paths, lines_begin_with)
    if not len(found.ids):
        raise ValueError(f"{argument} {names!r} holds no interactions. Name a file with some.")
    logger.info("%s interactions of %s users with %s items",
                f"{len(found.ids):,}", f"{len(found.users):,}", f"{len(found.items):,}")  # fmt: skip
    return found


def _read_table(argument: str, path: Path, columns: dict[str, str]) -> pa.Table:
    """The three columns of one file; users and items as strings, times as they are."""
    names, kind = list(columns.values()), extension(path)
    try:
        if kind == ".parquet":
            known = parquet.read_schema(path).names
            table = parquet.read_table(path, columns=[name for name in names if name in known])
        elif kind == ".csv":
            # As strings, or 007 would be 7. What is empty is missing, and NA the name of an item.
            as_text = dict.fromkeys(names[:2], pa.string())
            options = csv.ConvertOptions(column_types=as_text, null_values=[""], strings_can_be_null=True)
            table = csv.read_csv(path, convert_options=options)
            known = table.column_names
        else:
            table = json.read_json(path)
            known = table.column_names
    except (pa.ArrowException, OSError) as error:
        fault = encoding_fault(path) if kind != ".parquet" else None
        remedy = "Each line must be one JSON object." if kind in (".jsonl", ".json") else "Check the file."
        reason = fault or f"{str(error).splitlines()[0].rstrip('.')}. {remedy}"
        raise ValueError(f"{argument} {str(path)!r} cannot be read as {kind}: {reason}") from error
    for setting, name in columns.items():
        if name not in known:
            remedy = f"Name the column with --{setting}."
            if kind == ".csv" and len(known) == 1:
                remedy = "Separate the columns with commas."
            shown = ", ".join(map(repr, known[:NAMES_SHOWN])) + ", ..." * (len(known) > NAMES_SHOWN)
            raise ValueError(f"{argument} {str(path)!r} has no column {name!r}, only {shown}. {remedy}")
        if known.count(name) > 1:
            raise ValueError(
                f"{argument} {str(path)!r} has {known.count(name)} columns {name!r}: rename the others, or name "
                f"another one with --{setting}."
            )
        missing = table[name].null_count
        if pa.types.is_string(table[name].type) or pa.types.is_large_string(table[name].type):
            missing += pc.sum(pc.equal(table[name], ""), min_count=0).as_py()
        if missing:
            raise ValueError(
                f"{argument} {str(path)!r} has {missing:,} rows without a value in the column {name!r}: fill or remove them."
            )
    user, item = (_as_names(argument, table[name], path, name) for name in names[:2])
    return pa.table({"user": user, "item": item, "time": table[names[2]]})


def _as_names(argument: str, column: pa.ChunkedArray, path: Path, name: str) -> pa.ChunkedArray:
    """Strings, and numbers as they are written."""
    try:
        return column.cast(pa.string())
    except pa.ArrowException as error:
        raise ValueError(
            f"{argument} {str(path)!r} has a column {name!r} that is neither strings nor numbers ({error}): convert it."
        ) from error


def _check_times(argument: str, paths: list[Path], columns: list[pa.ChunkedArray], name: str) -> None:
    """Refuse numbers in one file and dates in another, whose order nobody knows."""
    by_kind = {_is_number(column): path for path, column in zip(paths, columns, strict=True) if len(column)}
    if len(by_kind) > 1:
        raise ValueError(
            f"{argument} holds numbers in the column {name!r} of {str(by_kind[True])!r} and dates in that of "
            f"{str(by_kind[False])!r}: convert one of the two."
        )


def _is_number(column: pa.ChunkedArray) -> bool:
    return pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)


def _as_time(argument: str, column: pa.ChunkedArray, path: Path, name: str) -> pa.ChunkedArray:
    """Seconds: numbers as they are, dates and times since 1970. float64 holds microseconds of this century."""
    try:
        if pa.types.is_boolean(column.type):
            raise pa.ArrowInvalid("true and false have no order in time")
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = column.cast(pa.timestamp("us"))
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            column = pc.divide(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).cast(pa.float64()), 1e6)
        column = column.cast(pa.float64(), safe=False)  # nanoseconds have more digits
    except pa.ArrowException as error:
        raise ValueError(
            f"{argument} {str(path)!r} has a column {name!r} that is neither numbers nor dates ({error}): convert it, or name "
            "another one with --time_column."
        ) from error
    if not pc.all(pc.is_finite(column), min_count=0).as_py():
        raise ValueError(
            f"{argument} {str(path)!r} has times in the column {name!r} that are not finite: fill or remove them."
        )
    return column


def _of_table(argument: str, table: pa.Table, columns: dict[str, str]) -> Histories:
    (user_codes, users), (item_codes, items) = (_numbered(table[name]) for name in ("user", "item"))
    times = table["time"].to_numpy()
    grouped = np.argsort(user_codes, kind="stable")
    same_user = user_codes[grouped][1:] == user_codes[grouped][:-1]
    unsorted = int(((np.diff(times[grouped]) < 0) & same_user).sum())
    if same_user.any() and not (np.diff(times[grouped]) != 0)[same_user].any():
        logger.warning("no user of %s has two different times in the column %r: the order is that of the file",
                       argument, columns["time_column"])  # fmt: skip
    if unsorted:
        logger.info("%s is not sorted by %s (%s rows come after a later one of the same user): it is sorted now",
                    argument, columns["time_column"], f"{unsorted:,}")  # fmt: skip
    order = np.lexsort((times, user_codes))  # stable, so one time keeps the order of the file
    offsets = np.append(0, np.bincount(user_codes, minlength=len(users)).cumsum())
    return Histories(users, items, item_codes[order], offsets, times[order])


def _numbered(column: pa.ChunkedArray | pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """``(N,)`` int64 numbers of strings in the order in which they first appear, and the strings."""
    encoded = column.cast(pa.large_string())
    encoded = (encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded).dictionary_encode()
    names = encoded.dictionary.to_numpy(zero_copy_only=False).astype(object)
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), names


def _of_lines(argument: str, paths: list[Path], begin_with: str) -> Histories:
    lines = []
    for path in paths:
        try:
            with path.open("rb") as raw:  # a byte order mark is no part of the first name
                file = io.TextIOWrapper(unpacked(raw), encoding="utf-8-sig")
                lines += [line for line in file if not line.isspace()]
        except (*DAMAGED, OSError, UnicodeDecodeError) as error:
            fault = encoding_fault(path) or f"{error}. Check the file."
            raise ValueError(f"{argument} {str(path)!r} cannot be read as UTF-8 text: {fault}") from error
    words = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(pa.array(lines, pa.large_string())))
    words = words.cast(pa.large_list(pa.large_string()))
    lengths = pc.list_value_length(words).to_numpy(zero_copy_only=False)
    if len(words) and lengths.max() == 1:
        raise ValueError(
            f"{argument} {[str(path) for path in paths]!r} has one word in each line, {words[0][0].as_py()!r} for one: "
            "separate users and items with spaces."
        )
    firsts = pc.list_element(words, 0) if len(words) else pa.array([], pa.large_string())
    if begin_with == "auto":
        begin_with = "user" if len(firsts.unique()) == len(firsts) else "item"
        logger.info(
            "each line of %s is taken to begin with its %s: --lines_begin_with says otherwise", argument, begin_with
        )
    codes, items = _numbered(words.flatten())
    if begin_with == "item":
        users = np.arange(1, len(lengths) + 1).astype(str).astype(object)
        return Histories(users, items, codes, np.append(0, lengths.cumsum()), None)
    users = firsts.to_numpy(zero_copy_only=False).astype(object)
    if len(set(users)) < len(users):
        raise ValueError(
            f"lines_begin_with is 'user' but two lines of {argument} begin alike: give each user one line, or set "
            "--lines_begin_with item."
        )
    alone = int((lengths == 1).sum())
    if alone:
        logger.warning("%s of %s lines of %s hold a user and no item: they are left out, that of %r for one",
                       f"{alone:,}", f"{len(lengths):,}", argument, users[lengths == 1][0])  # fmt: skip
    starts = lengths.cumsum() - lengths
    is_item = np.ones(len(codes), dtype=bool)
    is_item[starts] = False
    found = Histories(users, items, codes[is_item], np.append(0, (lengths - 1).cumsum()), None)
    return found.with_items(items[np.bincount(codes[is_item], minlength=len(items)) > 0])
