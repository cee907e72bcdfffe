"""Zero-shot scoring: the harness's tasks on local files, checkpoints that cannot score, and scores against plain torch."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import harness_inputs
import numpy as np
import pytest
import torch
import transformers
from builders import SMALL, flip, save
from row_files import write_jsonl
from tokenizers import Tokenizer
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXModel,
    PreTrainedTokenizerFast,
)

pytest.importorskip("lm_eval")

from lm_eval.models.huggingface import HFLM

from headless_trainer.scoring import harness_model, harness_tasks, zero_shot
from headless_trainer.scoring.score_store import folder_name, read_results, score_rows
from headless_trainer.scoring.zero_shot_arguments import ZeroShotArguments

pytestmark = pytest.mark.usefixtures("few_tasks")
TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 300}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, clm_tokenizer, text_lines):
    """A trained model's folder, its texts, and a folder of task definitions on them."""
    folder = tmp_path_factory.mktemp("zero_shot")
    model = harness_inputs.train(clm_tokenizer, text_lines)
    texts = [line for line in text_lines[::7]] + [
        "the miller crossed the river. a grey heron crossed"
    ]
    documents = write_jsonl(folder / "texts.jsonl", [{"text": text} for text in texts])
    path, tasks = (
        save(folder / "lm", model, clm_tokenizer),
        harness_inputs.write_tasks(folder / "tasks", documents),
    )
    return SimpleNamespace(model=model, path=path, texts=texts, documents=documents, tasks=tasks)


def arguments(output_dir=None, **changes):
    settings = {
        "model_name_or_path": ["any"],
        "tasks": ["tiny_lambada"],
        "batch_size": "4",
        "device": "cpu",
    }
    settings |= {"bootstrap_iters": 100, "output_dir": output_dir and str(output_dir)}
    return ZeroShotArguments(**settings | changes)


def scored(model: str, args) -> dict[tuple[str, str], SimpleNamespace]:
    """Scores of a model by task and metric, after all of them were found."""
    assert zero_shot.score_models([model], args) == []
    rows = score_rows(read_results(Path(args.output_dir, folder_name(model)))).itertuples()
    return {(row.task, row.metric.removesuffix(",none")): row for row in rows}


def naive_scores(model, tokenizer, context: str, target: str) -> tuple[float, bool]:
    """Log-likelihood of a target after its context, and whether each of its tokens is the most likely one."""
    context_ids = tokenizer(context).input_ids
    ids = context_ids + tokenizer(context + target).input_ids[len(context_ids) :]
    with torch.no_grad():
        log_probs = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    positions = range(len(context_ids), len(ids))
    greedy = all(log_probs[i - 1].argmax() == ids[i] for i in positions)
    return sum(log_probs[i - 1, ids[i]].item() for i in positions), greedy


def test_lambada_against_plain_torch(inputs, tmp_path, clm_tokenizer):
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


ARC = [
    {"question": question, "choices": {"text": texts, "label": list("ABC")}, "answerKey": answer}
    for question, texts, answer in (
        ("What did the miller cross?", ["the river", "a wheel", "her letter"], "A"),
        ("What did my sister mend?", ["the sky", "a broken wheel", "red"], "B"),
        ("Who watched?", ["a grey heron", "the old clock", "the sky"], "A"),
    )
]


def test_the_harness_s_own_multiple_choice_on_a_local_file(inputs, tmp_path, clm_tokenizer):
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


def test_the_harness_s_own_metric_in_python_on_a_local_file(inputs, tmp_path, clm_tokenizer):
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


def test_a_task_that_generates_and_a_group(inputs, tmp_path):
    found = scored(
        inputs.path, arguments(tmp_path, tasks=["tiny_group"], include_path=inputs.tasks, limit=8.0)
    )
    length = found["tiny_generation", "length"]
    assert (length.documents, length.available) == (8, len(inputs.texts)) and 0 < length.value < 40
    group = found["tiny_group", "acc"]
    assert group.value == found["tiny_lambada", "acc"].value and group.documents is None


def harness_requests(tokenizer) -> list[tuple]:
    heron = "a grey heron watched the"
    pairs = [("the miller crossed", " the river."), (heron, " w"), (heron, " r")]
    pairs += [
        ("my sister " * n + "mended", " a broken wheel" * (n % 3 + 1)) for n in range(1, 9)
    ]  # the last too long
    encoded = [
        (tokenizer(context).input_ids, tokenizer(target).input_ids) for context, target in pairs
    ]
    return [(pair, *ids) for pair, ids in zip(pairs, encoded, strict=True)]


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_projecting_the_scored_positions_changes_no_score(
    inputs, clm_tokenizer, batch_size, caplog
):
    ours = harness_model.load_scored_model(
        inputs.path, arguments(batch_size=str(batch_size), max_length=24)
    )
    plain = HFLM(
        pretrained=inputs.model, tokenizer=clm_tokenizer, batch_size=batch_size, max_length=24
    )
    requests = harness_requests(clm_tokenizer)
    assert max(len(context) + len(target) for _, context, target in requests) > 25
    for got, want in zip(
        ours._loglikelihood_tokens(requests), plain._loglikelihood_tokens(requests), strict=True
    ):
        assert got == (pytest.approx(want[0], rel=1e-5, abs=1e-5), want[1])
    assert (
        "6 of 11 inputs are longer than the 24 tokens that the model reads, and lose their beginning."
        in caplog.text
    )


def test_half_precision_is_summed_in_float32(inputs, clm_tokenizer):
    lm = harness_model.load_scored_model(inputs.path, arguments(dtype="bfloat16"))
    request = harness_requests(clm_tokenizer)[-2]
    naive, _ = naive_scores(lm.model, clm_tokenizer, *request[0])
    assert lm._loglikelihood_tokens([request])[0][0] == pytest.approx(naive, rel=1e-4)


def test_a_token_that_closes_texts_is_no_part_of_an_answer(tmp_path, mlm_tokenizer):
    model = GPT2LMHeadModel(GPT2Config(**TINY | {"vocab_size": len(mlm_tokenizer)}))
    lm = harness_model.load_scored_model(save(tmp_path, model, mlm_tokenizer), arguments())
    _, answer = lm._encode_pair("the miller crossed", " the river")
    assert answer == mlm_tokenizer(" the river", add_special_tokens=False).input_ids


def test_only_the_scored_positions_are_projected(inputs, clm_tokenizer):
    ours = harness_model.load_scored_model(inputs.path, arguments(batch_size="64"))
    sizes = []
    ours.model.lm_head.register_forward_hook(
        lambda _module, _inputs, output: sizes.append(tuple(output.shape))
    )
    context = clm_tokenizer("the miller crossed the river. " * 3).input_ids
    ours._loglikelihood_tokens(
        [(("", ""), context, [5]), (("", ""), context[:-2], [6, 7]), (("", ""), context, [9])]
    )
    # of two inputs (two requests share one) the longest has length n; the other ends one before, and two of it are scored
    assert sizes == [(2, 3, 300)]


def test_rolling_likelihoods_are_the_harness_s(inputs, clm_tokenizer):
    requests = [
        SimpleNamespace(args=(text,)) for text in ("the miller crossed. " * 20, "a small boat")
    ]
    ours = harness_model.load_scored_model(inputs.path, arguments(batch_size="2"))
    plain = HFLM(pretrained=inputs.model, tokenizer=clm_tokenizer, batch_size=2)
    assert ours.loglikelihood_rolling(requests) == pytest.approx(
        plain.loglikelihood_rolling(requests), rel=1e-5
    )


def test_a_tokenizer_that_says_less_than_the_positions_is_remarked(
    inputs, tmp_path, clm_tokenizer, caplog
):
    model = save(tmp_path, inputs.model, clm_tokenizer)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 32}))
    for length, remarked in ((None, True), (32, False)):
        caplog.clear()
        harness_model.load_scored_model(model, arguments(max_length=length))
        assert ("--max_length 32" in caplog.text) == remarked


def test_a_tokenizer_without_special_tokens(inputs, tmp_path, clm_tokenizer):
    backend = Tokenizer.from_str(clm_tokenizer.backend_tokenizer.to_str())
    backend.no_padding()  # which names a padding token, and which other tests of the shared tokenizer turn on
    bare = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert (bare.pad_token, bare.bos_token, bare.eos_token) == (None, None, None)
    before = bare("the miller crossed!").input_ids
    model = save(tmp_path / "lm", inputs.model, bare)
    lm = harness_model.load_scored_model(model, arguments(batch_size="auto"))
    assert lm.batch_size == harness_model.CPU_BATCH_SIZE  # not tried out
    assert lm.tokenizer("the miller crossed!").input_ids == before and len(lm.tokenizer) == len(
        bare
    )
    assert scored(
        model,
        arguments(tmp_path / "out", tasks=["tiny_group"], include_path=inputs.tasks, limit=4.0),
    )
    # An empty context needs a token to begin with.
    ((score, _),) = lm.loglikelihood([SimpleNamespace(args=("", "the miller"))])
    assert math.isfinite(score)


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


# ---- which checkpoints can score


def test_what_has_no_causal_head_is_refused(tmp_path, clm_tokenizer):
    t5 = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=300
    )
    models = {
        "classifier": transformers.GPT2ForSequenceClassification(GPT2Config(**TINY)),
        "t5": transformers.T5ForConditionalGeneration(t5),
        "unknown": transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, vocab_size=300)),
    }
    for name, model in models.items():
        folder = save(tmp_path / name, model, clm_tokenizer)
        if name == "unknown":  # transformers would load it as a decoder that sees what comes
            set_architectures(folder, None)
        with pytest.raises(ValueError, match=f"{folder}.*`headless-trainer lm-head`"):
            harness_model.check_checkpoint(folder)


def set_architectures(folder: str, names: list[str] | None) -> None:
    config = Path(folder, "config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": names}))


def test_weights_that_are_missing_or_left_out_and_tokens_without_a_row_are_refused(
    tmp_path, clm_tokenizer
):
    small = save(
        tmp_path / "small", GPT2LMHeadModel(GPT2Config(**TINY | {"vocab_size": 90})), clm_tokenizer
    )
    headless = save(
        tmp_path / "neox", GPTNeoXModel(GPTNeoXConfig(**SMALL, vocab_size=300)), clm_tokenizer
    )
    set_architectures(headless, ["GPTNeoXForCausalLM"])
    biased = GPT2LMHeadModel(GPT2Config(**TINY))
    biased.lm_head.bias = torch.nn.Parameter(torch.ones(300))
    biased = save(tmp_path / "biased", biased, clm_tokenizer)
    for model, named in (
        (small, "ids up to 299.*90 rows"),
        (biased, "lm_head.bias, which GPT2LMHeadModel ignores"),
        (headless, "lm_head.weight.*headless-trainer lm-head"),
    ):
        harness_model.check_checkpoint(model)
        with pytest.raises(ValueError, match=named):
            harness_model.load_scored_model(model, arguments())


# ---- which tasks there are, and where their documents come from


def test_a_misspelt_task(inputs):
    with pytest.raises(ValueError, match="lambada_opnai.*'lambada_openai'"):
        harness_tasks.open_tasks(["lambada_opnai"])
    with pytest.raises(ValueError, match="tiny_lambda'.*'tiny_lambada'"):
        harness_tasks.open_tasks(["tiny_lambda"], inputs.tasks)
    with pytest.raises(ValueError, match="data_files.*'qasper_bool'"):  # of a tag
        harness_tasks.use_data_files(
            harness_tasks.open_tasks(["qasper"]), [f"qasper={inputs.documents}"]
        )


def test_the_paper_s_answers_and_accuracy_of_qasper(inputs, tmp_path, monkeypatch, clm_tokenizer):
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


def test_a_document_is_no_example_of_its_own_prompt(tmp_path):
    file = write_jsonl(tmp_path / "arc.jsonl", ARC)
    manager = harness_tasks.open_tasks(["arc_easy"])
    harness_tasks.use_data_files(manager, [f"arc_easy={file}"])
    task = harness_tasks.load_named_tasks(manager, "arc_easy")["tasks"]["arc_easy"]
    harness_tasks.set_examples(task, num_fewshot=2)
    task.build_all_requests()
    for instance in task.instances:
        prompt = instance.args[0]
        assert prompt.count("Question:") == 3 and all(
            prompt.count(row["question"]) == 1 for row in ARC
        )


def test_a_task_that_says_0_examples_keeps_0(inputs):
    manager = harness_tasks.open_tasks(["tiny_lambada"], inputs.tasks)
    task = harness_tasks.load_named_tasks(manager, "tiny_lambada")["tasks"]["tiny_lambada"]
    for number in (None, 3):
        harness_tasks.set_examples(task, number)
        assert task.get_config("num_fewshot") == 0


def test_code_of_a_model_is_refused_and_not_asked_about(tmp_path, monkeypatch):
    """transformers would ask on the terminal, and run it where the answer, or what is piped in, is "y"."""
    ran = tmp_path / "ran"
    (tmp_path / "model").mkdir()
    source = f"import pathlib\nfrom transformers import GPT2Config\npathlib.Path({str(ran)!r}).touch()\nConfig = GPT2Config\n"
    (tmp_path / "model" / "code.py").write_text(source)
    config = {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    }
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda text: "y")
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    with pytest.raises(ValueError, match="custom code"):
        harness_model.check_checkpoint(str(tmp_path / "model"))
    assert not ran.exists()


def test_names_of_models_stay_in_their_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder_name("runs/decoder-lm/") == folder_name("./runs/decoder-lm") == "runs__decoder-lm"
    assert len({*map(folder_name, ("m", "../m", "../../m", "/m", "x/m"))}) == 5
    for name in (".", "..", "/", "../..", "a/../.."):
        made = folder_name(name)
        assert made and Path(made).name == made and made != ".."
