"""studies/shared.py: what is written down of a study."""

import json
import os
import sys

import pytest
from transformers import AutoTokenizer

from headless_trainer.arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from headless_trainer.cards.facts import software
from headless_trainer.command_line import parse_args


def test_results_say_what_they_came_from(study, tmp_path, monkeypatch, capsys):
    shared = study("shared")
    card = "- Versions: Python 3.11\n- Commit of the working directory: {}\n"
    for name, at in (("a", "0123, with changes"), ("b", "4567"), ("c", "4567")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(card.format(at))
    argv = [
        "/home/x/studies/tying.py",
        "--train_file",
        "/a/data/en.txt.gz",
        "--output_dir",
        f"{tmp_path}/",
        "--others",
    ]
    monkeypatch.setattr(
        sys,
        "argv",
        [*argv, "vanilla, tied=/a/b/c/v@69", "b=a/b/c", "--flags=--data_dir /a/b/c --y"],
    )
    runs = [tmp_path / name for name in ("a", "b", "c", "without_a_card")]
    shared.write_results(tmp_path / "out", {"perplexity": [1.5]}, ["| a |", "|---|"], runs=runs)
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["results"] == {"perplexity": [1.5]}
    origin = found["origin"]
    assert origin["Command"] == (
        "python studies/tying.py --train_file data/en.txt.gz --output_dir "
        f"{tmp_path.parent.name}/{tmp_path.name} --others 'vanilla, tied=c/v@69' b=a/b/c "
        "'--flags=--data_dir b/c --y'"
    )
    assert origin.items() >= software().items()
    assert origin["Commits of the runs"] == "0123, with changes, 4567"
    table = (tmp_path / "out" / "results.md").read_text()
    assert (
        table.startswith("| a |\n|---|\n\n- Command: python studies/tying.py")
        and table in capsys.readouterr().out
    )
    assert not (tmp_path / "out" / "results.png").exists()


def test_runs_side_by_side_share_the_cores_and_go_on_from_their_checkpoint(
    study, tmp_path, monkeypatch
):
    shared = study("shared")
    code = (
        "import os, sys; open(sys.argv[1], 'w').write('{}'); print(os.environ['OMP_NUM_THREADS'])"
    )
    saying = [sys.executable, "-c", code]
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert (
        shared.results_of([*saying, str(tmp_path / "of_5" / "a")], tmp_path / "of_5", "a", 3) == {}
    )
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert (
        shared.results_of([*saying, str(tmp_path / "of_4" / "b")], tmp_path / "of_4", "b", 3) == {}
    )
    said = [(tmp_path / name / "console.log").read_text() for name in ("of_5", "of_4")]
    assert said == ["5\n", "4\n"]  # as it was asked for, else a share of the cores
    failing = [sys.executable, "-c", "import sys; raise ValueError(sys.argv[1:])"]
    (tmp_path / "checkpoint-5").mkdir()
    with pytest.raises(SystemExit, match="--resume_from_checkpoint', 'last'"):
        shared.results_of(failing, tmp_path, "c", 1)
    (tmp_path / "c").write_text("{}")
    assert shared.results_of(failing, tmp_path, "c", 1) == {}  # done, and not started again
    with pytest.raises(SystemExit, match=r"has a run of another command, see its command\.txt"):
        shared.results_of([*failing, "--max_steps", "9"], tmp_path, "c", 1)


def flags_given(command: list[str]) -> dict[str, list[str]]:
    """What a command line gives by the names of its flags; where one stands twice, the last."""
    found: dict[str, list[str]] = {}
    for word in command:
        if word.startswith("--"):
            values = found[word[2:]] = []
        elif found:
            values.append(word)
    return found


@pytest.fixture
def commands(study, monkeypatch):
    """The module and the commands that it would have run, all of which come to their
    end at once.
    """
    shared, started = study("shared"), []

    def run(command, folder, name, jobs):
        assert name == "eval_results.json"
        started.append(command)
        return {"eval_cross_entropy": 2.5}

    monkeypatch.setattr(shared, "results_of", run)
    return shared, started


def study_of(shared, tmp_path, *flags: str, **settings):
    parser = shared.model_arguments("A study.")
    return shared.at_scale(parser.parse_args(["--output_dir", str(tmp_path), *flags]), **settings)


def test_paper_scale_is_the_preset_of_the_baseline_for_all_recipes(commands, tmp_path):
    shared, started = commands
    launcher = "accelerate launch --num_processes 8"
    args = study_of(shared, tmp_path, "--scale", "paper", "--launcher", launcher, max_steps=100)
    assert (args.max_steps, args.batch_size, args.schedule) == (143_000, 8, "cosine")
    assert "objective" not in args.settings  # which the preset of the baseline has
    shared.prepare(args)  # which has a name: nothing to train
    assert shared.pretrain(args, "headless + Muon", 2e-3, 1) == 2.5
    assert (
        started[0][:5] == [*launcher.split(), "run_pretrain.py"]
        and not (tmp_path / "clm_tokenizer").exists()
    )
    given = flags_given(started[0])
    expected = {
        "config_name": "EleutherAI/pythia-70m-deduped", "tokenizer_name": "EleutherAI/pythia-70m-deduped",
        "dataset_name": "Skylion007/openwebtext", "max_seq_length": "2048", "gradient_accumulation_steps": "8",
        "max_steps": "143000", "warmup_steps": "1430", "learning_rate": "0.002", "adam_beta2": "0.95", "weight_decay": "0.1",
        "save_steps": "5000", "eval_steps": "14300", "muon_learning_rate": "0.004", "seed": "1",
        "output_dir": str(tmp_path / "clm_paper_cosine" / "headless_Muon" / "0.002_1"),
    }  # fmt: skip
    assert {name: given[name] for name in expected} == {
        name: [value] for name, value in expected.items()
    }
    assert shared.pretrain(args, "vanilla untied", 1e-3, 0) == 2.5
    assert flags_given(started[1])["objective"] == ["vanilla"]


@pytest.mark.parametrize("task", ["clm", "mlm"])
@pytest.mark.parametrize("scale", ["cpu", "small", "paper"])
def test_every_scale_gives_flags_that_pretraining_takes(commands, tmp_path, scale, task):
    shared, started = commands
    args = study_of(shared, tmp_path, "--scale", scale, "--task", task)
    shared.pretrain(args, "headless", 1e-3, 0)
    model, data, training = parse_args(
        [ModelArguments, DataArguments, HeadlessTrainingArguments], started[0][2:]
    )
    assert (training.objective, training.task, training.max_steps) == (
        "headless",
        task,
        args.max_steps,
    )
    assert data.max_seq_length == (2048 if (scale, task) == ("paper", "clm") else 128)
    width = {"cpu": 128, "small": 192, "paper": None}[scale]
    assert task == "mlm" or model.parsed_config_overrides().get("n_embd") == width


def test_every_ingredient_is_what_pretraining_takes(commands, tmp_path):
    """The model types of trunks, too, of which one ends in the letter that stands for the rate."""
    shared, started = commands
    of_decoders, of_encoders = (
        study_of(shared, tmp_path),
        study_of(shared, tmp_path, "--task", "mlm"),
    )
    assert study_of(shared, tmp_path, max_steps=144).max_steps == 144  # of a study, at this scale
    for ingredient in shared.INGREDIENTS:
        args, base = (
            (of_decoders, "vanilla tied")
            if ingredient == "bias log q"
            else (of_encoders, "headless")
        )
        shared.pretrain(args, f"{base} + {ingredient}", 1e-3, 0)
        parse_args([ModelArguments, DataArguments, HeadlessTrainingArguments], started[-1][2:])
    given = dict(zip(shared.INGREDIENTS, map(flags_given, started), strict=True))
    assert given["Muon"]["muon_learning_rate"] == ["0.002"]
    assert given["GPT-NeoX"]["model_type"] == ["gpt_neox"]
    assert (
        given["epsilon 1e-5"]["adam_epsilon"] == ["1e-5"]
        and given["beta2 0.999"]["adam_beta2"][-1] == "0.999"
    )


def test_seconds_are_those_of_training_at_the_pace_of_undisturbed_steps(study, tmp_path):
    shared = study("shared")
    paces = [100.0] * 4 + [200.0] * 5 + [5000.0]
    history = [
        {"step": n, "tokens_seen": 100.0 * n, "tokens_per_second": pace}
        for n, pace in enumerate(paces, 1)
    ]
    history += [{"step": step, "eval_accuracy": 0.1, "eval_cross_entropy": 2.0} for step in (4, 10)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert [point["seconds"] for point in shared.held_out_points(tmp_path)] == [2.0, 5.0]
    assert [point["seconds"] for point in shared.held_out_points(tmp_path, 50.0)] == [8.0, 20.0]


def test_a_run_that_fails_says_why_and_one_that_diverged_is_known(study, tmp_path, monkeypatch):
    shared = study("shared")
    failing = [sys.executable, "-c", "import os; raise ValueError(os.environ['WHY'])"]
    for why in ("no rows", "no GPU"):  # the second start has the first one's words before it
        monkeypatch.setenv("WHY", why)
        with pytest.raises(
            SystemExit, match=rf"{tmp_path}/a failed, see its console\.log: ValueError: {why}$"
        ):
            shared.results_of(failing, tmp_path / "a", "results.json", 1)
    monkeypatch.setenv("WHY", "the loss is nan, so the run stops.")
    assert shared.results_of(failing, tmp_path / "b", "results.json", 1) is None
    monkeypatch.setenv("WHY", "not started again")
    assert shared.results_of(failing, tmp_path / "b", "results.json", 1) is None
    silent = [sys.executable, "-c", "raise SystemExit(3)"]
    with pytest.raises(SystemExit, match=r"console\.log: exit status 3$"):
        shared.results_of(silent, tmp_path / "c", "results.json", 1)
    with pytest.raises(SystemExit, match="stopped before its end"):
        shared.results_of([sys.executable, "-c", ""], tmp_path / "d", "results.json", 1)


def test_a_corrected_command_replaces_one_that_left_nothing(study, tmp_path):
    shared = study("shared")
    folder = tmp_path / "run"
    failing = [sys.executable, "-c", "raise ValueError('--learning_rte is unknown')"]
    with pytest.raises(SystemExit, match="--learning_rte"):
        shared.results_of(failing, folder, "results.json", 1)
    code = "import sys; open(sys.argv[1], 'w').write('{}')"
    corrected = [sys.executable, "-c", code, str(folder / "results.json")]
    assert shared.results_of(corrected, folder, "results.json", 1) == {}
    assert "--learning_rte" not in (folder / "command.txt").read_text()


@pytest.mark.parametrize("left", ["results.json", "diverged", "checkpoint-5"])
def test_another_command_replaces_no_run_that_left_something(study, tmp_path, left):
    (tmp_path / "command.txt").write_text("run_pretrain.py --max_steps 5")
    (tmp_path / left).touch()
    with pytest.raises(SystemExit, match="has a run of another command"):
        study("shared").results_of([sys.executable, "-c", ""], tmp_path, "results.json", 1)
    assert (tmp_path / "command.txt").read_text() == "run_pretrain.py --max_steps 5"


def test_a_run_that_was_stopped_in_its_last_evaluation_starts_anew(study, tmp_path):
    """Its weights would be refused, as no checkpoint lies beside them to resume from."""
    shared = study("shared")
    weights = tmp_path / "model.safetensors"
    code = (
        "import sys; from pathlib import Path; folder = Path(sys.argv[1]); "
        "weights = folder / 'model.safetensors'; "
        "sys.exit('already holds weights') if weights.exists() else weights.touch(); "
        "last = folder / 'second_start'; "
        "(folder / 'results.json').write_text('{}') if last.exists() else sys.exit(143)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with pytest.raises(SystemExit, match="stopped before its end: the same command resumes it"):
        shared.results_of(command, tmp_path, "results.json", 1)
    assert weights.is_file()
    (tmp_path / "second_start").touch()
    assert shared.results_of(command, tmp_path, "results.json", 1) == {}


def test_weights_stay_that_no_run_of_the_study_wrote_or_that_have_a_checkpoint(study, tmp_path):
    shared = study("shared")
    failing = [sys.executable, "-c", "raise ValueError"]
    for name, beside in (("foreign", "config.json"), ("resumed", "checkpoint-5")):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("model.safetensors", beside):
            (folder / file).touch()
        with pytest.raises(SystemExit):
            shared.results_of(failing, folder, "results.json", 1)
        assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize("status", [130, 143, -2, -15])
def test_a_run_that_a_signal_ends_was_stopped_and_did_not_fail(study, tmp_path, status):
    code = f"import sys; sys.exit({status})"
    if status < 0:
        code = f"import os, signal; signal.signal({-status}, signal.SIG_DFL); "
        code += f"os.kill(os.getpid(), {-status})"
    with pytest.raises(SystemExit, match="stopped before its end"):
        study("shared").results_of([sys.executable, "-c", code], tmp_path, "results.json", 1)


def test_rows_are_made_before_the_first_run_is_timed(commands, tmp_path, own_cache):
    shared, _ = commands
    cache, lines = tmp_path / "library_cache", tmp_path / "lines.txt"
    lines.write_text("".join(f"the {number} of a {number}\n" for number in range(600)))
    args = study_of(shared, tmp_path, "--train_file", str(lines), "--vocab_size", "300")
    shared.prepare(args)
    made = {path: path.stat().st_mtime_ns for path in cache.rglob("*.arrow")}
    tokenizer = AutoTokenizer.from_pretrained(shared.tokenizer_of(args))
    assert shared.token_rows(shared.data_arguments(args), tokenizer, "train", 1).shape[1] == 128
    assert made and made == {path: path.stat().st_mtime_ns for path in cache.rglob("*.arrow")}


def test_a_row_with_a_line_separator_in_its_text_is_one_row(study, tmp_path):
    rows = [{"text": "first\u2028second"}, {"text": "third"}]
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    read_rows = study("shared").read_rows
    assert read_rows(path) == rows
    assert read_rows(path, 1) == rows[:1]


def test_scores_of_several_seeds_have_a_deviation_and_one_has_none(study):
    shared = study("shared")
    assert shared.mean_and_deviation([0.5, 0.7]) == ["60.0", "14.1"]
    assert shared.mean_and_deviation([0.5]) == ["50.0", ""]
