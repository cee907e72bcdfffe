"""run_items.py and run_recommend.py end to end, on tiny models: what they leave, what they refuse, and being killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from headless_trainer.cli import items, recommend
from headless_trainer.items.ranking import TAUS
from headless_trainer.measures import MEASURES
from headless_trainer.objective.negatives import NegativePool
from headless_trainer.runtime.manifest import find_fault

ROOT = Path(__file__).parents[2]
TINY = [
    *("--hidden_size", "16", "--num_hidden_layers", "1", "--max_seq_length", "8", "--dropout", "0.0"),
    *("--per_device_train_batch_size", "8", "--use_cpu", "--disable_tqdm", "true", "--learning_rate", "0.02"),
]
USERS, ITEMS = 40, 20


def length(user: int) -> int:
    return 5 + user % 6


@pytest.fixture
def corpus(tmp_path) -> str:
    """Everyone takes one item after the other, from a place of their own: the next one can be known."""
    lines = [
        f"u{user} " + " ".join(f"i{(user + step) % ITEMS}" for step in range(length(user))) for user in range(USERS)
    ]
    path = tmp_path / "histories.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def run(corpus: str, folder: Path, *flags: str) -> dict:
    items.main([*TINY, "--train_file", corpus, "--output_dir", str(folder), *flags])
    return json.loads((folder / "items_results.json").read_text())


def refused(command, *argv: object) -> str:
    with pytest.raises(SystemExit) as error:
        command.main([str(argument) for argument in argv])
    return str(error.value)


@pytest.mark.parametrize("flags", [(), ("--objective", "vanilla"), ("--task", "mlm", "--mlm_probability", "0.4")])
def test_what_comes_next_is_learned_and_used(tmp_path, corpus, flags):
    folder = tmp_path / "run"
    epochs = 25 if "mlm" in flags else 12
    options = (
        "--num_train_epochs",
        str(epochs),
        "--keep_seen",
        "--early_stopping_patience",
        "0",
        "--logging_steps",
        "5",
    )
    found = run(corpus, folder, *flags, *options)
    assert (found["users"], found["items"], found["interactions"]) == (USERS, ITEMS, sum(map(length, range(USERS))))
    names = [f"{name}@{k}" for name in ("recall", "ndcg") for k in (5, 10, 20)] + [
        "mrr",
        "coverage@10",
        "popularity@10",
    ]
    for name in (*names, "ndcg@10_by_popularity"):
        assert f"test_{name}" in found and f"test_{name}_at_tau_0" in found and f"validation_{name}" in found
    assert found["test_ndcg@10"] > (0.4 if "mlm" in flags else 0.9)  # by chance 0.23
    assert len(found["test_ndcg@10_by_popularity"]) == 10 and found["tau"] in TAUS
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    assert len([logs for logs in history if "eval_ndcg@10" in logs]) == epochs
    args = torch.load(folder / "training_args.bin", weights_only=False)
    names = {re.sub(r"layer_\d+_", "layer_<i>_", name) for logs in history for name in logs} - {"step"}
    assert names == {each.name for each in MEASURES if each.is_logged(args)}
    assert found["validation_ndcg@10"] == pytest.approx(max(logs.get("eval_ndcg@10", 0) for logs in history), abs=1e-9)

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    assert tokenizer.convert_tokens_to_ids("i0") >= 3 and model.get_input_embeddings().num_embeddings == ITEMS + 3
    assert len(load_file(folder / "item_prior.safetensors")["log_q"]) == ITEMS + 3
    new = tmp_path / "new.csv"
    new.write_text("user,item,time\nz,i6,3\nz,i4,1\nz,i5,2\nz,i99,0\n")
    recommend.main(["--model_name_or_path", str(folder), "--history_file", str(new), "--output_file",
                    str(tmp_path / "best.jsonl"), "--top_k", "3", "--vectors_dir", str(tmp_path / "vectors")])  # fmt: skip
    (line,) = map(json.loads, (tmp_path / "best.jsonl").read_text().splitlines())
    assert line["user"] == "z" and len(line["items"]) == 3 and line["scores"] == sorted(line["scores"], reverse=True)
    assert "i7" in line["items"][: 3 if "mlm" in flags else 1]
    vectors, query = (np.load(tmp_path / "vectors" / f"{name}_vectors.npy") for name in ("item", "query"))
    known = json.loads((tmp_path / "vectors" / "item_names.json").read_text())
    order = [known[place] for place in np.argsort(-(vectors @ query[0])) if known[place] not in ("i4", "i5", "i6")]
    assert order[:3] == line["items"]


def test_negatives_that_are_drawn_and_rows_that_are_updated_alone(tmp_path, corpus):
    flags = ("--sampled_negatives", "8", "--sparse_embedding_updates", "true", "--keep_seen", "--num_train_epochs", "8")
    found = run(corpus, tmp_path / "run", *flags)
    assert found["test_ndcg@10"] > 0.8
    run(corpus, tmp_path / "plain", "--num_train_epochs", "1", "--sampled_negatives", "0")
    drawn, counted = (load_file(tmp_path / name / "item_prior.safetensors")["log_q"] for name in ("run", "plain"))
    assert drawn[0] - counted[0] > 0.5  # a special token is never a target, and is drawn


@pytest.mark.parametrize("flags", [(), ("--sampling_power", "0.5"), ("--sampling_power", "1")])
def test_the_prior_is_that_of_the_candidates_that_were_scored(tmp_path, monkeypatch, flags):
    """A catalogue of 6 items, of which 40 are drawn in each step: log q against all pools added up, and by hand."""
    generator = np.random.default_rng(0)
    users = [generator.choice(6, size=12, p=np.array([32, 16, 8, 4, 2, 1]) / 63) for _ in range(40)]
    lines = [f"u{number} " + " ".join(f"i{item}" for item in user) for number, user in enumerate(users)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    seen, with_drawn = torch.zeros(9), NegativePool.with_drawn

    def counted(self, ids):
        pool = with_drawn(self, ids)
        seen.index_add_(0, pool.ids, pool.counts.float())
        return pool

    monkeypatch.setattr(NegativePool, "with_drawn", counted)
    epochs, steps = 8, 20  # of two users each
    options = ("--sampled_negatives", "40", "--num_train_epochs", str(epochs), "--early_stopping_patience", "0")
    options += ("--per_device_train_batch_size", "2", "--max_seq_length", "12", "--smoothing", "1", "--keep_seen")
    run(str(tmp_path / "lines.txt"), tmp_path / "run", *options, *flags)
    log_q = load_file(tmp_path / "run" / "item_prior.safetensors")["log_q"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    targets = torch.zeros(9)
    for user in users:
        for item in user[1:-2]:  # the last two are held out, and the first has nothing before it
            targets[tokenizer.convert_tokens_to_ids(f"i{item}")] += 1
    q = (targets + 1) / (targets + 1).sum()  # --smoothing
    drawing = q ** (float(flags[1]) if flags else 0.0)
    drawn, scored = 40 * steps * epochs, epochs * targets.sum()
    by_hand = (scored * q + drawn * drawing / drawing.sum()) / (scored + drawn)
    assert torch.allclose(log_q.exp(), by_hand, rtol=1e-4)
    assert seen.sum() == scored + drawn
    assert torch.allclose(log_q.exp(), seen / seen.sum(), atol=0.01)  # 6,400 are drawn


@pytest.mark.parametrize("sizes", [1, 2, 3])
def test_a_tiny_catalogue(tmp_path, sizes):
    """Fewer items than are shown, and than are drawn."""
    lines = [f"u{user} " + " ".join("abc"[(user + step) % sizes] for step in range(4 + user % 3)) for user in range(20)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    flags = ("--sampled_negatives", "50", "--sampling_power", "1", "--num_train_epochs", "2", "--keep_seen")
    found = run(str(tmp_path / "lines.txt"), tmp_path / "run", *flags)
    assert found["items"] == sizes and found["test_recall@10"] == found["test_coverage@10"] == 1.0
    arguments = ("--train_file", tmp_path / "lines.txt", "--output_dir", tmp_path / "other")
    said = refused(items, *TINY, *arguments, *flags[:-1])
    part = "test" if sizes == 3 else "validation"
    assert said.startswith(
        f"ValueError: keep_seen is False but every next item of {part} is one that its user had before,"
    )
    assert said.endswith("and those are not ranked: set --keep_seen.")


def test_a_split_in_time(tmp_path):
    rows = [
        f"u{user},i{(user + step) % ITEMS},{step + user / 100}" for user in range(USERS) for step in range(length(user))
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")
    found = run(
        str(tmp_path / "rows.csv"), tmp_path / "run", "--split", "global_time", "--num_train_epochs", "8", "--keep_seen"
    )
    assert found["test_ndcg@10"] > 0.8


def test_training_ends_early(tmp_path, corpus):
    """With a rate of zero nothing gets better after the first epoch."""
    run(corpus, tmp_path / "run", "--learning_rate", "0", "--early_stopping_patience", "2", "--num_train_epochs", "9")
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    assert state["epoch"] == 3 and state["best_global_step"] == 5


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "lines.txt").write_text("".join(f"u{user} " + " ".join(["a", "b", "c", "d"]) + "\n" for user in range(9)))
    run(str(folder / "lines.txt"), folder / "run", "--num_train_epochs", "1")
    return folder / "run"


def test_users_with_one_event_and_rows_out_of_order(tmp_path, monkeypatch, trained, caplog):
    """One event is enough to be recommended something; what is unsorted is sorted, unknown items and their users are said."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("user,item,time\none,a,1\ntwo,b,9\ntwo,a,3\nnone,z,1\n")
    flags = ("--model_name_or_path", str(trained), "--history_file", "a.csv", "--output_file", "best.jsonl")
    with caplog.at_level("INFO", "headless_trainer"):
        recommend.main([*flags, "--top_k", "9"])
    lines = {
        line["user"]: sorted(line["items"]) for line in map(json.loads, Path("best.jsonl").read_text().splitlines())
    }
    assert lines == {"one": ["b", "c", "d"], "two": ["c", "d"]}
    assert "history_file is not sorted by time (1 rows come after a later one of the same user)" in caplog.text
    assert "1 of 4 interactions are with items that the model does not know: they are left out" in caplog.text


ROWS_ALONE = ("--sparse_embedding_updates", "true", "--sparse_embedding_moments", "compact", "--sampled_negatives", "8")


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ROWS_ALONE], ids=["dense", "compact rows"])
def test_killed_and_resumed_equals_never_killed(tmp_path, corpus, more):
    """SIGKILL after the second checkpoint: weights and figures are those of a run left alone."""
    flags = [*TINY, "--train_file", corpus, "--num_train_epochs", "6", "--dropout", "0.3", "--keep_seen", *more]

    def start(folder: str, *more: str) -> subprocess.Popen:
        command = [sys.executable, "run_items.py", *flags, "--output_dir", str(tmp_path / folder), *more]
        with (tmp_path / f"{folder}.log").open("a") as log:
            return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"HF_HUB_OFFLINE": "1"}, stdout=log, stderr=log)

    process = start("killed")
    second = tmp_path / "killed" / "checkpoint-10"
    while process.poll() is None and not second.is_dir():
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert find_fault(second) is None and not (tmp_path / "killed" / "items_results.json").exists()
    assert start("killed", "--resume_from_checkpoint", "last").wait() == 0, (tmp_path / "killed.log").read_text()
    assert start("whole").wait() == 0, (tmp_path / "whole.log").read_text()
    results = [json.loads((tmp_path / name / "items_results.json").read_text()) for name in ("killed", "whole")]
    for found in results:
        del found["train_seconds"], found["peak_memory_mib"]
    assert results[0] == results[1]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("killed", "whole")]
    assert weights[0].keys() == weights[1].keys()
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_resuming_what_is_finished_keeps_the_best_weights(tmp_path, corpus):
    """The last checkpoint is not the best one: NDCG has reached 1 before it."""
    folder = tmp_path / "run"
    flags = ("--num_train_epochs", "8", "--keep_seen", "--early_stopping_patience", "0")
    first = run(corpus, folder, *flags)
    weights = load_file(folder / "model.safetensors")
    last = load_file(folder / "checkpoint-40" / "model.safetensors")
    assert first["best_step"] < 40 and not all(last[name].equal(weights[name]) for name in weights)
    again = run(corpus, folder, *flags, "--resume_from_checkpoint", "last")
    assert all(load_file(folder / "model.safetensors")[name].equal(weights[name]) for name in weights)
    assert {name: again[name] for name in again if name.startswith("test_")} == {
        name: first[name] for name in first if name.startswith("test_")
    }
