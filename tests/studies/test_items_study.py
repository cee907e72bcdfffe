"""studies/items.py: which setting is chosen, what stands in the table, and a whole tiny study."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "studies" / "items.py"
ONE_RATE = ("--num_hidden_layers", "1", "--learning_rate", "0.02", "--dropout", "0.1", "0.3")


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("items_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("shared", None)


def made_results(validation: float, test: float, tau: float = 1.0) -> dict:
    figures = {"test_ndcg@10": test, "test_recall@10": 2 * test, "test_coverage@10": 0.5}
    figures |= {"test_ndcg@10_at_tau_0": test / 2, "test_recall@10_at_tau_0": test}
    return figures | {
        "validation_ndcg@10": validation, "tau": tau, "epochs": 10.0, "train_seconds": 25.0, "peak_memory_mib": 499.2
    }  # fmt: skip


def test_the_setting_is_chosen_on_validation_at_the_first_seed(study, tmp_path, monkeypatch, capsys):
    """The better test of the other dropout is not looked at, and neither is a run that diverged."""
    validation = {(1, 0.02, 0.1): 0.06, (1, 0.02, 0.3): 0.05, (1, 0.04, 0.1): None, (1, 0.04, 0.3): 0.01}
    asked = []

    def stand_in(command, folder, name, jobs):
        flags = dict(zip(command[2::2], command[3::2], strict=True))
        setting = int(flags["--num_hidden_layers"]), float(flags["--learning_rate"]), float(flags["--dropout"])
        seed = int(flags["--seed"])
        asked.append((*setting, seed))
        if validation[setting] is None:
            return None
        test = 0.05 + 0.002 * seed if setting[2] == 0.1 else 0.5
        found = made_results(validation[setting], test, tau=0.5 * seed)
        folder.mkdir(parents=True)
        (folder / name).write_text(json.dumps(found))
        return found

    monkeypatch.setattr(study, "results_of", stand_in)
    grid = ["--num_hidden_layers", "1", "--learning_rate", "0.02", "0.04", "--dropout", "0.1", "0.3"]
    flags = ["--train_file", str(tmp_path / "Beauty.txt.gz"), "--output_dir", str(tmp_path), "--methods", "headless"]
    study.main([*flags, *grid, "--seeds", "1", "2", "3"])
    assert asked == [*((*setting, 1) for setting in validation), (1, 0.02, 0.1, 2), (1, 0.02, 0.1, 3)]
    text = (tmp_path / "Beauty" / "results.md").read_text()
    assert "\n\nData set: Beauty.\n\n- Command: python studies/" in text
    table = text.partition("\n\nData set")[0].splitlines()
    assert table[2] == (
        "| headless | 1, 0.02, 0.1 (3) | 3 | 1.00 (0.29) | 0.0600 (0.0000) | 0.0540 (0.0012), 0.1080 (0.0023) "
        "| 0.0270 (0.0006), 0.0540 (0.0012) | 50% | 10.0 (0.0) | 2.5 (0.0) | 500 |"
    )
    own = "| SASRec, sampled softmax of 256 uniform negatives (calculated) | | | | | 0.0531, 0.0921 | | | | | |"
    assert own in table and table[-1].startswith("calculated: arXiv 2508.06450")
    assert all(line.count(" | ") in (0, 10) or line.count("|") == 12 for line in table)
    assert table[2] in capsys.readouterr().out
    tried = json.loads((tmp_path / "Beauty" / "results.json").read_text())["results"]["headless"]["tried"]
    assert [(row["learning_rate"], row["dropout"], row["validation_ndcg@10"]) for row in tried] == [
        (0.02, 0.1, 0.06), (0.02, 0.3, 0.05), (0.04, 0.3, 0.01)
    ]  # fmt: skip


def test_runs_of_other_flags_are_not_mixed(study, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "results_of", lambda *ignored: None)
    flags = ["--train_file", "a.txt", "--output_dir", str(tmp_path)]
    study.main([*flags, "--hidden_size", "16"])
    with pytest.raises(
        SystemExit, match=r"a holds runs with the flags \['--hidden_size', '16'\], not \[\]: choose another"
    ):
        study.main(flags)


def test_a_run_that_was_stopped_is_named(study, tmp_path):
    with pytest.raises(
        SystemExit, match="The run in .* was stopped before its end: the same command goes on from there."
    ):
        study.results_of([sys.executable, "-c", ""], tmp_path / "run", "items_results.json", 1)


@pytest.mark.slow
def test_a_study_goes_on_where_it_was_cut_off(tmp_path):
    lines = [f"u{user} " + " ".join(f"i{(user + step) % 20}" for step in range(5 + user % 6)) for user in range(40)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    command = [sys.executable, SCRIPT, "--train_file", tmp_path / "lines.txt", "--output_dir", tmp_path / "study"]
    command += [*ONE_RATE, "--seeds", "1", "2", "--methods", "headless, 4,096 by frequency"]
    command += ["--hidden_size", "16", "--max_seq_length", "8", "--per_device_train_batch_size", "8", "--use_cpu"]
    command += ["--num_train_epochs", "2"]

    def start() -> dict:
        with (tmp_path / "console.txt").open("w") as log:
            done = subprocess.run([*map(str, command)], cwd=ROOT, stdout=log, stderr=log)
        assert done.returncode == 0, (tmp_path / "console.txt").read_text()
        return json.loads((tmp_path / "study" / "lines" / "results.json").read_text())["results"]

    first = start()
    row = first["headless, 4,096 by frequency"]
    assert len(row["tried"]) == 2 and list(row["seeds"]) == ["1", "2"]
    runs = sorted((tmp_path / "study" / "lines").glob("*/*/items_results.json"))
    assert len(runs) == 3
    times = {path: path.stat().st_mtime_ns for path in runs}
    runs[0].unlink()  # as if it had been killed at its end
    assert start()["headless, 4,096 by frequency"]["tried"] == row["tried"]
    assert [path for path in runs if path.stat().st_mtime_ns != times[path]] == [runs[0]]
