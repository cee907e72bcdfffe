"""The one door through which configuration files, presets and flags reach the argument dataclasses of a command."""

import argparse
import difflib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

# Names of the commands and what each does. The script of `lm-head` at the root of a checkout is run_lm_head.py.
COMMANDS = {
    "pretrain": "pretrain an encoder or a decoder, headless or vanilla",
    "lm-head": "make a language model of a headless checkpoint, without training or fine-tuned",
    "lm-eval": "score language models by the LM Evaluation Harness, and compare two of them",
    "glue": "fine-tune and score on GLUE, SuperGLUE, XNLI or a task of your own",
    "items": "train a model of items on histories of users, and rank the whole catalogue",
    "recommend": "list the best items for users, or write vectors for an index",
    "report": "compare pretraining runs on one page",
}
LISTS = {
    "presets": "list the presets, which a command takes by name as its first argument",
    "launch-config": "list the configurations of accelerate launch; with a name, print the path of one",
}
CONFIG_SUFFIXES = (".json", ".yaml", ".yml")
PRESETS = {path.stem: path for path in sorted((Path(__file__).parent / "cli" / "presets").glob("*.yaml"))}


def parse_args(dataclass_types: list[type], argv: list[str] | None = None) -> tuple:
    """Parse ``[PRESET|config.yaml|config.json] [--flag value ...]`` into one instance of each dataclass.

    The file's keys become flags, so that files and flags share one check of types, choices and names; flags override it.

    Args:
        dataclass_types: argument dataclasses whose fields are the flags.
        argv: command line without the program's name, ``sys.argv[1:]`` by default.

    Raises:
        ValueError: if a name is unknown (the nearest known one is suggested), the file is not a mapping or cannot be read as
            YAML or JSON, or a value is not one that its argument takes.
        FileNotFoundError: if the file does not exist.
    """
    from transformers import HfArgumentParser  # takes a second, which the list of commands can do without

    argv = list(sys.argv[1:] if argv is None else argv)
    parser = HfArgumentParser(dataclass_types, allow_abbrev=False, usage=argparse.SUPPRESS)  # one line for 200 flags
    if argv and not argv[0].startswith("-"):
        argv = _file_as_flags(find_config(argv[0])) + argv[1:]
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(
            argv, return_remaining_strings=True, look_for_args_file=False
        )
    except json.JSONDecodeError as error:  # of an argument that is a dictionary, which transformers does not name
        flag = next((name for name, value in itertools.pairwise(argv) if value == error.doc), "an argument")
        raise ValueError(f"{flag} must be a JSON object, got {error.doc!r} ({error.msg}).") from error
    if unknown and (unknown[0] in PRESETS or Path(unknown[0]).suffix in CONFIG_SUFFIXES):
        raise ValueError(f"Preset or configuration file {unknown[0]!r} must be the first argument; flags follow it.")
    if unknown and not unknown[0].startswith("-"):
        raise ValueError(f"{unknown[0]!r} belongs to no argument: one that takes a single value was given several.")
    if unknown:
        known = [f"--{each.name}" for each in itertools.chain(*map(fields, dataclass_types)) if each.init]
        flag = unknown[0].partition("=")[0]
        nearest = difflib.get_close_matches(flag, known, n=1, cutoff=0.0)
        raise ValueError(f"Unknown argument {flag!r}. The nearest known one is {nearest[0]!r}; --help lists all.")
    for each in parsed:  # trackers such as wandb publish the command line
        for name in (field.name for field in fields(each) if field.name.endswith("token")):
            hidden = {getattr(each, name): "<token>", f"--{name}={getattr(each, name)}": f"--{name}=<token>"}
            sys.argv[1:] = [hidden.get(word, word) for word in sys.argv[1:]]
    return tuple(parsed)


def find_config(name: str) -> Path:
    """The configuration file of this name, or the preset of this name where there is no such file.

    ``configs/demo.yaml``, where a checkout used to have its presets, is the preset ``demo``.

    Raises:
        FileNotFoundError: if there is neither; the nearest preset is suggested.
    """
    path = Path(name)
    is_file = path.suffix in CONFIG_SUFFIXES
    if is_file and path.is_file():
        return path
    stem = path.stem if is_file else name
    if stem in PRESETS and (not is_file or path.parent.name == "configs"):
        return PRESETS[stem]
    problem = f"Configuration file {name!r} does not exist." if is_file else f"There is no preset {name!r}."
    nearest = difflib.get_close_matches(stem, PRESETS, n=1, cutoff=0.0)[0]
    raise FileNotFoundError(f"{problem} The nearest preset is {nearest!r}; `headless-trainer presets` lists all.")


def as_typed(text: str) -> str:
    """The text with its commands as who started this process types them.

    Texts say ``headless-trainer lm-head``. One who started a script of a checkout, ``python run_pretrain.py``, need not have
    installed that command, and has ``python run_lm_head.py``.
    """
    scripts = {name: f"run_{name.replace('-', '_')}.py" for name in COMMANDS}
    if Path(sys.argv[0]).name not in scripts.values():
        return text
    typed = {name: f"python {script}" for name, script in scripts.items()}
    typed |= {name: f"python -m headless_trainer.cli.main {name}" for name in LISTS}
    return re.sub(rf"headless-trainer ({'|'.join(typed)})\b", lambda match: typed[match[1]], text)


def show_usage(text: str, argv: list[str] | None = None) -> None:
    """Print what a command is for, if its help is asked for; its flags follow, and the program ends.

    The argument classes of transformers import torch, accelerate and peft where they are installed, which takes seconds, and
    are the same without. So a program that only prints its help does as if they were not there.
    """
    if {"-h", "--help"} & set(sys.argv[1:] if argv is None else argv):
        print(as_typed(text), flush=True)
        if "torch" not in sys.modules:
            sys.modules.update(dict.fromkeys(("torch", "accelerate", "peft")))  # None: not to be found
            os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # that there is no torch


@contextmanager
def errors_in_one_line(*kinds: type[Exception]) -> Iterator[None]:
    """End the program on errors of these kinds with their message alone: a traceback would only scroll it away.

    For what a user can fix; all other errors keep their traceback.
    """
    try:
        yield
    except kinds as error:
        sys.exit(as_typed(f"{type(error).__name__}: {' '.join(str(error).split())}"))


def parse_yaml(text: str, where: str) -> Any:
    """What a text in YAML, or in JSON, holds.

    Args:
        text: the text.
        where: it stands, for the error.

    Raises:
        ValueError: if it is neither, with the line and what is wrong there.
    """
    try:
        return yaml.load(text, Yaml)  # JSON is YAML
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise ValueError(f"{where}{line}, is neither YAML nor JSON: {problem}.") from error


def _file_as_flags(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"Configuration file {str(path)!r} is not UTF-8 text ({error}): save it as UTF-8.") from error
    values = parse_yaml(text, f"Configuration file {str(path)!r}")
    if not isinstance(values, dict):
        raise ValueError(f"Configuration file {str(path)!r} must hold name: value pairs, got {type(values).__name__}.")
    flags = []
    for name, value in values.items():
        if isinstance(value, list):
            flags += [f"--{name}", *map(str, value)] if value else []
        elif value is not None:  # an empty key keeps the default
            flags.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return flags


class Yaml(yaml.SafeLoader):
    """YAML as people mean it: ``no`` and ``off`` are words (``eval_strategy: no``), and ``1e-4`` is a number."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _without_repetitions(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict:
    """A mapping, and no name twice: YAML would take the last value, and nobody would see which."""
    names = [loader.construct_object(name, deep=True) for name, _value in node.value]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(f"{repeated!r} stands twice in the configuration{node.start_mark}: give it once.")
    return loader.construct_mapping(node, deep=True)


Yaml.add_constructor("tag:yaml.org,2002:map", _without_repetitions)
Yaml.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$|^[-+]?\.(?:inf|nan)$"),
    list("-+.0123456789"),
)
