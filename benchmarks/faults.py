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
SAVE_STEPS = 10
LIMIT = 3
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
SIGNALS = {"kill": signal.SIGKILL, "signal": signal.SIGTERM}
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
    if not table.all_held:
        sys.exit(1)


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
        rows = [(attack, run, len(tries), sum(tries)) for (attack, run), tries in self.rows.items()]
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
    for number, (attack, activity) in enumerate(zip(attacks, activities, strict=True), start=1):
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
    result = "DIFFERENT from"
    if is_same:
        result = "bit-identical to"
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
        processes = send(self.process, SIGNALS[attack])
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            send(self.process, signal.SIGKILL)
            self.process.wait()
        psutil.wait_procs(processes)
        left_half_written = half_written(run_dir)
        # Whatever it was to do, the kill may have come while it wrote.
        if attack == "kill" and left_half_written not in (None, self.half_written_before):
            checkpoint, _ = left_half_written
            files = sum(path.is_file() for path in checkpoint.rglob("*"))
            activity = f"writing {checkpoint.name}, {files} files so far"
        held, report = self.ledger.inspect()
        if attack == "signal" and not self._left_checkpoint():
            held = False
            report += f"; NO CHECKPOINT AFTER THE SIGNAL; output:\n{self.run.said()[-3000:]}"
        return held, f"{activity:<42}{report}"

    def _left_checkpoint(self) -> bool:
        """Whether the life ended by the signal, with a checkpoint that it did not begin with."""
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
        architecture, processes, flags = VARIANTS[variant]
        model, tokenizer, config = architecture
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
        if resume:
            command += ["--resume_from_checkpoint", "auto"]
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
        """Return the console output of the last life."""
        return self.log.read_text()


class Ledger:
    """The checkpoints that were found complete, and what became of them."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.known: dict[str, str] = {}
        self.rotated = 0

    def inspect(self) -> tuple[bool, str]:
        """Read every checkpoint, and return whether all held since the last time, and a summary."""
        faults = {}
        digests = {}
        for checkpoint in checkpoints_in(self.run_dir):
            fault = find_fault(checkpoint)
            if fault:
                faults[checkpoint.name] = fault
            else:
                digests[checkpoint.name] = digest(checkpoint)
        missing = [name for name in self.known if name not in digests]
        rotated = []
        for name in missing:
            newer = [other for other in digests if steps(other) > steps(name)]
            # So many newer ones allow --save_total_limit to delete it.
            if len(newer) >= LIMIT:
                rotated.append(name)
        self.rotated += len(rotated)
        trouble = [f"{name}: {fault}" for name, fault in faults.items()]
        trouble += [f"lost {name}" for name in missing if name not in rotated]
        for name, known in self.known.items():
            if digests.get(name, known) != known:
                trouble.append(f"changed {name}")
        self.known = digests
        newest = max(digests, key=steps, default="no checkpoint yet")
        summary = "; ".join(
            [f"{len(digests)} complete, last {newest}", *(words.upper() for words in trouble)]
        )
        return not trouble, summary


def steps(name: str) -> int:
    """Return the optimizer steps in the name of a checkpoint."""
    return int(name.rpartition("-")[2])


def digest(folder: Path) -> str:
    """Return a checksum of all files of a folder, without relying on the code under test."""
    whole = hashlib.blake2b()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole.update(path.name.encode() + path.read_bytes())
    return whole.hexdigest()


def wait_for_moment(
    run_dir: Path, process: subprocess.Popen, activity: str, moments: random.Random, startup: float
) -> None:
    """Sleep until the moment to disturb a life: while it starts, trains or writes a checkpoint."""
    checkpoints_before = moments.randint(1, 3)
    delay = moments.random()
    if activity == "starting":
        # A life that starts faster than the first one must still be disturbed before the run ends.
        checkpoints_before = 1
    last_step = newest_step(run_dir) + SAVE_STEPS * checkpoints_before
    until = time.monotonic() + startup * delay
    while newest_step(run_dir) < last_step and process.poll() is None:
        if activity == "starting" and time.monotonic() > until:
            return
        time.sleep(0.002)
    if activity == "writing":
        while half_written(run_dir) is None and process.poll() is None:
            time.sleep(0.0005)
        time.sleep(0.03 * delay)
    else:
        time.sleep(0.3 * delay)


def newest_step(run_dir: Path) -> int:
    """Return the optimizer steps of a run's newest checkpoint, 0 without one."""
    return max((steps(path.name) for path in checkpoints_in(run_dir)), default=0)


def half_written(run_dir: Path) -> tuple[Path, int] | None:
    """Return the half-written checkpoint, if any, and when its folder changed last."""
    try:
        for path in checkpoints_in(run_dir / INCOMPLETE_NAME):
            return path, path.stat().st_ctime_ns
    except FileNotFoundError:
        # It has just been renamed.
        pass
    return None


def final_weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """Read the weights of a finished run, those of its adapter if it trains one."""
    path = run_dir / "adapter_model.safetensors"
    if not path.is_file():
        path = run_dir / "model.safetensors"
    return load_file(path)


def losses_of_steps(run_dir: Path) -> dict[int, float]:
    """Return the logged losses of a run, by step."""
    history = json.loads((run_dir / "trainer_state.json").read_text())["log_history"]
    return {log["step"]: log["loss"] for log in history if "loss" in log}


def same_numbers(whole: Path, killed: Path, steps: int) -> bool:
    """Return whether two runs have the same final weights and the same losses, bit for bit."""
    weights_of_whole = final_weights(whole)
    weights_of_killed = final_weights(killed)
    if weights_of_whole.keys() != weights_of_killed.keys():
        return False
    for name, weight in weights_of_whole.items():
        if not torch.equal(weight, weights_of_killed[name]):
            return False
    losses_of_whole = losses_of_steps(whole)
    return losses_of_whole == losses_of_steps(killed) and len(losses_of_whole) == steps


# Damaged files, a second run, a full disk -----------------------------------------------------


def damage_files(folder: Path, flips: int, moments: random.Random, table: Table) -> None:
    """Damage each file of the newer of two checkpoints: a run must resume from the older one."""
    run = Run(folder, "rows", 2 * SAVE_STEPS)
    assert run.start(folder / "damaged", resume=False).wait() == 0, run.said()
    # Every skipped checkpoint causes one.
    logging.disable(logging.WARNING)
    newest, before = checkpoints_in(folder / "damaged")

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[moments.randrange(len(content))] ^= 1 << moments.randrange(8)
        path.write_bytes(content)

    def cut_in_half(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    def replace_by_folder(path: Path) -> None:
        path.unlink()
        path.mkdir()

    ways = {
        "deleted": Path.unlink,
        "emptied": lambda path: path.write_bytes(b""),
        "cut in half": cut_in_half,
        "a byte longer": lambda path: path.write_bytes(path.read_bytes() + b" "),
        "a folder instead": replace_by_folder,
    }
    for number in range(flips):
        ways[f"bit {number} flipped"] = flip
    # A list, since each damage changes the folder.
    names = [
        path.relative_to(newest)
        for path in sorted(newest.rglob("*"))
        # People may edit a card.
        if path.is_file() and path.name != "README.md"
    ]
    for name in names:
        not_noticed = []
        for way, damage in ways.items():
            # JSON may end in a space.
            if name.name == "manifest.json" and way == "a byte longer":
                continue
            shutil.copytree(newest, folder / "aside")
            damage(newest / name)
            held = checkpoint_to_resume("auto", folder / "damaged") == str(before)
            if not held:
                not_noticed.append(way)
            table.add("a damaged file", str(name), held)
            shutil.rmtree(newest)
            os.replace(folder / "aside", newest)
        result = "skipped each time"
        if not_noticed:
            result = f"NOT NOTICED: {', '.join(not_noticed)}"
        print(f"damaged {name}: {result}", flush=True)
    assert checkpoint_to_resume("auto", folder / "damaged") == str(newest)


def start_twice(folder: Path, table: Table) -> None:
    """Start a second run in the folder of a first, which goes on: it is refused by name."""
    run = Run(folder, "rows", 10 * STEPS_A_LIFE)
    other = Run(folder, "rows", 10 * STEPS_A_LIFE)
    other.log = folder / "other_log"
    first = run.start(folder / "shared")
    while not checkpoints_in(folder / "shared"):
        assert first.poll() is None, run.said()
        time.sleep(0.01)
    for number in (1, 2):
        status = other.start(folder / "shared").wait()
        output = other.said()
        is_refused = status == 1 and str(first.pid) in output and "Traceback" not in output
        goes_on = first.poll() is None
        table.add("a second run in the same folder", "rows", is_refused and goes_on)
        print(f"second run {number}: {output.strip().splitlines()[-1]}", flush=True)
    send(first, signal.SIGKILL)
    first.wait()
    start_in_two_threads(run, folder / "threads", table)
    third = run.start(folder / "shared")
    held = third.wait() == 0 and find_fault(checkpoints_in(folder / "shared")[0]) is None
    table.add("a run after the first one was killed", "rows", held)


def start_in_two_threads(run: Run, output_dir: Path, table: Table) -> None:
    """Start the same run in two threads of one process: one of them is refused."""
    # A thread does not show the SystemExit with which a command ends.
    code = "import sys; from concurrent.futures import ThreadPoolExecutor; "
    code += "from headless_trainer.cli.pretrain import main; "
    code += "futures = [ThreadPoolExecutor(1).submit(main, sys.argv[1:]) for _ in range(2)]; "
    code += "print([repr(future.exception()) for future in futures])"
    flags = run.command[run.command.index("run_pretrain.py") + 1 :]
    command = [sys.executable, "-c", code, *flags, "--output_dir", output_dir]
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, env=run.environment, capture_output=True, text=True
    )
    is_refused = "is being written to by" in done.stdout
    is_complete = find_fault(checkpoints_in(output_dir)[0]) is None
    table.add("a second run in a thread", "rows", is_refused and is_complete)


def fill_disk(folder: Path, table: Table) -> None:
    """Limit file sizes at a checkpoint and at the last save: one line, and nothing half written."""
    model = "model.safetensors"
    whole = Run(folder, "rows", 2)
    assert whole.start(folder / "size", resume=False).wait() == 0, whole.said()
    limit = (folder / "size" / model).stat().st_size // 2

    def shrink() -> None:
        # Writes then fail as on a full disk.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    for where, flags in (("at a checkpoint", []), ("at the last save", ["--save_strategy", "no"])):
        run = Run(folder, "rows", SAVE_STEPS)
        output = folder / where.replace(" ", "_")
        status = run.start(output, *flags, resume=False, before=shrink).wait()
        files = [path for path in output.rglob("*") if path.is_file()]
        left = [path.name for path in files if path.stat().st_size == 0]
        left += [path.name for path in files if path.name == model]
        left += [path.name for path in checkpoints_in(output)]
        held = status == 1 and "Traceback" not in run.said() and not left
        table.add(f"a full disk {where}", "rows", held)
        last = run.said().strip().splitlines()[-1]
        print(f"full disk {where}: status {status}, left: {left or 'nothing'}: {last}", flush=True)


if __name__ == "__main__":
    main()
