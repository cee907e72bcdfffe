import sys

import pytest

from headless_trainer.arguments import DataArguments
from headless_trainer.corpus import demo_corpus
from headless_trainer.corpus.texts import load_texts

LONG = "This sentence describes what the function returns, in enough words to count as a document of its own. "


def _docstring(subject: str) -> str:
    return f"About {subject}. {LONG}"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with a standard library of three modules and one package, which fails when imported."""
    library, package = tmp_path / "lib", tmp_path / "site" / "demo_pkg"
    (library / "site-packages").mkdir(parents=True)
    (library / "alpha.py").write_text(f'"""{_docstring("alpha")}"""\ndef f():\n    """Too short."""\n')
    (library / "broken.py").write_text('def f(:\n    """Not Python."""\n')
    (library / "site-packages" / "other.py").write_text(f'"""{_docstring("other")}"""\n')
    for folder in "abcdefghij":
        (package / folder).mkdir(parents=True)
        for number in (1, 2):
            (package / folder / f"m{number}.py").write_text(
                f'class C:\n    """{_docstring(folder)} {number}"""\n    def f(self):\n        """{_docstring("f")}"""\n'
            )
    (package / "__init__.py").write_text("raise ImportError('demo_pkg must not be imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(demo_corpus, "PACKAGES", ("demo_pkg", "not_installed"))
    monkeypatch.setattr(demo_corpus.sysconfig, "get_paths", lambda: {"stdlib": str(library)})
    return tmp_path


def test_documents_are_the_docstrings_of_the_machine(machine):
    parts = demo_corpus.demo_documents(held_out_percentage=30.0, cache_dir=str(machine / "cache"))
    texts = [text for part in parts.values() for text in part["text"]]
    documented = [text for text in texts if text.startswith("About ")]
    expected = [_docstring("alpha"), _docstring("f"), *(f"{_docstring(x)} {n}" for x in "abcdefghij" for n in (1, 2))]
    # "f" is in all twenty files and kept once; short, broken and foreign files leave nothing.
    assert sorted(documented) == sorted(text.strip() for text in expected)
    assert len(texts) > len(documented) + 50  # Python's help topics
    assert min(map(len, texts)) >= demo_corpus.MIN_CHARACTERS
    assert "demo_pkg" not in sys.modules


def test_a_folder_is_on_one_side_of_the_split(machine):
    parts = demo_corpus.demo_documents(held_out_percentage=50.0, cache_dir=str(machine / "cache"))
    sides = {}
    for name, part in parts.items():
        assert part.column_names == ["text"]
        for text in part["text"]:
            if text.startswith("About ") and text[-1] in "12":
                sides.setdefault(text[6], set()).add(name)
    assert len(sides) == 10
    assert all(len(names) == 1 for names in sides.values())
    assert set.union(*sides.values()) == {"train", "validation"}


def test_repeated_calls_read_once_and_agree(machine, monkeypatch):
    first = demo_corpus.demo_documents(cache_dir=str(machine / "cache"))
    monkeypatch.setattr(demo_corpus, "_documented", lambda source: pytest.fail("read again"))
    second = demo_corpus.demo_documents(cache_dir=str(machine / "cache"))
    for name in ("train", "validation"):
        assert first[name]["text"] == second[name]["text"]
        assert first[name]._fingerprint == second[name]._fingerprint  # so that rows of tokens are found again, too


def test_reading_stops_at_the_limit(machine, monkeypatch):
    monkeypatch.setattr(demo_corpus, "MAX_CHARACTERS", 1)
    parts = demo_corpus.demo_documents(cache_dir=str(machine / "cache"))
    texts = [text for part in parts.values() for text in part["text"]]
    assert _docstring("alpha").strip() in texts  # what was begun is finished
    assert f"{_docstring('a')} 1" not in texts


def test_definitions_in_branches_are_found():
    source = f'''
try:
    class e:
        pass
except ImportError:
    def f():
        """{LONG}"""
if True:
    async def g():
        """{LONG}"""
'''
    module, *found = demo_corpus._documented(source)
    assert [node.name for node in found] == ["e", "f", "g"]


def test_load_texts_without_a_source_reads_it(machine):
    memory = load_texts(DataArguments(), cache_dir=str(machine / "cache"))
    stream = load_texts(DataArguments(streaming=True), cache_dir=str(machine / "cache"))
    for name in ("train", "validation"):
        assert memory[name]["text"] == [row["text"] for row in stream[name]]
