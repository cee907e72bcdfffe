"""Score causal language models zero-shot with the LM Evaluation Harness.

Prompts, requests, filters, metrics and the store of answers are the harness's. Its cache of
requests stores a model's answers, so nothing is asked twice; results are stored task by task.
"""

import hashlib
import importlib.metadata
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import lm_eval
from lm_eval.api.model import CachingLM
from transformers import PreTrainedConfig

from ..files.whole import check_writable
from ..models.identity import ModelIdentity, identify
from . import harness_model, harness_tasks
from .score_store import add_scores, folder_name
from .zero_shot_arguments import ZeroShotArguments

logger = logging.getLogger(__name__)


def score_models(models: Sequence[str], args: ZeroShotArguments) -> list[str]:
    """Score models (Hub names or folders) on tasks, and write each result at once.

    Models, names of tasks and documents are checked before a model is loaded. Returns failures, one
    line each; everything else was scored and written.
    """
    # The harness's bootstrap would fork a pool of processes, and a fork beside torch's threads may
    # wait for a lock forever.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    harness_model.check_device(args.device)
    configs = {model: harness_model.check_checkpoint(model) for model in models}
    names = harness_tasks.with_those_of_the_paper(args.scored_tasks)
    manager = harness_tasks.open_tasks(names, args.include_path)
    harness_tasks.use_data_files(manager, args.data_files or [])
    if "paper" in args.scored_tasks:
        harness_tasks.define(manager, "qasper_bool", harness_tasks.QASPER)
    harness_tasks.check_files_are_read(manager, args.data_files or [], names)
    tasks = {name: harness_tasks.load_named_tasks(manager, name) for name in names}
    check_writable(args.output_dir)
    failures = []
    for model in models:
        failures += _score_model(model, configs[model], tasks, args)
    return failures


def _score_model(
    model: str, config: PreTrainedConfig, tasks: Mapping[str, dict], args: ZeroShotArguments
) -> list[str]:
    """Score one model; return failures, one line each.

    ``tasks`` are those of `harness_tasks.load_named_tasks` by their names.
    """
    logger.info("%s: loading", model)
    folder = Path(args.output_dir) / folder_name(model)
    scored_model = harness_model.load_scored_model(model, args)
    identity = identify(model, config, scored_model.tokenizer)
    key = _key_of_answers(identity, args, scored_model.begins_texts)
    store = folder / f"requests_{key}.db"
    asked_model = CachingLM(scored_model, str(store))
    failures = []
    for name, loaded in tasks.items():
        harness_tasks.set_seeds()
        for task in loaded["tasks"].values():
            harness_tasks.set_examples(task, args.num_fewshot)
        try:
            results = lm_eval.evaluate(
                asked_model, loaded, limit=args.limit, bootstrap_iters=args.bootstrap_iters
            )
        except Exception as error:
            # Keep earlier scores, and continue with later tasks.
            logger.exception("%s: %s failed", model, name)
            failures.append(f"{name} of {model}: {type(error).__name__}: {error}")
            continue
        # The precision and length that the task was asked with: only equal ones are compared.
        asked = dict.fromkeys(results["samples"], [args.dtype, args.max_length])
        add_scores(folder, model, results | {"asked": asked}, identity)
        logger.info("%s: %s scored", model, name)
    asked_model.dbdict.close()
    return failures


def _key_of_answers(identity: ModelIdentity, args: ZeroShotArguments, begins_texts: bool) -> str:
    """Return the name under which answers are stored: what may alter an answer changes it."""
    packages = ("lm_eval", "transformers", "torch")
    versions = [importlib.metadata.version(package) for package in packages]
    decisive = ["summed in float32", identity, versions, args.dtype, args.max_length]
    if begins_texts:
        # Earlier versions asked without the token that begins texts.
        decisive.append("begins texts")
    return hashlib.sha256(repr(decisive).encode()).hexdigest()[:16]
