"""docs/tutorials/tour.ipynb runs from its first cell to its last, and holds what a run of it gave."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "docs" / "tutorials" / "tour.ipynb"
CELLS = json.loads(TOUR.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
# Runs the cells as Jupyter does, in one process, and writes down what they left.
EXECUTE = """
import json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), names)
scores = [json.loads(path.read_text())["score"] for path in names["Path"]("runs/topics").rglob("seed_*.json")]
found = {
    "pictures": len(names["plt"].get_fignums()),
    "stories": names["stories"][:4],
    "accuracy": [log["eval_accuracy"] for log in names["logs"] if "eval_accuracy" in log][-1],
    "same_topic": float((names["topics"][names["alike"].argmax(1)] == names["topics"]).mean()),
    "classified": min(scores),
}
json.dump(found, open(sys.argv[2], "w"))
"""


def outputs(kind: str) -> list[dict]:
    return [output for cell in CODE for output in cell["outputs"] if output["output_type"] == kind]


def test_the_tour_holds_what_a_run_gave():
    assert [cell["execution_count"] for cell in CODE] == list(
        range(1, len(CODE) + 1)
    ) and not outputs("error")
    pictures = [output for output in outputs("display_data") if "image/png" in output["data"]]
    assert len(pictures) == sum("".join(cell["source"]).count("plt.show()") for cell in CODE) >= 4
    assert TOUR.stat().st_size < 300_000
    said = "".join("".join(output["text"]) for output in outputs("stream"))
    assert "saved in runs/trunk" in said
    assert not re.search(r"(?<![\w.])/(?:tmp|home|root|usr|work|Users)/|Traceback|Warning", said)


@pytest.mark.slow
def test_the_tour_runs(tmp_path):
    pytest.importorskip("sklearn")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MPLBACKEND": "Agg",
        "TMPDIR": str(tmp_path),
    }
    command = [sys.executable, "-c", EXECUTE, str(TOUR), str(tmp_path / "found.json")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["pictures"] == len(outputs("display_data"))
    for topic, text in found["stories"]:  # as printed below the cell
        assert any(f"{topic:8} {text}\n" in "".join(output["text"]) for output in outputs("stream"))
    assert found["accuracy"] > 0.6 and found["same_topic"] > 0.9 and found["classified"] > 0.9
