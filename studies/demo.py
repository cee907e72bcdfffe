#!/usr/bin/env python
"""Run the demo: pretrain a small decoder without a vocabulary head, then the same network with one
for the same time.

    python studies/demo.py --output_dir runs/demo

It takes any flag of `headless-trainer pretrain demo`; without --train_file, the texts are
docstrings found on the machine. Both models are scored on the same held-out documents, headless
with its free head, and plotted. The headless model is saved as an ordinary causal language model
and generates a sample.
"""

import importlib.util
import inspect
import json
import logging
import math
import re
import sys
import sysconfig
import time
import zlib
from pathlib import Path

import torch
from transformers import TrainerCallback, set_seed
from transformers.utils import logging as transformers_logging

from headless_trainer.arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from headless_trainer.cli.training import make_trainer, train
from headless_trainer.command_line import errors_in_one_line, parse_args
from headless_trainer.objective.prior import log_prior
from headless_trainer.presentation.pictures import Panel, Series, draw_panels, to_png
from headless_trainer.presentation.tables import markdown
from headless_trainer.reporting.curves import curves as curves_of

KINDS = [ModelArguments, DataArguments, HeadlessTrainingArguments]
# Our best recipe with a vocabulary head, at the best of the rates 8e-3, 16e-3 and 32e-3 for this
# preset.
VANILLA = [
    *(
        "--objective",
        "vanilla",
        "--tie_word_embeddings",
        "true",
        "--head_bias",
        "prior",
        "--save_strategy",
        "no",
    ),
    *(
        "--learning_rate",
        "16e-3",
        "--muon_learning_rate",
        "32e-3",
        "--lr_scheduler_type",
        "constant",
        "--warmup_steps",
        "0",
    ),
]


# Characters of all docstrings, read in a few seconds, and of the shortest: most shorter ones say
# "Return the name."
CHARACTERS = 6_000_000
LEAST = 100


def docstrings(folder: Path) -> list[str]:
    """Write docstrings of Python, torch and transformers, and return the flags that name the files.

    Source files are read, not imported. Whole folders are held out, since docstrings of one folder
    resemble each other.
    """
    roots = [Path(sysconfig.get_paths()["stdlib"])]
    roots += [
        Path(importlib.util.find_spec(name).origin).parent for name in ("torch", "transformers")
    ]
    sides = {"train": [], "validation": []}
    seen = set()
    size = 0
    for path, place in (
        (path, path.relative_to(root)) for root in roots for path in sorted(root.rglob("*.py"))
    ):
        if size >= CHARACTERS or {"site-packages", "test", "tests"} & {*place.parts}:
            continue
        side = "train" if zlib.crc32(place.parent.as_posix().encode()) % 20 else "validation"
        for text in re.findall(r'"""(.*?)"""', path.read_text("utf-8", "replace"), re.DOTALL):
            text = inspect.cleandoc(text)
            if len(text) >= LEAST and text not in seen:
                seen.add(text)
                size += len(text)
                sides[side].append(json.dumps({"text": text}) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for side, lines in sides.items():
        (folder / f"{side}.jsonl").write_text("".join(lines), encoding="utf-8")
    return [word for side in sides for word in (f"--{side}_file", str(folder / f"{side}.jsonl"))]


class Clock(TrainerCallback):
    """Ends a run after some seconds of training steps; until then its rates rise and fall like
    those of the preset.
    """

    def __init__(self, seconds: float, warmup: float):
        self.seconds = seconds
        self.warmup = warmup
        self.used = 0.0

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        done = self.used / self.seconds
        self.begun = time.perf_counter()
        self.share = done
        factor = min((done + 0.01) / self.warmup, 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def on_step_end(self, args, state, control, **kwargs):
        self.used += time.perf_counter() - self.begun
        control.should_training_stop |= self.used >= self.seconds
        control.should_evaluate |= int(4 * self.used / self.seconds) > int(4 * self.share)


def main(argv: list[str] | None = None) -> None:
    argv = ["demo", *(sys.argv[1:] if argv is None else argv)]
    with errors_in_one_line(ValueError, OSError):
        if not {"train_file", "dataset_name"} & {
            word.partition("=")[0].strip("-").replace("-", "_") for word in argv
        }:
            argv += docstrings(Path("runs", "docstrings"))
        headless = make_trainer(*parse_args(KINDS, argv))
        logging.getLogger("headless_trainer").setLevel(logging.WARNING)
        transformers_logging.set_verbosity_error()
        folder = Path(headless.args.output_dir)
        args = headless.args
        say(f"headless: {args.max_steps} steps of {args.train_batch_size} rows")
        train(headless)
        model = headless.language_model()
        model.save_pretrained(folder / "lm")
        headless.processing_class.save_pretrained(folder / "lm")

        say("with a vocabulary head, for the same time")
        own = [
            "--output_dir",
            f"{folder}_vanilla",
            "--train_tokenizer",
            "false",
            "--tokenizer_name",
            str(folder),
        ]
        steps = [
            "--vocab_size",
            str(ModelArguments.vocab_size),
            "--max_steps",
            str(4 * args.max_steps),
        ]
        vanilla = make_trainer(
            *parse_args(KINDS, [*argv, *VANILLA, *own, *steps, "--eval_strategy", "no"])
        )
        logging.getLogger("headless_trainer").setLevel(logging.WARNING)
        vanilla.add_callback(Clock(headless.window.train_seconds, warmup=0.1))
        train(vanilla)
    draw(
        {"headless, with its free head": headless, "with a vocabulary head": vanilla},
        folder / "comparison.png",
    )
    show(folder, headless, vanilla, model)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def last(trainer, name: str) -> float:
    """Return the value that a run logged last under a name."""
    return next(logs[name] for logs in reversed(trainer.state.log_history) if name in logs)


def draw(trainers: dict, path: Path) -> None:
    """Draw held-out perplexity against the time of training steps."""
    series = []
    for label, trainer in trainers.items():
        end = trainer.state.global_step, trainer.window.tokens_seen, trainer.window.train_seconds
        table = curves_of(trainer.state.log_history, end).dropna(subset=["eval_cross_entropy"])
        series.append(
            Series(
                table["train_seconds"], table["eval_cross_entropy"].map(math.exp), "o-", label=label
            )
        )
    axis = {"xlabel": "seconds of training steps", "ylabel": "held-out perplexity", "yscale": "log"}
    path.write_bytes(to_png(draw_panels([Panel(series, **axis)], size=(6, 4))))


def show(folder: Path, headless, vanilla, model) -> None:
    """Print the table, a sample, the paths of picture and model, and what to do next."""
    ids = torch.tensor(headless.eval_dataset["input_ids"][:])[:, 1:]
    unigram = -log_prior(headless.token_counts)[ids].mean().item()
    rows = [("token frequencies alone", "", "", unigram)]
    for name, run in (
        ("headless, with its free head", headless),
        ("with a vocabulary head", vanilla),
    ):
        tokens = run.window.tokens_seen / 1e6
        seconds = run.window.train_seconds
        rows.append((name, f"{tokens:.2f} M", f"{seconds:.0f} s", last(run, "eval_cross_entropy")))
    head = ("held out", "tokens", "training", "perplexity")
    print("\n" + markdown(head, [(*row, f"{math.exp(nats):,.0f}") for *row, nats in rows]))
    set_seed(0)
    start = headless.processing_class(
        "Return the", return_tensors="pt", return_token_type_ids=False
    )
    written = model.generate(**start, max_new_tokens=25, do_sample=True, top_p=0.8)
    print(
        f"\nIt writes: {headless.processing_class.decode(written[0], skip_special_tokens=True)!r}"
    )
    print(
        f"\n{folder}/comparison.png  perplexity against time\n{folder}/lm/             an "
        "ordinary causal language model"
    )
    print(
        "\nNext, on text of your own:\n  .venv/bin/headless-trainer pretrain recipe_decoder "
        "--train_file 'corpus/*.txt'"
    )


if __name__ == "__main__":
    main()
