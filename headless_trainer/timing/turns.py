"""Lets objectives take turns, each in a process of its own, and collects what they measure.

A process of its own has a peak of memory of its own, can run out of memory alone, and loads the
libraries once. Only one process computes at a time, and it gives its model back after its turn, so
that a comparison needs no more memory than a training.
"""

import ctypes
import dataclasses
import gc
import itertools
import logging
import multiprocessing
import signal
import statistics
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from transformers.utils import logging as transformers_logging

from ..console.log_lines import quiet_libraries
from .step_arguments import TRUNK
from .timed_training import Turn, TurnRequest, take_turn

ROUNDS = 3  # for which the time is divided; more follow while they fit
LONGEST_REASON = 500  # characters


@dataclasses.dataclass
class Measurements:
    """What was measured of one objective.

    Attributes:
        seconds: of a step, at each reading, for each round.
        peak_mib: largest peak memory.
        parameters: number of trained parameters.
        has_free_head: whether a headless model can have a head without training; None of others.
        reason: why the objective was not timed, or not in every round; None if it was.
    """

    seconds: list[list[float]] = dataclasses.field(default_factory=list)
    peak_mib: float = 0.0
    parameters: int = 0
    has_free_head: bool | None = None
    reason: str | None = None

    @property
    def was_timed(self) -> bool:
        return self.reason is None and bool(self.seconds)

    @property
    def median(self) -> float:
        """Median seconds of a step."""
        return statistics.median(second for turn in self.seconds for second in turn)

    def add(self, turn: Turn | str) -> None:
        """Add a turn, or the reason why there is none."""
        if isinstance(turn, str):
            self.reason = turn
            return
        self.seconds.append(turn.seconds)
        self.peak_mib = max(self.peak_mib, turn.peak_mib)
        self.parameters = turn.parameters
        self.has_free_head = turn.has_free_head

    @property
    def spread(self) -> float:
        """Difference between the slowest and the fastest round, over the median.

        Of a single round, that between its readings. A quarter at each end does not count, so that
        one interruption among many readings is forgiven.
        """
        if len(self.seconds) > 1:
            compared = [statistics.median(turn) for turn in self.seconds]
        else:
            (compared,) = self.seconds
        # Of fewer than four, none is left out.
        quarter = len(compared) // 4
        middle = sorted(compared)[quarter : len(compared) - quarter]
        return (middle[-1] - middle[0]) / self.median

    def time_over(self, other: "Measurements") -> float:
        """Return this median time over that of another, round by round, and of these the median."""
        ratios = [
            statistics.median(this_turn) / statistics.median(other_turn)
            for this_turn, other_turn in zip(self.seconds, other.seconds, strict=False)
        ]
        return statistics.median(ratios)


def measure(
    request_of: Callable[[str, float], TurnRequest],
    names: list[str],
    seconds: float,
    rounds: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Measurements]:
    """Let objectives take turns for about ``seconds``, at least one round.

    Args:
        request_of: makes the request of an objective from its name and the seconds of a turn.
        names: of the objectives.
        seconds: of the whole comparison.
        rounds: their number, instead of as many as fit into ``seconds``.
        tell: is told what happens now.

    Returns:
        The measurements by name, with a reason for each objective that could not be timed.
    """
    started = time.perf_counter()
    measured = {name: Measurements() for name in names}
    with processes_of(names) as processes:
        # Starting the processes has taken a part of the time.
        left = started + seconds - time.perf_counter()
        turn_seconds = left / (ROUNDS * len(names))
        for number in itertools.count(1):
            round_started = time.perf_counter()
            waiting = [name for name in names if measured[name].reason is None]
            for name in waiting:
                tell(f"round {number}: {name}")
                answer = processes[name].ask(request_of(name, turn_seconds))
                measured[name].add(answer)
            # Another round follows if it would end in time, as long as the last one took.
            now = time.perf_counter()
            next_end = now + (now - round_started)
            if rounds is None:
                is_last = next_end > started + seconds
            else:
                is_last = number == rounds
            if is_last or not waiting:
                break
    return measured


def head_share(of: Measurements, measured: dict[str, Measurements]) -> float | None:
    """Return the share of a step that its head takes, beyond the trunk; None if that is unknown."""
    trunk = measured.get(TRUNK)
    if trunk is None or not trunk.was_timed or not of.was_timed or of is trunk:
        return None
    return max(0.0, 1 - trunk.time_over(of))


class TurnProcess:
    """A process that takes the turns of one objective."""

    def __init__(self) -> None:
        # A fork could not use a GPU.
        context = multiprocessing.get_context("spawn")
        self._connection, other_end = context.Pipe()
        self._folder = tempfile.TemporaryDirectory()  # of the parent, which outlives the process
        self._process = context.Process(
            target=answer_requests, args=(other_end, self._folder.name), daemon=True
        )
        self._process.start()
        # With the copy here open, the end of the process would not be noticed.
        other_end.close()

    def wait_until_ready(self) -> None:
        """Wait for the libraries: while one process loads them, no other can be timed."""
        try:
            self._connection.recv()
        except EOFError:
            # It has ended, which the first request will tell.
            self._process.join()

    def ask(self, request: TurnRequest) -> Turn | str:
        """Return the turn that the process took, or the reason why there is none."""
        try:
            self._connection.send(request)
            return self._connection.recv()
        except (EOFError, OSError):
            # Its end of the connection is closed, so the process has ended or is about to.
            self._process.join()
            code = self._process.exitcode
            if code == -signal.SIGKILL:
                return "its process was killed, most likely because the memory was full"
            return f"its process ended with code {code}"

    def stop(self) -> None:
        """End the process at once: at SIGTERM, its training would write a checkpoint."""
        self._process.kill()
        self._process.join()
        self._connection.close()
        self._folder.cleanup()


@contextmanager
def processes_of(names: list[str]) -> Iterator[dict[str, TurnProcess]]:
    """Start a process for each name; on exit, end them all."""
    processes: dict[str, TurnProcess] = {}
    try:
        for name in names:
            processes[name] = TurnProcess()
        for process in processes.values():
            process.wait_until_ready()
        yield processes
    finally:
        for process in processes.values():
            process.stop()


def answer_requests(connection, folder: str) -> None:
    """Take the turns that are asked for, until the other end is closed.

    Runs in a process of its own; ``folder`` is for what trainings write.
    """
    # The parent ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What training says to its user is said for each objective in each round here.
    logging.disable(logging.WARNING)
    transformers_logging.set_verbosity_error()
    quiet_libraries()
    connection.send("ready")
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(turn_or_reason(request, folder))


def turn_or_reason(request: TurnRequest, folder: str) -> Turn | str:
    """Take a turn; if it fails, return the reason in one line."""
    try:
        return take_turn(request, folder)
    except Exception as error:
        return reason_of(error)
    finally:
        free_memory()


def reason_of(error: Exception) -> str:
    """Return the message of an error in one line, with its type unless it was raised for users."""
    message = textwrap.shorten(str(error).rstrip("."), LONGEST_REASON, placeholder=" ...")
    if type(error).__name__ == "OutOfMemoryError":
        return f"out of memory: {message}"
    if isinstance(error, ValueError):
        return message
    return f"{type(error).__name__}: {message}"


def free_memory() -> None:
    """Return the memory of a finished turn to the machine, for the next process."""
    gc.collect()
    return_heap_to_system()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def return_heap_to_system() -> None:
    """Give back the free pages of the C library's heap, where it can do that: glibc can.

    It keeps tensors of up to 32 MB for later allocations, which a process that waits for its next
    turn does not make. Of a model of many layers that is as much as its weights and moments.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
