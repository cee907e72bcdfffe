"""What a trained model of items is used for: the best items of users, and vectors that an index of inner products serves.

Letters used in shapes: U users, I items, D width.
"""

import json
import logging
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from ..runtime.checkpoints import whole_file, write_whole
from .histories import Histories
from .ranking import Ranker, batches
from .splits import Targets

logger = logging.getLogger(__name__)

ITEMS_AT_ONCE = 2**16


def known(histories: Histories, items: list[str]) -> Histories:
    """The histories with the items of a model alone; what is left out is said.

    Raises:
        ValueError: if nothing is left.
    """
    found = histories.with_items(np.array(items, dtype=object))
    missing = len(histories.ids) - len(found.ids)
    if not len(found.ids):
        raise ValueError(
            f"history_file names no item that the model knows, {str(histories.items[0])!r} for one: check item_column and "
            "lines_begin_with, and that the names are those of training."
        )
    if missing:
        logger.warning("%s of %s interactions are with items that the model does not know: they are left out",
                       f"{missing:,}", f"{len(histories.ids):,}")  # fmt: skip
    if len(found.users) < len(histories.users):
        lost = sorted(set(histories.users) - set(found.users))
        logger.warning("%s users are left without an item and are left out, %r for one", f"{len(lost):,}", lost[0])
    return found


def _whole(histories: Histories) -> Targets:
    """All that each user had, for the item that comes after it."""
    return Targets(np.arange(len(histories.users)), histories.offsets[:-1], histories.offsets[1:])


def write_best(
    path: str | Path, ranker: Ranker, items: list[str], histories: Histories, tau: float, k: int, **options
) -> None:
    """One line of JSON for each user: its best ``k`` items and their scores, fewer where the catalogue holds no more.

    Held at once are a batch of users and a part of the catalogue; ``options`` are those of `batches`.
    """
    with whole_file(Path(path)) as aside, aside.open("w", encoding="utf-8") as file:
        for rows, queries, left_out in batches(ranker, histories, _whole(histories), by_length=False, **options):
            scores, found = (each.cpu().numpy() for each in ranker.top(queries, left_out, tau, k))
            for row, own, ids in zip(rows, scores, found, strict=True):
                ids, own = ids[own > -np.inf] - ranker.first_id, own[own > -np.inf]
                line = {"user": histories.users[row], "items": [items[place] for place in ids], "scores": own.tolist()}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def item_vectors(ranker: Ranker) -> np.ndarray:
    """``(I, D + 1)`` float32: the vector of each item, and its log q."""
    parts = []
    for ids in torch.arange(ranker.first_id, len(ranker.log_q), device=ranker.log_q.device).split(ITEMS_AT_ONCE):
        parts.append(torch.cat([ranker.vectors(ids), ranker.log_q[ids, None]], 1).cpu().numpy())
    return np.concatenate(parts)


def query_vectors(ranker: Ranker, histories: Histories, tau: float, batch_size: int) -> np.ndarray:
    """``(U, D + 1)`` float32: the output for each user, and tau: the inner product with an item's vector is its score."""
    parts = batches(ranker, histories, _whole(histories), keep_seen=True, batch_size=batch_size, by_length=False)
    found = np.concatenate([queries.cpu().numpy() for _, queries, _ in parts])
    return np.pad(found, ((0, 0), (0, 1)), constant_values=tau)


def write_vectors(
    folder: str | Path, ranker: Ranker, items: list[str], histories: Histories | None, tau: float, batch_size: int
) -> None:
    """``item_vectors`` and ``query_vectors``, each as .npy and .safetensors, and their names in the same order as .json."""
    folder = Path(folder)
    parts = {"item": (item_vectors(ranker), items)}
    if histories is not None:
        parts["query"] = query_vectors(ranker, histories, tau, batch_size), histories.users
    for name, (vectors, names) in parts.items():
        with whole_file(folder / f"{name}_vectors.npy") as aside, aside.open("wb") as file:
            np.save(file, vectors)
        with whole_file(folder / f"{name}_vectors.safetensors") as aside:
            save_file({f"{name}_vectors": vectors}, aside)
        write_whole(
            folder / f"{name}_names.json", json.dumps([str(each) for each in names], ensure_ascii=False).encode()
        )
