"""What of each history is trained on, and what is held out to be ranked.

Letters used in shapes: U users, N interactions, H users that are scored.
"""

import logging
from dataclasses import dataclass

import numpy as np
import torch

from .histories import Histories, counts_between

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Targets:
    """The next item of some users, and where what came before it begins.

    Attributes:
        users: ``(H,)`` int64 positions in ``Histories.users``.
        starts: ``(H,)`` int64, where the history of each begins in ``Histories.ids``.
        places: ``(H,)`` int64, where its next item stands, which is where the history before it ends.
    """

    users: np.ndarray
    starts: np.ndarray
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.users)

    def had_before(self, histories: Histories) -> np.ndarray:
        """``(H,)`` bool, whether the next item stands in the history before it."""
        lengths = self.places - self.starts
        before, offsets = _spans(self.starts, lengths)
        return counts_between(histories.ids[before] == np.repeat(histories.ids[self.places], lengths), offsets) > 0


@dataclass(frozen=True)
class Split:
    """The three parts of histories.

    Attributes:
        train_ends: ``(U,)`` int64, where what is trained on of each user ends in ``Histories.ids``.
        validation: to choose by.
        test: to report. What comes before is all that the user had, that of validation included.
    """

    train_ends: np.ndarray
    validation: Targets
    test: Targets

    def check_ranked(self, histories: Histories) -> None:
        """Say how many next items are never found, where what a user had before is not ranked.

        Raises:
            ValueError: if all of a part are.
        """
        for name, part in (("validation", self.validation), ("test", self.test)):
            lost = int(part.had_before(histories).sum())
            if lost == len(part):
                raise ValueError(
                    f"keep_seen is False but every next item of {name} is one that its user had before, and those are not "
                    "ranked: set --keep_seen."
                )
            if lost:
                logger.warning("%s of %s next items of %s are ones that their users had before: they are not ranked, so they "
                               "are never found. --keep_seen ranks them", f"{lost:,}", f"{len(part):,}", name)  # fmt: skip


def leave_one_out(histories: Histories) -> Split:
    """The last item of each user is the test, the one before it validation.

    Users with fewer than three are trained on, and not scored.

    Raises:
        ValueError: if no user has three.
    """
    starts, ends = histories.offsets[:-1], histories.offsets[1:]
    scored = np.flatnonzero(ends - starts >= 3)
    if not len(scored):
        raise ValueError(
            "No user has three items, one to train on, one to validate and one to test: give longer histories."
        )
    if len(scored) < len(starts):
        logger.info("%s of %s users have fewer than three items, so they are trained on and not scored",
                    f"{len(starts) - len(scored):,}", f"{len(starts):,}")  # fmt: skip
    train_ends = ends.copy()
    train_ends[scored] -= 2
    parts = [Targets(scored, starts[scored], ends[scored] - back) for back in (2, 1)]
    return Split(train_ends, *parts)


def global_time(histories: Histories, share: float) -> Split:
    """The last ``share`` of all interactions is the test, the same share before it validation: all train on the same past.

    Scored is the first item of a user in each of the two periods, if it has one before.

    Raises:
        ValueError: if there are no times, or a part is empty.
    """
    if histories.times is None:
        raise ValueError("split is 'global_time' but lines of text have no times: give a table, or use leave_one_out.")
    ordered = np.sort(histories.times)
    first, second = (ordered[int(len(ordered) * (1 - parts * share))] for parts in (2, 1))
    starts, ends = histories.offsets[:-1], histories.offsets[1:]
    train_ends, places = (
        starts + counts_between(histories.times < time, histories.offsets) for time in (first, second)
    )
    scored = []
    for where, until in ((train_ends, places), (places, ends)):
        users = np.flatnonzero((where > starts) & (where < until))
        scored.append(Targets(users, starts[users], where[users]))
    for name, part in zip(("validation", "test"), scored, strict=True):
        logger.info("%s: %s users; %s with an item in its time and none before are left out", name, f"{len(part):,}",
                    f"{int(((where == starts) & (where < until)).sum()):,}")  # fmt: skip
        if not len(part):
            raise ValueError(
                f"test_share is {share} but no user has an item in the time of {name} and one before: choose another one."
            )
    return Split(train_ends, *scored)


class HistoryRows(torch.utils.data.Dataset):
    """Rows of token ids of different lengths, out of one array: `datasets` takes longer to read one than a step to train on it.

    Args:
        ids: of all rows one after the other.
        offsets: where each row begins and the last one ends.
        labels: one for each id, if the targets are given.
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray, labels: np.ndarray | None = None):
        self.columns = {"input_ids": ids} if labels is None else {"input_ids": ids, "labels": labels}
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        span = slice(self.offsets[row], self.offsets[row + 1])
        return {name: values[span] for name, values in self.columns.items()}

    def target_counts(self, size: int, task: str) -> torch.Tensor:
        """``(size,)`` int64, how often each id can be a target: anywhere (mlm), or anywhere but first (clm)."""
        ids = self.columns["input_ids"]
        found = np.delete(ids, self.offsets[:-1]) if task == "clm" else ids
        return torch.from_numpy(np.bincount(found, minlength=size))


def training_rows(histories: Histories, split: Split, first_id: int, max_seq_length: int) -> HistoryRows:
    """One row for each user, the most recent ``max_seq_length`` items of its training part.

    A single item has nothing to predict, and gives no row.

    Args:
        histories: of all users.
        split: what is trained on.
        first_id: token id of the first item.
        max_seq_length: items in a row at most.

    Raises:
        ValueError: if no user has two items.
    """
    starts = np.maximum(histories.offsets[:-1], split.train_ends - max_seq_length)
    lengths = split.train_ends - starts
    used = lengths >= 2
    if not used.any():
        raise ValueError("No user has two items to train on: give longer histories.")
    if not used.all():
        unused, users = f"{int((~used).sum()):,}", f"{len(used):,}"
        logger.info("%s of %s users have fewer than two items to train on, so they give no row", unused, users)
    return HistoryRows(*_taken(histories, starts[used], lengths[used], first_id))


def validation_rows(
    histories: Histories, targets: Targets, first_id: int, max_seq_length: int, mask_id: int | None = None
) -> HistoryRows:
    """Histories with their next item, which alone has a label: what the loss of an evaluation is of.

    Args:
        histories: of all users.
        targets: the next items.
        first_id: token id of the first item.
        max_seq_length: items in a row at most, the next one included.
        mask_id: stands in place of the next item (mlm). Without it the item itself does (clm).
    """
    ends = targets.places + 1
    starts = np.maximum(targets.starts, ends - max_seq_length)
    order = np.argsort(ends - starts, kind="stable")  # those of one length together, which costs no padding
    starts, ends = starts[order], ends[order]
    ids, offsets = _taken(histories, starts, ends - starts, first_id)
    last = offsets[1:] - 1
    labels = np.full_like(ids, -100)
    labels[last] = ids[last]
    if mask_id is not None:
        ids[last] = mask_id
    return HistoryRows(ids, offsets, labels)


def _taken(
    histories: Histories, starts: np.ndarray, lengths: np.ndarray, first_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of parts of the histories, int32, one after the other, and where each begins and the last ends."""
    places, offsets = _spans(starts, lengths)
    return (histories.ids[places] + first_id).astype(np.int32), offsets


def _spans(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of several parts one after the other, and where each of them begins among those and the last one ends."""
    offsets = np.append(0, lengths.cumsum())
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1]), offsets
