"""Trainings that push: what is on the Hub afterwards, that no failure of the Hub costs anything, and where no token is."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from builders import make_trainer, tiny_model
from hub_standin import TOKEN, StandIn, messages
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from headless_trainer import HeadlessTrainer
from headless_trainer.cli import make_lm_head as run_lm_head
from headless_trainer.cli import pretrain as run_pretrain
from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.hub import pushes as hub_module
from headless_trainer.hub.pushes import HubPushes
from headless_trainer.runtime.settings import read_settings

ROOT = Path(__file__).parents[2]
MODEL = {"config.json", "model.safetensors", "token_counts.safetensors", "tokenizer.json", "tokenizer_config.json"}
REPORT = {"trainer_state.json", "eval_results.json", "loss.png"}
QUICK = [
    *("--model_type", "gpt2", "--config_overrides", "n_embd=16,n_layer=2,n_head=2,n_positions=32", "--do_eval"),
    *("--train_tokenizer", "--vocab_size", "320", "--max_seq_length", "16", "--max_steps", "4", "--logging_steps", "2"),
    *("--per_device_train_batch_size", "4", "--use_cpu", "--disable_tqdm", "true", "--save_steps", "2"),
    *("--validation_split_percentage", "20", "--preprocessing_num_workers", "1", "--push_to_hub"),
]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setitem(hub_module.TRIES, "first_wait", 0.01)
    monkeypatch.setitem(hub_module.TRIES, "attempts", 2)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(autouse=True)
def all_messages(caplog):
    caplog.set_level("INFO", "headless_trainer")


def rows(count: int = 16) -> list[dict]:
    generator = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(1, 40, (8,), generator=generator)} for _ in range(count)]


def trainer_of(folder, objective: str = "headless", **settings):
    """A trainer of four steps on a tiny decoder that pushes to me/model."""
    settings = {
        "objective": objective, "push_to_hub": True, "hub_model_id": "me/model", "save_steps": 2, "max_steps": 4,
        "per_device_train_batch_size": 4, "logging_steps": 500,
    } | settings  # fmt: skip
    changes = {"layers": 1, "positions": 16, "dropout": 0.1, "tie_word_embeddings": False}
    counts = {} if objective == "headless" else {"token_counts": torch.arange(1, 41)}
    return make_trainer(folder, tiny_model("clm", 40, objective, **changes), rows(), settings, **counts)


def contents(folder: Path) -> bytes:
    """All that lies in a folder, one after the other, archives unpacked."""
    found = b""
    for path in folder.rglob("*"):
        if path.is_file():
            found += path.read_bytes()
            if path.suffix == ".bin":
                found += repr(vars(torch.load(path, weights_only=False))).encode()
    return found


# Settings of the trainer -----------------------------------------------------------------------------------------------


def test_the_token_stays_out_of_what_is_saved(tmp_path):
    trainer = trainer_of(tmp_path, push_to_hub=False, hub_token=TOKEN)
    trainer.save_model()
    saved = torch.load(tmp_path / "training_args.bin", weights_only=False)
    assert saved.hub_token is None and saved.max_steps == 4 == read_settings(tmp_path)["max_steps"]
    assert TOKEN.encode() not in contents(tmp_path)
    assert trainer.args.hub_token == TOKEN


def test_a_classifier_keeps_the_token_to_itself_too(tmp_path):
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=40)
    args = TrainingArguments(str(tmp_path), use_cpu=True, hub_token=TOKEN, report_to=[])
    ClassificationTrainer(BertForSequenceClassification(config), args, default_data_collator).save_model()
    assert (tmp_path / "training_args.bin").is_file() and TOKEN.encode() not in contents(tmp_path)


def test_only_the_main_process_pushes(tmp_path, monkeypatch):
    monkeypatch.setattr(HeadlessTrainer, "is_world_process_zero", lambda self: False)
    monkeypatch.setattr(HubPushes, "__init__", lambda *args, **kwargs: pytest.fail("another process pushes"))
    trainer = trainer_of(tmp_path)
    trainer.train()
    trainer.save_model()
    trainer.push_to_hub()
    assert trainer.hub is None


@pytest.mark.slow
@pytest.mark.parametrize("objective, head_bias", [("headless", "none"), ("vanilla", "prior")])
def test_saving_pushes_once_with_all_that_belongs_to_the_model(hub, tmp_path, objective, head_bias):
    trainer = trainer_of(tmp_path / "run", objective, head_bias=head_bias, save_strategy="no")
    trainer.train()
    assert not hub.repositories or not hub.repositories["me/model"].messages
    trainer.save_model()
    trainer.hub.wait()
    assert hub.repositories["me/model"].messages == ["Model save"]
    pushed = hub.files("me/model")
    generation = {"generation_config.json"} if objective == "vanilla" else set()
    assert set(pushed) == {"README.md", "config.json", "model.safetensors", "token_counts.safetensors"} | generation
    for name, content in pushed.items():
        assert content == (tmp_path / "run" / name).read_bytes()
    if objective == "vanilla":  # the head's bias is folded into what was saved last
        head = AutoModelForCausalLM.from_pretrained(tmp_path / "run").lm_head.weight
        assert not torch.equal(head, trainer.model.lm_head.weight)


@pytest.mark.slow
def test_pushing_by_hand_saves_first(hub, tmp_path):
    trainer = trainer_of(tmp_path / "run", push_to_hub=False, save_strategy="no", hub_token=TOKEN)
    trainer.train()
    trainer.save_model()
    assert not hub.repositories
    trainer.push_to_hub("by hand", revision="next", private=True)
    assert hub.repositories["me/model"].messages == ["by hand"] and hub.repositories["me/model"].private
    assert {"model.safetensors", "token_counts.safetensors"} < set(hub.files("me/model", "next"))


@pytest.mark.slow
def test_a_copy_saved_elsewhere_is_not_pushed(hub, tmp_path):
    trainer = trainer_of(tmp_path / "run", save_strategy="no")
    trainer.train()
    trainer.save_model(str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "model.safetensors").is_file()
    trainer.hub.wait()
    assert hub.requests == ["create"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint", "all_checkpoints"])
def test_strategies(hub, tmp_path, strategy):
    trainer = trainer_of(tmp_path, hub_strategy=strategy, hub_always_push=True, save_total_limit=1)
    trainer.train()
    model = {"README.md", "config.json", "model.safetensors", "token_counts.safetensors"}
    state = {
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
        "training_args.bin",
        "settings.json",
        "manifest.json",
    }
    pushed = set(hub.files("me/model"))
    folders = {"checkpoint": ["last-checkpoint"], "all_checkpoints": ["checkpoint-2", "checkpoint-4"]}
    expected = {f"{folder}/{name}" for folder in folders.get(strategy, []) for name in model | state}
    assert pushed == (set() if strategy == "end" else expected | model | {"trainer_state.json"})
    steps = [f"Training in progress, step {step}" for step in (2, 4)]
    whole = [f"{message}{end}" for message in steps for end in ("", ", checkpoint")]
    said = {"end": [], "every_save": steps}.get(strategy, whole)
    assert hub.repositories["me/model"].messages == said
    assert hub.requests.count("create") == 1 + len(said)
    assert trainer.hub.pushed == (None if strategy == "end" else tmp_path / "checkpoint-4")
    if strategy == "all_checkpoints":  # checkpoint-2 was rotated away meanwhile
        assert hub.files("me/model")["checkpoint-2/model.safetensors"] != hub.files("me/model")["model.safetensors"]
    assert not list(tmp_path.glob(".push-*"))


@pytest.mark.slow
def test_a_push_still_running_is_not_followed_by_the_next_checkpoint(hub, tmp_path, caplog, monkeypatch):
    monkeypatch.setitem(hub_module.TRIES, "stall_seconds", 3.0)
    hub.failures["create"] += [None, "stall"]
    trainer_of(tmp_path).train()
    assert "step 4 is not pushed: the push before it is still running" in messages(caplog)
    assert hub.repositories["me/model"].messages == ["Training in progress, step 2"]


@pytest.mark.slow
def test_the_command_line_of_an_interrupted_training_names_its_last_checkpoint(hub, tmp_path, caplog):
    class Interrupt(TrainerCallback):
        def on_train_end(self, *args, **kwargs):
            raise KeyboardInterrupt

    trainer = trainer_of(tmp_path, hub_strategy="end")
    trainer.add_callback(Interrupt())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert f"{tmp_path / 'checkpoint-4'} is saved, but not on the Hub: the push was ended. To push" in messages(caplog)
    push_by_hand(messages(caplog))
    assert set(hub.files("me/model")) == {
        "README.md", "config.json", "model.safetensors", "token_counts.safetensors", "trainer_state.json",
    }  # fmt: skip


# The scripts -----------------------------------------------------------------------------------------------------------


def pretrain(text_file, folder, *flags) -> None:
    run_pretrain.main([*QUICK, "--train_file", str(text_file), "--output_dir", str(folder), *flags])


def push_by_hand(said: str) -> None:
    """Run the command that a message names."""
    command = shlex.split(said.rpartition("To push it later: ")[2].splitlines()[0])
    assert command[:2] == ["hf", "upload"]
    command[0] = str(Path(sys.executable).with_name("hf"))
    subprocess.run(command, check=True, capture_output=True, text=True)


def read_back(hub, repo: str, auto_class: str = "AutoModel") -> dict[str, torch.Tensor]:
    """Weights, and that the tokenizer loads, in a process that knows the Hub alone."""
    target = Path(os.environ["HF_HOME"]) / "read_back.safetensors"
    program = f"""
from safetensors.torch import save_file
from transformers import {auto_class}, AutoTokenizer
model = {auto_class}.from_pretrained({repo!r})
assert len(AutoTokenizer.from_pretrained({repo!r})) == model.get_input_embeddings().num_embeddings
save_file({{name: value.clone() for name, value in model.state_dict().items()}}, {str(target)!r})
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    return load_file(target)


@pytest.mark.slow
def test_pretraining_is_pushed_and_read_back(hub, tmp_path, text_file, capfd, caplog):
    folder = tmp_path / "run"
    pretrain(text_file, folder, "--hub_model_id", "me/tiny", "--hub_token", TOKEN, "--hub_strategy", "checkpoint")
    pushed = hub.files("me/tiny")
    assert MODEL | REPORT <= set(pushed)
    assert not {name for name in pushed if name.endswith((".pt", ".bin"))} - {
        f"last-checkpoint/{name}" for name in ("optimizer.pt", "scheduler.pt", "training_args.bin")
    }
    for name in MODEL | REPORT:
        assert pushed[name] == (folder / name).read_bytes(), name
    read, saved = read_back(hub, "me/tiny"), load_file(folder / "model.safetensors")
    assert set(saved) <= set(read)
    assert all(torch.equal(read[name], value) for name, value in saved.items())

    said = "".join(capfd.readouterr()) + messages(caplog)
    assert "pushed" in said and TOKEN not in said
    assert TOKEN.encode() not in contents(folder)
    assert TOKEN.encode() not in b"".join(pushed.values())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["offline", "refused", "gone", "failing"])
def test_a_training_without_the_hub_is_whole_and_can_be_pushed_later(
    hub, tmp_path, text_file, monkeypatch, capfd, caplog, way
):
    folder, endpoint = tmp_path / "run", hub.endpoint
    if way == "offline":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    elif way == "refused":
        hub.token = "another"
    elif way == "gone":
        with StandIn() as other:
            monkeypatch.setenv("HF_ENDPOINT", other.endpoint)
    else:
        hub.failures["create"] += [500] * 100
    pretrain(text_file, folder, "--hub_model_id", "me/tiny")
    assert MODEL | REPORT <= {path.name for path in folder.iterdir()}
    assert not hub.repositories
    said = messages(caplog)
    reason = {
        "offline": "HF_HUB_OFFLINE is set",
        "refused": "the Hub refused the token (401)",
        "gone": "ConnectError",
        "failing": "the Hub answered 500: failing on purpose with 500",
    }[way]
    assert f"me/tiny was not created on the Hub: {reason}" in said
    assert said.count(reason) == 2  # at the start and at the end
    assert TOKEN not in said + "".join(capfd.readouterr())
    assert TOKEN.encode() not in contents(folder)

    hub.token = TOKEN
    hub.failures.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    push_by_hand(said)
    pushed = hub.files("me/tiny")
    assert MODEL | REPORT <= set(pushed)
    assert not [name for name in pushed if name.startswith("checkpoint-") or name.endswith(".bin")]


@pytest.mark.slow
def test_language_models_are_pushed(hub, tmp_path, text_file, monkeypatch, caplog):
    trunk, head, tuned = (tmp_path / name for name in ("trunk", "head", "tuned"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pretrain(text_file, trunk)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    run_lm_head.main(["--model_name_or_path", str(trunk), "--output_dir", str(head), "--push_to_hub"])
    read, saved = read_back(hub, "me/head", "AutoModelForCausalLM"), load_file(head / "model.safetensors")
    assert all(torch.equal(read[name], value) for name, value in saved.items())

    flags = ["--do_eval", "--train_file", str(text_file), "--max_seq_length", "16", "--use_cpu", "--push_to_hub"]
    run_lm_head.main(["--model_name_or_path", str(trunk), "--output_dir", str(tuned), *flags, "--disable_tqdm", "true"])
    assert hub.repositories["me/tuned"].messages == ["Model save", "Evaluation"]
    assert hub.files("me/tuned")["eval_results.json"] == (tuned / "eval_results.json").read_bytes()

    hub.token = "another"
    caplog.clear()
    run_lm_head.main(["--model_name_or_path", str(trunk), "--output_dir", str(tmp_path / "more"), "--push_to_hub"])
    assert (tmp_path / "more" / "model.safetensors").is_file()
    assert "saved, but not on the Hub: the Hub refused the token (401)" in messages(caplog)


# SIGTERM ---------------------------------------------------------------------------------------------------------------


def start_script(text_file, folder, *flags) -> subprocess.Popen:
    flags = [*QUICK, "--train_file", str(text_file), "--output_dir", str(folder), "--hub_model_id", "me/tiny", *flags]
    return subprocess.Popen(
        [sys.executable, "run_pretrain.py", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_sigterm_ends_a_training_whose_push_hangs(hub, tmp_path, text_file):
    folder = tmp_path / "run"
    hub.failures["put"] += ["stall"] * 20
    process = start_script(text_file, folder, "--max_steps", "100000", "--save_steps", "20")
    assert hub.stalled.wait(200)
    process.send_signal(signal.SIGTERM)
    start = time.monotonic()
    said, _ = process.communicate(timeout=300)
    assert time.monotonic() - start < 60
    assert process.returncode == 0 and "Stopped by SIGTERM with a checkpoint" in said
    last = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    assert f"{last} is saved, but not on the Hub: the push was ended. To push it later: hf upload me/tiny" in said
    assert json.loads((last / "trainer_state.json").read_text())["global_step"] == int(last.name.partition("-")[2])
    assert not list(folder.glob(".push-*"))


@pytest.mark.slow
def test_sigterm_ends_a_last_push_that_hangs(hub, tmp_path, text_file):
    folder = tmp_path / "run"
    hub.failures["put"] += ["stall"] * 20
    process = start_script(text_file, folder, "--hub_strategy", "end")
    assert any("waiting for what is pushed to me/tiny" in line for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    start = time.monotonic()
    said, _ = process.communicate(timeout=300)
    assert time.monotonic() - start < 60
    assert process.returncode == 128 + signal.SIGTERM
    assert (
        f"{folder} is saved, but not on the Hub: the push was ended. To push it later: hf upload me/tiny {folder} ."
        in said
    )
    assert MODEL | REPORT <= {path.name for path in folder.iterdir()}
