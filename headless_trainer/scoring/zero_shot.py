"""Zero-shot scores of causal language models by the LM Evaluation Harness: its prompts, requests, filters, metrics and store.

What a model answered is kept in the harness's cache of requests, so nothing is asked twice; what came out is kept task by task.
"""

import hashlib
import importlib.metadata
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import lm_eval
from lm_eval.api.model import CachingLM

from ..runtime.checkpoints import check_writable
from . import harness_model, harness_tasks
from .score_store import add_harness_results, add_scores, folder_name

logger = logging.getLogger(__name__)

# The harness calls the lower share of stereotypes the better, but the best is in the middle: half of the pairs, no bias either
# way. The paper calls the lower the better too.
NEUTRAL = ("crows_pairs_english", "pct_stereotype")


def score_models(models: Sequence[str], args) -> list[str]:
    """Score models (Hub names or folders) on tasks, and write each result when it is there.

    ``args`` are `zero_shot_arguments.ZeroShotArguments`. Models, names of tasks and documents are checked before a model is
    loaded.

    Returns:
        What failed, one line each; the rest was scored and written.
    """
    # The harness's bootstrap would fork a pool of processes, and a fork beside torch's threads may wait for a lock forever.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    configs = {model: harness_model.check_checkpoint(model) for model in models}
    as_in_paper, names = "paper" in args.tasks, []
    for name in args.tasks:
        names += harness_tasks.PAPER_TASKS if name == "paper" else [name]
    manager = harness_tasks.open_tasks(names, args.include_path)
    on_files = harness_tasks.use_data_files(manager, args.data_files or [])
    if as_in_paper:
        harness_tasks.follow_paper(manager)
    loaded = {name: harness_tasks.load(manager, name, args.seed) for name in names}
    tasks = {task for found in loaded.values() for task in found["tasks"]}
    if unused := sorted(on_files - tasks):
        raise ValueError(f"data_files names {unused[0]!r}, which is not among the tasks asked for: {sorted(tasks)}.")
    if "qasper_bool" in tasks and not as_in_paper:
        logger.warning(
            "qasper_bool: to the harness, yes is the right answer to each question. --tasks paper scores against the answers."
        )
    check_writable(args.output_dir)
    return [failure for model in models for failure in _score_model(model, configs[model], loaded, args)]


def _score_model(model: str, config, loaded: dict[str, dict], args) -> list[str]:
    logger.info("%s: loading", model)
    folder = Path(args.output_dir) / folder_name(model)
    lm = CachingLM(harness_model.load(model, args), str(folder / f"requests_{_fingerprint(model, config, args)}.db"))
    failures = []
    for name, found in loaded.items():
        harness_tasks.set_seeds(args.seed)
        for task in found["tasks"].values():
            harness_tasks.set_examples(task, args.num_fewshot, args.seed)
        try:
            results = lm_eval.evaluate(lm, found, limit=args.limit, bootstrap_iters=args.bootstrap_iters)
        except Exception as error:  # what was scored before, and what comes after, is not lost to it
            logger.exception("%s: %s failed", model, name)
            failures.append(f"{name} of {model}: {type(error).__name__}: {error}")
            continue
        if name == NEUTRAL[0]:
            results["higher_is_better"][name][NEUTRAL[1]] = False if "paper" in args.tasks else None
        add_harness_results(model, add_scores(folder, model, results))
        logger.info("%s: %s scored", model, name)
    lm.dbdict.close()
    return failures


def _fingerprint(model: str, config, args) -> str:
    """What tells the answers of a model from those of others: its files or revision, precision, length, libraries."""
    files = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for folder in (model, args.tokenizer_name or model)
        for path in sorted(Path(folder).glob("*"))
        if path.suffix in (".safetensors", ".bin") or path.name in ("config.json", "tokenizer.json")
    ]
    versions = [importlib.metadata.version(each) for each in ("lm_eval", "transformers", "torch")]
    asked = (getattr(config, "_commit_hash", None), args.tokenizer_name, args.dtype, args.max_length)
    return hashlib.sha256(repr((files, versions, asked)).encode()).hexdigest()[:16]
