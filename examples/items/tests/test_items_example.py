"""The example of items: its files, its ranks against the plainest computation, and its two commands
on tiny models.
"""

import gzip
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import recommend
import torch
import train
from histories import (
    FileArguments,
    HeldOut,
    catalogue,
    evaluation_rows,
    leave_one_out,
    read_interactions,
    token_ids,
    training_rows,
)
from hub_standin import StandIn
from ranking import all_figures, best_items, rank_figures, target_ranks
from safetensors.torch import load_file
from transformers import AutoModel, GPT2Config, GPT2Model, HfArgumentParser

from headless_trainer import NegativePool
from headless_trainer.objective.prior import log_prior

ITEMS, LENGTH = 47, 8

# Files ----------------------------------------------------------------------------------------

TABLE = pd.DataFrame(
    {
        "user": ["u", "v", "u", "v", "u"],
        "item": ["NA", "7", "007", "a b", "NA"],
        "time": [3, 1, 1, 1, 2],
    }
)
HISTORIES = {"u": ["007", "NA", "NA"], "v": ["7", "a b"]}


def read(*paths, **columns) -> dict[str, list[str]]:
    frame = read_interactions([str(path) for path in paths], FileArguments(**columns))
    return {user: group["item"].tolist() for user, group in frame.groupby("user", sort=False)}


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.csv.gz", "a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize(
    "times",
    [[3, 1, 1, 1, 2], ["2026-03-01", "2026-01-02", "2026-01-02", "2026-01-02", "2026-02-01"]],
)
def test_tables_are_sorted_by_time_and_names_are_kept(tmp_path, name, times):
    path, frame = tmp_path / name, TABLE.assign(time=times).rename(columns={"time": "when"})
    if "parquet" in name:
        frame.to_parquet(path)
    elif "csv" in name:
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    assert read(path, time_column="when") == HISTORIES


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines_are_users_and_their_items(tmp_path, name):
    path = tmp_path / name
    with gzip.open(path, "wt") if name.endswith(".gz") else path.open("w") as file:
        file.write("u 007 NA NA\n\nv 7 a\nalone\n")
    assert read(path) == {"u": ["007", "NA", "NA"], "v": ["7", "a"]}


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("a.csv", "user,item\nu,a\n", "time"),
        ("a.csv", "user,item,time\nu,,1\n", "1 rows"),
        ("a.csv", "user,item,time\nu,a,5,1\n", "more values"),
        ("a.csv", "user,item,time\nu,a,soon\n", "soon"),
        ("a.tsv", "user\titem\ttime\n", ".tsv"),
        ("a.txt", "u a\nu b\n", "a.txt"),
    ],
)
def test_files_that_are_refused(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.csv.gz", "a.jsonl.gz"])
def test_a_gzip_bomb_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr("headless_trainer.corpus.files._UNPACKED_AT_LEAST", 1_000_000)
    (tmp_path / name).write_bytes(gzip.compress(b"0" * 20_000_000))
    with pytest.raises(OSError, match="unpacks to over 300 times its size"):
        read(tmp_path / name)


def test_a_user_in_two_text_files_is_refused(tmp_path):
    for name, text in (("a.txt", "u1 a b\n"), ("b.txt", "u2 a\nu1 c d\n")):
        (tmp_path / name).write_text(text)
    with pytest.raises(
        ValueError, match="a.txt', '.*b.txt'. begin alike: a line is the name of one user"
    ):
        read_interactions([str(tmp_path / name) for name in ("a.txt", "b.txt")], FileArguments())
    (tmp_path / "i.csv").write_text("user,item,time\nu,a,1\n")
    with pytest.raises(ValueError, match="name a file twice: name each once"):
        read_interactions([f"{tmp_path}/i.csv", f"{tmp_path}/./i.csv"], FileArguments())


@pytest.mark.parametrize("other", ["b.csv", "b.txt"])
def test_times_that_cannot_be_compared_are_refused(tmp_path, other):
    (tmp_path / "a.csv").write_text("user,item,time\nu,a,1\n")
    (tmp_path / other).write_text("u b" if "txt" in other else "user,item,time\nu,b,2026-01-01\n")
    with pytest.raises(ValueError, match=other):
        read(tmp_path / "a.csv", tmp_path / other)


def test_ids_go_by_frequency_and_unknown_items_are_left_out():
    frame = pd.DataFrame({"user": ["u", "u", "v", "w", "w"], "item": ["b", "a", "a", "x", "b"]})
    items = catalogue(frame)
    assert items == ["a", "b", "x"]
    users, histories = token_ids(frame, items)
    assert users == ["u", "v", "w"] and [ids.tolist() for ids in histories] == [[2, 1], [1], [3, 2]]
    users, histories = token_ids(frame, ["x"])
    assert users == ["w"] and [ids.tolist() for ids in histories] == [[1]]
    with pytest.raises(ValueError):
        token_ids(frame, ["y"])


def test_what_is_trained_on_and_what_is_held_out():
    histories = [np.array(ids) for ids in ([1, 2, 3, 4, 5], [6], [7, 8], [1, 9, 1])]
    training, validation, test = leave_one_out(histories, keep_seen=False)
    assert [ids.tolist() for ids in training] == [[1, 2, 3], [6], [7, 8], [1]]
    assert [ids.tolist() for ids in validation.histories] == [
        [1, 2, 3],
        [1],
    ] and validation.targets.tolist() == [4, 9]
    assert [ids.tolist() for ids in test.histories] == [
        [1, 2, 3, 4],
        [1, 9],
    ] and test.targets.tolist() == [5, 1]
    rows = [
        {name: values.tolist() for name, values in row.items()}
        for row in training_rows(training, 2)
    ]
    assert rows == [
        {"input_ids": [1, 2, 3], "position_ids": [0, 1, 1]},
        {"input_ids": [7, 8], "position_ids": [1, 1]},
    ]
    rows = [
        {name: values.tolist() for name, values in row.items()}
        for row in evaluation_rows(validation, 3)
    ]
    assert rows == [
        {"input_ids": [1, 9], "position_ids": [2, 2], "labels": [-100, 9]},
        {"input_ids": [1, 2, 3, 4], "position_ids": [0, 1, 2, 2], "labels": [-100, -100, -100, 4]},
    ]
    for hopeless in ([np.array([1, 2])], [np.array([1, 1, 2])], [np.array([1, 2, 2])]):
        with pytest.raises(ValueError, match="keep_seen"):
            leave_one_out(hopeless, keep_seen=False)
    leave_one_out([np.array([1, 1, 1])], keep_seen=True)


# Ranks ----------------------------------------------------------------------------------------


def made() -> tuple[GPT2Model, torch.Tensor, HeldOut]:
    torch.manual_seed(0)
    model = GPT2Model(
        GPT2Config(vocab_size=ITEMS + 1, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2)
    ).eval()
    with torch.no_grad():
        model.wte.weight.mul_(20)
    generator = np.random.default_rng(0)
    histories = [
        generator.integers(1, ITEMS + 1, length) for length in generator.integers(2, 13, 12)
    ]
    return (
        model,
        torch.randn(ITEMS + 1).log_softmax(-1),
        HeldOut(histories, generator.integers(1, ITEMS + 1, 12)),
    )


@torch.no_grad()
def plain_order(model, log_q, history, tau, keep_seen) -> dict[int, float]:
    """Items from the best to the worst with their scores, without those of the history."""
    recent = torch.from_numpy(history[-LENGTH:])
    positions = torch.arange(LENGTH - len(recent), LENGTH)[None]
    output = model(recent[None], position_ids=positions).last_hidden_state[0, -1]
    scores = (model.wte.weight @ output + tau * log_q).tolist()
    items = [item for item in range(1, ITEMS + 1) if keep_seen or item not in history]
    return {item: scores[item] for item in sorted(items, key=lambda item: -scores[item])}


@pytest.mark.parametrize("keep_seen", [False, True])
@pytest.mark.parametrize("at_once", [2**24, 5 * (ITEMS + 1)])
def test_ranks_are_those_of_the_plain_computation(monkeypatch, keep_seen, at_once):
    """5 users at a time leave a partial batch."""
    monkeypatch.setattr("ranking.SCORES_AT_ONCE", at_once)
    model, log_q, held_out = made()
    # Which is never found, where what was seen is not ranked.
    held_out.histories[0][-1] = held_out.targets[0]
    taus = (0.0, 0.75, 3.0)
    ranks = target_ranks(model, log_q, held_out, taus, keep_seen=keep_seen)
    for row, tau in zip(ranks, taus, strict=True):
        orders = [
            plain_order(model, log_q, history, tau, keep_seen) for history in held_out.histories
        ]
        expected = [
            list(order).index(target) if target in order else math.inf
            for order, target in zip(orders, held_out.targets, strict=True)
        ]
        assert row.tolist() == expected
    assert (ranks[0] == math.inf).any() != keep_seen
    shown = {item for order in orders for item in list(order)[:10]}
    figures = all_figures(model, log_q, held_out, 3.0, keep_seen=keep_seen)
    assert figures == rank_figures(ranks[2]) | {"coverage@10": len(shown) / ITEMS}
    best = best_items(model, log_q, held_out.histories, 3.0, 45, keep_seen=keep_seen)
    for (ids, scores), order in zip(best, orders, strict=True):
        assert ids.tolist() == list(order)[:45]
        assert scores.tolist() == pytest.approx(list(order.values())[:45], abs=1e-4)


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_scores_that_are_all_alike_or_no_numbers_are_worth_nothing(value):
    model, log_q, held_out = made()
    model.wte.weight.data.fill_(value)
    assert (target_ranks(model, log_q, held_out, (0.0,), keep_seen=True) >= ITEMS - 1).all()


def test_figures_by_hand():
    found = rank_figures(np.array([0.0, 2.0, 7.0, 30.0, math.inf]))
    assert found["recall@5"] == 0.4 and found["recall@10"] == 0.6 and found["recall@20"] == 0.6
    assert found["ndcg@5"] == pytest.approx((1 + 0.5) / 5)  # 1 / log2(4) for the third place
    assert found["ndcg@10"] == pytest.approx((1 + 0.5 + 1 / math.log2(9)) / 5)
    assert found["mrr"] == pytest.approx((1 + 1 / 3 + 1 / 8 + 1 / 31) / 5)


# The commands ---------------------------------------------------------------------------------

TINY = "--hidden_size 16 --num_hidden_layers 1 --max_seq_length 8 --per_device_train_batch_size 8 --use_cpu --keep_seen"
# Recall has ties.
TINY += " --learning_rate 0.02 --disable_tqdm true --dropout 0.1 --metric_for_best_model ndcg@10"


@pytest.fixture
def corpus(tmp_path):
    """Forty users take one of twenty items after the other, each from a place of their own: the
    next one can be known.
    """
    lines = [
        f"u{user} " + " ".join(f"i{(user + step) % 20}" for step in range(5 + user % 6))
        for user in range(40)
    ]
    (tmp_path / "histories.txt").write_text("\n".join(lines))
    return tmp_path / "histories.txt"


def run(corpus, folder, flags: str) -> dict:
    train.main(
        [*TINY.split(), "--train_file", str(corpus), "--output_dir", str(folder), *flags.split()]
    )
    return json.loads((folder / "items_results.json").read_text())


def evaluations(folder) -> list[float]:
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [logs["eval_ndcg@10"] for logs in history if "eval_ndcg@10" in logs]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--sampled_negatives 8 --sparse_embedding_updates true",
        "--objective vanilla --early_stopping_patience 2",
    ],
)
def test_what_comes_next_is_learned_and_used(tmp_path, corpus, flags, monkeypatch, capsys):
    folder = tmp_path / "run"
    found = run(corpus, folder, f"--num_train_epochs 12 --early_stopping_patience 0 {flags}")
    assert found["items"] == 20 and found["test_ndcg@10"] > 0.8  # by chance 0.23
    logged = evaluations(folder)
    assert found["validation_ndcg@10"] == pytest.approx(max(logged)) and found["tau"] in train.TAUS
    best = logged.index(max(logged))
    assert found["best_step"] == 5 * (best + 1) and len(logged) == (
        12 if "patience" not in flags else min(12, best + 3)
    )

    (tmp_path / "new.csv").write_text("user,item,time\nz,i6,3\nz,i4,1\nz,i5,2\nz,i99,0\n")
    flags = f"--model_name_or_path {folder} --history_file {tmp_path}/new.csv --top_k 3 --tau 0.5"
    flags += f" --output_file {tmp_path}/best.jsonl --vectors_dir {tmp_path}"
    recommend.main(flags.split())
    (line,) = map(json.loads, (tmp_path / "best.jsonl").read_text().splitlines())
    assert line["user"] == "z" and line["items"][0] == "i7" and len(line["items"]) == 3
    items, query = (np.load(tmp_path / f"{name}_vectors.npy") for name in ("item", "query"))
    names = json.loads((tmp_path / "item_names.json").read_text())
    scores = dict(zip(names, items @ query[0], strict=True))
    order = [
        name
        for name in sorted(scores, key=lambda name: -scores[name])
        if name not in ("i4", "i5", "i6")
    ]
    assert order[:3] == line["items"] and scores["i7"] == pytest.approx(line["scores"][0], abs=1e-4)
    assert json.loads((tmp_path / "query_names.json").read_text()) == ["z"]
    with monkeypatch.context() as work:
        work.setattr(recommend, "load", None)  # it is said before the work
        with pytest.raises(SystemExit):
            recommend.main(flags.split())
    assert "best.jsonl exists: name a new one" in capsys.readouterr().err
    # As it was with positions from the start.
    (folder / "items.json").write_text('{"tau": 1.0, "items": []}')
    with pytest.raises(SystemExit, match="train it again"):
        recommend.load(str(folder))


@pytest.mark.slow
def test_the_prior_is_that_of_the_candidates_that_were_scored(tmp_path, monkeypatch):
    """A catalogue of 6 items, of which 40 are drawn in each step: log q against all
    pools added up.
    """
    generator = np.random.default_rng(0)
    users = [generator.choice(6, size=12, p=np.array([32, 16, 8, 4, 2, 1]) / 63) for _ in range(40)]
    (tmp_path / "a.txt").write_text(
        "".join(f"u{n} {' '.join(map(str, user))}\n" for n, user in enumerate(users))
    )
    seen, with_drawn = torch.zeros(7), NegativePool.with_drawn

    def counted(self, ids):
        pool = with_drawn(self, ids)
        seen.index_add_(0, pool.ids, pool.counts.float())
        return pool

    monkeypatch.setattr(NegativePool, "with_drawn", counted)
    flags = "--sampled_negatives 40 --num_train_epochs 8 --per_device_train_batch_size 2 --early_stopping_patience 0"
    run(tmp_path / "a.txt", tmp_path / "run", f"{flags} --max_seq_length 12")
    q = torch.from_numpy(np.load(tmp_path / "run" / "log_q.npy")).exp()
    # Of twelve items two are held out, and the first is no target.
    assert seen.sum() == 8 * (20 * 40 + 40 * 9)
    assert torch.allclose(q, seen / seen.sum(), atol=0.01)
    names = json.loads((tmp_path / "run" / "items.json").read_text())["items"]
    counts = torch.tensor(
        [0, *(sum((user[1:-2] == int(name)).sum() for user in users) for name in names)]
    )
    drawn = 20 * 40 / (20 * 40 + 40 * 9)
    assert torch.allclose(q, (1 - drawn) * log_prior(counts).exp() + drawn / 7, rtol=1e-4)


@pytest.mark.slow
def test_resumed_equals_never_stopped(tmp_path, corpus):
    """From the second of several epochs, with the patience that was left: its weights, and the end
    of the training.
    """
    flags = "--num_train_epochs 30 --early_stopping_patience 2 --save_total_limit 99"
    whole = run(corpus, tmp_path / "whole", flags)
    shutil.copytree(tmp_path / "whole" / "checkpoint-10", tmp_path / "again" / "checkpoint-10")
    resumed = run(corpus, tmp_path / "again", f"{flags} --resume_from_checkpoint last")
    assert resumed == whole and whole["epochs"] < 30
    assert evaluations(tmp_path / "again") == evaluations(tmp_path / "whole")
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "again")]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    assert AutoModel.from_pretrained(tmp_path / "whole").wte.weight.shape == (21, 16)
    shutil.copytree(tmp_path / "whole", tmp_path / "longer")
    longer = run(
        corpus,
        tmp_path / "longer",
        "--early_stopping_patience 4 --num_train_epochs 30 --resume_from_checkpoint last",
    )
    assert longer["epochs"] >= whole["epochs"] + 2  # of the given patience, not the checkpoint's


@pytest.mark.slow
def test_a_push_has_what_recommendation_needs(tmp_path, corpus):
    flags = f"{TINY} --train_file {corpus} --output_dir {tmp_path}/run --num_train_epochs 1 --push_to_hub true"
    with StandIn() as hub:
        command = [sys.executable, train.__file__, *flags.split(), "--hub_model_id", "me/items"]
        environment = (
            os.environ | hub.environment(tmp_path) | {"PYTHONPATH": os.pathsep.join(sys.path)}
        )
        subprocess.run(command, env=environment, check=True, capture_output=True)
    pushed = hub.repositories["me/items"].branches["main"]
    for name in ("items.json", "log_q.npy", "items_results.json", "model.safetensors"):
        assert pushed[name]


@pytest.mark.parametrize(
    "command, flags",
    [
        (train, "--output_dir a"),
        (recommend, "--history_file a.txt"),
        (recommend, "--output_file a"),
    ],
)
def test_what_is_not_given_is_said(command, flags, capsys):
    with pytest.raises(SystemExit):
        command.main(flags.split())
    assert "given" in capsys.readouterr().err


def test_a_tau_of_other_weights_is_refused(capsys, tmp_path):
    with pytest.raises(SystemExit):
        train.main(
            f"--train_file a --output_dir {tmp_path} --use_cpu --load_best_model_at_end false".split()
        )
    assert "tau is that of the best weights: leave it out" in capsys.readouterr().err


def test_of_losses_the_lowest_is_the_best(tmp_path):
    of_losses = {"metric_for_best_model": "eval_loss"}
    made = [
        train.ItemTrainingArguments(str(tmp_path), use_cpu=True, **given)
        for given in ({}, of_losses)
    ]
    assert [each.greater_is_better for each in made] == [True, False]


def test_the_commands_of_the_page_are_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(train.__file__).parent / "README.md").read_text("utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    kinds = {
        "train": [train.ItemArguments, train.ItemTrainingArguments],
        "recommend": [recommend.RecommendArguments],
    }
    assert blocks
    for line in "".join(blocks).splitlines():
        script, words = re.fullmatch(r"python examples/items/(\w+)\.py (.*)", line).groups()
        HfArgumentParser(kinds[script]).parse_args_into_dataclasses(words.split())
