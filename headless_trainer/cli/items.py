"""Train a model of items on histories of users, headless or with the full softmax, and rank the whole catalogue with it.

    headless-trainer items --train_file interactions.parquet --output_dir runs/items
    headless-trainer items --train_file 'histories/*.txt.gz' --output_dir runs/items --num_train_epochs 100
    headless-trainer items --train_file events.csv --user_column uid --split global_time --task mlm --output_dir runs/bert
    headless-trainer items --train_file interactions.parquet --objective vanilla --output_dir runs/softmax

A score is o E^T + tau log q: tau is chosen on validation, after every epoch, and saved with the best weights. Figures of the
test are in <output_dir>/items_results.json. `headless-trainer recommend` uses what was trained.
"""

import logging

from ..runtime.signals import ended_by_signals

logger = logging.getLogger("headless_trainer")

RESULTS_NAME = "items_results.json"


@ended_by_signals("To go on: the same command and --resume_from_checkpoint auto")
def main(argv: list[str] | None = None) -> None:
    from ..command_line import errors_in_one_line, importing, parse_args, show_usage

    show_usage(__doc__, argv)
    with importing():
        from ..items.item_arguments import ItemArguments, ItemTrainingArguments

    with errors_in_one_line(ValueError, OSError):
        arguments, args = parse_args([ItemArguments, ItemTrainingArguments], argv)
        from ..runtime.launch import leave_together
        from .training import train

        prepared = prepare(arguments, args)
    with errors_in_one_line(FloatingPointError, OSError):  # a loss that is not finite, a full disk
        trainer, resume, score = prepared
        train(trainer, resume, score)
        leave_together(trainer.signal.exit_code)


def prepare(arguments, args):
    """Everything before the first step: the trainer, the checkpoint to resume from, and what scores and saves at the end."""
    from functools import partial

    from transformers import set_seed

    from ..items import splits
    from ..items.catalogue import FIRST_ID, item_tokenizer
    from ..items.histories import read_histories
    from ..items.ranking import TAUS, ChooseTau, Ranker, target_ranks
    from ..objective.prior import DrawnNegatives, candidate_log_prior
    from ..runtime import run_folder
    from ..runtime.checkpoints import check_output_dir, checkpoint_to_resume
    from ..runtime.launch import check_devices
    from ..runtime.locks import alone_until_exit
    from ..settings_check import PRETRAINING, RUN, refuse, warn
    from .training import TRAINERS

    run_folder.start_logging(args)
    alone_until_exit(args.output_dir)
    resume = checkpoint_to_resume(args.resume_from_checkpoint, args.output_dir)
    check_output_dir(args.output_dir, resume)
    check_devices(args)
    set_seed(args.seed)
    config = model_config(arguments, args)
    refuse(args, PRETRAINING)  # again, since the task is known
    warn(args, RUN)
    histories = read_histories("train_file", arguments.train_file, **arguments.columns())
    histories = histories.with_frequent_items(arguments.min_item_count)
    if arguments.split == "global_time":
        split = splits.global_time(histories, arguments.test_share)
    else:
        split = splits.leave_one_out(histories)
    if not arguments.keep_seen:
        split.check_ranked(histories)
    tokenizer = item_tokenizer(histories.items, arguments.max_seq_length)
    mask_id = tokenizer.mask_token_id if args.task == "mlm" else None
    config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
    rows = splits.training_rows(histories, split, FIRST_ID, arguments.max_seq_length)
    held_out = splits.validation_rows(histories, split.validation, FIRST_ID, arguments.max_seq_length, mask_id)
    counts = rows.target_counts(len(tokenizer), args.task)
    trainer = TRAINERS[args.objective](
        new_model(config, args.objective),
        args,
        token_counts=counts if args.sampling_power or args.log_q_correction or args.head_bias == "prior" else None,
        train_dataset=rows,
        eval_dataset=held_out,
        processing_class=tokenizer,
    )
    if resume:
        trainer.check_resume(resume)  # now, so that another run is said before training

    def log_q():
        drawn = DrawnNegatives(trainer.window.drawn / max(1, trainer.window.candidates), args.sampling_power)
        return candidate_log_prior(counts, args.smoothing, drawn)

    ranker = Ranker(
        trainer.model,
        log_q(),
        first_id=FIRST_ID,
        mask_id=mask_id,
        max_seq_length=arguments.max_seq_length,
        temperature=args.temperature,
    )
    options = {"keep_seen": arguments.keep_seen, "batch_size": args.per_device_eval_batch_size}

    def search():
        ranker.log_q = log_q().to(trainer.model.device)
        return target_ranks(ranker, histories, split.validation, TAUS, **options)

    trainer.add_callback(ChooseTau(search, trainer.log, TAUS, arguments.early_stopping_patience))
    trainer.facts.items = item_facts(arguments, histories, split)
    run_folder.use_console(trainer)
    run_folder.announce(trainer)
    return trainer, resume, partial(score_and_save, trainer, arguments, ranker, histories, split, counts, options)


def model_config(arguments, args):
    """Configuration of the architecture; ``args.task`` is filled in."""
    from transformers import BertConfig, GPT2Config

    kind = arguments.model_type or ("bert" if args.task == "mlm" else "gpt2")
    task = "mlm" if kind == "bert" else "clm"
    if args.task not in (None, task):
        raise ValueError(
            f"task is {args.task!r} but model_type is {kind!r}, which is trained with {task!r}: drop one of the two."
        )
    args.task = task
    sizes = {name: getattr(arguments, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    length, dropout = arguments.max_seq_length, arguments.dropout
    if kind == "gpt2":
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        return GPT2Config(
            n_positions=length, activation_function="relu", bos_token_id=None, eos_token_id=None, **sizes, **rates
        )
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    inner = 4 * arguments.hidden_size
    return BertConfig(max_position_embeddings=length, intermediate_size=inner, **sizes, **rates)


def new_model(config, objective: str):
    from transformers import AutoModel

    from ..models.loading import VANILLA_CLASSES
    from ..models.trunk import infer_task

    kind = VANILLA_CLASSES[infer_task(config)] if objective == "vanilla" else AutoModel
    return kind.from_config(config)


def item_facts(arguments, histories, split):
    """What the model card says of the interactions, before anything is known of the run."""
    from ..cards.facts import count, file_names
    from ..cards.item_facts import ItemFacts

    source = file_names(arguments.train_file)
    users, items = count(len(histories.users), "user"), count(len(histories.items), "item")
    scored = f"{count(len(split.validation), 'user')} in validation, {count(len(split.test), 'user')} in the test"
    held_out = {
        "leave_one_out": "the last item of each user is the test, the one before it validation",
        "global_time": f"the last {arguments.test_share:g} of all interactions is the test, as many before it validation; "
        "scored is the first item of a user in each",
    }[arguments.split]
    data = {
        "Interactions": f"{count(len(histories.ids), 'interaction')} of {users} with {items}, from `{source}`",
        "Rarest items": f"with {count(arguments.min_item_count, 'interaction')}" * (arguments.min_item_count > 1),
        "Held out": f"{held_out} ({scored})",
        "Ranked": f"all items{'' if arguments.keep_seen else ', without those that the user had before'}",
        "Rows": f"one user in each, cut to the most recent {count(arguments.max_seq_length, 'item')}",
    }
    return ItemFacts(items, source, data)


def score_and_save(trainer, arguments, ranker, histories, split, counts, options) -> None:
    """Figures of the best weights on validation and test, written with tau and log q beside the model."""
    import json
    from pathlib import Path

    from ..items.catalogue import FIRST_ID, save_facts
    from ..items.ranking import full_figures
    from ..runtime.checkpoints import write_whole
    from ..trainers.diagnostics import peak_memory_mib

    evaluated = [logs for logs in trainer.state.log_history if "eval_tau" in logs]
    tau = evaluated[-1]["eval_tau"]  # of the evaluation of the best weights, which comes last
    folder, args, own = Path(trainer.args.output_dir), trainer.args, counts.numpy()[FIRST_ID:]
    facts = {
        "objective": args.objective,
        "tau": tau,
        "temperature": args.temperature,
        "max_seq_length": arguments.max_seq_length,
    }
    save_facts(folder, ranker.log_q, facts)
    found = {
        "tau": tau,
        "users": len(histories.users),
        "items": len(histories.items),
        "interactions": len(histories.ids),
    }
    found |= {"best_step": trainer.state.best_global_step, "epochs": evaluated[-1]["epoch"]}
    found |= {"train_seconds": trainer.window.train_seconds, "peak_memory_mib": peak_memory_mib(trainer.model.device)}
    for name, targets in (("validation", split.validation), ("test", split.test)):
        figures = full_figures(ranker, histories, targets, own, tau, **options)
        found |= {f"{name}_{key}": value for key, value in figures.items()}
    at_zero = full_figures(ranker, histories, split.test, own, 0.0, **options)
    found |= {f"test_{key}_at_tau_0": value for key, value in at_zero.items()}
    write_whole(folder / RESULTS_NAME, (json.dumps(found, indent=2) + "\n").encode())
    trainer.facts.items.score(found, {"validation": len(split.validation), "test": len(split.test)})
    logger.info(
        "tau %.2f: test NDCG@10 %.4f, recall@10 %.4f, coverage@10 %.2f; without log q NDCG@10 %.4f",
        *(tau, found["test_ndcg@10"], found["test_recall@10"], found["test_coverage@10"], at_zero["ndcg@10"]),
    )
    logger.info("saved in %s: %s, tau and log q for `headless-trainer recommend`", folder, RESULTS_NAME)


if __name__ == "__main__":
    main()
