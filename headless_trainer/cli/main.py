"""The command `headless-trainer`, and what it lists."""

import difflib
import importlib
import re
import sys
import textwrap
from itertools import takewhile
from pathlib import Path

from ..command_line import COMMANDS, LISTS, MODULES, PRESETS, errors_in_one_line

LAUNCH = Path(__file__).parent / "launch"
LAUNCH_CONFIGS = {path.stem: path for path in sorted(LAUNCH.iterdir()) if path.suffix in (".yaml", ".sbatch")}
# A setting that only the presets of one command have.
MARKS = {"objective": "pretrain", "do_train": "lm-head", "tasks": "glue"}
WIDTH = 130

HELP = """Pretrain language models without a vocabulary head.

headless-trainer COMMAND [PRESET|FILE] [--flag value ...]

{commands}

headless-trainer COMMAND --help lists the flags of a command. On several processes:
{accelerate}"""
ACCELERATE = """accelerate launch --config_file "$(headless-trainer launch-config NAME)" \\
    -m headless_trainer.cli.pretrain [PRESET|FILE] [--flag value ...]"""
SLURM = (
    """sbatch --nodes N --job-name NAME "$(headless-trainer launch-config slurm)" [PRESET|FILE] [--flag value ...]"""
)


def main(argv: list[str] | None = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    name = argv[0] if argv else "--help"
    if name in COMMANDS:
        importlib.import_module(f".{MODULES[name]}", __package__).main(argv[1:])
        return
    with errors_in_one_line(ValueError):
        if name in ("-h", "--help"):
            print(HELP.format(commands=aligned(COMMANDS | LISTS), accelerate=ACCELERATE))
        elif name == "presets":
            print(presets())
        elif name != "launch-config":
            known(name, COMMANDS | LISTS, "command", "headless-trainer --help")
        elif argv[1:] and not argv[1].startswith("-"):
            print(known(argv[1], LAUNCH_CONFIGS, "launch configuration", "headless-trainer launch-config"))
        else:
            print(launch_configs())


def presets() -> str:
    """One line for each preset, below the command that takes it."""
    blocks = []
    for command in MARKS.values():
        texts = {name: summary(path) for name, path in PRESETS.items() if command_of(path) == command}
        blocks.append(f"headless-trainer {command} PRESET [--flag value ...]\n{aligned(texts)}")
    return "\n\n".join([*blocks, f"The files: {next(iter(PRESETS.values())).parent}"])


def command_of(preset: Path) -> str:
    """The command whose arguments a preset holds."""
    text = preset.read_text(encoding="utf-8")
    return next(command for mark, command in MARKS.items() if re.search(rf"^{mark}:", text, re.MULTILINE))


def launch_configs() -> str:
    """One line for each launch configuration, below the command that reads it."""
    texts = {name: summary(path) for name, path in LAUNCH_CONFIGS.items()}
    slurm = {"slurm": texts.pop("slurm")}
    return f"{ACCELERATE}\n{aligned(texts)}\n\n{SLURM}\n{aligned(slurm)}\n\nThe files: {LAUNCH}"


def known(name: str, choices: dict, kind: str, listed_by: str):
    """What has this name.

    Raises:
        ValueError: if nothing has; the nearest name is suggested.
    """
    if name not in choices:
        nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)[0]
        raise ValueError(f"There is no {kind} {name!r}. The nearest is {nearest!r}; `{listed_by}` lists all.")
    return choices[name]


def aligned(texts: dict[str, str]) -> str:
    """One line for each name with its text, cut where it does not fit."""
    width = max(map(len, texts))
    short = {name: textwrap.shorten(text, WIDTH - width, placeholder=" ...") for name, text in texts.items()}
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in short.items())


def summary(path: Path) -> str:
    """What the comment at the top of a file says, up to its first full stop or colon."""
    lines = path.read_text(encoding="utf-8").removeprefix("#!/usr/bin/env bash\n").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line[:1] == "#", lines))
    return re.split(r"[.:](?:\s|$)", comment, maxsplit=1)[0]


if __name__ == "__main__":
    main()
