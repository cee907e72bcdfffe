"""`headless-trainer`: its commands, presets and launch configurations, from a checkout and from a wheel alone."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from headless_trainer.cli import main as entry
from headless_trainer.command_line import COMMANDS, PRESETS, as_typed, errors_in_one_line, find_config, importing

ROOT = Path(__file__).parents[2]


def shown(capsys, *argv: str) -> str:
    entry.main(list(argv))
    return capsys.readouterr().out


def refused(*argv: str) -> str:
    with pytest.raises(SystemExit) as error:
        entry.main(list(argv))
    return str(error.value)


def test_on_windows_it_is_said_what_it_runs_on():
    code = "import os; os.name = 'nt'; import headless_trainer"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    said = "RuntimeError: headless_trainer runs on Linux and macOS. On Windows, install it within WSL."
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1] == said
    assert "OS Independent" not in (ROOT / "setup.cfg").read_text()


def test_help_names_every_command(capsys):
    text = shown(capsys)
    assert text == shown(capsys, "--help")
    assert all(f"\n  {name} " in text for name in (*COMMANDS, "presets", "launch-config"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_module_and_its_script(name):
    module = name.replace("-", "_")
    assert (ROOT / "headless_trainer" / "cli" / f"{module}.py").is_file()
    assert f"from headless_trainer.cli.{module} import main" in (ROOT / f"run_{module}.py").read_text()


def test_a_command_answers_signals_before_it_imports_what_takes_seconds():
    modules = [f"headless_trainer.cli.{name.replace('-', '_')}" for name in COMMANDS]
    code = f"import importlib, sys\nfor name in {modules}:\n    importlib.import_module(name)\n"
    code += "print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    end = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert end.stdout == "set()\n", end.stderr


@pytest.mark.parametrize("is_first", [True, False])
def test_modules_are_left_out_of_garbage_collections_unless_the_program_has_them(is_first, monkeypatch):
    if is_first:
        monkeypatch.delitem(sys.modules, "transformers")
    gc.collect()
    frozen = gc.get_freeze_count()
    with pytest.raises(ImportError), importing():
        assert gc.isenabled() is not is_first
        made = [[] for _ in range(10_000)]
        raise ImportError
    assert gc.isenabled() and (gc.get_freeze_count() - frozen >= len(made)) is is_first


def test_lists_and_usage_need_no_torch():
    """They answer at once: torch and transformers take seconds to import."""
    code = "import sys\nfrom headless_trainer.cli import main\nfor name in ('--help', 'presets', 'launch-config'):\n"
    code += "    main.main([name])\nprint({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


def test_usage_is_printed_before_the_flags_are_known(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "headless_trainer.arguments", None)
    with pytest.raises(ImportError):
        entry.main(["pretrain", "--help"])
    assert "headless-trainer pretrain demo" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["pretrain", "lm-head", "glue"])
def test_help_is_the_same_without_torch(command, capsys, monkeypatch):
    """A process that only prints its help imports no torch, which takes seconds; this one has it."""
    assert "torch" in sys.modules
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        entry.main([command, "--help"])
    code = "import sys\nfrom headless_trainer.cli import main\n"
    code += f"try:\n    main.main([{command!r}, '--help'])\n"
    code += "finally:\n    print([name for name in ('torch', 'datasets', 'matplotlib') if sys.modules.get(name)])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == capsys.readouterr().out + "[]\n" and "--learning_rate" in done.stdout
    assert done.returncode == 0 and done.stderr == ""


def test_an_unknown_command_names_the_nearest():
    assert refused("pretain") == (
        "ValueError: There is no command 'pretain'. The nearest is 'pretrain'; `headless-trainer --help` lists all."
    )


# Presets -----------------------------------------------------------------------------------------------------------------


def test_presets_are_listed_one_a_line_below_their_command(capsys):
    blocks = shown(capsys, "presets").split("\n\n")
    listed = [[line.split()[0] for line in block.splitlines()[1:]] for block in blocks[:-1]]
    assert sorted(name for names in listed for name in names) == sorted(PRESETS)
    assert [block.split()[1] for block in blocks[:-1]] == ["pretrain", "lm-head", "glue"]
    assert "demo" in listed[0] and "paper_lm_head_text" in listed[1] and "paper_xnli" in listed[2]
    assert all(len(line.split()) > 3 for block in blocks[:-1] for line in block.splitlines())


def test_a_file_comes_before_the_preset_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "configs/demo.yaml"):
        assert find_config(name) == PRESETS["demo"]
    Path("configs").mkdir()
    Path("configs/demo.yaml").write_text("max_steps: 1")
    assert find_config("configs/demo.yaml") == Path("configs/demo.yaml")
    Path("demo").mkdir()
    assert find_config("demo") == PRESETS["demo"]  # a preset's own name is never a folder or a file without a suffix


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "paper_encoder_headles",
            "There is no preset 'paper_encoder_headles'. The nearest preset is 'paper_encoder_head",
        ),
        (
            "configs/dmo.yaml",
            "Configuration file 'configs/dmo.yaml' does not exist. The nearest preset is 'demo'; `head",
        ),
        (
            "runs/demo.yaml",
            "Configuration file 'runs/demo.yaml' does not exist. The nearest preset is 'demo'; `headless",
        ),
        ("corpus.txt", "There is no preset 'corpus.txt'."),
    ],
)
def test_an_unknown_preset_names_the_nearest_and_the_list(name, message):
    with pytest.raises(FileNotFoundError) as error:
        find_config(name)
    assert str(error.value).startswith(message) and "`headless-trainer presets` lists all" in str(error.value)


def test_launch_configurations(capsys):
    lines = shown(capsys, "launch-config").splitlines()
    names = {line.split()[0] for line in lines if line.startswith("  ")} - {"-m"}
    assert names == {"cpu", "multi_gpu", "multi_node", "fsdp2", "zero1", "zero2", "zero3", "slurm"}
    assert "distributed_type: MULTI_GPU" in Path(shown(capsys, "launch-config", "cpu").strip()).read_text()
    assert "The nearest is 'zero3'" in refused("launch-config", "zero_3")


# What a reader types -----------------------------------------------------------------------------------------------------

MESSAGE = (
    "Use `headless-trainer lm-head --do_train`; `headless-trainer presets` lists presets of headless-trainer glue."
)


@pytest.mark.parametrize(
    "program", ["/usr/bin/headless-trainer", "/lib/headless_trainer/cli/pretrain.py", "notebook.py", "run_mine.py", ""]
)
def test_the_installed_command_is_named(monkeypatch, program):
    monkeypatch.setattr("sys.argv", [program])
    assert as_typed(MESSAGE) == MESSAGE


@pytest.mark.parametrize("program", ["run_pretrain.py", "checkout/run_lm_eval.py"])
def test_from_a_checkout_its_script_is_named(monkeypatch, program):
    monkeypatch.setattr("sys.argv", [program])
    typed = (
        "Use `python run_lm_head.py --do_train`; `python -m headless_trainer.cli.main presets` lists presets of "
        "python run_glue.py."
    )
    assert as_typed(MESSAGE) == typed
    with pytest.raises(SystemExit, match="^ValueError: Use `python run_lm_head.py"), errors_in_one_line(ValueError):
        raise ValueError(MESSAGE)


# From a wheel alone ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_wheel_trains_without_the_source_tree(tmp_path, text_file):
    """Built and installed elsewhere, run elsewhere: presets, launch configurations and templates are in the package."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    source, wheels, site = tmp_path / "source", tmp_path / "wheels", tmp_path / "site"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:  # not the tree itself: a build leaves folders in it
        if name.startswith(("headless_trainer/", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, source]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True, capture_output=True)
    data = {name for name in tracked if name.startswith("headless_trainer/") and not name.endswith(".py")}
    assert len(data) > 2 and {name for name in data if not (site / name).is_file()} == set()
    environment = os.environ | {"PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path)}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run(*command: object) -> str:
        command = [sys.executable, *map(str, command)]
        done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", "import headless_trainer; print(headless_trainer.__file__)").startswith(str(site))
    (script,) = (path for path in (site / "bin").iterdir() if path.stem == "headless-trainer")
    assert "  demo  " in run(script, "presets")
    assert Path(run(script, "launch-config", "cpu").strip()).is_relative_to(site)
    small = "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32"
    flags = [
        "--config_overrides",
        small,
        "--vocab_size",
        "320",
        "--max_seq_length",
        "16",
        "--preprocessing_num_workers",
        "1",
    ]
    flags += ["--train_file", text_file, "--max_steps", "2", "--use_cpu", "--disable_tqdm", "true"]
    run(script, "pretrain", "demo", *flags, "--output_dir", "run")
    assert load_file(elsewhere / "run" / "model.safetensors")
    assert json.loads((elsewhere / "run" / "trainer_state.json").read_text())["global_step"] == 2
    card = (elsewhere / "run" / "README.md").read_text(encoding="utf-8")
    assert "\nheadless-trainer lm-head --model_name_or_path run --output_dir run-lm\n" in card
    run(script, "lm-head", "--model_name_or_path", "run", "--output_dir", "run-lm")
    assert (elsewhere / "run-lm" / "model.safetensors").is_file()


@pytest.mark.parametrize("given, level", [({}, "ERROR"), ({"TORCH_CPP_LOG_LEVEL": "INFO"}, "INFO")])
def test_commands_set_the_log_level_of_torch_before_it_is_imported(given, level):
    """DDP says at each start that all parameters are in use; torch reads the level once."""
    code = "import headless_trainer.cli, os, sys; print(os.environ['TORCH_CPP_LOG_LEVEL'], 'torch' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"} | given
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.stdout.split() == [level, "False"]
