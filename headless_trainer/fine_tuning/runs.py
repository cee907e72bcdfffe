"""Run what is left of a grid: fine-tune, score every epoch, write one result file for each run, choose learning rates."""

import copy
import gc
import logging
import math
import shutil
import statistics
import sys
import time
from functools import partial
from importlib import metadata
from itertools import groupby
from pathlib import Path

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from ..arguments import with_settings
from ..hub.pushes import HubPushes, repository_name
from ..runtime.processes import on_first_process
from .classification import ClassificationTrainer
from .classification_rows import EncodedRows, encode_rows
from .classifier_card import add_grid_results, write_classifier_card
from .classifiers import load_classifier
from .glue_arguments import GlueArguments, run_settings
from .grid import Grid, Run
from .problems import REGRESSION
from .results import OWN_TASK, best_epoch, figures, merit, read_run, selection_score, shown, write_run
from .task_scores import metric_facts, score_outputs

logger = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "datasets", "evaluate")
BEST = "best"  # the folder of the best model of all seeds


def run_grid(grid: Grid) -> None:
    """Train and score what is left of a grid, and say what is best; each result is written as soon as it is there."""
    done = len(grid.runs) - len(grid.pending)
    if done:
        logger.info("%s of %s runs are already finished and are skipped.", done, len(grid.runs))
    args = grid.training
    hidden = args.disable_tqdm or args.process_index > 0 or not sys.stderr.isatty()
    bar = tqdm(total=len(grid.runs), initial=done, disable=hidden, smoothing=0)
    for (task, model), runs in groupby(grid.pending, key=lambda run: (run.task, run.model)):
        settings = {
            "max_seq_length": grid.arguments.max_seq_length,
            "problem": task.problem,
            "num_labels": task.num_labels,
        }
        encode = partial(encode_rows, tokenizer=model.tokenizer, config=model.configs[task.num_labels], **settings)
        rows, held_out = grid.data[task.name]
        train, sets = encode(rows), {name: encode(each) for name, each in held_out.items()}
        for run in runs:
            result = run_one(run, grid, train, sets)
            gc.collect()  # a trainer and its model refer to each other: without this, the next model comes beside them
            if args.process_index == 0:
                write_run(run.path, result)
            best, score = result["best_epoch"] + 1, shown(result, result["score"])
            seconds = result["train_seconds"] + result["evaluation_seconds"]
            logger.info("%s: %.4g after epoch %s (%.0f s)", run, score, best, seconds)
            bar.update()
    bar.close()
    on_first_process(lambda: finish(grid))


def finish(grid: Grid) -> None:
    """Choose learning rates, name the models that are kept, add the scores to the cards of local models, push the best one."""
    if grid.arguments.learning_rates:
        choose_rates(grid)
    if grid.arguments.is_own_task:
        for name, folder in best_models(grid).items():
            if folder is not None and folder.is_dir():
                logger.info("%s: its best model is in %s", name, folder)
    add_grid_results(grid)
    if grid.training.push_to_hub:
        (folder,) = best_models(grid).values()
        name = repository_name(grid.training.hub_model_id, grid.training.output_dir)
        with with_settings(grid.training, output_dir=str(folder), hub_model_id=name):
            HubPushes(grid.training).push_run("End of fine-tuning")


def run_one(run: Run, grid: Grid, train: EncodedRows, sets: dict[str, EncodedRows]) -> dict:
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
        "model": run.model.name,
        "task": run.task.name,
        "train_language": run.task.train_language,
        "seed": run.seed,
        "loss": grid.loss,
        "settings": run_settings(grid.arguments, grid.training),
        "learning_rate": trainer.args.learning_rate,
        "weights": run.model.weights,
        "pretraining": run.model.pretraining,
        **scorer.result,
        "best_epoch": best,
        "score": scores[best],
        "last_score": scores[-1],
        "loss_curve": [[logs["step"], logs["loss"]] for logs in trainer.state.log_history if "loss" in logs],
        "train_seconds": seconds,
        "train_samples_per_second": trainer.state.epoch * len(train) / seconds,
        "evaluation_seconds": scorer.seconds,
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }
    if trainer.args.should_save and (folder := keep_model(run, result, grid.arguments.kept_models)):
        name = (grid.training.push_to_hub and grid.training.hub_model_id) or folder.name
        write_classifier_card(folder, name, run, trainer.model, result)
    return result


def make_trainer(run: Run, grid: Grid, train: EncodedRows) -> ClassificationTrainer:
    """The trainer of one run: its model with a new head, both from the run's seed."""
    task, args = run.task, copy.copy(grid.training)
    args.push_to_hub = False  # the best model is pushed at the end of the grid
    config = copy.deepcopy(run.model.configs[task.num_labels])
    config.num_labels = task.num_labels
    if task.id2label:
        config.id2label = task.id2label
        config.label2id = {name: index for index, name in task.id2label.items()}
    if task.benchmark == OWN_TASK:
        config.text_columns = list(task.columns)  # for `predictions`, and for those who use the model
    # A candidate of a multiple choice has a score too: transformers does not load a class of its own with a single output.
    config.problem_type = REGRESSION.config_name if task.num_labels == 1 else task.problem.config_name
    model, _ = load_classifier(grid.arguments, run.model.source, config, run.model.tokenizer, run.seed)
    args.seed, args.learning_rate = run.seed, run.learning_rate or args.learning_rate
    return quiet_trainer(model, args, loss=grid.loss, train_dataset=train, processing_class=run.model.tokenizer)


def quiet_trainer(model, args, **kwargs) -> ClassificationTrainer:
    """A trainer that leaves epochs to `EpochScorer`, and prints nothing."""
    args = copy.copy(args)
    args.eval_strategy = "no"
    trainer = ClassificationTrainer(model, args, **kwargs)
    trainer.pop_callback(PrinterCallback)
    trainer.pop_callback(ProgressCallback)
    return trainer


class EpochScorer(TrainerCallback):
    """Scores every evaluation set after each epoch, keeps the best epoch's model if it is asked to, and ends a run in time.

    Not `EarlyStoppingCallback`, which looks at one set and counts an epoch with an equal score and a lower loss as no better.
    ``result`` is what was found, as result files hold it, and ``seconds`` the time it took.
    """

    def __init__(self, trainer, run: Run, sets: dict[str, EncodedRows], arguments: GlueArguments):
        self.trainer, self.run, self.sets, self.arguments = trainer, run, sets, arguments
        task = run.task
        self.result = {
            "benchmark": task.benchmark,
            **metric_facts(task),
            "selected_on": [task.train_language] if task.train_language in sets else list(sets),
            "epochs": [],
        }
        self.seconds = 0.0
        self._logged = 0  # entries of the log before this epoch

    def on_epoch_end(self, args, state, control, **kwargs):
        start, epochs = time.perf_counter(), self.result["epochs"]
        sets = {}
        for name, rows in self.sets.items():
            scores, labels, _ = self.trainer.predict(rows)
            sets[name] = score_outputs(self.run.task, scores, labels, f"after step {state.global_step}")
        epochs.append({"epoch": len(epochs) + 1, "step": state.global_step, "sets": sets})
        waited = len(epochs) - 1 - best_epoch(self.result)
        if waited == 0 and self.arguments.kept_models != "none":
            self.trainer.save_model(str(self.run.path.with_suffix(".best")))
        self._log(state, waited == 0)
        if self.arguments.early_stopping_patience and waited >= self.arguments.early_stopping_patience:
            control.should_training_stop = True
        self.seconds += time.perf_counter() - start

    def _log(self, state, is_best: bool) -> None:
        """A line of losses, and of the scores of the first set that chooses the best epoch."""
        epoch = self.result["epochs"][-1]
        scored = epoch["sets"][self.result["selected_on"][0]]
        losses = [logs["loss"] for logs in state.log_history[self._logged :] if "loss" in logs]
        self._logged = len(state.log_history)
        said = [f"trained to {statistics.fmean(losses):.4g}"] if losses else []
        scores = map(" ".join, figures(self.result, scored).items())
        said += [f"loss {scored['loss']:.4g}", *scores, *["best so far"][:is_best]]
        logger.info("%s, epoch %s/%s: %s", self.run, epoch["epoch"], math.ceil(state.num_train_epochs), ", ".join(said))


# Models that are kept --------------------------------------------------------------------------------------------------


def model_folder(result_path: Path, kept: str) -> Path | None:
    """Where the model of a result is, if it is kept."""
    return {"best": result_path.with_name(BEST), "all": result_path.with_suffix(""), "none": None}[kept]


def keep_model(run: Run, result: dict, kept: str) -> Path | None:
    """Put the model of a run's best epoch where it is kept; None if it is not, or one of another seed is as good."""
    saved, folder = run.path.with_suffix(".best"), model_folder(run.path, kept)
    if folder is None:
        return None
    if folder.name == BEST and folder.is_dir():
        others = [read_run(path) for path in run.path.parent.glob("seed_*.json")]
        if any(merit(other) >= merit(result) for other in others):
            shutil.rmtree(saved)
            return None
    shutil.rmtree(folder, ignore_errors=True)  # a worse one, or of a run that was killed before its scores
    return saved.rename(folder)


def best_models(grid: Grid) -> dict[str, Path | None]:
    """By the name of each model of a grid of one task, where that of the run with the best score is kept, if it is."""
    paths: dict[str, list[Path]] = {}
    for run in grid.runs:
        paths.setdefault(run.model.name, []).append(run.result_path)
    best = {name: max(own, key=lambda path: merit(read_run(path))) for name, own in paths.items()}
    return {name: model_folder(path, grid.arguments.kept_models) for name, path in best.items()}


# Learning rates --------------------------------------------------------------------------------------------------------


def choose_rates(grid: Grid) -> None:
    """For each model, put the results and models of its best rate where they are read.

    A candidate lies in a folder of its rate, `<output_dir>/<loss>/<model>/<task>/rate_<r>`. What that of the best rate holds
    stands above it, where all other results are, with `learning_rate_search`: the score of each rate.
    """
    for (name, task), runs in groupby(grid.runs, key=lambda run: (run.model.name, run.task.name)):
        results = {run: read_run(run.path) for run in runs}
        first, rates = next(iter(results.values())), dict.fromkeys(run.learning_rate for run in results)
        means = {
            rate: statistics.fmean(result["score"] for run, result in results.items() if run.learning_rate == rate)
            for rate in rates
        }
        chosen = max(means, key=lambda rate: merit(first, means[rate]))
        search = {"chosen": chosen, "scores": {f"{rate:g}": mean for rate, mean in means.items()}}
        for run, result in results.items():
            if run.learning_rate == chosen:
                folder = model_folder(run.path, grid.arguments.kept_models)
                if folder is not None and folder.is_dir():
                    above = run.result_path.parent / folder.name
                    shutil.rmtree(above, ignore_errors=True)
                    shutil.copytree(folder, above)
                write_run(run.result_path, result | {"learning_rate_search": search})
        listing = ", ".join(f"{rate:g}: {shown(first, mean):.4g}" for rate, mean in means.items())
        logger.info("%s, %s: rate %g, the best on the validation rows (%s)", task, name, chosen, listing)
        if len(means) > 2 and chosen in (min(means), max(means)):
            said = "The best rate of %s, %g, is at the end of those that were tried: try some beyond it."
            logger.warning(said, name, chosen)
