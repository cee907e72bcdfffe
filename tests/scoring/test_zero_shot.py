"""Zero-shot scores against plain torch, and the store of answers."""

import math
import re

import numpy as np
import pytest
import torch
from builders import flip, save
from harness_inputs import ARC, arguments, naive_scores, scored
from row_files import write_jsonl

pytest.importorskip("lm_eval")

from lm_eval.models.huggingface import HFLM

from headless_trainer.models.identity import ModelIdentity
from headless_trainer.scoring import harness_tasks, zero_shot
from headless_trainer.scoring.score_store import folder_name, read_results


def test_lambada_has_the_scores_of_plain_torch(inputs, tmp_path, clm_tokenizer):
    found = scored(inputs.path, arguments(tmp_path, include_path=inputs.tasks))
    accuracy, perplexity = (found["tiny_lambada", name] for name in ("acc", "perplexity"))
    pairs = [re.fullmatch("(.*)( .*)", text).groups() for text in inputs.texts]
    naive = [naive_scores(inputs.model, clm_tokenizer, *pair) for pair in pairs]
    scores, hits = [score for score, _ in naive], [hit for _, hit in naive]
    assert 0 < sum(hits) < len(hits)  # else the accuracy says little
    assert accuracy.value == sum(hits) / len(hits)
    assert accuracy.stderr == pytest.approx(np.std(hits, ddof=1) / math.sqrt(len(hits)))
    assert (
        perplexity.value == pytest.approx(math.exp(-sum(scores) / len(scores)), rel=1e-5)
        and perplexity.stderr > 0
    )
    assert (accuracy.higher_is_better, perplexity.higher_is_better) == (True, False)
    assert (accuracy.documents, accuracy.available) == (len(scores), len(scores))
    results = read_results(tmp_path / folder_name(inputs.path))
    assert results["asked"] == {"tiny_lambada": ["auto", None]}
    documents = results["samples"]["tiny_lambada"]
    assert documents["scores"]["perplexity,none"] == pytest.approx(scores, rel=1e-4)
    assert documents["scores"]["acc,none"] == hits


def test_a_multiple_choice_of_the_harness_is_scored_on_a_local_file(
    inputs, tmp_path, clm_tokenizer
):
    file = write_jsonl(tmp_path / "arc.jsonl", ARC)
    found = scored(
        inputs.path,
        arguments(tmp_path / "out", tasks=["arc_easy"], data_files=[f"arc_easy={file}"]),
    )
    right = {"acc": [], "acc_norm": []}
    for row in ARC:
        choices = row["choices"]["text"]
        context = f"Question: {row['question']}\nAnswer:"
        scores = np.array(
            [naive_scores(inputs.model, clm_tokenizer, context, " " + each)[0] for each in choices]
        )
        gold = "ABC".index(row["answerKey"])
        right["acc"].append(scores.argmax() == gold)
        right["acc_norm"].append((scores / [len(each) for each in choices]).argmax() == gold)
    assert {n: found["arc_easy", n].value for n in right} == {
        n: np.mean(each) for n, each in right.items()
    }


def test_a_metric_in_python_of_the_harness_is_scored_on_a_local_file(
    inputs, tmp_path, clm_tokenizer
):
    pairs = [
        ("the miller crossed the river.", "the heron crossed the river."),
        ("my sister.", "my sister mended red apples."),
    ]
    rows = [{"sent_more": more, "sent_less": less} for more, less in pairs]
    file = write_jsonl(tmp_path / "crows.jsonl", rows)
    args = arguments(
        tmp_path / "out", tasks=["crows_pairs_english"], data_files=[f"crows_pairs_english={file}"]
    )
    found = scored(inputs.path, args)
    likelihood_diff, share = (
        found["crows_pairs_english", name] for name in ("likelihood_diff", "pct_stereotype")
    )

    def score(
        text: str,
    ) -> float:  # an empty context: the text follows the token that ends the one before
        ids = torch.tensor([clm_tokenizer("<|endoftext|>" + text).input_ids])
        with torch.no_grad():
            return (
                inputs.model(ids)
                .logits[0, :-1]
                .log_softmax(-1)
                .gather(1, ids[0, 1:, None])
                .sum()
                .item()
            )

    differences = [score(more) - score(less) for more, less in pairs]
    assert likelihood_diff.value == pytest.approx(np.abs(differences).mean(), rel=1e-4)
    assert share.value == np.mean([each > 0 for each in differences])
    assert (likelihood_diff.higher_is_better, share.higher_is_better) == (False, False)


def test_a_task_that_generates_and_a_group_are_scored(inputs, tmp_path):
    found = scored(
        inputs.path, arguments(tmp_path, tasks=["tiny_group"], include_path=inputs.tasks, limit=8.0)
    )
    length = found["tiny_generation", "length"]
    assert (length.documents, length.available) == (8, len(inputs.texts)) and 0 < length.value < 40
    group = found["tiny_group", "acc"]
    assert group.value == found["tiny_lambada", "acc"].value
    # The other task of the group has another metric.
    assert (group.documents, group.available) == (8, found["tiny_lambada", "acc"].available)


def test_a_model_is_asked_nothing_twice(inputs, tmp_path, monkeypatch, clm_tokenizer):
    model = save(tmp_path / "lm", inputs.model, clm_tokenizer)
    asked = []
    score = HFLM._loglikelihood_tokens
    monkeypatch.setattr(
        HFLM,
        "_loglikelihood_tokens",
        lambda lm, r, *rest: asked.append(len(r)) or score(lm, r, *rest),
    )
    small = arguments(tmp_path / "out", include_path=inputs.tasks, limit=3.0)
    before = scored(model, small)
    assert asked == [3] and scored(model, small) == before and asked == [3]
    more = scored(model, arguments(tmp_path / "out", include_path=inputs.tasks, limit=5.0))
    assert asked == [3, 2] and more["tiny_lambada", "acc"].documents == 5
    scored(model, arguments(tmp_path / "out", include_path=inputs.tasks, limit=3.0, max_length=20))
    assert asked == [3, 2, 3]  # shorter inputs are others
    for name, times in (
        ("model.safetensors", 4), ("tokenizer.json", 5), ("tokenizer_config.json", 6), ("vocab.txt", 7),
        ("README.md", 7),
    ):  # fmt: skip
        path = tmp_path / "lm" / name
        if name == "model.safetensors":
            flip(path)
        else:
            path.write_text(f"{path.read_text() if path.is_file() else ''}\n")
        scored(model, small)
        # So are new weights and any new file of the tokenizer, but no new card.
        assert len(asked) == times, name


def test_answers_without_the_token_that_begins_texts_are_not_reused():
    """Those of a tokenizer that begins and closes texts, which an earlier version asked for."""
    identity = ModelIdentity("w", "t")
    keys = {zero_shot._key_of_answers(identity, arguments(), begins) for begins in (False, True)}
    assert len(keys) == 2


def test_qasper_of_the_paper_is_scored_against_its_answers(
    inputs, tmp_path, monkeypatch, clm_tokenizer
):
    assert {"lambada_openai", "qasper"} < {*harness_tasks.PAPER_TASKS} and len(
        harness_tasks.PAPER_TASKS
    ) == 9
    monkeypatch.setattr(harness_tasks, "PAPER_TASKS", ("qasper_bool",))
    texts = {
        "title": "T",
        "abstract": "A",
        "unanswerable": False,
        "free_form_answer": "",
        "extractive_spans": [],
    }
    answers = [{"answer": [{**texts, "yes_no": yes}]} for yes in (True, False, True)]
    papers = [
        texts | {"qas": {"question": ["is it?", "was it?", "will it be?"], "answers": answers}}
    ]
    files = [f"qasper_bool={write_jsonl(tmp_path / 'qasper.jsonl', papers)}"]
    plain, paper = (
        scored(inputs.path, arguments(tmp_path / task, tasks=[task], data_files=files))
        for task in ("qasper_bool", "paper")
    )
    assert set(paper) - set(plain) == {("qasper_bool", "acc")} and set(plain) <= set(paper)
    right = 0
    for question, truth in zip(
        ("is it?", "was it?", "will it be?"), (" yes", " no", " yes"), strict=True
    ):
        context = f"TITLE: T\nABSTRACT: A\n\nQ: {question}\n\nA:"
        yes, no = (
            naive_scores(inputs.model, clm_tokenizer, context, answer)[0]
            for answer in (" yes", " no")
        )
        right += (" yes" if yes > no else " no") == truth
    assert paper["qasper_bool", "acc"].value == pytest.approx(right / 3)
    assert paper["qasper_bool", "acc"].higher_is_better is True
