"""The best items for users, by a model that `headless-trainer items` trained, or its vectors for an index.

    headless-trainer recommend --model_name_or_path runs/items --history_file histories.parquet --output_file best.jsonl
    headless-trainer recommend --model_name_or_path runs/items --history_file new.txt --top_k 99 --tau 0.5 --output_file a.jsonl
    headless-trainer recommend --model_name_or_path runs/items --vectors_dir runs/items-vectors --history_file histories.parquet

A line of the output is {"user": ..., "items": [...], "scores": [...]}. The vectors are [E, log q] for each item and [o, tau]
for each user, so that one inner product is the score: any index of inner products serves them. Items that a user had before
are left out of the list, and are not known to an index.
"""

import logging

from ..runtime.signals import ended_by_signals

logger = logging.getLogger("headless_trainer")


@ended_by_signals("The same command starts anew")
def main(argv: list[str] | None = None) -> None:
    from ..command_line import errors_in_one_line, importing, parse_args, show_usage

    show_usage(__doc__, argv)
    with importing():
        from ..items.item_arguments import RecommendArguments

    with errors_in_one_line(ValueError, OSError):
        (arguments,) = parse_args([RecommendArguments], argv)
        recommend(arguments)


def recommend(arguments) -> None:
    from ..items import vectors
    from ..items.catalogue import load_ranker
    from ..items.histories import read_histories
    from ..runtime.run_folder import start_logging

    start_logging()
    ranker, items, tau = load_ranker(arguments.model_name_or_path)
    tau = tau if arguments.tau is None else arguments.tau
    check_outputs(arguments)
    histories = None
    if arguments.history_file:
        histories = read_histories("history_file", arguments.history_file, **arguments.columns())
        histories = vectors.known(histories, items)
    if arguments.output_file:
        options = {"keep_seen": arguments.keep_seen, "batch_size": arguments.batch_size}
        vectors.write_best(arguments.output_file, ranker, items, histories, tau, arguments.top_k, **options)
        logger.info(
            "saved in %s: the best %s items of %s users",
            arguments.output_file,
            arguments.top_k,
            f"{len(histories.users):,}",
        )
    if arguments.vectors_dir:
        vectors.write_vectors(arguments.vectors_dir, ranker, items, histories, tau, arguments.batch_size)
        logger.info("saved in %s: vectors of %s items", arguments.vectors_dir, f"{len(items):,}")


def check_outputs(arguments) -> None:
    """Refuse files and folders that cannot be written, or that would replace what is read, before anything is scored.

    Raises:
        ValueError: if ``output_file`` is a folder or a file of histories.
        PermissionError: if one cannot be written to.
    """
    from pathlib import Path

    from ..corpus.texts import expand
    from ..runtime.checkpoints import check_writable

    if arguments.output_file:
        path = Path(arguments.output_file)
        if path.is_dir():
            raise ValueError(f"output_file {arguments.output_file!r} is a folder: name a file in it.")
        read = [file for name in arguments.history_file for file in expand("history_file", name)]
        if path.exists() and any(path.samefile(file) for file in read):
            raise ValueError(f"output_file {arguments.output_file!r} is a file of history_file: name another one.")
        check_writable(path.parent, "output_file: the folder")
    if arguments.vectors_dir:
        check_writable(arguments.vectors_dir, "vectors_dir")


if __name__ == "__main__":
    main()
