"""End a run whose rows can no longer be read, with an error that says why and how to go on."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..checkpoints.finding import last_whole_checkpoint
from ..signals.workers import is_lost_worker

# Where torch begins to quote the traceback of an error in a worker process.
QUOTED_TRACEBACK = "Original Traceback"


class ReadingError(OSError, ValueError):
    """The rows of a run can no longer be read: a malformed row, a lost disk, a lost worker process.

    An OSError, because its cause lies outside the program; a ValueError too, since datasets raise
    either.
    """


def is_of_reading(error: BaseException) -> bool:
    """Return whether an error of a data loader has its cause outside the program."""
    return isinstance(error, OSError | ValueError | EOFError) or is_lost_worker(error)


def is_broken_connection(error: BaseException) -> bool:
    """Return whether an error is that of a connection whose other end is gone."""
    return isinstance(error, ConnectionError | EOFError)


def reason_of(error: BaseException, workers: int) -> str:
    """Say in one line why rows could not be read, without the traceback of a worker process.

    Args:
        error: the error of a data loader.
        workers: ``dataloader_num_workers`` of the run.
    """
    text = str(error).strip()
    # A worker that could still report its error.
    quotes_worker = QUOTED_TRACEBACK in text
    if is_lost_worker(error) or (workers and is_broken_connection(error) and not quotes_worker):
        summary = (text or type(error).__name__).splitlines()[0].rstrip(". ")
        return (
            f"dataloader_num_workers is {workers} but a worker process has ended ({summary}), as "
            "when memory runs out: lower it"
        )
    if quotes_worker:
        # The last line of a traceback is the error's class and message.
        text = text.splitlines()[-1].partition(": ")[2] or text
    return (text or type(error).__name__).rstrip(".")


def ending_error(fault: Exception, run_dir: str, workers: int, is_stream: bool) -> Exception:
    """Return the error that ends a run: how to go on, and from where, after a ``fault`` of reading.

    Any other fault, such as one in the code of a dataset, is returned itself, with a note.
    """
    checkpoint = last_whole_checkpoint(run_dir)
    where = "No checkpoint was written before it"
    how = ""
    if checkpoint is not None:
        where = f"The last checkpoint is {checkpoint!r}"
        how = " Mend that, then resume with --resume_from_checkpoint last"
        if is_stream:
            how += (
                "; if a file had to be changed, with --ignore_data_skip too, which restarts the "
                "stream"
            )
        how += "."
    if not is_of_reading(fault):
        fault.add_note(f"{where}.")
        return fault
    ending = ReadingError(f"{reason_of(fault, workers)}. {where}.{how}")
    ending.__cause__ = fault
    return ending


@contextmanager
def lost_workers_named(run_dir: str, workers: int, is_stream: bool) -> Iterator[None]:
    """Replace torch's error for a lost worker process, which may come at any moment of a run."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost_worker(error):
            raise
        raise ending_error(error, run_dir, workers, is_stream) from error
