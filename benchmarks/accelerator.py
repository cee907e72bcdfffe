#!/usr/bin/env python
"""Check that an accelerator computes correctly and measure what it costs, in one command.

    python benchmarks/accelerator.py --output_dir runs/accelerator
    python benchmarks/accelerator.py --output_dir runs/accelerator --scale cpu --minutes 5

On one GPU it takes at most nine minutes and writes accelerator.json and accelerator.md. The parts,
most important first:

- parity: the checks of benchmarks/parity.py on this device
- loss: forward and backward of the loss alone, of the paper's form, and of every installed exact
  head over the vocabulary (torch's, Liger's, Cut Cross-Entropy, QuACK), each with its error
  relative to float64
- steps: whole training steps of four models: trunk alone, headless, sampled softmax, vanilla with
  the fastest of those heads, transformers' own model, and a decoder's headless steps also in pools

Each part runs in a process of its own for its share of the time. The page names whatever fails, and
the rest still runs.
"""

import argparse
import contextlib
import dataclasses
import functools
import gc
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

# Shares of the time. Later parts get the time that a part leaves.
PARTS = {"parity": 0.25, "loss": 0.35, "steps": 0.4}
FILE = "accelerator"
# The method whose head is chosen.
VANILLA = "our vanilla"
# Of a part that lost its device. Each leaves out the item that was running.
RESTARTS = 5


# By scale. Types of numbers are names here, since not every process loads torch.
DEFAULT_MINUTES = {"gpu": 9, "cpu": 5}
DEVICES = {"gpu": "cuda", "cpu": "cpu"}
DTYPES = {"gpu": "bfloat16", "cpu": "float32"}


# One part, in its own process -----------------------------------------------------------------


class Part:
    """The findings of one part so far, in a file that is rewritten after each of them.

    Args:
        path: the file. Its content is kept, so that a restarted part continues.
        scale: ``gpu`` or ``cpu``.
        seconds: time after which no new item is started.
        without: items to leave out.
    """

    def __init__(self, path: Path, scale: str, seconds: float, without: list[str]):
        self.path = path
        self.scale = scale
        self.without = without
        self.deadline = time.monotonic() + seconds
        self.device = DEVICES[scale]
        self.findings = {
            "rows": [],
            "failures": {},
            "facts": {},
            "complete": True,
            "under_way": None,
        }
        if path.exists():
            self.findings |= json.loads(path.read_text())

    def save(self) -> None:
        """Write the file, whole at any moment."""
        aside = self.path.with_suffix(".aside")
        aside.write_text(json.dumps(self.findings))
        aside.replace(self.path)

    def add(self, **row) -> None:
        """Record figures."""
        self.findings["rows"].append(row)
        self.save()

    def has(self, **values) -> bool:
        """Return whether figures with these values are recorded."""
        return any(values.items() <= row.items() for row in self.findings["rows"])

    def late(self, deadline: float | None = None) -> bool:
        """Return whether there is no time for another item; if so, mark the part as incomplete."""
        last_moment = self.deadline
        if deadline is not None:
            last_moment = min(last_moment, deadline)
        if time.monotonic() < last_moment:
            return False
        self.findings["complete"] = False
        self.save()
        return True

    @contextlib.contextmanager
    def attempt(self, item: str, may_not_fit: bool = True) -> Iterator[dict]:
        """Run one item and record its error; yield a dict with ``ran`` and ``fits`` (into memory).

        Running out of memory is an error only of an item that fitted before.
        """
        outcome = {"ran": False, "fits": True}
        self.findings["under_way"] = item
        self.save()
        try:
            yield outcome
            outcome["ran"] = True
        except Exception as error:
            # torch's error, by its name: a part need not load torch.
            too_large = type(error).__name__ == "OutOfMemoryError"
            if too_large and may_not_fit:
                outcome["fits"] = False
            else:
                self.findings["failures"][item] = f"{type(error).__name__}: {error}"[:500]
            # The frames hold the tensors.
            traceback.clear_frames(error.__traceback__)
            # Raises again if this process has lost the device: it ends here, with this item under
            # way.
            self.free()
        self.findings["under_way"] = None
        self.save()

    def free(self) -> None:
        """Collect garbage and release the device's cached memory."""
        gc.collect()
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def parity(part: Part) -> None:
    """Record the figures of the checks of benchmarks/parity.py, and their bounds."""
    from parity import CHECKS

    for name, check in CHECKS.items():
        if part.has(check=name) or name in part.without:
            continue
        if part.late():
            return
        started = time.monotonic()
        with part.attempt(name):
            for figure, (value, bound) in check(part.device).items():
                part.add(check=name, figure=figure, value=value, bound=bound, ok=value <= bound)
        part.findings["facts"][f"seconds of {name}"] = round(time.monotonic() - started, 1)


# K, D, V; the sizes of most interest come first.
FIRST_SIZES = [
    (16384, 768, 50304),
    (65536, 768, 50304),
    (16384, 2048, 256000),
    (65536, 2048, 256000),
    (4096, 768, 32000),
]
ALL_SIZES = [
    (count, width, vocab_size)
    for vocab_size in (128000, 256000, 32000)
    for width in (768, 2048)
    for count in (16384, 65536, 4096, 1024)
]
LOSS_SIZES = {
    "gpu": FIRST_SIZES + [size for size in ALL_SIZES if size not in FIRST_SIZES],
    "cpu": [(1024, 128, 8000), (2048, 256, 16000), (4096, 128, 8000)],
}


def loss(part: Part) -> None:
    """Record times, memory and errors of the loss at each size."""
    import torch
    from loss import alternate, contrastive, extra_memory, heads, make_inputs, methods, run_once
    from parity import in_float64, loss_and_gradients, relative

    from headless_trainer.objective.losses import vocabulary_cross_entropy

    dtype = getattr(torch, DTYPES[part.scale])
    part.findings["facts"] |= {
        "dtype": DTYPES[part.scale],
        "left out": heads(part.device)[1],
    }
    exact_methods = {
        "K x U": functools.partial(contrastive, backend="chunked"),
        "K x V": functools.partial(vocabulary_cross_entropy, backend="chunked"),
    }
    all_methods = methods(part.device)
    for size in LOSS_SIZES[part.scale]:
        where = dict(zip("KDV", size, strict=True))
        if part.has(**where):
            continue
        if part.late():
            return
        inputs = make_inputs(size, dtype, part.device)
        # Loss and gradients in float64.
        exact = {}
        memory = {}
        errors = {}
        too_large = []
        for name, method in exact_methods.items():
            with part.attempt(f"{name} in float64 at {size}"):
                exact[name] = loss_and_gradients(method, in_float64(inputs))
        for name, method in all_methods.items():
            if name in part.without or part.late():
                continue
            with part.attempt(name) as outcome:
                # Both forms among candidates, K x U and K x K, have the same loss.
                exact_form = "K x V" if name.startswith("K x V") else "K x U"
                got = loss_and_gradients(method, inputs)
                errors_of_method = [None, None, None]
                if exact_form in exact:
                    errors_of_method = list(map(relative, got, exact[exact_form]))
                # The peak of memory must not hold these gradients.
                del got
                mib = None
                if part.device == "cuda":
                    mib = extra_memory(name, method, inputs)
            if outcome["ran"]:
                errors[name] = errors_of_method
                memory[name] = mib
            elif not outcome["fits"]:
                too_large.append(name)
        runs = {name: functools.partial(run_once, all_methods[name], inputs) for name in memory}
        with part.attempt(f"times at {size}", may_not_fit=False):
            takes_long = part.scale == "cpu" or math.prod(size) > 1e13
            seconds = alternate(runs, 3 if takes_long else 5)
            distinct = len(inputs[1].unique())
            for name, values in seconds.items():
                loss_error, outputs_error, embedding_error = errors[name]
                part.add(
                    **where,
                    U=distinct,
                    method=name,
                    fits=True,
                    ms=1e3 * statistics.median(values),
                    low=1e3 * min(values),
                    high=1e3 * max(values),
                    mib=memory[name],
                    loss_error=loss_error,
                    outputs_error=outputs_error,
                    embedding_error=embedding_error,
                )
        for name in too_large:
            part.add(**where, method=name, fits=False)
        del inputs, exact
        part.free()


def problem_of(
    model: str, vocab_size: int, length: int, bf16: bool, start: int, last: int, pools: list[int]
) -> dict:
    """Return a model, the batch sizes from the first to the last, and the sizes of its pools."""
    return {
        "model": model,
        "vocab_size": vocab_size,
        "length": length,
        "bf16": bf16,
        "start": start,
        "last": last,
        "pool_size": pools,
    }


STEPS = {
    # Smaller batches wait for the host. XLM-R's largest step fits only beside few others.
    "gpu": [
        problem_of("pythia-70m", 50304, 512, True, start=64, last=128, pools=[16384]),
        problem_of("xlm-roberta-base", 250002, 512, True, start=128, last=128, pools=[]),
        problem_of("bert-base", 50304, 512, True, start=128, last=128, pools=[]),
        problem_of("gemma-3-270m", 262144, 512, True, start=16, last=16, pools=[]),
    ],
    # A program does not survive running out of CPU memory, so a CPU gets two batch sizes.
    "cpu": [
        problem_of(model, 8000, 64, False, start=4, last=8, pools=[128])
        for model in ("tiny-encoder", "tiny-decoder")
    ],
}


def steps(part: Part) -> None:
    """Record times and memory of whole steps of each model."""
    part.findings["facts"]["dtype"] = DTYPES[part.scale]
    problems = STEPS[part.scale]
    for index, problem in enumerate(problems):
        if part.late():
            return
        now = time.monotonic()
        # Each model gets an equal share of the time that is left.
        deadline = now + (part.deadline - now) / (len(problems) - index)
        sweep(part, argparse.Namespace(**problem), deadline)
        gc.collect()


class ChosenHead:
    """A replacement for the loss of `VanillaTrainer` that calls one of the compared heads."""

    head = None

    def __call__(self, hidden, target_ids, weight, bias=None, *, softcap=None, reduction="mean"):
        import torch

        # The compared kernels have none.
        assert softcap is None
        if torch.is_autocast_enabled(hidden.device.type):
            dtype = torch.get_autocast_dtype(hidden.device.type)
            hidden = hidden.to(dtype)
            weight = weight.to(dtype)
            if bias is not None:
                bias = bias.to(dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden, target_ids, weight, bias, reduction=reduction)


def sweep(part: Part, problem, deadline: float) -> None:
    """Time the steps of one model at batch sizes that double from the first to the last.

    Ends earlier if no method fits any more.
    """
    import torch
    from held_steps import draw_ids
    from loss import heads

    device = torch.device(part.device)
    all_heads, _ = heads(part.device)
    chosen = ChosenHead()
    chosen.head = all_heads["cross_entropy"]
    with (
        mock.patch("headless_trainer.trainers.vanilla.vocabulary_cross_entropy", chosen),
        tempfile.TemporaryDirectory() as folder,
    ):
        held = make_steps(part, problem, folder, device)
        size = problem.start
        while held and size <= problem.last:
            if part.late(deadline):
                break
            where = {
                "model": problem.model,
                "V": problem.vocab_size,
                "length": problem.length,
                "batch": size,
            }
            if not part.has(**where):
                ids = draw_ids(problem, size)
                time_batch(part, problem, where, held, ids, chosen, all_heads)
            size *= 2


@dataclasses.dataclass
class HeldStep:
    """A step that is ready, and the bytes of its model and optimizer."""

    step: Callable
    state: int


def make_steps(part: Part, problem, folder: str, device) -> dict[str, HeldStep]:
    """Make the step of each method that fits, and take it once."""
    from held_steps import draw_ids, methods_of

    held = {}
    for method, build in methods_of(problem).items():
        item = f"{label_of(problem)}: {method}"
        if item in part.without:
            continue
        with part.attempt(item) as outcome:
            before = allocated(device)
            step = build(problem, folder, device)
            step({"input_ids": draw_ids(problem, 1)})
        if outcome["ran"]:
            held[method] = HeldStep(step, allocated(device) - before)
        # Otherwise a step that is not held would live on while the next one is made.
        step = None
    return held


def label_of(problem) -> str:
    """Return a problem's name in messages."""
    return f"{problem.model}, V = {problem.vocab_size:,}"


def time_batch(
    part: Part,
    problem,
    where: dict,
    held: dict[str, HeldStep],
    ids,
    chosen: ChosenHead,
    all_heads: dict,
) -> None:
    """Time the held steps on one batch, and drop those that do not fit.

    Args:
        where: model and sizes, which begin each row.
        ids: ``(B, T)`` of the batch.
        chosen: the head of vanilla, which becomes the fastest that fits.
        all_heads: the heads to choose from.
    """
    import torch
    from held_steps import timed
    from loss import alternate

    device = torch.device(part.device)
    has_gpu = part.device == "cuda"
    batch = {"input_ids": ids}
    peaks = {}
    used_head = None
    too_large = []
    for method in list(held):
        head_names: list[str | None] = [None]
        if method == VANILLA:
            head_names = fastest_heads(part, problem, ids, all_heads)
        # The next one is tried if a head needs too much memory.
        for head_name in head_names:
            if head_name is not None:
                chosen.head = all_heads[head_name]
            with part.attempt(f"{label_of(problem)}: {method}") as outcome:
                peak = peak_of(held[method].step, batch, device)
            if outcome["ran"]:
                peaks[method] = peak + held[method].state
                used_head = head_name or used_head
                break
        if not outcome["ran"]:
            if not outcome["fits"]:
                too_large.append(method)
            del held[method]
            part.free()
    seconds = {}
    item = f"{label_of(problem)}: times at batch {len(ids)}"
    with part.attempt(item, may_not_fit=False):
        runs = {
            method: functools.partial(timed, ready.step, batch, device)
            for method, ready in held.items()
        }
        seconds = alternate(runs, 3)
    runs = None
    for method, values in seconds.items():
        median = statistics.median(values)
        over_headless = None
        if "headless" in seconds:
            rounds = zip(values, seconds["headless"], strict=True)
            over_headless = statistics.median(value / headless for value, headless in rounds)
        part.add(
            **where,
            method=method,
            fits=True,
            head=used_head if method == VANILLA else None,
            ms=1e3 * median,
            low=1e3 * min(values),
            high=1e3 * max(values),
            tokens_per_second=ids.numel() / median,
            over_headless=over_headless,
            gib=peaks[method] / 2**30 if has_gpu else None,
        )
    for method in too_large:
        part.add(**where, method=method, fits=False)


def fastest_heads(part: Part, problem, ids, all_heads: dict) -> list[str]:
    """Return the heads that can serve the predictions of a batch, fastest first."""
    from held_steps import MODELS, config_of

    is_masked = MODELS[problem.model][0] == "mlm"
    count = ids.numel()
    if is_masked:
        # The share of tokens that are predicted.
        count = int(0.15 * count)
    size = (count, config_of(problem).hidden_size, problem.vocab_size)
    # Encoders also have a bias in the head.
    return fastest(part, all_heads, size, biased=is_masked)


def fastest(part: Part, all_heads: dict, size: tuple[int, int, int], biased: bool) -> list[str]:
    """Return the heads that run at a size K, D, V, fastest first.

    What counts is their own forward and backward, timed in turn.
    """
    import torch
    from loss import alternate, make_inputs, run_once

    inputs = make_inputs(size, getattr(torch, DTYPES[part.scale]), part.device)
    _, _, weight = inputs
    bias = None
    role = "as the head"
    if biased:
        bias = torch.zeros_like(weight[:, 0]).requires_grad_()
        role = "as the head, with a bias"
    runs = {}
    for name, head in all_heads.items():
        item = f"{name} {role}"
        if item in part.without or item in part.findings["failures"]:
            continue
        run = functools.partial(run_once, functools.partial(head, bias=bias), inputs)
        with part.attempt(item) as outcome:
            run()
        if outcome["ran"]:
            runs[name] = run
    seconds = {name: statistics.median(values) for name, values in alternate(runs, 3).items()}
    return sorted(seconds, key=seconds.get)


def allocated(device) -> int:
    """Return the bytes of all tensors on a GPU; 0 on a CPU, where it is not known."""
    import torch

    if device.type != "cuda":
        return 0
    return torch.cuda.memory_allocated()


def peak_of(step, batch, device) -> int:
    """Return the bytes that a step needs at its peak beyond those in use before it; warms up."""
    import torch

    step(batch)
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(batch)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


# All parts ------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output_dir", default="runs/accelerator")
    parser.add_argument("--scale", choices=("gpu", "cpu"), help="Default: gpu if there is one.")
    parser.add_argument(
        "--minutes", type=float, help="Time for all parts: 9 on a GPU, 5 on a CPU by default."
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    for hidden in ("--part", "--result", "--seconds"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--without", nargs="*", default=[], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        run_part(args)
        return
    if args.scale != "cpu":
        import torch

        has_gpu = torch.cuda.is_available()
        if args.scale == "gpu" and not has_gpu:
            parser.error("--scale is gpu but torch sees no GPU here: use --scale cpu.")
        args.scale = "gpu" if has_gpu else "cpu"
    args.minutes = args.minutes or DEFAULT_MINUTES[args.scale]
    # A run ended from outside, as by a time limit, must still report what it measured.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_all(args))


def run_part(args) -> None:
    """Run one part in this process."""
    part = Part(Path(args.result), args.scale, float(args.seconds), args.without)
    try:
        globals()[args.part](part)
    except Exception:
        part.findings["error"] = traceback.format_exc(limit=-4)
        part.save()
        raise
    part.findings.pop("error", None)
    part.findings["finished"] = True
    part.save()


def run_all(args) -> int:
    """Run all parts, write the report while they run, and return the exit status."""
    output = Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    report = {
        "machine": machine(args.scale),
        "scale": args.scale,
        "minutes": args.minutes,
        "parts": {},
    }
    waiting = {name: PARTS[name] for name in PARTS if name in args.parts}
    with tempfile.TemporaryDirectory() as folder:
        for name in list(waiting):
            seconds = (end - time.monotonic()) * waiting[name] / sum(waiting.values())
            del waiting[name]
            print(f"{name}: at most {seconds:.0f} s", flush=True)
            for findings in follow(name, args, Path(folder), seconds):
                report["parts"][name] = findings
                write(report, output)
            print(
                f"{name}: {findings['status']} after {findings['seconds']:.0f} s, "
                f"{len(findings['rows'])} figures",
                flush=True,
            )
    print((output / f"{FILE}.md").read_text())
    parts = report["parts"].values()
    above = [row for part in parts for row in part["rows"] if row.get("ok") is False]
    broken = set(report["parts"].get("parity", {}).get("failures", ()))
    failed = [part for part in parts if part["status"] == "failed"]
    if above or broken or failed:
        return 1
    return 0


def follow(name: str, args, folder: Path, seconds: float) -> Iterator[dict]:
    """Run one part and yield its findings: every two seconds while it runs, and at its end."""
    path = folder / f"{name}.json"
    started = time.monotonic()
    # Items in which the process died.
    without: list[str] = []
    status = "failed"
    findings: dict = {"rows": [], "failures": {}, "facts": {}}
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_VISIBLE_DEVICES": "0"} | os.environ

    def state(status: str) -> dict:
        nonlocal findings
        if path.exists():
            findings = json.loads(path.read_text())
        return findings | {
            "status": status,
            "seconds": time.monotonic() - started,
            "left_out": without,
        }

    for _ in range(1 + RESTARTS):
        left = seconds - (time.monotonic() - started)
        # No item starts in the last tenth of the time, which is left for the item then running.
        command = [sys.executable, __file__, "--part", name, "--scale", args.scale]
        command += ["--result", str(path), "--seconds", str(left - 0.1 * seconds)]
        command += ["--without", *without]
        process = subprocess.Popen(command, env=environment)
        try:
            while process.poll() is None:
                if time.monotonic() - started > seconds:
                    process.kill()
                    process.wait()
                    yield state("stopped by its time limit")
                    return
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=2)
                yield state("running")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        last = state("")
        if last.get("finished"):
            status = "done as far as its time went"
            if last["complete"]:
                status = "done"
            break
        item = last.get("under_way")
        if item is None or item in without:
            break
        # The process died in it: the next one leaves it out.
        without.append(item)
    yield state(status)


def machine(scale: str) -> dict:
    """Return the device, its memory, and the versions of the libraries that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    import torch
    from loss import machine as described

    packages = {}
    for name in (
        "torch",
        "triton",
        "transformers",
        "accelerate",
        "liger-kernel",
        "cut-cross-entropy",
        "quack-kernels",
        "flash-attn",
    ):
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
    facts = {"device": described(DEVICES[scale]), "packages": packages}
    if scale == "gpu":
        properties = torch.cuda.get_device_properties(0)
        facts |= {"memory_gib": properties.total_memory / 2**30, "cuda": torch.version.cuda}
    return facts


# The page -------------------------------------------------------------------------------------

# Columns of each part: name in the rows, heading, format.
COLUMNS = {
    "parity": [
        ("check", "check", ""),
        ("figure", "figure", ""),
        ("value", "value", ".3g"),
        ("bound", "bound", ".3g"),
        ("ok", "within", ""),
    ],
    "loss": [
        ("K", "K", ","),
        ("U", "U", ","),
        ("D", "D", ","),
        ("V", "V", ","),
        ("method", "method", ""),
        ("ms", "ms", ",.2f"),
        ("low", "least", ",.2f"),
        ("high", "most", ",.2f"),
        ("mib", "peak MiB", ",.0f"),
        ("loss_error", "error: loss", ".1e"),
        ("outputs_error", "d outputs", ".1e"),
        ("embedding_error", "d embedding", ".1e"),
    ],
    "steps": [
        ("model", "model", ""),
        ("V", "V", ","),
        ("length", "length", ""),
        ("batch", "batch", ""),
        ("method", "step", ""),
        ("head", "head", ""),
        ("ms", "ms", ",.1f"),
        ("low", "least", ",.1f"),
        ("high", "most", ",.1f"),
        ("over_headless", "over headless", ".2f"),
        ("tokens_per_second", "tokens/s", ",.0f"),
        ("gib", "peak GiB", ".1f"),
    ],
}
WORDS = {
    "parity": "No figure may exceed its bound.",
    "loss": "Medians of forward and backward; methods take turns. Errors are relative to float64 "
    "on the same inputs. A row without figures did not fit into memory.",
    "steps": "Medians of forward, backward, clipping and AdamW; methods take turns. A row without "
    "figures did not fit into the memory left by the methods still running.",
}


def write(report: dict, output: Path) -> None:
    """Write the report and its page, each whole at any moment."""
    texts = {f"{FILE}.json": json.dumps(report, indent=1), f"{FILE}.md": page(report)}
    for name, text in texts.items():
        aside = output / f"{name}.aside"
        aside.write_text(text + "\n")
        aside.replace(output / name)


def page(report: dict) -> str:
    """Return the page of a report."""
    versions = report["machine"]["packages"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = ["# On one device", "", f"{report['machine']['device']}. {packages}.", ""]
    for name, part in report["parts"].items():
        lines += lines_of_part(name, part)
    return "\n".join(lines)


def lines_of_part(name: str, part: dict) -> list[str]:
    """Return the lines of a part: its table, its facts and what failed."""
    from headless_trainer.presentation.tables import markdown

    lines = [f"## {name}", "", f"{part['status']}, {part['seconds']:.0f} s. {WORDS[name]}", ""]
    if part["rows"]:
        columns = COLUMNS[name]
        cells = [[cell(row.get(key), form) for key, _, form in columns] for row in part["rows"]]
        lines += [markdown([heading for _, heading, _ in columns], cells), ""]
    for fact, value in part["facts"].items():
        if isinstance(value, dict):
            reasons = [f"{item}: {reason}" for item, reason in value.items()]
            value = "; ".join(reasons) or "nothing"
        lines.append(f"- {fact}: {value}")
    for item, error in part["failures"].items():
        lines.append(f"- FAILED {item}: {' '.join(error.split())}")
    for item in part["left_out"]:
        lines.append(f"- FAILED {item}: the process was lost with it")
    if part["status"] == "failed":
        error = part.get("error", "The process ended without an error message.")
        lines += ["", "```", error.rstrip(), "```"]
    return [*lines, ""]


def cell(value, form: str) -> str:
    """Format a figure, which a row may lack."""
    if value is None:
        return ""
    if value is True:
        return "yes"
    if value is False:
        return "NO"
    return format(value, form)


if __name__ == "__main__":
    main()
