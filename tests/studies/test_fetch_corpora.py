"""studies/fetch_corpora.py on a folder that stands in for the dataset on the Hub."""

import gzip
import importlib.util
from pathlib import Path

import datasets
from datasets import Dataset

SCRIPT = Path(__file__).parents[2] / "studies" / "fetch_corpora.py"


def test_books_become_paragraphs_up_to_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    spec = importlib.util.spec_from_file_location("fetch_corpora", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (tmp_path / "books").mkdir()
    first = "One line,\r\nand another.\r\n\r\n \r\nThird paragraph\n\n"
    books = [first, "A second\n\tbook", "\n\n", "Never\n\nreached"]
    Dataset.from_dict({"TEXT": books, "SOURCE": ["x"] * 4}).to_parquet(tmp_path / "books" / "train.parquet")
    for name, megabytes, expected in (
        ("all.txt.gz", 1, ["One line, and another.", "Third paragraph", "A second book", "Never", "reached"]),
        ("some.txt", 40e-6, ["One line, and another.", "Third paragraph", "A second book"]),
    ):
        output = tmp_path / name
        arguments = ["--output", output, "--dataset_name", tmp_path / "books", "--megabytes", megabytes]
        script.main([str(argument) for argument in arguments])
        content = output.read_bytes()
        content = gzip.decompress(content) if name.endswith(".gz") else content
        assert content.decode().splitlines() == expected
        assert not list(tmp_path.glob("*.incomplete"))
