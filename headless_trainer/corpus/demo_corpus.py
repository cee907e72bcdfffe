"""The corpus of runs that name no data: documentation already on this machine, read where it lies.

It holds the topics of Python's own help and the docstrings of the standard library and of well-known packages, as far
as they are installed. No package is imported: the files are parsed. The text depends on the installed versions, so
figures from it compare only between runs on one machine.
"""

import ast
import gc
import hashlib
import importlib.util
import json
import platform
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

import datasets
import pyarrow as pa
from datasets import DatasetDict
from datasets.fingerprint import Hasher

from .row_cache import cache_folder, find_or_write

# In the order in which they are read. The first ones are always there.
PACKAGES = (
    "torch", "transformers", "datasets", "huggingface_hub", "accelerate", "tokenizers", "numpy", "scipy", "pandas",
    "sklearn", "networkx", "sympy", "matplotlib",
)  # fmt: skip
MIN_CHARACTERS = 100  # shorter docstrings are mostly "Return the name." and the like
MAX_CHARACTERS = 6_000_000  # no further package is begun beyond this, which takes a few seconds to read
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "testing", "idlelib", "lib2to3", "__pycache__"}


def demo_documents(held_out_percentage: float = 5.0, *, cache_dir: str | None = None) -> DatasetDict:
    """Documentation on this machine, one docstring or help topic a document, as the splits "train" and "validation".

    The order is fixed, a text that occurs twice is kept once, and the documents are read once for each set of installed
    versions and then found in the cache of ``datasets``.

    Whole folders of source files are held out (single files at the top of a package, single topics), picked by a hash of
    their name: docstrings of one folder resemble each other, so that documents drawn one by one would put near copies of the
    training texts into the held-out part. The share of the text comes only near that of the folders.
    """
    folders, installed = {"python": sysconfig.get_paths()["stdlib"]}, []
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)  # without importing it
        if spec is not None and Path(spec.origin or "").name == "__init__.py":
            folders[name] = str(Path(spec.origin).parent)
            installed.append((folders[name], Path(spec.origin).stat().st_mtime_ns))
    key = Hasher.hash(json.dumps([platform.python_version(), folders, installed, held_out_percentage]))

    def tables() -> Iterator[tuple[pa.Table, pa.Table]]:
        sides = {False: [], True: []}
        for unit, text in _documents(folders):
            sides[_position(unit) < held_out_percentage / 100].append(text)
        yield pa.table({"text": sides[False]}), pa.table({"text": sides[True]})

    names, features = ("train", "validation"), datasets.Features({"text": datasets.Value("string")})
    paths = [cache_folder(cache_dir) / f"demo-{key}-{name}.arrow" for name in names]
    return DatasetDict(zip(names, find_or_write(paths, tables, features), strict=True))


def _documents(folders: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What is held out together, and the text, for each document."""
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions of Python leave it out
        topics = {}
    seen, characters = set(), 0
    for name, folder in folders.items():
        if characters >= MAX_CHARACTERS:
            return
        pairs = [(f"topic {topic}", text.strip()) for topic, text in sorted(topics.items()) if name == "python"]
        for unit, text in [*pairs, *_docstrings(name, Path(folder))]:
            if len(text) >= MIN_CHARACTERS and text not in seen:
                seen.add(text)
                characters += len(text)
                yield unit, text


def _docstrings(name: str, root: Path) -> Iterator[tuple[str, str]]:
    """What is held out together, and the text, for each docstring below a folder."""
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        source = "" if _SKIPPED_FOLDERS.intersection(relative.parts) else path.read_text("utf-8", "replace")
        if '"""' not in source and "'''" not in source:  # parsing is what takes the time
            continue
        unit = f"{name}/{(relative.parent if len(relative.parts) > 1 else relative).as_posix()}"
        for node in _documented(source):
            if text := ast.get_docstring(node):  # in which a lone surrogate could not be written
                yield unit, text.strip().encode("utf-8", "replace").decode("utf-8")


def _documented(source: str) -> Iterator[ast.AST]:
    """The module, its classes and functions, in order of appearance; nothing of a template or of another Python's file."""
    gc.disable()  # a tree of thousands of nodes sets the collector off again and again, which doubles the time
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # invalid escapes
            left: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError, RecursionError):
        return
    finally:
        gc.enable()
    while left:  # without a walk through every expression
        node = left.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        parts = ("body", "orelse", "handlers", "finalbody")
        left += [child for part in parts for child in getattr(node, part, ())][::-1]


def _position(unit: str) -> float:
    """A number from 0 up to 1 that depends on nothing but the name; ``hash`` would change from run to run."""
    return int.from_bytes(hashlib.sha256(unit.encode()).digest()[:4], "big") / 2**32
