"""Tiny models, rows and trainers that the tests share."""

import contextlib
import io
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from datasets import Dataset
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
)

from headless_trainer import (
    HeadlessTrainer,
    HeadlessTrainingArguments,
    SampledSoftmaxTrainer,
    VanillaTrainer,
)
from headless_trainer.arguments import (
    DataArguments,
    LMHeadArguments,
    ModelArguments,
    ReportArguments,
)
from headless_trainer.fine_tuning.glue_arguments import GlueArguments, GlueTrainingArguments
from headless_trainer.hub.pushes import RUN_EXCLUDED
from headless_trainer.models.vocabulary_head import VocabularyHead
from headless_trainer.scoring.zero_shot_arguments import ZeroShotArguments
from headless_trainer.timing.step_arguments import ARGUMENT_CLASSES

VOCAB = 50
# Sizes of a model of one layer, as most configurations name them.
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
# The argument classes of the commands.
OPTIONS = {
    "pretrain": (ModelArguments, DataArguments, HeadlessTrainingArguments),
    "lm-head": (ModelArguments, DataArguments, LMHeadArguments),
    "glue": (GlueArguments, GlueTrainingArguments),
    "lm-eval": (ZeroShotArguments,),
    "report": (ReportArguments,),
    "compare-steps": tuple(ARGUMENT_CLASSES),
}
# Flags of new models.
DECODER = [
    "--model_type",
    "gpt2",
    "--config_overrides",
    "n_embd=16,n_layer=2,n_head=2,n_positions=32",
]
ENCODER = [
    *("--model_type", "bert", "--tokenizer_type", "wordpiece", "--config_overrides"),
    '{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}',
]
# Flags of a pretraining of four steps with few tokens, and of a fine-tuning.
QUICK = [
    *(
        "--train_tokenizer",
        "--vocab_size",
        "320",
        "--max_seq_length",
        "16",
        "--max_steps",
        "4",
        "--logging_steps",
        "2",
    ),
    *(
        "--per_device_train_batch_size",
        "4",
        "--use_cpu",
        "--disable_tqdm",
        "true",
        "--save_strategy",
        "no",
    ),
    *("--validation_split_percentage", "20", "--preprocessing_num_workers", "1", "--do_eval"),
]
TUNING = "--num_train_epochs 2 --per_device_train_batch_size 8 --disable_tqdm true --use_cpu true".split()
PREDICTING = "--disable_tqdm true --use_cpu true".split()
QUIET = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "logging_steps": 1}


class Tokenizer:
    """What a trainer asks of a tokenizer."""

    pad_token_id, mask_token_id, all_special_ids, name_or_path = 0, 1, [0, 1], "toy"

    def __init__(self, size: int = VOCAB):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def get_vocab(self) -> dict[str, int]:
        return {str(token_id): token_id for token_id in range(self.size)}

    def save_pretrained(self, folder) -> None:
        """Nothing to save."""


class Gradients(transformers.TrainerCallback):
    """Keeps the gradients of the first optimizer step, by the names of the bare model."""

    def __init__(self):
        self.kept = {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if not self.kept:
            named = [
                (key.removeprefix("module.").removeprefix("_orig_mod."), p)
                for key, p in model.named_parameters()
            ]
            self.kept = {name: p.grad.clone().cpu() for name, p in named if p.grad is not None}


def byte_level_bpe(lines: list[str], special_tokens: list[str]) -> tokenizers.Tokenizer:
    """300 tokens: 256 bytes, the special tokens and a few merges."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def tiny_model(
    task: str, vocab_size: int = VOCAB, objective: str = "headless", *, layers=2, positions=32,
    dropout=0.0,
    attention=None, **changes,
):  # fmt: skip
    """GPT-2 (clm) or BERT (mlm) of width 16, always with the same weights; with its head unless
    headless.
    """
    torch.manual_seed(0)
    if task == "clm":
        rates = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), dropout)
        sizes = {"n_embd": 16, "n_layer": layers, "n_head": 2, "n_positions": positions}
        config, kinds = (
            GPT2Config(vocab_size=vocab_size, **sizes | rates | changes),
            (GPT2Model, GPT2LMHeadModel),
        )
    else:
        rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
        sizes = {
            "hidden_size": 16,
            "num_hidden_layers": layers,
            "num_attention_heads": 2,
            "intermediate_size": 32,
        }
        sizes["max_position_embeddings"] = positions
        config, kinds = (
            BertConfig(vocab_size=vocab_size, **sizes | rates | changes),
            (BertModel, BertForMaskedLM),
        )
    kind = kinds[objective != "headless"]
    return kind._from_config(config, attn_implementation=attention) if attention else kind(config)


def tiny_classifier(
    cls=transformers.BertForSequenceClassification, vocab_size: int = VOCAB, **settings
):
    torch.manual_seed(0)
    silent = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return cls(BertConfig(vocab_size=vocab_size, **SMALL, **silent, **settings))


def save(folder, model, tokenizer) -> str:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def token_rows(tokenizer, count: int = 24, lengths: tuple[int, ...] = (12,)) -> list[dict]:
    """Random tokens that are not special."""
    generator = torch.Generator().manual_seed(1)
    size = itertools.cycle(lengths)
    first = len(tokenizer.all_special_ids)
    sizes = [(next(size),) for _ in range(count)]
    return [
        {"input_ids": torch.randint(first, len(tokenizer), each, generator=generator)}
        for each in sizes
    ]


def labelled_rows(task: str, empty: bool, count: int = 8, vocab_size: int = 40) -> list[dict]:
    """Rows of different lengths and numbers of targets; ``empty`` leaves the odd ones, a process's
    own, without any.

    The task ``mask`` is mlm whose targets the trainer draws; ``drawn`` is clm with further
    negatives, ``own`` by the own head, ``own rows`` and ``own mlm`` the same with sparse rows of
    its embedding.
    """
    generator = torch.Generator().manual_seed(3)
    made = []
    for index in range(count):
        length = 9 - index % 4
        ids = torch.randint(1, vocab_size, (length,), generator=generator)
        labels = ids.clone()
        if task.endswith("mlm"):
            labels[torch.rand(length, generator=generator) < 0.6] = -100
        if empty and index % 2:
            labels[:] = -100
        made.append({"input_ids": ids} if task == "mask" else {"input_ids": ids, "labels": labels})
    return made


def encoded_rows(labels, candidates: int = 1, seed: int = 0) -> Dataset:
    """Rows to classify, of 2 to 9 random tokens, none of which is the padding token."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(2, 10, size=(len(labels), candidates))
    ids = [
        [generator.integers(1, VOCAB, size=length).tolist() for length in own] for own in lengths
    ]
    return Dataset.from_dict({"input_ids": ids, "length": lengths.max(axis=1), "label": [*labels]})


CLASSES = [0] * 20 + [1] * 9 + [2] * 3  # labels of 32 rows, of very unequal classes


def attached_head(model):
    """The vocabulary head of a model that projects only what is predicted."""
    head = VocabularyHead(model)
    head.attach(None)
    return head


def make_trainer(folder, model, rows, settings: dict, kind=None, **parameters):
    """A trainer of the objective in ``settings``; ``parameters`` are those of its constructor."""
    args = HeadlessTrainingArguments(str(folder), **QUIET | settings)
    kinds = {
        "headless": HeadlessTrainer,
        "sampled_softmax": SampledSoftmaxTrainer,
        "vanilla": VanillaTrainer,
    }
    kind = kind or kinds[args.objective]
    return kind(model, args, train_dataset=rows, **parameters)


def trainer_for(
    folder,
    task,
    tokenizer,
    *,
    objective="headless",
    dropout=0.0,
    data=None,
    callbacks=(),
    kind=None,
    **settings,
):
    """A trainer of two steps on random tokens of a tokenizer, whose gradients are not clipped."""
    settings = {
        "task": task, "objective": objective, "max_steps": 2, "per_device_train_batch_size": 4, "save_strategy": "no",
        "learning_rate": 1e-3, "max_grad_norm": 0.0, "train_sampling_strategy": "sequential",
        "mlm_probability": 0.3 if task == "mlm" else 0.15,
    } | settings  # fmt: skip
    data = token_rows(tokenizer) if data is None else data
    # A slice of a `Dataset` would be a dictionary of its columns, which stands for several sets.
    held_out = data[:10] if isinstance(data, list) else data
    return make_trainer(
        folder, tiny_model(task, len(tokenizer), objective, dropout=dropout), data, settings, kind,
        eval_dataset=held_out, processing_class=tokenizer, callbacks=list(callbacks),
    )  # fmt: skip


def tiny_trainer(folder, **settings):
    """A trainer that logs and evaluates, on the smallest model."""
    data = token_rows(Tokenizer(), 8)
    defaults = {
        "max_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no",
        "per_device_train_batch_size": 2, "mlm_probability": 0.15 if settings.get("task") == "clm" else 0.4,
    }  # fmt: skip
    task, objective = settings.get("task", "mlm"), settings.get("objective", "headless")
    sizes = (
        {"n_embd": 8, "n_head": 1} if task == "clm"
        else {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8}
    )  # fmt: skip
    made = make_trainer(
        folder, tiny_model(task, VOCAB, objective, layers=1, positions=16, dropout=0.1, **sizes),
        data, defaults | settings,
        token_counts=torch.ones(VOCAB, dtype=torch.long), eval_dataset=data,
        processing_class=Tokenizer(),
    )  # fmt: skip
    made.pop_callback(transformers.PrinterCallback)
    return made


class Table:
    """A head whose vectors are the rows of a table."""

    softcap = None

    def __init__(self, weight, bias=None):
        self.weight, self._bias, self.size = weight, bias, len(weight)

    def vectors(self, ids):
        return self.weight[ids]

    def bias(self, ids):
        return None if self._bias is None else self._bias[ids]


def predictions(model, task, rows):
    """Logits over the vocabulary and targets, row by row."""
    logits, targets = [], []
    for row in rows:
        scores, labels = model(input_ids=row["input_ids"][None]).logits[0], row["labels"]
        scores, labels = (scores[:-1], labels[1:]) if task == "clm" else (scores, labels)
        logits.append(scores[labels >= 0])
        targets.append(labels[labels >= 0])
    return torch.cat(logits), torch.cat(targets)


def logged(run, name: str = "loss") -> list[float]:
    """What a run logged under a name, step by step."""
    return [logs[name] for logs in run.state.log_history if name in logs]


def assert_gradients(
    got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], tolerance: float
) -> None:
    """Gradients by name agree to ``tolerance`` of the largest number of each."""
    assert got.keys() == want.keys() and len(want) > 10
    largest = max(gradient.abs().max() for gradient in want.values())
    for name, gradient in want.items():
        # That of a key's bias is rounding alone.
        scale = gradient.abs().max().clamp(min=1e-3 * largest)
        assert (got[name].to_dense() - gradient).abs().max() <= tolerance * scale, name


def assert_same_weights(run, other) -> None:
    """Bit for bit, and the tokens that were counted as well."""
    for name, weight in run.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name]), name
    assert torch.equal(run.token_counts, other.token_counts)


def assert_resumes(make, folder, step: int) -> tuple:
    """A run that goes on from its checkpoint is the run that was never stopped; both
    are returned.
    """
    whole = make(folder / "whole")
    whole.train()
    resumed = make(folder / "resumed")
    resumed.train(resume_from_checkpoint=str(folder / "whole" / f"checkpoint-{step}"))
    assert logged(resumed) == logged(whole) and len(logged(whole)) == whole.state.global_step > step
    assert_same_weights(whole, resumed)
    return whole, resumed


def on_hub(folder, name: str, cache) -> str:
    """Put what a run pushes into a cache of the Hub, as this repository, and return its name."""
    repository, commit = cache / f"models--{name.replace('/', '--')}", "0" * 40
    shutil.copytree(
        folder, repository / "snapshots" / commit, ignore=shutil.ignore_patterns(*RUN_EXCLUDED)
    )
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return name


def refused(main, *argv) -> str:
    """What a command says as it ends."""
    with pytest.raises(SystemExit) as error:
        main([str(argument) for argument in argv])
    return str(error.value)


def printed_in_ascii(main, *argv) -> str:
    """What a command prints on a console that can show ASCII alone."""
    console = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with contextlib.redirect_stdout(console):
        main([str(argument) for argument in argv])
    console.flush()
    return console.buffer.getvalue().decode("ascii")


def text_of(folder: Path) -> str:
    """Of a model's card."""
    return (folder / "README.md").read_text(encoding="utf-8")


def flip(path: Path) -> None:
    """One bit near the end: the length, and what a parser looks at, stay as they were."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
