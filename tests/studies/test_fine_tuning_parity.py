"""studies/fine_tuning_parity.py: `glue` beside transformers' own `Trainer`, on tiny models."""

import json
from types import SimpleNamespace

import pytest
from builders import save, tiny_model
from row_files import write_tasks

pytest.importorskip("sklearn")

from headless_trainer.cli.glue import main as glue


@pytest.fixture
def script(study, monkeypatch):
    """The study, which runs `glue` in this process."""
    script = study("fine_tuning_parity")
    in_this_process = SimpleNamespace(run=lambda command, check: glue(command[2:]))
    monkeypatch.setattr(script, "subprocess", in_this_process)
    return script


@pytest.fixture
def inputs(tmp_path, text_lines, mlm_tokenizer) -> list[str]:
    """Flags of a study of a BERT with dropout on tasks of a dozen rows."""
    model = tiny_model("mlm", vocab_size=300, positions=64, dropout=0.1)
    save(tmp_path / "bert", model, mlm_tokenizer)
    write_tasks(tmp_path / "data", text_lines)
    flags = ["--model", str(tmp_path / "bert"), "--data_dir", str(tmp_path / "data")]
    flags += ["--output_dir", str(tmp_path / "out"), "--max_seq_length", "48"]
    flags += ["--flags", "--num_train_epochs 2 --per_device_train_batch_size 5 --use_cpu"]
    return flags


def results_in(tmp_path) -> dict[tuple[str, str], dict]:
    """Return the rows of the study's results, by task and way."""
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    return {(row["task"], row["way"]): row for row in rows}


@pytest.mark.parametrize("precision", ["--bf16 false", "--bf16 true"])
def test_glue_has_the_losses_of_transformers_where_the_rows_have_the_same_order(
    script, inputs, tmp_path, precision
):
    inputs[-1] += f" {precision}"
    script.main([*inputs, "--tasks", "cola", "stsb", "--seeds", "3"])
    rows = results_in(tmp_path)
    for task in ("cola", "stsb"):
        row = rows[task, "same_order"]
        assert row["steps"] == 6
        assert max(row["difference_of_losses"]) < 1e-6
        assert max(row["difference_of_held_out_losses"]) < 1e-6
        assert max(row["difference_of_scores"]) < 1e-6
        # Otherwise equal losses would say nothing of the rows.
        (own_order,) = rows[task, "transformers"]["last_loss"]
        assert own_order != pytest.approx(row["last_loss"][0], abs=1e-4)


def test_finished_runs_are_not_repeated(script, inputs, tmp_path, monkeypatch):
    flags = [*inputs, "--tasks", "cola", "--seeds", "0", "--ways", "transformers"]
    script.main(flags)
    first = results_in(tmp_path)
    monkeypatch.setattr(script, "Trainer", None)
    script.main(flags)
    assert results_in(tmp_path) == first


def test_the_first_rows_alone_are_trained_on_and_scored(script, inputs, tmp_path):
    limits = ["--max_train_samples", "5", "--max_eval_samples", "4"]
    ways = ["--ways", "glue", "same_order"]
    flags = [*inputs, "--tasks", "cola", "--seeds", "0", *ways, *limits]
    script.main(flags)
    row = results_in(tmp_path)["cola", "same_order"]
    assert row["steps"] == 2
    assert max(row["difference_of_losses"]) < 1e-6
    assert max(row["difference_of_held_out_losses"]) < 1e-6
