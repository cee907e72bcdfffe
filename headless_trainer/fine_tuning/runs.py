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

from datasets import Dataset
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from ..arguments import with_settings
from ..files.whole import delete_folder
from ..hub.pushes import HubPushes, repository_name
from ..processes.coordination import on_first_process
from .classification import ClassificationTrainer
from .classification_rows import encode_rows
from .classifier_card import add_grid_results, write_classifier_card
from .classifiers import load_classifier
from .glue_arguments import GlueArguments, run_settings
from .grid import Grid, Run
from .problems import REGRESSION
from .results import (
    BEST,
    OWN_TASK,
    SEED,
    best_epoch,
    figures,
    merit,
    read_run,
    selection_score,
    shown,
    write_run,
)
from .task_scores import metric_facts, score_outputs

logger = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "datasets", "evaluate")


def run_grid(grid: Grid) -> None:
    """Train and score the pending runs of a grid, write each result at once, and report the best."""
    done = len(grid.runs) - len(grid.pending)
    if done:
        logger.info("%s of %s runs are already finished and are skipped.", done, len(grid.runs))
    for (task, model), runs in groupby(grid.pending, key=lambda run: (run.task, run.model)):
        rows, held_out = grid.data[task]
        config, length = model.configs[task.num_labels], grid.arguments.max_seq_length
        encode = partial(
            encode_rows, task=task, tokenizer=model.tokenizer, config=config, max_seq_length=length
        )
        train, sets = encode(rows), {name: encode(each) for name, each in held_out.items()}
        for run in runs:
            result = run_one(run, grid, train, sets)
            gc.collect()  # trainer and model refer to each other: without this, the next model is loaded beside them
            if grid.training.process_index == 0:
                write_run(run.path, result)
            done += 1
            best, score = result["best_epoch"] + 1, shown(result, result["score"])
            took = result["train_seconds"] + result["evaluation_seconds"]
            logger.info(
                "%s: %.4g after epoch %s (%.0f s; %s of %s runs)",
                run,
                score,
                best,
                took,
                done,
                len(grid.runs),
            )
    on_first_process(lambda: finish(grid))


def finish(grid: Grid) -> None:
    """Name the kept models, add the scores to the cards of local models, and push the best model."""
    for name, folder in best_models(grid).items() if grid.arguments.is_own_task else ():
        if folder.is_dir():
            logger.info("%s: its best model is in %s", name, folder)
    add_grid_results(grid)
    if grid.training.push_to_hub:
        (folder,) = best_models(grid).values()
        name = repository_name(grid.training.hub_model_id, grid.training.output_dir)
        with with_settings(grid.training, output_dir=str(folder), hub_model_id=name):
            HubPushes(grid.training).push_run("End of fine-tuning")


def run_one(run: Run, grid: Grid, train: Dataset, sets: dict[str, Dataset]) -> dict:
    """Fine-tune a model on a task with a seed, score every epoch, and return the result as it is written."""
    trainer = make_trainer(run, grid, train)
    scorer = EpochScorer(trainer, run, sets, grid.arguments)
    trainer.add_callback(scorer)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start - scorer.seconds
    best = best_epoch(scorer.result)
    scores = [selection_score(scorer.result, epoch) for epoch in scorer.result["epochs"]]
    result = {
        "model": run.model.name, "task": run.task.name, "train_language": run.task.train_language, "seed": run.seed,
        "loss": grid.loss, "settings": run_settings(grid.arguments, grid.training), "rows": grid.hashes[run.task.name],
        **asdict(run.model.identity), **scorer.result, "best_epoch": best, "score": scores[best], "last_score": scores[-1],
        "loss_curve": [[logs["step"], logs["loss"]] for logs in trainer.state.log_history if "loss" in logs],
        "train_seconds": seconds, "train_samples_per_second": trainer.state.epoch * len(train) / seconds,
        "evaluation_seconds": scorer.seconds, "versions": {name: metadata.version(name) for name in PACKAGES},
    }  # fmt: skip
    if (
        trainer.args.should_save
        and grid.arguments.keeps_models
        and (folder := keep_model(run, result))
    ):
        args = grid.training
        name = (
            repository_name(args.hub_model_id, args.output_dir) if args.push_to_hub else folder.name
        )
        write_classifier_card(folder, name, run, trainer.model, result)
    return result


def make_trainer(run: Run, grid: Grid, train: Dataset) -> ClassificationTrainer:
    """Return the trainer of one run, with a new head drawn from the run's seed."""
    task, args = run.task, copy.copy(grid.training)
    args.push_to_hub = False  # the best model is pushed at the end of the grid
    config = copy.deepcopy(run.model.configs[task.num_labels])
    config.num_labels = task.num_labels
    if task.num_labels > 1:
        config.id2label = dict(enumerate(task.label_names))
        config.label2id = {name: index for index, name in enumerate(task.label_names)}
    config.text_columns = list(task.columns)  # for `predictions`, and for users of the model
    config.benchmark_task = None if task.benchmark == OWN_TASK else task.name
    # A candidate of a multiple choice also has a score: transformers does not load its own class with a single output.
    config.problem_type = (
        REGRESSION.config_name if task.num_labels == 1 else task.problem.config_name
    )
    model, _ = load_classifier(
        grid.arguments, run.model.source, config, run.model.tokenizer, run.seed
    )
    args.seed = run.seed
    return quiet_trainer(
        model, args, loss=grid.loss, train_dataset=train, processing_class=run.model.tokenizer
    )


def quiet_trainer(model, args, **kwargs) -> ClassificationTrainer:
    """A trainer that leaves epochs to `EpochScorer`, and prints nothing."""
    args = copy.copy(args)
    args.eval_strategy = "no"
    trainer = ClassificationTrainer(model, args, **kwargs)
    trainer.pop_callback(PrinterCallback)
    trainer.pop_callback(ProgressCallback)
    return trainer


class EpochScorer(TrainerCallback):
    """Scores every evaluation set after each epoch, keeps the best epoch's model if requested, and stops a run early.

    `EarlyStoppingCallback` looks at only one set, and ignores a lower loss at an equal score. ``result`` holds the figures in
    the form of result files, and ``seconds`` the time spent.
    """

    def __init__(self, trainer, run: Run, sets: dict[str, Dataset], arguments: GlueArguments):
        self.trainer, self.run, self.sets, self.arguments = trainer, run, sets, arguments
        task, language = run.task, run.task.train_language
        selected_on = [language] if language in sets else list(sets)
        self.result = {
            "benchmark": task.benchmark,
            **metric_facts(task),
            "selected_on": selected_on,
            "epochs": [],
        }
        self.seconds = 0.0

    def on_epoch_end(self, args, state, control, **kwargs):
        start, epochs = time.perf_counter(), self.result["epochs"]
        sets = {}
        for name, rows in self.sets.items():
            scores, labels, _ = self.trainer.predict(rows)
            sets[name] = score_outputs(
                self.run.task, scores, labels, f"after step {state.global_step}"
            )
        epochs.append({"epoch": len(epochs) + 1, "step": state.global_step, "sets": sets})
        waited = len(epochs) - 1 - best_epoch(self.result)
        if waited == 0 and self.arguments.keeps_models:
            self.trainer.save_model(str(self.run.path.with_suffix(".best")))
        scored, of = sets[self.result["selected_on"][0]], math.ceil(state.num_train_epochs)
        scores = ", ".join(
            map(" ".join, figures(self.result, scored).items())
        ) + ", best so far" * (waited == 0)
        logger.info(
            "%s, epoch %s/%s: loss %.4g, %s", self.run, len(epochs), of, scored["loss"], scores
        )
        if (
            self.arguments.early_stopping_patience
            and waited >= self.arguments.early_stopping_patience
        ):
            control.should_training_stop = True
        self.seconds += time.perf_counter() - start


# Models that are kept --------------------------------------------------------------------------------------------------


def keep_model(run: Run, result: dict) -> Path | None:
    """Put the model of a run's best epoch into the folder `BEST`; return None if another seed's model there is as good."""
    saved, folder = run.path.with_suffix(".best"), run.path.with_name(BEST)
    if (folder / SEED).is_file():
        kept = read_run(folder / SEED)
        counts = kept["seed"] != run.seed and run.path.with_stem(f"seed_{kept['seed']}").is_file()
        if counts and merit(result, kept["score"]) >= merit(result, result["score"]):
            shutil.rmtree(saved)
            return None
    write_run(saved / SEED, {"seed": run.seed, "score": result["score"]})
    # A worse model, or this one of a run that was killed before its scores.
    delete_folder(folder)
    return saved.rename(folder)


def best_models(grid: Grid) -> dict[str, Path]:
    """Return the folder of the best fine-tuned model by the name of its source, in a grid of one task."""
    return {run.model.name: run.path.with_name(BEST) for run in grid.runs}
