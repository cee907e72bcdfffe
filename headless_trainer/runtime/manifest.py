"""Checksums of a checkpoint: they tell a whole one from one that was cut short, damaged or half deleted."""

import hashlib
import itertools
import json
import os
import re
import zipfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

MANIFEST_NAME = "manifest.json"
TOKEN_COUNTS_NAME = "token_counts.safetensors"
TRAINER_STATE_NAME = "trainer_state.json"  # transformers' own name: importing its trainer for it would take seconds
CARD_NAME = "README.md"  # not checked: people edit it, and scores are added to it later; no run resumes from it
ALGORITHM = "sha256"  # the processor's own instructions make it the fastest of hashlib's on most machines
# What a run goes on from, as `transformers.Trainer`, accelerate (FSDP) and DeepSpeed name it. DeepSpeed keeps all but the
# random states in global_step*/.
WEIGHTS = (
    r"(.*/)?(adapter_|pytorch_)?model\b.*\.(safetensors|bin)|pytorch_model_fsdp.*|global_step\d+/.*model_states\.pt"
)
STATES = {
    "the state of its optimizer": r"optimizer(\.pt|\.bin|_.*)|global_step\d+/.*",
    "the state of its schedule": r"scheduler\.pt|global_step\d+/.*",
    "its random states": r"rng_state(_\d+)?\.pth",
}

# What this process found of folders that have not changed since: checking a checkpoint means reading all of it.
_found: dict[tuple, str | None] = {}


def write_manifest(folder: str | Path, **facts: Any) -> None:
    """Write size and checksum of every file in a folder but its card beside them, and have all of it reach the disk.

    The checksums are taken from what the operating system still holds in memory, right after the files were written. The
    facts, JSON types, are kept with them; `missing_part` says which have a meaning here.
    """
    folder = Path(folder)
    names = names_in(folder)
    with ThreadPoolExecutor() as pool:  # both hashing and waiting for the disk let other threads run
        entries = pool.map(lambda name: _measure_and_sync(folder / name), names)
        files = dict(zip(names, entries, strict=True))
    content = {"algorithm": ALGORITHM, **facts, "files": files}
    with open(folder / MANIFEST_NAME, "w", encoding="utf-8") as file:
        json.dump(content | {"checksum": _checksum(content)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        sync_folder(path)


def read_facts(folder: str | Path) -> dict[str, Any]:
    """The facts that `write_manifest` kept, or nothing if the folder has no manifest.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: if the manifest is not what was written.
    """
    if not (Path(folder) / MANIFEST_NAME).is_file():
        return {}
    return {name: value for name, value in _read(Path(folder)).items() if name != "files"}


def find_fault(folder: str | Path, contents: bool = True) -> str | None:
    """What is wrong with a checkpoint, or None if it is whole. Raises nothing.

    It must hold all that a run goes on from. One without a manifest, as `transformers.Trainer` writes them, is judged by its
    structure: its state parses, and the files of weights and states are as long as they say. Without ``contents``, which
    reads every file to compare the checksums, names and sizes alone are compared.
    """
    try:
        return _find_fault(Path(folder), contents)
    except Exception as error:  # noqa: BLE001  whatever a damaged folder makes of a file
        return f"it cannot be checked ({type(error).__name__}: {error})"


def _find_fault(folder: Path, contents: bool) -> str | None:
    if not folder.is_dir():
        return "it is not a folder"
    signature = _signature(folder)
    if signature in _found:
        return _found[signature]
    if not os.path.lexists(folder / MANIFEST_NAME):
        return _structural_fault(folder)
    if not (folder / MANIFEST_NAME).is_file():  # a pipe would be waited for
        return f"{MANIFEST_NAME} is not a file"
    try:
        manifest = _read(folder)
        algorithm, files = manifest["algorithm"], manifest["files"]
        expected = {name: (int(entry["size"]), entry["checksum"]) for name, entry in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"{MANIFEST_NAME} cannot be read ({type(error).__name__}: {error})"
    fault = _size_fault(folder, expected)
    if fault is None:
        fault = _said(missing_part(folder, expected, manifest))
    if fault is None and contents:
        with ThreadPoolExecutor() as pool:
            faults = pool.map(lambda name: _content_fault(folder, name, algorithm, expected[name][1]), expected)
            fault = next(filter(None, faults), None)
    if fault is not None or contents:
        _found[signature] = fault
    return fault


def missing_part(folder: Path, names: Collection[str], facts: dict[str, Any], model_only: bool = False) -> str | None:
    """What a run would need to go on from a checkpoint with files of these names and is not in it, None if all is there.

    Args:
        facts: of its manifest: ``processes``, and ``stream``, whether each has its place in a stream there. Empty for one
            that
            `transformers.Trainer` wrote.
        model_only: whether no run is to go on from it (``save_only_model``).
    """
    if not any(re.fullmatch(WEIGHTS, name) for name in names):
        return "its weights"
    for index in (name for name in names if name.endswith(".index.json")):
        shards = json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()
        if absent := sorted(set(shards) - set(names)):
            return absent[0]
    processes = facts.get("processes", 1)
    needed = [TRAINER_STATE_NAME, *([TOKEN_COUNTS_NAME] if facts else [])]
    for part, pattern in STATES.items() if not model_only else ():
        if not any(re.fullmatch(pattern, name) for name in names):
            return part
    each = ["stream_{}.json"] if facts.get("stream") else []
    each += ["rng_state_{}.pth"] if processes > 1 and not model_only else []
    wanted = itertools.chain(needed, (name.format(process) for process in range(processes) for name in each))
    return next((name for name in wanted if name not in names), None)


def _said(part: str | None) -> str | None:
    if part in STATES:
        return (
            f"it lacks {part}, as with save_only_model: no run can go on from it, but --model_name_or_path starts one from its "
            "weights"
        )
    return f"it lacks {part}" if part else None


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


def _read(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, without its own checksum; older ones have none."""
    manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    checksum = manifest.pop("checksum", None)
    if checksum is not None and checksum != _checksum(manifest):
        raise ValueError("it does not have its own checksum")
    for name in manifest["files"]:
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise ValueError(f"it names {name!r}, which is not in the folder")
    for name in ("processes", "rows_a_step"):
        if not isinstance(manifest.get(name, 1), int) or manifest.get(name, 1) < 1:
            raise ValueError(f"its {name} is {manifest[name]!r}")
    return manifest


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def names_in(folder: Path) -> list[str]:
    """Names of the files in a folder that belong into its manifest, sorted."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return sorted(names - {MANIFEST_NAME, CARD_NAME})


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
    if not (folder / TRAINER_STATE_NAME).is_file():  # a pipe would be waited for
        return f"{TRAINER_STATE_NAME} is missing"
    try:
        json.loads((folder / TRAINER_STATE_NAME).read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"{TRAINER_STATE_NAME} cannot be read ({type(error).__name__}: {error})"
    for name in names_in(folder):
        path = folder / name
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt"):
                    pass  # the header must fit the length of the file
            elif path.suffix in (".bin", ".pt", ".pth") and not zipfile.is_zipfile(path):
                return f"{name} is cut short: it does not end as torch ends its files"
        except (OSError, SafetensorError) as error:
            return f"{name} cannot be read ({type(error).__name__}: {error})"
    return _said(missing_part(folder, names_in(folder), {}))
