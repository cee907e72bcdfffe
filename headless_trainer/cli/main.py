"""The command `headless-trainer`, and its lists."""

import difflib
import importlib
from pathlib import Path

from ..command_line import (
    COMMANDS,
    LISTS,
    MODULES,
    PRESET_FOLDER,
    PRESETS,
    errors_in_one_line,
    words_of,
)

LAUNCH_FOLDER = Path(__file__).parent / "launch"
LAUNCH_CONFIGS = {
    path.stem: path
    for path in sorted(LAUNCH_FOLDER.iterdir())
    if path.suffix in (".yaml", ".sbatch")
}
# A setting that only the presets of one command have, and this command.
MARKS = {"objective": "pretrain", "do_train": "lm-head", "tasks": "glue"}

HELP = """Pretrain or continue language models without scoring the whole vocabulary.

headless-trainer COMMAND [PRESET|FILE] [--flag value ...]

{commands}

COMMAND --help lists the flags of a command; headless-trainer --version, what is installed. \
On several processes:
{accelerate}"""
ACCELERATE = """accelerate launch --config_file "$(headless-trainer launch-config NAME)" \\
    -m headless_trainer.cli.pretrain [PRESET|FILE] [--flag value ...]"""
SLURM = (
    'sbatch --nodes N --job-name NAME "$(headless-trainer launch-config slurm)" '
    "[PRESET|FILE] [--flag value ...]"
)


def main(argv: list[str] | None = None) -> None:
    """Run the command that the first word names, or print a list."""
    name, *rest = words_of(argv) or ["--help"]
    if name in COMMANDS:
        command = importlib.import_module(f".{MODULES[name]}", __package__)
        command.main(rest)
        return
    with errors_in_one_line(ValueError):
        if name in ("-h", "--help"):
            print(HELP.format(commands=aligned(COMMANDS | LISTS), accelerate=ACCELERATE))
        elif name in ("-V", "--version"):
            # Not at the top: it imports torch.
            facts = importlib.import_module("..cards.facts", __package__)
            print(facts.software()["Versions"])
        elif name == "presets":
            print(presets())
        elif name == "launch-config":
            names_a_file = bool(rest) and not rest[0].startswith("-")
            print(launch_config(rest[0]) if names_a_file else launch_configs())
        else:
            look_up(name, COMMANDS | LISTS, "command", "headless-trainer --help")


def presets() -> str:
    """List each preset in one line below its command."""
    blocks = []
    for mark, command in MARKS.items():
        summaries = {
            name: summary(path)
            for name, path in PRESETS.items()
            if f"\n{mark}:" in path.read_text("utf-8")
        }
        blocks.append(f"headless-trainer {command} PRESET [--flag value ...]\n{aligned(summaries)}")
    return "\n\n".join([*blocks, f"The files: {PRESET_FOLDER}"])


def launch_config(name: str) -> Path:
    """Return the file of a configuration of `accelerate launch` or of SLURM."""
    return look_up(name, LAUNCH_CONFIGS, "launch configuration", "headless-trainer launch-config")


def launch_configs() -> str:
    """List the configurations of `accelerate launch` and of SLURM."""
    summaries = {name: summary(path) for name, path in LAUNCH_CONFIGS.items()}
    return f"{ACCELERATE}\n{SLURM}\n\n{aligned(summaries)}\n\nThe files: {LAUNCH_FOLDER}"


def look_up(name: str, choices: dict, noun: str, listed_by: str):
    """Return the choice of this name; ValueError suggests the nearest name."""
    if name not in choices:
        nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"There is no {noun} {name!r}. The nearest is {nearest!r}; `{listed_by}` lists all."
        )
    return choices[name]


def aligned(texts: dict[str, str]) -> str:
    """Return each name with its text in one line, the texts below each other."""
    width = max(map(len, texts))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in texts.items())


def summary(path: Path) -> str:
    """Return the first line of the comment at the top of a file."""
    text = path.read_text(encoding="utf-8").removeprefix("#!/usr/bin/env bash\n")
    return text.splitlines()[0].strip("# :.")


if __name__ == "__main__":
    main()
