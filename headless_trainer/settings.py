"""The table of settings that determine a run's weights: which values they may have, what a resume
does with another value, and where they are shown.

A field of `HeadlessTrainingArguments` needs a row here; a test fails for one that has none. Which
objectives read a setting stands in objectives.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

# The values that a setting may have: what it must do, in words and as a check.
Values = tuple[str, Callable[[Any], bool]]

# None of them lets nan pass, with which every comparison is false.
AT_LEAST_ONE: Values = ("be at least 1", lambda value: value >= 1)
NOT_NEGATIVE: Values = ("not be negative", lambda value: value >= 0)
ABOVE_ZERO: Values = ("be above 0 and finite", lambda value: 0 < value < math.inf)
BELOW_ONE: Values = ("be above 0 and below 1", lambda value: 0 < value < 1)

OnResume = Literal["refused", "refused with the position", "kept", "free"]


@dataclass(frozen=True)
class Setting:
    """A row of the table.

    Attributes:
        name: of the setting; ``trainer``, ``trainer_class``, ``held_out_texts``,
            ``held_out_rows`` and ``freeze_trunk`` are facts of a run.
        on_resume: what a resume does with another value than the checkpoint's. ``refused``: it
            would make another run, unless `trainers.same_run` finds that the change has no effect
            on this one, as another schedule of learning rates has. ``refused with the position``:
            it would change the order of the rows or the masks, so the checkpoint's position in the
            data would not apply; ``ignore_data_skip`` restarts the data. ``kept``: the optimizer's
            state restores the checkpoint's, with a warning. ``free``: the run goes on with the new
            value.
        on_card: whether the model card shows it: ``always``, ``if changed`` from the default, or
            ``no``. No token, path or account of a user is ever shown.
        values: those that it may have beside None; None if its type, or a row of refusals.py, says
            so.
    """

    name: str
    on_resume: OnResume = "free"
    on_card: Literal["always", "if changed", "no"] = "no"
    values: Values | None = None


# In the order in which cards show them.
SETTINGS = (
    Setting("learning_rate", "kept", "always"),
    Setting("lr_scheduler_type", "refused", "always"),
    Setting("optim", "refused", "always"),
    Setting("seed", "refused with the position", "always"),
    Setting("weight_decay", "kept", "if changed"),
    Setting("adam_beta1", "kept", "if changed"),
    Setting("adam_beta2", "kept", "if changed"),
    Setting("adam_epsilon", "kept", "if changed"),
    Setting("max_grad_norm", "free", "if changed"),
    Setting("lr_scheduler_kwargs", "free", "if changed"),
    Setting("warmup_steps", "free", "if changed"),
    Setting("optim_args", "free", "if changed"),
    Setting("bf16", "free", "if changed"),
    Setting("fp16", "free", "if changed"),
    Setting("tf32", "free", "if changed"),
    Setting("torch_compile", "free", "if changed"),
    Setting("gradient_checkpointing", "free", "if changed"),
    Setting("train_sampling_strategy", "refused with the position", "if changed"),
    Setting("data_seed", "refused with the position", "if changed"),
    Setting("negatives", "free", "if changed"),
    Setting("pool_size", "free", "if changed", AT_LEAST_ONE),
    Setting("sampled_negatives", "free", "if changed", NOT_NEGATIVE),
    Setting("exact_every", "free", "if changed", NOT_NEGATIVE),
    Setting("muon_learning_rate", "kept", "if changed", ABOVE_ZERO),
    Setting("sparse_embedding_updates", "refused", "if changed"),
    Setting("head_bias", "refused", "if changed"),
    Setting("trainer", "refused", "if changed"),
    Setting("trainer_class", "refused"),
    Setting("objective", "refused"),
    Setting("task", "refused"),
    Setting("metric_for_best_model", "refused"),
    Setting("freeze_trunk", "refused"),
    Setting("held_out_texts", "refused"),
    Setting("held_out_rows", "refused"),
    Setting("eval_pool_size", "refused", values=AT_LEAST_ONE),
    Setting("length_column_name", "refused with the position"),
    Setting("dataloader_drop_last", "refused with the position"),
    # The card has sentences about these.
    Setting("mlm_probability", "refused", values=BELOW_ONE),
    Setting("isolate_documents", "refused with the position"),
    Setting("eval_full_vocabulary"),
)


def on_resume(treatment: OnResume) -> tuple[str, ...]:
    """Return the names of the settings that a resume treats in this way."""
    return tuple(setting.name for setting in SETTINGS if setting.on_resume == treatment)


def on_card(*when: str) -> tuple[str, ...]:
    """Return the names of the settings that cards show then, in order."""
    return tuple(setting.name for setting in SETTINGS if setting.on_card in when)
