#!/usr/bin/env python
"""Check that a device computes what the CPU and float64 do: the loss, masks, a training step,
resuming, compilation.

    python benchmarks/parity.py
    python benchmarks/parity.py --device cpu --checks masks resume

Each check returns figures that must not exceed their bounds. The tests run the same checks.
"""

import argparse
import contextlib
import functools
import math
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# cuBLAS reads this when it starts; without it, each run may sum in another order.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from held_steps import MODELS, config_of, language_model_class
from loss import contrastive, make_inputs, paper, plain_head
from torch import Tensor
from transformers import (
    AutoModel,
    PrinterCallback,
    TrainerCallback,
)

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, VanillaTrainer
from headless_trainer.objective.losses import vocabulary_cross_entropy
from headless_trainer.objective.masking import (
    MaskingRule,
    content_seeds,
    document_mask,
    document_positions,
    mask_tokens,
    next_tokens,
    uniform_numbers,
)
from headless_trainer.timing.step_rows import stand_in_tokenizer

VOCAB = 500
# Tokens in a row.
LENGTH = 32
ROWS = 48
# K, D, V of the loss: not multiples of a block.
SIZE = (1000, 96, 2000)
ENCODER = argparse.Namespace(model="tiny-encoder", vocab_size=VOCAB)
DECODER = argparse.Namespace(model="tiny-decoder", vocab_size=VOCAB)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "embd_pdrop",
    "attn_pdrop",
    "resid_pdrop",
)

# The error of each figure and its upper bound, by name.
Figures = dict[str, tuple[float, float]]


# The loss -------------------------------------------------------------------------------------


def relative(got: Tensor, want: Tensor) -> float:
    """Return the norm of the error relative to that of ``want``; infinity if it is not a number."""
    error = ((got.double() - want.double()).norm() / want.double().norm()).item()
    if math.isnan(error):
        return math.inf
    return error


def loss_and_gradients(
    method: Callable, inputs: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Return the loss of a method, and its gradients by the outputs and by the embedding."""
    hidden, _, weight = inputs
    loss = method(*inputs)
    return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))


def in_float64(inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs of a loss in float64, whose gradients are separate from theirs."""
    hidden, targets, weight = inputs
    wide_hidden = hidden.detach().double().requires_grad_()
    wide_weight = weight.detach().double().requires_grad_()
    return wide_hidden, targets, wide_weight


def check_precision(device: str) -> Figures:
    """Check that the error against float64 is at most twice that of the paper's K x K form."""
    figures = {}
    for name, dtype in DTYPES.items():
        inputs = make_inputs(SIZE, dtype, device)
        exact = loss_and_gradients(paper, in_float64(inputs))
        errors_of_paper = map(relative, loss_and_gradients(paper, inputs), exact)
        bounds = [2 * error + 4 * torch.finfo(dtype).eps for error in errors_of_paper]
        for backend in ("dense", "chunked"):
            ours = loss_and_gradients(functools.partial(contrastive, backend=backend), inputs)
            for index, what in enumerate(("loss", "d outputs", "d embedding")):
                error = relative(ours[index], exact[index])
                figures[f"{name}, {backend}: {what}"] = (error, bounds[index])
    return figures


def check_backends(device: str) -> Figures:
    """Compare dense and chunked with the paper's form, and the chunked head with torch's.

    They agree up to the rounding of float64.
    """
    inputs = in_float64(make_inputs(SIZE, torch.float32, device))
    want = loss_and_gradients(paper, inputs)
    figures = {}
    for backend in ("dense", "chunked"):
        got = loss_and_gradients(functools.partial(contrastive, backend=backend), inputs)
        figures[f"{backend} and the paper's form"] = (max(map(relative, got, want)), 1e-12)
    plain = loss_and_gradients(plain_head, inputs)
    chunked_head = functools.partial(vocabulary_cross_entropy, backend="chunked")
    chunked = loss_and_gradients(chunked_head, inputs)
    figures["vocabulary: chunked and torch's"] = (max(map(relative, chunked, plain)), 1e-12)
    return figures


# Masks ----------------------------------------------------------------------------------------


def check_masks(device: str) -> Figures:
    """Check that every function of ids and seeds gives the same bits as on the CPU."""
    ids = torch.randint(5, VOCAB, (64, 512), generator=torch.Generator().manual_seed(0))
    rule = MaskingRule(
        mask_token_id=4, vocab_size=VOCAB, special_ids=torch.arange(5), probability=0.3
    )
    padding = torch.arange(512).expand(64, -1) >= torch.arange(64)[:, None] * 8 + 8
    positions = document_positions(ids, torch.tensor([7, 9]))
    functions: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]] = {
        "seeds of rows": lambda ids, padding, _: (content_seeds(ids, (1, 2), padding),),
        "uniform numbers": lambda ids, padding, _: (
            uniform_numbers(content_seeds(ids, (0,)), 3, 512),
        ),
        "masked inputs and labels": lambda ids, padding, _: mask_tokens(
            ids, rule, content_seeds(ids, (3,)), padding
        ),
        "next tokens": lambda ids, padding, positions: (next_tokens(ids, padding, positions),),
        "documents": lambda ids, _, positions: (
            document_positions(ids, torch.tensor([7, 9])),
            document_mask(positions),
        ),
    }
    figures = {}
    for name, function in functions.items():
        want = function(ids, padding, positions)
        got = function(ids.to(device), padding.to(device), positions.to(device))
        differing = sum(
            (there.cpu() != here).sum().item() for there, here in zip(got, want, strict=True)
        )
        figures[f"{name}: entries that differ"] = (differing, 0)
    return figures


# Training -------------------------------------------------------------------------------------


class Watched(TrainerCallback):
    """Records the gradients of the first optimizer step, and the compiled graphs after each step.

    Attributes:
        gradients: by the names of the bare model.
        graphs: their number so far, at the end of each step.
    """

    def __init__(self):
        self.gradients: dict[str, Tensor] = {}
        self.graphs: list[int] = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.gradients:
            return
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                bare_name = name.removeprefix("_orig_mod.")
                self.gradients[bare_name] = parameter.grad.cpu().clone()

    def on_step_end(self, args, state, control, **kwargs):
        self.graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def make_rows() -> list[dict]:
    """Draw the rows of all trainings, with frequencies as those of a text."""
    generator = torch.Generator().manual_seed(1)
    shares = 1.0 / (torch.arange(5, VOCAB) + 2.7)
    return [
        {"input_ids": 5 + torch.multinomial(shares, LENGTH, True, generator=generator)}
        for _ in range(ROWS)
    ]


def train(folder, device: str, problem, resume=None, dropout: float = 0.0, **settings):
    """Train a tiny model, and return the trainer and what its callback recorded.

    Nothing uses TF32, which torch_compile would enable.
    """
    task = MODELS[problem.model][0]
    defaults = {
        "task": task,
        "use_cpu": device == "cpu",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "tf32": False,
        "save_strategy": "no",
        "per_device_train_batch_size": 8,
        "max_steps": 6,
        "learning_rate": 1e-2,
        "max_grad_norm": 0.0,
        "train_sampling_strategy": "sequential",
        "mlm_probability": 0.3 if task == "mlm" else 0.15,
    }
    args = HeadlessTrainingArguments(str(folder), **defaults | settings)
    config = config_of(problem)
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, dropout)
    torch.manual_seed(0)
    if args.objective == "headless":
        trainer_class = HeadlessTrainer
        model_class = AutoModel
    else:
        trainer_class = VanillaTrainer
        model_class = language_model_class(problem)
    model = model_class.from_config(config)
    watched = Watched()
    trainer = trainer_class(
        model,
        args,
        train_dataset=make_rows(),
        processing_class=stand_in_tokenizer(problem.vocab_size),
        callbacks=[watched],
    )
    trainer.pop_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, watched


def losses(trainer) -> Tensor:
    """Return the ``(steps,)`` logged losses in float64."""
    return torch.tensor(
        [log["loss"] for log in trainer.state.log_history if "loss" in log], dtype=torch.float64
    )


def weights(trainer) -> Tensor:
    """Return all weights of the model in one vector."""
    tensors = trainer.model.state_dict().values()
    return torch.cat([tensor.detach().float().cpu().flatten() for tensor in tensors])


def whole(gradients: dict[str, Tensor]) -> Tensor:
    """Return all gradients in one vector, by their names' order."""
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])


def check_step(device: str) -> Figures:
    """Check loss and gradient of the trainer's first step against those of float32 on the CPU."""
    figures = {}
    # float32 on another device sums in another order; bfloat16 keeps 8 bits.
    precisions = {"float32": ({}, 1e-5, 1e-3), "bfloat16": ({"bf16": True}, 1e-2, 1e-1)}
    for problem in (ENCODER, DECODER):
        for objective in ("headless", "vanilla"):
            settings = {"objective": objective, "max_steps": 1}
            with tempfile.TemporaryDirectory() as folder:
                want, wanted = train(folder, "cpu", problem, **settings)
                for name, (flags, bound_of_loss, bound_of_gradient) in precisions.items():
                    got, watched = train(folder, device, problem, **settings, **flags)
                    what = f"{problem.model}, {objective}, {name}"
                    error = relative(losses(got), losses(want))
                    figures[f"{what}: loss"] = (error, bound_of_loss)
                    error = relative(whole(watched.gradients), whole(wanted.gradients))
                    figures[f"{what}: gradient"] = (error, bound_of_gradient)
    return figures


@contextlib.contextmanager
def deterministic():
    """Let torch use deterministic algorithms alone."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check_resume(device: str) -> Figures:
    """Check that resumed runs equal uninterrupted ones bit for bit, dropout included.

    Algorithms are deterministic.
    """
    figures = {}
    cases = {
        "encoder": (ENCODER, {}),
        "decoder": (DECODER, {}),
        "decoder, rows": (DECODER, {"sparse_embedding_updates": True, "max_grad_norm": 1.0}),
        "encoder, bfloat16": (
            ENCODER,
            {"bf16": True, "negatives": "step", "gradient_accumulation_steps": 2},
        ),
    }
    with deterministic():
        for name, (problem, settings) in cases.items():
            settings = {"dropout": 0.1, "save_strategy": "steps", "save_steps": 3} | settings
            with tempfile.TemporaryDirectory() as folder:
                once, _ = train(Path(folder, "once"), device, problem, **settings)
                checkpoint = str(Path(folder, "once", "checkpoint-3"))
                again, _ = train(
                    Path(folder, "again"), device, problem, resume=checkpoint, **settings
                )
            differing_losses = (losses(again) != losses(once)).sum().item()
            differing_weights = (weights(again) != weights(once)).sum().item()
            figures[f"{name}: losses that differ"] = (differing_losses, 0)
            figures[f"{name}: weights that differ"] = (differing_weights, 0)
    return figures


def check_rows(device: str) -> Figures:
    """Check that sparse updates of the embedding end where dense ones do."""
    figures = {}
    settings = {"weight_decay": 0.1, "max_grad_norm": 1.0, "learning_rate": 1e-3}
    for problem in (ENCODER, DECODER):
        with tempfile.TemporaryDirectory() as folder:
            dense, _ = train(folder, device, problem, **settings)
            rows, _ = train(folder, device, problem, **settings, sparse_embedding_updates=True)
        error = relative(losses(rows), losses(dense))
        figures[f"{problem.model}: losses"] = (error, 1e-5)
        error = relative(rows.embedding.weight.detach(), dense.embedding.weight.detach())
        figures[f"{problem.model}: embedding"] = (error, 1e-4)
    return figures


def check_compiled(device: str) -> Figures:
    """Check that only the first step compiles the trunk, and that losses stay the same.

    The number of targets differs from step to step.
    """
    figures = {}
    backend = "inductor"
    if device == "cpu":
        # inductor takes minutes to compile for a CPU.
        backend = "eager"
    for problem in (ENCODER, DECODER):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        with tempfile.TemporaryDirectory() as folder:
            plain, _ = train(folder, device, problem)
            compiled, seen = train(
                folder, device, problem, torch_compile=True, torch_compile_backend=backend
            )
        torch._dynamo.reset()
        later_graphs = seen.graphs[-1] - seen.graphs[0]
        figures[f"{problem.model}: graphs after the first step"] = (later_graphs, 0)
        figures[f"{problem.model}: nothing compiled"] = (int(seen.graphs[0] == 0), 0)
        error = relative(losses(compiled), losses(plain))
        figures[f"{problem.model}: losses"] = (error, 1e-3)
    return figures


CHECKS: dict[str, Callable[[str], Figures]] = {
    "precision": check_precision,
    "backends": check_backends,
    "masks": check_masks,
    "step": check_step,
    "resume": check_resume,
    "rows": check_rows,
    "compiled": check_compiled,
}


def failures(figures: Figures) -> dict[str, tuple[float, float]]:
    """Return the figures above their bounds."""
    return {name: (value, bound) for name, (value, bound) in figures.items() if not value <= bound}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS))
    args = parser.parse_args()
    wrong = 0
    print("| check | figure | value | bound | |\n|---|---|---|---|---|")
    for name in args.checks:
        figures = CHECKS[name](args.device)
        too_large = failures(figures)
        wrong += len(too_large)
        for what, (value, bound) in figures.items():
            mark = "ABOVE" if what in too_large else ""
            print(f"| {name} | {what} | {value:.3g} | {bound:.3g} | {mark} |", flush=True)
    if wrong:
        sys.exit(f"{wrong} figures exceed their bounds.")


if __name__ == "__main__":
    main()
