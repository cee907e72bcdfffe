"""Checksums that detect checkpoints that are truncated, damaged or partly deleted."""

import hashlib
import json
import os
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

MANIFEST_NAME = "manifest.json"
TOKEN_COUNTS_NAME = "token_counts.safetensors"
# In a checkpoint whose other weights are folded for other clients.
TRAINED_NAME = "trained_weights.safetensors"
# transformers' own name; importing its trainer for it would take seconds.
TRAINER_STATE_NAME = "trainer_state.json"
# Not checked: people edit it, scores are added later, and no run resumes from it.
CARD_NAME = "README.md"
# The processor's own instructions make it the fastest of hashlib's on most machines.
ALGORITHM = "sha256"
# The parts that a run resumes from, as `transformers.Trainer`, accelerate (FSDP) and DeepSpeed name
# them. DeepSpeed keeps all but the random states in global_step*/.
WEIGHTS = (
    r"(.*/)?(adapter_|pytorch_)?model\b.*\.(safetensors|bin)"
    r"|pytorch_model_fsdp.*"
    r"|global_step\d+/.*model_states\.pt"
)
STATES = {
    "the state of its optimizer": r"optimizer(\.pt|\.bin|_.*)|global_step\d+/.*",
    "the state of its schedule": r"scheduler\.pt|global_step\d+/.*",
    "its random states": r"rng_state(_\d+)?\.pth",
}


def write_manifest(folder: str | Path, **facts: Any) -> None:
    """Write size and checksum of every file in a folder except its card, and flush all to disk.

    The manifest also stores the facts, of JSON types; `missing_part` reads some of them.
    """
    folder = Path(folder)
    names = names_in(folder)
    # Both hashing and waiting for the disk let other threads run.
    with ThreadPoolExecutor() as pool:
        entries = pool.map(lambda name: _measure(folder / name, sync=True), names)
        content = {"algorithm": ALGORITHM, **facts, "files": dict(zip(names, entries, strict=True))}
    with open(folder / MANIFEST_NAME, "w", encoding="utf-8") as file:
        json.dump(content | {"checksum": _checksum(content)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    # Without its folder's entry on disk, a file is lost in a power failure although it is flushed.
    sync_folder(folder)
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)


def read_facts(folder: str | Path) -> dict[str, Any]:
    """Read the facts that `write_manifest` stored, from a checkpoint without faults."""
    return {name: value for name, value in _read(Path(folder)).items() if name != "files"}


def find_fault(folder: str | Path) -> str | None:
    """Describe the fault of a checkpoint, or return None if a run can resume from it.

    Never raises.
    """
    try:
        folder = Path(folder)
        if not folder.is_dir():
            return "it is not a folder"
        if not (folder / MANIFEST_NAME).is_file():
            return f"{MANIFEST_NAME} is missing"
        files = sorted(str(path) for path in folder.rglob("*") if path.is_file())
        return _find_fault(folder, tuple(_identity(file) for file in files))
    except Exception as error:  # noqa: BLE001  whatever a damaged folder makes of a file
        return f"it cannot be checked ({type(error).__name__}: {error})"


def _identity(file: str) -> tuple[str, int, int, int]:
    """Return what changes whenever a file does."""
    stat = os.stat(file)
    return file, stat.st_size, stat.st_mtime_ns, stat.st_ino


# A run checks several times, and each check would read the whole unchanged folder.
@cache
def _find_fault(folder: Path, identities: tuple) -> str | None:
    manifest = _read(folder)
    files = manifest["files"]
    for name, entry in files.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        size = (folder / name).stat().st_size
        if size != entry["size"]:
            return f"{name} has {size:,} bytes instead of {entry['size']:,}"
    part = missing_part(folder, files, manifest)
    if part in STATES:
        return (
            f"it lacks {part}, as with save_only_model: --model_name_or_path starts a new run from "
            "its weights"
        )
    if part is not None:
        return f"it lacks {part}"
    # Last, since it reads every byte: what is missing or too short is known without that.
    with ThreadPoolExecutor() as pool:
        entries = pool.map(lambda name: _measure(folder / name), files)
        for name, entry in zip(files, entries, strict=True):
            if entry != files[name]:
                return f"{name} has changed since it was written: its {ALGORITHM} differs"
    return None


def missing_part(
    folder: Path, names: Collection[str], facts: dict[str, Any], model_only: bool = False
) -> str | None:
    """Name a part of a checkpoint that a run needs to resume and that is missing, or return None.

    Args:
        folder: the checkpoint's folder.
        names: of the files that count as its own.
        facts: of its manifest: the number of ``processes``, and whether each stored its position
            in a ``stream``.
        model_only: whether no run resumes from it (``save_only_model``).
    """
    if not any(re.fullmatch(WEIGHTS, name) for name in names):
        return "its weights"
    for index in (name for name in names if name.endswith(".index.json")):
        shards = json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()
        absent = set(shards) - set(names)
        if absent:
            return min(absent)
    if not model_only:
        for part, pattern in STATES.items():
            if not any(re.fullmatch(pattern, name) for name in names):
                return part
    needed = [TRAINER_STATE_NAME, TOKEN_COUNTS_NAME]
    processes = facts.get("processes", 1)
    for process in range(processes):
        if facts.get("stream"):
            needed.append(f"stream_{process}.json")
        if processes > 1 and not model_only:
            needed.append(f"rng_state_{process}.pth")
    for name in needed:
        if name not in names:
            return name
    return None


def sync_folder(folder: str | Path) -> None:
    """Make a rename in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def names_in(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder that belong in its manifest."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return sorted(names - {MANIFEST_NAME, CARD_NAME})


def _read(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    if manifest.pop("checksum") != _checksum(manifest):
        raise ValueError(f"{MANIFEST_NAME} does not have its own checksum")
    return manifest


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _measure(path: Path, sync: bool = False) -> dict[str, Any]:
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, ALGORITHM).hexdigest()
        if sync:
            os.fsync(file.fileno())
        return {"size": os.fstat(file.fileno()).st_size, "checksum": checksum}
