"""Launch configurations are what accelerate takes, and a launch that would run fewer processes than asked for is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headless_trainer.launch import check_launch

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs" / "accelerate").glob("*.yaml"))
MPI = {"PMI_SIZE": "2"}
# What `accelerate launch --cpu --num_processes 2` leaves behind, tried with accelerate 1.15.
ALONE = {"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


class TestRefusal:
    def test_one_process_where_several_were_asked_for(self):
        with pytest.raises(ValueError, match="asked for several processes") as error:
            check_launch(1, ALONE)
        assert "configs/accelerate/cpu.yaml" in str(error.value) and "--use_cpu" in str(error.value)

    def test_copies_that_know_nothing_of_each_other(self):
        with pytest.raises(ValueError, match="WORLD_SIZE is 4 but this machine has no GPU.*--use_cpu"):
            check_launch(1, {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"})

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
        check_launch(1, environment)

    @pytest.mark.parametrize("environment", [ALONE | MPI, {"RANK": "0", "WORLD_SIZE": "2"}])
    def test_processes_that_train_together_are_not_refused(self, environment):
        check_launch(2, environment)


PROBE = """
from headless_trainer import HeadlessTrainingArguments
from headless_trainer.glue_arguments import GlueTrainingArguments
for kind in (HeadlessTrainingArguments, GlueTrainingArguments):
    try:
        print(kind("out", use_cpu=USE_CPU, report_to="none").world_size)
    except ValueError as error:
        print(type(error).__name__, error)
"""


def launched(tmp_path, *flags: str, use_cpu: bool = True, **environment: str) -> str:
    script = tmp_path / "probe.py"
    script.write_text(PROBE.replace("USE_CPU", str(use_cpu)))
    command = [sys.executable, "-m", "accelerate.commands.launch", *flags, str(script)]
    environment = (
        os.environ | {"PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""} | environment
    )
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    return shown.stdout


@pytest.mark.slow
def test_real_launches(tmp_path):
    assert launched(tmp_path, "--cpu", "--num_processes", "2").count("asked for several processes") == 2
    assert launched(tmp_path, "--num_processes", "2", use_cpu=False).count("asked for several processes") == 2
    assert launched(tmp_path, "--cpu", "--num_processes", "1").split() == ["1", "1"]
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29999"}
    assert launched(tmp_path, "--num_processes", "1", **address).split() == ["1", "1"]
    assert launched(tmp_path, "--cpu", "--num_processes", "2", **address).count("asked for several processes") == 2
    config = ["--config_file", str(ROOT / "configs" / "accelerate" / "cpu.yaml"), "--main_process_port", "0"]
    assert launched(tmp_path, *config).split() == ["2"] * 4
    assert launched(tmp_path, *config, use_cpu=False).count("WORLD_SIZE is 2 but this machine has no GPU") == 4
