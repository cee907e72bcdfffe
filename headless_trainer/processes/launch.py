"""Check how the processes of a run were launched, and end them together."""

import atexit
import copy
import logging
import os
import sys
from collections.abc import Mapping

from transformers import TrainingArguments
from transformers.utils import strtobool

logger = logging.getLogger(__name__)


def connect(args: TrainingArguments) -> None:
    """Take over what the launcher exports, and set ``ddp_timeout`` on CPUs too.

    There transformers ignores it.
    """
    from accelerate import PartialState

    # accelerate launch exports its default, with which torch.compile would compile each number of
    # targets anew, then give up.
    if os.environ.get("ACCELERATE_DYNAMO_USE_DYNAMIC") == "False":
        del os.environ["ACCELERATE_DYNAMO_USE_DYNAMIC"]
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if launched in ("bf16", "fp16") and not (args.bf16 or args.fp16):
        # Or cards, results and DeepSpeed's checks would take it for float32.
        setattr(args, launched, True)
    if computes_on_cpu(args):
        backend = None
        if _is_launched(os.environ):
            backend = args.ddp_backend
        PartialState(cpu=True, backend=backend, timeout=args.ddp_timeout_delta)


def check_shards_are_launched(
    args: TrainingArguments, environment: Mapping[str, str] = os.environ
) -> None:
    """Refuse FSDP without a launcher, before transformers tells all later trainings of the process
    to use it.
    """
    if args.fsdp and not _is_launched(environment):
        raise ValueError(
            f"fsdp is {args.fsdp!r} but no launcher has started this process: use accelerate "
            "launch or torchrun, or leave it out."
        )


def _is_launched(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher has started this process, as it starts each of a group."""
    return "RANK" in environment


def computes_on_cpu(args: TrainingArguments) -> bool:
    """Return whether ``use_cpu`` or the launcher tells the run not to use GPUs."""
    return bool(args.use_cpu or strtobool(os.environ.get("ACCELERATE_USE_CPU", "False")))


def shards(args: TrainingArguments) -> bool:
    """Return whether DeepSpeed or FSDP shard the run, by a setting or by the launcher."""
    return bool(args.deepspeed_plugin is not None or args.fsdp or _launches_fsdp(os.environ))


def _launches_fsdp(environment: Mapping[str, str]) -> bool:
    return bool(strtobool(environment.get("ACCELERATE_USE_FSDP", "False")))


def check_launch(args: TrainingArguments, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse launches that would train alone, split rows, or lose a setting or the model."""
    if args.deepspeed_plugin is not None:
        if not {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
            raise ValueError(
                "deepspeed or ACCELERATE_USE_DEEPSPEED is set without a launcher: use accelerate "
                "launch."
            )
        _check_deepspeed(args)
    for parallelism in ("TP", "CP", "SP"):
        if int(environment.get(f"PARALLELISM_CONFIG_{parallelism}_SIZE", "1")) > 1:
            raise ValueError(
                "accelerate's parallelism_config splits rows or layers: leave its tp, cp and sp "
                "sizes at 1."
            )
    if _fsdp_version(args, environment) != 2:
        raise ValueError(
            "FSDP 1 would save no model: launch with --fsdp_version 2 (headless-trainer "
            "launch-config fsdp2)."
        )
    if environment.get("ACCELERATE_MIXED_PRECISION") == "fp8":
        raise ValueError(
            "accelerate's mixed_precision is fp8, which replaces layers that the loss reads: use "
            "bf16."
        )
    _check_processes_are_connected(args, environment)
    # The launcher of a single process sets these even if several were requested.
    of_launcher = {"ACCELERATE_USE_CPU", "MASTER_ADDR", "MASTER_PORT"}
    if of_launcher <= environment.keys() and "WORLD_SIZE" not in environment:
        logger.warning(
            "accelerate launch has started one process; if --num_processes is larger, use "
            '--config_file "$(headless-trainer launch-config cpu)" and --use_cpu to train on CPUs.'
        )


def _fsdp_version(args: TrainingArguments, environment: Mapping[str, str]) -> int:
    """Return the version of FSDP that the launcher or a setting asks for; 2 if neither does."""
    if _launches_fsdp(environment):
        return int(environment.get("FSDP_VERSION", "1"))
    return int((args.fsdp_plugin_args or {}).get("fsdp_version", 2))


def _check_processes_are_connected(args: TrainingArguments, environment: Mapping[str, str]) -> None:
    """Refuse one of several processes that would train alone."""
    started = environment.get("WORLD_SIZE", "1")
    if args.world_size > 1 or started == "1" or "RANK" not in environment:
        return
    problem = "this machine has no GPU"
    remedy = "add --use_cpu to the script's flags to train on CPUs"
    if "LOCAL_RANK" not in environment:
        problem = "LOCAL_RANK is missing"
        remedy = "launch with torchrun or accelerate launch, set LOCAL_RANK"
    raise ValueError(
        f"WORLD_SIZE is {started} but {problem}, so each of the {started} processes would train "
        f"alone, into the same folder: {remedy}, or launch one process."
    )


def _check_deepspeed(args: TrainingArguments) -> None:
    """Complete DeepSpeed's configuration.

    Raises:
        ValueError: if it contradicts the arguments, or would not save the model.
    """
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = args.deepspeed_plugin.hf_ds_config.config
    config.setdefault("gradient_clipping", args.max_grad_norm)
    merged = HfTrainerDeepSpeedConfig(copy.deepcopy(config))
    merged.trainer_config_process(args)
    if merged.mismatches:
        # transformers would end with them once the corpus is tokenized.
        raise ValueError(
            f"DeepSpeed's configuration contradicts the arguments: {'; '.join(merged.mismatches)}."
        )
    if merged.is_zero3() and not merged.is_true(
        "zero_optimization.stage3_gather_16bit_weights_on_model_save"
    ):
        raise ValueError(
            "DeepSpeed's zero3_save_16bit_model is false, so no model would be saved: set it to "
            "true."
        )


def check_one_process(what_it_does: str) -> None:
    """Refuse a launcher of several processes, each of which would do the whole work.

    ``what_it_does`` ends the clause that begins with "one process", such as ``is timed``.
    """
    processes = int(os.environ.get("WORLD_SIZE") or 1)
    if processes > 1:
        raise ValueError(
            f"WORLD_SIZE is {processes} but one process {what_it_does}: start it without a "
            "launcher."
        )


def check_devices(args: TrainingArguments) -> None:
    """Refuse ``torch.nn.DataParallel``: its model copies in threads would share a loss's state."""
    if args.n_gpu > 1:
        raise ValueError(
            f"n_gpu is {args.n_gpu}: one process would drive {args.n_gpu} GPUs. Start one process "
            f"for each, with accelerate launch --num_processes {args.n_gpu} before the script, or "
            "use one, with CUDA_VISIBLE_DEVICES=0."
        )


def leave_together(code: int = 0) -> None:
    """End this process, if it did not train alone, once all processes of the run have arrived here.

    With gloo, the interpreter's own teardown sometimes aborts ("terminate called without an active
    exception"), and launchers then report a finished run as failed.
    """
    # Not at the top: the arguments import this module, and --help needs no torch.
    import torch

    from .coordination import lost_processes_named

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        if code != 0:
            sys.exit(code)
        return
    with lost_processes_named():
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # Trackers send their remaining data.
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
