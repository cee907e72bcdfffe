"""Zero-shot scoring: the harness's tasks on local files, checkpoints that cannot score, and scores against plain torch."""

import gzip
import json
import math
from pathlib import Path
from types import SimpleNamespace

import harness_inputs
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    GPT2Model,
    GPTNeoXConfig,
    GPTNeoXModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

pytest.importorskip("lm_eval")

import lm_eval
from lm_eval.api.metrics import bootstrap_stderr, f1_score, mean, mean_stderr, perplexity
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from headless_trainer.scoring import harness_model, harness_tasks, zero_shot
from headless_trainer.scoring.score_store import Store, read_documents, read_results

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 300}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, clm_tokenizer, text_lines):
    """A trained model's folder, its texts, and a folder of task definitions on them."""
    folder = tmp_path_factory.mktemp("zero_shot")
    model = harness_inputs.train(clm_tokenizer, text_lines)
    texts = [line for line in text_lines[::7]] + ["the miller crossed the river. a grey heron crossed"]
    documents = harness_inputs.write_jsonl(folder / "texts.jsonl", [{"text": text} for text in texts])
    return SimpleNamespace(
        folder=folder,
        model=model,
        path=harness_inputs.save(folder / "lm", model, clm_tokenizer),
        texts=texts,
        documents=documents,
        tasks=harness_inputs.write_tasks(folder / "tasks", documents),
    )


def arguments(output_dir, **changes):
    settings = {
        "tasks": ["tiny_lambada"],
        "include_path": None,
        "data_files": None,
        "num_fewshot": None,
        "limit": None,
        "batch_size": "4",
        "device": "cpu",
        "dtype": "auto",
        "max_length": None,
        "tokenizer_name": None,
        "seed": None,
        "bootstrap_iters": 1000,
        "output_dir": str(output_dir),
    }
    return SimpleNamespace(**settings | changes)


def naive_scores(model, tokenizer, context: str, target: str) -> tuple[float, bool]:
    """Log-likelihood of a target after its context, and whether each of its tokens is the most likely one."""
    context_ids = tokenizer(context).input_ids
    ids = context_ids + tokenizer(context + target).input_ids[len(context_ids) :]
    with torch.no_grad():
        log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    positions = range(len(context_ids), len(ids))
    greedy = all(log_probs[i - 1].argmax() == ids[i] for i in positions)
    return sum(log_probs[i - 1, ids[i]].item() for i in positions), greedy


def test_lambada_against_plain_torch(inputs, tmp_path, clm_tokenizer):
    assert zero_shot.score_models([inputs.path], arguments(tmp_path, include_path=inputs.tasks)) == []
    folder = tmp_path / zero_shot.folder_name(inputs.path)
    entry = read_results(folder)["tasks"]["tiny_lambada"]
    naive = [naive_scores(inputs.model, clm_tokenizer, *text_and_target(text)) for text in inputs.texts]
    scores, hits = [score for score, _ in naive], [hit for _, hit in naive]
    assert 0 < sum(hits) < len(hits)  # else the accuracy says little
    metrics = entry["metrics"]
    assert metrics["acc,none"]["value"] == sum(hits) / len(hits)
    assert metrics["acc,none"]["stderr"] == pytest.approx(np.std(hits, ddof=1) / math.sqrt(len(hits)))
    assert metrics["perplexity,none"]["value"] == pytest.approx(math.exp(-sum(scores) / len(scores)), rel=1e-5)
    ways = {name: (metric["higher_is_better"], metric["aggregation"]) for name, metric in metrics.items()}
    assert ways == {"acc,none": (True, "mean"), "perplexity,none": (False, "perplexity")}
    assert (entry["documents"], entry["documents_available"], entry["num_fewshot"]) == (len(scores), len(scores), 0)
    documents = read_documents(folder, entry)
    assert documents["scores"]["perplexity,none"] == pytest.approx(scores, rel=1e-4)
    assert documents["scores"]["acc,none"] == hits
    assert len(set(documents["sha256"])) == len(scores)


def text_and_target(text: str) -> tuple[str, str]:
    context, _, last = text.rpartition(" ")
    return context, " " + last


ARC = [
    {
        "question": "What did the miller cross?",
        "choices": {"text": ["the river", "a wheel", "her letter"], "label": list("ABC")},
    },
    {
        "question": "What did my sister mend?",
        "choices": {"text": ["the sky", "a broken wheel", "red"], "label": list("ABC")},
    },
    {
        "question": "Who watched?",
        "choices": {"text": ["a grey heron", "the old clock", "the sky"], "label": list("ABC")},
    },
]
for row, answer in zip(ARC, "ABA", strict=True):
    row["answerKey"] = answer


def test_the_harness_s_own_multiple_choice_on_a_local_file(inputs, tmp_path, clm_tokenizer):
    file = harness_inputs.write_jsonl(tmp_path / "arc.jsonl", ARC)
    args = arguments(tmp_path / "out", tasks=["arc_easy"], data_files=[f"arc_easy={file}"])
    assert zero_shot.score_models([inputs.path], args) == []
    entry = read_results(tmp_path / "out" / zero_shot.folder_name(inputs.path))["tasks"]["arc_easy"]
    right = {"acc,none": [], "acc_norm,none": []}
    for row in ARC:
        choices = row["choices"]["text"]
        context = f"Question: {row['question']}\nAnswer:"
        scores = np.array([naive_scores(inputs.model, clm_tokenizer, context, " " + each)[0] for each in choices])
        gold = "ABC".index(row["answerKey"])
        right["acc,none"].append(scores.argmax() == gold)
        right["acc_norm,none"].append((scores / [len(each) for each in choices]).argmax() == gold)
    assert {name: entry["metrics"][name]["value"] for name in right} == {
        name: np.mean(each) for name, each in right.items()
    }
    assert entry["settings"]["data_file"] is not None


def test_the_harness_s_own_metric_in_python_on_a_local_file(inputs, tmp_path, clm_tokenizer):
    pairs = [
        ("the miller crossed the river.", "the heron crossed the river."),
        ("my sister.", "my sister mended red apples."),
    ]
    rows = [{"sent_more": more, "sent_less": less} for more, less in pairs]
    file = harness_inputs.write_jsonl(tmp_path / "crows.jsonl", rows)
    args = arguments(tmp_path / "out", tasks=["crows_pairs_english"], data_files=[f"crows_pairs_english={file}"])
    assert zero_shot.score_models([inputs.path], args) == []
    metrics = read_results(tmp_path / "out" / zero_shot.folder_name(inputs.path))["tasks"]["crows_pairs_english"][
        "metrics"
    ]

    def score(text: str) -> float:  # an empty context: the text follows the token that ends the one before
        ids = torch.tensor([clm_tokenizer("<|endoftext|>" + text).input_ids])
        with torch.no_grad():
            return inputs.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).sum().item()

    differences = [score(more) - score(less) for more, less in pairs]
    assert metrics["likelihood_diff,none"]["value"] == pytest.approx(np.abs(differences).mean(), rel=1e-4)
    assert metrics["pct_stereotype,none"]["value"] == np.mean([each > 0 for each in differences])
    # the lower difference is the better; of the share, neither the lower nor the higher is
    assert [metrics[f"{name},none"]["higher_is_better"] for name in ("likelihood_diff", "pct_stereotype")] == [
        False,
        None,
    ]


def test_a_task_that_generates_and_a_group(inputs, tmp_path):
    args = arguments(tmp_path, tasks=["tiny_group"], include_path=inputs.tasks, limit=8.0)
    assert zero_shot.score_models([inputs.path], args) == []
    results = read_results(tmp_path / zero_shot.folder_name(inputs.path))
    generated = results["tasks"]["tiny_generation"]
    assert generated["output_type"] == "generate_until" and generated["documents"] == 8
    assert generated["documents_available"] == len(inputs.texts)
    assert 0 < generated["metrics"]["length,none"]["value"] < 40
    group = results["groups"]["tiny_group"]["metrics"]["acc,none"]
    assert group["value"] == results["tasks"]["tiny_lambada"]["metrics"]["acc,none"]["value"]


def harness_requests(tokenizer) -> list[tuple]:
    pairs = [
        ("the miller crossed", " the river."),
        ("a grey heron watched the", " w"),
        ("a grey heron watched the", " r"),
    ]
    pairs += [
        ("my sister " * n + "mended", " a broken wheel" * (n % 3 + 1)) for n in range(1, 9)
    ]  # the last is too long
    encoded = [(tokenizer(context).input_ids, tokenizer(target).input_ids) for context, target in pairs]
    return [(pair, *ids) for pair, ids in zip(pairs, encoded, strict=True)]


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_projecting_the_scored_positions_changes_no_score(inputs, clm_tokenizer, batch_size):
    ours = harness_model.load(inputs.path, device="cpu", batch_size=str(batch_size), max_length=24)
    plain = HFLM(pretrained=inputs.model, tokenizer=clm_tokenizer, batch_size=batch_size, max_length=24)
    requests = harness_requests(clm_tokenizer)
    assert max(len(context) + len(target) for _, context, target in requests) > 25
    for got, want in zip(ours._loglikelihood_tokens(requests), plain._loglikelihood_tokens(requests), strict=True):
        assert got == (pytest.approx(want[0], rel=1e-5, abs=1e-5), want[1])


def test_only_the_scored_positions_are_projected(inputs, clm_tokenizer):
    ours = harness_model.load(inputs.path, device="cpu", batch_size="64")
    sizes = []
    ours.model.lm_head.register_forward_hook(lambda _module, _inputs, output: sizes.append(tuple(output.shape)))
    context = clm_tokenizer("the miller crossed the river. " * 3).input_ids
    ours._loglikelihood_tokens([(("", ""), context, [5]), (("", ""), context[:-2], [6, 7]), (("", ""), context, [9])])
    # of two inputs (two requests share one) the longest has length n; the other ends one before, and two of it are scored
    assert sizes == [(2, 3, 300)]


def test_rolling_likelihoods_are_the_harness_s(inputs, clm_tokenizer):
    requests = [SimpleNamespace(args=(text,)) for text in ("the miller crossed. " * 20, "a small boat")]
    ours = harness_model.load(inputs.path, device="cpu", batch_size="2")
    plain = HFLM(pretrained=inputs.model, tokenizer=clm_tokenizer, batch_size=2)
    assert ours.loglikelihood_rolling(requests) == pytest.approx(plain.loglikelihood_rolling(requests), rel=1e-5)


def test_batch_size_of_a_cpu():
    assert harness_model.cpu_batch_size(50_000, 1000, 48 * 10**9) == 20  # a quarter of 48 GB over 0.6 GB
    assert harness_model.cpu_batch_size(300, 64, 48 * 10**9) == 64
    assert harness_model.cpu_batch_size(50_000, 1000, 10**6) == 1


def test_auto_batch_size_says_what_it_is(inputs, caplog):
    caplog.set_level("INFO", logger="headless_trainer")
    assert harness_model.load(inputs.path, device="cpu").batch_size == 64
    assert "batch size 64, for 300 tokens in the vocabulary and 64 in an input" in caplog.text


def test_a_tokenizer_that_says_less_than_the_positions_is_remarked(inputs, tmp_path, clm_tokenizer, caplog):
    clm_tokenizer.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 32}))
    harness_model.load(inputs.path, device="cpu", tokenizer_name=str(tmp_path))
    assert "--max_length 32" in caplog.text
    caplog.clear()
    harness_model.load(inputs.path, device="cpu", tokenizer_name=str(tmp_path), max_length=32)
    assert "--max_length" not in caplog.text


def test_a_tokenizer_without_special_tokens(inputs, tmp_path, clm_tokenizer):
    backend = Tokenizer.from_str(clm_tokenizer.backend_tokenizer.to_str())
    backend.no_padding()  # which names a padding token, and which other tests of the shared tokenizer turn on
    bare = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert (bare.pad_token, bare.bos_token, bare.eos_token) == (None, None, None)
    before = bare("the miller crossed!").input_ids
    model = harness_inputs.save(tmp_path / "lm", inputs.model, bare)
    lm = harness_model.load(model, device="cpu", batch_size="2")
    assert lm.tokenizer("the miller crossed!").input_ids == before and len(lm.tokenizer) == len(bare)
    args = arguments(tmp_path / "out", tasks=["tiny_group"], include_path=inputs.tasks, limit=4.0)
    assert zero_shot.score_models([model], args) == []
    score, _ = lm.loglikelihood([SimpleNamespace(args=("", "the miller"))])[
        0
    ]  # an empty context needs a token to begin with
    assert math.isfinite(score)


def test_perplexity_s_standard_error_is_the_harness_s(monkeypatch):
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    values = np.random.default_rng(0).normal(-4, 2, 37).tolist()
    for iterations in (50, 2500):  # below one chunk, and not a multiple of it
        want = bootstrap_stderr(perplexity, values, iterations)
        assert zero_shot.standard_error(perplexity, values, iterations) == pytest.approx(want, rel=1e-12)
    assert zero_shot.standard_error(mean, values, 10) == mean_stderr(values)
    pairs = [(1, 1), (0, 1), (1, 0), (1, 1)]
    assert zero_shot.standard_error(f1_score, pairs, 20) == bootstrap_stderr(f1_score, pairs, 20)
    assert zero_shot.standard_error(mean, values, 0) is None and zero_shot.standard_error(mean, [1.0], 10) is None


def test_what_is_scored_is_not_scored_again(inputs, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", logger="headless_trainer")
    args = arguments(tmp_path, include_path=inputs.tasks, limit=3.0)
    zero_shot.score_models([inputs.path], args)
    folder = tmp_path / zero_shot.folder_name(inputs.path)
    before = (folder / "results.json").read_bytes()
    monkeypatch.setattr(harness_model, "load", lambda *_args, **_kwargs: pytest.fail("a model was loaded"))
    assert zero_shot.score_models([inputs.path], args) == []
    assert "scored earlier with the same settings: tiny_lambada" in caplog.text
    assert (folder / "results.json").read_bytes() == before
    with pytest.raises(
        ValueError, match=r"tiny_lambada scored with limit 3.0 \(now 5.0\). Choose another --output_dir"
    ):
        zero_shot.score_models([inputs.path], arguments(tmp_path, include_path=inputs.tasks, limit=5.0))


def test_other_settings_of_any_model_are_refused_before_one_is_loaded(inputs, tmp_path, clm_tokenizer, monkeypatch):
    other = harness_inputs.save(tmp_path / "lm", inputs.model, clm_tokenizer)
    zero_shot.score_models([other], arguments(tmp_path / "out", include_path=inputs.tasks, limit=3.0))
    monkeypatch.setattr(harness_model, "load", lambda *_args, **_kwargs: pytest.fail("a model was loaded"))
    with pytest.raises(ValueError, match=r"tiny_lambada scored with limit 3.0 \(now 5.0\)"):
        args = arguments(tmp_path / "out", include_path=inputs.tasks, limit=5.0)
        zero_shot.score_models([inputs.path, other], args)


def test_a_failure_keeps_what_was_scored_and_goes_on(inputs, tmp_path, monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(HFLM, "generate_until", fail)
    args = arguments(tmp_path, tasks=["tiny_generation", "tiny_lambada"], include_path=inputs.tasks, limit=2.0)
    failures = zero_shot.score_models([inputs.path], args)
    assert failures == [f"tiny_generation of {inputs.path}: RuntimeError: out of luck"]
    assert list(read_results(tmp_path / zero_shot.folder_name(inputs.path))["tasks"]) == ["tiny_lambada"]
    monkeypatch.undo()
    assert zero_shot.score_models([inputs.path], args) == []
    assert len(read_results(tmp_path / zero_shot.folder_name(inputs.path))["tasks"]) == 2


def test_new_weights_are_other_settings(inputs, tmp_path, clm_tokenizer):
    model = harness_inputs.save(tmp_path / "lm", inputs.model, clm_tokenizer)
    before = zero_shot.task_settings(model, arguments(tmp_path))
    assert before == zero_shot.task_settings(model, arguments(tmp_path))
    (tmp_path / "lm" / "eval_results.json").write_text("{}")
    assert before == zero_shot.task_settings(model, arguments(tmp_path))
    inputs.model.save_pretrained(tmp_path / "lm")
    assert before != zero_shot.task_settings(model, arguments(tmp_path))


def test_a_store_adds_tasks_to_what_it_finds(tmp_path):
    for task in ("one", "two::three"):
        Store(tmp_path, "m").add(
            task, {"settings": {}, "documents": 1, "metrics": {}}, {"scores": {"acc,none": [np.float64(1)]}}
        )
    results = read_results(tmp_path)
    assert list(results["tasks"]) == ["one", "two::three"] and results["model"] == "m"
    assert read_documents(tmp_path, results["tasks"]["two::three"]) == {"scores": {"acc,none": [1.0]}}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.json.gz", "results.json", "two__three.json.gz"]


# ---- which checkpoints can score


def test_a_trunk_is_refused_with_the_remedy(tmp_path, clm_tokenizer):
    trunk = harness_inputs.save(tmp_path / "trunk", GPT2Model(GPT2Config(**TINY)), clm_tokenizer)
    with pytest.raises(ValueError, match=r"is a trunk \(GPT2Model\) without a language-modelling head") as error:
        harness_model.check_checkpoint(trunk)
    assert f"headless-trainer lm-head --model_name_or_path {trunk} --output_dir {trunk}-lm" in str(error.value)


def test_a_missing_head_is_refused_when_the_class_is_not_known(tmp_path, clm_tokenizer):
    config = GPTNeoXConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=300
    )
    trunk = harness_inputs.save(tmp_path / "neox", GPTNeoXModel(config), clm_tokenizer)
    settings = json.loads((tmp_path / "neox" / "config.json").read_text())
    (tmp_path / "neox" / "config.json").write_text(json.dumps(settings | {"architectures": None}))
    harness_model.check_checkpoint(trunk)
    with pytest.raises(ValueError, match="lacks the weights lm_head.weight.*headless-trainer lm-head"):
        harness_model.load(trunk, device="cpu")


def test_other_models_are_refused(tmp_path, clm_tokenizer):
    bert = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=300)
    t5 = T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=300)
    for name, model in {"bert": BertForMaskedLM(bert), "t5": T5ForConditionalGeneration(t5)}.items():
        model.save_pretrained(tmp_path / name)
        with pytest.raises(
            ValueError, match=f"is a {name}, but scoring text needs a decoder; `headless-trainer glue` scores encoders"
        ):
            harness_model.check_checkpoint(str(tmp_path / name))
    GPT2ForSequenceClassification(GPT2Config(**TINY)).save_pretrained(tmp_path / "classifier")
    with pytest.raises(ValueError, match=r"was saved as GPT2ForSequenceClassification.*\(GPT2LMHeadModel\)"):
        harness_model.check_checkpoint(str(tmp_path / "classifier"))


def test_folders_without_a_model_or_a_tokenizer(inputs, tmp_path, clm_tokenizer):
    with pytest.raises(ValueError, match="holds no config.json, so it is not a model"):
        harness_model.check_checkpoint(str(tmp_path))
    GPT2LMHeadModel(GPT2Config(**TINY)).save_pretrained(tmp_path / "checkpoint-5")
    with pytest.raises(ValueError, match="holds no config.json.* Did you mean '.*checkpoint-5'"):
        harness_model.check_checkpoint(str(tmp_path))
    with pytest.raises(OSError, match="'someone/nothing' is not a folder here, and the Hub cannot be reached"):
        harness_model.check_checkpoint("someone/nothing")
    with pytest.raises(ValueError, match="checkpoint-5' holds no tokenizer.*--tokenizer_name"):
        harness_model.load(str(tmp_path / "checkpoint-5"), device="cpu")
    with pytest.raises(ValueError, match="max_length is 65 but .* has 64 positions"):
        harness_model.load(inputs.path, device="cpu", max_length=65)
    small = harness_inputs.save(
        tmp_path / "small", GPT2LMHeadModel(GPT2Config(**TINY | {"vocab_size": 90})), clm_tokenizer
    )
    with pytest.raises(ValueError, match="tokenizer has 300 tokens but the embedding of .* has 90 rows"):
        harness_model.load(small, device="cpu")


# ---- which tasks there are, and where their documents come from


@pytest.fixture
def few_tasks(monkeypatch):
    """The index of everything takes seconds: the harness's own tasks are those of three of its folders."""
    root = harness_tasks.Path(lm_eval.tasks.__file__).parent
    folders = [root / name for name in ("lambada", "arc", "qasper", "crows_pairs")]

    def manager(include_path=None, include_defaults=True):
        given = include_path if isinstance(include_path, list) else [include_path] if include_path else []
        return TaskManager(include_path=[*(folders if include_defaults else []), *given], include_defaults=False)

    monkeypatch.setattr(harness_tasks, "TaskManager", manager)
    monkeypatch.setattr(harness_tasks, "_folders", lambda names: [])


def test_paper_is_the_paper_s_list():
    assert harness_tasks.expand(["paper", "boolq", "mine"]) == [
        *(
            "arc_easy",
            "arc_challenge",
            "boolq",
            "crows_pairs_english",
            "race",
            "sciq",
            "pubmedqa",
            "qasper",
            "lambada_openai",
        ),
        "mine",
    ]


def test_a_misspelt_task(few_tasks, inputs):
    with pytest.raises(ValueError, match="Task 'lambada_opnai' is not one of the harness's. .* is 'lambada_openai'"):
        harness_tasks.open_tasks(["lambada_opnai"])
    with pytest.raises(ValueError, match="nor in include_path '.*The nearest known one is 'tiny_lambada'"):
        harness_tasks.open_tasks(["tiny_lambda"], inputs.tasks)
    with pytest.raises(FileNotFoundError, match="include_path '.*' is not a folder with task definitions"):
        harness_tasks.open_tasks(["arc_easy"], str(inputs.folder / "lm"))


def test_the_harness_is_searched_for_single_tasks_only():
    assert [folder.name for folder in harness_tasks._folders(["lambada_openai", "arc_easy"])] == ["arc", "lambada"]
    assert harness_tasks._folders(["qasper"]) == [] == harness_tasks._folders(["lambada_openai", "nothing"])


def test_own_definitions_come_before_the_harness_s(few_tasks, tmp_path):
    (tmp_path / "mine.yaml").write_text("task: arc_easy\ndataset_path: mine\n")
    manager = harness_tasks.open_tasks(["arc_easy", "arc_challenge"], str(tmp_path))
    assert manager.task_index["arc_easy"].cfg["dataset_path"] == "mine"
    assert manager.task_index["arc_challenge"].cfg["dataset_path"] == "allenai/ai2_arc"


def test_names_behind_tags_and_groups(few_tasks, inputs, tmp_path):
    (tmp_path / "nested.yaml").write_text(
        "group: nested\ntask:\n  - qasper\n  - {task: arc_easy, num_fewshot: 1}\n"
        "  - {group: inner, task: [lambada_openai, {task: placed, dataset_path: json}]}\n"
    )
    manager = harness_tasks.open_tasks(["nested"], str(tmp_path))
    assert harness_tasks.leaf_names(manager, "nested") == [
        *("qasper_bool", "qasper_freeform", "arc_easy", "lambada_openai", "nested::inner::placed")
    ]
    assert harness_tasks.leaf_names(manager, "qasper") == ["qasper_bool", "qasper_freeform"]
    with pytest.raises(ValueError, match="data_files cannot serve 'nested::inner::placed'"):
        harness_tasks.use_data_files(manager, {"nested::inner::placed": tmp_path / "nested.yaml"})


def test_data_files(few_tasks, inputs, tmp_path):
    names = ["qasper", "arc_easy"]
    manager = harness_tasks.open_tasks(names)
    one, two = (harness_inputs.write_jsonl(tmp_path / name, [{"text": "x"}]) for name in ("1.jsonl", "2.jsonl"))
    files = harness_tasks.parse_data_files([f"qasper_bool={one}", f"qasper={two}"], manager, names)
    assert {name: str(path) for name, path in files.items()} == {"qasper_bool": one, "qasper_freeform": two}
    with pytest.raises(ValueError, match="data_files must be task=file items, got 'arc_easy'"):
        harness_tasks.parse_data_files(["arc_easy"], manager, names)
    with pytest.raises(ValueError, match="data_files names 'arc_esy'.* is 'arc_easy'"):
        harness_tasks.parse_data_files([f"arc_esy={one}"], manager, names)
    with pytest.raises(FileNotFoundError, match="data_files gives 'arc_easy' the file 'none.jsonl'"):
        harness_tasks.parse_data_files(["arc_easy=none.jsonl"], manager, names)
    files = {"arc_easy": harness_tasks.Path(one)}
    harness_tasks.use_data_files(manager, files)
    with pytest.raises(ValueError, match="'arc_easy' cannot use the documents of .*1.jsonl.*dataset 'allenai/ai2_arc'"):
        harness_tasks.build(manager, "arc_easy", files, None)


def test_documents_that_cannot_be_read(tmp_path):
    (tmp_path / "bad.jsonl").write_text("{not json\n")
    with pytest.raises(ValueError, match="bad.jsonl' cannot be read as json"):
        harness_tasks.read_documents(tmp_path / "bad.jsonl", {})
    (tmp_path / "bad.parquet").write_text("{}")
    with pytest.raises(ValueError, match="bad.parquet' cannot be read as parquet"):
        harness_tasks.read_documents(tmp_path / "bad.parquet", {})


def test_columns_of_another_layout(tmp_path):
    rows = [{"question": "is it?", "context": {"contexts": ["yes", "it is"]}, "final_decision": "yes"}]
    file = harness_tasks.Path(harness_inputs.write_jsonl(tmp_path / "p.jsonl", rows))
    document = harness_tasks.read_documents(file, harness_tasks.COLUMNS["pubmedqa"])[0]
    assert (document["QUESTION"], document["CONTEXTS"]) == ("is it?", ["yes", "it is"])
    rows = [{"QUESTION": "as the task has it", "question": "not this"}]
    file = harness_tasks.Path(harness_inputs.write_jsonl(tmp_path / "q.jsonl", rows))
    assert harness_tasks.read_documents(file, harness_tasks.COLUMNS["pubmedqa"])[0]["QUESTION"] == "as the task has it"


def test_a_dataset_of_the_hub_without_network(few_tasks):
    manager = harness_tasks.open_tasks(["arc_easy"])
    with pytest.raises(
        ConnectionError, match=r"'arc_easy' needs the dataset 'allenai/ai2_arc' \(ARC-Easy\) from the Hub"
    ) as error:
        harness_tasks.build(manager, "arc_easy", {}, None)
    assert "--data_files arc_easy=documents.jsonl" in str(error.value) and "--include_path" in str(error.value)


def test_python_functions_of_a_definition_run(few_tasks, tmp_path):
    answers = {"unanswerable": False, "free_form_answer": "", "extractive_spans": []}
    rows = [
        {
            "title": "T",
            "abstract": "A",
            "qas": {
                "question": ["is it?", "was it?"],
                "answers": [{"answer": [answers | {"yes_no": True}]}, {"answer": [answers | {"yes_no": False}]}],
            },
        }
    ]
    files = {"qasper_bool": harness_tasks.Path(harness_inputs.write_jsonl(tmp_path / "q.jsonl", rows))}
    manager = harness_tasks.open_tasks(["qasper"])
    harness_tasks.use_data_files(manager, files)
    task = harness_tasks.build(manager, "qasper_bool", files, None)["tasks"]["qasper_bool"]
    assert [document["answer"] for document in task.eval_docs] == ["yes", "no"]


def test_the_paper_s_accuracy_and_direction(few_tasks, inputs, tmp_path, monkeypatch, clm_tokenizer, caplog):
    monkeypatch.setattr(harness_tasks, "PAPER_TASKS", ("crows_pairs_english", "qasper_bool"))
    pairs = [{"sent_more": "my sister.", "sent_less": "the heron crossed."}] * 2
    texts = {"title": "T", "abstract": "A", "unanswerable": False, "free_form_answer": "", "extractive_spans": []}
    answers = [{"answer": [{**texts, "yes_no": yes}]} for yes in (True, False, True)]
    papers = [texts | {"qas": {"question": ["is it?", "was it?", "will it be?"], "answers": answers}}]
    files = [
        f"{name}={harness_inputs.write_jsonl(tmp_path / f'{name}.jsonl', rows)}"
        for name, rows in (("crows_pairs_english", pairs), ("qasper_bool", papers))
    ]
    scored = {}
    for tasks in (["crows_pairs_english", "qasper_bool"], ["paper"]):
        args = arguments(tmp_path / tasks[0], tasks=tasks, data_files=files, bootstrap_iters=0)
        assert zero_shot.score_models([inputs.path], args) == []
        folder = tmp_path / tasks[0] / zero_shot.folder_name(inputs.path)
        scored[tasks[0]] = read_results(folder)["tasks"]
        assert zero_shot.score_models([inputs.path], args) == []  # what is there already is taken as it is
    plain, paper = (
        {(task, metric): found for task, entry in each.items() for metric, found in entry["metrics"].items()}
        for each in scored.values()
    )
    assert set(paper) - set(plain) == {("qasper_bool", "acc,none")} and set(plain) <= set(paper)
    right = 0
    for question, truth in zip(("is it?", "was it?", "will it be?"), (" yes", " no", " yes"), strict=True):
        context = f"TITLE: T\nABSTRACT: A\n\nQ: {question}\n\nA:"
        yes, no = (naive_scores(inputs.model, clm_tokenizer, context, answer)[0] for answer in (" yes", " no"))
        right += (" yes" if yes > no else " no") == truth
    assert paper["qasper_bool", "acc,none"]["value"] == pytest.approx(right / 3)
    assert caplog.text.count("the harness takes yes for the right answer to every question") == 2  # without paper
    assert paper["qasper_bool", "acc,none"]["higher_is_better"] is True
    share = ("crows_pairs_english", "pct_stereotype,none")
    assert (plain[share]["higher_is_better"], paper[share]["higher_is_better"]) == (None, False)
    args = arguments(tmp_path / "crows_pairs_english", tasks=["paper"], data_files=files, bootstrap_iters=0)
    with pytest.raises(ValueError, match="as_in None .now 'paper'.. Choose another --output_dir"):
        zero_shot.score_models([inputs.path], args)


def test_a_document_is_no_example_of_its_own_prompt(few_tasks, tmp_path):
    files = {"arc_easy": harness_tasks.Path(harness_inputs.write_jsonl(tmp_path / "arc.jsonl", ARC))}
    manager = harness_tasks.open_tasks(["arc_easy"])
    harness_tasks.use_data_files(manager, files)
    task = harness_tasks.build(manager, "arc_easy", files, None)["tasks"]["arc_easy"]
    harness_tasks.prepare(task, num_fewshot=2, seed=5)
    task.build_all_requests()
    for instance in task.instances:
        prompt = instance.args[0]
        assert prompt.count("Question:") == 3 and all(prompt.count(row["question"]) == 1 for row in ARC)


def test_number_of_examples(few_tasks, inputs):
    manager = harness_tasks.open_tasks(["tiny_lambada"], inputs.tasks)
    task = harness_tasks.build(manager, "tiny_lambada", {}, None)["tasks"]["tiny_lambada"]
    harness_tasks.prepare(task, None, None)
    assert task.get_config("num_fewshot") == 0
    harness_tasks.prepare(task, 3, None)  # a task that says 0 keeps 0
    assert task.get_config("num_fewshot") == 0


def test_code_of_a_model_is_refused_and_not_asked_about(tmp_path, monkeypatch):
    """transformers would ask on the terminal, and run it where the answer, or what is piped in, is "y"."""
    ran = tmp_path / "ran"
    (tmp_path / "model").mkdir()
    source = f"import pathlib\nfrom transformers import GPT2Config\npathlib.Path({str(ran)!r}).touch()\nConfig = GPT2Config\n"
    (tmp_path / "model" / "code.py").write_text(source)
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda text: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(ValueError, match="comes with code of its own, which is not run here"):
        harness_model.check_checkpoint(str(tmp_path / "model"))
    tokenizer = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "code.Tokenizer"]}}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match="comes with code of its own, which is not run here"):
        harness_model._load_tokenizer(str(tmp_path / "model"))
    assert not ran.exists()


def test_names_of_models_and_of_documents_stay_in_their_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert zero_shot.folder_name("runs/decoder-lm/") == "runs__decoder-lm"
    for name in (".", "..", "/", "../..", "a/../.."):
        made = zero_shot.folder_name(name)
        assert made and Path(made).name == made and made != ".."
    (tmp_path / "secret.json.gz").write_bytes(gzip.compress(b"{}"))
    (tmp_path / "results").mkdir()
    for file in ("../secret.json.gz", str(tmp_path / "secret.json.gz")):
        with pytest.raises(FileNotFoundError):
            read_documents(tmp_path / "results", {"documents_file": file})
