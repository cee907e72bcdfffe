"""The command `headless-trainer`, and its lists."""

import difflib
import importlib
import sys
from pathlib import Path

from ..command_line import COMMANDS, LISTS, MODULES, PRESETS, errors_in_one_line

LAUNCH = Path(__file__).parent / "launch"
LAUNCH_CONFIGS = {
    path.stem: path for path in sorted(LAUNCH.iterdir()) if path.suffix in (".yaml", ".sbatch")
}
# A setting that only the presets of one command have.
MARKS = {"objective": "pretrain", "do_train": "lm-head", "tasks": "glue"}

HELP = """Pretrain or continue language models without scoring the whole vocabulary.

headless-trainer COMMAND [PRESET|FILE] [--flag value ...]

{commands}

COMMAND --help lists the flags of a command; headless-trainer --version, what is installed. On several processes:
{accelerate}"""
ACCELERATE = """accelerate launch --config_file "$(headless-trainer launch-config NAME)" \\
    -m headless_trainer.cli.pretrain [PRESET|FILE] [--flag value ...]"""
SLURM = 'sbatch --nodes N --job-name NAME "$(headless-trainer launch-config slurm)" [PRESET|FILE] [--flag value ...]'


def main(argv: list[str] | None = None) -> None:
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in COMMANDS:
        importlib.import_module(f".{MODULES[name]}", __package__).main(rest)
        return
    with errors_in_one_line(ValueError):
        if name in ("-h", "--help"):
            print(HELP.format(commands=aligned(COMMANDS | LISTS), accelerate=ACCELERATE))
        elif name in ("-V", "--version"):
            facts = importlib.import_module(
                "..cards.facts", __package__
            )  # not at the top: it imports torch
            print(facts.software()["Versions"])
        elif name == "presets":
            print(presets())
        elif name != "launch-config":
            known(name, COMMANDS | LISTS, "command", "headless-trainer --help")
        elif rest and not rest[0].startswith("-"):
            print(
                known(
                    rest[0],
                    LAUNCH_CONFIGS,
                    "launch configuration",
                    "headless-trainer launch-config",
                )
            )
        else:
            texts = {name: summary(path) for name, path in LAUNCH_CONFIGS.items()}
            print(f"{ACCELERATE}\n{SLURM}\n\n{aligned(texts)}\n\nThe files: {LAUNCH}")


def presets() -> str:
    """List each preset in one line below its command."""
    blocks = []
    for mark, command in MARKS.items():
        texts = {
            name: summary(path)
            for name, path in PRESETS.items()
            if f"\n{mark}:" in path.read_text("utf-8")
        }
        blocks.append(f"headless-trainer {command} PRESET [--flag value ...]\n{aligned(texts)}")
    return "\n\n".join([*blocks, f"The files: {next(iter(PRESETS.values())).parent}"])


def known(name: str, choices: dict, kind: str, listed_by: str):
    """Return the item of this name; ValueError suggests the nearest name."""
    if name not in choices:
        nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"There is no {kind} {name!r}. The nearest is {nearest!r}; `{listed_by}` lists all."
        )
    return choices[name]


def aligned(texts: dict[str, str]) -> str:
    width = max(map(len, texts))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in texts.items())


def summary(path: Path) -> str:
    """Return the first line of the comment at the top of a file."""
    return (
        path.read_text(encoding="utf-8")
        .removeprefix("#!/usr/bin/env bash\n")
        .splitlines()[0]
        .strip("# :.")
    )


if __name__ == "__main__":
    main()
