#!/usr/bin/env python
"""Make an ordinary causal language model of a headless decoder, without training.

    python run_lm_head.py --model_name_or_path runs/decoder --output_dir runs/decoder-lm
    python run_lm_head.py --model_name_or_path someone/headless --train_file corpus.txt --output_dir lm

The head is E^T + log q, q being how often each token was a target in the pretraining: the counts saved beside the checkpoint,
or those of a corpus named with --train_file or --dataset_name. The folder it writes generates and scores in every client.
To train it further: python run_pretrain.py --objective vanilla --model_name_or_path runs/decoder-lm ...
"""

import logging
import sys
from dataclasses import dataclass, field
from typing import Literal

logger = logging.getLogger("headless_trainer")


@dataclass
class HeadArguments:
    """How the head is made, and where the language model goes."""

    output_dir: str = field(metadata={"help": "Folder to write; it must not hold a model yet."})
    init: Literal["prior", "embeddings"] = field(
        default="prior",
        metadata={"help": "prior: E^T + log q. embeddings: E^T alone, to fine-tune from as the paper does."},
    )
    smoothing: float = field(
        default=1.0,
        metadata={"help": "Added to every token's count, so that a token never seen keeps a small probability."},
    )


def main(argv: list[str] | None = None) -> None:
    from headless_trainer.arguments import DataArguments, ModelArguments, parse_args

    try:
        make_language_model(*parse_args([ModelArguments, DataArguments, HeadArguments], argv))
    except (ValueError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


def make_language_model(model_args, data_args, args) -> None:
    from transformers import AutoModel

    from headless_trainer import attach_lm_head, data, load_token_counts, loading, texts
    from headless_trainer.checkpoints import check_output_dir

    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO)
    check_output_dir(args.output_dir, None)
    if model_args.model_name_or_path is None:
        raise ValueError("model_name_or_path is not given: name the headless checkpoint to make a language model of.")
    tokenizer = loading.load_tokenizer(model_args)
    options = loading.hub_arguments(model_args)
    trunk = AutoModel.from_pretrained(model_args.model_name_or_path, **options)
    counts = None
    if args.init == "prior" and (data_args.train_file or data_args.dataset_name):
        documents = texts.load_texts(data_args, cache_dir=model_args.cache_dir, token=model_args.token)["train"]
        rows = data.tokenize_and_pack(documents, tokenizer, max_seq_length=data_args.max_seq_length)
        embeddings = trunk.get_input_embeddings().num_embeddings
        data.check_token_ids(rows, embeddings, tokenizer)
        counts = data.token_counts(rows, embeddings)
    elif args.init == "prior":
        counts, _ = load_token_counts(model_args.model_name_or_path)
    model = attach_lm_head(trunk, counts, init=args.init, smoothing=args.smoothing)
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    logger.info("saved in %s: %s, an ordinary causal language model", args.output_dir, type(model).__name__)


if __name__ == "__main__":
    main()
