#!/usr/bin/env python
"""A training run killed with SIGKILL again and again, at random moments, against the same run never killed.

    python benchmarks/faults.py
    python benchmarks/faults.py --kills 3 --task mlm --dataloader_num_workers 2

Every life of the run is the same command, `run_pretrain.py ... --resume_from_checkpoint auto`. A kill falls while the process
starts or loads its checkpoint, between two steps, or, in half of the lives, while a checkpoint is being written. After each
kill every checkpoint is read: those under their own names must be whole, those that were whole before must be there
unchanged, but for those that --save_total_limit lets go. At the end weights and losses must be those of the run that was
never killed, bit for bit. Exit status 0 if all of that held.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import load_file

from headless_trainer.runtime.checkpoints import INCOMPLETE_NAME, checkpoints_in
from headless_trainer.runtime.manifest import find_fault

ROOT = Path(__file__).resolve().parents[1]
SAVE_STEPS, LIMIT = 10, 3
STEPS_A_LIFE = 80  # more than a life takes, so that the run does not end before it has been killed often enough
MODELS = {
    "clm": ("gpt2", "bpe", '{"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}'),
    "mlm": (
        "bert",
        "wordpiece",
        '{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}',
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--task", choices=MODELS, default="clm")
    parser.add_argument("--dataloader_num_workers", type=int, default=0)
    parser.add_argument("--streaming", action="store_true", help="read the corpus as a stream, shuffled by a buffer")
    args = parser.parse_args()
    data = "a stream" if args.streaming else "rows"
    print(f"{args.kills} kills, {args.task} on {data}, a checkpoint every {SAVE_STEPS} steps, ", end="")
    print(f"save_total_limit {LIMIT}; ", end="")
    print(f"{os.cpu_count()} CPU cores ({platform.machine()}), torch {torch.__version__}\n", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(not fault_run(args, Path(folder), started))


def fault_run(args, folder: Path, started: float) -> bool:
    """Both runs and their comparison; whether all held."""
    run = Run(args, folder)
    first = time.monotonic()
    process = run.start(folder / "whole")
    while not checkpoints_in(folder / "whole") and process.poll() is None:
        time.sleep(0.01)
    startup = time.monotonic() - first
    assert process.wait() == 0, (folder / "log").read_text()
    print(
        f"never killed: {run.steps} steps in {time.monotonic() - first:.0f} s, {startup:.1f} s to its first checkpoint"
    )

    moments, ledger, places = random.Random(args.seed), Ledger(folder / "killed"), Counter()
    for number in range(1, args.kills + 1):
        leftover = half_written(folder / "killed")
        process = run.start(folder / "killed")
        plan = wait_for_moment(folder / "killed", process, moments, startup)
        assert process.poll() is None, f"it ended before kill {number}: {(folder / 'log').read_text()}"
        process.send_signal(signal.SIGKILL)
        process.wait()
        half = half_written(folder / "killed")
        if half not in (None, leftover):
            files = sum(path.is_file() for path in half[0].rglob("*"))
            plan, place = "writing a checkpoint", f"writing {half[0].name}, {files} files of it"
        else:
            place = plan
        places[plan] += 1
        print(f"kill {number:>2}: {place:<40}{ledger.inspect()}", flush=True)
    assert run.start(folder / "killed").wait() == 0, (folder / "log").read_text()
    print(f"to the end: {ledger.inspect()}")

    same = same_numbers(folder / "whole", folder / "killed", run.steps)
    where = ", ".join(f"{count} {place}" for place, count in sorted(places.items()))
    kept = f"{ledger.rotated} of them rotated, {ledger.lost} lost, {ledger.changed} changed, {ledger.broken} found not whole"
    numbers = f"weights and {run.steps} losses {'bit-identical to' if same else 'DIFFERENT from'} the run never killed"
    print(
        f"\n{args.kills} kills ({where}); {len(ledger.known) + ledger.rotated} checkpoints seen whole, {kept}; {numbers}; ",
        end="",
    )
    print(f"{time.monotonic() - started:.0f} s in all")
    return same and not (ledger.lost or ledger.changed or ledger.broken)


class Run:
    """The command that every life of a run is."""

    def __init__(self, args, folder: Path):
        self.steps = args.kills * STEPS_A_LIFE + 5
        words, corpus = [f"w{index:03d}" for index in range(300)], random.Random(1)
        lines = (" ".join(corpus.choices(words, k=corpus.randint(4, 20))) for _ in range(400))
        (folder / "lines.txt").write_text("\n".join(lines) + "\n")
        model, tokenizer, config = MODELS[args.task]
        self.command = [
            *(sys.executable, "run_pretrain.py", "--model_type", model, "--config_overrides", config, "--use_cpu"),
            *("--train_tokenizer", "--tokenizer_type", tokenizer, "--vocab_size", "400", "--max_seq_length", "16"),
            *("--train_file", folder / "lines.txt", "--preprocessing_num_workers", "1", "--negatives", "step"),
            *("--max_steps", self.steps, "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2"),
            *("--save_steps", SAVE_STEPS, "--save_total_limit", LIMIT, "--logging_steps", "1"),
            *("--dataloader_num_workers", args.dataloader_num_workers, "--disable_tqdm", "true"),
            *("--resume_from_checkpoint", "auto"),
            *(("--streaming", "--shuffle_buffer_size", "50") if args.streaming else ()),
        ]
        cores = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
        self.environment, self.log = os.environ | cores, folder / "log"

    def start(self, output_dir: Path) -> subprocess.Popen:
        command = [str(part) for part in [*self.command, "--output_dir", output_dir]]
        with open(self.log, "w") as log:
            return subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=log, stderr=log)


class Ledger:
    """Which checkpoints were found whole, and what became of them."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.known: dict[str, str] = {}
        self.rotated = self.lost = self.changed = self.broken = 0

    def inspect(self) -> str:
        """Read every checkpoint, compare with what was there before, and say so in a few words."""
        found = checkpoints_in(self.run_dir)
        faults = {path.name: fault for path in found if (fault := find_fault(path))}
        self.broken += len(faults)
        now = {path.name: digest(path) for path in found if path.name not in faults}
        missing = [name for name in self.known if name not in now]
        rotated = [name for name in missing if sum(steps(other) > steps(name) for other in now) >= LIMIT]
        self.rotated += len(rotated)
        self.lost += len(missing) - len(rotated)
        self.changed += sum(now.get(name, known) != known for name, known in self.known.items())
        self.known = now
        newest = max(now, key=steps, default="no checkpoint yet")
        trouble = [f"{name}: {fault}" for name, fault in faults.items()] + [
            f"lost {name}" for name in missing if name not in rotated
        ]
        return f"{len(now)} whole, the last {newest}" + "".join(f"; {words}" for words in trouble)


def steps(name: str) -> int:
    return int(name.rpartition("-")[2])


def digest(folder: Path) -> str:
    """One checksum for all of a folder, made here, so as not to trust what is under test."""
    whole = hashlib.blake2b()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole.update(path.name.encode() + path.read_bytes())
    return whole.hexdigest()


def wait_for_moment(run_dir: Path, process: subprocess.Popen, moments: random.Random, startup: float) -> str:
    """Sleep until a life is to end, and say what it is then supposed to be doing."""
    kind = moments.choices(["starting", "training", "writing"], [15, 35, 50])[0]
    progress, delay = moments.randint(1, 3), moments.random()
    newest = newest_step(run_dir)
    until = time.monotonic() + startup * delay
    # A start that is quicker than the first one was must not have the run end before it is killed.
    wanted = newest + SAVE_STEPS * (1 if kind == "starting" else progress)
    while newest_step(run_dir) < wanted and process.poll() is None:
        if kind == "starting" and time.monotonic() > until:
            return kind
        time.sleep(0.002)
    if kind == "writing":
        while half_written(run_dir) is None and process.poll() is None:
            time.sleep(0.0005)
        time.sleep(0.03 * delay)
    else:
        time.sleep(0.3 * delay)
    return "training"


def newest_step(run_dir: Path) -> int:
    return max((steps(path.name) for path in checkpoints_in(run_dir)), default=0)


def half_written(run_dir: Path) -> tuple[Path, int] | None:
    """The checkpoint that is, or was, being written, and when its folder last changed: it stays until the next one is."""
    for path in checkpoints_in(run_dir / INCOMPLETE_NAME):
        try:
            return path, path.stat().st_ctime_ns
        except FileNotFoundError:  # it has just been renamed
            return None
    return None


def same_numbers(whole: Path, killed: Path, steps: int) -> bool:
    """Whether two runs ended with the same weights and went through the same losses, bit for bit."""
    want, got = (load_file(folder / "model.safetensors") for folder in (whole, killed))
    if want.keys() != got.keys() or not all(torch.equal(want[name], got[name]) for name in want):
        return False
    histories = [json.loads((folder / "trainer_state.json").read_text())["log_history"] for folder in (whole, killed)]
    want, got = ({log["step"]: log["loss"] for log in history if "loss" in log} for history in histories)
    return want == got and len(want) == steps


if __name__ == "__main__":
    main()
