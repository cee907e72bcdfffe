#!/usr/bin/env python
"""Disturb training runs in every possible way, and print a table of what was tried and survived.

    python benchmarks/faults.py                              # 6 kills and 6 signals for each of four variants, and the rest
    python benchmarks/faults.py --kills 100 --signals 40
    python benchmarks/faults.py --variants rows --attacks kill --kills 3

Each variant runs undisturbed, and again with disturbances at random moments: SIGKILL while it starts or loads its checkpoint,
between two steps or, in half of the cases, while it writes a checkpoint; or SIGTERM to all of its processes at once, as
launchers and schedulers send it. Each life, from a start to the next disturbance, is the same command, `run_pretrain.py ...
--resume_from_checkpoint auto`. After each life every checkpoint is read: those under their final names must be complete, those
that were complete before must be unchanged, except those that --save_total_limit deletes, and a SIGTERM must have left a new
one. At the end, weights and losses must equal those of the undisturbed run, bit for bit.

Then every file of a checkpoint is damaged in turn, and the run must resume from the checkpoint before it; a second run starts
in the folder of a first, in another process and in another thread; and files cannot grow beyond a limit, as on a full disk.

The exit status is 0 if all of this held.
"""

import argparse
import hashlib
import json
import logging
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

from headless_trainer.checkpoints.finding import checkpoint_to_resume, checkpoints_in
from headless_trainer.files.manifest import find_fault
from headless_trainer.files.whole import INCOMPLETE_NAME
from headless_trainer.presentation.tables import markdown

ROOT = Path(__file__).resolve().parents[1]
SAVE_STEPS, LIMIT = 10, 3
STEPS_A_LIFE = (
    80  # more than a life trains, so that the run does not end before its last disturbance
)
DECODER = ("gpt2", "bpe", '{"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}')
WIDTH = (
    '{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}'
)
ENCODER = ("bert", "wordpiece", WIDTH)
# Model, number of processes and further flags of each variant.
VARIANTS = {
    "rows": (DECODER, 1, []),
    "workers": (ENCODER, 1, ["--dataloader_num_workers", "2"]),
    "stream": (
        DECODER,
        1,
        ["--streaming", "--shuffle_buffer_size", "50", "--dataloader_num_workers", "1"],
    ),
    "processes": (DECODER, 2, []),
}
ATTACKS = ("kill", "signal", "damage", "second run", "full disk")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=24, help="SIGKILLs over all variants")
    parser.add_argument("--signals", type=int, default=24, help="SIGTERMs over all variants")
    parser.add_argument(
        "--flips", type=int, default=20, help="bits flipped in each file, one at a time"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    args = parser.parse_args()
    print(f"a checkpoint every {SAVE_STEPS} steps, save_total_limit {LIMIT}, ", end="")
    print(
        f"{os.cpu_count()} CPU cores ({platform.machine()}), torch {torch.__version__}\n",
        flush=True,
    )
    started, table = time.monotonic(), Table()
    with tempfile.TemporaryDirectory() as folder:
        for index, variant in enumerate(args.variants):
            lives = []
            for attack, total in (("kill", args.kills), ("signal", args.signals)):
                share = total // len(args.variants) + (index < total % len(args.variants))
                lives += [attack] * share if attack in args.attacks else []
            if lives:
                random.Random(args.seed).shuffle(lives)
                (Path(folder) / variant).mkdir()
                disturb(variant, lives, Path(folder) / variant, random.Random(args.seed), table)
        calm = Path(folder) / "calm"
        calm.mkdir()
        if "damage" in args.attacks:
            damage_files(calm, args.flips, random.Random(args.seed), table)
        others = {"second run": start_twice, "full disk": fill_disk}
        for attack in (attack for attack in others if attack in args.attacks):
            others[attack](calm, table)
    print(f"\n{table}\n\n{time.monotonic() - started:.0f} s in all")
    sys.exit(not table.all_held)


class Table:
    """The tries of each attack on each variant, and how many of them held."""

    def __init__(self):
        self.rows: dict[tuple[str, str], list[bool]] = {}

    def add(self, attack: str, run: str, held: bool) -> None:
        self.rows.setdefault((attack, run), []).append(held)

    @property
    def all_held(self) -> bool:
        return all(all(tries) for tries in self.rows.values())

    def __str__(self) -> str:
        rows = [(*of, len(tries), sum(tries)) for of, tries in self.rows.items()]
        return markdown(["attack", "run", "tries", "survived"], rows) or "nothing was tried"


# Kills and signals ---------------------------------------------------------------------------------------------------------


def disturb(
    variant: str, lives: list[str], folder: Path, moments: random.Random, table: Table
) -> None:
    """Run a variant undisturbed, run it with disturbances, and compare the two."""
    run = Run(folder, variant, len(lives) * STEPS_A_LIFE + 5)
    first = time.monotonic()
    process = run.start(folder / "whole")
    while not checkpoints_in(folder / "whole") and process.poll() is None:
        time.sleep(0.01)
    startup = time.monotonic() - first
    assert process.wait() == 0, run.said()
    print(
        f"{variant}: undisturbed, {run.steps} steps in {time.monotonic() - first:.0f} s, ", end=""
    )
    print(f"{startup:.1f} s to its first checkpoint", flush=True)

    ledger = Ledger(folder / "disturbed")
    for number, attack in enumerate(lives, 1):
        leftover, before = half_written(ledger.run_dir), newest_step(ledger.run_dir)
        process = run.start(ledger.run_dir)
        kinds = (
            {"starting": 15, "training": 35, "writing": 50}
            if attack == "kill"
            else {"training": 1, "writing": 1}
        )
        kind = moments.choices(list(kinds), list(kinds.values()))[0]
        wait_for_moment(ledger.run_dir, process, kind, moments, startup)
        assert process.poll() is None, f"the run ended before attack {number}: {run.said()}"
        everyone = send(process, signal.SIGKILL if attack == "kill" else signal.SIGTERM)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            send(process, signal.SIGKILL)
            process.wait()
        psutil.wait_procs(everyone)
        half, place = half_written(ledger.run_dir), kind
        if attack == "kill" and half not in (None, leftover):
            place = f"writing {half[0].name}, {sum(path.is_file() for path in half[0].rglob('*'))} files so far"
        held, found = ledger.inspect()
        if attack == "signal" and not (
            newest_step(ledger.run_dir) > before and "Stopped by SIGTERM" in run.said()
        ):
            held, found = (
                False,
                found + f"; NO CHECKPOINT AFTER THE SIGNAL; output:\n{run.said()[-3000:]}",
            )
        table.add("SIGKILL" if attack == "kill" else "SIGTERM to all processes", variant, held)
        print(f"{variant}, {attack} {number:>3}: {place:<42}{found}", flush=True)
    assert run.start(ledger.run_dir).wait() == 0, run.said()
    ledger.inspect()
    same = same_numbers(folder / "whole", ledger.run_dir, run.steps)
    table.add("weights and losses at the end", variant, same)
    numbers = f"weights and {run.steps} losses {'bit-identical to' if same else 'DIFFERENT from'} the undisturbed run"
    print(
        f"{variant}: {len(ledger.known) + ledger.rotated} checkpoints found complete; {numbers}",
        flush=True,
    )


def send(process: subprocess.Popen, number: int) -> list[psutil.Process]:
    """Send a signal to a process and all its descendants, which launchers put into process groups of their own."""
    everyone = [psutil.Process(process.pid)]
    everyone += everyone[0].children(recursive=True)
    for each in everyone:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)
    return everyone


class Run:
    """A run, every life of which is the same command."""

    def __init__(self, folder: Path, variant: str, steps: int):
        (model, tokenizer, config), processes, flags = VARIANTS[variant]
        self.steps = steps
        words, corpus = [f"w{index:03d}" for index in range(300)], random.Random(1)
        lines = (" ".join(corpus.choices(words, k=corpus.randint(4, 20))) for _ in range(400))
        (folder / "lines.txt").write_text("\n".join(lines) + "\n")
        launcher = "-m torch.distributed.run --standalone --nproc_per_node".split()
        self.command = [
            sys.executable, *([*launcher, processes] if processes > 1 else []), "run_pretrain.py", "--use_cpu",
            *("--model_type", model, "--config_overrides", config, "--train_tokenizer", "--tokenizer_type", tokenizer),
            *("--vocab_size", "400", "--max_seq_length", "16", "--train_file", folder / "lines.txt"),
            *("--preprocessing_num_workers", "1", "--negatives", "step", "--max_steps", steps),
            *("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2", "--logging_steps", "1"),
            *("--save_steps", SAVE_STEPS, "--save_total_limit", LIMIT, "--disable_tqdm", "true", *flags),
        ]  # fmt: skip
        cores = {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(folder / "cache"),
        }
        self.environment, self.log = os.environ | cores, folder / "log"

    def start(
        self, output_dir: Path, *flags, resume: bool = True, before: Callable | None = None
    ) -> subprocess.Popen:
        """Start a life; its first process calls ``before`` first."""
        command = [*self.command, "--output_dir", output_dir, *flags]
        command += ["--resume_from_checkpoint", "auto"] if resume else []
        with open(self.log, "w") as log:
            return subprocess.Popen(
                [str(part) for part in command], cwd=ROOT, env=self.environment, stdout=log, stderr=log, preexec_fn=before
            )  # fmt: skip

    def said(self) -> str:
        return self.log.read_text()


class Ledger:
    """The checkpoints that were found complete, and what became of them."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.known: dict[str, str] = {}
        self.rotated = 0

    def inspect(self) -> tuple[bool, str]:
        """Read every checkpoint, compare with the last inspection, and return whether all is well and a short summary."""
        found = checkpoints_in(self.run_dir)
        faults = {path.name: fault for path in found if (fault := find_fault(path))}
        now = {path.name: digest(path) for path in found if path.name not in faults}
        missing = [name for name in self.known if name not in now]
        rotated = [
            name for name in missing if sum(steps(other) > steps(name) for other in now) >= LIMIT
        ]
        self.rotated += len(rotated)
        trouble = [f"{name}: {fault}" for name, fault in faults.items()]
        trouble += [f"lost {name}" for name in missing if name not in rotated]
        trouble += [
            f"changed {name}" for name, known in self.known.items() if now.get(name, known) != known
        ]
        self.known = now
        newest = max(now, key=steps, default="no checkpoint yet")
        return not trouble, f"{len(now)} complete, last {newest}" + "".join(
            f"; {words.upper()}" for words in trouble
        )


def steps(name: str) -> int:
    return int(name.rpartition("-")[2])


def digest(folder: Path) -> str:
    """Return one checksum of all files of a folder, computed here so as not to rely on the code under test."""
    whole = hashlib.blake2b()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole.update(path.name.encode() + path.read_bytes())
    return whole.hexdigest()


def wait_for_moment(
    run_dir: Path, process: subprocess.Popen, kind: str, moments: random.Random, startup: float
) -> None:
    """Sleep until the moment to disturb a life: while it starts, trains or writes a checkpoint."""
    progress, delay = moments.randint(1, 3), moments.random()
    newest = newest_step(run_dir)
    until = time.monotonic() + startup * delay
    # A life that starts faster than the first one must still be disturbed before the run ends.
    wanted = newest + SAVE_STEPS * (1 if kind == "starting" else progress)
    while newest_step(run_dir) < wanted and process.poll() is None:
        if kind == "starting" and time.monotonic() > until:
            return
        time.sleep(0.002)
    if kind == "writing":
        while half_written(run_dir) is None and process.poll() is None:
            time.sleep(0.0005)
        time.sleep(0.03 * delay)
    else:
        time.sleep(0.3 * delay)


def newest_step(run_dir: Path) -> int:
    return max((steps(path.name) for path in checkpoints_in(run_dir)), default=0)


def half_written(run_dir: Path) -> tuple[Path, int] | None:
    """Return the half-written checkpoint, which stays until the next is written, and when its folder last changed."""
    try:
        for path in checkpoints_in(run_dir / INCOMPLETE_NAME):
            return path, path.stat().st_ctime_ns
    except FileNotFoundError:  # it has just been renamed
        pass
    return None


def same_numbers(whole: Path, killed: Path, steps: int) -> bool:
    """Return whether two runs have the same final weights and the same losses, bit for bit."""
    want, got = (load_file(folder / "model.safetensors") for folder in (whole, killed))
    if want.keys() != got.keys() or not all(torch.equal(want[name], got[name]) for name in want):
        return False
    histories = [
        json.loads((folder / "trainer_state.json").read_text())["log_history"]
        for folder in (whole, killed)
    ]
    want, got = (
        {log["step"]: log["loss"] for log in history if "loss" in log} for history in histories
    )
    return want == got and len(want) == steps


# Damaged files, a second run, a full disk ----------------------------------------------------------------------------------


def damage_files(folder: Path, flips: int, moments: random.Random, table: Table) -> None:
    """Damage each file of the newer of two checkpoints in turn: a run must resume from the older one."""
    run = Run(folder, "rows", 2 * SAVE_STEPS)
    assert run.start(folder / "damaged", resume=False).wait() == 0, run.said()
    logging.disable(logging.WARNING)  # one for every skipped checkpoint
    newest, before = checkpoints_in(folder / "damaged")

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[moments.randrange(len(content))] ^= 1 << moments.randrange(8)
        path.write_bytes(content)

    ways = {
        "deleted": Path.unlink,
        "emptied": lambda path: path.write_bytes(b""),
        "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        "a byte longer": lambda path: path.write_bytes(path.read_bytes() + b" "),
        "a folder instead": lambda path: (path.unlink(), path.mkdir()),
    } | {f"bit {number} flipped": flip for number in range(flips)}
    # People may edit a card, and JSON may end in a space.
    files = (
        path for path in sorted(newest.rglob("*")) if path.is_file() and path.name != "README.md"
    )
    names = [path.relative_to(newest) for path in files]
    for name in names:
        found = []
        for way, damage in ways.items():
            if name.name == "manifest.json" and way == "a byte longer":
                continue
            shutil.copytree(newest, folder / "aside")
            damage(newest / name)
            held = checkpoint_to_resume("auto", folder / "damaged") == str(before)
            found += [] if held else [way]
            table.add("a damaged file", str(name), held)
            shutil.rmtree(newest)
            os.replace(folder / "aside", newest)
        print(
            f"damaged {name}: {'skipped each time' if not found else 'NOT NOTICED: ' + ', '.join(found)}",
            flush=True,
        )
    assert checkpoint_to_resume("auto", folder / "damaged") == str(newest)


def start_twice(folder: Path, table: Table) -> None:
    """Start a second run in a run's folder: refused with the first run's process id, while the first continues."""
    run, other = Run(folder, "rows", 10 * STEPS_A_LIFE), Run(folder, "rows", 10 * STEPS_A_LIFE)
    other.log = folder / "other_log"
    first = run.start(folder / "shared")
    while not checkpoints_in(folder / "shared"):
        assert first.poll() is None, run.said()
        time.sleep(0.01)
    for number in range(2):
        second = other.start(folder / "shared")
        refused = (
            second.wait() == 1
            and str(first.pid) in other.said()
            and "Traceback" not in other.said()
        )
        table.add("a second run in the same folder", "rows", refused and first.poll() is None)
        print(f"second run {number + 1}: {other.said().strip().splitlines()[-1]}", flush=True)
    send(first, signal.SIGKILL)
    first.wait()
    # A thread does not show the SystemExit with which a command ends.
    code = "import sys; from concurrent.futures import ThreadPoolExecutor; from headless_trainer.cli.pretrain import main; "
    code += "futures = [ThreadPoolExecutor(1).submit(main, sys.argv[1:]) for _ in range(2)]; "
    code += "print([repr(each.exception()) for each in futures])"
    start = run.command.index("run_pretrain.py")
    threads = [
        sys.executable,
        "-c",
        code,
        *run.command[start + 1 :],
        "--output_dir",
        folder / "threads",
    ]
    done = subprocess.run(
        [*map(str, threads)], cwd=ROOT, env=run.environment, capture_output=True, text=True
    )
    held = (
        find_fault(checkpoints_in(folder / "threads")[0]) is None
        and "is being written to by" in done.stdout
    )
    table.add("a second run in a thread", "rows", held)
    third = run.start(folder / "shared")
    held = third.wait() == 0 and find_fault(checkpoints_in(folder / "shared")[0]) is None
    table.add("a run after the first one was killed", "rows", held)


def fill_disk(folder: Path, table: Table) -> None:
    """Limit file sizes at a checkpoint and at the last save: one line, exit status 1, nothing half written left."""
    model = "model.safetensors"
    whole = Run(folder, "rows", 2)
    assert whole.start(folder / "size", resume=False).wait() == 0, whole.said()
    limit = (folder / "size" / model).stat().st_size // 2

    def shrink() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes then fail as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    for where, flags in (("at a checkpoint", []), ("at the last save", ["--save_strategy", "no"])):
        run, output = Run(folder, "rows", SAVE_STEPS), folder / where.replace(" ", "_")
        status = run.start(output, *flags, resume=False, before=shrink).wait()
        left = [
            path.name for path in output.rglob("*") if path.is_file() and path.stat().st_size == 0
        ]
        left += [path.name for path in output.rglob(model)] + [
            path.name for path in checkpoints_in(output)
        ]
        held = status == 1 and "Traceback" not in run.said() and not left
        table.add(f"a full disk {where}", "rows", held)
        last = run.said().strip().splitlines()[-1]
        print(f"full disk {where}: status {status}, left: {left or 'nothing'}: {last}", flush=True)


if __name__ == "__main__":
    main()
