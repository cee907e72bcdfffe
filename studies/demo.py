#!/usr/bin/env python
"""What a headless decoder knows the moment its pretraining ends: `make demo` runs this after `run_pretrain.py`.

    python studies/demo.py demo

Scores the held-out documents with the free language-modelling head, beside a unigram model and the same network untrained;
saves an ordinary causal language model; writes a sample of its text. Then trains the same network with a vocabulary head, on
the same rows for the same time, and draws both. The first argument is the preset or the file that the run was made with.
"""

import json
import logging
import math
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import torch
from datasets import disable_progress_bars
from shared import held_out_points
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, set_seed
from transformers.utils import logging as transformers_logging

from headless_trainer import HeadlessTrainingArguments, attach_lm_head, load_token_counts
from headless_trainer.arguments import DataArguments, ModelArguments
from headless_trainer.cli import make_lm_head
from headless_trainer.command_line import parse_args
from headless_trainer.corpus.packing import first_rows, tokenize_and_pack
from headless_trainer.corpus.texts import load_texts
from headless_trainer.objective.prior import log_prior
from headless_trainer.pictures import Panel, Series, curves, to_png

# The best way with a vocabulary head that we know, at the best of the rates 8e-3, 16e-3 and 32e-3 for this preset; an untied
# head is worse after so few steps.
VANILLA = [
    *("--objective", "vanilla", "--tie_word_embeddings", "true", "--head_bias", "prior"),
    *("--learning_rate", "16e-3", "--muon_learning_rate", "32e-3"),
]
PROBE_STEPS = 6
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

    if not (folder / "lm" / "model.safetensors").is_file():
        make_lm_head.main(["--model_name_or_path", str(folder), "--output_dir", str(folder / "lm")])
    model = AutoModelForCausalLM.from_pretrained(folder / "lm")
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
    vanilla = train_vanilla(sys.argv[1], folder, totals["train_seconds"])
    end = held_out_points(vanilla)[-1]
    figures["with a vocabulary head, after the same time"] = end["eval_cross_entropy"]
    draw({"headless, scored with the free head": folder, "with a vocabulary head": vanilla}, folder / "comparison.png")
    print_screen(folder, totals, figures, sample)


def train_vanilla(preset: str, folder: Path, seconds: float) -> Path:
    """Train the network with a vocabulary head for ``seconds`` of training steps; the folder of that run.

    How many steps those are is measured first, so that the learning rate comes down within the time, as that of headless does.
    """
    result, probe = folder.with_name(f"{folder.name}_vanilla"), folder.with_name(f"{folder.name}_vanilla_probe")
    if (result / "eval_results.json").is_file():
        return result
    command = [sys.executable, "run_pretrain.py", preset, *VANILLA, "--save_strategy", "no"]
    command += ["--train_tokenizer", "false", "--tokenizer_name", str(folder)]
    command += ["--vocab_size", str(ModelArguments.vocab_size)]  # the default: no tokenizer is trained
    print("\nThe same network with a vocabulary head: a few steps to measure, then as long as headless.\n", flush=True)
    quick = ["--max_steps", str(PROBE_STEPS), "--logging_steps", "1", "--do_eval", "false", "--eval_strategy", "no"]
    subprocess.run([*command, *quick, "--output_dir", str(probe)], check=True, stdout=subprocess.DEVNULL)
    logs = json.loads((probe / "trainer_state.json").read_text())["log_history"]
    paces = sorted(entry["tokens_per_second"] for entry in logs if "tokens_per_second" in entry)
    tokens_a_step = max(entry.get("tokens_seen", 0) for entry in logs) / PROBE_STEPS
    shutil.rmtree(probe)
    steps = max(5, round(seconds * paces[len(paces) // 2] / tokens_a_step))
    subprocess.run([*command, "--max_steps", str(steps), "--output_dir", str(result)], check=True)
    return result


def draw(runs: dict[str, Path], path: Path) -> None:
    """Held-out perplexity of runs against the time of their training steps."""
    series = []
    for label, folder in runs.items():
        totals = load_token_counts(folder)[1]
        points = held_out_points(folder, totals["tokens_seen"] / totals["train_seconds"])
        perplexities = [math.exp(point["eval_cross_entropy"]) for point in points]
        series.append(Series([point["seconds"] for point in points], perplexities, "o-", label=label))
    axis = {"xlabel": "seconds of training steps", "ylabel": "held-out perplexity", "yscale": "log"}
    path.write_bytes(to_png(curves([Panel(series, **axis)], size=(6, 4))))


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
    print(f"\nPretrained without a vocabulary head: {tokens / 1e6:.1f} M tokens in {seconds:,.0f} s of steps.\n")
    print(f"{'held-out perplexity of':<48} {'perplexity':>12} {'nats':>7}")
    for name, nats in figures.items():
        print(f"  {name:<46} {math.exp(nats):>12,.0f} {nats:>7.3f}")
    print(f"\n{textwrap.shorten(sample, 230)}\n")
    print(f"{folder}/             the trunk: AutoModel.from_pretrained, no head")
    print(f"{folder}/lm/          with the free head: an ordinary causal language model")
    print(f"{folder}/loss.png     training loss, its floor, held-out accuracy")
    print(f"{folder}/comparison.png  held-out perplexity of both against time")
    print(f"{folder}/sample.txt   text it wrote\n")
    print("Next: your own text, for longer, on your own accelerator")
    print(f"  python run_pretrain.py demo --train_file 'corpus/*.txt' \\\n    --output_dir {folder.parent}/mine")


if __name__ == "__main__":
    sys.exit(main())
