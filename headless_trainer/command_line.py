"""Parse configuration files, presets and flags into the argument dataclasses of a command."""

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
from typing import Any

import yaml

COMMANDS = {  # the commands and their descriptions
    "pretrain": "pretrain or continue an encoder or a decoder: headless, with sampled softmax, or vanilla",
    "lm-head": "turn a headless checkpoint into a language model, without training or fine-tuned",
    "lm-eval": "score language models by the LM Evaluation Harness, and compare two of them",
    "glue": "fine-tune and score on GLUE, SuperGLUE, XNLI or your own task",
    "report": "compare pretraining runs on one page",
}
# Their modules in cli/. The script of `lm-head` at the root of a checkout is run_lm_head.py.
MODULES = {name: name.replace("-", "_") for name in COMMANDS} | {
    "lm-head": "make_lm_head",
    "report": "make_report",
}
LISTS = {
    "presets": "list the presets, which a command takes by name as its first argument",
    "launch-config": "list the configurations of accelerate launch; with a name, print the path of one",
}
HELP_FLAGS = {"-h", "--help", "--help-all"}
HELP_WIDTH, FLAG_WIDTH = 120, 28
LONGEST_MESSAGE = 2_000  # characters: it may quote a word of a file
COMMON = (  # settings of transformers that --help lists
    "output_dir", "max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps",
    "learning_rate", "bf16", "do_train", "do_eval", "do_predict", "eval_strategy", "resume_from_checkpoint", "push_to_hub",
)  # fmt: skip
REWORDED = {  # those of them with a clearer help text than transformers'
    "max_steps": "Optimizer steps to train, instead of num_train_epochs",
    "gradient_accumulation_steps": "Forward passes on a device in one optimizer step",
    "output_dir": "Folder for everything the run writes",
    "do_train": "Fine-tune the language model",
    "do_eval": "Evaluate the final model",
    "do_predict": "Predict the rows of test_file or test_split",
    "push_to_hub": "Push the model to the Hub whenever it is saved",
    "resume_from_checkpoint": "last, auto (last, or start if there is none), or a checkpoint's folder",
}
CONFIG_SUFFIXES = (".json", ".yaml", ".yml")
# Replacements for flags of transformers' scripts and older releases, by the argument class of a command: DataArguments for
# pretrain and lm-head, GlueArguments for glue, TrainingArguments for all three. docs/usage.md shows this table.
INSTEAD = {
    "DataArguments": {
        "keep_linebreaks": "each line is a document; --sample_by paragraph or document keeps line breaks",
        "pad_to_max_length": "rows are packed full; with --line_by_line they are padded to the longest of their batch",
        "overwrite_output_dir": "runs are never overwritten: use --resume_from_checkpoint last, or another --output_dir",
        "group_by_length": "use --train_sampling_strategy group_by_length",
    },
    "GlueArguments": {
        "text_column_names label_column_name metric_name": "use --text_columns, --label_column, --metric",
        "max_predict_samples": "shorten the --test_file",
        "config_name": "the configuration is the checkpoint's",
        "overwrite_cache": "rows are tokenized anew by each command",
        "pad_to_max_length": "rows are padded to the longest of their batch",
        "overwrite_output_dir": "repeat the command to finish a grid, or use another --output_dir",
        "group_by_length": "batches always hold rows of similar length",
    },
    "TrainingArguments": {
        "use_fast_tokenizer": "all tokenizers are fast ones",
        "low_cpu_mem_usage save_safetensors use_mps_device": "this is always on",
        "dtype torch_dtype": "weights are trained in float32; --bf16 true computes in bfloat16",
        "warmup_ratio": "use --warmup_steps with a share of the steps, below 1",
        "split_batches": "lower --per_device_train_batch_size",
        "no_cuda": "use --use_cpu",
        "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR",
    },
}
PRESETS = {
    path.stem: path for path in sorted((Path(__file__).parent / "cli" / "presets").glob("*.yaml"))
}


def parse_args(dataclass_types: list[type], argv: list[str] | None = None) -> tuple:
    """Parse ``[PRESET|config.yaml|config.json] [--flag value ...]`` into one instance of each dataclass.

    The file's keys become flags, so that types, choices and names are checked the same way; flags override the file.
    Raises ValueError for an unknown argument, with the nearest known one, for a value that its argument does not take, and
    for a file that is no mapping.
    """
    from transformers import (
        HfArgumentParser,
    )  # takes a second, which listing the commands should not

    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(help_text(dataclass_types))
        sys.exit()
    # No usage: it would have 200 flags.
    parser = HfArgumentParser(
        dataclass_types, allow_abbrev=False, add_help=False, usage=argparse.SUPPRESS
    )
    parser.error = lambda said, error=parser.error: error(said[:LONGEST_MESSAGE])
    parser.add_argument("--help-all", action="help", help=argparse.SUPPRESS)
    known = [
        f"--{each.name}" for each in itertools.chain(*map(fields, dataclass_types)) if each.init
    ]
    values: dict[str, Any] = {}
    if argv and not argv[0].startswith("-"):
        path = find_config(argv.pop(0))
        values = _read_config(path)
        others = [name for name in values if f"--{name}" not in known]
        if path in PRESETS.values() and others:
            raise ValueError(
                f"Preset {path.stem!r} is for another command: it sets {others[0]!r}, which this one does not have. "
                "`headless-trainer presets` lists those of each command."
            )
    argv = [
        part
        for word in argv
        for part in (word.split("=", 1) if re.match("--.*=null$", word) else [word])
    ]
    for place in reversed(range(len(argv) - 1)):
        name = argv[place].removeprefix("--").replace("-", "_")
        # Keeps the default.
        if (
            argv[place + 1 : place + 2] == ["null"]
            and argv[place].startswith("--")
            and f"--{name}" in known
        ):
            values.pop(name, None)
            del argv[place : place + 2]
    argv = _as_flags(values) + argv
    unknown = parser.parse_known_args(argv)[
        1
    ]  # first, because a refusal by an argument class would hide them
    if unknown and (unknown[0] in PRESETS or Path(unknown[0]).suffix in CONFIG_SUFFIXES):
        raise ValueError(
            f"Preset or configuration file {unknown[0]!r} must be the first argument; flags follow it."
        )
    if unknown and not unknown[0].startswith("-"):
        raise ValueError(
            f"{unknown[0]!r} belongs to no argument: an argument that takes one value has several."
        )
    if unknown:
        flag = unknown[0].partition("=")[0]
        kinds = {base.__name__ for kind in dataclass_types for base in kind.__mro__}
        for names, instead in (
            row for kind, rows in INSTEAD.items() if kind in kinds for row in rows.items()
        ):
            if flag.lstrip("-").replace("-", "_") in names.split():
                raise ValueError(f"There is no {flag}: {instead}.")
        nearest = difflib.get_close_matches(
            flag.lstrip("-"), [name.lstrip("-") for name in known], n=1
        )
        said = f" The nearest known one is '--{nearest[0]}'." if nearest else ""
        raise ValueError(f"Unknown argument {flag!r}.{said} --help-all lists all.")
    try:
        parsed = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    except json.JSONDecodeError as error:  # transformers names neither the argument nor the value
        shown = textwrap.shorten(error.doc, 80)
        raise ValueError(
            f"An argument, or its file, must be a JSON object, got {shown!r}: {error}."
        ) from error
    for each in parsed:  # trackers such as wandb publish the command line
        for name in (field.name for field in fields(each) if field.name.endswith("token")):
            hidden = {
                getattr(each, name): "<token>",
                f"--{name}={getattr(each, name)}": f"--{name}=<token>",
            }
            sys.argv[1:] = [hidden.get(word, word) for word in sys.argv[1:]]
    return tuple(parsed)


def help_text(dataclass_types: list[type]) -> str:
    """List every flag of ours in one line below its topic, then the settings of transformers that most runs use.

    The topic of a field is the first line of the docstring of the class that declares it. Fields in the ``unread_flags`` of any
    class are omitted.
    """
    groups: dict[str, list[str]] = {}
    inherited, unread = (
        [],
        {name for kind in dataclass_types for name in getattr(kind, "unread_flags", ())},
    )
    for kind in dataclass_types:
        for field in (field for field in fields(kind) if field.init and field.name not in unread):
            owner = [
                base
                for base in kind.__mro__
                if field.name in base.__dict__.get("__dataclass_fields__", ())
            ][-1]
            if not owner.__module__.startswith("transformers."):
                topic = owner.__doc__.partition("\n")[0].rstrip(".").replace("`", "")
                groups.setdefault(topic, []).append(_flag_line(field))
            elif field.name in COMMON:
                inherited.append(_flag_line(field, REWORDED.get(field.name)))
    if inherited:
        groups["Training, by transformers"] = inherited
    blocks = ["\n".join([f"{topic}:", *lines]) for topic, lines in groups.items()]
    return "\n\n".join([*blocks, "--help-all lists every flag with its full text."])


def _flag_line(field: Field, text: str | None = None) -> str:
    default = None if field.default is MISSING else field.default
    shown = "" if default in (None, False, "") else f" [{getattr(default, 'value', default)}]"
    text = text or field.metadata.get("help", "").replace("%%", "%")
    sentence = re.split(r"\.(?:\s|$)", text, maxsplit=1)[0]
    room = HELP_WIDTH - FLAG_WIDTH - 4 - len(shown)
    return f"  --{field.name:<{FLAG_WIDTH}}{textwrap.shorten(sentence, room, placeholder=' ...')}{shown}"


def find_config(name: str) -> Path:
    """Return the configuration file or preset of this name; FileNotFoundError suggests the nearest preset."""
    path = Path(name)
    if path.suffix in CONFIG_SUFFIXES and path.is_file():
        return path
    if name in PRESETS:
        return PRESETS[name]
    nearest = difflib.get_close_matches(path.stem, PRESETS, n=1, cutoff=0.0)[0]
    raise FileNotFoundError(
        f"{name!r} is neither a preset nor an existing .json, .yaml or .yml file, which may precede the flags. The nearest "
        f"preset is {nearest!r}; `headless-trainer presets` lists all."
    )


def show_usage(text: str, argv: list[str] | None = None) -> None:
    """Print the usage of a command if its help is requested; its flags follow, and the program ends.

    The argument classes of transformers import torch, accelerate and peft, which takes seconds, but do not need them: a
    program that only prints its help hides these packages, unless it is a notebook.
    """
    if HELP_FLAGS & set(sys.argv[1:] if argv is None else argv):
        print(text, flush=True)
        if not {"torch", "IPython"} & sys.modules.keys():  # a notebook goes on
            sys.modules.update(
                dict.fromkeys(("torch", "accelerate", "peft"))
            )  # None makes their import fail
            os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # of the missing torch


@contextmanager
def errors_in_one_line(*kinds: type[Exception]) -> Iterator[None]:
    """End the program at errors of these kinds, which a user can fix, with their message in one line of bounded length."""
    try:
        yield
    except kinds as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST_MESSAGE]}")


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML or JSON text. Raises ValueError with its origin ``where`` and the problem if it is neither."""
    try:
        return yaml.load(text, Yaml)  # JSON is YAML
    except (yaml.YAMLError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{where}{line}, is neither YAML nor JSON: {problem or error}.") from error


def _read_config(path: Path) -> dict:
    where = f"Configuration file {str(path)!r}"
    try:
        text = path.read_text(encoding="utf-8-sig")
        text = text.expandtabs() if path.suffix == ".json" else text  # YAML has none
        values = parse_yaml(text, where)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text ({error}): save it as UTF-8.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{where} must hold name: value pairs, got {values!r:.80}.")
    written = yaml.load(text, yaml.BaseLoader)  # as it stands: 007 and 2024_01 may be names
    found = {
        name: each if isinstance(each, dict | None) else written.get(name, each)
        for name, each in values.items()
    }
    return {_as_name(name): each for name, each in found.items()}


def _as_name(key: Any) -> str:
    return str(key).replace("-", "_")


def _as_flags(values: dict) -> list[str]:
    flags = []
    for name, value in values.items():
        if isinstance(value, list):
            flags += [f"--{name}", *map(str, value)] if value else []
        elif value is not None:  # an empty key keeps the default
            flags.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return flags


class Yaml(yaml.SafeLoader):
    """YAML as people expect it: ``no`` and ``off`` are words (``eval_strategy: no``), and ``1e-4`` is a number.

    Raises an error for a name that occurs twice in a mapping, where YAML would keep the last value, and for aliases, which,
    nested, can make a file of a few lines exceed any memory.
    """

    yaml_implicit_resolvers = {
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if first in "tTfF" or not tag.endswith(":bool")
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()
            raise yaml.composer.ComposerError(
                problem=f"*{alias.anchor} refers to an earlier value, write it out",
                problem_mark=alias.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        for place, (name, _) in enumerate(node.value):
            if any(
                _as_name(name.value) == _as_name(other.value) for other, _ in node.value[:place]
            ):
                raise yaml.constructor.ConstructorError(
                    problem=f"{name.value!r} occurs twice, give it once",
                    problem_mark=name.start_mark,
                )
        return super().construct_mapping(node, deep)


Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
