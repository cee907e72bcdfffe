"""Code shared by the studies: pretrain small models in comparable ways, each once, and write
results.
"""

import argparse
import dataclasses
import itertools
import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from headless_trainer.cards.facts import hardware, software
from headless_trainer.command_line import PRESETS, parse_yaml
from headless_trainer.files.manifest import WEIGHTS
from headless_trainer.files.whole import write_whole
from headless_trainer.presentation.pictures import to_png
from headless_trainer.reporting.curves import curves

# Settings of run_pretrain.py at --scale cpu. No dropout: every row is seen once, and dropout makes
# the perplexity of all recipes about a tenth worse.
CPU = {
    "max_seq_length": 128,
    "vocab_size": 8_000,
    "validation_split_percentage": 2,
    "max_eval_samples": 200,
    "per_device_train_batch_size": 32,
    "max_steps": 300,
    "learning_rate": 4e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 15,
    "weight_decay": 0.01,
    "adam_beta2": 0.98,
    "logging_steps": 10,
    "save_steps": 0.5,
    "save_total_limit": 1,
}
CPU_MODELS = {
    "clm": {
        "model_type": "gpt2",
        "config_overrides": "n_embd=128,n_head=2,n_layer=2,resid_pdrop=0,embd_pdrop=0,attn_pdrop=0",
    },
    "mlm": {
        "model_type": "bert",
        "config_overrides": (
            "hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512,"
            "hidden_dropout_prob=0,attention_probs_dropout_prob=0"
        ),
        # One in seven tokens is predicted: 200 rows have a standard error of 1 %, seeds less.
        "max_eval_samples": 1_000,
    },
}
# Presets of the other scales: the paper's settings for its baselines.
SCALES = {
    "small": {"clm": "paper_small_decoder_vanilla", "mlm": "paper_small_encoder_vanilla"},
    "paper": {"clm": "paper_decoder_vanilla", "mlm": "paper_encoder_vanilla"},
}
RECIPES = ["headless + Muon", "vanilla tied + bias log q + Muon"]
# Recorded when a study starts: later changes to the files are not what it runs.
SOFTWARE = software()
# Exit statuses after Ctrl-C and SIGTERM, of programs that do not handle them and of those that do.
STOPPED = (-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM)
BASES = {
    "headless": [],
    "headless untied": ["--tie_word_embeddings", "false"],
    "sampled softmax untied": ["--objective", "sampled_softmax", "--tie_word_embeddings", "false"],
    "vanilla tied": ["--objective", "vanilla", "--tie_word_embeddings", "true"],
    "vanilla untied": ["--objective", "vanilla", "--tie_word_embeddings", "false"],
}
# Ingredients are added to a base with a plus sign. A number before an x is multiplied by the
# learning rate.
INGREDIENTS = {
    # For vanilla decoders; vanilla encoders have a bias of their own.
    "bias log q": ["--head_bias", "prior"],
    "Muon": ["--muon_learning_rate", "2x"],
    **{f"pools of {size}": ["--pool_size", f"{size}"] for size in (2048, 16256, 32512, 65024)},
    # Other pools: studies/pool_variants.py.
    **{
        name: ["--trainer", f"studies.pool_variants:{trainer}"]
        for name, trainer in (
            ("drawn by frequency", "DrawnByFrequency"),
            ("negatives of other rows", "OtherRows"),
            ("growing", "GrowingPool"),
            ("exact end", "ExactEnd"),
            ("exact now and then", "ExactNowAndThen"),
        )
    },
    # Other optimizers of the tables: studies/table_optimizers.py.
    **{
        name: ["--trainer", f"studies.table_optimizers:{trainer}"]
        for name, trainer in (
            ("row-wise Adam", "RowWiseAdam"),
            ("row-wise Adam of vanilla", "RowWiseAdamOfVanilla"),
            ("row-wise Adam without momentum", "RowWiseAdamWithoutMomentum"),
            (
                "row-wise Adam without momentum of vanilla",
                "RowWiseAdamWithoutMomentumOfVanilla",
            ),
            ("row-wise Adagrad", "RowWiseAdagrad"),
            ("row-wise Adagrad at a flat rate", "RowWiseAdagradAtAFlatRate"),
            (
                "row-wise Adagrad at a flat rate of vanilla",
                "RowWiseAdagradAtAFlatRateOfVanilla",
            ),
        )
    },
    **{
        f"counts ^ {exponent}": ["--trainer", f"studies.counts:Power{exponent.replace('.', '')}"]
        for exponent in ("0", "0.5", "1.5", "2")
    },
    "masking 30 %": ["--mlm_probability", "0.3"],
    **{f"weight decay {value}": ["--weight_decay", value] for value in ("0.1", "0.3")},
    **{f"beta2 {value}": ["--adam_beta2", value] for value in ("0.999", "0.9999")},
    **{f"epsilon {value}": ["--adam_epsilon", value] for value in ("1e-6", "1e-5", "1e-4")},
    # Other trunks for --scale cpu.
    **{
        f"width {width}": [
            "--config_overrides",
            CPU_MODELS["clm"]["config_overrides"].replace("128", f"{width}"),
        ]
        for width in (64, 256)
    },
    "GPT-NeoX": [
        *("--model_type", "gpt_neox", "--config_overrides"),
        "hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512",
    ],
    "Pythia-70M": [
        *("--model_type", "gpt_neox", "--bf16", "auto", "--config_overrides"),
        "hidden_size=512,num_hidden_layers=6,num_attention_heads=8,intermediate_size=2048",
    ],
    "RoBERTa": ["--model_type", "roberta"],
    "RoFormer": ["--model_type", "roformer"],
    # With relative attention, which its configuration disables by default.
    "DeBERTa": [
        *("--model_type", "deberta-v2", "--config_overrides"),
        CPU_MODELS["mlm"]["config_overrides"]
        + ",relative_attention=true,pos_att_type=p2c|c2p,position_biased_input=false",
    ],
}


def model_arguments(description: str, *, recipes: bool = True) -> argparse.ArgumentParser:
    """Return a parser for the settings that select pretrained models; studies with equal settings
    share their models.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--train_file", nargs="+", help="the corpus; default: the scale's, if it is not cpu"
    )
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument("--task", choices=["clm", "mlm"], default="clm")
    parser.add_argument(
        "--scale",
        choices=["cpu", *SCALES],
        default="cpu",
        help="cpu: two layers of width 128, minutes a run. small: the paper's models of figures 7 "
        "and 8. paper: BERT-base and Pythia-70M. The last two are the presets paper_small_* "
        "and paper_*, which the flags below override",
    )
    parser.add_argument("--schedule", help="the --lr_scheduler_type")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--max_steps", type=int, help="optimizer steps of every run")
    parser.add_argument("--batch_size", type=int, help="rows per process and forward pass")
    parser.add_argument(
        "--vocab_size", type=int, help="train a tokenizer of this size on the corpus"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="concurrent runs, each on its share of the cores"
    )
    if recipes:
        parser.add_argument("--recipes", nargs="+", default=RECIPES, help="named as in recipe.py")
    parser.add_argument(
        "--launcher", default="", help="replaces python: 'accelerate launch --multi_gpu'"
    )
    results_argument(parser)
    return parser


def at_scale(args: argparse.Namespace, evaluations: int = 10, **cpu) -> argparse.Namespace:
    """Return the arguments of a study, with the scale's values for those not given.

    Args:
        args: parsed arguments. ``settings`` is added: the flags of run_pretrain.py unless a study
            overrides them. So is ``given``: names of the arguments that the command gives.
        evaluations: number of evaluations in a run.
        cpu: settings of this study at --scale cpu.
    """
    if args.scale == "cpu":
        settings = CPU | CPU_MODELS[args.task] | cpu
    else:
        preset = SCALES[args.scale][args.task]
        settings = parse_yaml(PRESETS[preset].read_text(encoding="utf-8"), preset)
        # Recipes set these.
        del settings["output_dir"]
        del settings["objective"]
    replaced = []
    if args.train_file:
        replaced += ["dataset_name", "text_column"]
    if args.vocab_size or "tokenizer_name" not in settings:
        # The mask token is for a tokenizer that has none.
        replaced += ["tokenizer_name", "mask_token"]
    settings = {name: value for name, value in settings.items() if name not in replaced}
    if args.train_file:
        settings["train_file"] = args.train_file
    args.tokenizer_name = settings.get("tokenizer_name")
    names = {
        "max_steps": "max_steps",
        "batch_size": "per_device_train_batch_size",
        "schedule": "lr_scheduler_type",
        "vocab_size": "vocab_size",
    }
    args.given = {name for name in (*names, "train_file") if getattr(args, name)}
    for name, setting in names.items():
        if getattr(args, name) is None:
            setattr(args, name, settings.get(setting))
    args.settings = settings
    args.evaluations = evaluations
    return args


def variant(args: argparse.Namespace, name: str, **settings) -> argparse.Namespace:
    """Return the same study with other settings, its runs in a separate folder below
    ``--output_dir``.
    """
    return argparse.Namespace(**vars(args) | {"output_dir": args.output_dir / name} | settings)


def results_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says where to write results."""
    parser.add_argument(
        "--results_dir", type=Path, help="for table, picture and results.json; default: by the runs"
    )


def write_results(
    folder: Path, results: object, table: Iterable[str], figure=None, runs: Iterable[Path] = ()
) -> None:
    """Write ``results.json``, ``results.md`` and, for a figure, ``results.png``, and print the
    table.

    Both texts name the origin of the results: the command with shortened paths, versions, commit
    and machine, and the commits named by the model cards of ``runs``, the folders of models
    trained earlier.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    origin = {"Command": command_line(), **SOFTWARE, "Machine": hardware(device)}
    commits = {commit_of_run(run) for run in runs} - {None}
    if commits:
        origin["Commits of the runs"] = ", ".join(sorted(commits))
    lines = [*table, "", *(f"- {label}: {value}" for label, value in origin.items())]
    text = "\n".join(lines) + "\n"
    if figure is not None:
        text += "\n![Picture](results.png)\n"
    record = json.dumps({"origin": origin, "results": results}, indent=1) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "results.json", record.encode())
    write_whole(folder / "results.md", text.encode())
    if figure is not None:
        write_whole(folder / "results.png", to_png(figure))
    print(text)


def command_line() -> str:
    """Return the running command, without the folders of this machine."""
    script = f"studies/{Path(sys.argv[0]).name}"
    flags = [without_folders(word) for word in sys.argv[1:]]
    return shlex.join(["python", script, *flags])


def without_folders(text: object) -> str:
    """Shorten absolute paths, also after an equals sign, to their last two names: a run and its
    parent folder.
    """

    def last_names(path: re.Match) -> str:
        return path[1] + "/".join(path[2].split("/")[-2:])

    return re.sub(r"(^|[=\s])/(\S+)", last_names, str(text).rstrip("/"))


def commit_of_run(folder: Path) -> str | None:
    """Return the commit at which a run was trained, if its card names one."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8")
    commit = re.search(r"^- Commit of the working directory: (.+)$", text, re.MULTILINE)
    if commit is None:
        return None
    return commit[1]


def data_settings(args: argparse.Namespace) -> dict[str, object]:
    """Return those settings of a study's runs that define their texts and rows."""
    from headless_trainer.arguments import DataArguments

    names = {field.name for field in dataclasses.fields(DataArguments)}
    return {name: value for name, value in args.settings.items() if name in names}


def data_arguments(args: argparse.Namespace):
    """Return `data_settings` as run_pretrain.py parses them."""
    from headless_trainer.arguments import DataArguments

    return DataArguments(**data_settings(args))


def token_rows(data, tokenizer, part: str, rows: int) -> torch.Tensor:
    """Return ``(rows, max_seq_length)`` int64 ids of the first rows of ``train`` or
    ``validation``, as in runs on ``data``.
    """
    from headless_trainer.corpus.packing import first_rows, tokenize_and_pack
    from headless_trainer.corpus.texts import load_texts

    texts = load_texts(data)[part]
    packed = tokenize_and_pack(texts, tokenizer, max_seq_length=data.max_seq_length)
    return torch.tensor(first_rows(packed, rows)["input_ids"][:])


def held_out_documents(data, least_bytes: int) -> list[str]:
    """Return the first held-out documents, enough for ``least_bytes`` bytes of UTF-8 in total, or
    all.
    """
    from headless_trainer.corpus.texts import load_texts

    documents = []
    size = 0
    for row in load_texts(data)["validation"]:
        documents.append(row["text"])
        size += len(row["text"].encode())
        if size >= least_bytes:
            break
    return documents


def flags_of(recipe: str) -> list[str]:
    """Return the flags of run_pretrain.py that a recipe stands for."""
    base, *ingredients = recipe.split(" + ")
    flags = []
    for part, known in [(base, BASES), *((name, INGREDIENTS) for name in ingredients)]:
        if part not in known:
            raise SystemExit(f"--recipes: {recipe!r}: unknown {part!r}; see recipe.py --help.")
        flags += known[part]
    return flags


def tokenizer_of(args) -> str:
    """Return the name or folder of the tokenizer of all runs of a task; its training is not part
    of the comparison.
    """
    return str(args.tokenizer_name or args.output_dir / f"{args.task}_{args.vocab_size}_tokenizer")


def prepare(args, also: Iterable[Path] = ()) -> None:
    """Train the tokenizer unless it is a named one or exists; at --scale cpu, also make the rows.

    Otherwise runs that start together would each make both. The tokenizer is also trained on the
    files of ``also``.
    """
    from transformers import AutoTokenizer

    from headless_trainer.corpus.texts import load_texts
    from headless_trainer.corpus.tokenization import train_tokenizer

    data = data_arguments(args)
    folder = tokenizer_of(args)
    if not args.tokenizer_name and not Path(folder, "tokenizer.json").is_file():
        texts_of_tokenizer = data
        if also:
            files = [*data.train_file, *map(str, also)]
            texts_of_tokenizer = dataclasses.replace(data, train_file=files)
        tokenizer = train_tokenizer(
            load_texts(texts_of_tokenizer)["train"],
            kind=args.settings.get("tokenizer_type", "bpe"),
            vocab_size=args.vocab_size,
            task=args.task,
            max_seq_length=data.max_seq_length,
        )
        tokenizer.save_pretrained(folder)
    if args.scale == "cpu":
        # Any number of rows caches all of them.
        token_rows(data, AutoTokenizer.from_pretrained(folder), "train", 1)


def run_dir(args, recipe: str, rate: float, seed: int) -> Path:
    """Return the folder of one run."""
    name = "".join(letter if letter.isalnum() else "_" for letter in recipe.replace(" + ", "_"))
    return args.output_dir / f"{args.task}_{args.scale}_{args.schedule}" / name / f"{rate:g}_{seed}"


def pretrain(args, recipe: str, rate: float, seed: int) -> float:
    """Train unless that was done before, and return the final held-out cross-entropy, infinity if
    the run diverged.
    """
    folder = run_dir(args, recipe, rate, seed)
    scale = args.settings
    settings = scale | {
        "task": args.task,
        "output_dir": folder,
        "seed": seed,
        "tokenizer_name": tokenizer_of(args),
        "max_steps": args.max_steps,
        "warmup_steps": args.max_steps * scale["warmup_steps"] // scale["max_steps"],
        "learning_rate": rate,
        "lr_scheduler_type": args.schedule,
        "per_device_train_batch_size": args.batch_size,
        "eval_strategy": "steps",
        "eval_steps": max(1, args.max_steps // args.evaluations),
        "logging_steps": max(1, min(scale["logging_steps"], args.max_steps // 10)),
        "disable_tqdm": "true",
    }
    # The tokenizer is trained already.
    for name in ("train_tokenizer", "tokenizer_type", "vocab_size"):
        settings.pop(name, None)
    launcher = shlex.split(args.launcher) or [sys.executable]
    command = [*launcher, "run_pretrain.py", *as_flags(settings)]
    for flag in flags_of(recipe):
        # So many times the learning rate.
        if re.fullmatch(r"\d+x", flag):
            flag = f"{float(flag[:-1]) * rate:g}"
        command.append(flag)
    results = results_of(command, folder, "eval_results.json", args.jobs)
    if results is None:
        return math.inf
    return results["eval_cross_entropy"]


def as_flags(settings: dict[str, object]) -> list[str]:
    """Return settings as command-line flags."""
    flags = []
    for name, value in settings.items():
        if isinstance(value, list):
            flags += [f"--{name}", *map(str, value)]
        elif isinstance(value, dict):
            flags += [f"--{name}", json.dumps(value)]
        else:
            flags += [f"--{name}", str(value)]
    return flags


def results_of(command: list[str], folder: Path, name: str, jobs: int) -> dict | None:
    """Start or resume a training run unless it is finished, and return its results; None if it
    diverged.

    Its folder has its command in ``command.txt`` and its console output in ``console.log``. A run
    that left nothing to go on from is started anew, even by another command.

    Args:
        command: the command, without the checkpoint to resume from.
        folder: output folder of the run.
        name: name of the file in it that a finished run writes last.
        jobs: concurrent runs, each on its share of the cores.

    Raises:
        SystemExit: if it failed, with its own message, or if the folder's run has another command.
    """
    result = folder / name
    diverged = folder / "diverged"
    console = folder / "console.log"
    record = folder / "command.txt"
    folder.mkdir(parents=True, exist_ok=True)
    words = shlex.join(command[1:])
    has_checkpoint = any(folder.glob("checkpoint-*"))
    is_done = result.is_file() or diverged.is_file()
    was_started = record.is_file()
    if was_started and record.read_text() != words and (has_checkpoint or is_done):
        raise SystemExit(
            f"{folder} has a run of another command, see its command.txt: choose another "
            "--output_dir."
        )
    record.write_text(words)
    if not is_done:
        if has_checkpoint:
            command = [*command, "--resume_from_checkpoint", "last"]
        elif was_started:
            remove_weights(folder)
        cores = max(1, (os.cpu_count() or 1) // jobs)
        # A number of threads that the user has set stays.
        environment = {"OMP_NUM_THREADS": str(cores)} | os.environ
        with console.open("a") as log:
            earlier_bytes = log.tell()
            ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        output = console.read_bytes()[earlier_bytes:].decode(errors="replace")
        if ended.returncode and "so the run stops" in output:
            diverged.touch()
        elif ended.returncode and ended.returncode not in STOPPED:
            reason = f"exit status {ended.returncode}"
            error = re.search(r"^\S*(?:Error|Exception)\b.*", output, re.MULTILINE)
            if error:
                reason = error[0]
            raise SystemExit(f"The run in {folder} failed, see its console.log: {reason}")
        elif not result.is_file():
            # SIGTERM and Ctrl-C also end a run with the exit status of success.
            raise SystemExit(
                f"The run in {folder} was stopped before its end: the same command resumes it."
            )
    if diverged.is_file():
        return None
    return json.loads(result.read_text())


def remove_weights(folder: Path) -> None:
    """Remove the weights of a run that was stopped in its last evaluation and wrote no checkpoint:
    it cannot be resumed, and a new run beside them is refused.
    """
    for path in folder.iterdir():
        if re.fullmatch(WEIGHTS, path.name):
            path.unlink()


def held_out_points(folder: Path, tokens_per_second: float | None = None) -> list[dict]:
    """Return a run's evaluations, each with the tokens seen and the seconds of training steps that
    they take at the run's pace.

    The pace is ``tokens_per_second`` or, so that other load on the machine does not count, the
    90th percentile of the logged tokens per second. It excludes starts, evaluations and
    checkpoints.
    """
    logged = curves(log_history(folder))
    pace = tokens_per_second or logged["tokens_per_second"].quantile(0.9, interpolation="lower")
    evaluations = logged[logged["eval_accuracy"].notna()]
    seconds = evaluations["tokens_seen"] / pace
    return evaluations.assign(seconds=seconds).to_dict("records")


def log_history(folder: Path) -> list[dict]:
    """Return everything that a run logged."""
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


def language_model(folder: Path):
    """Load the causal language model of a run in evaluation mode, a headless one with its free
    head.
    """
    from transformers import AutoModelForCausalLM

    from headless_trainer import attach_lm_head

    settings = json.loads((folder / "settings.json").read_text())
    if settings.get("objective", "headless") == "headless":
        model = attach_lm_head(folder)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
    return model.eval()


def read_rows(path: str | Path, limit: int | None = None) -> list[dict]:
    """Return the first ``limit`` rows of a .jsonl file, or all."""
    # By the file's own lines: `str.splitlines` also breaks at characters within a text.
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in itertools.islice(lines, limit)]


def mean_and_deviation(scores: list[float]) -> list[str]:
    """Return the mean and the standard deviation of scores x 100, as cells of a table; one score
    has no deviation.
    """
    percents = [100 * score for score in scores]
    mean = f"{statistics.mean(percents):.1f}"
    if len(percents) == 1:
        return [mean, ""]
    return [mean, f"{statistics.stdev(percents):.1f}"]


def spread(values: list[float], digits: int) -> str:
    """Format the mean and, if there are several values, its standard error."""
    mean = statistics.mean(values)
    # The mean is infinite if a run diverged.
    if len(values) < 2 or not math.isfinite(mean):
        return f"{mean:.{digits}f}"
    standard_error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.{digits}f} ({standard_error:.{digits}f})"


def finished(args, recipe: str) -> dict[float, dict[int, Path]]:
    """Return the folders of a recipe's runs that have finished or diverged, by rate and seed.

    Raises:
        SystemExit: if a run has another length, batch or corpus than the study's runs.
    """
    runs: dict[float, dict[int, Path]] = {}
    for folder in sorted(run_dir(args, recipe, 0.0, 0).parent.glob("*")):
        if (folder / "eval_results.json").is_file() or has_diverged(folder):
            check_settings(args, folder)
            rate, seed = folder.name.split("_")
            runs.setdefault(float(rate), {})[int(seed)] = folder
    return runs


def has_diverged(folder: Path) -> bool:
    """Whether a run stopped because its loss or weights were not finite."""
    return (folder / "diverged").is_file()


def check_settings(args, folder: Path) -> None:
    """Refuse a run if its command has another length, batch or corpus than the study's.

    A command that only reads runs is compared by the settings that it gives: one without
    ``--max_steps`` compares runs of several lengths, as those of equal time. Folders are left out,
    since runs are copied to other machines, as are settings that differ between the studies that
    share their models, as the number of evaluations.
    """
    record = folder / "command.txt"
    if not record.is_file():
        return
    compared = args.given
    # The runs that a command has just trained have its defaults too.
    if not getattr(args, "report_only", True):
        compared = {*compared, "max_steps", "batch_size"}
    expected = {
        "max_steps": ("max_steps", [args.max_steps]),
        "batch_size": ("per_device_train_batch_size", [args.batch_size]),
        "train_file": ("train_file", args.train_file),
    }
    recorded = values_of_flags(shlex.split(record.read_text()))
    for argument, (flag, values) in expected.items():
        if argument not in compared or flag not in recorded:
            continue
        wanted = [Path(str(value)).name for value in values]
        found = [Path(value).name for value in recorded[flag]]
        if found != wanted:
            raise SystemExit(
                f"{folder} has a run with --{flag} {' '.join(found)} but this study's runs have "
                f"--{flag} {' '.join(wanted)}: pass the same --{argument}, or choose another "
                "--output_dir."
            )


def values_of_flags(command: list[str]) -> dict[str, list[str]]:
    """Return the values of a command's flags by their names; the last counts of equal flags."""
    values: dict[str, list[str]] = {}
    name = None
    for word in command:
        if word.startswith("--"):
            name = word[2:]
            values[name] = []
        elif name is not None:
            values[name].append(word)
    return values


def best_rate(args, runs: dict[float, dict[int, Path]]) -> tuple[float, dict[float, float]]:
    """Return the rate with the lowest held-out cross-entropy at the first seed, and each rate's
    cross-entropy there, infinity where that run diverged.
    """
    losses = {}
    for rate, folders in runs.items():
        folder = folders.get(args.seeds[0])
        if folder is None:
            continue
        if has_diverged(folder):
            losses[rate] = math.inf
            continue
        results = json.loads((folder / "eval_results.json").read_text())
        losses[rate] = results["eval_cross_entropy"]
    return min(losses, key=losses.get), losses


def mapped(args, function: Callable, items: Iterable) -> list:
    """Apply a function to each item, ``--jobs`` at a time, and return the results."""
    with ThreadPoolExecutor(args.jobs) as pool:
        return list(pool.map(function, items))


def best_runs(args, recipe: str) -> dict[int, Path]:
    """Return the folders of a recipe's finished runs at its best rate, by seed."""
    runs = finished(args, recipe)
    if not runs:
        raise SystemExit(
            f"There are no runs of {recipe!r} in {args.output_dir}: run python studies/recipe.py "
            "first."
        )
    rate, _ = best_rate(args, runs)
    # A run that diverged has no model.
    whole = {seed: folder for seed, folder in runs[rate].items() if not has_diverged(folder)}
    if not whole:
        raise SystemExit(
            f"All runs of {recipe!r} in {args.output_dir} at --rates {rate:g} diverged: run python "
            "studies/recipe.py with smaller --rates first."
        )
    return whole
