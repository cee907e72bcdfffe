"""Parse configuration files, presets and flags into the argument dataclasses of a command."""

import argparse
import difflib
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

if TYPE_CHECKING:
    from transformers import HfArgumentParser

COMMANDS = {  # the commands and their descriptions
    "pretrain": (
        "pretrain or continue an encoder or a decoder: headless, with sampled softmax, or vanilla"
    ),
    "lm-head": "turn a headless checkpoint into a language model, without training or fine-tuned",
    "lm-eval": "score language models by the LM Evaluation Harness, and compare two of them",
    "glue": "fine-tune and score on GLUE, SuperGLUE, XNLI or your own task",
    "report": "compare pretraining runs on one page",
    "compare-steps": (
        "would you gain? time a step of your model with each objective on this machine"
    ),
}
# Their modules in cli/. The script of `lm-head` at the root of a checkout is run_lm_head.py.
MODULES = {name: name.replace("-", "_") for name in COMMANDS} | {
    "lm-head": "make_lm_head",
    "report": "make_report",
}
LISTS = {
    "presets": "list the presets, which a command takes by name as its first argument",
    "launch-config": (
        "list the configurations of accelerate launch; with a name, print the path of one"
    ),
}
HELP_FLAGS = {"-h", "--help", "--help-all"}
HELP_WIDTH = 120  # columns of a line of --help
FLAG_WIDTH = 28  # columns of the flag's name in it
LONGEST_MESSAGE = 2_000  # characters: it may quote a word of a file
COMMON = (  # settings of transformers that --help lists
    "output_dir",
    "max_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "bf16",
    "do_train",
    "do_eval",
    "do_predict",
    "eval_strategy",
    "resume_from_checkpoint",
    "push_to_hub",
)
REWORDED = {  # those of them with a clearer help text than transformers'
    "max_steps": "Optimizer steps to train, instead of num_train_epochs",
    "gradient_accumulation_steps": "Forward passes on a device in one optimizer step",
    "output_dir": "Folder for everything the run writes",
    "do_train": "Fine-tune the language model",
    "do_eval": "Evaluate the final model",
    "do_predict": "Predict the rows of test_file or test_split",
    "push_to_hub": "Push the model to the Hub whenever it is saved",
    "resume_from_checkpoint": (
        "last, auto (last, or start if there is none), or a checkpoint's folder"
    ),
}
CONFIG_SUFFIXES = (".json", ".yaml", ".yml")
# Replacements for flags of transformers' scripts and older releases, by the argument class of a
# command: DataArguments for pretrain and lm-head, GlueArguments for glue, TrainingArguments for all
# three. docs/reference/commands.md shows this table.
INSTEAD = {
    "DataArguments": {
        "keep_linebreaks": (
            "each line is a document; --sample_by paragraph or document keeps line breaks"
        ),
        "pad_to_max_length": (
            "rows are packed full; "
            "with --line_by_line they are padded to the longest of their batch"
        ),
        "overwrite_output_dir": (
            "runs are never overwritten: use --resume_from_checkpoint last, or another --output_dir"
        ),
        "group_by_length": "use --train_sampling_strategy group_by_length",
    },
    "GlueArguments": {
        "text_column_names label_column_name metric_name": (
            "use --text_columns, --label_column, --metric"
        ),
        "max_predict_samples": "shorten the --test_file",
        "config_name": "the configuration is the checkpoint's",
        "overwrite_cache": "rows are tokenized anew by each command",
        "pad_to_max_length": "rows are padded to the longest of their batch",
        "overwrite_output_dir": (
            "repeat the command to finish a grid, or use another --output_dir"
        ),
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
PRESET_FOLDER = Path(__file__).parent / "cli" / "presets"
PRESETS = {path.stem: path for path in sorted(PRESET_FOLDER.glob("*.yaml"))}


def parse_args(dataclass_types: list[type], argv: list[str] | None = None) -> tuple:
    """Parse ``[PRESET|config.yaml|config.json] [--flag value ...]`` into argument dataclasses.

    The file's keys become flags, so that types, choices and names are checked the same way; flags
    override the file. ``--flag null`` keeps the flag's default, whatever the file says.

    Args:
        dataclass_types: the dataclasses whose fields are the flags.
        argv: the words of the command line; by default those of this process.

    Returns:
        One instance of each dataclass, in their order.

    Raises:
        ValueError: for an unknown argument, with the nearest known one; for a value that its
            argument does not take; and for a file that is no mapping.
        FileNotFoundError: if the first word is neither a preset nor a file.
    """
    words = words_of(argv)
    if {"-h", "--help"} & set(words):
        print(help_text(dataclass_types))
        sys.exit()
    parser = _make_parser(dataclass_types)
    full_names = _full_names(dataclass_types)
    settings: dict[str, Any] = {}
    if words and not words[0].startswith("-"):
        settings = _read_settings(find_config(words.pop(0)), full_names)
    words, names_of_null = _without_null(words, full_names)
    for name in names_of_null:
        settings.pop(name, None)
    words = [_with_home(word) for word in _as_flags(settings) + words]
    # Before the argument classes check their values: a refusal of theirs would hide these words.
    _, unknown = parser.parse_known_args(words)
    if unknown:
        names = list(dict.fromkeys(full_names.values()))
        raise ValueError(_describe_unknown(unknown[0], dataclass_types, names))
    try:
        parsed = parser.parse_args_into_dataclasses(words, look_for_args_file=False)
    except json.JSONDecodeError as error:
        # transformers names neither the argument nor the value.
        shown = textwrap.shorten(error.doc, 80)
        raise ValueError(
            f"An argument, or its file, must be a JSON object, got {shown!r}: {error}."
        ) from error
    # Trackers such as wandb publish it.
    sys.argv[1:] = without_tokens(sys.argv[1:], parsed)
    return tuple(parsed)


def _with_home(word: str) -> str:
    """Replace the ~ at the beginning of a path by the home folder.

    A shell leaves it as it is in files and after an equals sign.
    """
    flag, equals, value = word.partition("=")
    if word.startswith("--") and value.startswith("~/"):
        return flag + equals + os.path.expanduser(value)
    if word.startswith("~/"):
        return os.path.expanduser(word)
    return word


def words_of(argv: list[str] | None) -> list[str]:
    """Return a copy of ``argv``, or for None the words of this process's command line."""
    if argv is None:
        return sys.argv[1:]
    return list(argv)


def _full_names(dataclass_types: list[type]) -> dict[str, str]:
    """Return the name of the field that each name of a flag stands for."""
    full_names: dict[str, str] = {}
    for arguments_class in dataclass_types:
        for field in fields(arguments_class):
            if field.init:
                full_names[field.name] = field.name
                for flag in field.metadata.get("aliases", ()):
                    full_names[flag.removeprefix("--")] = field.name
    return full_names


def _make_parser(dataclass_types: list[Any]) -> "HfArgumentParser":
    # Not at the top: the import takes a second, which listing the commands should not take.
    from transformers import HfArgumentParser

    class Parser(HfArgumentParser):
        """Shortens errors, since argparse quotes values whole."""

        def error(self, message: str) -> NoReturn:
            super().error(message[:LONGEST_MESSAGE])

    parser = Parser(
        dataclass_types,
        allow_abbrev=False,
        add_help=False,
        # It would have 200 flags.
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("--help-all", action="help", help=argparse.SUPPRESS)
    return parser


def _read_settings(path: Path, full_names: Mapping[str, str]) -> dict[str, Any]:
    """Read the settings of a file by their full names; refuse a preset with a setting that the
    command lacks.
    """
    settings: dict[str, Any] = {}
    for name, value in _read_config(path).items():
        full_name = full_names.get(name, name)
        if full_name in settings:
            raise ValueError(
                f"Configuration file {str(path)!r}: {name!r} and another name of {full_name!r} "
                "both occur, give one of them."
            )
        settings[full_name] = value
    of_another_command = [name for name in settings if name not in full_names]
    if path in PRESETS.values() and of_another_command:
        raise ValueError(
            f"Preset {path.stem!r} is for another command: it sets {of_another_command[0]!r}, "
            "which this one does not have. `headless-trainer presets` lists those of each command."
        )
    return settings


def _without_null(words: list[str], full_names: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Take ``--name null`` and ``--name=null`` out of the words, and also return these full
    names.
    """
    # First both forms become two words, of which the second may be null.
    separate: list[str] = []
    for word in words:
        if re.match("--.*=null$", word):
            separate += word.split("=", 1)
        else:
            separate.append(word)
    kept: list[str] = []
    names_of_null: list[str] = []
    position = 0
    while position < len(separate):
        word = separate[position]
        name = _as_name(word.removeprefix("--"))
        is_flag = word.startswith("--") and name in full_names
        if is_flag and separate[position + 1 : position + 2] == ["null"]:
            names_of_null.append(full_names[name])
            position += 2
        else:
            kept.append(word)
            position += 1
    return kept, names_of_null


def _describe_unknown(word: str, dataclass_types: list[type], names: list[str]) -> str:
    """Say what is wrong with a word that belongs to no argument, and what to write instead."""
    if word in PRESETS or Path(word).suffix in CONFIG_SUFFIXES:
        return f"Preset or configuration file {word!r} must be the first argument; flags follow it."
    if not word.startswith("-"):
        return f"{word!r} belongs to no argument: an argument that takes one value has several."
    flag = word.partition("=")[0]
    bare_name = flag.lstrip("-")
    class_names = {
        base.__name__ for arguments_class in dataclass_types for base in arguments_class.__mro__
    }
    for class_name, replacements in INSTEAD.items():
        if class_name not in class_names:
            continue
        for replaced_names, instead in replacements.items():
            if _as_name(bare_name) in replaced_names.split():
                return f"There is no {flag}: {instead}."
    # One, or none that is near.
    hint = ""
    for nearest in difflib.get_close_matches(bare_name, names, n=1):
        hint = f" The nearest known one is '--{nearest}'."
    return f"Unknown argument {flag!r}.{hint} --help-all lists all."


def without_tokens(words: Sequence[str], parsed: Iterable[Any]) -> list[str]:
    """Return the words of a command line without tokens of the Hub, given what they were parsed
    into.
    """
    tokens = set()
    for arguments in parsed:
        for field in fields(arguments):
            if field.name.endswith("token") and field.name != "mask_token":
                tokens.add(getattr(arguments, field.name))
    shown = []
    for word in words:
        flag, equals, value = word.partition("=")
        if word in tokens:
            shown.append("<token>")
        elif equals and value in tokens:
            shown.append(f"{flag}=<token>")
        else:
            shown.append(word)
    return shown


def help_text(dataclass_types: list[type]) -> str:
    """List every flag of ours in one line below its topic, then common settings of transformers.

    The topic of a field is the first line of the docstring of the class that declares it. Fields in
    the ``unread_flags`` of any class are omitted.
    """
    lines_of_topics: dict[str, list[str]] = {}
    lines_of_transformers: list[str] = []
    unread = {
        name
        for arguments_class in dataclass_types
        for name in getattr(arguments_class, "unread_flags", ())
    }
    for arguments_class in dataclass_types:
        for field in fields(arguments_class):
            if not field.init or field.name in unread:
                continue
            declaring = _declaring_class(arguments_class, field.name)
            if not declaring.__module__.startswith("transformers."):
                first_line = (declaring.__doc__ or "").partition("\n")[0]
                topic = first_line.rstrip(".").replace("`", "")
                lines_of_topics.setdefault(topic, []).append(_flag_line(field))
            elif field.name in COMMON:
                lines_of_transformers.append(_flag_line(field, REWORDED.get(field.name)))
    if lines_of_transformers:
        lines_of_topics["Training, by transformers"] = lines_of_transformers
    blocks = ["\n".join([f"{topic}:", *lines]) for topic, lines in lines_of_topics.items()]
    return "\n\n".join([*blocks, "--help-all lists every flag with its full text."])


def _declaring_class(arguments_class: type, name: str) -> type:
    """Return the most basic class of a dataclass that has a field of this name."""
    having = [
        base
        for base in arguments_class.__mro__
        if name in base.__dict__.get("__dataclass_fields__", ())
    ]
    return having[-1]


def _flag_line(field: Field, text: str | None = None) -> str:
    """Return a flag with the first sentence of its help text, or of ``text``, and its default."""
    shown_default = ""
    if field.default not in (MISSING, None, False, ""):
        # The value of an enumeration, or the default itself.
        shown_default = f" [{getattr(field.default, 'value', field.default)}]"
    text = text or field.metadata.get("help", "").replace("%%", "%")
    sentence = re.split(r"\.(?:\s|$)", text, maxsplit=1)[0]
    # Two spaces and two dashes precede the name.
    room = HELP_WIDTH - FLAG_WIDTH - 4 - len(shown_default)
    shortened = textwrap.shorten(sentence, room, placeholder=" ...")
    return f"  --{field.name:<{FLAG_WIDTH}}{shortened}{shown_default}"


def find_config(name: str) -> Path:
    """Return the settings file or preset of this name; FileNotFoundError suggests a preset."""
    path = Path(name)
    if path.suffix in CONFIG_SUFFIXES and path.is_file():
        return path
    if name in PRESETS:
        return PRESETS[name]
    nearest = difflib.get_close_matches(path.stem, PRESETS, n=1, cutoff=0.0)[0]
    raise FileNotFoundError(
        f"{name!r} is neither a preset nor an existing .json, .yaml or .yml file, which may "
        f"precede the flags. The nearest preset is {nearest!r}; "
        "`headless-trainer presets` lists all."
    )


def show_usage(text: str, argv: list[str] | None = None) -> None:
    """Print the usage of a command if its help is requested; its flags follow, and it ends.

    The argument classes of transformers import torch, accelerate and peft, which takes seconds, but
    do not need them: a program that only prints its help hides these packages, unless it is a
    notebook.
    """
    if not HELP_FLAGS & set(words_of(argv)):
        return
    print(text, flush=True)
    if {"torch", "IPython"} & sys.modules.keys():
        # A notebook goes on afterwards.
        return
    modules: dict[str, Any] = sys.modules
    for package in ("torch", "accelerate", "peft"):
        modules[package] = None  # makes its import fail
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # of the missing torch


def print_result(text: str) -> None:
    """Print a result; characters that the console cannot show, such as ± in ASCII, become ``?``."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # notebooks may name none
    print(text.encode(encoding, errors="replace").decode(encoding))


@contextmanager
def errors_in_one_line(*error_classes: type[Exception]) -> Iterator[None]:
    """End the program at errors that a user can fix, with one line of bounded length.

    Args:
        error_classes: the classes of these errors; others are raised as they are.
    """
    try:
        yield
    except error_classes as error:
        message = " ".join(str(error).split())
        sys.exit(f"{type(error).__name__}: {message[:LONGEST_MESSAGE]}")


@contextmanager
def missing_extra_named(what_needs: str) -> Iterator[None]:
    """Raise OSError with the remedy if a package of the extra ``eval`` cannot be imported.

    Args:
        what_needs: subject and verb of the sentence, such as ``Reports need``.
    """
    try:
        yield
    except ImportError as error:
        raise OSError(
            f"{error}. {what_needs} an extra: pip install '.[eval]' in a checkout"
        ) from error


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML or JSON, which is YAML. ValueError names the origin ``where`` and the problem."""
    try:
        return yaml.load(text, Yaml)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None)
        line = ""
        if mark:
            line = f", line {mark.line + 1}"
        raise ValueError(f"{where}{line}, is neither YAML nor JSON: {problem or error}.") from error


_SURROGATE_PAIR = re.compile(r"(?<!\\)\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}")


def _read_config(path: Path) -> dict[str, Any]:
    """Read a settings file. Values are as they are written, names have underscores."""
    where = f"Configuration file {str(path)!r}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text ({error}): save it as UTF-8.") from error
    if path.suffix == ".json":
        # JSON may be indented by tabs, YAML may not.
        text = text.expandtabs()
        # And JSON writes a character beyond the first 65,536 as two halves.
        text = _SURROGATE_PAIR.sub(lambda pair: json.loads(f'"{pair.group()}"'), text)
    values = parse_yaml(text, where)
    if not isinstance(values, dict):
        raise ValueError(f"{where} must hold name: value pairs, got {values!r:.80}.")
    # Scalars stay texts: 007 and 2024_01 may be names, and the flags know their types.
    texts = yaml.load(text, yaml.BaseLoader)
    settings: dict[str, Any] = {}
    for key, value in values.items():
        if value is not None and not isinstance(value, dict):
            value = texts.get(key, value)
        settings[_as_name(key)] = value
    return settings


def _as_name(key: Any) -> str:
    return str(key).replace("-", "_")


def _as_flags(settings: dict[str, Any]) -> list[str]:
    """Return settings as words of a command line; an empty key or list keeps the default."""
    words: list[str] = []
    for name, value in settings.items():
        if isinstance(value, list):
            if value:
                words += [f"--{name}", *map(str, value)]
        elif isinstance(value, dict):
            words.append(f"--{name}={json.dumps(value)}")
        elif value is not None:
            words.append(f"--{name}={value}")
    return words


class Yaml(yaml.SafeLoader):
    """YAML as people expect it: ``no``, ``off``, ``010`` and dates are words, and ``1e-4`` is a
    number.

    Raises an error for a name that occurs twice in a mapping, where YAML would keep the last value,
    and for aliases, which, nested, can make a file of a few lines exceed any memory.
    """

    # PyYAML looks them up by the first character of a word. Of the words that it takes for
    # booleans, only true and false begin with t or f. Its integers may be octal or hours.
    yaml_implicit_resolvers = {
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if (first in "tTfF" or not tag.endswith(":bool"))
            and not tag.endswith((":timestamp", ":int"))
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
        names: set[str] = set()
        for key, _ in node.value:
            name = _as_name(key.value)
            if name in names:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value!r} occurs twice, give it once",
                    problem_mark=key.start_mark,
                )
            names.add(name)
        return super().construct_mapping(node, deep)


Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][\d_]*)$"), list("-+0123456789")
)
# PyYAML wants a dot in a number with an exponent.
Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
