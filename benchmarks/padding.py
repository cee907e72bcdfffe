"""Padding of rows of one document each, and what it costs: rows as they come, by length, and shared by several documents.

    python benchmarks/padding.py --train_file texts.txt.gz --max_seq_length 128
    python benchmarks/padding.py --data_dir data --tasks cola sst2

The first one times optimizer steps of `--line_by_line` pretraining on the same documents in three ways: batches of
``--batch_size`` documents in random order (the default), by length (`--train_sampling_strategy group_by_length`) and in shared
rows (`--isolate_documents`), so many of them that a batch has as many documents on average. The ways take turns in each
round, and what is compared is the time for a token that is not padding. Without --train_file the documents are random words,
as long as English paragraphs. The second one gives the share of padding in fine-tuning, where batches are always by length.
"""

import argparse
import logging
import platform
import statistics
import tempfile
import time

import numpy as np
import torch
import transformers
from datasets import Dataset
from step import MODELS, config_of
from transformers import AutoModel, BertConfig

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments
from headless_trainer.arguments import DataArguments
from headless_trainer.corpus.collator import PaddingCollator
from headless_trainer.corpus.packing import tokenize_and_pack
from headless_trainer.corpus.row_order import SimilarLengthSampler, longest_first, padding_share, row_lengths
from headless_trainer.corpus.texts import load_texts
from headless_trainer.corpus.tokenization import train_tokenizer
from headless_trainer.fine_tuning.classification_rows import encode_rows
from headless_trainer.fine_tuning.tasks import load_task, select_tasks

RANDOM, BY_LENGTH, SHARED = "random order", "group_by_length", "isolate_documents"


def random_documents(count: int) -> Dataset:
    """Words whose number is spread as that of paragraphs: many short ones, a few long ones."""
    generator = np.random.default_rng(0)
    sizes = np.exp(generator.normal(3.6, 1.0, count)).astype(int).clip(1, 2000)
    return Dataset.from_dict({"text": [" ".join(f"word{i}" for i in generator.integers(2000, size=n)) for n in sizes]})


def batches(args, texts: Dataset, tokenizer, cache_dir: str) -> dict[str, tuple[list[dict], float]]:
    """Batches of the same documents, and the share of their positions that is padding, for each way."""
    settings = {"max_seq_length": args.max_seq_length, "line_by_line": True, "num_proc": 1, "cache_dir": cache_dir}
    alone = tokenize_and_pack(texts, tokenizer, **settings)
    lengths = row_lengths(alone)
    random_order = np.random.default_rng(0).permutation(len(alone))
    by_length = np.array(list(SimilarLengthSampler(lengths, args.batch_size, 0, lambda: 0)))
    together = tokenize_and_pack(texts, tokenizer, share_rows=True, **settings)
    rows = max(1, round(args.batch_size * len(together) / len(alone)))
    shared_order = np.random.default_rng(0).permutation(len(together))
    ways = {
        RANDOM: (alone, random_order, args.batch_size),
        BY_LENGTH: (alone, by_length, args.batch_size),
        SHARED: (together, shared_order, rows),
    }
    collate, made = PaddingCollator(tokenizer), {}
    for name, (dataset, order, size) in ways.items():
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        stacked = [collate([dataset[int(index)] for index in part]) for part in parts]
        made[name] = stacked, padding_share(row_lengths(dataset)[order], size)
    return made


def trainer_for(args, name: str, tokenizer, folder: str) -> HeadlessTrainer:
    torch.manual_seed(0)
    settings = HeadlessTrainingArguments(
        folder, task=MODELS[args.model][0], isolate_documents=name == SHARED, report_to="none", save_strategy="no",
        use_cpu=not torch.cuda.is_available(), optim="adamw_torch_fused",
    )  # fmt: skip
    args.vocab_size = len(tokenizer)
    config = config_of(args)
    config.pad_token_id = tokenizer.pad_token_id
    trainer = HeadlessTrainer(AutoModel.from_config(config), settings, processing_class=tokenizer)
    trainer.create_optimizer()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer.accelerator.gradient_state._set_sync_gradients(True)
    return trainer


def timed(trainer: HeadlessTrainer, some: list[dict]) -> float:
    """Seconds for a token of these batches that is not padding."""
    start = time.perf_counter()
    for batch in some:
        (targets,), _ = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
        trainer.training_step(trainer.model, targets)
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    tokens = sum(
        int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["input_ids"].numel()
        for batch in some
    )
    return (time.perf_counter() - start) / tokens


def pretraining(args, folder: str) -> None:
    texts = (
        random_documents(args.documents)
        if args.train_file is None
        else load_texts(DataArguments(train_file=args.train_file), cache_dir=folder)["train"]
    )
    texts = texts.select(range(min(args.documents, len(texts))))
    task = MODELS[args.model][0]
    kind = "wordpiece" if task == "mlm" else "bpe"
    tokenizer = train_tokenizer(texts, kind=kind, vocab_size=args.tokens, task=task)
    made = batches(args, texts, tokenizer, folder)
    trainers = {name: trainer_for(args, name, tokenizer, folder) for name in made}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for repeat in range(-1, args.repeats):  # the first one is a warm-up
        for name, (stacked, _) in made.items():
            # Evenly over all batches, whose lengths differ.
            some = stacked[repeat % args.repeats :: max(1, len(stacked) // args.steps)][: args.steps]
            took = timed(trainers[name], some)
            if repeat >= 0:
                seconds[name].append(took)
    tokens = int(
        row_lengths(
            tokenize_and_pack(
                texts, tokenizer, max_seq_length=args.max_seq_length, line_by_line=True, num_proc=1, cache_dir=folder
            )
        ).sum()
    )
    threads = f"{torch.get_num_threads()} threads, {platform.machine()}, torch {torch.__version__}, {transformers.__version__}"
    print(f"{args.model}, {len(texts):,} documents, {tokens:,} tokens, at most {args.max_seq_length} each, {threads}\n")
    print("| rows | a batch | padding | tokens/s | time for a token, over random order, round by round (median) |")
    print("|---|---|---|---|---|")
    for name, (stacked, share) in made.items():
        ratio = statistics.median(a / b for a, b in zip(seconds[name], seconds[RANDOM], strict=True))
        rate = 1 / statistics.median(seconds[name])
        print(f"| {name} | {len(stacked[0]['input_ids'])} | {100 * share:.1f} % | {rate:,.0f} | {ratio:.2f} |")


def fine_tuning(args, folder: str) -> None:
    print(
        "| task | tokens a row | in random order | training, by length | evaluation, longest first | all to the maximum |"
    )
    print("|---|---|---|---|---|---|")
    for task in select_tasks(args.tasks):
        rows = load_task(task, data_dir=args.data_dir)[0]
        texts = (" ".join(candidates[0]) for candidates in rows["texts"])
        tokenizer = train_tokenizer(texts, kind="wordpiece", vocab_size=args.tokens, task="mlm")
        lengths = encode_rows(rows, tokenizer, BertConfig(), max_seq_length=args.max_seq_length).lengths
        orders = (
            np.random.default_rng(0).permutation(len(lengths)),
            list(SimilarLengthSampler(lengths, args.batch_size, 0, lambda: 0)),
            longest_first(lengths),
        )
        shares = [padding_share(lengths[order], args.batch_size) for order in orders]
        shares.append(1 - lengths.mean() / args.max_seq_length)
        print(f"| {task.name} | {lengths.mean():.1f} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", help="Texts, a document a line. Random words by default.")
    parser.add_argument("--documents", type=int, default=2000, help="Use this many documents.")
    parser.add_argument("--model", choices=MODELS, default="bert-small")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=32, help="Documents in a batch.")
    parser.add_argument("--tokens", type=int, default=16_000, help="Size of the vocabulary.")
    parser.add_argument("--steps", type=int, default=2, help="Optimizer steps of each way in a round.")
    parser.add_argument("--repeats", type=int, default=5, help="Rounds; the median counts.")
    parser.add_argument("--data_dir", help="Folder with <task>/<split>.jsonl: share of padding in fine-tuning instead.")
    parser.add_argument("--tasks", nargs="+", default=["cola", "sst2"])
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        (fine_tuning if args.data_dir else pretraining)(args, folder)


if __name__ == "__main__":
    main()
