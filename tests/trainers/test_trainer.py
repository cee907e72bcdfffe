"""Properties of the trainers: splits, resume, evaluation, failures."""

import json
import os
from functools import partial
from types import SimpleNamespace

import builders
import huggingface_hub
import pytest
import torch
from builders import (
    SMALL,
    VOCAB,
    Gradients,
    Tokenizer,
    assert_resumes,
    make_trainer,
    tiny_model,
    tiny_trainer,
    token_rows,
    trainer_for,
)
from datasets import Dataset
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModel,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    TrainingArguments,
)

from headless_trainer import (
    HeadlessTrainer,
    HeadlessTrainingArguments,
    SampledSoftmaxTrainer,
    VanillaTrainer,
)
from headless_trainer.checkpoints.token_counts import load_token_counts
from headless_trainer.models.candidate_head import load_trunk, untie
from headless_trainer.objective.prior import log_prior
from headless_trainer.trainers.step import CARRIED

ROWS, LENGTH = 24, 12


def first_gradients(tmp_path, task, tokenizer, **settings):
    gradients = Gradients()
    run = trainer_for(tmp_path, task, tokenizer, callbacks=[gradients], max_steps=1, **settings)
    run.train()
    assert not run.embedding._forward_hooks, "a copy of the model would take the trainer along"
    return gradients.kept, run.state.log_history[0]["loss"]


def assert_same_gradients(got, want, tolerance):
    """The whole gradient agrees to ``tolerance``, and each tensor's to a hundred times that, which
    rounding may cost it.
    """
    assert got.keys() == want.keys() and len(want) > 10
    difference = torch.cat([(got[name] - want[name]).flatten() for name in want]).norm()
    assert difference <= tolerance * torch.cat([grad.flatten() for grad in want.values()]).norm()
    for name, expected in want.items():
        # A key's bias cancels in the softmax.
        if "key.bias" not in name and "attn.c_attn.bias" not in name:
            assert expected.norm() > 0, name
            assert (got[name] - expected).norm() <= 100 * tolerance * expected.norm(), name


@pytest.mark.parametrize(
    "settings, steps", [({"logging_steps": 100}, [1]), ({"logging_strategy": "no"}, [])]
)
def test_the_first_step_is_logged_unless_nothing_is(tmp_path, clm_tokenizer, settings, steps):
    run = trainer_for(tmp_path, "clm", clm_tokenizer, **settings)
    run.train()
    assert [logs["step"] for logs in run.state.log_history if "loss" in logs] == steps


@pytest.mark.parametrize("negatives", ["micro_batch", "step"])
def test_floor_and_guess_are_those_of_the_logged_loss(tmp_path, clm_tokenizer, negatives):
    """With micro-batches of unequal size, one of them without a target: outputs of zero have equal
    scores.
    """
    trunk = tiny_model("clm", len(clm_tokenizer))
    trunk.ln_f.weight.data.zero_()
    generator, lengths = torch.Generator().manual_seed(0), (30, 30, 3, 5, 1, 1)
    ids = [torch.randint(5, 12, (length,), generator=generator) for length in lengths]
    settings = {
        "task": "clm",
        "negatives": negatives,
        "max_steps": 1,
        "gradient_accumulation_steps": 3,
    }
    settings |= {
        "per_device_train_batch_size": 2,
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
    }
    run = make_trainer(
        tmp_path,
        trunk,
        [{"input_ids": row} for row in ids],
        settings,
        processing_class=clm_tokenizer,
    )
    run.train()
    log = run.state.log_history[0]
    assert log["random_guess_loss"] == pytest.approx(log["loss"], abs=1e-4)
    pairs = [
        torch.cat([first[1:], second[1:]])
        for first, second in zip(ids[::2], ids[1::2], strict=True)
    ]
    pools = pairs if negatives == "micro_batch" else [torch.cat(pairs)]
    floors = [
        torch.stack([(pool == token).sum() for token in pool]).log().mean()
        for pool in pools
        if len(pool)
    ]
    assert log["loss_floor"] == pytest.approx(sum(floors).item() / len(floors), abs=1e-4)


@pytest.mark.parametrize("task", ["clm", "mlm"])
@pytest.mark.parametrize("objective, negatives, split", [
    ("headless", "step", (4, 2)), ("headless", "step", (1, 8)), ("vanilla", "micro_batch", (2, 4)),
])  # fmt: skip
def test_a_step_does_not_depend_on_its_split(
    tmp_path, task, tokenizer, objective, negatives, split
):
    settings = {
        "objective": objective,
        "negatives": negatives,
        "data": token_rows(tokenizer, lengths=(12, 5, 9)),
    }
    found = []
    for size, micro_batches in ((8, 1), split):
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": micro_batches}
        found.append(first_gradients(tmp_path / str(size), task, tokenizer, **sizes, **settings))
    (want, want_loss), (got, got_loss) = found
    assert got_loss == pytest.approx(want_loss, rel=1e-5)
    assert_same_gradients(got, want, 1e-6 if objective == "headless" else 1e-5)


class Rebuilds(HeadlessTrainer):
    """Makes another dictionary of each batch, as an override that sorts or moves entries does."""

    lost = ()

    def _prepare_inputs(self, inputs):
        return {
            name: value
            for name, value in super()._prepare_inputs(inputs).items()
            if name not in self.lost
        }


@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_a_batch_may_be_rebuilt_but_keeps_its_mark(tmp_path, task, tokenizer, monkeypatch):
    want, want_loss = first_gradients(tmp_path / "own", task, tokenizer)
    got, got_loss = first_gradients(tmp_path / "rebuilt", task, tokenizer, kind=Rebuilds)
    assert got_loss == want_loss and all(torch.equal(got[name], want[name]) for name in want)
    monkeypatch.setattr(Rebuilds, "lost", (CARRIED,))
    with pytest.raises(ValueError, match=f"lost its entry {CARRIED!r}"):
        trainer_for(tmp_path, task, tokenizer, kind=Rebuilds).train()


@pytest.mark.parametrize("task", ["clm", "mlm"])
@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_evaluation_does_not_depend_on_the_batch_size(tmp_path, task, tokenizer, objective):
    results, pool = [], {"eval_pool_size": 20} if objective == "headless" else {}
    data = token_rows(tokenizer, lengths=(12, 5, 9))
    for size in (1, 3, 10):
        settings = {"objective": objective, "data": data, "per_device_eval_batch_size": size} | pool
        run = trainer_for(tmp_path / str(size), task, tokenizer, **settings)
        run.token_counts += torch.arange(len(tokenizer))
        results.append(run.evaluate())
    for name in ("eval_loss", "eval_accuracy", "eval_cross_entropy", "eval_predicted_tokens"):
        for other in results[1:]:
            assert other[name] == pytest.approx(results[0][name], rel=1e-5), name
    if objective == "headless":
        assert results[0]["eval_pool_size"] == 20
        assert {r["eval_pool_accuracy"] for r in results} == {results[0]["eval_pool_accuracy"]}
    assert ("eval_perplexity" in results[0]) == (task == "clm")


def test_vanilla_evaluation_is_the_models_own(tmp_path, clm_tokenizer):
    run = trainer_for(tmp_path, "clm", clm_tokenizer, objective="vanilla")
    metrics = run.evaluate()
    ids = torch.stack([row["input_ids"] for row in token_rows(clm_tokenizer)[:10]])
    with torch.no_grad():
        logits, targets = (
            run.model(input_ids=ids).logits[:, :-1].flatten(0, 1),
            ids[:, 1:].flatten(),
        )
    assert metrics["eval_loss"] == pytest.approx(
        torch.nn.functional.cross_entropy(logits, targets).item(), rel=1e-5
    )
    assert metrics["eval_accuracy"] == pytest.approx(
        (logits.argmax(-1) == targets).float().mean().item()
    )


@pytest.mark.parametrize("objective", ["headless", "sampled_softmax", "vanilla"])
def test_a_loss_is_among_its_outputs(tmp_path, objective):
    run = tiny_trainer(tmp_path, task="clm", objective=objective)
    batch = run.data_collator(run.train_dataset[:2])
    loss, outputs = run.compute_loss(run.model, batch, return_outputs=True)
    assert outputs["loss"] is loss


# 24 rows in windows of 2 x 4: an epoch is 3 steps
@pytest.mark.parametrize("task, workers, stop", [("clm", 0, 2), ("mlm", 2, 2), ("mlm", 0, 5)])
def test_resume_is_exact(tmp_path, task, tokenizer, workers, stop):
    """Mid-epoch and in the second epoch, with dropout, shuffling and masks drawn at random."""
    settings = {
        "dropout": 0.1, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "max_steps": 7,
        "save_strategy": "steps", "save_steps": stop, "dataloader_num_workers": workers, "negatives": "step",
        "train_sampling_strategy": "random", "max_grad_norm": 1.0, "lr_scheduler_type": "cosine",
    }  # fmt: skip
    runs = assert_resumes(
        lambda folder: trainer_for(folder, task, tokenizer, **settings), tmp_path, stop
    )
    assert {run.window.tokens_seen for run in runs} == {7 * 8 * LENGTH}


def test_token_counts_are_those_of_the_targets_and_are_saved(tmp_path, clm_tokenizer):
    run = trainer_for(tmp_path, "clm", clm_tokenizer, save_strategy="steps", save_steps=2)
    run.train()
    ids = torch.stack([row["input_ids"] for row in token_rows(clm_tokenizer)[:8]])
    want = torch.bincount(ids[:, 1:].reshape(-1), minlength=len(clm_tokenizer))
    counts, totals = load_token_counts(tmp_path / "checkpoint-2")
    assert torch.equal(counts, want) and want.sum() == 88
    assert totals["tokens_seen"] == 96 and totals["train_seconds"] > 0
    weights = load_file(tmp_path / "checkpoint-2" / "model.safetensors")
    loaded = AutoModel.from_pretrained(tmp_path / "checkpoint-2").state_dict()
    assert all(torch.equal(weights[name], loaded[name]) for name in weights)


def test_counts_go_on_from_a_headless_model_and_not_from_a_vanilla_one(
    tmp_path, clm_tokenizer, monkeypatch
):
    """log q is that of the negatives, and cross-entropy has none."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for objective, carried in (("headless", True), ("vanilla", False)):
        folder = tmp_path / objective
        run = trainer_for(folder, "clm", clm_tokenizer, objective=objective)
        run.train()
        run.save_model()
        before = load_token_counts(folder)[0]
        for source in (folder, builders.on_hub(folder, f"me/{objective}", tmp_path / "hub")):
            model = AutoModel.from_pretrained(source)
            again = make_trainer(
                tmp_path / "b", model, token_rows(clm_tokenizer), {}, processing_class=clm_tokenizer
            )
            assert before.any() and torch.equal(again.token_counts, before * carried)
    model = GPT2LMHeadModel.from_pretrained(tmp_path / "headless")
    name = builders.on_hub(tmp_path / "headless", "me/elsewhere", tmp_path / "other")
    trunk = AutoModel.from_pretrained(name, cache_dir=tmp_path / "other")
    hub_arguments = {"cache_dir": tmp_path / "other", "token": None}  # as the commands pass them
    elsewhere = make_trainer(
        tmp_path / "x", trunk, token_rows(clm_tokenizer), {}, hub_arguments=hub_arguments
    )
    assert elsewhere.token_counts.any()
    mixed = make_trainer(
        tmp_path / "mixed", model, token_rows(clm_tokenizer), {"objective": "vanilla"}
    )
    # No headless model goes on from these.
    assert mixed.token_counts.any() and mixed.window.candidates == 0


def test_a_new_model_with_the_configuration_of_a_headless_run_has_none_of_its_counts(
    tmp_path, clm_tokenizer, monkeypatch, caplog
):
    run = trainer_for(tmp_path / "run", "clm", clm_tokenizer)
    run.train()
    run.save_model()
    model = AutoModel.from_config(AutoConfig.from_pretrained(tmp_path / "run"))
    again = make_trainer(tmp_path / "again", model, token_rows(clm_tokenizer), {})
    assert not again.token_counts.any() and again.window.candidates == 0
    assert "pass token_counts" in caplog.text
    # Neither those of the folder that the process is in.
    monkeypatch.chdir(tmp_path / "run")
    other = make_trainer(tmp_path / "other", tiny_model("clm"), token_rows(clm_tokenizer), {})
    assert not other.token_counts.any()


def test_best_checkpoint_is_kept_and_found(tmp_path, clm_tokenizer):
    settings = {
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "max_steps": 4,
    }
    settings |= {"load_best_model_at_end": True, "save_total_limit": 1, "learning_rate": 3.0}
    run = trainer_for(tmp_path, "clm", clm_tokenizer, **settings)
    run.train()
    best = run.state.best_model_checkpoint
    assert best != str(tmp_path / "checkpoint-4")  # the last is kept anyway
    assert os.path.isdir(best) and os.path.dirname(best) == str(tmp_path)
    state = json.loads((tmp_path / os.path.basename(best) / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == best


@pytest.mark.parametrize(("predictions", "divisor"), [(8, 2.0), (2, 0.5), (0, 0.25)])
def test_processes_divide_by_their_share_of_all_predictions(predictions, divisor):
    """Four of them average their gradients, also in a step with fewer predictions than processes."""
    of_four = SimpleNamespace(
        args=SimpleNamespace(device="cpu", world_size=4), sum_over_processes=lambda here: here
    )
    targets = [torch.zeros(predictions, dtype=torch.long)]
    assert VanillaTrainer.divisor_of_predictions(of_four, targets).item() == divisor


PRIOR = {
    "objective": "vanilla",
    "head_bias": "prior",
    "max_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
}


def vanilla_trainer(folder, tokenizer, drawn_share=0.0, **settings) -> VanillaTrainer:
    return make_trainer(
        folder, tiny_model("clm", len(tokenizer), "vanilla"), token_rows(tokenizer), PRIOR | settings,
        token_counts=torch.arange(1, len(tokenizer) + 1), processing_class=tokenizer, drawn_share=drawn_share,
    )  # fmt: skip


@pytest.mark.parametrize("drawn_share", [0.0, 0.4])
def test_head_bias_starts_at_the_prior_and_is_trained(tmp_path, clm_tokenizer, drawn_share):
    counts = torch.arange(1, len(clm_tokenizer) + 1)
    run = vanilla_trainer(tmp_path, clm_tokenizer, drawn_share)
    start = run.model.lm_head.bias.detach().clone()
    want = (1 - drawn_share) * log_prior(counts).exp() + drawn_share / len(counts)
    torch.testing.assert_close(start.exp(), want)
    run.train()
    assert not torch.equal(run.model.lm_head.bias, start)
    run.save_model()
    ids = torch.tensor([[5, 9, 40, 3]])
    for folder in (tmp_path, tmp_path / "checkpoint-1"):
        # As any client reads them, the trained bias is in their weights.
        loaded = GPT2LMHeadModel.from_pretrained(folder).eval()
        with torch.no_grad():
            torch.testing.assert_close(
                loaded(ids).logits, run.model.eval()(ids).logits, rtol=1e-4, atol=1e-4
            )
        assert loaded.lm_head.bias is None
    with pytest.raises(
        ValueError, match="head_bias is 'prior' but the model's head already holds log q"
    ):
        make_trainer(
            tmp_path, loaded, [], PRIOR, token_counts=counts, processing_class=clm_tokenizer
        )
    with pytest.raises(ValueError, match="head already has a trained bias"):
        run.head.check_takes_prior()


def test_the_head_bias_of_a_head_smaller_than_its_embedding(tmp_path, clm_tokenizer):
    rows = len(clm_tokenizer) + 4
    model = tiny_model("clm", rows, "vanilla", tie_word_embeddings=False)
    model.lm_head = torch.nn.Linear(model.config.n_embd, len(clm_tokenizer), bias=False)
    counts = torch.arange(1, rows + 1)
    run = make_trainer(
        tmp_path, model, [], PRIOR, token_counts=counts, processing_class=clm_tokenizer
    )
    bias = run.model.lm_head.bias
    torch.testing.assert_close(bias.detach().exp(), log_prior(counts[:-4]).exp())


def untied_trunk():
    return untie(tiny_model("clm"))


@pytest.mark.parametrize(
    "objective, make_model, make_second",
    [
        # A task, numbers of drawn tokens, and a setting of the launch.
        ("headless", partial(tiny_model, "mlm"), partial(tiny_model, "clm")),
        (
            "sampled_softmax",
            partial(tiny_model, "clm", VOCAB, "sampled_softmax"),
            partial(tiny_model, "clm", 20_000, "sampled_softmax"),
        ),
        ("headless", untied_trunk, partial(tiny_model, "clm")),
    ],
)
def test_a_trainer_leaves_no_trace_in_arguments_for_another(
    tmp_path, objective, make_model, make_second
):
    rows = Dataset.from_list([{"input_ids": [5, 6, 7, 8]}] * 16)
    given = {"train_dataset": rows, "processing_class": Tokenizer(20_000)}
    kind = {"headless": HeadlessTrainer, "sampled_softmax": SampledSoftmaxTrainer}[objective]

    def arguments() -> HeadlessTrainingArguments:
        settings = builders.QUIET | {"objective": objective, "max_steps": 2}
        return HeadlessTrainingArguments(str(tmp_path), **settings)

    shared = arguments()
    first = kind(make_model(), shared, **given | {"processing_class": Tokenizer()})
    names = ("task", "sampled_negatives", "exact_every", "ddp_find_unused_parameters")
    of_second = kind(make_second(), shared, **given).args
    want = kind(make_second(), arguments(), **given).args
    for name in names:
        assert getattr(of_second, name) == getattr(want, name), name
    assert any(getattr(first.args, name) != getattr(want, name) for name in names)


@pytest.mark.parametrize("objective", ["vanilla", "sampled_softmax"])
def test_every_trained_weight_of_an_untied_encoder_gets_a_gradient(tmp_path, objective):
    """DDP waits for those that get none, with gradient checkpointing for instance."""
    model = tiny_model("mlm", objective=objective, tie_word_embeddings=False)
    gradients = Gradients()
    settings = {"objective": objective, "max_steps": 1, "save_strategy": "no"}
    given = {"processing_class": Tokenizer(), "callbacks": [gradients]}
    rows = Dataset.from_list([{"input_ids": [5, 6, 7, 8]}] * 16)
    run = make_trainer(tmp_path, model, rows, settings, **given)
    run.train()
    trained = {name for name, weight in run.model.named_parameters() if weight.requires_grad}
    assert gradients.kept.keys() == trained
    assert "cls.predictions.decoder.bias" in trained


@pytest.mark.parametrize("head_bias", ["none", "prior"])
def test_what_is_saved_generates_with_a_cache(tmp_path, clm_tokenizer, head_bias):
    """Training turns the cache off; a language model that was saved so would generate many times
    slower.
    """
    run = vanilla_trainer(tmp_path, clm_tokenizer, head_bias=head_bias)
    run.train()
    run.save_model()
    assert run.model.config.use_cache is False
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path)
    assert loaded.config.use_cache is True and loaded.generation_config.use_cache is True


@pytest.mark.parametrize("kind, objective, settings, parameters, text", [
    (HeadlessTrainer, "headless", None, {}, "HeadlessTrainingArguments, got TrainingArguments"),
    (HeadlessTrainer, "headless", {"objective": "vanilla"}, {}, "'vanilla' but HeadlessTrainer trains 'headless'"),
    (VanillaTrainer, "vanilla", {}, {}, r'HeadlessTrainingArguments\(objective="vanilla"\)'),
    (SampledSoftmaxTrainer, "vanilla", {}, {}, r'HeadlessTrainingArguments\(objective="sampled_softmax"\)'),
    (HeadlessTrainer, "headless", {"task": "mlm"}, {}, "task is 'mlm' .*no mask token"),
    (HeadlessTrainer, "headless", {}, {"token_counts": torch.arange(49)}, "token_counts has 49 .* 300 rows"),
    (HeadlessTrainer, "headless", {}, {"token_counts": torch.ones(300) / 300}, "pass .* int64 counts"),
    (VanillaTrainer, "vanilla", PRIOR, {"token_counts": torch.ones(300) / 300}, "pass .* int64 counts"),
    (VanillaTrainer, "vanilla", PRIOR, {"token_counts": torch.arange(49)}, "token_counts has 49 .* 300 tokens"),
    (VanillaTrainer, "vanilla", PRIOR, {}, "head_bias is 'prior' but token_counts is None"),
    (VanillaTrainer, "vanilla", PRIOR, {"optimizers": (torch.optim.SGD([torch.ones(1)]), None)}, "made without"),
    (VanillaTrainer, "llama", PRIOR, {"token_counts": torch.ones(50).long()}, "does not end in a LayerNorm"),
])  # fmt: skip
def test_refused(tmp_path, clm_tokenizer, kind, objective, settings, parameters, text):
    task = (settings or {}).get("task", "clm")
    model = tiny_model(task, len(clm_tokenizer), objective)
    model = LlamaForCausalLM(LlamaConfig(**SMALL, vocab_size=50)) if objective == "llama" else model
    made = TrainingArguments if settings is None else HeadlessTrainingArguments
    args = made(str(tmp_path), use_cpu=True, report_to="none", **settings or {})
    with pytest.raises(ValueError, match=text):
        kind(model, args, processing_class=clm_tokenizer, **parameters)


def test_a_trunk_of_an_architecture_without_language_models_is_saved(tmp_path):
    """Nothing but its setting tells the task of such a model."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "max_position_embeddings": 16}
    config = AutoConfig.for_model("clip_text_model", vocab_size=VOCAB, **sizes)
    settings = {"task": "clm", "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    run = make_trainer(
        tmp_path, AutoModel.from_config(config), token_rows(Tokenizer(), 8), settings
    )
    run.train()
    run.save_model()
    trained = run.model.state_dict()
    for folder in (tmp_path, tmp_path / "checkpoint-2"):
        loaded = load_trunk(folder).state_dict()
        assert all(torch.equal(loaded[name], weight) for name, weight in trained.items())


@pytest.mark.parametrize("objective", ["headless", "sampled_softmax", "vanilla"])
def test_a_mask_between_pairs_of_tokens_is_that_of_the_model(tmp_path, objective):
    """Of whole rows it is what a decoder makes itself, so the losses are the same."""

    def with_mask(rows):
        ids = torch.tensor([row["input_ids"] for row in rows])
        count, length = ids.shape
        mask = torch.ones(length, length).tril().bool().expand(count, 1, length, length)
        return {"input_ids": ids, "attention_mask": mask}

    data = Dataset.from_list([{"input_ids": [5, 6, 7, 8 + number]} for number in range(8)])
    settings = {"objective": objective, "task": "clm", "max_steps": 2, "logging_steps": 1}
    losses = []
    for collator in (None, with_mask):
        run = make_trainer(
            tmp_path / str(collator is None),
            tiny_model("clm", VOCAB, objective),
            data,
            settings,
            data_collator=collator,
        )
        run.train()
        losses.append(builders.logged(run))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_rows_that_a_filter_has_emptied_are_refused(tmp_path):
    run = tiny_trainer(tmp_path)
    run.train_dataset = []
    with pytest.raises(ValueError, match="train_dataset has no rows: look at what filters it"):
        run.train()


def test_a_search_of_settings_is_refused(tmp_path):
    run = tiny_trainer(tmp_path)
    with pytest.raises(ValueError, match="^hyperparameter_search is not supported, since it makes"):
        run.hyperparameter_search(n_trials=1)


def test_a_head_for_classes_is_refused(tmp_path):
    model = builders.tiny_classifier()
    with pytest.raises(ValueError, match=f"^model is a {type(model).__name__}, whose head is not"):
        make_trainer(tmp_path, model, token_rows(Tokenizer(), 8), {"max_steps": 1})
