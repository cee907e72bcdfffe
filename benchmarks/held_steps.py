"""Training steps that one process holds ready, for accelerator.py and, in part, pools.py.

`benchmarks/step.py` and `headless-trainer compare-steps` give each objective a process of its own,
where `Trainer.train` takes the steps. On a lent accelerator every second counts, so here a process
holds the models of all methods at once, and takes single steps at growing batch sizes. A step is
the same: targets and candidates, forward, backward, clipping and AdamW.

Letters used in shapes: B rows, T tokens in a row, V vocabulary size.
"""

import time
from collections.abc import Callable

import torch
from step import MODELS
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from headless_trainer import (
    HeadlessTrainer,
    HeadlessTrainingArguments,
    SampledSoftmaxTrainer,
    VanillaTrainer,
)
from headless_trainer.timing.step_rows import stand_in_tokenizer, token_shares
from headless_trainer.trainers.pretraining import PretrainingTrainer
from headless_trainer.trainers.transfer import on_device

# The first ids of the stand-in tokenizer.
SPECIAL_TOKENS = 5
MASK_TOKEN = 4
# On a GPU, so that the host prepares one step while another runs.
STEPS_TOGETHER = 8

Step = Callable[[dict[str, Tensor]], None]
# Makes a step from the problem (with model, vocab_size, length and bf16), an empty folder and a
# device.
Builder = Callable[..., Step]


def methods_of(problem) -> dict[str, Builder]:
    """Return how to make the step of each method of a problem, and of pools of its sizes."""
    methods = dict(METHODS)
    for size in problem.pool_size:
        methods[f"headless, pools of {size:,}"] = our_step(
            HeadlessTrainer, trunk_class, "headless", pool_size=size
        )
    return methods


def timed(step: Step, batch: dict[str, Tensor], device: torch.device) -> float:
    """Return the seconds of a step; on a GPU the mean of some that follow each other."""
    steps = STEPS_TOGETHER if device.type == "cuda" else 1
    started = time.perf_counter()
    for _ in range(steps):
        step(batch)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps


def draw_ids(problem, batch_size: int) -> Tensor:
    """Draw ``(B, T)`` ids that have about as many distinct ones as a text."""
    shares = token_shares(problem.vocab_size)[SPECIAL_TOKENS:]
    generator = torch.Generator().manual_seed(0)
    ranks = torch.multinomial(shares, batch_size * problem.length, True, generator=generator)
    return SPECIAL_TOKENS + ranks.view(batch_size, -1)


def expected_counts(problem) -> Tensor:
    """Return ``(V,)`` occurrences of each token in a text of a million tokens."""
    shares = token_shares(problem.vocab_size)
    return (1e6 * shares / shares.sum()).long()


def config_of(problem) -> PreTrainedConfig:
    """Return the configuration of a problem's model."""
    _, model_type, settings = MODELS[problem.model]
    return AutoConfig.for_model(model_type, vocab_size=problem.vocab_size, **settings)


def trunk_class(problem) -> type:
    """Return the class of a problem's model without a head."""
    return AutoModel


def language_model_class(problem) -> type:
    """Return the class of a problem's model with a head over the vocabulary."""
    if MODELS[problem.model][0] == "mlm":
        return AutoModelForMaskedLM
    return AutoModelForCausalLM


def new_model(problem, model_class: Callable[..., type], device: torch.device) -> PreTrainedModel:
    """Make a model of random weights, on the device, which is seconds faster on a GPU."""
    torch.manual_seed(0)
    with device:
        return model_class(problem).from_config(config_of(problem))


def our_step(
    trainer_class: type, model_class: Callable[..., type], objective: str, **own_settings
) -> Builder:
    """Return what makes the step of one of our trainers."""

    def build(problem, folder: str, device: torch.device) -> Step:
        settings = HeadlessTrainingArguments(
            folder,
            objective=objective,
            task=MODELS[problem.model][0],
            bf16=problem.bf16,
            report_to="none",
            save_strategy="no",
            use_cpu=device.type == "cpu",
            optim="adamw_torch_fused",
            **own_settings,
        )
        needs = {"processing_class": stand_in_tokenizer(problem.vocab_size)}
        if trainer_class is SampledSoftmaxTrainer:
            needs["token_counts"] = expected_counts(problem)
        trainer = trainer_class(new_model(problem, model_class, device), settings, **needs)
        prepare(trainer)

        def step(batch: dict[str, Tensor]) -> None:
            (with_targets,), _ = trainer.get_batch_samples(iter([batch]), 1, device)
            trainer.training_step(trainer.model, with_targets)
            trainer._clip_grad_norm(trainer.model)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
            trainer.state.global_step += 1

        return step

    return build


def prepare(trainer: PretrainingTrainer) -> None:
    """Do what `Trainer.train` does before the first step; without sparse embedding updates."""
    trainer.create_optimizer()
    trainer.model.train()
    trainer.is_in_train = True
    trainer.current_gradient_accumulation_steps = 1
    trainer.accelerator.gradient_state._set_sync_gradients(True)


def plain_step(model_class: Callable[..., type], loss_of: Callable[..., Tensor]) -> Builder:
    """Return what makes the step of a loop without our code."""

    def build(problem, folder: str, device: torch.device) -> Step:
        model = new_model(problem, model_class, device).train()
        # No loss reaches the pooler.
        if getattr(model.base_model, "pooler", None) is not None:
            model.base_model.pooler = None
        # As Trainer sets it.
        model.config.use_cache = False
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)

        def step(batch: dict[str, Tensor]) -> None:
            with torch.autocast(device.type, torch.bfloat16, enabled=problem.bf16):
                loss = loss_of(problem, model, on_device(batch["input_ids"], device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def trunk_loss(problem, model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return a loss of the trunk's outputs that costs nothing."""
    return model(input_ids=ids).last_hidden_state.sum()


def transformers_loss(problem, model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the loss of transformers' model, with masks as its data collator draws them."""
    labels = ids
    if MODELS[problem.model][0] == "mlm":
        is_target = torch.rand(ids.shape, device=ids.device) < 0.15
        is_masked = is_target & (torch.rand(ids.shape, device=ids.device) < 0.8)
        labels = ids.masked_fill(~is_target, -100)
        ids = ids.masked_fill(is_masked, MASK_TOKEN)
    return model(input_ids=ids, labels=labels).loss


METHODS: dict[str, Builder] = {
    "headless": our_step(HeadlessTrainer, trunk_class, "headless"),
    "trunk only": plain_step(trunk_class, trunk_loss),
    "sampled softmax": our_step(SampledSoftmaxTrainer, language_model_class, "sampled_softmax"),
    "our vanilla": our_step(VanillaTrainer, language_model_class, "vanilla"),
    "transformers": plain_step(language_model_class, transformers_loss),
}
