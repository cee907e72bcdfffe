"""studies/batch_size.py: which runs are compared, and a whole tiny study."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


def settings(tmp_path, **changes):
    given = {
        "recipes": ["headless", "vanilla tied"],
        "batch_sizes": [8, 32, 128],
        "batch_size": 32,
        "max_steps": 144,
    }
    given |= {
        "rate": 8e-3,
        "seeds": [3, 4],
        "output_dir": tmp_path,
        "task": "clm",
        "scale": "cpu",
        "vocab_size": 8_000,
    }
    given |= {
        "schedule": "cosine",
        "tokenizer_name": None,
        "settings": {"max_seq_length": 128},
        "equal_steps": False,
    }
    return SimpleNamespace(**given | changes)


def test_tokens_are_equal_and_rates_follow_the_square_root(study, tmp_path):
    script = study("batch_size")
    args = settings(tmp_path)
    sizes = {rows: script.of_size(args, rows) for rows in (8, 32, 128)}
    assert {rows: each.batch_size * each.max_steps for rows, each in sizes.items()} == {
        8: 4608,
        32: 4608,
        128: 4608,
    }
    assert [script.rate_of(args, rows) for rows in sizes] == [0.004, 0.008, 0.016]
    assert {each.tokenizer_name for each in sizes.values()} == {
        str(tmp_path / "clm_8000_tokenizer")
    }
    assert len({each.output_dir for each in sizes.values()}) == 3
    assert {
        script.of_size(settings(tmp_path, equal_steps=True), rows).max_steps for rows in sizes
    } == {144}


def test_pools_of_the_largest_batch_are_those_of_the_smaller_ones(study, tmp_path):
    script = study("batch_size")
    runs = script.planned(settings(tmp_path))
    assert [run[:2] for run in runs if run[2] == 3] == [
        ("headless", 8), ("vanilla tied", 8), ("headless", 32), ("vanilla tied", 32), ("headless", 128),
        ("vanilla tied", 128), ("headless + pools of 1016", 128), ("headless + pools of 4064", 128),
    ]  # fmt: skip
    assert [run[2] for run in runs] == [3] * 8 + [4] * 8
    assert script.shared.flags_of("headless + pools of 1016") == ["--pool_size", "1016"]


@pytest.mark.slow
def test_a_whole_study_and_its_report_alone(tmp_path, text_lines):
    (tmp_path / "lines.txt").write_text(
        "".join(" ".join(text_lines[i : i + 12]) + "\n" for i in range(200))
    )
    command = [sys.executable, "studies/batch_size.py", "--train_file", tmp_path / "lines.txt"]
    command += [
        "--output_dir",
        tmp_path / "runs",
        "--recipes",
        "headless",
        "--batch_sizes",
        "2",
        "4",
        "--seeds",
        "0",
    ]
    command += "--batch_size 4 --max_steps 4 --vocab_size 300".split()

    def start(*flags) -> dict:
        with (tmp_path / "console.txt").open("w") as log:
            done = subprocess.run([*map(str, [*command, *flags])], cwd=ROOT, stdout=log, stderr=log)
        assert done.returncode == 0, (tmp_path / "console.txt").read_text()
        return json.loads((tmp_path / "runs" / "batch_size" / "results.json").read_text())[
            "results"
        ]

    found = start()
    assert [(row["recipe"], row["rows"], row["pool"], row["steps"]) for row in found] == [
        ("headless", 2, 254, 8), ("headless", 4, 508, 4), ("headless + pools of 254", 4, 254, 4),
    ]  # fmt: skip
    assert len({row["perplexity"][0] for row in found}) == 3 and all(
        row["seconds"][0] > 0 for row in found
    )
    assert {row["curves"][0][-1][0] for row in found} == {2048}  # tokens: 4 steps of 4 rows of 128
    for row in found:
        name = re.sub(r"\W", "_", row["recipe"].replace(" + ", "_"))
        settings = next((tmp_path / "runs").glob(f"batch_{row['rows']}/*/{name}/*/settings.json"))
        read = json.loads(settings.read_text())
        assert (read["per_device_train_batch_size"], read["max_steps"]) == (
            row["rows"],
            row["steps"],
        )
        assert read["pool_size"] == (254 if "pools" in row["recipe"] else None)
        history = json.loads((settings.parent / "trainer_state.json").read_text())["log_history"]
        trained = [logs["train_seconds"] for logs in history if "train_seconds" in logs][-1]
        # Of the steps, not of the process, whose start alone takes longer.
        assert row["seconds"][0] < 2 * trained
    assert start("--report_only") == found
    assert (tmp_path / "runs" / "batch_size" / "results.png").stat().st_size > 1000
