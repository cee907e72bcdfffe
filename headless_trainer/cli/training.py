"""Train, save and evaluate what preparation.py has made, and write what is recorded of it."""

import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from ..cards.model_card import write_model_card
from ..checkpoints.finding import checkpoints_in
from ..processes.coordination import lost_processes_named
from ..reporting import run_results
from ..signals.handlers import NAMES, deferred, leaving
from ..trainers.pretraining import PretrainingTrainer
from ..trainers.reading import ReadingError, reason_of
from .preparation import is_evaluated

logger = logging.getLogger(__name__)


@lost_processes_named()
def train(trainer: PretrainingTrainer) -> None:
    """Train, save, and only then evaluate, report and push, so that no later error loses the model.

    Args:
        trainer: what `make_trainer` returned.
    """
    trainer.train()
    if not trainer.signal.stopped:
        finish(trainer, evaluate=is_evaluated(trainer.args))
    elif trainer.is_world_process_zero():
        advice = "To resume: repeat the command with --resume_from_checkpoint last"
        if trainer.args.save_only_model:
            advice = "save_only_model keeps none to resume from"
        name = NAMES[trainer.signal.number]
        logger.warning("Stopped by %s with a checkpoint. %s", name, advice)


def finish(trainer: PretrainingTrainer, evaluate: bool) -> None:
    """Save the model, then its held-out figures and card.

    Raises ReadingError at the end, when everything else is done, if the model cannot be evaluated.
    """
    with deferred(f"The trained model is saved in {trainer.args.output_dir}."):
        trainer.save_model()
        trainer.save_state()
    if evaluate and not trainer.is_prepared:
        logger.warning(
            "Nothing was left to train; "
            "DeepSpeed and FSDP evaluate only what they train: launch without."
        )
        evaluate = False
    metrics = {}
    fault: Exception | None = None
    if evaluate:
        # Without a checkpoint, no command can resume this one.
        on_signal: AbstractContextManager[None] = nullcontext()
        if not checkpoints_in(trainer.args.output_dir):
            on_signal = leaving(
                f"The trained model is saved in {trainer.args.output_dir}, without held-out "
                "figures."
            )
        try:
            with on_signal:
                metrics = final_metrics(trainer)
        except (OSError, ValueError) as error:
            # Held-out rows that cannot be read or scored.
            fault = error
    if trainer.is_world_process_zero():
        run_results.finish(Path(trainer.args.output_dir), trainer.state, metrics)
        write_model_card(trainer.described_run, metrics=metrics)
    if trainer.hub is not None:
        trainer.hub.push_run("End of training")  # with what was written since save_model
    if fault is not None:
        reason = reason_of(fault, trainer.args.dataloader_num_workers)
        raise ReadingError(
            f"{reason}. The model is saved in {trainer.args.output_dir}, but it could not be "
            "evaluated."
        ) from fault


def final_metrics(trainer: PretrainingTrainer) -> dict[str, float]:
    """Return the held-out figures of the final weights, from the last step's evaluation if any."""
    # The last step may have been evaluated already, by eval_strategy.
    logged = {}
    for logs in trainer.state.log_history:
        if logs["step"] == trainer.state.global_step:
            for name, value in logs.items():
                if name == "epoch" or name.startswith("eval_"):
                    logged[name] = value
    # They are of use if this command made them, with the weights of the last step.
    trained_by_this_command = trainer.optimizer is not None
    keeps_last_weights = not trainer.args.load_best_model_at_end
    if "eval_loss" in logged and trained_by_this_command and keeps_last_weights:
        return logged
    return trainer.evaluate()
