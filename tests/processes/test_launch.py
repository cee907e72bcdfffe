"""Launch configurations are what accelerate takes, they really train, and a launch that would do
less than asked is refused.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import processes
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_simple_launcher_cmd_env
from builders import DECODER, QUICK, tiny_model
from safetensors.torch import load_file
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import AutoModel, TrainingArguments

import headless_trainer
from headless_trainer import HeadlessTrainingArguments
from headless_trainer.processes.launch import check_launch
from headless_trainer.trainers.saving import prepare_fsdp

ROOT = Path(__file__).parents[2]
LAUNCH_FOLDER = Path(headless_trainer.__file__).parent / "cli" / "launch"
CONFIGS = {path.stem: path for path in LAUNCH_FOLDER.glob("*.yaml")}
SBATCH = LAUNCH_FOLDER / "slurm.sbatch"


class TestRefusal:
    @staticmethod
    def training(world_size: int, deepspeed=None):
        return SimpleNamespace(
            world_size=world_size, deepspeed_plugin=deepspeed, fsdp_plugin_args=None
        )

    def test_processes_that_would_train_alone(self):
        with pytest.raises(
            ValueError, match="WORLD_SIZE is 4 but this machine has no GPU.*--use_cpu"
        ):
            check_launch(self.training(1), {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4"})
        # Of Kubernetes.
        with pytest.raises(ValueError, match="WORLD_SIZE is 4 but LOCAL_RANK is missing.*torchrun"):
            check_launch(self.training(1), {"RANK": "0", "WORLD_SIZE": "4"})
        check_launch(self.training(4), {"RANK": "0", "WORLD_SIZE": "4"})

    def test_deepspeed_without_a_launcher(self, tmp_path, monkeypatch):
        with pytest.raises(
            ValueError, match="deepspeed or ACCELERATE_USE_DEEPSPEED is set without a launcher"
        ):
            check_launch(self.training(1, "zero2.json"), {"MASTER_PORT": "29500"})
        pytest.importorskip("deepspeed")
        monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")  # left over in a shell
        with pytest.raises(ValueError, match="ACCELERATE_USE_DEEPSPEED is set without a launcher"):
            HeadlessTrainingArguments(str(tmp_path), use_cpu=True)

    def test_rows_and_layers_split_by_the_launcher(self):
        for size in ("TP", "CP", "SP"):
            with pytest.raises(ValueError, match="parallelism_config splits rows or layers"):
                check_launch(self.training(2), {f"PARALLELISM_CONFIG_{size}_SIZE": "2"})

    def test_shards_that_would_save_no_model(self):
        with pytest.raises(
            ValueError, match="FSDP 1 would save no model: launch with --fsdp_version 2"
        ):
            check_launch(self.training(2), {"ACCELERATE_USE_FSDP": "true"})
        check_launch(self.training(2), {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"})
        args = self.training(2)
        for args.fsdp_plugin_args, refused in (
            ({"fsdp_version": 1}, True),
            ({"fsdp_version": 2}, False),
        ):
            with pytest.raises(ValueError, match="FSDP 1") if refused else nullcontext():
                check_launch(args, {})

    @pytest.mark.parametrize("config, said", [
        ({"gradient_accumulation_steps": 4}, "contradicts the arguments: .*gradient_accumulation_steps=4"),
        ({"bf16": {"enabled": True}}, "contradicts the arguments: .*bf16.enabled=True"),
        ({"zero_optimization": {"stage": 3}}, "zero3_save_16bit_model is false, so no model would be saved"),
        ({}, None),
    ])  # fmt: skip
    def test_configurations_of_deepspeed(self, tmp_path, config, said):
        pytest.importorskip("deepspeed")
        args = TrainingArguments(str(tmp_path), use_cpu=True, max_grad_norm=0.7)
        config = {"train_micro_batch_size_per_gpu": "auto"} | config
        args.deepspeed_plugin = SimpleNamespace(hf_ds_config=SimpleNamespace(config=config))
        with pytest.raises(ValueError, match=said) if said else nullcontext():
            check_launch(args, {"MASTER_ADDR": "node7", "MASTER_PORT": "29500"})
        assert config["gradient_clipping"] == 0.7

    def test_what_the_launcher_exports_is_what_arguments_say(self, tmp_path, monkeypatch):
        monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "False")
        for precision in ("bf16", "fp16", "no"):
            monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", precision)
            args = HeadlessTrainingArguments(str(tmp_path), use_cpu=True)
            assert (args.bf16, args.fp16) == (precision == "bf16", precision == "fp16")
        assert "ACCELERATE_DYNAMO_USE_DYNAMIC" not in os.environ
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
        with pytest.raises(ValueError, match="mixed_precision is fp8"):
            HeadlessTrainingArguments(str(tmp_path), use_cpu=True)

    @pytest.mark.parametrize("environment", [
        {"PARALLELISM_CONFIG_CP_SIZE": "1", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "2"},
        {},  # python run_pretrain.py
        {"MASTER_ADDR": "node7", "MASTER_PORT": "29500", "WORLD_SIZE": "8"},  # python, in a job of others
        {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},  # torchrun --nproc_per_node 1
    ])  # fmt: skip
    def test_ordinary_runs_in_one_process_are_not_refused(self, environment, caplog):
        check_launch(self.training(1), environment)
        assert not caplog.records

    def test_one_process_where_accelerate_was_asked_for_several_is_said(self, caplog):
        launched = parsed("cpu", "--cpu", "--num_processes", "2")
        launched.multi_gpu = False
        environment = prepare_simple_launcher_cmd_env(launched)[1]
        check_launch(
            self.training(1),
            {name: value for name, value in environment.items() if name != "WORLD_SIZE"},
        )
        assert "has started one process" in caplog.text


def test_fsdp_sums_in_32_bits():
    policy = MixedPrecisionPolicy(*[torch.bfloat16] * 3)
    plugin = SimpleNamespace(
        transformer_cls_names_to_wrap=["GPT2Block"], mixed_precision_policy=policy
    )
    prepare_fsdp(plugin, tiny_model("clm", layers=1))
    assert plugin.mixed_precision_policy == MixedPrecisionPolicy(
        torch.bfloat16, torch.float32, None
    )


def test_fsdp_shards_no_layer_around_the_embedding():
    plugin = SimpleNamespace(
        transformer_cls_names_to_wrap=["GPT2Block", "GPT2Model"], mixed_precision_policy=None
    )
    prepare_fsdp(plugin, tiny_model("clm", layers=1))
    assert plugin.transformer_cls_names_to_wrap == ["GPT2Block"]


def parsed(name: str, *flags: str):
    arguments = ["--config_file", str(CONFIGS[name]), *flags, "script.py"]
    return _validate_launch_command(launch_command_parser().parse_args(arguments))[0]


class TestConfigurations:
    KINDS = {
        "cpu": "MULTI_GPU",
        "multi_gpu": "MULTI_GPU",
        "multi_node": "MULTI_GPU",
        "fsdp2": "FSDP",
    }
    KINDS |= dict.fromkeys(("zero1", "zero2", "zero3"), "DEEPSPEED")

    @pytest.mark.parametrize("name", KINDS)
    def test_each_is_accepted_and_asks_for_the_number_of_gpus(self, name):
        kind = self.KINDS[name]
        assert load_config_from_file(str(CONFIGS[name])).distributed_type.value == kind
        args = parsed(name, "--num_processes", "4")
        chosen = {
            "MULTI_GPU": args.multi_gpu,
            "FSDP": args.use_fsdp,
            "DEEPSPEED": args.use_deepspeed,
        }
        assert [each for each, used in chosen.items() if used] == [kind]
        # Precision is the script's to choose.
        assert (args.num_processes, args.mixed_precision) == (
            4,
            "no",
        )
        if kind == "DEEPSPEED":
            assert (
                args.zero_stage == int(name[-1]) and args.deepspeed_multinode_launcher == "standard"
            )
            assert (args.zero3_save_16bit_model is True) == (name == "zero3")
        if kind == "FSDP":
            assert (args.fsdp_version, args.fsdp_state_dict_type) == (2, "FULL_STATE_DICT")
        with pytest.raises(ValueError, match="--num_processes") if name != "cpu" else nullcontext():
            assert parsed(name).num_processes == 2

    def test_the_slurm_script(self):
        assert subprocess.run(["bash", "-n", SBATCH], capture_output=True).returncode == 0
        directives = [
            line.split()[1]
            for line in SBATCH.read_text().splitlines()
            if line.startswith("#SBATCH")
        ]
        assert {
            "--signal=B:TERM@300",
            "--requeue",
            "--ntasks-per-node=1",
            "--open-mode=append",
        } <= set(directives)


PROBE = """
import headless_trainer
from headless_trainer import HeadlessTrainingArguments
from headless_trainer.fine_tuning.glue_arguments import GlueTrainingArguments
for kind in (HeadlessTrainingArguments, GlueTrainingArguments):
    try:
        print(kind("out", use_cpu=USE_CPU, report_to="none").world_size)
    except ValueError as error:
        print(type(error).__name__, error)
"""
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch"]


def here(tmp_path, **variables: str) -> dict[str, str]:
    own = {"PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "home"), "CUDA_VISIBLE_DEVICES": ""}
    return os.environ | own | variables


def launched(tmp_path, *flags: str, use_cpu: bool = True) -> str:
    script = tmp_path / "probe.py"
    script.write_text(PROBE.replace("USE_CPU", str(use_cpu)))
    command = [*LAUNCH, *flags, str(script)]
    return subprocess.run(
        command, cwd=tmp_path, env=here(tmp_path), capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_real_launches(tmp_path):
    for flags in (["--cpu"], []):
        assert launched(tmp_path, *flags, "--num_processes", "1").split()[-2:] == ["1", "1"]
    config = ["--config_file", str(CONFIGS["cpu"]), "--main_process_port", "0"]
    assert (
        launched(tmp_path, *config, use_cpu=False).count(
            "WORLD_SIZE is 2 but this machine has no GPU"
        )
        == 4
    )


FLAGS = [*DECODER, *QUICK, "--negatives", "world", "--save_strategy", "steps"]


@pytest.mark.slow
def test_two_processes_of_the_cpu_configuration_train(tmp_path, text_file):
    command = [
        *LAUNCH,
        "--config_file",
        str(CONFIGS["cpu"]),
        "--main_process_port",
        "0",
        "run_pretrain.py",
        *FLAGS,
    ]
    command += [
        "--train_file",
        str(text_file),
        "--output_dir",
        str(tmp_path / "run"),
        "--logging_steps",
        "1",
    ]
    subprocess.run(command, cwd=ROOT, env=here(tmp_path), check=True, capture_output=True)
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    steps = [logs for logs in history if "loss" in logs]
    tokens = [
        2 * 4 * 15
    ] * 4  # 4 rows of 16 tokens of each of 2 processes, and each contrasts with the targets of both
    assert (
        [logs["predicted_tokens"] for logs in steps]
        == [logs["pool_size"] for logs in steps]
        == tokens
    )
    assert all(logs["pool_exchange_bytes"] > 0 for logs in steps)
    AutoModel.from_pretrained(tmp_path / "run")


# Two machines with one GPU each, on this one without any: srun starts a task on each, and passes
# signals on.
SRUN = """#!/usr/bin/env bash
trap 'kill -TERM $tasks' TERM
for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@" & tasks="${tasks:-} $!"; done
status=0
for task in $tasks; do
    until wait $task; code=$?; ! kill -0 $task 2> /dev/null; do :; done
    [ $code -eq 0 ] || status=$code
done
exit $status
"""
SCONTROL = """#!/usr/bin/env bash
case $1 in show) printf '127.0.0.1\\n127.0.0.1\\n';; requeue) echo "$2" >> "$REQUEUED";; esac
"""


def slurm(folder: Path, srun: str, **variables: str) -> dict[str, str]:
    """The environment of a job, with stand-ins for SLURM's own commands in the folder."""
    for name, text in (("srun", srun), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return here(folder, PATH=path, SLURM_JOB_NAME="test", SLURM_GPUS_ON_NODE="1", **variables)


def test_a_slurm_job_starts_from_the_checkpoint_that_it_names_and_later_from_its_own(tmp_path):
    nodes = {"SLURM_JOB_NODELIST": "node1", "SLURM_NNODES": "1", "SLURM_JOB_ID": "1"}
    env = slurm(tmp_path, '#!/usr/bin/env bash\necho "${@: -6}"\n', **nodes)
    named, own = "--resume_from_checkpoint a/checkpoint-2", "--output_dir runs/test"
    for flags, restarts, words in (
        ("x y z w", "0", f"z w {own} --resume_from_checkpoint auto"),
        (f"x y {named}", "0", f"x y {named} {own}"),
        (f"x y {named.replace('_', '-')}", "0", f"x y {named.replace('_', '-')} {own}"),
        (f"x y {named}", "1", f"{named} {own} --resume_from_checkpoint auto"),
    ):
        command = ["bash", SBATCH, *flags.split()]
        said = subprocess.run(
            command, env=env | {"SLURM_RESTART_COUNT": restarts}, capture_output=True, text=True
        )
        assert said.stdout == f"{words}\n", said.stderr


@pytest.mark.slow
def test_a_slurm_job_is_requeued_and_goes_on(tmp_path, text_file):
    output, requeued = tmp_path / "run", tmp_path / "requeued"
    nodes = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2"}
    environment = slurm(tmp_path, SRUN, **nodes, OUTPUT_DIR=str(output), REQUEUED=str(requeued))
    command = [
        "bash",
        SBATCH,
        *FLAGS,
        "--train_file",
        str(text_file),
        "--max_steps",
        "800",
        "--logging_steps",
        "200",
    ]
    command += ["--save_steps", "20", "--save_total_limit", "2"]

    def submit() -> subprocess.Popen:
        # Of which the script makes its port.
        own = environment | {"SLURM_JOB_ID": str(processes.free_port())}
        with (tmp_path / "log").open("a") as log:
            return subprocess.Popen(
                command, cwd=ROOT, env=own, stdout=log, stderr=log, start_new_session=True
            )

    job, deadline = submit(), time.monotonic() + 400
    try:
        while (
            not list(output.glob("checkpoint-*"))
            and job.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        job.send_signal(signal.SIGTERM)
        assert job.wait(300) == 0, (tmp_path / "log").read_text()
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert len(requeued.read_text().split()) == 1 and not (output / "model.safetensors").exists()
    stopped = max(int(path.name.partition("-")[2]) for path in output.glob("checkpoint-*"))
    assert 20 <= stopped < 800
    assert submit().wait(300) == 0
    assert len(requeued.read_text().split()) == 1
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    logged = [logs["step"] for logs in history if "loss" in logs]
    # A log window ends at each checkpoint.
    assert logged == sorted({1, stopped, *range(20, 801, 20)})
    load_file(output / "model.safetensors")
