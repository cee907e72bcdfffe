"""Run what is left of a grid: fine-tune, score every epoch, write one result file for each run."""

import copy
import gc
import json
import logging
import math
import shutil
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from statistics import fmean

from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from .classification import ClassificationTrainer
from .classification_rows import EncodedRows, encode_rows
from .classifier_card import write_classifier_card
from .classifiers import load_classifier
from .glue_arguments import GlueArguments, run_settings
from .grid import Grid, Run, loading_options
from .grid_report import metric_title
from .metrics import find_metric
from .problems import REGRESSION
from .results import BY_CLASS, OWN_TASK, best_epoch, best_of, selection_score, shown, write_run
from .task_scores import score_outputs

logger = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "datasets")
TRAINED_TO_SCORED = 3  # a row costs about three times as much with its backward
BEST = "best"  # the folder of the best model of all seeds
CHARACTERS_OF_TOKEN = 4  # roughly; only the bar's estimate of the time left depends on it


def run_grid(grid: Grid) -> None:
    """Train and score what is left of a grid; each result is written as soon as it is there."""
    done = len(grid.runs) - len(grid.pending)
    if done:
        logger.info("%s of %s runs are finished already: they are skipped.", done, len(grid.runs))
    if not grid.pending:
        return
    with Progress(grid) as progress:
        for run, train, sets in _encoded(grid):
            progress.begin(run)
            result = run_one(run, grid, train, sets, progress)
            gc.collect()  # a trainer and its model refer to each other: without this, the next model comes beside them
            progress.end()
            if grid.training.process_index == 0:
                write_run(run.path, result)
            best, score = result["best_epoch"] + 1, f"{shown(result, result['score']):.4g}"
            seconds = result["train_seconds"] + result["evaluation_seconds"]
            logger.info("%s: %s after epoch %s (%.0f s)", described(run), score, best, seconds)


def described(run: Run) -> str:
    """A run in a line of the log."""
    rate = "" if run.learning_rate is None else f", rate {run.learning_rate:g}"
    return f"{run.task.name}, {run.model.name}{rate}, seed {run.seed}"


def _encoded(grid: Grid) -> Iterator[tuple[Run, EncodedRows, dict[str, EncodedRows]]]:
    """Runs with the rows they train on and score, encoded once for all seeds of a model and a task."""
    current, train, sets = None, None, {}
    for run in grid.pending:
        if current != (run.model.name, run.task.name):
            current = run.model.name, run.task.name
            settings = {"problem": run.task.problem, "num_labels": run.task.num_labels}
            settings["max_seq_length"] = grid.arguments.max_seq_length
            config = run.model.configs[run.task.num_labels]
            rows, held_out = grid.data[run.task.name]
            train = encode_rows(rows, run.model.tokenizer, config, **settings)
            sets = {name: encode_rows(each, run.model.tokenizer, config, **settings) for name, each in held_out.items()}
        yield run, train, sets


def run_one(run: Run, grid: Grid, train: EncodedRows, sets: dict[str, EncodedRows], progress: "Progress") -> dict:
    """Fine-tune a model on a task with a seed, score every epoch, and return the result as it is written."""
    task, arguments = run.task, grid.arguments
    trainer = make_trainer(run, grid, train)
    scorer = EpochScorer(trainer, run, sets, arguments, progress)
    trainer.add_callback(scorer)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start - scorer.seconds
    result = {
        "model": run.model.name,
        "task": task.name,
        "train_language": task.train_language,
        "seed": run.seed,
        "loss": grid.loss,
        "settings": run_settings(arguments, grid.training),
        "learning_rate": trainer.args.learning_rate,
        "weights": run.model.weights,
        "pretraining": run.model.pretraining,
        **scorer.description,
        "epochs": scorer.epochs,
    }
    best = best_epoch(result, arguments.metrics)
    for epoch in result["epochs"][:best] + result["epochs"][best + 1 :]:
        for scored in epoch["sets"].values():
            for name in BY_CLASS & scored.keys():
                del scored[name]
    best = best_epoch(result)
    scores = [selection_score(result, epoch) for epoch in scorer.epochs]
    result |= {
        "best_epoch": best,
        "score": scores[best],
        "last_score": scores[-1],
        "loss_curve": [[logs["step"], logs["loss"]] for logs in trainer.state.log_history if "loss" in logs],
        "train_seconds": seconds,
        "train_samples_per_second": trainer.state.epoch * len(train) / seconds,
        "evaluation_seconds": scorer.seconds,
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }
    if folder := scorer.keep_best_model():
        write_classifier_card(folder, run, trainer.model, result, arguments.metrics)
    return result


def make_trainer(run: Run, grid: Grid, train: EncodedRows) -> ClassificationTrainer:
    """The trainer of one run: its model with a new head, both from the run's seed."""
    config = copy.deepcopy(run.model.configs[run.task.num_labels])
    config.num_labels = run.task.num_labels
    if run.task.id2label:
        config.id2label = run.task.id2label
        config.label2id = {name: index for index, name in run.task.id2label.items()}
    if run.task.benchmark == OWN_TASK:
        config.text_columns = list(run.task.columns)  # for `predictions`, and for those who use the model
    # A candidate of a multiple choice has a score too: transformers does not load a class of its own with a single output.
    config.problem_type = REGRESSION.config_name if run.task.num_labels == 1 else run.task.problem.config_name
    options = loading_options(grid.arguments) | {"attn_implementation": grid.arguments.attn_implementation}
    model, _ = load_classifier(run.model.source, config, run.model.tokenizer, seed=run.seed, **options)
    args = copy.copy(grid.training)
    args.seed = run.seed
    if run.learning_rate is not None:
        args.learning_rate = run.learning_rate
    args.eval_strategy = "no"  # the scorer sees every epoch
    trainer = ClassificationTrainer(
        model, args, loss=grid.loss, train_dataset=train, processing_class=run.model.tokenizer
    )
    trainer.pop_callback(PrinterCallback)
    trainer.pop_callback(ProgressCallback)
    return trainer


def model_folder(run: Run, arguments: GlueArguments) -> Path | None:
    """Where the model of a run is kept, if it is."""
    return {"best": run.path.with_name(BEST), "all": run.path.with_suffix(""), "none": None}[arguments.kept_models]


def best_models(grid: Grid) -> dict[str, tuple[Run, Path | None]]:
    """By the name of each model of a grid of one task, its run with the best score, and where that is kept, if it is."""
    found = {}
    for name in dict.fromkeys(run.model.name for run in grid.runs):
        runs = [run for run in grid.results if run.model.name == name]
        results = [json.loads(run.path.read_text(encoding="utf-8")) for run in runs]
        scores = [result["score"] for result in results]
        best = runs[scores.index(best_of(results[0])(scores))]
        found[name] = best, model_folder(best, grid.arguments)
    return found


def best_kept(run: Run, metrics: str) -> float | None:
    """The score of the model that is kept of earlier runs of the same model and task, None if there is none."""
    if not run.path.with_name(BEST).is_dir():
        return None
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(run.path.parent.glob("seed_*.json"))]
    scores = [selection_score(each, each["epochs"][best_epoch(each, metrics)], metrics) for each in found]
    return best_of(found[0])(scores) if found else None


class EpochScorer(TrainerCallback):
    """Scores every evaluation set after each epoch, and keeps the best epoch's model if it is asked to.

    ``epochs`` is what was found, as result files hold it, and ``seconds`` the time it took.
    """

    def __init__(self, trainer, run: Run, sets: dict[str, EncodedRows], arguments: GlueArguments, progress: "Progress"):
        self.trainer, self.run, self.sets, self.arguments, self.progress = trainer, run, sets, arguments, progress
        task = run.task
        self.description = {
            "benchmark": task.benchmark,
            "paper_metrics": [task.metric],
            "official_metrics": list(task.official_metrics),
            "lower_is_better": find_metric(task.metric).lower_is_better,
            "selected_on": [task.train_language] if task.train_language in sets else list(sets),
        }
        self.epochs: list[dict] = []
        self.seconds = 0.0
        self._logged = 0  # entries of the log before this epoch
        self._best = run.path.with_suffix(".best")
        self._kept = model_folder(run, arguments)
        self._to_beat = best_kept(run, arguments.metrics) if self._kept == run.path.with_name(BEST) else None

    def on_step_end(self, args, state, control, **kwargs):
        self.progress.add(trained=1 / state.max_steps)

    def on_epoch_end(self, args, state, control, **kwargs):
        start = time.perf_counter()
        sets = {name: self.score(rows) for name, rows in self.sets.items()}
        self.epochs.append({"epoch": len(self.epochs) + 1, "step": state.global_step, "sets": sets})
        self.progress.add(scored=1 / math.ceil(state.num_train_epochs))
        is_best = self._is_best()
        if self._kept and is_best and self._beats_others():
            self.trainer.save_model(str(self._best))
        logger.info("%s", self._line(state, is_best))
        self._logged = len(state.log_history)
        patience = self.arguments.early_stopping_patience
        best = best_epoch(self.description | {"epochs": self.epochs}, self.arguments.metrics)
        if patience and len(self.epochs) - 1 - best >= patience:
            control.should_training_stop = True
        self.seconds += time.perf_counter() - start

    def _line(self, state, is_best: bool) -> str:
        """What the log says of an epoch: losses, and the scores of the sets that choose the best one."""
        epoch = self.epochs[-1]
        losses = [logs["loss"] for logs in state.log_history[self._logged :] if "loss" in logs]
        scored = [epoch["sets"][name] for name in self.description["selected_on"]]
        found = {name: fmean(each["metrics"][name] for each in scored) for name in scored[0]["metrics"]}
        lower = {"lower_is_better": self.description["lower_is_better"]}
        figures = [f"trained to {fmean(losses):.4g}"] if losses else []
        figures.append(f"loss {fmean(each['loss'] for each in scored):.4g}")
        for name, value in found.items():
            figures.append(f"{metric_title(name)} {shown(lower if name == self.run.task.metric else {}, value):.4g}")
        figures += ["best so far"] if is_best else []
        return (
            f"{described(self.run)}, epoch {epoch['epoch']}/{math.ceil(state.num_train_epochs)}: {', '.join(figures)}"
        )

    def _is_best(self) -> bool:
        run, metrics = self.description | {"epochs": self.epochs}, self.arguments.metrics
        return best_epoch(run, metrics) == len(self.epochs) - 1

    def _beats_others(self) -> bool:
        run = self.description | {"epochs": self.epochs}
        score = selection_score(run, self.epochs[-1], self.arguments.metrics)
        return self._to_beat is None or best_of(run)(self._to_beat, score) != self._to_beat

    def keep_best_model(self) -> Path | None:
        """Put the model of the best epoch where it is kept; its folder, None if it is not."""
        if not self.trainer.args.should_save or not self._best.is_dir():
            return None
        shutil.rmtree(self._kept, ignore_errors=True)  # a worse one, or of a run that was killed before its scores
        self._best.rename(self._kept)
        return self._kept

    def score(self, rows: EncodedRows) -> dict:
        """As `score_outputs`, on one set."""
        output = self.trainer.predict(rows)
        when = f"after step {self.trainer.state.global_step}"
        return score_outputs(self.run.task, output.predictions, output.label_ids, when)


class Progress(tqdm):
    """One bar over all runs of a grid, finished ones included, with the time left."""

    def __init__(self, grid: Grid):
        self.grid = grid
        costs = [self._cost(run) for run in grid.runs]
        super().__init__(
            total=sum(map(sum, costs)),
            initial=sum(sum(cost) for cost, run in zip(costs, grid.runs, strict=True) if run not in grid.pending),
            disable=grid.training.disable_tqdm or grid.training.process_index > 0 or not sys.stderr.isatty(),
            bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}",
            smoothing=0,  # the mean speed so far: tasks differ more than moments do
        )

    def _cost(self, run: Run) -> tuple[float, float]:
        """Estimated tokens of a run's training, those of its backwards too, and of its scoring."""
        args, (train, sets) = self.grid.training, self.grid.data[run.task.name]
        trained = len(train) * args.num_train_epochs
        if args.max_steps > 0:
            trained = args.max_steps * run_settings(self.grid.arguments, args)["batch_size"]
        tokens, *scored = (self._tokens(rows) for rows in (train, *sets.values()))
        scored = sum(len(rows) * mean for rows, mean in zip(sets.values(), scored, strict=True))
        return TRAINED_TO_SCORED * trained * tokens, scored * math.ceil(trained / len(train))

    def _tokens(self, rows: Dataset) -> float:
        texts = rows[:200]["texts"]
        lengths = [sum(map(len, text)) / CHARACTERS_OF_TOKEN for candidates in texts for text in candidates]
        return min(self.grid.arguments.max_seq_length, sum(lengths) / len(lengths) + 3) * len(texts[0])

    def begin(self, run: Run) -> None:
        """Name the run that begins."""
        index, runs = self.grid.runs.index(run) + 1, len(self.grid.runs)
        self._training, self._scoring = self._cost(run)
        self._end = min(self.n + self._training + self._scoring, self.total)
        self.set_description_str(f"[{index}/{runs}] {described(run).replace(',', '')}")

    def end(self) -> None:
        """The run has ended, perhaps before its last epoch."""
        self.update(max(0.0, self._end - self.n))

    def add(self, trained: float = 0.0, scored: float = 0.0) -> None:
        """Shares of the run's training and of its scoring are done."""
        cost = trained * self._training + scored * self._scoring
        self.update(min(cost, self.total - self.n))  # sums of shares round
