"""studies/demo.py, small: both runs, the table and what is left."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.mark.slow
def test_the_demo(study, tmp_path, text_file, capsys, own_cache, monkeypatch):
    sizes = "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,max_position_embeddings=64"
    # Held out by name, as the docstrings are.
    held_out = tmp_path / "held_out.txt"
    held_out.write_text("".join(text_file.open(encoding="utf-8").readlines()[:20]))
    flags = [
        f"--train_file={text_file}",
        f"--validation_file={held_out}",
        *"--vocab_size 320 --max_seq_length 16 --max_steps 8 --use_cpu".split(),
    ]
    flags += (
        "--per_device_train_batch_size 4 --preprocessing_num_workers 1 --disable_tqdm true".split()
    )
    folder = tmp_path / "demo"
    demo = study("demo")
    monkeypatch.setattr(demo, "docstrings", None)  # a file is given
    demo.main([*flags, "--config_overrides", sizes, "--output_dir", str(folder)])
    shown = capsys.readouterr().out
    rows = re.findall(r"^\| (.+?) \| (.*?) \| (.*?) \| ([\d,]+) \|$", shown, re.MULTILINE)
    names = ["token frequencies alone", "headless, with its free head", "with a vocabulary head"]
    assert [row[0] for row in rows] == names and all(
        float(row[3].replace(",", "")) > 1 for row in rows
    )
    assert (folder / "comparison.png").stat().st_size > 1000 and "It writes: 'Return the" in shown
    model, tokenizer = (
        kind.from_pretrained(folder / "lm") for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    inputs = tokenizer("the", return_tensors="pt", return_token_type_ids=False)
    assert model(**inputs).logits.shape[-1] == len(tokenizer)
    assert Path(f"{folder}_vanilla", "model.safetensors").is_file()


def test_docstrings_are_the_corpus_and_a_folder_is_on_one_side(study, tmp_path, monkeypatch):
    demo, library = study("demo"), tmp_path / "lib"
    for folder in [*"abcdefghijklmnopqrstuvwxyz", "test"]:
        (library / folder).mkdir(parents=True)
        for number in (1, 2):
            long = f"{folder} {number} " + "says what it returns, in words enough to count. " * 3
            (library / folder / f"m{number}.py").write_text(
                f'''def f():\n    """{long}"""\n    """Too short."""\n'''
            )
    monkeypatch.setattr(demo.sysconfig, "get_paths", lambda: {"stdlib": str(library)})
    nothing = SimpleNamespace(origin=str(library / "none" / "x.py"))
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: nothing)
    _, train, _, held_out = demo.docstrings(tmp_path / "docs")
    written = [Path(file).read_text().splitlines() for file in (train, held_out)]
    sides = [{json.loads(line)["text"][:3] for line in lines} for lines in written]
    # Nothing short, and nothing of tests.
    assert sides[0] and sides[1] and len(sides[0]) + len(sides[1]) == 2 * 26
    assert not {text[0] for text in sides[0]} & {text[0] for text in sides[1]}


def test_the_clock_ends_the_run_and_brings_the_rates_down(study, monkeypatch):
    demo, now = study("demo"), [0.0]
    monkeypatch.setattr(demo.time, "perf_counter", lambda: now[0])
    clock, group, rates, control = demo.Clock(10.0, warmup=0.1), {"initial_lr": 2.0}, [], None

    class Control:
        should_training_stop = should_evaluate = False

    class Optimizer:
        param_groups = [group]

    stops, evaluations = [], []
    for _ in range(10):
        control = Control()
        clock.on_step_begin(None, None, control, optimizer=Optimizer)
        rates.append(group["lr"])
        now[0] += 1.0
        clock.on_step_end(None, None, control)
        now[0] += 100.0  # evaluation and logs do not count
        stops.append(control.should_training_stop)
        evaluations.append(control.should_evaluate)
    assert stops == [False] * 9 + [True]
    assert (
        rates[0] == pytest.approx(0.2)
        and max(rates) == rates[1] < 2
        and rates[1:] == sorted(rates[1:])[::-1]
    )
    assert [number for number, each in enumerate(evaluations, 1) if each] == [3, 5, 8, 10]


@pytest.mark.parametrize("used_by_others, share", [(0.0, 0.0), (6.0, 0.15), (40.0, 1.0)])
def test_the_share_of_other_programs_is_what_this_one_did_not_use(
    study, monkeypatch, used_by_others, share
):
    """In 20 seconds on two processors, of which this program uses 5 and waits for the rest."""
    demo = study("demo")
    now, machine, own = [100.0], SimpleNamespace(), SimpleNamespace(user=7.0, system=1.0)
    machine.user, machine.system, machine.steal = 50.0, 10.0, 1.0
    monkeypatch.setattr(demo.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(demo.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(demo.psutil, "cpu_times", lambda: machine)
    monkeypatch.setattr(demo.psutil, "Process", lambda: SimpleNamespace(cpu_times=lambda: own))
    others = demo.OtherPrograms()
    others.on_train_begin(None, None, None)
    now[0] += 20.0
    own.user += 4.0
    own.system += 1.0
    machine.user += 4.0 + used_by_others / 2
    machine.system += 1.0
    machine.steal += used_by_others / 2
    others.on_train_end(None, None, None)
    assert others.share == pytest.approx(share)


@pytest.mark.parametrize(
    "shares, told", [((0.02, 0.48), True), ((0.48, 0.02), True), ((0.48, 0.45), False)]
)
def test_runs_that_were_disturbed_unequally_are_not_comparable(study, capsys, shares, told):
    demo = study("demo")
    demo.tell_of_other_programs(*shares)
    shown = capsys.readouterr().out
    assert ("48%" in shown and "2%" in shown) == told
