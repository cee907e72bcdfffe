"""Score causal language models zero-shot with the LM Evaluation Harness: its prompts, requests, filters, metrics and store.

The harness's cache of requests stores a model's answers, so nothing is asked twice; results are stored task by task.
"""

import hashlib
import importlib.metadata
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import lm_eval
from lm_eval.api.model import CachingLM
from transformers import PreTrainedConfig

from ..files.whole import check_writable
from ..models.identity import ModelIdentity, identify
from . import harness_model, harness_tasks
from .score_store import add_scores, folder_name

logger = logging.getLogger(__name__)


def score_models(models: Sequence[str], args) -> list[str]:
    """Score models (Hub names or folders) on tasks, and write each result at once.

    Models, names of tasks and documents are checked before a model is loaded. ``args`` are
    `zero_shot_arguments.ZeroShotArguments`. Returns failures, one line each; everything else was scored and written.
    """
    # The harness's bootstrap would fork a pool of processes, and a fork beside torch's threads may wait for a lock forever.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    configs = {model: harness_model.check_checkpoint(model) for model in models}
    names = [
        each
        for name in args.tasks
        for each in (harness_tasks.PAPER_TASKS if name == "paper" else [name])
    ]
    manager = harness_tasks.open_tasks(names, args.include_path)
    harness_tasks.use_data_files(manager, args.data_files or [])
    if "paper" in args.tasks:
        harness_tasks.define(manager, "qasper_bool", harness_tasks.QASPER)
    loaded = {name: harness_tasks.load(manager, name) for name in names}
    check_writable(args.output_dir)
    return [
        failure for model in models for failure in _score_model(model, configs[model], loaded, args)
    ]


def _score_model(model: str, config: PreTrainedConfig, tasks: dict[str, dict], args) -> list[str]:
    """Score one model on ``tasks``, those of `harness_tasks.load` by their names; return failures, one line each."""
    logger.info("%s: loading", model)
    folder = Path(args.output_dir) / folder_name(model)
    loaded_model = harness_model.load(model, args)
    identity = identify(model, config, loaded_model.tokenizer)
    store = folder / f"requests_{_answers_key(identity, args)}.db"
    asked_model = CachingLM(loaded_model, str(store))
    failures = []
    for name, loaded in tasks.items():
        harness_tasks.set_seeds()
        for task in loaded["tasks"].values():
            harness_tasks.set_examples(task, args.num_fewshot)
        try:
            results = lm_eval.evaluate(
                asked_model, loaded, limit=args.limit, bootstrap_iters=args.bootstrap_iters
            )
        except Exception as error:  # keep earlier scores, and continue with later tasks
            logger.exception("%s: %s failed", model, name)
            failures.append(f"{name} of {model}: {type(error).__name__}: {error}")
            continue
        # The precision and length that the task was asked with: only equal ones are compared.
        asked = dict.fromkeys(results["samples"], [args.dtype, args.max_length])
        add_scores(folder, model, results | {"asked": asked}, identity)
        logger.info("%s: %s scored", model, name)
    asked_model.dbdict.close()
    return failures


def _answers_key(identity: ModelIdentity, args) -> str:
    """Return the name under which answers are stored: any change that may alter an answer changes it."""
    packages = ("lm_eval", "transformers", "torch")
    versions = [importlib.metadata.version(package) for package in packages]
    decisive = ("summed in float32", identity, versions, args.dtype, args.max_length)
    return hashlib.sha256(repr(decisive).encode()).hexdigest()[:16]
