"""studies/shared.py: what is written down of a study."""

import json
import os
import subprocess
import sys

import pytest

from headless_trainer.cards.run_facts import commit, versions


def test_results_say_what_they_came_from(study, tmp_path, monkeypatch, capsys):
    shared = study("shared")
    card = "- Versions: Python 3.11\n- Commit of the working directory: {}\n"
    for name, at in (("a", "0123, with changes"), ("b", "4567"), ("c", "4567")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(card.format(at))
    argv = ["/home/x/studies/tying.py", "--train_file", "/a/data/en.txt.gz", "--output_dir", f"{tmp_path}/", "--others"]
    monkeypatch.setattr(sys, "argv", [*argv, "vanilla, tied=/a/b/c/v@69", "b=a/b/c", "--flags=--data_dir /a/b/c --y"])
    runs = [tmp_path / name for name in ("a", "b", "c", "without_a_card")]
    shared.write_results(tmp_path / "out", {"perplexity": [1.5]}, ["| a |", "|---|"], runs=runs)
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["results"] == {"perplexity": [1.5]}
    origin = found["origin"]
    assert origin["Command"] == (
        f"python studies/tying.py --train_file data/en.txt.gz --output_dir {tmp_path.parent.name}/{tmp_path.name} "
        "--others 'vanilla, tied=c/v@69' b=a/b/c '--flags=--data_dir b/c --y'"
    )
    assert origin["Versions"] == versions() and origin["Commit of the working directory"] == commit()
    assert origin["Commits of the runs"] == "0123, with changes, 4567"
    table = (tmp_path / "out" / "results.md").read_text()
    assert (
        table.startswith("| a |\n|---|\n\n- Command: python studies/tying.py")
        and table.strip() in capsys.readouterr().out
    )
    assert not (tmp_path / "out" / "results.png").exists()


def test_processor_time_of_all_starts_and_a_failure_that_is_heard(study, tmp_path, monkeypatch):
    """A run that computes for a fifth of a second and fails, then one that only looks at its threads."""
    shared = study("shared")
    busy = "import time\nwhile time.process_time() < 0.2: pass\nraise SystemExit(3)"
    with pytest.raises(subprocess.CalledProcessError) as error:
        shared.run_or_resume([sys.executable, "-c", busy], tmp_path, 1)
    assert error.value.returncode == 3
    threads = [sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    shared.run_or_resume(threads, tmp_path, 3)
    monkeypatch.delenv("OMP_NUM_THREADS")
    shared.run_or_resume(threads, tmp_path, 3)
    assert (tmp_path / "console.log").read_text() == "5\n4\n"  # as it was asked for, else a share of the cores
    times = [float(line) for line in (tmp_path / "cpu_seconds").read_text().splitlines()]
    assert len(times) == 3 and 0.2 <= times[0] < 60
    assert shared.cpu_seconds(tmp_path) == sum(times)
