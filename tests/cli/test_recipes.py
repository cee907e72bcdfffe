"""Each recipe of README.md, docs/ and the presets runs as it is printed, cut in size by flags
alone.

A recipe is a block of commands or a preset, so a new one is run without being named here. What it
reads stands in an empty folder under the names that it gives: the Hub's models and data sets too,
for which the libraries look there first. What starts several processes (``accelerate launch``,
``sbatch``) is left out before a command: tests/processes/test_launch.py runs it.
"""

import gzip
import importlib
import json
import math
import re
import shlex
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
import yaml
from row_files import write_jsonl
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from headless_trainer.cli.main import MARKS
from headless_trainer.command_line import COMMANDS, MODULES, PRESETS, Yaml

ROOT = Path(__file__).parents[2]
# Not the archive, whose commands need an earlier commit.
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "archive.md"),
]
SCRIPTS = {f"run_{name.replace('-', '_')}": name for name in COMMANDS}
# The Hub's models, by a part of their name: what stands in for them.
WIDTH = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
KINDS = {
    "distilbert": ("distilbert", {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}),
    "bert": ("bert", WIDTH),
    "pythia": ("gpt_neox", WIDTH),
    "gemma": ("gemma3_text", {**WIDTH, "head_dim": 8, "num_key_value_heads": 1}),
    "gpt2": ("gpt2", {"n_embd": 16, "n_layer": 1, "n_head": 2}),
    "t5": ("t5", {}),  # for its tokenizer
    "afriteva": ("t5", {}),
}
# The cuts.
TRAINED = [
    *(
        "--max_steps",
        "2",
        "--per_device_train_batch_size",
        "2",
        "--per_device_eval_batch_size",
        "2",
    ),
    *("--gradient_accumulation_steps", "1", "--max_seq_length", "32", "--max_eval_samples", "4"),
    *("--dataloader_num_workers", "0", "--preprocessing_num_workers", "1"),
]
CUTS = {
    "glue": [
        "--seeds",
        "0",
        "--num_train_epochs",
        "1",
        "--max_train_samples",
        "8",
        "--max_eval_samples",
        "8",
    ],
    "lm-eval": ["--limit", "4", "--bootstrap_iters", "50", "--max_length", "32"],
    "report": [],
    "compare-steps": [
        *("--seconds", "1", "--objectives", "vanilla", "--per_device_train_batch_size", "2"),
        *("--max_seq_length", "32", "--use_cpu"),
    ],
}


def command(line: str) -> tuple[str, ...] | None:
    """One of our commands and its words, without what launches it; None for any other line."""
    words = shlex.split(line, comments=True)
    for place, word in enumerate(words):
        if word == "headless-trainer" and words[place + 1] in COMMANDS:
            return tuple(words[place + 1 :])
        name = SCRIPTS.get(Path(word).stem) if word.endswith(".py") else None
        if word.startswith("headless_trainer.cli."):
            name = {module: name for name, module in MODULES.items()}.get(word.rpartition(".")[2])
        if word.endswith(("slurm.sbatch", "launch-config slurm)")):
            return (
                "pretrain",
                *words[place + 1 :],
                "--output_dir",
                f"runs/{words[words.index('--job-name') + 1]}",
            )
        if name in COMMANDS:
            return (name, *words[place + 1 :])
    return None


def commands(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(filter(None, map(command, text.replace("\\\n", " ").splitlines())))


def recipes() -> dict[tuple, str]:
    """Names of recipes by their commands, so that one that is printed twice is run once."""
    found = {}
    for name, path in PRESETS.items():
        comment = "\n".join(re.findall(r"^#[ ]*(.*)$", path.read_text("utf-8"), re.MULTILINE))
        printed = commands(
            "\n".join(re.findall(r"(headless-trainer [^`]*?)(?<!\\)$", comment, re.MULTILINE))
        )
        own = next(each for mark, each in MARKS.items() if f"\n{mark}:" in path.read_text("utf-8"))
        found.setdefault(printed[:1] or ((own, name),), name)
        if name.startswith("adapt_"):  # and the run that the preset names to compare it with
            found[((*printed[0], "--objective", "vanilla"),)] = f"{name}-vanilla"
    for page in PAGES:
        for number, block in enumerate(
            re.findall(r"```bash\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        ):
            if commands(block):
                found.setdefault(commands(block), f"{page.stem}-{number}")
    return found


def settings(words: tuple[str, ...]) -> dict[str, list[str]]:
    """Values of the flags by name, over those of the preset."""
    values = {}
    if words and words[0] in PRESETS:
        preset = yaml.load(PRESETS[words[0]].read_text("utf-8"), Yaml)
        values = {
            name: value if isinstance(value, list) else [value] for name, value in preset.items()
        }
    for part in re.findall(r"(?:^|\x00)--([^\x00]*(?:\x00(?!--)[^\x00]*)*)", "\x00".join(words)):
        name, *given = part.split("\x00")
        values[name] = given or [True]
    return values


class World:
    """The folder in which recipes run, and what is put there for them."""

    def __init__(self, lines: list[str], tokenizers: dict):
        self.lines, self.tokenizers = lines, tokenizers
        size = len(lines)  # documents of which a thousandth is a row of tokens
        self.documents = [
            " ".join(lines[(place * 7 + shift) % size] for shift in range(9)) + f" {place}"
            for place in range(2000)
        ]

    def provide(self, name: str, given: dict[str, list]) -> None:
        """Make what the command names and is not there."""
        for flag in ("config_name", "tokenizer_name", "model_name_or_path", "compare"):
            for source in given.get(flag, []):
                if list(Path().glob(source)):
                    continue
                if name == "glue" and predicts_alone(given):
                    self.classifier(source)
                elif name == "lm-eval":
                    self.language_model(source)
                else:
                    self.model(source.replace("*", "5"), "mlm" if name == "glue" else "clm")
        for source in given.get("dataset_name", []):
            config = given.get("dataset_config_name", ["default"])[0]
            write_jsonl(Path(source) / "train.jsonl", [{"text": text} for text in self.documents])
            (Path(source) / "README.md").write_text(
                f"---\nconfigs:\n- config_name: {config}\n  data_files: train.jsonl\n---\n"
            )
        for flag in (
            "train_file",
            "validation_file",
            "replay_file",
            "eval_old_file",
            "test_file",
            "data_files",
        ):
            for source in given.get(flag, []):
                path = Path(source.rpartition("=")[2].replace("*", "1"))
                if not path.exists():
                    self.file(name, path, given)
        if name == "glue" and "tasks" in given:
            self.tasks([str(task) for task in given["tasks"]], given.get("languages"))

    def model(self, name: str, task: str) -> None:
        """A tiny model; below ``runs`` a trunk, as an earlier command would have left it."""
        if name.startswith("runs/"):
            name, folder = "bert" if task == "mlm" else "pythia", name
        else:
            folder = name
        kind, sizes = next(made for part, made in KINDS.items() if part in name)
        tokenizer = self.tokenizers["mlm" if "bert" in kind else "clm"]
        Path(folder).mkdir(parents=True)
        tokenizer.save_pretrained(folder)
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **sizes)
        if kind == "t5":
            config.save_pretrained(folder)
            return
        model = (AutoModelForMaskedLM if "bert" in kind else AutoModelForCausalLM).from_config(
            config
        )
        (model.base_model if folder.startswith("runs/") else model).save_pretrained(folder)
        if folder.startswith("runs/"):
            from headless_trainer.checkpoints.token_counts import save_token_counts

            counts = torch.ones(len(tokenizer), dtype=torch.long)
            save_token_counts(Path(folder), counts, {"tokens_seen": 1000.0, "train_seconds": 1.0})

    def language_model(self, folder: str) -> None:
        """A tiny decoder with a head, as ``lm-head`` would have left it."""
        tokenizer = self.tokenizers["clm"]
        kind, sizes = KINDS["pythia"]
        torch.manual_seed(len(folder))  # models of different names differ
        config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **sizes)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def classifier(self, folder: str) -> None:
        """A fine-tuned model, as it is kept of a task of one's own."""
        tokenizer = self.tokenizers["mlm"]
        kind, sizes = KINDS["bert"]
        labels = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
        config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **sizes, **labels)
        config.text_columns = ["text"]
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def file(self, name: str, path: Path, given: dict[str, list]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "glue":
            columns, (label,) = (
                given.get("text_columns", ["text"]),
                given.get("label_column", ["label"]),
            )
            rows = [
                dict.fromkeys(columns, line) | {label: ["bad", "good"][place % 2]}
                for place, line in enumerate(self.lines[:24])
            ]
            if path.suffix == ".csv":
                lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
                path.write_text("\n".join(lines) + "\n")
            else:
                write_jsonl(path, rows)
        elif path.suffix == ".jsonl":
            write_jsonl(
                path,
                [{"text": text} for text in (self.lines if name == "lm-eval" else self.documents)],
            )
        elif path.suffix == ".gz":
            with gzip.open(path, "wt", encoding="utf-8") as stream:
                stream.writelines(text + "\n" for text in self.documents)
        else:  # a folder
            path.mkdir(exist_ok=True)
            pq.write_table(pa.table({"text": self.documents}), path / "part.parquet")

    def tasks(self, names: list[str], languages: list[str] | None) -> None:
        from headless_trainer.fine_tuning.tasks import select_tasks

        for task in select_tasks(names, languages):
            known = {
                "question": "cause",
                "start1": 0,
                "end1": 3,
                "start2": 0,
                "end2": 3,
                "word": "the",
            }
            rows = []
            for place in range(8):
                texts = {
                    column: self.lines[place + shift] for shift, column in enumerate(task.columns)
                }
                label = place * 0.5 if task.label_names is None else place % len(task.label_names)
                rows.append(
                    texts
                    | {name: known[name] for name in known.keys() & {*task.columns}}
                    | {"label": label}
                )
            for folder in [Path("data", "xnli", each) for each in languages or ()] or [
                Path("data", task.name)
            ]:
                for split in ("train", *task.evaluation_splits):
                    write_jsonl(folder / f"{split}.jsonl", rows)


@pytest.fixture
def world(tmp_path, own_cache, monkeypatch, text_lines, clm_tokenizer, mlm_tokenizer) -> World:
    monkeypatch.chdir(tmp_path)
    return World(text_lines, {"clm": clm_tokenizer, "mlm": mlm_tokenizer})


def predicts_alone(given: dict[str, list]) -> bool:
    """Whether `glue` trains nothing."""
    return "test_file" in given and "train_file" not in given


def cuts(name: str, given: dict[str, list]) -> list[str]:
    """Flags that make a command small."""
    if name == "glue" and predicts_alone(given):
        return []
    if name not in ("pretrain", "lm-head"):
        flags = list(CUTS[name])
        if name == "glue" and "tasks" in given:
            flags += ["--data_dir", "data"]  # instead of the Hub
        if name == "lm-eval" and "paper" in given.get("tasks", []):
            flags += ["--tasks", "lambada_openai", "--data_files", "lambada_openai=lambada.jsonl"]
        return flags
    if name == "lm-head" and "do_train" not in given:
        return []
    flags = list(TRAINED)
    if "train_file" not in given and "dataset_name" not in given:
        flags += ["--train_file", "corpus/1.txt.gz"]  # instead of the documentation on this machine
    if "train_tokenizer" in given:
        flags += ["--vocab_size", "400"]
    if "model_type" in given and "config_overrides" not in given:
        flags += ["--config_overrides", ",".join(f"{key}={value}" for key, value in WIDTH.items())]
    return flags


def check(name: str, given: dict[str, list], said: list[str]) -> None:
    """A line of log at once, held-out figures at the end, and a model that can be used."""
    if name == "compare-steps":
        if "output_file" not in given:
            return  # it only prints
        results = json.loads(Path(given["output_file"][0]).read_text())
        assert results["objectives"]["vanilla"]["median_seconds"] > 0
        return
    folder = Path(given["output_dir"][0])
    if name == "pretrain" or "do_train" in given:
        history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
        first = next(log for log in history if "loss" in log)  # eval_on_start logs before it
        assert first["step"] == 1 and math.isfinite(first["loss"])
        assert any(line.startswith("step 1/") for line in said)
        assert (folder / "model.safetensors").is_file()
    if name == "pretrain" or "do_train" in given:
        found = json.loads((folder / "eval_results.json").read_text())
        assert (
            found["step"] == 2 and math.isfinite(found["eval_loss"]) and found["eval_accuracy"] >= 0
        )
    if name == "lm-head":
        generate = transformers.pipeline("text-generation", model=str(folder), device="cpu")
        assert len(
            generate("the miller", max_new_tokens=4, do_sample=False)[0]["generated_text"]
        ) > len("the miller")
    if name == "glue" and "test_file" in given:
        (predicted,) = (folder / "predictions").glob("*.jsonl")
        assert len(predicted.read_text().splitlines()) > 20
    if name == "glue" and not predicts_alone(given):
        assert "|" in (folder / "results.md").read_text()
    if name == "glue" and "train_file" in given:  # a task of one's own is there to be used
        models = list(folder.rglob("model.safetensors"))
        assert len(models) == len(given["model_name_or_path"])
        classify = transformers.pipeline(
            "text-classification", model=str(models[0].parent), device="cpu"
        )
        assert classify("the miller crossed the river.")[0]["label"] in ("bad", "good")
    if name == "report":
        assert (folder / "report.html").is_file() and list(folder.glob("*.png"))
    if name == "lm-eval":
        assert list(folder.glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", recipes(), ids=recipes().values())
def test_every_command_of_the_pages_and_every_preset_runs(recipe, world, caplog):
    for name, *words in recipe:
        small = cuts(name, settings(tuple(words)))
        given = settings((*words, *small))
        folder = Path(given.get("output_dir", [""])[0])
        if name == "pretrain" and folder.exists():  # another way to the same model
            shutil.rmtree(folder)
        world.provide(name, given)
        words = [
            str(path)
            for word in words
            for path in (sorted(Path().glob(word)) if "*" in word else [word])
        ]
        caplog.clear()
        importlib.import_module(f"headless_trainer.cli.{MODULES[name]}").main([*words, *small])
        check(name, given, caplog.messages)
