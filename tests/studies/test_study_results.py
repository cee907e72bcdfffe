"""studies/results/: what is committed of the studies says what it came from."""

import json
import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "studies" / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("**/results.json"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_results_name_their_origin_and_no_machine_s_folders(folder):
    origin = json.loads((folder / "results.json").read_text())["origin"]
    # Of the commit below: some studies have ended.
    assert re.match(r"python studies/\w+\.py ", origin["Command"])
    assert "transformers " in origin["Versions"]
    # Not "with changes".
    assert re.fullmatch("[0-9a-f]{40}", origin["Commit of the working directory"])
    one = "[0-9a-f]{40}(, with changes)?"
    assert re.fullmatch(f"({one}(, {one})*)?", origin.get("Commits of the runs", ""))
    text = (folder / "results.md").read_text()
    # Question and answer come first; tests/test_findings.py checks them.
    table = re.sub(r"^(>.*\n)*\n", "", text)
    assert table.startswith(("|", "Held-out")) and f"- Command: {origin['Command']}\n" in table
    for name in ("results.json", "results.md"):
        assert not re.search(
            r"(?<![\w.])/(?:tmp|work|home|root|data|Users)/", (folder / name).read_text()
        )
    picture = folder / "results.png"  # of most studies
    assert not picture.exists() or picture.stat().st_size < 300_000
    assert {path.name for path in folder.iterdir()} - {picture.name} == {
        "results.json",
        "results.md",
    }
