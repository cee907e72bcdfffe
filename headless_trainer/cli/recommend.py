"""The best items for users, by a model that `headless-trainer items` trained, or its vectors for an index.

    headless-trainer recommend --model_name_or_path runs/items --history_file histories.parquet --output_file best.jsonl
    headless-trainer recommend --model_name_or_path runs/items --history_file new.txt --top_k 99 --tau 0.5 --output_file a.jsonl
    headless-trainer recommend --model_name_or_path runs/items --vectors_dir runs/items-vectors --history_file histories.parquet

A line of the output is {"user": ..., "items": [...], "scores": [...]}. The vectors are [E, log q] for each item and [o, tau]
for each user, so that one inner product is the score: any index of inner products serves them. Items that a user had before
are left out of the list, and are not known to an index.
"""

import logging

logger = logging.getLogger("headless_trainer")


def main(argv: list[str] | None = None) -> None:
    from ..command_line import errors_in_one_line, parse_args, show_usage

    show_usage(__doc__, argv)
    from ..items.item_arguments import RecommendArguments

    with errors_in_one_line(ValueError, OSError):
        (arguments,) = parse_args([RecommendArguments], argv)
        recommend(arguments)


def recommend(arguments) -> None:
    from transformers.utils import logging as transformers_logging

    from ..items import vectors
    from ..items.catalogue import load_ranker
    from ..items.histories import read_histories

    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO)
    transformers_logging.disable_progress_bar()
    ranker, items, tau = load_ranker(arguments.model_name_or_path)
    tau = tau if arguments.tau is None else arguments.tau
    histories = None
    if arguments.history_file:
        histories = read_histories("history_file", arguments.history_file, **arguments.columns())
        histories = vectors.known(histories, items)
    if arguments.output_file:
        options = {"keep_seen": arguments.keep_seen, "batch_size": arguments.batch_size}
        vectors.write_best(arguments.output_file, ranker, items, histories, tau, arguments.top_k, **options)
        logger.info(
            "saved in %s: the best %s items of %s users", arguments.output_file, arguments.top_k, len(histories.users)
        )
    if arguments.vectors_dir:
        vectors.write_vectors(arguments.vectors_dir, ranker, items, histories, tau, arguments.batch_size)
        logger.info("saved in %s: vectors of %s items", arguments.vectors_dir, f"{len(items):,}")


if __name__ == "__main__":
    main()
