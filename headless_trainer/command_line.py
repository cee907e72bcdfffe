"""The one door through which configuration files, presets and flags reach the argument dataclasses of a command."""

import argparse
import difflib
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
    "pretrain": "pretrain an encoder or a decoder, or train one on: headless, by sampled softmax, or vanilla",
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
    "learning_rate", "bf16", "eval_strategy", "resume_from_checkpoint", "push_to_hub",
)  # fmt: skip
CONFIG_SUFFIXES = (".json", ".yaml", ".yml")
# Flags of transformers' run_mlm.py, run_clm.py and run_glue.py, and of its earlier versions, that have another way here.
INSTEAD = {
    "keep_linebreaks": "documents are lines; those of --sample_by paragraph or document keep the line breaks within them",
    "pad_to_max_length": "rows are packed full, or with --line_by_line padded to the longest of a batch; leave it out",
    "use_fast_tokenizer": "tokenizers are always the fast ones; leave it out",
    "use_auth_token": "use --token",
    "low_cpu_mem_usage": "transformers loads so by itself; leave it out",
    **dict.fromkeys(
        ("dtype", "torch_dtype"),
        "weights are trained in float32 and saved in the dtype they came in; --bf16 true computes in bfloat16",
    ),
    "overwrite_output_dir": "no run is written over; go on with --resume_from_checkpoint last, or name another --output_dir",
    "warmup_ratio": "give --warmup_steps a share of the steps, below 1",
    "evaluation_strategy": "use --eval_strategy",
    "no_cuda": "use --use_cpu",
    "per_gpu_train_batch_size": "use --per_device_train_batch_size",
    "per_gpu_eval_batch_size": "use --per_device_eval_batch_size",
    "group_by_length": "use --train_sampling_strategy group_by_length",
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR",
    "save_safetensors": "weights are always saved as safetensors; leave it out",
    "max_predict_samples": "cut the --test_file to the rows that are wanted",
}
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
        argv = argv[1:]
        for flag in [flag for flag, value in itertools.pairwise(argv) if value == "null" and flag in known]:
            place = argv.index(flag)
            argv[place : place + 2] = []  # takes the file's value back
            values.pop(flag.removeprefix("--"), None)
        argv = _as_flags(values) + argv
    unknown = parser.parse_known_args(argv)[1]  # now, since what a class of arguments refuses would hide them
    if unknown and (unknown[0] in PRESETS or Path(unknown[0]).suffix in CONFIG_SUFFIXES):
        raise ValueError(f"Preset or configuration file {unknown[0]!r} must be the first argument; flags follow it.")
    if unknown and not unknown[0].startswith("-"):
        raise ValueError(f"{unknown[0]!r} belongs to no argument: one that takes a single value was given several.")
    if unknown:
        flag = unknown[0].partition("=")[0]
        if instead := INSTEAD.get(flag.lstrip("-").replace("-", "_")):
            raise ValueError(f"There is no {flag}: {instead}.")
        nearest = difflib.get_close_matches(flag, known, n=1, cutoff=0.0)
        raise ValueError(f"Unknown argument {flag!r}. The nearest known one is {nearest[0]!r}; --help-all lists all.")
    try:
        parsed = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    except json.JSONDecodeError as error:  # transformers names neither the argument nor the value
        shown = textwrap.shorten(error.doc, 80)
        raise ValueError(f"An argument, or its file, must be a JSON object, got {shown!r}: {error}.") from error
    for each in parsed:  # trackers such as wandb publish the command line
        for name in (field.name for field in fields(each) if field.name.endswith("token")):
            hidden = {getattr(each, name): "<token>", f"--{name}={getattr(each, name)}": f"--{name}=<token>"}
            sys.argv[1:] = [hidden.get(word, word) for word in sys.argv[1:]]
    return tuple(parsed)


def help_text(dataclass_types: list[type], everything: bool) -> str:
    """Every flag of ours in one line, below its topic, and then the settings of transformers that most runs name.

    Args:
        dataclass_types: argument dataclasses whose fields are the flags. The first line of the docstring of the class that
            declares a field is its topic; what a class names in ``unread_flags`` is left out.
        everything: whether texts are whole, and nothing is left out.
    """
    groups: dict[str, list[Field]] = {}
    inherited = []
    for kind in dataclass_types:
        unread = () if everything else getattr(kind, "unread_flags", ())
        for field in (field for field in fields(kind) if field.init and field.name not in unread):
            owner = [base for base in kind.__mro__ if field.name in base.__dict__.get("__annotations__", ())][-1]
            if owner.__module__.startswith("transformers."):
                inherited += [field] if everything or field.name in COMMON else []
            else:
                groups.setdefault(owner.__doc__.partition("\n")[0].rstrip(".").replace("`", ""), []).append(field)
    if inherited:
        order = {name: place for place, name in enumerate(COMMON)}
        groups["Training, by transformers"] = sorted(inherited, key=lambda field: order.get(field.name, len(order)))
    blocks = [
        "\n".join([f"{topic}:", *(_flag_line(each, everything) for each in group)]) for topic, group in groups.items()
    ]
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


def find_config(name: str) -> Path:
    """The configuration file of this name, or the preset of this name where there is no such file.

    Raises:
        FileNotFoundError: if there is neither; the nearest preset is suggested.
    """
    path = Path(name)
    if path.suffix in CONFIG_SUFFIXES and path.is_file():
        return path
    if name in PRESETS:
        return PRESETS[name]
    nearest = difflib.get_close_matches(path.stem, PRESETS, n=1, cutoff=0.0)[0]
    raise FileNotFoundError(
        f"{name!r} is neither a preset nor a .json, .yaml or .yml file that exists, one of which may stand before the flags. "
        f"The nearest preset is {nearest!r}; `headless-trainer presets` lists all."
    )


def show_usage(text: str, argv: list[str] | None = None) -> None:
    """Print what a command is for, if its help is asked for; its flags follow, and the program ends.

    The argument classes of transformers import torch, accelerate and peft where they are installed, which takes seconds, and
    are the same without: a program that only prints its help does as if they were not there.
    """
    if HELP_FLAGS & set(sys.argv[1:] if argv is None else argv):
        print(text, flush=True)
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
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")


def parse_yaml(text: str, where: str) -> Any:
    """What a text in YAML, or in JSON, holds; ``where`` it stands is said if it is neither.

    Raises:
        ValueError: if it is neither, with the line and what is wrong there.
    """
    try:
        return yaml.load(text, Yaml)  # JSON is YAML
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{where}{line}, is neither YAML nor JSON: {error.problem}.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{where}, is neither YAML nor JSON: {error}.") from error


def _read_config(path: Path) -> dict:
    where = f"Configuration file {str(path)!r}"
    try:
        values = parse_yaml(path.read_text(encoding="utf-8-sig"), where)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text ({error}): save it as UTF-8.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{where} must hold name: value pairs, got {values!r:.80}.")
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
    """YAML as people mean it: ``no`` and ``off`` are words (``eval_strategy: no``), and ``1e-4`` is a number.

    No name stands twice in a mapping: YAML would take the last value, and nobody would see which. No alias stands for an
    earlier value: nested ones make a file of a few lines larger than any memory.
    """

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if first in "tTfF" or not tag.endswith(":bool")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()
            raise yaml.composer.ComposerError(
                problem=f"*{alias.anchor} stands for an earlier value, write it out", problem_mark=alias.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        for place, (name, _) in enumerate(node.value):
            if any(name.value == other.value for other, _ in node.value[:place]):
                raise yaml.constructor.ConstructorError(
                    problem=f"{name.value!r} stands twice, give it once", problem_mark=name.start_mark
                )
        return super().construct_mapping(node, deep)


Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)
