#!/usr/bin/env python
"""Pretrain an encoder or a decoder, headless or vanilla.

    python run_pretrain.py configs/demo.yaml
    python run_pretrain.py --model_type bert --train_file corpus/*.txt --train_tokenizer --tokenizer_type wordpiece \
        --output_dir runs/bert --max_steps 100000 --per_device_train_batch_size 64
    accelerate launch run_pretrain.py configs/paper_decoder_headless.yaml --output_dir runs/pythia
    python run_pretrain.py runs/bert.yaml --resume_from_checkpoint runs/bert/checkpoint-5000

The first argument may be a YAML or JSON file of arguments; flags that follow override it. With neither --dataset_name nor
--train_file, the documentation that is already on this machine is the corpus.
"""

import logging
import sys

logger = logging.getLogger("headless_trainer")


def main(argv: list[str] | None = None) -> None:
    from headless_trainer.arguments import DataArguments, HeadlessTrainingArguments, ModelArguments, parse_args

    try:
        trainer, resume = prepare(*parse_args([ModelArguments, DataArguments, HeadlessTrainingArguments], argv))
    except (ValueError, OSError) as error:
        # What a user can mend is said in one line, above which the traceback would only scroll it away.
        sys.exit(f"{type(error).__name__}: {error}")
    try:
        train(trainer, resume)
    except (
        FloatingPointError,
        OSError,
    ) as error:  # a loss that is not finite, a full disk; all else keeps its traceback
        sys.exit(f"{type(error).__name__}: {error}")


def prepare(model_args, data_args, args):
    """Everything before the first step: checks that need no data first, then the data. Returns trainer and checkpoint."""
    from transformers import set_seed

    from headless_trainer import data, loading, reports, texts
    from headless_trainer.checkpoints import check_output_dir, resume_argument
    from headless_trainer.modeling import infer_task
    from headless_trainer.trainer import HeadlessTrainer, VanillaTrainer, check_trainable

    reports.start_logging(args)
    resume = resume_argument(args.resume_from_checkpoint, args.output_dir)
    check_output_dir(args.output_dir, resume)
    if data_args.streaming and args.max_steps <= 0:
        raise ValueError(
            f"streaming is True and max_steps is {args.max_steps}: a stream has no length, so set --max_steps."
        )
    config = loading.load_config(model_args)
    args.task = args.task or infer_task(config)
    loading.check_length(config, data_args.max_seq_length)
    set_seed(args.seed)

    with args.main_process_first(desc="reading the corpus"):
        documents = texts.load_texts(data_args, cache_dir=model_args.cache_dir, token=model_args.token)
        tokenizer = loading.find_tokenizer(model_args, args, documents["train"], data_args.max_seq_length, resume)
    model = loading.load_model(model_args, config, tokenizer, objective=args.objective, task=args.task)
    loading.check_length(model.config, data_args.max_seq_length)  # again: it may depend on the tokenizer's padding id
    check_trainable(model, tokenizer, args)  # what cannot be trained is said before the corpus is tokenized

    rows = {}
    with args.main_process_first(desc="tokenizing"):
        for split, limit in (("train", data_args.max_train_samples), ("validation", data_args.max_eval_samples)):
            rows[split] = data.tokenize_and_pack(
                documents[split],
                tokenizer,
                max_seq_length=data_args.max_seq_length,
                line_by_line=data_args.line_by_line,
                num_proc=data_args.preprocessing_num_workers,
                overwrite_cache=data_args.overwrite_cache,
                cache_dir=model_args.cache_dir,
            )
            rows[split] = data.first_rows(rows[split], limit)
    embeddings = model.get_input_embeddings().num_embeddings
    data.check_token_ids(rows["train"], embeddings, tokenizer)

    options = {"train_dataset": rows["train"], "eval_dataset": rows["validation"], "processing_class": tokenizer}
    if args.objective == "headless":
        trainer = HeadlessTrainer(model, args, **options)
    else:
        counts = data.token_counts(rows["train"], embeddings) if args.head_bias == "prior" else None
        trainer = VanillaTrainer(model, args, token_counts=counts, **options)
    reports.use_console(trainer)
    reports.announce(trainer)
    return trainer, resume


def train(trainer, resume: str | None) -> None:
    """Train, save, and only then evaluate and report: nothing after the training can lose it."""
    from headless_trainer import reports

    trainer.train(resume_from_checkpoint=resume)
    if trainer.signal.stopped:
        logger.warning(
            "Stopped by SIGTERM with a checkpoint. To go on: the same command and --resume_from_checkpoint last"
        )
        return
    trainer.save_model()
    trainer.save_state()
    evaluate = trainer.args.do_eval or trainer.args.eval_strategy != "no"
    reports.finish(trainer, trainer.evaluate() if evaluate else {})


if __name__ == "__main__":
    main()
