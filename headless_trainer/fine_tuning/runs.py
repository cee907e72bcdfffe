"""Run the pending runs of a grid: fine-tune, score every epoch, write one result file per run."""

import copy
import gc
import logging
import math
import shutil
import time
from dataclasses import asdict
from functools import partial
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from ..arguments import with_settings
from ..files.whole import delete_folder
from ..hub.pushes import HubPushes, repository_name
from ..processes.coordination import on_first_process
from ..trainers.evaluation import generators_set_aside
from .classification import ClassificationTrainer
from .classification_rows import encode_rows
from .classifier_card import add_grid_results, write_classifier_card
from .classifiers import load_classifier
from .glue_arguments import GlueArguments, run_settings
from .grid import Grid, Run
from .problems import REGRESSION
from .results import (
    OWN_TASK,
    SEED,
    best_epoch,
    merit,
    read_run,
    selection_score,
    shown,
    shown_metrics,
    write_run,
)
from .task_scores import metric_facts, score_outputs

logger = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "datasets", "evaluate")


def run_grid(grid: Grid) -> None:
    """Train and score the pending runs of a grid, write each result, and report the best."""
    finished = len(grid.runs) - len(grid.pending)
    if finished:
        logger.info("%s of %s runs are already finished and are skipped.", finished, len(grid.runs))
    # Runs of one task and model follow each other, so that its rows are encoded once.
    by_task_and_model = groupby(grid.pending, key=lambda run: (run.task, run.model))
    for (task, model), runs in by_task_and_model:
        encode = partial(
            encode_rows,
            task=task,
            tokenizer=model.tokenizer,
            config=model.configs[task.num_labels],
            max_seq_length=grid.arguments.max_seq_length,
        )
        rows, held_out = grid.data[task]
        train = encode(rows)
        sets = {name: encode(set_rows) for name, set_rows in held_out.items()}
        for run in runs:
            result = run_one(run, grid, train, sets)
            # Trainer and model refer to each other: without this, the next model is loaded beside
            # them.
            gc.collect()
            if grid.training.process_index == 0:
                write_run(run.path, result)
            finished += 1
            logger.info(
                "%s: %.4g after epoch %s (%.0f s; %s of %s runs)",
                run,
                shown(result, result["score"]),
                result["best_epoch"] + 1,
                result["train_seconds"] + result["evaluation_seconds"],
                finished,
                len(grid.runs),
            )
    on_first_process(lambda: finish_grid(grid))


def finish_grid(grid: Grid) -> None:
    """Name the kept models, add the scores to cards of local models, and push the best model."""
    if grid.arguments.is_own_task:
        for name, folder in best_models(grid).items():
            if folder.is_dir():
                logger.info("%s: its best model is in %s", name, folder)
    add_grid_results(grid)
    if grid.training.push_to_hub:
        (folder,) = best_models(grid).values()
        name = repository_name(grid.training.hub_model_id, grid.training.output_dir)
        with with_settings(grid.training, output_dir=str(folder), hub_model_id=name):
            HubPushes(grid.training).push_run("End of fine-tuning")


def run_one(run: Run, grid: Grid, train: Dataset, sets: dict[str, Dataset]) -> dict:
    """Fine-tune a model on a task with a seed, and score every epoch.

    Returns the result as it is written (`results`). ``train`` and ``sets`` are encoded rows.
    """
    trainer = make_classification_trainer(run, grid, train)
    scorer = EpochScorer(trainer, run, sets, grid.arguments)
    trainer.add_callback(scorer)
    start = time.perf_counter()
    trainer.train()
    train_seconds = time.perf_counter() - start - scorer.seconds
    best = best_epoch(scorer.result)
    scores = [selection_score(scorer.result, epoch) for epoch in scorer.result["epochs"]]
    logs = trainer.state.log_history
    result = {
        "model": run.model.name,
        "task": run.task.name,
        "train_language": run.task.train_language,
        "seed": run.seed,
        "loss": grid.loss,
        "settings": run_settings(grid.arguments, grid.training),
        "rows": grid.hashes[run.task.name],
        "metric_file": grid.metric_file,
        **asdict(run.model.identity),
        **scorer.result,
        "best_epoch": best,
        "score": scores[best],
        "last_score": scores[-1],
        "loss_curve": [[entry["step"], entry["loss"]] for entry in logs if "loss" in entry],
        "train_seconds": train_seconds,
        "train_samples_per_second": trainer.state.epoch * len(train) / train_seconds,
        "evaluation_seconds": scorer.seconds,
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }
    if trainer.args.should_save and grid.arguments.keeps_models:
        folder = keep_model(run, result)
        if folder is not None:
            name = folder.name
            if grid.training.push_to_hub:
                name = repository_name(grid.training.hub_model_id, grid.training.output_dir)
            write_classifier_card(folder, name, run, trainer.model, result)
    return result


def make_classification_trainer(run: Run, grid: Grid, train: Dataset) -> ClassificationTrainer:
    """Return the trainer of one run, with a new head drawn from the run's seed."""
    task = run.task
    args = copy.copy(grid.training)
    # The best model is pushed at the end of the grid.
    args.push_to_hub = False
    args.seed = run.seed
    # A copy, since the runs of all seeds begin with the same configuration.
    config: Any = copy.deepcopy(run.model.configs[task.num_labels])
    config.num_labels = task.num_labels
    if task.num_labels > 1:
        config.id2label = dict(enumerate(task.label_names))
        config.label2id = {name: index for index, name in enumerate(task.label_names)}
    # For `predictions`, and for users of the model.
    config.text_columns = list(task.columns)
    config.benchmark_task = None if task.benchmark == OWN_TASK else task.name
    problem = task.problem
    if task.num_labels == 1:
        # A candidate of a multiple choice also has a score: transformers does not load its own
        # class with a single output.
        problem = REGRESSION
    config.problem_type = problem.config_name
    model, _ = load_classifier(
        grid.arguments, run.model.source, config, run.model.tokenizer, run.seed
    )
    return quiet_trainer(
        model, args, loss=grid.loss, train_dataset=train, processing_class=run.model.tokenizer
    )


def quiet_trainer(model, args, **kwargs) -> ClassificationTrainer:
    """Return a trainer that leaves epochs to `EpochScorer`, and prints nothing."""
    args = copy.copy(args)
    args.eval_strategy = "no"
    trainer = ClassificationTrainer(model, args, **kwargs)
    trainer.pop_callback(PrinterCallback)
    trainer.pop_callback(ProgressCallback)
    return trainer


class EpochScorer(TrainerCallback):
    """Scores every evaluation set after each epoch, and keeps or stops as the arguments ask for.

    It keeps the best epoch's model, and stops a run that gets no better. `EarlyStoppingCallback`
    looks at only one set, and ignores a lower loss at an equal score. ``result`` holds the figures
    in the form of result files, and ``seconds`` the time spent.
    """

    def __init__(
        self,
        trainer: ClassificationTrainer,
        run: Run,
        sets: dict[str, Dataset],
        arguments: GlueArguments,
    ):
        self.trainer = trainer
        self.run = run
        self.sets = sets
        self.arguments = arguments
        self.seconds = 0.0
        task = run.task
        selected_on = list(sets)
        if task.train_language in sets:
            # XNLI is selected in the language of training: other languages are to be unseen.
            selected_on = [task.train_language]
        self.result: dict[str, Any] = {
            "benchmark": task.benchmark,
            **metric_facts(task),
            "selected_on": selected_on,
            "epochs": [],
        }

    def on_epoch_end(self, args, state, control, **kwargs):
        start = time.perf_counter()
        # Each pass over rows draws a number from the generator of the dropout. So does the one pass
        # of transformers' own evaluation, after which later epochs are the same as here. What else
        # is scored must not change them.
        first, *others = self.sets
        sets = {first: self._scores_of(first, state.global_step)}
        with generators_set_aside(args.seed, args.device):
            for name in others:
                sets[name] = self._scores_of(name, state.global_step)
        epochs = self.result["epochs"]
        epochs.append({"epoch": len(epochs) + 1, "step": state.global_step, "sets": sets})
        epochs_since_best = len(epochs) - 1 - best_epoch(self.result)
        if epochs_since_best == 0 and self.arguments.keeps_models:
            self.trainer.save_model(str(self.run.saved_model))
        self._log_epoch(state.num_train_epochs, is_best=epochs_since_best == 0)
        patience = self.arguments.early_stopping_patience
        if patience and epochs_since_best >= patience:
            control.should_training_stop = True
        # Counted apart, since the time of a run is that of its training alone.
        self.seconds += time.perf_counter() - start

    def _scores_of(self, name: str, step: int) -> dict:
        """Return the figures of an evaluation set after a step, as `score_outputs` makes them."""
        scores, labels, _ = self.trainer.predict(self.sets[name])
        return score_outputs(self.run.task, scores, labels, f"after step {step}")

    def _log_epoch(self, num_train_epochs: float, *, is_best: bool) -> None:
        epochs = self.result["epochs"]
        scored = epochs[-1]["sets"][self.result["selected_on"][0]]
        scores = [f"{title} {value}" for title, value in shown_metrics(self.result, scored).items()]
        if is_best:
            scores.append("best so far")
        logger.info(
            "%s, epoch %s/%s: loss %.4g, %s",
            self.run,
            len(epochs),
            math.ceil(num_train_epochs),
            scored["loss"],
            ", ".join(scores),
        )


# Models that are kept -------------------------------------------------------------------------


def keep_model(run: Run, result: dict) -> Path | None:
    """Put the model of a run's best epoch into the folder of the best model of all seeds.

    Returns that folder, or None if another seed's model there is as good.
    """
    folder = run.kept_model
    if (folder / SEED).is_file():
        kept = read_run(folder / SEED)
        # Without its result, the other run was killed, and will be run again.
        is_other_run = kept["seed"] != run.seed
        is_finished = run.path.with_stem(f"seed_{kept['seed']}").is_file()
        is_as_good = merit(result, kept["score"]) >= merit(result, result["score"])
        if is_other_run and is_finished and is_as_good:
            shutil.rmtree(run.saved_model)
            return None
    write_run(run.saved_model / SEED, {"seed": run.seed, "score": result["score"]})
    # A worse model, or this one of a run that was killed before its scores.
    delete_folder(folder)
    # The score is in the model's folder before the rename, so none stands there without its score.
    return run.saved_model.rename(folder)


def best_models(grid: Grid) -> dict[str, Path]:
    """Return the folder of the best model by the name of its source, in a grid of one task."""
    return {run.model.name: run.kept_model for run in grid.runs}
