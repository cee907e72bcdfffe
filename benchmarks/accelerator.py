#!/usr/bin/env python
"""Check that an accelerator computes correctly and measure what it costs, in one command.

    python benchmarks/accelerator.py --output_dir runs/accelerator
    python benchmarks/accelerator.py --output_dir runs/accelerator --scale cpu --minutes 5

On one GPU it takes at most nine minutes and writes accelerator.json and accelerator.md. The parts, most important first:

- parity: the checks of benchmarks/parity.py on this device
- loss: forward and backward of the loss alone, of the paper's form, and of every installed exact head over the vocabulary
  (torch's, Liger's, Cut Cross-Entropy), each with its error relative to float64
- steps: whole training steps of four models: trunk alone, headless, vanilla with the fastest of those heads, transformers' own
  model, and a decoder's headless steps also in pools

Each part runs in a process of its own for its share of the time. The page names whatever fails, and the rest still runs.
"""

import argparse
import contextlib
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
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

# Shares of the time. Later parts get the time that a part leaves.
PARTS = {"parity": 0.25, "loss": 0.35, "steps": 0.4}
FILE = "accelerator"
RESTARTS = 5  # of a part that lost its device; each leaves out the item that was running


# One part, in its own process --------------------------------------------------------------------------------------------


class Part:
    """The findings of one part so far, in a file that is rewritten after each of them.

    Args:
        path: the file. Its content is kept, so that a restarted part continues.
        scale: ``gpu`` or ``cpu``.
        seconds: time after which no new item is started.
        without: items to leave out.
    """

    def __init__(self, path: Path, scale: str, seconds: float, without: list[str]):
        self.path, self.scale, self.without = path, scale, without
        self.deadline = time.monotonic() + seconds
        self.device = "cuda" if scale == "gpu" else "cpu"
        self.found = {"rows": [], "failures": {}, "facts": {}, "complete": True, "under_way": None}
        if path.exists():
            self.found |= json.loads(path.read_text())

    def save(self) -> None:
        aside = self.path.with_suffix(".aside")
        aside.write_text(json.dumps(self.found))
        aside.replace(self.path)

    def add(self, **row) -> None:
        self.found["rows"].append(row)
        self.save()

    def has(self, **values) -> bool:
        return any(values.items() <= row.items() for row in self.found["rows"])

    def late(self, deadline: float | None = None) -> bool:
        """Return whether there is no time for another item; if so, mark the part as incomplete."""
        if time.monotonic() < min(self.deadline, deadline or self.deadline):
            return False
        self.found["complete"] = False
        self.save()
        return True

    @contextlib.contextmanager
    def attempt(self, item: str, may_not_fit: bool = True) -> Iterator[dict]:
        """Run one item and record its error, if any; yield a dict with ``ran`` and ``fits`` (into memory).

        Running out of memory is an error only of an item that fitted before.
        """
        outcome = {"ran": False, "fits": True}
        self.found["under_way"] = item
        self.save()
        try:
            yield outcome
            outcome["ran"] = True
        except Exception as error:
            too_large = (
                type(error).__name__ == "OutOfMemoryError"
            )  # torch's, by name: a part need not load torch
            if too_large and may_not_fit:
                outcome["fits"] = False
            else:
                self.found["failures"][item] = f"{type(error).__name__}: {error}"[:500]
            traceback.clear_frames(error.__traceback__)  # they hold the tensors
            self.free()  # raises again if this process has lost the device: it ends here, with this item under way
        self.found["under_way"] = None
        self.save()

    def free(self) -> None:
        """Collect garbage and release the device's cached memory."""
        gc.collect()
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def parity(part: Part) -> None:
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
        part.found["facts"][f"seconds of {name}"] = round(time.monotonic() - started, 1)


# K, D, V; the sizes of most interest come first
FIRST_SIZES = [
    (16384, 768, 50304), (65536, 768, 50304), (16384, 2048, 256000), (65536, 2048, 256000), (4096, 768, 32000)
]  # fmt: skip
LOSS_SIZES = {
    "gpu": FIRST_SIZES
    + [
        (count, width, vocab_size)
        for vocab_size in (128000, 256000, 32000)
        for width in (768, 2048)
        for count in (16384, 65536, 4096, 1024)
        if (count, width, vocab_size) not in FIRST_SIZES
    ],
    "cpu": [(1024, 128, 8000), (2048, 256, 16000), (4096, 128, 8000)],
}


def loss(part: Part) -> None:
    import torch
    from loss import alternate, contrastive, extra_memory, heads, make_inputs, methods, run_once
    from parity import in_float64, loss_and_gradients, relative

    from headless_trainer.objective.losses import vocabulary_cross_entropy

    dtype = torch.bfloat16 if part.scale == "gpu" else torch.float32
    part.found["facts"] |= {
        "dtype": str(dtype).removeprefix("torch."),
        "left out": heads(part.device)[1],
    }
    exact_methods = {
        "K x U": functools.partial(contrastive, backend="chunked"),
        "K x V": functools.partial(vocabulary_cross_entropy, backend="chunked"),
    }
    for size in LOSS_SIZES[part.scale]:
        where = dict(zip("KDV", size, strict=True))
        if part.has(**where):
            continue
        if part.late():
            return
        inputs, exact, memory, errors, too_large = (
            make_inputs(size, dtype, part.device),
            {},
            {},
            {},
            [],
        )
        for name, method in exact_methods.items():
            with part.attempt(f"{name} in float64 at {size}"):
                exact[name] = loss_and_gradients(method, in_float64(inputs))
        for name, method in methods(part.device, dtype).items():
            if name in part.without or part.late():
                continue
            with part.attempt(name) as outcome:
                want = exact.get("K x V" if name.startswith("K x V") else "K x U")
                got = loss_and_gradients(method, inputs)
                found = (
                    [relative(*pair) for pair in zip(got, want, strict=True)]
                    if want
                    else [None] * 3
                )
                del got
                bytes_more = extra_memory(name, method, inputs) if part.device == "cuda" else None
            if outcome["ran"]:
                errors[name], memory[name] = found, bytes_more
            elif not outcome["fits"]:
                too_large.append(name)
        runs = {
            name: functools.partial(run_once, methods(part.device, dtype)[name], inputs)
            for name in memory
        }
        with part.attempt(f"times at {size}", may_not_fit=False):
            seconds = alternate(runs, 3 if part.scale == "cpu" or math.prod(size) > 1e13 else 5)
            distinct = len(inputs[1].unique())
            for name, values in seconds.items():
                part.add(
                    **where, U=distinct, method=name, fits=True, ms=1e3 * statistics.median(values),
                    low=1e3 * min(values), high=1e3 * max(values), mib=memory[name],
                    loss_error=errors[name][0], outputs_error=errors[name][1], embedding_error=errors[name][2],
                )  # fmt: skip
        for name in too_large:
            part.add(**where, method=name, fits=False)
        del inputs, exact
        part.free()


STEPS = {
    # Smaller batches wait for the host. XLM-R's largest step fits only beside few others.
    "gpu": [
        dict(
            model="pythia-70m",
            vocab_size=50304,
            length=512,
            bf16=True,
            start=64,
            last=128,
            pool_size=[16384],
        ),
        dict(
            model="xlm-roberta-base",
            vocab_size=250002,
            length=512,
            bf16=True,
            start=128,
            last=128,
            pool_size=[],
        ),
        dict(
            model="bert-base",
            vocab_size=50304,
            length=512,
            bf16=True,
            start=128,
            last=128,
            pool_size=[],
        ),
        dict(
            model="gemma-3-270m",
            vocab_size=262144,
            length=512,
            bf16=True,
            start=16,
            last=16,
            pool_size=[],
        ),
    ],
    # A program does not survive running out of CPU memory, so a CPU gets two batch sizes.
    "cpu": [
        dict(model=model, vocab_size=8000, length=64, bf16=False, start=4, last=8, pool_size=[128])
        for model in ("tiny-encoder", "tiny-decoder")
    ],
}


def steps(part: Part) -> None:
    from step import METHODS

    part.found["facts"]["dtype"] = "bfloat16" if part.scale == "gpu" else "float32"
    compared = {"methods": [each for each in METHODS if "rows" not in each]}
    problems = STEPS[part.scale]
    for index, problem in enumerate(problems):
        if part.late():
            return
        now = time.monotonic()
        sweep(
            part,
            argparse.Namespace(**problem | compared),
            now + (part.deadline - now) / (len(problems) - index),
        )
        gc.collect()


class ChosenHead:
    """A replacement for the loss of `VanillaTrainer` that calls one of the compared heads."""

    head = None

    def __call__(self, hidden, target_ids, weight, bias=None, *, softcap=None, reduction="mean"):
        import torch

        assert softcap is None  # the compared kernels have none
        if torch.is_autocast_enabled(hidden.device.type):
            dtype = torch.get_autocast_dtype(hidden.device.type)
            hidden, weight = hidden.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden, target_ids, weight, bias, reduction=reduction)


def sweep(part: Part, problem, deadline: float) -> None:
    """Time the steps of one model at batch sizes that double from the first to the last, or until no method fits."""
    import torch
    from loss import alternate, heads
    from step import MODELS, config_of, draw_ids, methods_of, timed

    device, name = torch.device(part.device), f"{problem.model}, V = {problem.vocab_size:,}"
    chosen, all_heads = ChosenHead(), heads(part.device)[0]
    chosen.head = all_heads["cross_entropy"]
    with (
        mock.patch("headless_trainer.trainers.vanilla.vocabulary_cross_entropy", chosen),
        tempfile.TemporaryDirectory() as folder,
    ):
        made, state = {}, {}
        for method, build in methods_of(problem).items():
            if f"{name}: {method}" in part.without:
                continue
            with part.attempt(f"{name}: {method}") as outcome:
                before = allocated(device)
                step = build(problem, folder, device)
                step({"input_ids": draw_ids(problem, 1)})
            if outcome["ran"]:
                made[method], state[method] = step, allocated(device) - before
            step = None
        size = problem.start
        while made and size <= problem.last:
            if part.late(deadline):
                break
            where = {
                "model": problem.model,
                "V": problem.vocab_size,
                "length": problem.length,
                "batch": size,
            }
            if part.has(**where):
                size *= 2
                continue
            ids = draw_ids(problem, size)
            peaks, used, too_large = {}, None, []
            for method in list(made):
                names = [None]
                if method == "our vanilla":
                    masked = (
                        MODELS[problem.model][0] == "mlm"
                    )  # these models also have a bias in the head
                    count = int(0.15 * ids.numel()) if masked else ids.numel()
                    shape = count, config_of(problem).hidden_size, problem.vocab_size
                    names = fastest(part, all_heads, shape, biased=masked)
                for head in names:  # try the next one if a head needs too much memory
                    if head is not None:
                        chosen.head = all_heads[head]
                    with part.attempt(f"{name}: {method}") as outcome:
                        peaks[method] = (
                            peak_of(made[method], {"input_ids": ids}, device) + state[method]
                        )
                    if outcome["ran"]:
                        used = head or used
                        break
                    peaks.pop(method, None)
                if not outcome["ran"]:
                    if not outcome["fits"]:
                        too_large.append(method)
                    del made[method]
                    part.free()
            seconds = {}
            with part.attempt(f"{name}: times at batch {size}", may_not_fit=False):
                runs = {
                    m: functools.partial(timed, step, {"input_ids": ids}, device)
                    for m, step in made.items()
                }
                seconds = alternate(runs, 3)
            step = runs = None
            for method, values in seconds.items():
                middle = statistics.median(values)
                ratios = [
                    own / base
                    for own, base in zip(values, seconds.get("headless", values), strict=True)
                ]
                part.add(
                    **where, method=method, fits=True, head=used if method == "our vanilla" else None, ms=1e3 * middle,
                    low=1e3 * min(values), high=1e3 * max(values), tokens_per_second=ids.numel() / middle,
                    over_headless=statistics.median(ratios) if "headless" in seconds else None,
                    gib=peaks[method] / 2**30 if part.device == "cuda" else None,
                )  # fmt: skip
            for method in too_large:
                part.add(**where, method=method, fits=False)
            size *= 2


def fastest(part: Part, found: dict, size: tuple[int, int, int], biased: bool) -> list[str]:
    """Return the heads that run at a size, fastest first, by their own forward and backward, timed in turn."""
    import torch
    from loss import alternate, make_inputs, run_once

    inputs = make_inputs(
        size, torch.bfloat16 if part.scale == "gpu" else torch.float32, part.device
    )
    bias = torch.zeros_like(inputs[2][:, 0]).requires_grad_() if biased else None
    runs = {}
    for name, head in found.items():
        item = f"{name} as the head{', with a bias' if biased else ''}"
        if item in part.without or item in part.found["failures"]:
            continue
        run = functools.partial(run_once, functools.partial(head, bias=bias), inputs)
        with part.attempt(item) as outcome:
            run()
        if outcome["ran"]:
            runs[name] = run
    seconds = {name: statistics.median(values) for name, values in alternate(runs, 3).items()}
    return sorted(seconds, key=seconds.get)


def allocated(device) -> int:
    import torch

    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def peak_of(step, batch, device) -> int:
    """Return the bytes that a step needs at its peak beyond those in use before it; also warm up."""
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


# All parts ---------------------------------------------------------------------------------------------------------------


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

        found = torch.cuda.is_available()
        if args.scale == "gpu" and not found:
            parser.error("--scale is gpu but torch sees no GPU here: use --scale cpu.")
        args.scale = "gpu" if found else "cpu"
    args.minutes = args.minutes or (9 if args.scale == "gpu" else 5)
    # A run ended from outside, as by a time limit, must still report what it measured.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_all(args))


def run_part(args) -> None:
    part = Part(Path(args.result), args.scale, float(args.seconds), args.without)
    try:
        globals()[args.part](part)
    except Exception:
        part.found["error"] = traceback.format_exc(limit=-4)
        part.save()
        raise
    part.found.pop("error", None)
    part.found["finished"] = True
    part.save()


def run_all(args) -> int:
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
            for found in follow(name, args, Path(folder), seconds):
                report["parts"][name] = found
                write(report, output)
            print(
                f"{name}: {found['status']} after {found['seconds']:.0f} s, {len(found['rows'])} figures",
                flush=True,
            )
    print((output / f"{FILE}.md").read_text())
    parts = report["parts"].values()
    above = [row for part in parts for row in part["rows"] if row.get("ok") is False]
    broken = set(report["parts"].get("parity", {}).get("failures", ()))
    return int(bool(above or broken) or any(part["status"] == "failed" for part in parts))


def follow(name: str, args, folder: Path, seconds: float) -> Iterator[dict]:
    """Run one part and yield its findings: every two seconds while it runs, and at its end."""
    path, started, without, status = folder / f"{name}.json", time.monotonic(), [], "failed"
    found: dict = {"rows": [], "failures": {}, "facts": {}}
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_VISIBLE_DEVICES": "0"} | os.environ

    def state(status: str) -> dict:
        nonlocal found
        if path.exists():
            found = json.loads(path.read_text())
        return found | {
            "status": status,
            "seconds": time.monotonic() - started,
            "left_out": without,
        }

    for _ in range(1 + RESTARTS):
        left = seconds - (time.monotonic() - started)
        # No item starts in the last tenth of the time, which is left for the item then running.
        command = [
            sys.executable,
            __file__,
            "--part",
            name,
            "--result",
            str(path),
            "--scale",
            args.scale,
        ]
        command += ["--seconds", str(left - 0.1 * seconds), "--without", *without]
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
            status = "done" if last["complete"] else "done as far as its time went"
            break
        item = last.get("under_way")
        if item is None or item in without:
            break
        without.append(item)  # the process died in it: restart without it
    yield state(status)


def machine(scale: str) -> dict:
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
        "flash-attn",
    ):
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
    facts = {"device": described("cuda" if scale == "gpu" else "cpu"), "packages": packages}
    if scale == "gpu":
        properties = torch.cuda.get_device_properties(0)
        facts |= {"memory_gib": properties.total_memory / 2**30, "cuda": torch.version.cuda}
    return facts


# The page ----------------------------------------------------------------------------------------------------------------

# Columns of each part: name in the rows, heading, format.
COLUMNS = {
    "parity": [("check", "check", ""), ("figure", "figure", ""), ("value", "value", ".3g"), ("bound", "bound", ".3g"),
               ("ok", "within", "")],
    "loss": [("K", "K", ","), ("U", "U", ","), ("D", "D", ","), ("V", "V", ","), ("method", "method", ""), ("ms", "ms", ",.2f"),
             ("low", "least", ",.2f"), ("high", "most", ",.2f"), ("mib", "peak MiB", ",.0f"),
             ("loss_error", "error: loss", ".1e"), ("outputs_error", "d outputs", ".1e"),
             ("embedding_error", "d embedding", ".1e")],
    "steps": [("model", "model", ""), ("V", "V", ","), ("length", "length", ""), ("batch", "batch", ""), ("method", "step", ""),
              ("head", "head", ""), ("ms", "ms", ",.1f"), ("low", "least", ",.1f"), ("high", "most", ",.1f"),
              ("over_headless", "over headless", ".2f"), ("tokens_per_second", "tokens/s", ",.0f"), ("gib", "peak GiB", ".1f")],
}  # fmt: skip
WORDS = {
    "parity": "No figure may exceed its bound.",
    "loss": "Medians of forward and backward; methods take turns. Errors are relative to float64 on the same inputs. A row "
    "without figures did not fit into memory.",
    "steps": "Medians of forward, backward, clipping and AdamW; methods take turns. A row without figures did not fit into the "
    "memory left by the methods still running.",
}


def write(report: dict, output: Path) -> None:
    for name, text in (
        (f"{FILE}.json", json.dumps(report, indent=1)),
        (f"{FILE}.md", page(report)),
    ):
        aside = output / f"{name}.aside"
        aside.write_text(text + "\n")
        aside.replace(output / name)


def page(report: dict) -> str:
    from headless_trainer.presentation.tables import markdown

    packages = ", ".join(
        f"{name} {number}" for name, number in report["machine"]["packages"].items()
    )
    lines = ["# On one device", "", f"{report['machine']['device']}. {packages}.", ""]
    for name, part in report["parts"].items():
        lines += [f"## {name}", "", f"{part['status']}, {part['seconds']:.0f} s. {WORDS[name]}", ""]
        if part["rows"]:
            columns = COLUMNS[name]
            cells = [[cell(row.get(key), form) for key, _, form in columns] for row in part["rows"]]
            lines += [markdown([heading for _, heading, _ in columns], cells), ""]
        for what, value in part["facts"].items():
            if isinstance(value, dict):
                value = (
                    "; ".join(f"{item}: {reason}" for item, reason in value.items()) or "nothing"
                )
            lines.append(f"- {what}: {value}")
        lines += [
            f"- FAILED {item}: {' '.join(error.split())}"
            for item, error in part["failures"].items()
        ]
        lines += [f"- FAILED {item}: the process was lost with it" for item in part["left_out"]]
        if part["status"] == "failed":
            lines += [
                "",
                "```",
                part.get("error", "The process ended without an error message.").rstrip(),
                "```",
            ]
        lines.append("")
    return "\n".join(lines)


def cell(value, form: str) -> str:
    if value is None:
        return ""
    return {True: "yes", False: "NO"}[value] if isinstance(value, bool) else format(value, form)


if __name__ == "__main__":
    main()
