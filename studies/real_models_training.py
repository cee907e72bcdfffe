#!/usr/bin/env python
"""Train like run_pretrain.py, with what it has no flags for: an adapter of peft, and conversations.

    python studies/real_models_training.py --lora_rank 16 --objective vanilla ...
    python studies/real_models_training.py --chat --objective sampled_softmax ...

All other flags are those of run_pretrain.py. With ``--lora_rank`` every linear layer but the head
gets a low-rank adapter, which alone is trained and saved. With ``--chat`` each row of the files has
a conversation in its column ``messages``, a list of objects with ``role`` and ``content``. It
becomes one row of the model's chat template, of which only the assistant's answers are learned.
"""

import logging
from dataclasses import dataclass, fields
from functools import partial

from datasets import Dataset, DatasetDict, load_dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.hf_argparser import HfArg

from headless_trainer.arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from headless_trainer.cards.facts import RunFacts
from headless_trainer.checkpoints.finding import find_start
from headless_trainer.cli import preparation, training
from headless_trainer.command_line import errors_in_one_line, parse_args
from headless_trainer.console import log_lines
from headless_trainer.corpus import packing, texts
from headless_trainer.models import loading
from headless_trainer.objectives import objective_of
from headless_trainer.processes.launch import leave_together
from headless_trainer.processes.locks import alone_until_exit
from headless_trainer.signals.handlers import ended_by_signals
from headless_trainer.trainers.pretraining import PretrainingTrainer
from headless_trainer.trainers.run import CheckedRun

logger = logging.getLogger(__name__)

# The arguments of data that a run on conversations reads.
READ_BY_CHATS = (
    "train_file",
    "eval_old_file",
    # Of eval_old_file.
    "sample_by",
    "validation_split_percentage",
    "max_seq_length",
    "max_eval_samples",
)


@dataclass
class VariantArguments:
    """Adapters and conversations."""

    lora_rank: int | None = HfArg(
        default=None, help="Train a LoRA adapter of this rank; its scale is 2."
    )
    chat: bool = HfArg(default=False, help="The training files hold conversations.")

    def __post_init__(self) -> None:
        if self.lora_rank is not None and self.lora_rank < 1:
            raise ValueError(f"lora_rank must be 1 or more, got {self.lora_rank}.")


@ended_by_signals("To resume: repeat the command with --resume_from_checkpoint auto")
def main(argv: list[str] | None = None) -> None:
    with errors_in_one_line(ValueError, OSError):
        classes = [ModelArguments, DataArguments, HeadlessTrainingArguments, VariantArguments]
        model_args, data_args, args, variant = parse_args(classes, argv)
        check(args, data_args, variant)
        if variant.chat:
            trainer = chat_trainer(model_args, data_args, args, variant)
        else:
            make_model = partial(load_model, model_args, args, variant)
            trainer = preparation.make_trainer(model_args, data_args, args, make_model=make_model)
        if variant.lora_rank:
            # A small file, which keeps the dtype of training.
            trainer.saved_dtype = None
    with errors_in_one_line(FloatingPointError, OSError, ImportError):
        training.train(trainer)
        leave_together(trainer.signal.exit_code)


def check(
    args: HeadlessTrainingArguments, data_args: DataArguments, variant: VariantArguments
) -> None:
    """Refuse what cannot be trained."""
    if variant.lora_rank and args.objective == "headless":
        raise ValueError(
            f"lora_rank is {variant.lora_rank} but objective is 'headless', which trains the "
            "embedding: choose vanilla or sampled_softmax."
        )
    if variant.chat and args.task != "clm":
        raise ValueError(f"chat is True but task is {args.task!r}: pass --task clm.")
    if variant.chat:
        check_read_by_chats(data_args)


def check_read_by_chats(data_args: DataArguments) -> None:
    """Refuse arguments of data that a run on conversations would ignore."""
    if not data_args.train_file:
        raise ValueError("chat is True but train_file is not given: name files of conversations.")
    for field in fields(data_args):
        value = getattr(data_args, field.name)
        if field.name not in READ_BY_CHATS and value != field.default:
            raise ValueError(
                f"{field.name} is {value!r} but chat is True, which does not read it: leave it out."
            )


def load_model(
    model_args: ModelArguments,
    args: HeadlessTrainingArguments,
    variant: VariantArguments,
    config,
    tokenizer: PreTrainedTokenizerBase,
) -> PreTrainedModel:
    """Load the model, within an adapter if one is asked for."""
    model = loading.load_model(
        model_args, config, tokenizer, objective=objective_of(args), task=args.task
    )
    if variant.lora_rank is None:
        return model
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(
        r=variant.lora_rank,
        lora_alpha=2 * variant.lora_rank,
        # Leaves out the head.
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, adapter)


# Conversations --------------------------------------------------------------------------------


def chat_trainer(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: HeadlessTrainingArguments,
    variant: VariantArguments,
) -> PretrainingTrainer:
    """Make the trainer of a run on conversations."""
    log_lines.start_logging(args)
    alone_until_exit(args.output_dir)
    start = find_start(args.resume_from_checkpoint, args.output_dir)
    set_seed(args.seed)
    config = loading.load_config(model_args)
    tokenizer = loading.load_tokenizer(model_args)
    rows = chat_rows(data_args, tokenizer)
    model = load_model(model_args, args, variant, config, tokenizer)
    trainer_class = preparation.trainer_class(args)
    trainer = trainer_class(
        model,
        args,
        train_dataset=rows["train"],
        eval_dataset=packing.first_rows(rows["test"], data_args.max_eval_samples),
        processing_class=tokenizer,
    )
    old = None
    if data_args.eval_old_file:
        old = old_rows(data_args, tokenizer)
    # As trained, unless the checkpoint had another.
    saved_dtype = None
    if config.dtype != loading.MASTER_DTYPE:
        saved_dtype = config.dtype
    trainer.take_over(CheckedRun(start, RunFacts(), saved_dtype, old))
    log_lines.use_console(trainer)
    return trainer


def chat_rows(data_args: DataArguments, tokenizer: PreTrainedTokenizerBase) -> DatasetDict:
    """Return the rows ``train`` and ``test`` of conversations, with ``input_ids`` and
    ``completion_mask``.

    Raises:
        ValueError: if the files have no column ``messages``, or no conversation has an answer
            within ``max_seq_length``.
    """
    conversations = load_dataset("json", data_files=data_args.train_file, split="train")
    if "messages" not in conversations.column_names:
        raise ValueError(
            f"train_file {data_args.train_file} has the columns {conversations.column_names} but "
            "chat is True: give each row a list of 'messages'."
        )

    def encode(row: dict) -> dict[str, list[int]]:
        return encode_conversation(row["messages"], tokenizer, data_args.max_seq_length)

    rows = conversations.map(encode, remove_columns=conversations.column_names)
    learned = rows.filter(lambda row: 1 in row["completion_mask"])
    logger.info("%d of %d conversations have an answer in reach", len(learned), len(rows))
    if len(learned) < 2:
        raise ValueError(
            f"max_seq_length is {data_args.max_seq_length}, within which {len(learned)} "
            "conversations have an answer: raise it."
        )
    return learned.train_test_split(test_size=data_args.validation_split_percentage / 100, seed=0)


def encode_conversation(
    messages: list[dict], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, list[int]]:
    """Return the ids of a conversation in the model's chat template, and 1 where they are answers.

    What comes after the last answer is left out, and everything beyond ``max_length``. Texts of
    prompts and answers are tokenized apart, so that no token belongs to both.

    Returns:
        ``input_ids`` and ``completion_mask``, both of the same length.

    Raises:
        ValueError: if the template writes the beginning of a conversation in another way once it
            goes on, so that its answers cannot be told from the rest.
    """
    input_ids: list[int] = []
    completion_mask: list[int] = []
    written = ""
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = tokenizer.apply_chat_template(
            messages[:number], tokenize=False, add_generation_prompt=True
        )
        answered = tokenizer.apply_chat_template(messages[: number + 1], tokenize=False)
        if not (prompt.startswith(written) and answered.startswith(prompt)):
            raise ValueError(
                "chat is True but the tokenizer's template changes earlier messages as a "
                "conversation goes on: use a model with another template."
            )
        pieces = ((prompt[len(written) :], 0), (answered[len(prompt) :], 1))
        for text, is_answer in pieces:
            ids = tokenizer(text, add_special_tokens=False).input_ids
            input_ids += ids
            completion_mask += [is_answer] * len(ids)
        written = answered
    return {
        "input_ids": input_ids[:max_length],
        "completion_mask": completion_mask[:max_length],
    }


def old_rows(data_args: DataArguments, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Return packed rows of earlier texts: those that a run on them holds out."""
    # Of its own, so that it holds out the share that a default run holds out.
    old = DataArguments(
        train_file=data_args.eval_old_file,
        sample_by=data_args.sample_by,
        max_seq_length=data_args.max_seq_length,
    )
    documents = texts.load_texts(old)["validation"]
    packed = packing.tokenize_and_pack(
        documents, tokenizer, max_seq_length=data_args.max_seq_length, begin_rows=True
    )
    return packing.first_rows(packed, data_args.max_eval_samples)


if __name__ == "__main__":
    main()
