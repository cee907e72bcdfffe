"""Launch configurations are what accelerate takes, they really train, and a launch that would do less than asked is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import processes
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from safetensors.torch import load_file
from transformers import AutoModel

from headless_trainer.runtime.launch import check_launch

ROOT = Path(__file__).parents[2]
CONFIGS = {path.stem: path for path in (ROOT / "headless_trainer" / "cli" / "launch").glob("*.yaml")}
SBATCH = ROOT / "headless_trainer" / "cli" / "launch" / "slurm.sbatch"
# What `accelerate launch --cpu --num_processes 2` leaves behind, tried with accelerate 1.15.
ALONE = {"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def training(world_size: int, device: str = "cpu", fsdp: bool = False):
    return SimpleNamespace(world_size=world_size, device=torch.device(device), fsdp=fsdp, deepspeed=None)


class TestRefusal:
    @pytest.mark.parametrize(
        ("environment", "message"),
        [
            (ALONE, r"asked for several processes .*\$\(headless-trainer launch-config cpu\).*--use_cpu"),
            ({"RANK": "0", "WORLD_SIZE": "4"}, "WORLD_SIZE is 4 but this machine has no GPU.*--use_cpu"),
        ],
    )
    def test_one_process_where_several_were_asked_for(self, environment, message):
        with pytest.raises(ValueError, match=message):
            check_launch(training(1), environment)

    @pytest.mark.parametrize("how", [(True, {}), (False, {"ACCELERATE_USE_FSDP": "true"})])
    def test_shards_on_a_cpu(self, how):
        fsdp, environment = how
        with pytest.raises(ValueError, match="FSDP was asked for on a CPU.*headless-trainer launch-config cpu"):
            check_launch(training(2, fsdp=fsdp), environment)
        check_launch(training(2, device="cuda", fsdp=fsdp), environment)

    @pytest.mark.parametrize(
        "environment",
        [
            {},  # python run_pretrain.py
            {"ACCELERATE_USE_CPU": "False"},  # accelerate launch --num_processes 1
            {"MASTER_ADDR": "node7", "MASTER_PORT": "29500"},  # python, in a job that sets an address for others
            {"MASTER_ADDR": "node7", "MASTER_PORT": "29500", "WORLD_SIZE": "8"},
            {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},  # torchrun --nproc_per_node 1
            ALONE | {"PMI_SIZE": "1"},
        ],
    )
    def test_ordinary_runs_in_one_process_are_not_refused(self, environment):
        check_launch(training(1), environment)

    @pytest.mark.parametrize("environment", [ALONE | {"PMI_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "2"}])
    def test_processes_that_train_together_are_not_refused(self, environment):
        check_launch(training(2), environment)


def parsed(name: str, *flags: str):
    arguments = ["--config_file", str(CONFIGS[name]), *flags, "script.py"]
    return _validate_launch_command(launch_command_parser().parse_args(arguments))[0]


class TestConfigurations:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [("cpu", "MULTI_GPU"), ("multi_gpu", "MULTI_GPU"), ("multi_node", "MULTI_GPU"), ("fsdp2", "FSDP")]
        + [(f"zero{stage}", "DEEPSPEED") for stage in (1, 2, 3)],
    )
    def test_each_is_accepted(self, name, kind):
        config = load_config_from_file(str(CONFIGS[name]))
        assert config.distributed_type.value == kind
        args = parsed(name, "--num_processes", "4")
        assert (args.multi_gpu, args.use_fsdp, args.use_deepspeed) == tuple(
            kind == each for each in ("MULTI_GPU", "FSDP", "DEEPSPEED")
        )
        assert (args.num_processes, args.mixed_precision) == (4, "no")  # precision is the script's to choose
        if kind == "DEEPSPEED":
            assert args.zero_stage == int(name[-1]) and args.deepspeed_multinode_launcher == "standard"
            assert (args.zero3_save_16bit_model is True) == (name == "zero3")
        if kind == "FSDP":
            assert (args.fsdp_version, args.fsdp_state_dict_type) == (2, "FULL_STATE_DICT")

    @pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"cpu"}))
    def test_the_number_of_gpus_is_asked_for(self, name):
        with pytest.raises(ValueError, match="--num_processes"):
            parsed(name)

    def test_the_cpu_one_starts_two_processes(self):
        assert parsed("cpu").num_processes == 2

    def test_the_slurm_script(self):
        assert subprocess.run(["bash", "-n", SBATCH], capture_output=True).returncode == 0
        directives = [line.split()[1] for line in SBATCH.read_text().splitlines() if line.startswith("#SBATCH")]
        assert {"--signal=B:TERM@300", "--requeue", "--ntasks-per-node=1", "--open-mode=append"} <= set(directives)


PROBE = """
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


def launched(tmp_path, *flags: str, use_cpu: bool = True, **environment: str) -> str:
    script = tmp_path / "probe.py"
    script.write_text(PROBE.replace("USE_CPU", str(use_cpu)))
    command = [*LAUNCH, *flags, str(script)]
    run = subprocess.run(
        command, cwd=tmp_path, env=here(tmp_path, **environment), capture_output=True, text=True, check=True
    )
    return run.stdout


@pytest.mark.slow
def test_real_launches(tmp_path):
    refusal, address = "asked for several processes", {"MASTER_ADDR": "localhost", "MASTER_PORT": "29999"}
    assert launched(tmp_path, "--cpu", "--num_processes", "2").count(refusal) == 2
    assert launched(tmp_path, "--num_processes", "2", use_cpu=False, **address).count(refusal) == 2
    for flags in (["--cpu"], []):  # for one process the launcher leaves an address that is there already
        assert launched(tmp_path, *flags, "--num_processes", "1", **address).split()[-2:] == ["1", "1"]
    config = ["--config_file", str(CONFIGS["cpu"]), "--main_process_port", "0"]
    assert launched(tmp_path, *config, use_cpu=False).count("WORLD_SIZE is 2 but this machine has no GPU") == 4


FLAGS = (
    "--model_type gpt2 --config_overrides n_embd=16,n_layer=2,n_head=2,n_positions=32 --train_tokenizer --vocab_size 320 "
    "--max_seq_length 16 --per_device_train_batch_size 4 --use_cpu --negatives world --disable_tqdm true "
    "--validation_split_percentage 20 --preprocessing_num_workers 1"
).split()


@pytest.mark.slow
def test_two_processes_of_the_cpu_configuration_train(tmp_path, text_file):
    command = [*LAUNCH, "--config_file", str(CONFIGS["cpu"]), "--main_process_port", "0", "run_pretrain.py", *FLAGS]
    command += ["--train_file", str(text_file), "--output_dir", str(tmp_path / "run"), "--max_steps", "4"]
    command += ["--logging_steps", "1", "--do_eval"]
    subprocess.run(command, cwd=ROOT, env=here(tmp_path), check=True, capture_output=True)
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    steps = [logs for logs in history if "loss" in logs]
    tokens = [2 * 4 * 15] * 4  # 4 rows of 16 tokens of each of 2 processes, and each contrasts with the targets of both
    assert [logs["predicted_tokens"] for logs in steps] == [logs["pool_size"] for logs in steps] == tokens
    assert all(logs["pool_exchange_bytes"] > 0 for logs in steps)
    AutoModel.from_pretrained(tmp_path / "run")


# Two machines with one GPU each, on this one without any: srun starts a task on each, and passes signals on.
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


class Cluster:
    """Runs the SLURM script with stand-ins for SLURM's own commands."""

    def __init__(self, tmp_path):
        self.folder, self.requeued = tmp_path, tmp_path / "requeued"
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)

    def submit(self, output_dir: Path, *flags: str) -> subprocess.Popen:
        job = processes.free_port()  # the script makes its port of the job's number
        environment = here(
            self.folder, PATH=f"{self.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            SLURM_JOB_ID=str(job), SLURM_JOB_NAME="test", SLURM_JOB_NODELIST="node[1-2]", SLURM_NNODES="2",
            SLURM_GPUS_ON_NODE="1", OUTPUT_DIR=str(output_dir), REQUEUED=str(self.requeued),
        )  # fmt: skip
        log = (self.folder / "log").open("a")
        return subprocess.Popen(
            ["bash", SBATCH, *FLAGS, *flags], cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )


@pytest.mark.slow
def test_a_slurm_job_is_requeued_and_goes_on(tmp_path, text_file):
    if shutil.which("accelerate", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("the accelerate command is not beside this Python")
    cluster, output = Cluster(tmp_path), tmp_path / "run"
    flags = ["--train_file", str(text_file), "--max_steps", "800", "--logging_steps", "200"]
    flags += ["--save_steps", "20", "--save_total_limit", "2"]
    job = cluster.submit(output, *flags)
    try:
        deadline = time.monotonic() + 400
        while not list(output.glob("checkpoint-*")) and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        job.send_signal(signal.SIGTERM)
        assert job.wait(300) == 0, (tmp_path / "log").read_text()
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert len(cluster.requeued.read_text().split()) == 1
    assert not (output / "model.safetensors").exists()
    stopped = max(int(path.name.partition("-")[2]) for path in output.glob("checkpoint-*"))
    assert 20 <= stopped < 800
    assert cluster.submit(output, *flags).wait(120) == 0
    assert len(cluster.requeued.read_text().split()) == 1
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    logged = [logs["step"] for logs in history if "loss" in logs]
    assert logged == sorted({1, stopped, *range(20, 801, 20)})  # a log window ends at each checkpoint
    load_file(output / "model.safetensors")
