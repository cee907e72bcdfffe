"""The corpus of runs that name no data: documentation already on this machine, read where it lies.

It holds the topics of Python's own help and the docstrings of the standard library and of well-known packages, as far
as they are installed. No package is imported: the files are parsed. The text depends on the installed versions, so
figures from it compare only between runs on one machine.
"""

import ast
import functools
import gc
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import logging
import platform
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.compute as pc
from datasets import DatasetDict
from datasets.fingerprint import Hasher

from .row_cache import cache_folder, find_or_write

logger = logging.getLogger(__name__)

# Import name and distribution, in the order in which they are read. The first three are always there.
PACKAGES = {
    name: name
    for name in (
        "torch", "transformers", "datasets", "huggingface_hub", "accelerate", "tokenizers", "numpy", "scipy", "pandas",
        "sklearn", "networkx", "sympy", "matplotlib",
    )
} | {"sklearn": "scikit-learn"}  # fmt: skip
MIN_CHARACTERS = 100  # shorter docstrings are mostly "Return the name." and the like
MAX_CHARACTERS = 25_000_000  # no further package is begun beyond this, which takes about 15 s to read

_RECIPE = 1  # part of the cache's key: raise it when this module picks other documents
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "testing", "idlelib", "lib2to3", "__pycache__"}
_FEATURES = datasets.Features({"text": datasets.Value("string")})


def demo_documents(held_out_percentage: float = 5.0, *, cache_dir: str | None = None) -> DatasetDict:
    """Documentation on this machine, one docstring or help topic a document, as the splits "train" and "validation".

    The order is fixed, a text that occurs twice is kept once, and the documents are read once for each set of installed
    versions and then found in the cache of ``datasets``.

    Whole folders of source files are held out (single files at the top of a package, single topics), picked by a hash of
    their name: docstrings of one folder resemble each other, so that documents drawn one by one would put near copies of the
    training texts into the held-out part. The share of the text comes only near that of the folders.
    """
    sources, share = list(_sources()), held_out_percentage / 100
    key = Hasher.hash(json.dumps([sources, held_out_percentage, _RECIPE]))
    documents = functools.cache(lambda: list(_documents(sources)))

    def part(held_out: bool) -> Iterator[pa.Table]:
        yield pa.table({"text": [text for unit, text in documents() if (_position(unit) < share) == held_out]})

    parts = DatasetDict()
    for name in ("train", "validation"):
        path = cache_folder(cache_dir) / f"demo-{key}-{name}.arrow"
        parts[name] = find_or_write(path, functools.partial(part, name == "validation"), _FEATURES)
    characters = sum(pc.sum(pc.utf8_length(rows.data["text"])).as_py() or 0 for rows in parts.values())
    logger.info("Documentation on this machine: %s documents, %s characters.",
                f"{sum(map(len, parts.values())):,}", f"{characters:,}")  # fmt: skip
    return parts


def _sources() -> Iterator[tuple[str, str, str]]:
    """Name, version and folder of everything there is to read, in order."""
    yield "python", platform.python_version(), sysconfig.get_paths()["stdlib"]
    for module, distribution in PACKAGES.items():
        spec = importlib.util.find_spec(module)  # finds a top-level package without importing it
        if spec is not None and spec.submodule_search_locations:
            try:
                version = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:  # a source tree on the path, never installed
                version = "unknown"
            yield module, version, str(spec.submodule_search_locations[0])


def _documents(sources: list[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """What is held out together, and the text, for each document."""
    seen: set[str] = set()
    characters = 0
    for name, _, folder in sources:
        if characters >= MAX_CHARACTERS:
            return
        pairs = _docstrings(name, Path(folder))
        if name == "python":
            pairs = itertools.chain(_help_topics(), pairs)
        for unit, text in pairs:
            if len(text) >= MIN_CHARACTERS and text not in seen:
                seen.add(text)
                characters += len(text)
                yield unit, text


def _help_topics() -> Iterator[tuple[str, str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions of Python leave it out
        return
    for topic, text in sorted(topics.items()):
        yield f"topic {topic}", text.strip()


def _docstrings(name: str, root: Path) -> Iterator[tuple[str, str]]:
    """What is held out together, and the text, for each docstring below a folder."""
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED_FOLDERS.intersection(relative.parts):
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        if '"""' not in source and "'''" not in source:  # parsing is what takes the time
            continue
        module = _parsed(source)
        if module is None:
            continue
        nested = len(relative.parts) > 1
        unit = f"{name}/{(relative.parent if nested else relative).as_posix()}"
        for node in (module, *_definitions(module.body)):
            text = ast.get_docstring(node)
            if text:  # in which a lone surrogate could not be written
                yield unit, text.strip().encode("utf-8", "replace").decode("utf-8")


def _parsed(source: str) -> ast.Module | None:
    gc.disable()  # a tree of thousands of nodes sets the collector off again and again, which doubles the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # invalid escapes in other people's files
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # templates, and files of another Python version
        return None
    finally:
        gc.enable()


def _definitions(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    """Classes and functions in order of appearance, without a walk through every expression."""
    for statement in statements:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        for part in ("body", "orelse", "handlers", "finalbody"):
            yield from _definitions(getattr(statement, part, ()))


def _position(unit: str) -> float:
    """A number from 0 up to 1 that depends on nothing but the name; ``hash`` would change from run to run."""
    return int.from_bytes(hashlib.sha256(unit.encode()).digest()[:4], "big") / 2**32
