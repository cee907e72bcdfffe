"""Seconds of a fine-tuning epoch: `ClassificationTrainer` beside the way of transformers' own run_glue.py.

That way pads every row to --max_seq_length and hands the rows to a plain `Trainer`. Both train the same random BERT-small on
the same rows, a whole epoch each time, in turn:

    python benchmarks/glue.py --data_dir data --tasks cola sst2

Without --data_dir the rows are random words, as long as those of COLA (11 tokens a row on average, geometrically spread).
"""

import argparse
import copy
import statistics
import tempfile
import time

import datasets
import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    default_data_collator,
)

from headless_trainer.corpus.tokenization import train_tokenizer
from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.fine_tuning.classification_rows import encode_rows
from headless_trainer.fine_tuning.classifiers import agree_on_tokens
from headless_trainer.fine_tuning.glue_arguments import GlueTrainingArguments
from headless_trainer.fine_tuning.tasks import load_task, select_tasks


def random_rows(rows: int) -> Dataset:
    generator = np.random.default_rng(0)
    words = [f"word{index}" for index in range(2000)]
    texts = [" ".join(generator.choice(words, size)) for size in generator.geometric(1 / 9, size=rows)]
    return Dataset.from_dict({"texts": [[[text]] for text in texts], "label": generator.integers(2, size=rows)})


def run_glue_rows(rows: Dataset, tokenizer, max_seq_length: int) -> Dataset:
    """Rows as the text-classification example of transformers makes them with its defaults: padded to the maximum."""

    def encode(examples: dict) -> dict:
        segments = zip(*(candidates[0] for candidates in examples["texts"]), strict=True)
        found = tokenizer(*map(list, segments), padding="max_length", max_length=max_seq_length, truncation=True)
        return found | {"label": examples["label"]}

    return rows.map(encode, batched=True, remove_columns=rows.column_names)


def trainers(rows: Dataset, tokenizer, options: argparse.Namespace, folder: str) -> dict[str, Trainer]:
    """Both ways on the same rows and the same random weights."""
    config = BertConfig(
        vocab_size=options.vocab_size,
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=2048,
    )
    agree_on_tokens(tokenizer, config)
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    args = GlueTrainingArguments(
        folder,
        per_device_train_batch_size=32,
        num_train_epochs=1,
        logging_strategy="no",
        disable_tqdm=True,
    )
    args.eval_strategy = "no"  # only the training run is timed
    encoded = encode_rows(rows, tokenizer, config, max_seq_length=options.max_seq_length)
    padded = run_glue_rows(rows, tokenizer, options.max_seq_length)
    return {
        "ours": ClassificationTrainer(
            copy.deepcopy(model),
            copy.copy(args),
            loss="cross_entropy",
            train_dataset=encoded,
            processing_class=tokenizer,
        ),
        "transformers, padded to the maximum": Trainer(
            copy.deepcopy(model), copy.copy(args), train_dataset=padded, data_collator=default_data_collator
        ),
    }


def measure(ways: dict[str, Trainer], repeats: int) -> dict[str, list[float]]:
    """Seconds of each epoch, the ways in turn, after a warm-up of a few steps."""
    for trainer in ways.values():
        for callback in (PrinterCallback, ProgressCallback):
            trainer.pop_callback(callback)
        trainer.args.max_steps = 3
        trainer.train()
        trainer.args.max_steps = -1
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, trainer in ways.items():
            start = time.perf_counter()
            trainer.train()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", help="Folder with <task>/<split>.jsonl. Random words by default.")
    parser.add_argument("--tasks", nargs="+", default=["cola", "sst2"])
    parser.add_argument("--max_train_samples", type=int, default=1024, help="Rows of an epoch; 0 for all.")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--vocab_size", type=int, default=32_000)
    parser.add_argument("--repeats", type=int, default=3, help="Timed epochs of each way; the median counts.")
    options = parser.parse_args()
    datasets.disable_progress_bars()
    names = options.tasks if options.data_dir else ["random words"]
    print(f"{'task':14}{'way':38}{'rows':>8}{'seconds an epoch: median (range)':>36}{'ratio':>8}")
    for name in names:
        rows = random_rows(options.max_train_samples or 8551)
        if options.data_dir:
            rows = load_task(select_tasks([name])[0], data_dir=options.data_dir)[0].shuffle(seed=0)
            rows = rows.select(range(min(options.max_train_samples or len(rows), len(rows))))
        with tempfile.TemporaryDirectory() as folder:
            texts = (" ".join(candidates[0]) for candidates in rows["texts"])
            train_tokenizer(texts, kind="wordpiece", vocab_size=options.vocab_size, task="mlm").save_pretrained(folder)
            ways = trainers(rows, AutoTokenizer.from_pretrained(folder), options, folder)
            seconds = measure(ways, options.repeats)
        first = statistics.median(seconds["ours"])
        for way, found in seconds.items():
            middle = statistics.median(found)
            spread = f"{middle:.1f} ({min(found):.1f} to {max(found):.1f})"
            print(f"{name:14}{way:38}{len(rows):>8,}{spread:>36}{middle / first:>8.2f}")


if __name__ == "__main__":
    main()
