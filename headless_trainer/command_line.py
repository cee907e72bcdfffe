"""The one door through which configuration files and flags reach the argument dataclasses of a script."""

import difflib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from transformers import HfArgumentParser

CONFIG_SUFFIXES = (".json", ".yaml", ".yml")


def parse_args(dataclass_types: list[type], argv: list[str] | None = None) -> tuple:
    """Parse ``[config.yaml|config.json] [--flag value ...]`` into one instance of each dataclass; flags override the file.

    The file's keys become flags, so that files and flags share one check of types, choices and names.

    Args:
        dataclass_types: argument dataclasses whose fields are the flags.
        argv: command line without the program's name, ``sys.argv[1:]`` by default.

    Raises:
        ValueError: if a name is unknown (the nearest known one is suggested) or the file is not a mapping.
        FileNotFoundError: if the file does not exist.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = HfArgumentParser(dataclass_types, allow_abbrev=False)
    if argv and Path(argv[0]).suffix in CONFIG_SUFFIXES:
        argv = _file_as_flags(Path(argv[0])) + argv[1:]
    *parsed, unknown = parser.parse_args_into_dataclasses(argv, return_remaining_strings=True, look_for_args_file=False)
    if unknown and Path(unknown[0]).suffix in CONFIG_SUFFIXES:
        raise ValueError(f"Configuration file {unknown[0]!r} must be the first argument; flags follow it.")
    if unknown:
        known = [option for action in parser._actions for option in action.option_strings]
        flag = unknown[0].partition("=")[0]
        nearest = difflib.get_close_matches(flag, known, n=1, cutoff=0.0)
        raise ValueError(f"Unknown argument {flag!r}. The nearest known one is {nearest[0]!r}; --help lists all.")
    return tuple(parsed)


@contextmanager
def errors_in_one_line(*kinds: type[Exception]) -> Iterator[None]:
    """End the program on errors of these kinds with their message alone: a traceback would only scroll it away.

    For what a user can mend; all other errors keep their traceback.
    """
    try:
        yield
    except kinds as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _file_as_flags(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"Configuration file {str(path)!r} does not exist.")
    values = yaml.load(path.read_text(encoding="utf-8"), Yaml)  # JSON is YAML
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


Yaml.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$|^[-+]?\.(?:inf|nan)$"),
    list("-+.0123456789"),
)
