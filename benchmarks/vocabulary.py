#!/usr/bin/env python
"""Measure time and memory of a training step as the vocabulary grows: headless with and without
sparse updates, and vanilla.

    python benchmarks/vocabulary.py
    python benchmarks/vocabulary.py --sizes 32000 1000000 --repeats 15 --figure vocabulary.png

The trunk, the rows of a batch and their number of distinct tokens are the same at every size:
tokens follow Zipf's law over a fixed number of types, spread over the vocabulary. Each
configuration runs in a process of its own, in the ordinary training loop. Its steps take turns with
those of a reference process, headless with sparse updates at the smallest size; the ratio is the
median over these turns. Peak memory is that of the process, Python and its libraries included.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

# Settings of each method.
METHODS: dict[str, dict] = {
    "headless, sparse": {"objective": "headless", "sparse_embedding_updates": True},
    "untied, sparse": {"objective": "headless", "sparse_embedding_updates": True},
    "headless, dense": {"objective": "headless"},
    "vanilla": {"objective": "vanilla"},
}
# With a separate matrix for candidates.
UNTIED = "untied, sparse"
# V x D tables held at once: weights and moments, and for dense updates gradients and their
# summands.
TABLES = {"headless, sparse": 3, "untied, sparse": 6, "headless, dense": 5, "vanilla": 7}
# Python, libraries and everything but these tables.
OTHER_GIB = 0.8
BATCHES = 64
# The first ids.
SPECIAL_TOKENS = 5
WARM_UP = 3
# In a turn, whose median counts; one if a step takes over a second.
STEPS = 3


def state_bytes(method: str, vocab_size: int, width: int, rows: int) -> int:
    """Return the bytes of an embedding in training, in float32.

    They are those of weights, moments and gradient; if it is sparse, of the ``rows`` of a step.
    """
    table = 4 * vocab_size * width
    if not METHODS[method].get("sparse_embedding_updates"):
        return 4 * table
    # The step in which each row was updated last.
    last_steps = 4 * vocab_size
    gradients_and_ids = rows * (4 * width + 8)
    of_a_table = 3 * table + last_steps + gradients_and_ids
    if method == UNTIED:
        # The candidates' matrix has about as many rows in a step.
        return 2 * of_a_table
    return of_a_table


def main() -> None:
    from loss import results_argument, write_results

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[32_000, 128_000, 512_000, 1_000_000, 2_000_000]
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument(
        "--types", type=int, default=20_000, help="Distinct tokens in the data, at every size."
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--largest_vanilla", type=int, default=1_000_000, help="Largest vocabulary for vanilla."
    )
    parser.add_argument(
        "--memory_gib", type=float, default=8.0, help="Leave out configurations that need more."
    )
    parser.add_argument("--figure", help="Draw the results into this file.")
    results_argument(parser)
    args = parser.parse_args()
    if min(args.sizes) < args.types + SPECIAL_TOKENS:
        parser.error(
            f"--types is {args.types}, which does not fit into the smallest of --sizes, "
            f"{min(args.sizes)}."
        )
    print_header(args)
    results = []
    reference = Worker("headless, sparse", args.sizes[0], args)
    for vocab_size in args.sizes:
        for method in args.methods:
            reason = why_not(method, vocab_size, args)
            if reason:
                print(f"| {vocab_size:,} | {method} | {reason} | | | |", flush=True)
                continue
            results.append(measure(method, vocab_size, reference, args))
            print_row(results[-1])
    reference.stop()
    write_results(args.results_dir, results)
    if args.figure:
        draw(results, args.figure)


def why_not(method: str, vocab_size: int, args) -> str:
    """Return why a configuration is left out, or an empty string."""
    if method == "vanilla" and vocab_size > args.largest_vanilla:
        return f"left out: above --largest_vanilla {args.largest_vanilla:,}"
    needed = TABLES[method] * vocab_size * args.width * 4 / 2**30 + OTHER_GIB
    if needed > args.memory_gib:
        return f"left out: about {needed:.1f} GiB, --memory_gib {args.memory_gib:g}"
    return ""


def measure(method: str, vocab_size: int, reference: "Worker", args) -> dict:
    """Time the steps of one configuration in turn with those of the reference."""
    worker = Worker(method, vocab_size, args)
    for _ in range(WARM_UP):
        last_seconds, peak, rows = worker.step()
        reference.step()
    steps = STEPS
    if last_seconds > 1:
        steps = 1
    seconds = []
    ratios = []
    for _ in range(args.repeats):
        seconds_of_turn = []
        for _ in range(steps):
            step_seconds, peak, _ = worker.step()
            seconds_of_turn.append(step_seconds)
        seconds_of_reference = [reference.step()[0] for _ in range(steps)]
        seconds.append(statistics.median(seconds_of_turn))
        ratios.append(seconds[-1] / statistics.median(seconds_of_reference))
    worker.stop()
    return {
        "method": method,
        "vocab_size": vocab_size,
        "seconds": seconds,
        "ratio": statistics.median(ratios),
        "peak": peak,
        "state": state_bytes(method, vocab_size, args.width, round(rows)),
    }


class Worker:
    """A process that trains one configuration, one step at a time on request."""

    def __init__(self, method: str, vocab_size: int, args):
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(
            target=train, args=(other, method, vocab_size, args), daemon=True
        )
        self.process.start()
        other.close()

    def step(self) -> tuple[float, float, float]:
        """Take one step.

        Returns:
            Its seconds, the peak memory of the process in GiB, and the mean number of distinct
            tokens in a step.
        """
        self.connection.send("step")
        return self.connection.recv()

    def stop(self) -> None:
        self.connection.send("stop")
        self.process.join()


def train(connection, method: str, vocab_size: int, args) -> None:
    """Train one configuration in the process of a `Worker`, a step for each message."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model, TrainerCallback

    from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, VanillaTrainer
    from headless_trainer.models.candidate_head import untie
    from headless_trainer.trainers.window import peak_memory_mib

    rows, distinct = make_rows(vocab_size, args)

    class Pace(TrainerCallback):
        """Waits between steps, so that only the training loop is timed.

        It reads data, makes targets, and goes from the forward to the optimizer.
        """

        def on_train_begin(self, arguments, state, control, **kwargs):
            connection.recv()
            self.started = time.perf_counter()

        def on_step_end(self, arguments, state, control, **kwargs):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds = time.perf_counter() - self.started
            connection.send((seconds, peak_memory_mib(arguments.device) / 2**10, distinct))
            control.should_training_stop = connection.recv() == "stop"
            self.started = time.perf_counter()

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocab_size,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=max(1, args.width // 64),
        n_positions=args.length,
        bos_token_id=None,
        eos_token_id=None,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = HeadlessTrainingArguments(
            folder,
            task="clm",
            per_device_train_batch_size=args.batch_size,
            max_steps=10**6,
            learning_rate=1e-4,
            weight_decay=0.01,
            lr_scheduler_type="constant",
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **METHODS[method],
        )
        if settings.objective == "headless":
            trainer_class = HeadlessTrainer
            model = GPT2Model(config)
        else:
            trainer_class = VanillaTrainer
            model = GPT2LMHeadModel(config)
        if method == UNTIED:
            model = untie(model)
        trainer = trainer_class(model, settings, train_dataset=rows, callbacks=[Pace()])
        # Nothing after the last step is measured.
        trainer._finalize_training = lambda *ignored: None
        trainer.train()


def make_rows(vocab_size: int, args) -> tuple[list[dict], float]:
    """Return rows of ids, and the mean number of distinct ids in a batch.

    The number is the same at every size of the vocabulary, though the ids differ.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    shares = 1.0 / (torch.arange(args.types) + 2.7)
    ranks = torch.multinomial(
        shares, BATCHES * args.batch_size * args.length, True, generator=generator
    )
    spread = torch.randperm(args.types, generator=generator)[ranks]
    ids = SPECIAL_TOKENS + spread * ((vocab_size - SPECIAL_TOKENS) // args.types)
    batches = ids.view(BATCHES, -1)
    distinct = statistics.mean(len(batch.unique()) for batch in batches)
    return [{"input_ids": row} for row in ids.view(-1, args.length)], distinct


def print_header(args) -> None:
    """Print the conditions and the head of the table."""
    from loss import DEVICE, machine, software

    _, distinct = make_rows(min(args.sizes), args)
    shape = f"{args.layers} layers of width {args.width}, {args.batch_size} x {args.length} tokens"
    print(
        f"GPT-2, {shape}, on average {distinct:.0f} distinct, float32, {machine(DEVICE)}, "
        f"{software()['Versions']}\n"
    )
    print(
        "| V | step | median ms | over headless, sparse, at the smallest V | peak GiB "
        "| E's state, GiB |"
    )
    print("|---|---|---|---|---|---|", flush=True)


def print_row(result: dict) -> None:
    """Print a configuration's row of the table."""
    cells = (
        f"{result['vocab_size']:,}",
        result["method"],
        f"{1000 * statistics.median(result['seconds']):.1f}",
        f"{result['ratio']:.2f}",
        f"{result['peak']:.2f}",
        f"{result['state'] / 2**30:.3f}",
    )
    print(f"| {' | '.join(cells)} |", flush=True)


def draw(results: list[dict], path: str) -> None:
    """Draw time and memory of each method against the size of the vocabulary."""
    from headless_trainer.presentation.pictures import Panel, Series, draw_panels, to_png

    def panel(figure: str, title: str) -> Panel:
        series = []
        for method in METHODS:
            of_method = [result for result in results if result["method"] == method]
            if of_method:
                sizes = [result["vocab_size"] for result in of_method]
                values = [result[figure] for result in of_method]
                series.append(Series(sizes, values, "o-", label=method))
        return Panel(
            series, title=title, xlabel="tokens in the vocabulary", xscale="log", yscale="log"
        )

    panels = [
        panel("ratio", "step time over the smallest sparse one"),
        panel("peak", "peak memory, GiB"),
    ]
    Path(path).write_bytes(to_png(draw_panels(panels, legend="first")))


if __name__ == "__main__":
    main()
