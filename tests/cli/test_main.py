"""`headless-trainer`: its commands, presets and launch configurations, from a checkout and from a
wheel alone.
"""

import dataclasses
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from builders import OPTIONS, refused
from safetensors.torch import load_file
from transformers import TrainingArguments

import headless_trainer
from headless_trainer.cli import main as entry
from headless_trainer.command_line import COMMANDS, MODULES, PRESETS

ROOT = Path(__file__).parents[2]


def shown(capsys, *argv: str) -> str:
    entry.main(list(argv))
    return capsys.readouterr().out


def test_windows_is_refused():
    code = "import os; os.name = 'nt'; import headless_trainer"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (
        ended.returncode == 1
        and "RuntimeError: headless_trainer runs on Linux and macOS." in ended.stderr
    )


def test_help_names_every_command(capsys):
    text = shown(capsys)
    assert text == shown(capsys, "--help")
    assert all(f"\n  {name} " in text for name in (*COMMANDS, "presets", "launch-config"))
    assert "'pretain'" in (said := refused(entry.main, "pretain")) and "'pretrain'" in said


def test_one_version_is_shown_installed_and_cited(capsys):
    version = headless_trainer.__version__
    # torch itself may add the build's CUDA version, which the name of its wheel lacks.
    torch_version = importlib.metadata.version("torch")
    assert f", headless_trainer {version}, torch {torch_version}, " in shown(capsys, "--version")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


USAGE = "from headless_trainer.cli import main\nfor name in ('--help', 'presets', 'launch-config'): main.main([name])"
HELP = "from headless_trainer.cli import main\nmain.main(['pretrain', '--help'])"
MODULES_ALONE = "\n".join(f"import headless_trainer.cli.{name}" for name in MODULES.values())


@pytest.mark.parametrize("code, absent", [
    (MODULES_ALONE, {"torch", "transformers", "numpy"}),  # a command answers signals before it imports them
    (USAGE, {"torch", "transformers", "numpy"}), (HELP, {"torch", "datasets", "matplotlib"}),
])  # fmt: skip
def test_what_takes_seconds_to_import_is_imported_late(code, absent):
    report = f"atexit.register(lambda: print({absent} & {{name for name, module in sys.modules.items() if module}}))"
    code = f"import atexit, sys\n{report}\n{code}"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout.endswith("set()\n") and ended.stderr == "" and ended.returncode == 0


def test_a_command_that_ends_says_nothing_about_memory():
    code = "from headless_trainer.cli import main\nmain.main(['--version'])"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    # triton's bindings have a list of what they take for leaks.
    assert ended.returncode == 0 and "leak" not in ended.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_line_for_each_flag_of_ours_and_help_all_for_every_flag(capsys, command):
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as end:
            entry.main([command, flag])
        assert not end.value.code
        shown[flag] = capsys.readouterr().out
    fields = {
        field.name for kind in OPTIONS[command] for field in dataclasses.fields(kind) if field.init
    }
    unread = {name for kind in OPTIONS[command] for name in getattr(kind, "unread_flags", ())}
    theirs = {
        each.name
        for each in dataclasses.fields(TrainingArguments)
        if command in ("pretrain", "lm-head", "glue", "compare-steps")
    }
    short, full = (re.findall(r"^  --(\w+)", text, re.MULTILINE) for text in shown.values())
    assert {*full} - {f"no_{name}" for name in fields} == fields and len({*short}) == len(short)
    assert fields - theirs - unread <= {*short} and not unread & {*short}
    lines = shown["--help"].splitlines()
    assert len(lines) <= 90 and "--help-all" in lines[-1]
    assert not [line for line in lines if re.search(r" \.\.\.( \[|$)", line)]  # cut
    # Each with its text.
    assert all(line.split(maxsplit=1)[1:] for line in lines if line.startswith("  --"))


def test_presets_are_listed_one_a_line_below_their_command(capsys):
    blocks = shown(capsys, "presets").split("\n\n")
    listed = [[line.split()[0] for line in block.splitlines()[1:]] for block in blocks[:-1]]
    assert sorted(name for names in listed for name in names) == sorted(PRESETS)
    assert [block.split()[1] for block in blocks[:-1]] == ["pretrain", "lm-head", "glue"]
    assert "demo" in listed[0] and "paper_lm_head_text" in listed[1] and "paper_xnli" in listed[2]
    assert all(len(line.split()) > 3 for block in blocks[:-1] for line in block.splitlines())


def test_launch_configurations_are_listed_and_their_files_found_by_name(capsys):
    lines = shown(capsys, "launch-config").splitlines()
    names = {line.split()[0] for line in lines if line.startswith("  ")} - {"-m"}
    assert names == {"cpu", "multi_gpu", "multi_node", "fsdp2", "zero1", "zero2", "zero3", "slurm"}
    assert (
        "distributed_type: MULTI_GPU"
        in Path(shown(capsys, "launch-config", "cpu").strip()).read_text()
    )
    assert "The nearest is 'zero3'" in refused(entry.main, "launch-config", "zero_3")


@pytest.mark.slow
def test_a_wheel_trains_without_the_source_tree(tmp_path, text_file):
    """Built and installed elsewhere, run elsewhere: presets, launch configurations and templates
    are in the package.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    source, wheels, site = tmp_path / "source", tmp_path / "wheels", tmp_path / "site"
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in tracked:  # not the tree itself: a build leaves folders in it
        if name.startswith(
            ("headless_trainer/", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
        ):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, source]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", site, wheel], check=True, capture_output=True
    )
    data = {
        name
        for name in tracked
        if name.startswith("headless_trainer/") and not name.endswith(".py")
    }
    assert len(data) > 2 and {name for name in data if not (site / name).is_file()} == set()
    environment = os.environ | {
        "PYTHONPATH": str(site),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(tmp_path),
    }
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run(*command: object) -> str:
        command = [sys.executable, *map(str, command)]
        done = subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", "import headless_trainer; print(headless_trainer.__file__)").startswith(
        str(site)
    )
    (script,) = (path for path in (site / "bin").iterdir() if path.stem == "headless-trainer")
    assert "  demo  " in run(script, "presets")
    assert Path(run(script, "launch-config", "cpu").strip()).is_relative_to(site)
    small = "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32"
    flags = f"--config_overrides {small} --vocab_size 320 --max_seq_length 16 --preprocessing_num_workers 1".split()
    flags += ["--train_file", text_file, "--max_steps", "2", "--use_cpu", "--disable_tqdm", "true"]
    run(script, "pretrain", "demo", *flags, "--output_dir", "run")
    assert load_file(elsewhere / "run" / "model.safetensors")
    assert json.loads((elsewhere / "run" / "trainer_state.json").read_text())["global_step"] == 2
    card = (elsewhere / "run" / "README.md").read_text(encoding="utf-8")
    assert "\nheadless-trainer lm-head --model_name_or_path ./run --output_dir run-lm\n" in card
    run(script, "lm-head", "--model_name_or_path", "run", "--output_dir", "run-lm")
    assert (elsewhere / "run-lm" / "model.safetensors").is_file()
