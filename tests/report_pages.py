"""Runs made by hand, whose every figure is known, and what stands on the page of their report."""

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import builders
import torch

from headless_trainer import HeadlessTrainingArguments
from headless_trainer.checkpoints.settings import save_settings
from headless_trainer.checkpoints.token_counts import save_token_counts
from headless_trainer.cli.make_report import main

STEPS = (10, 20, 30, 40)
COUNTS = torch.ones(3, dtype=torch.long)
PNG = b"\x89PNG\r\n\x1a\n"


def make_run(
    folder: Path,
    accuracies=(0.1, 0.2, 0.3, 0.4),
    pace=1000.0,
    seed=0,
    objective="headless",
    steps=STEPS,
    **settings,
) -> Path:
    """A run of 100 tokens a step, logged and evaluated at the same steps.

    Its perplexity is 1,000 (1 - accuracy).
    """
    folder.mkdir(parents=True)
    history, headless = [], objective == "headless"
    for step, accuracy in zip(steps, accuracies, strict=True):
        logs = {
            "step": step,
            "loss": 5.0 - step / 100,
            "tokens_seen": 100 * step,
            "train_seconds": 100 * step / pace,
        }
        logs |= {"tokens_per_second": pace, "peak_memory_mib": 512.0 if headless else 1024.0}
        history.append(logs | ({"loss_floor": 1.0} if headless else {}))
        if accuracy is not None:
            figures = {
                "eval_accuracy": accuracy,
                "eval_cross_entropy": math.log(1000 * (1 - accuracy)),
            }
            history.append({"step": step, "eval_loss": 6.0, "eval_predicted_tokens": 500} | figures)
    state = {"global_step": steps[-1], "max_steps": steps[-1], "log_history": history}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    of_run = {
        "trainer": f"{objective.title()}Trainer",
        "held_out_texts": settings.pop("held_out_texts", "a1"),
        "held_out_rows": settings.pop("held_out_rows", "8 rows, a"),
    }
    of_run["data: max_seq_length"] = settings.pop("max_seq_length", 128)
    config = {
        "vocab_size": settings.pop("vocab_size", 50),
        "n_layer": 2,
        "architectures": [objective.title()],
    }
    (folder / "config.json").write_text(json.dumps(config))
    settings = {"task": "clm", "use_cpu": True} | settings
    totals = {"tokens_seen": 100 * steps[-1], "train_seconds": 100 * steps[-1] / pace}
    save_token_counts(folder, COUNTS, totals | {"process_seconds": totals["train_seconds"]})
    save_settings(
        folder,
        HeadlessTrainingArguments(str(folder), objective=objective, seed=seed, **settings),
        **of_run,
    )
    return folder


def report(tmp_path, *argv) -> str:
    main([*map(str, argv), "--output_dir", str(tmp_path / "report")])
    return (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def refused(tmp_path, *argv) -> str:
    said = builders.refused(main, *argv, "--output_dir", tmp_path / "report")
    assert not (tmp_path / "report").exists()
    return said


def parsed(page: str) -> ElementTree.Element:
    assert page.startswith("<!DOCTYPE html>\n")
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def texts(page: str, tag: str) -> list[str]:
    """What stands in all elements of a kind, spaces made one."""
    return [" ".join("".join(element.itertext()).split()) for element in parsed(page).iter(tag)]


def rows_of(page: str) -> list[list[str]]:
    """Cells of all table rows."""
    return [["".join(cell.itertext()) for cell in row] for row in parsed(page).iter("tr")]


def seeds(tmp_path, name: str, finals, objective: str) -> str:
    """Runs that differ in their seed, and their configuration as it is typed."""
    runs = [
        make_run(
            tmp_path / f"{name}_{seed}", (0.1, 0.2, 0.25, final), seed=seed, objective=objective
        )
        for seed, final in enumerate(finals)
    ]
    return f"{name}={','.join(map(str, runs))}"
