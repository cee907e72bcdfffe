#!/usr/bin/env python
"""What a headless decoder knows the moment its pretraining ends: `make demo` runs this after `run_pretrain.py`.

    python studies/demo.py demo

Scores the held-out documents with the free language-modelling head, beside a unigram model and the same network untrained;
saves an ordinary causal language model; writes a sample of its text. The first argument is the preset or the file that the run
was made with.
"""

import logging
import math
import sys
import textwrap
from pathlib import Path

import torch
from datasets import disable_progress_bars
from transformers import AutoConfig, AutoModel, AutoTokenizer, set_seed
from transformers.utils import logging as transformers_logging

from headless_trainer import HeadlessTrainingArguments, attach_lm_head, load_token_counts
from headless_trainer.arguments import DataArguments, LMHeadArguments, ModelArguments
from headless_trainer.cards.model_card import write_head_card
from headless_trainer.command_line import parse_args
from headless_trainer.corpus.packing import first_rows, tokenize_and_pack
from headless_trainer.corpus.texts import load_texts
from headless_trainer.objective.prior import log_prior

PROMPTS = ("Return the", "The function", "This module provides")


def main() -> None:
    logging.disable(logging.WARNING)
    disable_progress_bars()
    transformers_logging.disable_progress_bar()
    _, data_args, args = parse_args([ModelArguments, DataArguments, HeadlessTrainingArguments])
    folder = Path(args.output_dir)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    counts, totals = load_token_counts(folder)
    texts = load_texts(data_args)["validation"]
    rows = first_rows(
        tokenize_and_pack(texts, tokenizer, max_seq_length=data_args.max_seq_length), data_args.max_eval_samples
    )
    ids = torch.tensor(rows["input_ids"][:], dtype=torch.long)

    model = attach_lm_head(folder)
    model.save_pretrained(folder / "lm")
    tokenizer.save_pretrained(folder / "lm")
    head_args = LMHeadArguments(str(folder / "lm"), report_to="none")
    write_head_card(
        model, tokenizer, ModelArguments(model_name_or_path=str(folder)), data_args, head_args, has_prior=True
    )
    set_seed(args.seed)
    untrained = attach_lm_head(AutoModel.from_config(AutoConfig.from_pretrained(folder)), folder)

    unigram = -log_prior(counts)[ids[:, 1:]].mean().item()
    figures = {
        "a guess among all tokens": math.log(len(counts)),
        "token frequencies alone (unigram)": unigram,
        "this network, untrained, with the free head": cross_entropy(untrained, ids),
        "this network, trained, projected on E^T alone": cross_entropy(attach_lm_head(folder, init="embeddings"), ids),
        "this network, trained, with the free head": cross_entropy(model, ids),
    }
    sample = write_sample(model, tokenizer, folder / "sample.txt")
    print_screen(folder, totals, figures, sample)


@torch.no_grad()
def cross_entropy(model, ids: torch.Tensor) -> float:
    """Mean over all next tokens of ``(B, T)`` ids, in nats."""
    losses = [model(input_ids=rows, labels=rows).loss * len(rows) for rows in ids.split(8)]
    return (torch.stack(losses).sum() / len(ids)).item()


def write_sample(model, tokenizer, path: Path) -> str:
    """Greedy and sampled continuations of a few prompts; returns the last one."""
    lines = []
    set_seed(0)
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        for kind, options in (("greedy", {}), ("sampled", {"do_sample": True, "top_p": 0.9, "temperature": 0.8})):
            output = model.generate(**inputs, max_new_tokens=40, **options)
            lines.append(f"{kind:8} {tokenizer.decode(output[0], skip_special_tokens=True)!r}")
    path.write_text("\n".join(lines) + "\n")
    return lines[-1]


def print_screen(folder: Path, totals: dict[str, float], figures: dict[str, float], sample: str) -> None:
    tokens, seconds = totals["tokens_seen"], totals["train_seconds"]
    print(
        f"\nPretrained without a vocabulary head: {tokens / 1e6:.1f} M tokens in {seconds:,.0f} s of training steps.\n"
    )
    print(f"{'held-out perplexity of':<48} {'perplexity':>12} {'nats':>7}")
    for name, nats in figures.items():
        print(f"  {name:<46} {math.exp(nats):>12,.0f} {nats:>7.3f}")
    print(f"\n{textwrap.shorten(sample, 230)}\n")
    print(f"{folder}/             the trunk: AutoModel.from_pretrained, no head")
    print(f"{folder}/lm/          with the free head: an ordinary causal language model")
    print(f"{folder}/loss.png     training loss, its floor, held-out accuracy")
    print(f"{folder}/sample.txt   text it wrote\n")
    print("Next: your own text, for longer, on your own accelerator")
    print(f"  python run_pretrain.py demo --train_file 'corpus/*.txt' \\\n    --output_dir {folder.parent}/mine")


if __name__ == "__main__":
    sys.exit(main())
