#!/usr/bin/env python
"""Time one training step: headless, the trunk alone, sampled softmax, our vanilla trainer, and transformers' own model.

    python benchmarks/step.py
    python benchmarks/step.py --vocab_size 120000
    python benchmarks/step.py --length 512 --batch_size 1 2 4 8 --figure batch_size.png
    python benchmarks/step.py --model xlm-roberta-base --batch_size 4

All methods share the trunk (BERT-small by default), the batch, the masking rate and AdamW, and take turns after a warm-up.
"trunk only" runs forward, backward and optimizer of the trunk on a loss that costs nothing: no objective can be cheaper.
"transformers" is ...ForMaskedLM / ...ForCausalLM as run_mlm / run_clm run it, with logits at every position. "rows" means that
AdamW updates only the rows that a step reads. --pool_size adds headless steps with pools of that size. Peak memory is that of
three steps in a separate process: on a CPU with Python and its libraries, on a GPU of tensors alone. --figure draws time and
memory against the batch size, like figure 3 of the paper. Hub models have random weights and their own vocabulary size.
"""

import argparse
import contextlib
import functools
import statistics
import tempfile
import time
from pathlib import Path

import torch
from loss import alternate, in_a_process, machine, results_argument, token_shares, write_results
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedTokenizerFast,
)

from headless_trainer import (
    HeadlessTrainer,
    HeadlessTrainingArguments,
    SampledSoftmaxTrainer,
    VanillaTrainer,
)
from headless_trainer.cards.facts import software
from headless_trainer.presentation.pictures import Panel, Series, draw_panels, to_png
from headless_trainer.presentation.tables import markdown
from headless_trainer.trainers.isolation import sent
from headless_trainer.trainers.window import peak_memory_mib

SIZES = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"
MODELS = {
    "bert-small": ("mlm", "bert", dict(zip(SIZES, (512, 4, 8, 2048), strict=True))),
    "bert-base": ("mlm", "bert", {}),
    "table-10-decoder": ("clm", "gpt2", dict(n_embd=192, n_layer=3, n_head=3)),
    "pythia-70m": ("clm", "gpt_neox", dict(zip(SIZES, (512, 6, 8, 2048), strict=True))),
    "xlm-roberta-base": (
        "mlm",
        "xlm-roberta",
        dict(max_position_embeddings=514, type_vocab_size=1),
    ),
    "mmbert-small": ("mlm", "modernbert", dict(zip(SIZES, (384, 22, 6, 1152), strict=True))),
    "gemma-3-270m": (
        "clm",
        "gemma3_text",
        dict(zip(SIZES, (640, 18, 4, 2048), strict=True))
        | dict(num_key_value_heads=1, head_dim=256),
    ),
    "studies-roformer": ("mlm", "roformer", dict(zip(SIZES, (128, 2, 2, 512), strict=True))),
    "tiny-encoder": ("mlm", "bert", dict(zip(SIZES, (64, 2, 2, 128), strict=True))),
    "tiny-decoder": ("clm", "gpt2", dict(n_embd=64, n_layer=2, n_head=2)),
}
VOCABULARIES = {"xlm-roberta-base": 250_002, "mmbert-small": 256_000, "gemma-3-270m": 262_144}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="bert-small")
    parser.add_argument("--vocab_size", type=int, help="default: the model's own, or 50,304")
    parser.add_argument("--batch_size", type=int, nargs="+", default=[8])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--pool_size", type=int, nargs="*", default=[])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--figure", help="PNG to write")
    results_argument(parser)
    args = parser.parse_args()
    args.vocab_size = args.vocab_size or VOCABULARIES.get(args.model, 50_304)
    problems = [
        argparse.Namespace(**vars(args) | {"batch_size": batch_size})
        for batch_size in args.batch_size
    ]
    measured = {each.batch_size: measure(each) for each in problems}
    write_results(args.results_dir, measured)
    if args.figure:
        draw(measured, args.figure)


def measure(args) -> dict[str, dict]:
    """Print the table, and return the seconds, their median ratio to the first method's and the peak MiB of each method."""
    batch, device = batch_of(args)
    methods = methods_of(args)
    memory = {name: in_a_process(peak_memory, args, name) for name in methods}
    with tempfile.TemporaryDirectory() as folder:
        steps = {name: build(args, folder, device) for name, build in methods.items()}
    runs = {name: functools.partial(timed, step, batch, device) for name, step in steps.items()}
    seconds = alternate(runs, args.repeats, warm_up=2)
    first = next(iter(seconds.values()))
    figures, rows = {}, []
    for name, values in seconds.items():
        ratio = statistics.median(value / own for value, own in zip(values, first, strict=True))
        figures[name] = {"seconds": values, "ratio": ratio, "mib": memory[name]}
        rows.append(
            (
                name,
                f"{1000 * statistics.median(values):.1f}",
                f"{ratio:.2f}",
                f"{memory[name]:,.0f}",
            )
        )
    size = f"{args.model}, {args.batch_size} x {args.length} tokens, V = {args.vocab_size:,}"
    print(
        f"{size}, {'bf16' if args.bf16 else 'float32'}, {machine(device.type)}, {software()['Versions']}\n"
    )
    print(
        markdown(("step", "median ms", "over the first, round by round (median)", "peak MiB"), rows)
        + "\n"
    )
    return figures


def methods_of(args) -> dict:
    pools = {
        f"headless, pools of {size:,}": our_step(
            HeadlessTrainer, lambda args: AutoModel, "headless", pool_size=size
        )
        for size in args.pool_size
    }
    return {name: METHODS[name] for name in args.methods} | pools


def batch_of(args) -> tuple[dict[str, torch.Tensor], torch.device]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {"input_ids": draw_ids(args, args.batch_size)}, device


def peak_memory(args, name: str) -> float:
    """Return the peak memory of three steps in MiB."""
    batch, device = batch_of(args)
    with tempfile.TemporaryDirectory() as folder:
        step = methods_of(args)[name](args, folder, device)
    for _ in range(3):
        step(batch)
    return peak_memory_mib(device)


def timed(step, batch: dict[str, torch.Tensor], device: torch.device) -> float:
    """Return the seconds of a step: on a GPU the mean of four, so that the host prepares one while another runs."""
    steps, started = 4 if device.type == "cuda" else 1, time.perf_counter()
    for _ in range(steps):
        step(batch)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps


def draw_ids(args, batch_size: int) -> torch.Tensor:
    """Draw ``(B, T)`` ids that have about as many distinct ones as a text."""
    shares = token_shares(args.vocab_size)[5:]
    generator = torch.Generator().manual_seed(0)
    return 5 + torch.multinomial(shares, batch_size * args.length, True, generator=generator).view(
        batch_size, -1
    )


def expected_counts(args) -> torch.Tensor:
    """Return ``(V,)`` occurrences of each token in a text of a million tokens."""
    shares = token_shares(args.vocab_size)
    return (1e6 * shares / shares.sum()).long()


def config_of(args):
    _, model_type, overrides = MODELS[args.model]
    return AutoConfig.for_model(model_type, vocab_size=args.vocab_size, **overrides)


def tokenizer_of(args) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models

    words = {f"w{i}": i for i in range(5, args.vocab_size)}
    specials = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    backend = Tokenizer(models.WordLevel(specials | words, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", mask_token="[MASK]", sep_token="[SEP]"
    )


def our_step(trainer_class, model_class, objective: str, **own_settings):
    def build(args, folder, device):
        torch.manual_seed(0)
        settings = HeadlessTrainingArguments(
            folder, objective=objective, task=MODELS[args.model][0], bf16=args.bf16, report_to="none", save_strategy="no",
            use_cpu=device.type == "cpu", optim="adamw_torch_fused", **own_settings,
        )  # fmt: skip
        with device:  # draws random weights on the device, which is seconds faster on a GPU
            model = model_class(args).from_config(config_of(args))
        given = (
            {"token_counts": expected_counts(args)}
            if trainer_class is SampledSoftmaxTrainer
            else {}
        )
        trainer = trainer_class(model, settings, processing_class=tokenizer_of(args), **given)
        as_rows = (
            trainer.rows.updated_as_rows() if trainer.rows is not None else contextlib.nullcontext()
        )
        as_rows.__enter__()
        trainer.create_optimizer()
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        trainer.accelerator.gradient_state._set_sync_gradients(True)

        def step(batch):
            (targets,), _ = trainer.get_batch_samples(iter([batch]), 1, device)
            loss = trainer.training_step(trainer.model, targets)
            trainer._clip_grad_norm(trainer.model)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
            return loss

        step.as_rows = as_rows  # keeps it open as long as the step exists
        return step

    return build


def plain_step(model_class, loss_of):
    def build(args, folder, device):
        torch.manual_seed(0)
        with device:
            model = model_class(args).from_config(config_of(args)).train()
        if getattr(model.base_model, "pooler", None) is not None:
            model.base_model.pooler = None
        model.config.use_cache = False  # as Trainer sets it
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)

        def step(batch):
            with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                loss = loss_of(args, model, sent(batch["input_ids"], device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def trunk_loss(args, model, ids):
    return model(input_ids=ids).last_hidden_state.sum()


def transformers_loss(args, model, ids):
    labels = ids
    if MODELS[args.model][0] == "mlm":
        masked = torch.rand(ids.shape, device=ids.device) < 0.15
        labels = ids.masked_fill(~masked, -100)
        ids = ids.masked_fill(masked & (torch.rand(ids.shape, device=ids.device) < 0.8), 4)
    return model(input_ids=ids, labels=labels).loss


def language_model_class(args):
    return AutoModelForMaskedLM if MODELS[args.model][0] == "mlm" else AutoModelForCausalLM


METHODS = {
    "headless": our_step(HeadlessTrainer, lambda args: AutoModel, "headless"),
    "trunk only": plain_step(lambda args: AutoModel, trunk_loss),
    "sampled softmax": our_step(SampledSoftmaxTrainer, language_model_class, "sampled_softmax"),
    "sampled softmax, rows": our_step(
        SampledSoftmaxTrainer,
        language_model_class,
        "sampled_softmax",
        sparse_embedding_updates=True,
    ),
    "our vanilla": our_step(VanillaTrainer, language_model_class, "vanilla"),
    "transformers": plain_step(language_model_class, transformers_loss),
}


def draw(measured: dict[int, dict[str, dict]], path: str) -> None:
    panels = []
    shown = {"milliseconds of a step": lambda found: 1000 * statistics.median(found["seconds"])}
    for label, take in (shown | {"peak memory, MiB": lambda found: found["mib"]}).items():
        by_method = {
            name: [take(at[name]) for at in measured.values()]
            for name in next(iter(measured.values()))
        }
        series = [Series(measured, values, "o-", label=name) for name, values in by_method.items()]
        highest = max(max(values) for values in by_method.values())
        axis = {
            "xlabel": "rows in a batch",
            "xticks": list(measured),
            "ylabel": label,
            "ylim": (0, 1.05 * highest),
        }
        panels.append(Panel(series, **axis))
    Path(path).write_bytes(to_png(draw_panels(panels, legend="first")))


if __name__ == "__main__":
    main()
