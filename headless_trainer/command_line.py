"""The one door through which configuration files, presets and flags reach the argument dataclasses of a command."""

import argparse
import difflib
import gc
import itertools
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_args

import yaml

# Names of the commands and what each does.
COMMANDS = {
    "pretrain": "pretrain an encoder or a decoder, headless or vanilla",
    "lm-head": "make a language model of a headless checkpoint, without training or fine-tuned",
    "lm-eval": "score language models by the LM Evaluation Harness, and compare two of them",
    "glue": "fine-tune and score on GLUE, SuperGLUE, XNLI or a task of your own",
    "report": "compare pretraining runs on one page",
}
# Their modules in cli/. The script of `lm-head` at the root of a checkout is run_lm_head.py.
MODULES = {name: name.replace("-", "_") for name in COMMANDS} | {"lm-head": "make_lm_head", "report": "make_report"}
LISTS = {
    "presets": "list the presets, which a command takes by name as its first argument",
    "launch-config": "list the configurations of accelerate launch; with a name, print the path of one",
}
HELP_FLAGS = {"-h", "--help", "--help-all"}
HELP_WIDTH, FLAG_WIDTH = 120, 28
# Settings of transformers that --help lists.
COMMON = (
    "output_dir", "max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps",
    "learning_rate", "bf16", "eval_strategy", "save_steps", "resume_from_checkpoint", "push_to_hub",
)  # fmt: skip
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
    if HELP_FLAGS & set(argv):
        print(help_text(dataclass_types, everything="--help-all" in argv))
        sys.exit(0)
    parser = HfArgumentParser(dataclass_types, allow_abbrev=False, usage=argparse.SUPPRESS)  # one line for 200 flags
    known = [f"--{each.name}" for each in itertools.chain(*map(fields, dataclass_types)) if each.init]
    if argv and not argv[0].startswith("-"):
        path = find_config(argv[0])
        values = _read_config(path)
        others = [name for name in values if f"--{name}" not in known]
        if path in PRESETS.values() and others:
            raise ValueError(
                f"Preset {path.stem!r} is for another command: it sets {others[0]!r}, which this one does not have. "
                "`headless-trainer presets` lists those of each command."
            )
        argv = _as_flags(values) + argv[1:]
    unknown = parser.parse_known_args(argv)[1]  # now, since what a class of arguments refuses would hide them
    if unknown and (unknown[0] in PRESETS or Path(unknown[0]).suffix in CONFIG_SUFFIXES):
        raise ValueError(f"Preset or configuration file {unknown[0]!r} must be the first argument; flags follow it.")
    if unknown and not unknown[0].startswith("-"):
        raise ValueError(f"{unknown[0]!r} belongs to no argument: one that takes a single value was given several.")
    if unknown:
        flag = unknown[0].partition("=")[0]
        nearest = difflib.get_close_matches(flag, known, n=1, cutoff=0.0)
        raise ValueError(f"Unknown argument {flag!r}. The nearest known one is {nearest[0]!r}; --help-all lists all.")
    try:
        parsed = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    except json.JSONDecodeError as error:  # of an argument that is a dictionary, which transformers does not name
        raise ValueError(_json_fault(argv, error)) from error
    for each in parsed:  # trackers such as wandb publish the command line
        for name in (field.name for field in fields(each) if field.name.endswith("token")):
            hidden = {getattr(each, name): "<token>", f"--{name}={getattr(each, name)}": f"--{name}=<token>"}
            sys.argv[1:] = [hidden.get(word, word) for word in sys.argv[1:]]
    return tuple(parsed)


def help_text(dataclass_types: list[type], everything: bool) -> str:
    """Every flag of ours in one line, below its topic, and then the settings of transformers that most runs name.

    Args:
        dataclass_types: argument dataclasses whose fields are the flags. The first line of the docstring of the class that
            declares a field is its topic.
        everything: whether texts are whole, and all that comes from ``TrainingArguments`` is listed.
    """
    groups: dict[str, list[Field]] = {}
    inherited = []
    for kind in dataclass_types:
        for field in filter(lambda field: field.init, fields(kind)):
            owner = [base for base in kind.__mro__ if field.name in base.__dict__.get("__annotations__", ())][-1]
            if owner.__module__.startswith("transformers."):
                inherited += [field] if everything or field.name in COMMON else []
            else:
                groups.setdefault(owner.__doc__.partition("\n")[0].rstrip(".").replace("`", ""), []).append(field)
    if inherited:
        order = {name: place for place, name in enumerate(COMMON)}
        groups["Training, by transformers"] = sorted(inherited, key=lambda field: order.get(field.name, len(order)))
    lines = {topic: [_flag_line(field, everything) for field in group] for topic, group in groups.items()}
    blocks = ["\n".join([f"{topic}:", *found]) for topic, found in lines.items()]
    if not everything:
        more = ", and every other setting of transformers" * bool(inherited)
        blocks.append(f"--help-all has the whole texts of these{more}.")
    return "\n\n".join(blocks)


def _flag_line(field: Field, everything: bool) -> str:
    text = field.metadata.get("help", "").replace("%%", "%")
    default = field.default if field.default is not MISSING else None
    shown = "" if default in (None, False, "") else f" [{getattr(default, 'value', default)}]"
    if everything:
        flags = ", ".join([f"--{field.name}", *field.metadata.get("aliases", ())])
        choices = ", ".join(each for each in get_args(field.type) if isinstance(each, str))
        text = f"{flags}  {text}{choices and f' ({choices})'}{shown}"
        return textwrap.fill(text, HELP_WIDTH, initial_indent="  ", subsequent_indent=" " * 8)
    sentence = re.split(r"\.(?:\s|$)", text, maxsplit=1)[0]
    room = HELP_WIDTH - FLAG_WIDTH - 4 - len(shown)
    return f"  --{field.name:<{FLAG_WIDTH}}{textwrap.shorten(sentence, room, placeholder=' ...')}{shown}"


def _json_fault(argv: list[str], error: json.JSONDecodeError) -> str:
    """Which argument is no JSON object, or names a file that holds none."""
    given = [*itertools.pairwise(argv), *(word.partition("=")[::2] for word in argv)]
    for flag, value in given:
        if value == error.doc:
            return f"{flag} must be a JSON object, got {error.doc!r} ({error.msg})."
        if flag.startswith("--") and value.endswith(".json") and Path(value).is_file():
            if Path(value).read_text(encoding="utf-8", errors="replace") == error.doc:
                return f"{flag} {value!r}, line {error.lineno}, is not JSON: {error.msg}."
    return f"an argument must be a JSON object, got {error.doc!r} ({error.msg})."


def find_config(name: str) -> Path:
    """The configuration file of this name, or the preset of this name where there is no such file.

    Raises:
        FileNotFoundError: if there is neither; the nearest preset is suggested.
    """
    path = Path(name)
    is_file = path.suffix in CONFIG_SUFFIXES
    if is_file and path.is_file():
        return path
    if name in PRESETS:
        return PRESETS[name]
    if path.exists():
        raise ValueError(
            f"{name!r} is neither a preset nor a file that ends in .json, .yaml or .yml, and only one of these stands before "
            "the flags: name everything else with a flag."
        )
    problem = f"Configuration file {name!r} does not exist." if is_file else f"There is no preset {name!r}."
    nearest = difflib.get_close_matches(path.stem, PRESETS, n=1, cutoff=0.0)[0]
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
    if HELP_FLAGS & set(sys.argv[1:] if argv is None else argv):
        print(as_typed(text), flush=True)
        if "torch" not in sys.modules:
            sys.modules.update(dict.fromkeys(("torch", "accelerate", "peft")))  # None: not to be found
            os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # that there is no torch


@contextmanager
def importing() -> Iterator[None]:
    """Around the first imports of a command: no garbage is looked for among modules, neither now nor later.

    They are none, and the search took two of the six seconds of CPU time that a command takes to start and to end. In a program
    that has the libraries already, nothing happens: its garbage is its own matter.
    """
    if "transformers" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


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


def _read_config(path: Path) -> dict:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"Configuration file {str(path)!r} is not UTF-8 text ({error}): save it as UTF-8.") from error
    values = parse_yaml(text, f"Configuration file {str(path)!r}")
    if not isinstance(values, dict):
        found = "nothing" if values is None else type(values).__name__
        raise ValueError(f"Configuration file {str(path)!r} must hold name: value pairs, got {found}.")
    return values


def _as_flags(values: dict) -> list[str]:
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
        mark = [name.start_mark for name, _value in node.value][len(names) - 1 - names[::-1].index(repeated)]
        raise yaml.constructor.ConstructorError(problem=f"{repeated!r} stands twice, give it once", problem_mark=mark)
    return loader.construct_mapping(node, deep=True)


Yaml.add_constructor("tag:yaml.org,2002:map", _without_repetitions)
Yaml.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$|^[-+]?\.(?:inf|nan)$"),
    list("-+.0123456789"),
)
