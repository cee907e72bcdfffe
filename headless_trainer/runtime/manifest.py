"""Checksums of a checkpoint: they tell a whole one from one that was cut short, damaged or half deleted."""

import hashlib
import json
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

MANIFEST_NAME = "manifest.json"
TRAINER_STATE_NAME = "trainer_state.json"  # transformers' own name: importing its trainer for it would take seconds
CARD_NAME = "README.md"  # not checked: people edit it, and scores are added to it later; no run resumes from it
ALGORITHM = "sha256"  # the processor's own instructions make it the fastest of hashlib's on most machines

# What this process found of folders that have not changed since: checking a checkpoint means reading all of it.
_found: dict[tuple, str | None] = {}


def write_manifest(folder: str | Path, **facts: Any) -> None:
    """Write size and checksum of every file in a folder but its card beside them, and have all of it reach the disk.

    The checksums are taken from what the operating system still holds in memory, right after the files were written.

    Args:
        folder: of a checkpoint that is complete but for its manifest.
        facts: what else is kept with it, under these names; JSON types.
    """
    folder = Path(folder)
    names = sorted(path.relative_to(folder).as_posix() for path in _files(folder))
    with ThreadPoolExecutor() as pool:  # both hashing and waiting for the disk let other threads run
        entries = pool.map(lambda name: _measure_and_sync(folder / name), names)
        files = dict(zip(names, entries, strict=True))
    with open(folder / MANIFEST_NAME, "w", encoding="utf-8") as file:
        json.dump({"algorithm": ALGORITHM, **facts, "files": files}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        sync_folder(path)
    _found[_signature(folder)] = None


def read_facts(folder: str | Path) -> dict[str, Any]:
    """The facts that `write_manifest` kept, or nothing if the folder has no manifest."""
    path = Path(folder) / MANIFEST_NAME
    if not path.is_file():
        return {}
    return {name: value for name, value in json.loads(path.read_text(encoding="utf-8")).items() if name != "files"}


def find_fault(folder: str | Path, contents: bool = True) -> str | None:
    """What is wrong with a checkpoint, or None if it is whole.

    One without a manifest, as `transformers.Trainer` writes them, is judged by its structure: its state parses, and the
    files of weights and states are as long as they say.

    Args:
        folder: of the checkpoint.
        contents: compare the checksums too, which reads every file; without it, names and sizes alone are compared.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return "it is not a folder"
    signature = _signature(folder)
    if signature in _found:
        return _found[signature]
    if not (folder / MANIFEST_NAME).is_file():
        return _structural_fault(folder)
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        algorithm, files = manifest["algorithm"], manifest["files"]
        expected = {name: (entry["size"], entry["checksum"]) for name, entry in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"{MANIFEST_NAME} cannot be read ({type(error).__name__}: {error})"
    fault = _size_fault(folder, expected)
    if fault is None and contents:
        with ThreadPoolExecutor() as pool:
            faults = pool.map(lambda name: _content_fault(folder, name, algorithm, expected[name][1]), expected)
            fault = next(filter(None, faults), None)
    if fault is not None or contents:
        _found[signature] = fault
    return fault


def sync_folder(folder: str | Path) -> None:
    """Have the names in a folder reach the disk, so that a rename in it survives a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def total_size(folder: str | Path) -> int:
    """Bytes of all files in a folder, its manifest included."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def _files(folder: Path) -> list[Path]:
    unchecked = folder / MANIFEST_NAME, folder / CARD_NAME
    return [path for path in folder.rglob("*") if path.is_file() and path not in unchecked]


def _signature(folder: Path) -> tuple:
    stats = sorted((str(path), path.stat()) for path in folder.rglob("*") if path.is_file())
    return str(folder.resolve()), *((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats)


def _measure_and_sync(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, ALGORITHM).hexdigest()
        os.fsync(file.fileno())
        return {"size": os.fstat(file.fileno()).st_size, "checksum": checksum}


def _size_fault(folder: Path, expected: dict[str, tuple[int, str]]) -> str | None:
    for name, (size, _) in expected.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        found = (folder / name).stat().st_size
        if found != size:
            return f"{name} has {found:,} bytes instead of {size:,}"
    return None


def _content_fault(folder: Path, name: str, algorithm: str, checksum: str) -> str | None:
    try:
        with open(folder / name, "rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
    except (OSError, ValueError) as error:  # ValueError: an algorithm that this Python does not have
        return f"{name} cannot be read ({type(error).__name__}: {error})"
    return None if found == checksum else f"{name} is not what was written: its {algorithm} differs"


def _structural_fault(folder: Path) -> str | None:
    try:
        json.loads((folder / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{TRAINER_STATE_NAME} is missing"
    except (OSError, ValueError) as error:
        return f"{TRAINER_STATE_NAME} cannot be read ({type(error).__name__}: {error})"
    for path in sorted(_files(folder)):
        name = path.relative_to(folder).as_posix()
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt"):
                    pass  # the header must fit the length of the file
            elif path.suffix in (".bin", ".pt", ".pth") and not zipfile.is_zipfile(path):
                return f"{name} is cut short: it does not end as torch ends its files"
        except (OSError, SafetensorError) as error:
            return f"{name} cannot be read ({type(error).__name__}: {error})"
    return None
