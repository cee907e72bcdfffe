#!/usr/bin/env python
"""Disturb training runs in every possible way, and print a table of what was tried and survived.

    python benchmarks/faults.py    # 6 kills and 4 signals for each of nine variants, and the rest
    python benchmarks/faults.py --kills 100 --signals 40
    python benchmarks/faults.py --variants rows --attacks kill --kills 3

Each variant runs undisturbed, and again with disturbances. Half of a variant's lives or more end by
SIGKILL: while it starts or loads its checkpoint, between two steps, and while it writes a
checkpoint, equally often, in random order and at random moments. The others end by SIGTERM to all
processes at once, as launchers and schedulers send it, while it trains and while it writes.

Each life, from a start to the next disturbance, is the same command, `run_pretrain.py ...
--resume_from_checkpoint auto`. After each life every checkpoint is read: those under their final
names must be complete, those that were complete before must be unchanged, except those that
--save_total_limit deletes, and a SIGTERM must have left a new one. At the end, weights and losses
must equal those of the undisturbed run, bit for bit.

In the variant "link" the newest checkpoint is moved to another folder before each life, and a link
is left in its place. The run must resume through links, and delete links alone.

Then every file of a checkpoint is damaged in turn, and the run must resume from the checkpoint
before it; a second run starts in the folder of a first, in another process and in another thread;
and files cannot grow beyond a limit, as on a full disk.

The exit status is 0 if all of this held.
"""

import argparse
import hashlib
import itertools
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

import peft
import psutil
import torch
from safetensors.torch import load_file
from torch import nn

from headless_trainer import VanillaTrainer
from headless_trainer.checkpoints.finding import checkpoint_to_resume, checkpoints_in
from headless_trainer.files.manifest import find_fault
from headless_trainer.files.whole import INCOMPLETE_NAME
from headless_trainer.presentation.tables import markdown

ROOT = Path(__file__).resolve().parents[1]
SAVE_STEPS, LIMIT = 10, 3
# More than a life trains, so that the run does not end before its last disturbance.
STEPS_A_LIFE = 80
DECODER = ("gpt2", "bpe", '{"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}')
WIDTH = (
    '{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}'
)
ENCODER = ("bert", "wordpiece", WIDTH)
# Its files hold each expert apart, its model all experts in one weight: each loading converts them.
CONVERTED_WIDTH = (
    '{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, '
    '"num_key_value_heads": 2, "intermediate_size": 48, "num_local_experts": 4, '
    '"max_position_embeddings": 32}'
)
CONVERTED = ("mixtral", "bpe", CONVERTED_WIDTH)
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
    "sampled softmax": (DECODER, 1, ["--objective", "sampled_softmax"]),
    "vanilla": (ENCODER, 1, ["--objective", "vanilla"]),
    "adapter": (
        DECODER,
        1,
        ["--objective", "vanilla", "--trainer", "benchmarks.faults:WithAdapter"],
    ),
    "converted": (CONVERTED, 1, []),
    "link": (DECODER, 1, []),
}
NAMES_OF_ATTACKS = {"kill": "SIGKILL", "signal": "SIGTERM to all processes"}
# What a life is doing at the moment of each attack.
MOMENTS = {"kill": ("starting", "training", "writing"), "signal": ("training", "writing")}
ATTACKS = ("kill", "signal", "damage", "second run", "full disk")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=54, help="SIGKILLs over all variants")
    parser.add_argument("--signals", type=int, default=36, help="SIGTERMs over all variants")
    parser.add_argument(
        "--flips", type=int, default=20, help="bits flipped in each file, one at a time"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    args = parser.parse_args()
    print(
        f"a checkpoint every {SAVE_STEPS} steps, save_total_limit {LIMIT}, {os.cpu_count()} CPU "
        f"cores ({platform.machine()}), torch {torch.__version__}\n",
        flush=True,
    )
    started = time.monotonic()
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        for variant, attacks in lives_of_variants(args).items():
            if attacks:
                # A seed of its own, or all variants would be disturbed at the same moments.
                moments = random.Random(f"{args.seed} {variant}")
                moments.shuffle(attacks)
                (Path(folder) / variant).mkdir()
                disturb(variant, attacks, Path(folder) / variant, moments, table)
        calm = Path(folder) / "calm"
        calm.mkdir()
        if "damage" in args.attacks:
            damage_files(calm, args.flips, random.Random(args.seed), table)
        if "second run" in args.attacks:
            start_twice(calm, table)
        if "full disk" in args.attacks:
            fill_disk(calm, table)
    print(f"\n{table}\n\n{time.monotonic() - started:.0f} s in all")
    sys.exit(0 if table.all_held else 1)


def lives_of_variants(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the attacks that end the lives of each variant, an equal share of all."""
    lives: dict[str, list[str]] = {variant: [] for variant in args.variants}
    for attack, count in (("kill", args.kills), ("signal", args.signals)):
        if attack in args.attacks:
            for _, variant in zip(range(count), itertools.cycle(args.variants), strict=False):
                lives[variant].append(attack)
    return lives


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


# Kills and signals ----------------------------------------------------------------------------


class WithAdapter(VanillaTrainer):
    """Trains LoRA adapters in the attention of a GPT-2, whose own weights stay as they began."""

    def trained_part(self, model: nn.Module) -> nn.Module:
        settings = peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
        return peft.get_peft_model(model, settings)


def moments_in_turn(attacks: list[str], moments: random.Random) -> list[str]:
    """Return what each life is doing when it is attacked.

    Of each attack's `MOMENTS` there are equally many, in random order.
    """
    left: dict[str, list[str]] = {attack: [] for attack in MOMENTS}
    chosen = []
    for attack in attacks:
        if not left[attack]:
            left[attack] = moments.sample(MOMENTS[attack], len(MOMENTS[attack]))
        chosen.append(left[attack].pop())
    return chosen


def move_behind_link(run_dir: Path, elsewhere: Path) -> None:
    """Move the newest checkpoint of a run, as to another disk, and leave a link in its place."""
    newest = checkpoints_in(run_dir)[:1]
    if newest and not newest[0].is_symlink():
        elsewhere.mkdir(exist_ok=True)
        shutil.rmtree(elsewhere / newest[0].name, ignore_errors=True)
        shutil.move(newest[0], elsewhere / newest[0].name)
        newest[0].symlink_to(elsewhere / newest[0].name)


def disturb(
    variant: str, attacks: list[str], folder: Path, moments: random.Random, table: Table
) -> None:
    """Run a variant undisturbed, run it with disturbances, and compare the two."""
    run = Run(folder, variant, len(attacks) * STEPS_A_LIFE + 5)
    startup = run_undisturbed(run, variant, folder / "whole")
    ledger = Ledger(folder / "disturbed")
    elsewhere = folder / "elsewhere"
    activities = moments_in_turn(attacks, moments)
    for number, (attack, activity) in enumerate(zip(attacks, activities, strict=True), 1):
        if variant == "link":
            move_behind_link(ledger.run_dir, elsewhere)
        life = Life(run, ledger, startup)
        held, report = life.end(attack, activity, moments, number)
        table.add(NAMES_OF_ATTACKS[attack], variant, held)
        print(f"{variant}, {attack} {number:>3}: {report}", flush=True)
    assert run.start(ledger.run_dir).wait() == 0, run.said()
    ledger.inspect()
    is_same = same_numbers(folder / "whole", ledger.run_dir, run.steps)
    table.add("weights and losses at the end", variant, is_same)
    for moved in checkpoints_in(elsewhere):
        table.add("a checkpoint behind a link", variant, find_fault(moved) is None)
    result = "bit-identical to" if is_same else "DIFFERENT from"
    print(
        f"{variant}: {len(ledger.known) + ledger.rotated} checkpoints found complete; weights and "
        f"{run.steps} losses {result} the undisturbed run",
        flush=True,
    )


def run_undisturbed(run: "Run", variant: str, folder: Path) -> float:
    """Run a variant to its end, and return the seconds to its first checkpoint."""
    first = time.monotonic()
    process = run.start(folder)
    while not checkpoints_in(folder) and process.poll() is None:
        time.sleep(0.01)
    startup = time.monotonic() - first
    assert process.wait() == 0, run.said()
    print(
        f"{variant}: undisturbed, {run.steps} steps in {time.monotonic() - first:.0f} s, "
        f"{startup:.1f} s to its first checkpoint",
        flush=True,
    )
    return startup


class Life:
    """A life of a disturbed run, from its start to its attack."""

    def __init__(self, run: "Run", ledger: "Ledger", startup: float):
        self.run = run
        self.ledger = ledger
        self.startup = startup
        self.half_written_before = half_written(ledger.run_dir)
        self.newest_before = newest_step(ledger.run_dir)
        self.process = run.start(ledger.run_dir)

    def end(
        self, attack: str, activity: str, moments: random.Random, number: int
    ) -> tuple[bool, str]:
        """Attack the life while it does something, and return whether all held, and a report."""
        run_dir = self.ledger.run_dir
        wait_for_moment(run_dir, self.process, activity, moments, self.startup)
        assert self.process.poll() is None, f"it ended before attack {number}: {self.run.said()}"
        processes = send(self.process, signal.SIGKILL if attack == "kill" else signal.SIGTERM)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            send(self.process, signal.SIGKILL)
            self.process.wait()
        psutil.wait_procs(processes)
        half = half_written(run_dir)
        if attack == "kill" and half not in (None, self.half_written_before):
            files = sum(path.is_file() for path in half[0].rglob("*"))
            activity = f"writing {half[0].name}, {files} files so far"
        held, report = self.ledger.inspect()
        if attack == "signal" and not self._left_checkpoint():
            held = False
            report += f"; NO CHECKPOINT AFTER THE SIGNAL; output:\n{self.run.said()[-3000:]}"
        return held, f"{activity:<42}{report}"

    def _left_checkpoint(self) -> bool:
        is_newer = newest_step(self.ledger.run_dir) > self.newest_before
        return is_newer and "Stopped by SIGTERM" in self.run.said()


def send(process: subprocess.Popen, number: int) -> list[psutil.Process]:
    """Send a signal to a process and its descendants, which may be in groups of their own."""
    first = psutil.Process(process.pid)
    receivers = [first, *first.children(recursive=True)]
    for receiver in receivers:
        with suppress(psutil.NoSuchProcess):
            receiver.send_signal(number)
    return receivers


class Run:
    """A run, every life of which is the same command."""

    def __init__(self, folder: Path, variant: str, steps: int):
        (model, tokenizer, config), processes, flags = VARIANTS[variant]
        self.steps = steps
        corpus = random.Random(1)
        words = [f"w{index:03d}" for index in range(300)]
        lines = [" ".join(corpus.choices(words, k=corpus.randint(4, 20))) for _ in range(400)]
        (folder / "lines.txt").write_text("\n".join(lines) + "\n")
        launcher: list[str] = []
        if processes > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone"]
            launcher += ["--nproc_per_node", str(processes)]
        self.command = [
            sys.executable, *launcher, "run_pretrain.py", "--use_cpu",
            "--model_type", model, "--config_overrides", config,
            "--train_tokenizer", "--tokenizer_type", tokenizer, "--vocab_size", "400",
            "--max_seq_length", "16", "--train_file", folder / "lines.txt",
            "--preprocessing_num_workers", "1", "--negatives", "step", "--max_steps", steps,
            "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2",
            "--logging_steps", "1", "--save_steps", SAVE_STEPS, "--save_total_limit", LIMIT,
            "--disable_tqdm", "true", *flags,
        ]  # fmt: skip
        self.environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(folder / "cache"),
        }
        self.log = folder / "log"

    def start(
        self, output_dir: Path, *flags, resume: bool = True, before: Callable | None = None
    ) -> subprocess.Popen:
        """Start a life; its first process calls ``before`` first."""
        command = [*self.command, "--output_dir", output_dir, *flags]
        command += ["--resume_from_checkpoint", "auto"] if resume else []
        with open(self.log, "w") as log:
            return subprocess.Popen(
                [str(part) for part in command],
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=log,
                preexec_fn=before,
            )

    def said(self) -> str:
        return self.log.read_text()


class Ledger:
    """The checkpoints that were found complete, and what became of them."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.known: dict[str, str] = {}
        self.rotated = 0

    def inspect(self) -> tuple[bool, str]:
        """Read every checkpoint, and return whether all held since the last time, and a summary."""
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
    """Return a checksum of all files of a folder, without relying on the code under test."""
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
    """Return the half-written checkpoint, if any, and when its folder changed last."""
    try:
        for path in checkpoints_in(run_dir / INCOMPLETE_NAME):
            return path, path.stat().st_ctime_ns
    except FileNotFoundError:  # it has just been renamed
        pass
    return None


def final_weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """Read the weights of a finished run, those of its adapter if it trains one."""
    adapter = run_dir / "adapter_model.safetensors"
    return load_file(adapter if adapter.is_file() else run_dir / "model.safetensors")


def same_numbers(whole: Path, killed: Path, steps: int) -> bool:
    """Return whether two runs have the same final weights and the same losses, bit for bit."""
    want, got = (final_weights(folder) for folder in (whole, killed))
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


# Damaged files, a second run, a full disk -----------------------------------------------------


def damage_files(folder: Path, flips: int, moments: random.Random, table: Table) -> None:
    """Damage each file of the newer of two checkpoints: a run must resume from the older one."""
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
        result = "skipped each time"
        if found:
            result = f"NOT NOTICED: {', '.join(found)}"
        print(f"damaged {name}: {result}", flush=True)
    assert checkpoint_to_resume("auto", folder / "damaged") == str(newest)


def start_twice(folder: Path, table: Table) -> None:
    """Start a second run in the folder of a first, which goes on: it is refused by name."""
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
    code = "import sys; from concurrent.futures import ThreadPoolExecutor; "
    code += "from headless_trainer.cli.pretrain import main; "
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
    """Limit file sizes at a checkpoint and at the last save: one line, and nothing half written."""
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
