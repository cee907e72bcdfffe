"""Write files that are complete or absent, and delete folders."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INCOMPLETE_NAME = ".incomplete"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write a file under, and rename it at the end, so that the file is always complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + INCOMPLETE_NAME)
    aside.unlink(missing_ok=True)  # left by a killed process, or a link to another place
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    with whole_file(path) as aside:
        aside.write_bytes(content)


def delete_folder(path: Path) -> None:
    """Delete a folder with all it holds; of a link to a folder, which someone has put elsewhere, only the link."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def check_writable(folder: str | Path, argument: str = "output_dir") -> None:
    """Make the folder for results that ``argument`` names, or refuse early one that is not writable."""
    if not str(folder):
        raise ValueError(f"{argument} is '' but it must name a folder.")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # one for each process
    except OSError as error:
        raise PermissionError(
            f"{argument} {str(folder)!r} cannot be written to ({error}). Choose another."
        ) from error
