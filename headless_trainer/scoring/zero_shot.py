"""Zero-shot scores of causal language models by the LM Evaluation Harness, kept task by task.

The prompts, the requests, the filters and the metrics are the harness's own. A folder of results holds, for each model,
``results.json`` and one file a task with the scores of its documents, from which models are compared.
"""

import hashlib
import importlib.metadata
import itertools
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
from lm_eval.api.metrics import mean, perplexity, stderr_for_metric
from lm_eval.api.task import Task

from ..runtime.checkpoints import check_writable
from . import harness_model, harness_tasks
from .score_card import add_harness_results
from .score_store import Store, folder_name

logger = logging.getLogger(__name__)

# The harness draws its bootstrap in chunks, each from a generator seeded with the chunk's number.
BOOTSTRAP_CHUNK = 1000
# The harness calls the lower of these the better, but the best is in the middle: half of the pairs, no bias either way.
NEUTRAL_METRICS = ("pct_stereotype",)
# Metrics for which the harness takes fewer resamples, because each is expensive.
EXPENSIVE_METRICS = ("bleu", "chrf", "chrf++", "ter")


def score_models(models: Sequence[str], args) -> list[str]:
    """Score models (Hub names or folders) on tasks, and write each result when it is there.

    What a folder holds already, under the same settings, is not scored again. ``args`` are
    `zero_shot_arguments.ZeroShotArguments`.

    Returns:
        What failed, one line each; the rest was scored and written.

    Raises:
        ValueError: for a checkpoint that cannot score text, a task that is unknown or cannot use its documents, and for
            results under other settings in the output folder. All of it before a model is loaded.
        OSError: for a checkpoint, a file or a dataset of the Hub that cannot be loaded.
    """
    for model in models:
        harness_model.check_checkpoint(model)
    names = harness_tasks.expand(args.tasks)
    manager = harness_tasks.open_tasks(names, args.include_path)
    files = harness_tasks.parse_data_files(args.data_files, manager, names)
    harness_tasks.use_data_files(manager, files)
    leaves = {name: harness_tasks.leaf_names(manager, name) for name in names}
    as_in_paper: set[str] = set()
    if "paper" in args.tasks:
        as_in_paper = {*harness_tasks.PAPER_DEFINITIONS, *harness_tasks.PAPER_DIRECTIONS}
        harness_tasks.follow_paper(manager)
    elif any("qasper_bool" in own for own in leaves.values()):
        logger.warning(
            "qasper_bool: the harness takes yes for the right answer to every question, so its F1 only says how often a model "
            "answers yes. --tasks paper scores against the answers."
        )
    check_writable(args.output_dir)
    stores = {model: Store(Path(args.output_dir) / folder_name(model), model) for model in models}
    prints = {leaf: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for leaf, path in files.items()}
    settings, done = {}, {}
    for model, store in stores.items():
        shared = task_settings(model, args)
        for leaf in itertools.chain(*leaves.values()):
            own = {"data_file": prints.get(leaf)} | ({"as_in": "paper"} if leaf in as_in_paper else {})
            settings[model, leaf] = shared | own
            done[model, leaf] = store.has(leaf, settings[model, leaf])
    needed = [
        name
        for name, own in leaves.items()
        if not all(
            done[model, leaf] and store.has_group(name, manager) for model, store in stores.items() for leaf in own
        )
    ]
    built = {name: harness_tasks.build(manager, name, files, args.seed) for name in needed}
    failures = []
    for model, store in stores.items():
        tasks = {leaf: task for name in needed for leaf, task in built[name]["tasks"].items()}
        todo = {leaf: task for leaf, task in tasks.items() if not done[model, leaf]}
        skipped = [leaf for leaf in itertools.chain(*leaves.values()) if done[model, leaf]]
        if skipped:
            logger.info("%s: scored earlier with the same settings: %s", model, ", ".join(dict.fromkeys(skipped)))
        if todo:
            failures += _score_model(store, todo, args, {leaf: settings[model, leaf] for leaf in todo})
        for name in needed:
            store.add_groups(built[name]["groups"])
        add_harness_results(model, store.results["tasks"])
    return failures


def _score_model(store: Store, tasks: dict[str, Task], args, settings: dict[str, dict]) -> list[str]:
    logger.info("%s: loading", store.model)
    lm = harness_model.load(
        store.model,
        tokenizer_name=args.tokenizer_name,
        dtype=args.dtype,
        device=args.device,
        batch_size=args.batch_size,
        max_length=args.max_length,
    )
    store.results |= {"parameters": lm.model.num_parameters(), "dtype": str(lm.model.dtype).removeprefix("torch.")}
    failures = []
    for name, task in tasks.items():
        harness_tasks.prepare(task, args.num_fewshot, args.seed)
        harness_tasks.set_seeds(args.seed)
        try:
            entry, documents = score_task(lm, name, task, limit=args.limit, bootstrap_iters=args.bootstrap_iters)
        except Exception as error:  # what was scored before, and what comes after, is not lost to it
            logger.exception("%s: %s failed", store.model, name)
            failures.append(f"{name} of {store.model}: {type(error).__name__}: {error}")
            continue
        if "as_in" in settings[name]:
            for metric, way in harness_tasks.PAPER_DIRECTIONS.get(name, {}).items():
                entry["metrics"][f"{metric},none"]["higher_is_better"] = way
        store.add(name, entry | {"settings": settings[name]}, documents)
        logger.info("%s: %s scored in %.0f s", store.model, name, entry["seconds"])
    return failures


def score_task(
    lm: "lm_eval.api.model.LM", name: str, task: Task, *, limit: float | None, bootstrap_iters: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Score one model of the harness on one task, as `harness_tasks.build` made it and `harness_tasks.prepare` set it.

    Args:
        limit: documents to score, or their share if below 1; all if None.
        bootstrap_iters: resamples behind the standard error of metrics that have no formula for it.

    Returns:
        The entry for results.json: ``metrics`` by name (``metric,filter``) with value, standard error, direction and
        aggregation, the numbers of documents, versions, seconds. And the documents: ``sha256`` of each with its prompt and
        target, and its ``scores`` for each metric.
    """
    start = time.time()
    tasks = {"tasks": {name: task}, "groups": {}}
    results = lm_eval.evaluate(lm=lm, task_dict=tasks, limit=limit, bootstrap_iters=0, log_samples=True)
    samples, direction = results["samples"][name], results["higher_is_better"][name]
    metrics, scores = {}, {}
    for key, value in results["results"][name].items():
        metric, comma, filter_name = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        values = [sample[metric] for sample in samples if sample["filter"] == filter_name and metric in sample]
        aggregate = task.aggregation().get(metric, mean)
        iterations = min(bootstrap_iters, 100) if metric in EXPENSIVE_METRICS else bootstrap_iters
        metrics[key] = {
            "value": value,
            "stderr": standard_error(aggregate, values, iterations),
            "higher_is_better": None if metric in NEUTRAL_METRICS else direction.get(metric),
            "aggregation": getattr(aggregate, "__name__", str(aggregate)),
        }
        scores[key] = values
    first = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
    entry = {
        "metrics": metrics,
        "documents": results["n-samples"][name]["effective"],
        "documents_available": results["n-samples"][name]["original"],
        "num_fewshot": results["n-shot"][name],
        "output_type": task.get_config("output_type"),
        "dataset": [task.get_config("dataset_path"), task.get_config("dataset_name")],
        "task_version": results["versions"][name],
        "batch_size": lm.batch_size,
        "max_length": lm.max_length,
        "device": str(lm.device),
        "versions": {each: importlib.metadata.version(each) for each in ("lm_eval", "transformers", "torch")},
        "seconds": round(time.time() - start, 2),
    }
    return entry, {"sha256": [_document_hash(sample) for sample in first], "scores": scores}


def _document_hash(sample: dict) -> str:
    parts = sample["doc_hash"] + sample["prompt_hash"] + sample["target_hash"]
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def standard_error(aggregate: Callable, values: list, iterations: int) -> float | None:
    """Standard error of a metric aggregated over documents as the harness has it, None where it has none, or no resamples."""
    if len(values) < 2 or iterations <= 0:
        return None
    if aggregate is perplexity:
        return _perplexity_stderr(np.asarray(values, dtype=np.float64), iterations)
    function = stderr_for_metric(metric=aggregate, bootstrap_iters=iterations)
    return None if function is None else float(function(values))


def _perplexity_stderr(values: np.ndarray, iterations: int) -> float:
    """The harness's bootstrap, on the same resamples, without a Python loop over documents: ten times as fast."""
    chunk = min(BOOTSTRAP_CHUNK, iterations)
    resampled = np.empty((iterations // chunk, chunk))
    for index in range(len(resampled)):
        # Both generators are the Mersenne Twister, and random.choices takes floor(random() * n).
        state = random.Random(index).getstate()[1]
        generator = np.random.RandomState()
        generator.set_state(("MT19937", state[:-1], state[-1]))
        for row in range(chunk):
            drawn = (generator.random_sample(len(values)) * len(values)).astype(np.int64)
            resampled[index, row] = math.exp(-values[drawn].mean())
    return float(resampled.std(ddof=1))


def task_settings(model: str, args) -> dict[str, Any]:
    """What decides the scores of a model beside the task and its documents."""
    names = ("num_fewshot", "limit", "max_length", "dtype", "seed", "bootstrap_iters", "tokenizer_name")
    folder = Path(model)
    weights = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.glob("*"))
        if path.suffix in (".safetensors", ".bin") or path.name in ("config.json", "tokenizer.json")
    ]
    files = hashlib.sha256(repr(weights).encode()).hexdigest()[:16] if folder.is_dir() else None
    return {name: getattr(args, name) for name in names} | {"model_files": files}
