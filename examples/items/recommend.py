#!/usr/bin/env python
"""The best items for users, by a model that train.py trained, or its vectors for an index.

    python examples/items/recommend.py --model_name_or_path runs/items \\
        --history_file histories.parquet --output_file best.jsonl

A line of the output is {"user": ..., "items": [...], "scores": [...]}. The vectors are [E, log q]
for each item and [o, tau] for each user, so that one inner product is the score: any index of
inner products serves them.
"""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from histories import FIRST_ID, FileArguments, read_interactions, token_ids
from ranking import USERS_AT_ONCE, best_items, outputs
from transformers import AutoModel, HfArgumentParser


@dataclass
class RecommendArguments(FileArguments):
    """Whose best items are listed, and where they are written."""

    model_name_or_path: str = field(default="", metadata={"help": "Folder that train.py wrote."})
    history_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Users and what they had, in the formats of train.py."},
    )
    output_file: Path | None = field(
        default=None, metadata={"help": "New file, with one line of JSON for each user."}
    )
    vectors_dir: Path | None = field(
        default=None, metadata={"help": "Folder for the vectors of items and users."}
    )
    top_k: int = field(default=10, metadata={"help": "Items for each user."})
    tau: float | None = field(
        default=None,
        metadata={
            "help": (
                "Weight of log q: less for rarer items, more for popular ones. By default the "
                "model's."
            )
        },
    )
    keep_seen: bool = field(
        default=False, metadata={"help": "List items that the user had before too."}
    )


def load(folder: str) -> tuple:
    """The trunk, ``(V,)`` log q, the names of the items and tau. A model with a head is read
    without it, since it is tied.
    """
    saved = json.loads(Path(folder, "items.json").read_text(encoding="utf-8"))
    if saved.get("positions") != "from the end":
        raise SystemExit(
            f"model_name_or_path {folder!r} counts positions from the start of a history: train "
            "it again."
        )
    trunk = AutoModel.from_pretrained(folder).to("cuda" if torch.cuda.is_available() else "cpu")
    return trunk, torch.from_numpy(np.load(Path(folder, "log_q.npy"))), saved["items"], saved["tau"]


def write_vectors(
    folder: Path, trunk, log_q, items: list[str], users: list[str], histories, tau: float
) -> None:
    """``item_vectors.npy``, ``query_vectors.npy`` and their names in the same order as .json."""
    batches = range(0, len(users), USERS_AT_ONCE)
    queries = np.concatenate(
        [
            outputs(trunk, histories[start : start + USERS_AT_ONCE]).cpu().numpy()
            for start in batches
        ]
    )
    vectors = trunk.get_input_embeddings().weight.detach().float().cpu().numpy()
    parts = {
        "item": (np.column_stack([vectors, log_q.numpy()])[FIRST_ID:], items),
        "query": (np.pad(queries, ((0, 0), (0, 1)), constant_values=tau), users),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (array, names) in parts.items():
        np.save(folder / f"{name}_vectors.npy", array)
        (folder / f"{name}_names.json").write_text(
            json.dumps(names, ensure_ascii=False), encoding="utf-8"
        )


def main(argv: list[str] | None = None) -> None:
    parser = HfArgumentParser(RecommendArguments, description=__doc__.partition("\n")[0])
    (arguments,) = parser.parse_args_into_dataclasses(argv)
    for name in ("model_name_or_path", "history_file"):
        if not getattr(arguments, name):
            parser.error(f"{name} is not given")
    if not (arguments.output_file or arguments.vectors_dir):
        parser.error("neither output_file nor vectors_dir is given: name what is to be written")
    if arguments.output_file and arguments.output_file.exists():
        parser.error(f"output_file {arguments.output_file} exists: name a new one")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    trunk, log_q, items, tau = load(arguments.model_name_or_path)
    tau = tau if arguments.tau is None else arguments.tau
    users, histories = token_ids(read_interactions(arguments.history_file, arguments), items)
    if arguments.vectors_dir:
        write_vectors(arguments.vectors_dir, trunk, log_q, items, users, histories, tau)
    if arguments.output_file:
        with arguments.output_file.open(
            "x", encoding="utf-8"
        ) as file:  # nothing that is there is replaced
            lists = best_items(
                trunk, log_q, histories, tau, arguments.top_k, keep_seen=arguments.keep_seen
            )
            for user, (ids, scores) in zip(users, lists, strict=True):
                names = [items[place] for place in ids - FIRST_ID]
                file.write(
                    json.dumps(
                        {"user": user, "items": names, "scores": scores.tolist()},
                        ensure_ascii=False,
                    )
                    + "\n"
                )


if __name__ == "__main__":
    main()
