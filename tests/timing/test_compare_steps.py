"""`headless-trainer compare-steps`: what it times, what it says, and what it refuses."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from architectures import multimodal_config
from builders import refused, save, tiny_model
from transformers import Gemma3ForConditionalGeneration, TrainerControl, TrainerState

from headless_trainer.cli.compare_steps import main
from headless_trainer.command_line import help_text, parse_args
from headless_trainer.optimizers.muon import MuonAnd
from headless_trainer.timing import step_report, timed_training, turns
from headless_trainer.timing.advice import advise
from headless_trainer.timing.exact_heads import load_head
from headless_trainer.timing.step_arguments import ARGUMENT_CLASSES
from headless_trainer.timing.step_report import compare_steps
from headless_trainer.timing.step_rows import (
    distinct_tokens,
    draw_rows,
    find_tokenizer,
    rows_of,
    stand_in_tokenizer,
    tokens_of_step,
)
from headless_trainer.timing.timed_training import StepClock, Turn, TurnRequest, take_turn
from headless_trainer.timing.turns import Measurements, TurnProcess, head_share, measure
from headless_trainer.trainers.mean_prediction import MeanPrediction

SMALL_STEPS = ["--per_device_train_batch_size", "2", "--max_seq_length", "16", "--use_cpu"]
NEW_DECODER = [
    *("--model_type", "gpt2", "--vocab_size", "400"),
    *("--config_overrides", "n_embd=16,n_layer=1,n_head=2,n_positions=32"),
]
NEW_ENCODER = [
    *("--model_type", "bert", "--vocab_size", "400", "--config_overrides"),
    "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=16",
]
TINY_LLAMA = (
    "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=2,"
    "intermediate_size=16"
)
# What a terminal is sent to go back to the beginning of a line and to empty it.
ERASE_LINE = "\r\x1b[K"
ON_CPU = ("trunk", "headless", "sampled_softmax", "vanilla", "transformers")


@pytest.fixture
def decoder(tmp_path, clm_tokenizer) -> str:
    """A decoder with its head."""
    return save(tmp_path / "decoder", tiny_model("clm", 300, "vanilla"), clm_tokenizer)


@pytest.fixture
def encoder(tmp_path, mlm_tokenizer) -> str:
    """An encoder with its head."""
    return save(tmp_path / "encoder", tiny_model("mlm", 300, "vanilla"), mlm_tokenizer)


@pytest.fixture
def bare_trunk(tmp_path, mlm_tokenizer) -> str:
    """An encoder without a head, as sentence encoders are published."""
    return save(tmp_path / "trunk", tiny_model("mlm", 300), mlm_tokenizer)


def request_for(name: str, task: str, argv: list[str]) -> TurnRequest:
    """A turn of two timed steps."""
    model_args, data_args, args = parse_args(ARGUMENT_CLASSES, argv)
    config = tiny_model(task, 300).config
    tokenizer = find_tokenizer(model_args, config)
    rows, _ = rows_of(tokenizer, model_args, data_args, args, task)
    return TurnRequest(argv, name, task, rows, seconds=0.0, readings=2)


def turn_of(request: TurnRequest) -> Turn:
    """The turn that this process takes."""
    with tempfile.TemporaryDirectory() as folder:
        turn = take_turn(request, folder)
        assert os.listdir(folder) == []
        return turn


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_each_objective_takes_its_turn(name, task):
    model = {"clm": NEW_DECODER, "mlm": NEW_ENCODER}[task]
    turn = turn_of(request_for(name, task, [*model, *SMALL_STEPS]))
    assert len(turn.seconds) == 2
    assert min(turn.seconds) > 0
    assert turn.peak_mib > 100  # with Python and its libraries
    assert turn.device == "cpu"


@pytest.mark.parametrize(("name", "earlier"), [("headless", 100), ("trunk", 0)])
def test_pools_are_as_full_as_in_training_from_the_first_step(tmp_path, name, earlier):
    argv = [*NEW_DECODER, *SMALL_STEPS, "--pool_size", "100"]
    trainer = timed_training.make_trainer(request_for(name, "clm", argv), str(tmp_path))
    assert len(trainer.pools.further_targets.ids) == earlier


def test_texts_are_not_read_with_the_stand_in_of_a_tokenizer(text_file):
    """It knows no word: every document would be one unknown token."""
    argv = [*NEW_DECODER, *SMALL_STEPS, "--train_file", str(text_file)]
    model_args, data_args, args = parse_args(ARGUMENT_CLASSES, argv)
    rows, source = rows_of(stand_in_tokenizer(400), model_args, data_args, args, "clm")
    assert "since no tokenizer is named" in source
    assert distinct_tokens(rows, 2) > 10


def test_tokens_of_short_rows_are_counted():
    rows = [np.arange(length) for length in (3, 5, 2, 6)]
    assert tokens_of_step(rows, 2) == 8


def test_only_a_language_model_trains_the_parameters_of_an_encoders_head():
    sizes = {}
    for name in ON_CPU:
        sizes[name] = turn_of(request_for(name, "mlm", [*NEW_ENCODER, *SMALL_STEPS])).parameters
    assert sizes["trunk"] == sizes["headless"]
    assert sizes["sampled_softmax"] == sizes["vanilla"] == sizes["transformers"]
    # The dense layer, its LayerNorm and the bias of 400 scores.
    assert sizes["vanilla"] - sizes["headless"] == (16 * 16 + 16) + 2 * 16 + 400


@pytest.mark.parametrize("name", ON_CPU)
def test_a_decoder_checkpoint_is_timed_with_each_objective(decoder, name):
    argv = ["--model_name_or_path", decoder, *SMALL_STEPS]
    assert len(turn_of(request_for(name, "clm", argv)).seconds) == 2


@pytest.mark.parametrize("name", ["trunk", "headless", "vanilla"])
def test_a_bare_trunk_is_timed_where_it_can_be_trained(bare_trunk, name):
    argv = ["--model_name_or_path", bare_trunk, *SMALL_STEPS]
    assert len(turn_of(request_for(name, "mlm", argv)).seconds) == 2


def test_a_bare_trunk_has_no_head_to_continue_on_candidates(bare_trunk, tmp_path):
    argv = ["--model_name_or_path", bare_trunk, *SMALL_STEPS]
    reason = turns.turn_or_reason(request_for("sampled_softmax", "mlm", argv), str(tmp_path))
    assert "sampled_softmax" in reason
    assert "cls.predictions" in reason
    assert "\n" not in reason


def test_exact_steps_of_sampled_softmax_weigh_as_much_as_they_occur(monkeypatch):
    """Candidates take a second, exact steps nine: one step in four is exact."""
    *_, args = parse_args(
        ARGUMENT_CLASSES,
        [*NEW_DECODER, *SMALL_STEPS, "--objective", "sampled_softmax", "--exact_every", "4"],
    )
    clock = StepClock(args, deadline=0.0, readings=2)
    ends = iter([100.0, 101.0, 110.0, 111.0, 120.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(ends))
    control = TrainerControl()
    for step in range(1, 6):
        clock.on_step_end(args, TrainerState(global_step=step), control)
        assert control.should_training_stop == (step == 5)
    assert clock.seconds == [3.0, 3.0]


def test_half_of_the_timed_steps_of_sampled_softmax_are_exact(monkeypatch):
    exact = []
    observe = MeanPrediction.observe

    def counted(self, *given):
        exact.append(True)
        observe(self, *given)

    monkeypatch.setattr(MeanPrediction, "observe", counted)
    turn_of(request_for("sampled_softmax", "clm", [*NEW_DECODER, *SMALL_STEPS]))
    assert len(exact) == 3  # the first step, and one for each of two readings
    exact.clear()
    never = ["--exact_every", "0"]
    turn_of(request_for("sampled_softmax", "clm", [*NEW_DECODER, *SMALL_STEPS, *never]))
    assert exact == []


def test_a_head_bias_is_part_of_the_exact_step():
    argv = [*NEW_DECODER, *SMALL_STEPS, "--objective", "vanilla", "--head_bias", "prior"]
    with_bias = turn_of(request_for("vanilla", "clm", argv)).parameters
    without = turn_of(request_for("vanilla", "clm", [*NEW_DECODER, *SMALL_STEPS])).parameters
    assert with_bias - without == 400
    # Each line is of its own objective, whatever objective the command was written for.
    assert turn_of(request_for("headless", "clm", argv)).parameters == without


def test_a_head_of_another_library_takes_the_place_of_ours(monkeypatch):
    """With the inputs of the exact softmax, which is put in the place of a kernel for GPUs."""
    heads = []

    def head(hidden, targets, weight, bias=None, *, reduction="mean"):
        heads.append((hidden.shape, targets.shape, weight.shape, reduction))
        scores = torch.nn.functional.linear(hidden, weight, bias)
        return torch.nn.functional.cross_entropy(scores, targets, reduction=reduction)

    monkeypatch.setattr(timed_training, "load_head", lambda name, device: head)
    turn_of(request_for("liger", "clm", [*NEW_DECODER, *SMALL_STEPS]))
    assert heads == 3 * [((30, 16), (30,), (400, 16), "sum")]


def test_a_head_of_another_library_takes_half_precision_without_autocast(monkeypatch):
    calls = []

    def head(hidden, targets, weight, bias=None, *, reduction="mean"):
        calls.append((hidden.dtype, weight.dtype, torch.is_autocast_enabled("cpu")))
        scores = torch.nn.functional.linear(hidden, weight, bias)
        return torch.nn.functional.cross_entropy(scores, targets, reduction=reduction)

    monkeypatch.setattr(timed_training, "load_head", lambda name, device: head)
    turn_of(request_for("liger", "clm", [*NEW_DECODER, *SMALL_STEPS, "--bf16"]))
    assert calls == 3 * [(torch.bfloat16, torch.bfloat16, False)]


def test_settings_that_change_a_step_reach_every_trainer():
    flags = ["--gradient_accumulation_steps", "2", "--sparse_embedding_updates", "--bf16"]
    for name in ON_CPU:
        turn = turn_of(request_for(name, "clm", [*NEW_DECODER, *SMALL_STEPS, *flags]))
        assert len(turn.seconds) == 2


def test_every_trainer_has_the_same_optimizer(tmp_path):
    argv = [*NEW_DECODER, *SMALL_STEPS, "--muon_learning_rate", "1e-3"]
    for name in ON_CPU:
        trainer = timed_training.make_trainer(request_for(name, "clm", argv), str(tmp_path / name))
        optimizer = trainer.create_optimizer()
        assert isinstance(optimizer, MuonAnd)
        of_muon = [weight for group in optimizer.muon.param_groups for weight in group["params"]]
        assert len(of_muon) == 4  # of the one layer


def test_a_checkpoint_of_several_modalities_is_compared(tmp_path, clm_tokenizer, monkeypatch):
    folder = str(tmp_path / "model")
    config = multimodal_config(len(clm_tokenizer))
    Gemma3ForConditionalGeneration(config).save_pretrained(folder)
    clm_tokenizer.save_pretrained(folder)
    monkeypatch.setattr(step_report, "measure", lambda *args: timings(trunk=1.0, vanilla=1.0))
    flags = ["--model_name_or_path", folder, *SMALL_STEPS, "--token", "hf_secretOfTheTests"]
    comparison = compare_steps(flags)
    assert "hf_secretOfTheTests" not in json.dumps(comparison.as_json())
    assert comparison.shape["vocab_size"] == len(clm_tokenizer)
    assert comparison.has_head
    turn = turn_of(request_for("vanilla", "clm", ["--model_name_or_path", folder, *SMALL_STEPS]))
    assert len(turn.seconds) == 2
    model_args, *_ = parse_args(ARGUMENT_CLASSES, ["--config_name", folder])
    assert len(find_tokenizer(model_args, config)) == len(clm_tokenizer)


def test_a_command_of_pretrain_is_read_as_it_stands(tmp_path):
    flags = [
        *("--output_dir", str(tmp_path / "run"), "--save_steps", "10", "--eval_strategy", "steps"),
        *("--load_best_model_at_end", "true", "--max_steps", "500", "--warmup_steps", "10"),
        *("--objective", "vanilla", "--head_bias", "prior", "--learning_rate", "1e-3"),
        *("--push_to_hub", "true", "--train_tokenizer", "--validation_split_percentage", "10"),
    ]
    *_, args = parse_args(ARGUMENT_CLASSES, [*NEW_DECODER, *flags])
    assert args.learning_rate == 1e-3
    assert args.save_strategy == "no"
    assert args.push_to_hub is False
    assert args.head_bias == "prior"
    assert args.output_dir != str(tmp_path / "run")
    *_, other = parse_args(ARGUMENT_CLASSES, [*NEW_DECODER, *flags, "--objective", "headless"])
    assert other.head_bias == "none"


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (["--objectives", "headles"], "headles"),
        (["--seconds", "0"], "0"),
        (["--trainer", "mine:Trainer"], "mine:Trainer"),
        (["--per_device_train_batch_size", "0"], "0"),
    ],
)
def test_what_cannot_be_timed_is_refused(flags, value):
    name = flags[0].removeprefix("--")
    with pytest.raises(ValueError, match=f"{name} is .*{value}"):
        parse_args(ARGUMENT_CLASSES, [*NEW_DECODER, *flags])


def test_drawn_rows_are_the_same_at_each_call_and_hold_no_special_token():
    tokenizer = stand_in_tokenizer(1_000)
    rows = draw_rows(8, 64, tokenizer)
    assert len(rows) == 8
    assert all(row.shape == (64,) for row in rows)
    ids = np.concatenate(rows)
    assert ids.min() >= 5  # the first five tokens are special
    assert ids.max() < 1_000
    np.testing.assert_array_equal(ids, np.concatenate(draw_rows(8, 64, tokenizer)))


def test_drawn_tokens_are_about_as_many_different_ones_as_those_of_a_text():
    """1,024 targets of English novels in 50,304 tokens have 430 to 470 different ones."""
    rows = draw_rows(16, 128, stand_in_tokenizer(50_304))
    assert 400 < distinct_tokens(rows, rows_of_step=8) < 480


def test_rows_are_read_from_texts(decoder, text_file):
    argv = ["--model_name_or_path", decoder, "--train_file", str(text_file), *SMALL_STEPS]
    model_args, data_args, args = parse_args(ARGUMENT_CLASSES, argv)
    tokenizer = find_tokenizer(model_args, None)
    rows, source = rows_of(tokenizer, model_args, data_args, args, "clm")
    assert len(rows) == 16  # eight steps of two rows
    assert "text" in source
    words = tokenizer.decode(rows[0])
    assert words[:8] in text_file.read_text()


def test_texts_that_fill_no_step_are_refused(decoder, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("".join(f"the miller crossed the river {line}.\n" for line in range(20)))
    flags = ["--train_file", str(path), "--per_device_train_batch_size", "64", "--use_cpu"]
    argv = ["--model_name_or_path", decoder, *flags, "--max_seq_length", "32"]
    model_args, data_args, args = parse_args(ARGUMENT_CLASSES, argv)
    tokenizer = find_tokenizer(model_args, None)
    with pytest.raises(ValueError, match="per_device_train_batch_size is 64"):
        rows_of(tokenizer, model_args, data_args, args, "clm")


def test_without_a_tokenizer_the_vocabulary_is_that_of_the_configuration(tmp_path):
    config = tiny_model("clm", 350).config
    argv = ["--config_name", str(tmp_path)]
    for flags, size in (([], 350), (["--vocab_size", "777"], 777)):
        model_args, *_ = parse_args(ARGUMENT_CLASSES, [*argv, *flags])
        assert len(find_tokenizer(model_args, config)) == size


@pytest.mark.parametrize("name", ["liger", "cce", "quack"])
def test_heads_of_other_libraries_need_a_gpu(name):
    with pytest.raises(ValueError, match=name):
        load_head(name, torch.device("cpu"))


# The advice -----------------------------------------------------------------------------------


def timings(has_free_head: bool = True, **seconds: float) -> dict[str, Measurements]:
    """Measurements of one reading in each of three rounds, and of 1,000 MiB."""
    return {
        name: Measurements(
            seconds=[[value]] * 3,
            peak_mib=1_000.0,
            has_free_head=has_free_head if name == "headless" else None,
        )
        for name, value in seconds.items()
    }


def test_the_head_is_what_a_step_takes_beyond_the_trunk():
    measured = timings(trunk=1.0, vanilla=4.0, headless=0.9)
    assert head_share(measured["vanilla"], measured) == 0.75
    assert head_share(measured["headless"], measured) == 0.0
    assert head_share(measured["trunk"], measured) is None


def test_a_share_is_taken_round_by_round():
    """A machine that was twice as slow in one round changes no share."""
    measured = {
        "trunk": Measurements(seconds=[[1.0], [2.0], [1.0]]),
        "vanilla": Measurements(seconds=[[2.0], [4.0], [2.0]]),
    }
    assert head_share(measured["vanilla"], measured) == 0.5


@pytest.mark.parametrize("has_head", [False, True])
def test_a_small_head_speaks_for_exact_softmax(has_head):
    advice = advise(timings(trunk=0.91, headless=0.92, sampled_softmax=0.93, vanilla=1.0), has_head)
    assert "The head is 9 % of a step of vanilla: stay with vanilla" in advice


def test_a_head_that_the_noise_hides_has_no_share():
    advice = advise(timings(trunk=1.02, headless=1.01, vanilla=1.0), has_head=True)
    assert "no measurable part of a step of vanilla: stay with vanilla" in advice


def test_a_checkpoint_that_keeps_its_head_is_advised_sampled_softmax():
    measured = timings(trunk=1.0, headless=1.0, sampled_softmax=1.2, vanilla=2.0)
    advice = advise(measured, has_head=True)
    assert "The head is 50 % of a step of vanilla" in advice
    assert "try sampled_softmax, which takes 40 % less time" in advice
    assert "headless takes 50 % less time" in advice


def test_a_model_without_a_head_is_advised_headless():
    measured = timings(trunk=1.0, headless=1.0, sampled_softmax=1.2, vanilla=2.0)
    advice = advise(measured, has_head=False)
    assert "pretrain headless, which takes 50 % less time" in advice
    assert "attach the free head" in advice
    assert "sampled_softmax" not in advice


def test_a_model_that_can_have_no_free_head_is_advised_to_train_one():
    measured = timings(has_free_head=False, trunk=1.0, headless=1.0, vanilla=2.0)
    advice = advise(measured, has_head=False)
    assert "pretrain headless, which takes 50 % less time" in advice
    assert "lm-head --init embeddings --do_train" in advice
    assert "free head" not in advice


@pytest.mark.parametrize(("model", "has_free_head"), [
    (NEW_DECODER, True),
    (["--model_type", "llama", "--vocab_size", "400", "--config_overrides", TINY_LLAMA], False),
])  # fmt: skip
def test_a_turn_says_whether_the_model_can_have_a_free_head(model, has_free_head):
    turn = turn_of(request_for("headless", "clm", [*model, *SMALL_STEPS]))
    assert turn.has_free_head is has_free_head
    measured = Measurements()
    measured.add(turn)
    assert measured.has_free_head is has_free_head
    assert turn_of(request_for("vanilla", "clm", [*model, *SMALL_STEPS])).has_free_head is None


def test_sampled_softmax_that_saves_nothing_is_not_advised():
    measured = timings(trunk=1.0, headless=1.9, sampled_softmax=1.95, vanilla=2.0)
    advice = advise(measured, has_head=True)
    assert "stay with vanilla" in advice
    assert "try sampled_softmax" not in advice


def test_exact_is_the_fastest_exact_head():
    measured = timings(trunk=0.95, headless=0.96, vanilla=2.0, liger=1.0)
    advice = advise(measured, has_head=False)
    assert "5 % of a step of vanilla with Liger's head: stay with vanilla with Liger's" in advice
    assert "docs/howto/gpus.md" in advice


def test_users_of_transformers_are_told_of_a_faster_exact_softmax():
    measured = timings(trunk=0.95, headless=0.96, vanilla=1.0, transformers=2.0)
    measured["transformers"].peak_mib = 4_000.0
    advice = advise(measured, has_head=True)
    assert "vanilla has the same loss, with 50 % less time and 75 % less memory" in advice


def test_times_that_differ_from_round_to_round_speak_for_nothing():
    measured = timings(trunk=1.0, headless=1.0, sampled_softmax=1.2, vanilla=2.0)
    measured["headless"].seconds = [[1.0], [2.0], [1.0]]
    advice = advise(measured, has_head=True)
    assert "times of headless differ by 100 %" in advice
    assert "stay with" not in advice and "try" not in advice


def test_readings_of_a_single_round_show_the_noise():
    measured = timings(trunk=1.0, headless=1.0, vanilla=2.0)
    measured["vanilla"].seconds = [[1.5, 2.0, 2.5]]
    assert measured["vanilla"].spread == 0.5
    assert "times of vanilla differ by 50 %" in advise(measured, has_head=False)
    measured["vanilla"].seconds = [[2.0, 9.0, 2.0, 2.0]]  # one interruption
    assert measured["vanilla"].spread == 0.0


def test_a_trunk_that_takes_longer_than_a_whole_step_speaks_for_nothing():
    advice = advise(timings(trunk=1.2, headless=1.0, vanilla=1.0), has_head=False)
    assert "trunk alone took longer than a step of vanilla" in advice
    assert "stay with" not in advice


def test_without_an_exact_softmax_nothing_is_advised():
    measured = timings(trunk=1.0, headless=1.1)
    measured["vanilla"] = Measurements(reason="out of memory")
    assert "nothing to compare" in advise(measured, has_head=False)


# Turns and processes --------------------------------------------------------------------------


class StandInProcess:
    """Answers each request at once; ``broken`` fails in its second turn."""

    asked: list[str] = []

    def ask(self, request: str):
        self.asked.append(request)
        if request == "broken" and self.asked.count("broken") == 2:
            return "it broke"
        return Turn(seconds=[1.0], peak_mib=1.0, parameters=1, device="cpu")


def test_objectives_take_turns_and_one_that_failed_is_not_asked_again(monkeypatch):
    from contextlib import nullcontext

    StandInProcess.asked = []
    processes = {name: StandInProcess() for name in ("first", "broken", "last")}
    monkeypatch.setattr(turns, "processes_of", lambda names: nullcontext(processes))
    measured = measure(lambda name, seconds: name, list(processes), seconds=1.0, rounds=3)
    assert StandInProcess.asked == [
        *("first", "broken", "last"),
        *("first", "broken", "last"),
        *("first", "last"),
    ]
    assert measured["broken"].reason == "it broke"
    assert not measured["broken"].was_timed
    assert measured["last"].seconds == [[1.0], [1.0], [1.0]]


@pytest.mark.slow
def test_a_killed_process_is_a_reason_and_no_crash():
    process = TurnProcess()
    try:
        process.wait_until_ready()
        os.kill(process._process.pid, signal.SIGKILL)
        assert "killed" in process.ask(request_for("trunk", "clm", [*NEW_DECODER, *SMALL_STEPS]))
    finally:
        process.stop()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["decoder", "bare_trunk"])
def test_the_command_prints_a_table_and_writes_the_seconds(model, request, tmp_path, capsys):
    folder = request.getfixturevalue(model)
    path = tmp_path / "results" / "steps.json"
    main(
        [
            *("--model_name_or_path", folder, "--seconds", "1", "--output_file", str(path)),
            *SMALL_STEPS,
        ]
    )
    printed = capsys.readouterr().out
    results = json.loads(path.read_text())
    assert results["task"] == ("clm" if model == "decoder" else "mlm")
    assert list(results["objectives"]) == list(ON_CPU)
    timed = {name for name, each in results["objectives"].items() if "reason" not in each}
    if model == "bare_trunk":
        assert timed == set(ON_CPU) - {"sampled_softmax"}
        assert "cls.predictions" in results["objectives"]["sampled_softmax"]["reason"]
        assert "Not timed: sampled_softmax" in printed
    else:
        assert timed == set(ON_CPU)
    for name in timed:
        assert results["objectives"][name]["tokens_per_second"] > 0
        assert results["objectives"][name]["peak_mib"] > 100
    assert results["advice"] in printed
    assert results["has_head"] == (model != "bare_trunk")


@pytest.mark.slow
def test_the_comparison_in_python_takes_rounds_and_readings():
    argv = [*NEW_DECODER, *SMALL_STEPS, "--objectives", "trunk", "vanilla"]
    comparison = compare_steps(argv, rounds=2, readings=3)
    assert list(comparison.measured) == ["trunk", "vanilla"]
    assert [len(turn) for turn in comparison.measured["trunk"].seconds] == [3, 3]
    assert isinstance(comparison.text(), str)
    command = comparison.as_json()["origin"]["Command"]
    assert command.split()[:4] == ["headless-trainer", "compare-steps", *argv[:2]]


def test_a_launcher_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="WORLD_SIZE is 2"):
        main([*NEW_DECODER, *SMALL_STEPS])


def test_a_folder_in_place_of_the_output_file_is_refused_before_the_timing(tmp_path, monkeypatch):
    monkeypatch.setattr("headless_trainer.timing.step_report.compare_steps", None)  # not reached
    said = refused(main, *NEW_DECODER, "--output_file", tmp_path)
    assert "output_file is" in said and str(tmp_path) in said


def test_the_line_that_tells_the_progress_is_gone_before_the_table(monkeypatch, capsys):
    def compare(words, tell):
        tell("timing headless")
        return SimpleNamespace(text=lambda: "the table")

    monkeypatch.setattr("headless_trainer.timing.step_report.compare_steps", compare)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    main([*NEW_DECODER, *SMALL_STEPS])
    shown = capsys.readouterr()
    assert "timing headless" in shown.err
    *_, last_line = shown.err.split(ERASE_LINE)
    assert last_line == ""
    assert shown.out == "the table\n"


def test_earlier_texts_are_not_read_for_the_timing(text_file, encoder):
    argv = ["--model_name_or_path", encoder, *SMALL_STEPS, "--train_file", str(text_file)]
    earlier = ["--eval_old_file", "no.txt", "--replay_file", "no.txt", "--replay_share", "0.2"]
    without = request_for("headless", "mlm", argv).rows
    with_earlier = request_for("headless", "mlm", [*argv, *earlier]).rows
    assert len(with_earlier) == len(without) > 0
    assert all((one == other).all() for one, other in zip(with_earlier, without, strict=True))


def test_the_help_lists_no_flag_of_texts_that_are_not_read():
    listed = help_text(ARGUMENT_CLASSES)
    assert "--train_file" in listed
    for name in ("validation_file", "eval_old_file", "replay_file", "replay_share"):
        assert f"--{name}" not in listed


def test_the_timed_prior_counts_what_a_training_would_predict(encoder, tmp_path):
    """Of [CLS] 7 7 8 [SEP], the special tokens are never predicted."""
    argv = ["--model_name_or_path", encoder, *SMALL_STEPS]
    request = TurnRequest(argv, "sampled_softmax", "mlm", [np.array([2, 7, 7, 8, 3])] * 2, 0.0, 2)
    trainer = timed_training.make_trainer(request, str(tmp_path))
    assert (~trainer.unseen).nonzero().flatten().tolist() == [7, 8]
    assert trainer.frequency[7] == pytest.approx(2 * trainer.frequency[8].item(), rel=0.3)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_a_process_that_waits_for_its_turn_gives_its_memory_back():
    # 200 MiB in pieces that the heap keeps for later, as it does with the weights of layers.
    program = """
import psutil
import torch
from headless_trainer.timing.turns import free_memory

process = psutil.Process()
before = process.memory_info().rss
weights = []
between = []  # what lies between them, so that the heap cannot shrink at its end
for _ in range(2000):
    weights.append(torch.ones(25 * 1024))
    between.append(torch.ones(16))
del weights
free_memory()
print((process.memory_info().rss - before) / 2**20)
"""
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    kept_mib = float(output)
    assert kept_mib < 50
