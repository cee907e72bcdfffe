"""Weights, gradients and optimizer cut into shards by DeepSpeed ZeRO and FSDP2, as accelerate
launch starts them, on two CPU processes or up to two GPUs: the numbers of one process.
"""

import os
import shutil
from pathlib import Path
from unittest import mock

import processes
import pytest
import torch
from accelerate import PartialState
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from builders import Tokenizer, labelled_rows, tiny_model
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import AutoModel, LlamaConfig, LlamaModel

import headless_trainer
from headless_trainer import (
    HeadlessTrainer,
    HeadlessTrainingArguments,
    SampledSoftmaxTrainer,
    VanillaTrainer,
)
from headless_trainer.checkpoints.token_counts import load_token_counts

CONFIGS = Path(headless_trainer.__file__).parent / "cli" / "launch"
VOCAB, ROWS = 40, 8
STEPS, STOP = 20, 8
PADDING_ID = 1
RUNS = [
    *(("mlm", "headless"), ("clm", "headless"), ("clm", "vanilla")),
    *(("clm", "sampled_softmax"), ("mlm", "sampled_softmax"), ("mlm", "vanilla")),
]
TWO_NAMES = RUNS[-2:]  # of BERT's head, which has its bias under two names


def environment(name: str, count: int) -> dict[str, str]:
    """What accelerate launch sets for a launch configuration and a number of processes."""
    flags = [
        "--config_file",
        str(CONFIGS / f"{name}.yaml"),
        "--num_processes",
        str(count),
        "--main_process_port",
        "0",
    ]
    args, defaults, _ = _validate_launch_command(
        launch_command_parser().parse_args([*flags, "script.py"])
    )
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
        _, made = prepare_deepspeed_cmd_env(args)
    else:
        made = prepare_multi_gpu_env(args)
    return {key: value for key, value in made.items() if key.startswith(("ACCELERATE_", "FSDP_"))}


def model_for(task: str, objective: str):
    if task == "mlm" or objective != "headless":
        return tiny_model(task, VOCAB, objective, positions=16)
    torch.manual_seed(0)  # with a padding id that is one of the tokens
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return LlamaModel(LlamaConfig(vocab_size=VOCAB, pad_token_id=PADDING_ID, **sizes))


def train(
    folder,
    task: str,
    objective: str,
    *,
    batch_size: int,
    device: str,
    resume: bool = False,
    fsdp=False,
):
    """Losses and held-out figures of a run, saved in ``folder``, and whether this process has all
    of the embedding.
    """
    args = HeadlessTrainingArguments(
        str(folder), task=task, objective=objective, negatives="micro_batch" if objective == "vanilla" else "world",
        per_device_train_batch_size=batch_size, per_device_eval_batch_size=1,
        gradient_accumulation_steps=ROWS // batch_size // int(os.environ.get("WORLD_SIZE", 1)), max_steps=STEPS,
        learning_rate=1e-3, weight_decay=0.01, use_cpu=device == "cpu", logging_steps=1, save_steps=STOP, save_strategy="steps",
        disable_tqdm=True, report_to="none", train_sampling_strategy="sequential",
        eval_pool_size=20 if objective == "headless" else 4096,
    )  # fmt: skip
    if args.deepspeed_plugin is not None:  # ZeRO-3 leaves parameters below 100,000 elements whole
        args.deepspeed_plugin.deepspeed_config["zero_optimization"][
            "stage3_param_persistence_threshold"
        ] = 0
    if fsdp:
        # accelerate shards on accelerators alone, though torch does on CPUs too: this lets it take
        # the same way here.
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    kinds = {
        "headless": HeadlessTrainer,
        "vanilla": VanillaTrainer,
        "sampled_softmax": SampledSoftmaxTrainer,
    }
    counts = (
        {"token_counts": torch.ones(VOCAB, dtype=torch.long)}
        if objective == "sampled_softmax"
        else {}
    )
    with mock.patch.dict(os.environ, {"ACCELERATE_USE_FSDP": "true"} if fsdp else {}):
        trainer = kinds[objective](
            model_for(task, objective), args, train_dataset=labelled_rows(task, True),
            eval_dataset=labelled_rows(task, True),
            processing_class=Tokenizer(VOCAB), **counts,
        )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume or None)
    weight = trainer.embedding.weight
    whole = (weight.to_local() if isinstance(weight, DTensor) else weight).numel() == VOCAB * 16
    metrics = trainer.evaluate() if trainer.is_prepared else {}
    trainer.save_model()
    losses = {logs["step"]: logs["loss"] for logs in trainer.state.log_history if "loss" in logs}
    left_out = ("runtime", "per_second", "preparation_time", "epoch")
    kept = [name for name in metrics if not name.endswith(left_out)]
    return losses, {name: metrics[name] for name in kept}, whole


def _train_all(rank: int, folder: str, made: dict[str, str], device: str) -> None:
    found, fsdp = {}, device == "cpu" and made.pop("ACCELERATE_USE_FSDP", None) == "true"
    os.environ.update(made)
    settings = {"batch_size": 1, "device": device, "fsdp": fsdp}
    # On which the same run differs in its last bits otherwise.
    torch.use_deterministic_algorithms(device == "cuda")
    if made.get("ACCELERATE_USE_DEEPSPEED"):
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
            False  # gloo instead of a kernel to compile
        )
    for task, objective in RUNS:
        if (task, objective) in TWO_NAMES and os.environ.get("FSDP_VERSION") == "2":
            said = "names, cls.predictions.bias and cls.predictions.decoder.bias, which FSDP2"
            with pytest.raises(ValueError, match=said):
                train(Path(folder, "refused"), task, objective, **settings)
            continue
        found[task, objective] = train(
            Path(folder, f"{task}_{objective}"), task, objective, **settings
        )
    whole, again = Path(folder, "mlm_headless"), Path(folder, "again")
    if rank == 0:
        shutil.copytree(whole / f"checkpoint-{STOP}", again / f"checkpoint-{STOP}")
    torch.distributed.barrier()
    found["again"] = train(again, "mlm", "headless", resume=True, **settings)
    if rank == 0:
        (again / "model.safetensors").rename(again / "before")
    torch.distributed.barrier()
    train(again, "mlm", "headless", resume=True, **settings)  # nothing is left to train
    if rank == 0:
        torch.save(found, Path(folder, "found.pt"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory, device):
    """The same runs in one process, with the whole batch at once."""
    folder = tmp_path_factory.mktemp("alone")
    found = {
        (task, objective): train(
            folder / f"{task}_{objective}", task, objective, batch_size=ROWS, device=device
        )
        for task, objective in RUNS
    }
    return folder, found


# Largest differences of losses and of weights. On a GPU the kernels themselves differ with the size
# of the batch, and AdamW makes of a gradient that is rounding alone, as a key's bias has, a step of
# the usual length.
TOLERANCE = {"cpu": (5e-5, 1e-5), "cuda": (1e-3, 1e-2)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], scope="module"
)
@pytest.mark.parametrize(
    "case", ["zero1", "zero2", "zero3", "fsdp2", "fsdp2_with_sharded_checkpoints"]
)
def test_shards_train_as_one_process(tmp_path, alone, case, device):
    name, _, sharded_checkpoints = case.partition("_")
    settings = {"FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"} if sharded_checkpoints else {}
    if name.startswith("zero"):
        pytest.importorskip(
            "deepspeed", reason="ZeRO needs DeepSpeed: pip install -e '.[deepspeed]'"
        )
    count = 2 if device == "cpu" else min(2, torch.cuda.device_count())
    processes.run(_train_all, count, str(tmp_path), environment(name, count) | settings, device)
    of_losses, of_weights = TOLERANCE[device]
    found = torch.load(tmp_path / "found.pt")
    folder, wanted = alone
    for task, objective in RUNS[:-2] if name == "fsdp2" else RUNS:
        run = f"{task}_{objective}"
        want_losses, want_metrics, _ = wanted[task, objective]
        losses, metrics, whole = found[task, objective]
        assert whole == (name in ("zero1", "zero2") or (name == "fsdp2" and count == 1))
        assert len(losses) == STEPS and losses == pytest.approx(want_losses, abs=of_losses), run
        assert metrics == pytest.approx(want_metrics, abs=of_losses), run
        weights, want = (
            load_file(where / run / "model.safetensors") for where in (tmp_path, folder)
        )
        assert weights.keys() >= want.keys()  # of two names of one matrix, FSDP2 saves both
        assert all((weights[key] - want[key]).abs().max() < of_weights for key in want), run
        AutoModel.from_pretrained(tmp_path / run)
    assert load_file(tmp_path / "clm_headless" / "model.safetensors")["embed_tokens.weight"][
        PADDING_ID
    ].any()
    for config in tmp_path.glob("clm_headless/**/config.json"):  # no client takes E^T for a head
        assert '"tie_word_embeddings": false' in config.read_text()
    assert found["again"] == found["mlm", "headless"]
    weights, want = (
        load_file(tmp_path / "again" / name) for name in ("model.safetensors", "before")
    )
    assert weights.keys() == want.keys() and all(
        torch.equal(weights[key], want[key]) for key in want
    )
    counts, totals = load_token_counts(folder / "mlm_headless")
    for run in ("mlm_headless", "again"):
        found_counts, found_totals = load_token_counts(tmp_path / run)
        assert (
            torch.equal(counts, found_counts)
            and totals["tokens_seen"] == found_totals["tokens_seen"]
        )


def _train_in_bf16(rank: int, folder: str, made: dict[str, str]) -> None:
    os.environ.update(
        {name: value for name, value in made.items() if name != "ACCELERATE_USE_FSDP"}
    )
    for objective in ("headless", "vanilla", "sampled_softmax"):
        losses = train(
            Path(folder, objective), "clm", objective, batch_size=1, device="cpu", fsdp=True
        )[0]
        torch.save(losses, Path(folder, objective, f"losses_{rank}"))


@pytest.mark.slow
def test_fsdp_in_bf16_rounds_no_sum(tmp_path, monkeypatch):
    processes.run(
        _train_in_bf16,
        2,
        str(tmp_path),
        environment("fsdp2", 2) | {"ACCELERATE_MIXED_PRECISION": "bf16"},
    )
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    for objective in ("headless", "vanilla", "sampled_softmax"):
        want = train(
            tmp_path / f"{objective}_alone", "clm", objective, batch_size=ROWS, device="cpu"
        )[0]
        assert torch.load(tmp_path / objective / "losses_0") == pytest.approx(want, abs=2e-3), (
            objective
        )
