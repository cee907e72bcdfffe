"""benchmarks/items.py and what it has of benchmarks/vocabulary.py: bytes that are said, ranks that are found, a tiny run."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from builders import tiny_model

from headless_trainer.items import ranking

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("vocabulary"), importlib.import_module("items")
    for name in ("vocabulary", "items"):
        sys.modules.pop(name)


def test_bytes_of_an_embedding_in_training(scripts):
    """1,000 rows of width 8, of which a step reads 10: 40 bytes each in its gradient."""
    sizes = {name: scripts[0].state_bytes(name, 1000, 8, 10) for name in scripts[0].METHODS}
    assert sizes == {
        "headless, sparse": 1000 * (3 * 32 + 4) + 400,
        "headless, compact": 1000 * (32 + 16 + 4 + 4) + 400,
        "untied, sparse": 2 * (1000 * (3 * 32 + 4) + 400),
        "headless, dense": 1000 * 4 * 32,
        "vanilla": 1000 * 4 * 32,
    }


def test_the_whole_catalogue_is_ranked_for_every_user(scripts, monkeypatch):
    asked = []
    monkeypatch.setattr(ranking, "CHUNK_ELEMENTS", 64)
    chunks = ranking.Ranker.chunks

    def counted(self, queries, left_out):
        for ids, scores in chunks(self, queries, left_out):
            asked.append(scores.numel())
            yield ids, scores

    monkeypatch.setattr(ranking.Ranker, "chunks", counted)
    assert scripts[1].rank(tiny_model("clm", 205, positions=8), users=7, length=6) > 0
    assert sum(asked) == 7 * 200


@pytest.mark.slow
def test_a_tiny_run(tmp_path):
    command = [
        sys.executable,
        "benchmarks/items.py",
        "--sizes",
        "2000",
        "--methods",
        "headless, compact",
        "--width",
        "16",
    ]
    command += ["--repeats", "1", "--users", "20", "--batch_size", "4"]
    with (tmp_path / "table.txt").open("w") as table, (tmp_path / "errors.txt").open("w") as errors:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=ROOT, stdout=table, stderr=errors, env=environment)
    assert done.returncode == 0, (tmp_path / "errors.txt").read_text()
    row = r"\| 2,000 \| compact \| \d+ \| [\d.]+ \| [\d.]+ \| [\d.]+ \| 0.00 \| [\d.]+ \|"
    assert re.search(row, (tmp_path / "table.txt").read_text())
