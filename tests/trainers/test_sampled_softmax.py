"""Sampled softmax: the model's own head on candidates, against the loss written out for every
prediction.
"""

import builders
import pytest
import torch
import torch.nn.functional as F
from builders import (
    VOCAB,
    Gradients,
    Tokenizer,
    labelled_rows,
    make_trainer,
    predictions,
    tiny_model,
)
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from headless_trainer import SampledSoftmaxTrainer
from headless_trainer.objective.negatives import generator_of_step
from headless_trainer.objective.prior import log_prior

COUNTS = torch.arange(VOCAB) ** 2 + 1


def model_for(task: str, **changes):
    """With a head that is not that of a new model: its bias is not zero."""
    model = tiny_model(task, objective="sampled_softmax", **changes)
    bias = model.get_output_embeddings().bias
    if bias is not None:
        bias.data.normal_(generator=torch.Generator().manual_seed(4))
    return model


def trainer(folder, task="clm", model=None, callbacks=(), counts=COUNTS, rows=None, **settings):
    settings = {
        "objective": "sampled_softmax", "task": task, "max_steps": 1, "per_device_train_batch_size": 4, "save_strategy": "no",
        "max_grad_norm": 0.0, "learning_rate": 1e-2, "train_sampling_strategy": "sequential", "exact_every": 0,
    } | settings  # fmt: skip
    rows = labelled_rows(task, empty=False) if rows is None else rows
    return make_trainer(
        folder, model or model_for(task), rows, settings, token_counts=counts, eval_dataset=rows,
        processing_class=Tokenizer(), callbacks=list(callbacks),
    )  # fmt: skip


def naive_step(model, task, batches, sizes, drawn, whole):
    """The loss of a step and every gradient.

    Each occurrence of a candidate is a term, over its expected number; the target is a single one.
    """
    frequency = log_prior(COUNTS).double().exp()
    parts = [predictions(model, task, rows) for rows in batches]
    everything, losses = torch.cat([targets for _, targets in parts]), []
    for logits, targets in parts:
        forward = []
        for scores, own in zip(
            logits.tensor_split(sizes), targets.tensor_split(sizes), strict=True
        ):
            pool = everything if whole else own
            candidates = torch.cat([pool, drawn])
            expected = len(pool) * frequency[candidates] + len(drawn) / VOCAB
            for score, target in zip(scores, own, strict=True):
                others = candidates != target
                terms = score[candidates[others]] - expected[others].log()
                partition = torch.cat([terms, score[target][None]]).logsumexp(0)
                forward.append(partition - score[target])
        losses.append(torch.stack(forward))
    loss = torch.cat(losses).mean()
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("task", "changes", "settings", "groups"), [
    ("clm", {}, {}, 1),
    ("clm", {"tie_word_embeddings": False}, {"pool_size": 10}, 3),
    ("clm", {}, {"negatives": "step", "gradient_accumulation_steps": 2}, 1),
    ("clm", {}, {"sampled_negatives": 0, "gradient_accumulation_steps": 2}, 1),
    ("clm", {}, {"sparse_embedding_updates": True, "pool_size": 10}, 3),
    ("clm", {"tie_word_embeddings": False}, {"sparse_embedding_updates": True}, 1),
    ("mlm", {}, {"negatives": "step", "gradient_accumulation_steps": 2}, 1),
    ("mlm", {}, {"gradient_accumulation_steps": 2}, 1),
    ("mlm", {"tie_word_embeddings": False}, {"sampled_negatives": 30}, 1),
    ("mlm", {}, {"sparse_embedding_updates": True}, 1),
])  # fmt: skip
def test_a_step_is_that_of_every_candidate_written_out(tmp_path, task, changes, settings, groups):
    steps, model = Gradients(), model_for(task, **changes).double()
    run = trainer(tmp_path, task, model, [steps], **settings)
    rows = labelled_rows(task, empty=False)
    batches = [rows[:4], rows[4:]][: run.args.gradient_accumulation_steps]
    drawn = run.prediction.draw(run.args.sampled_negatives, generator_of_step(run.args.seed, 0))
    assert len(drawn) == settings.get("sampled_negatives", VOCAB // 4)
    reference = model_for(task, **changes).double()
    whole = settings.get("negatives") == "step"
    loss, gradients = naive_step(reference, task, batches, groups, drawn, whole)
    run.train()
    assert run.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-6)
    builders.assert_gradients(steps.kept, gradients, 1e-6)


@pytest.mark.parametrize(("task", "changes", "settings"), [
    ("clm", {}, {}),
    ("clm", {"tie_word_embeddings": False}, {"pool_size": 10}),
    ("clm", {}, {"negatives": "step", "gradient_accumulation_steps": 2}),
    ("clm", {}, {"gradient_accumulation_steps": 2}),
    ("mlm", {}, {"gradient_accumulation_steps": 2}),
    ("clm", {}, {"sparse_embedding_updates": True}),
    ("mlm", {}, {"sparse_embedding_updates": True, "negatives": "step", "gradient_accumulation_steps": 2}),
])  # fmt: skip
def test_the_first_step_is_that_of_the_exact_softmax(tmp_path, task, changes, settings):
    gradients = Gradients()
    run = trainer(
        tmp_path, task, model_for(task, **changes).double(), [gradients], exact_every=3, **settings
    )
    run.train()
    reference = model_for(task, **changes).double()
    rows = labelled_rows(task, empty=False)
    batches = [rows[:4], rows[4:]][: run.args.gradient_accumulation_steps]
    parts = [predictions(reference, task, batch) for batch in batches]
    scores = torch.cat([logits for logits, _ in parts])
    targets = torch.cat([targets for _, targets in parts])
    loss = F.cross_entropy(scores, targets)
    loss.backward()
    expected = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}
    logs = run.state.log_history[0]
    assert logs["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert logs["exact_loss"] == pytest.approx(loss.item(), rel=1e-6)
    builders.assert_gradients(gradients.kept, expected, 1e-6)


@pytest.mark.parametrize("objective", ["headless", "sampled_softmax", "vanilla"])
def test_a_micro_batch_without_a_prediction_changes_nothing(tmp_path, objective):
    """Every second row is a prompt without an answer."""
    answer = {"input_ids": [5, 6, 7, 8, 9], "completion_mask": [0, 0, 1, 1, 1]}
    prompt = {"input_ids": [9, 8, 7, 6, 5], "completion_mask": [0, 0, 0, 0, 0]}
    rows = Dataset.from_list([answer, prompt])
    losses = []
    gradients = []
    for batch_size in (1, 2):
        steps = Gradients()
        settings = {
            "objective": objective,
            "task": "clm",
            "max_steps": 1,
            "per_device_train_batch_size": batch_size,
            "gradient_accumulation_steps": 2 // batch_size,
            "save_strategy": "no",
            "max_grad_norm": 0.0,
        }
        run = make_trainer(
            tmp_path / str(batch_size),
            tiny_model("clm", objective=objective),
            rows,
            settings,
            processing_class=Tokenizer(),
            callbacks=[steps],
        )
        run.train()
        losses.append(run.state.log_history[0]["loss"])
        gradients.append(steps.kept)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    builders.assert_gradients(*gradients, 1e-6)


def test_every_third_step_is_exact_and_measures_the_mean_prediction(tmp_path):
    run = trainer(tmp_path, max_steps=5, exact_every=3, learning_rate=0.0, logging_steps=1)
    run.train()
    steps = [logs["step"] for logs in run.state.log_history if "exact_loss" in logs]
    assert steps == [1, 4]
    run.prediction.renew()
    assert run.prediction.measurements == 2
    rows = labelled_rows("clm", empty=False)
    means = []
    for batch in (rows[:4], rows[4:]):  # of steps 1 and 4
        logits, _ = predictions(model_for("clm"), "clm", batch)
        means.append(logits.softmax(-1).mean(0))
    mean = (means[0] + means[1]) / 2
    torch.testing.assert_close(run.prediction.probabilities, mean.double(), rtol=1e-4, atol=1e-8)


def test_draws_come_from_the_mean_prediction_and_expect_it(tmp_path):
    run = trainer(tmp_path, sampled_negatives=12)
    run.prediction.observe(
        torch.zeros(3, 2), torch.zeros(VOCAB, 2), torch.arange(VOCAB) * 1.0, None
    )
    run.prediction.renew()
    mean = (torch.arange(VOCAB) * 1.0).softmax(0).double()
    proposal = 0.9 * mean + 0.1 / VOCAB
    torch.testing.assert_close(run.prediction.proposal, proposal, rtol=1e-5, atol=0)
    targets = torch.tensor([3, 3, 8])
    (((pool,), _),) = run.candidates_of_step([targets])
    assert (pool.targets, pool.size) == (3, 15)
    frequency = log_prior(COUNTS).exp()[pool.ids]
    expected = 3 * frequency + 12 * proposal[pool.ids]
    torch.testing.assert_close(pool.log_expected, expected.log().float())
    drawn = run.prediction.draw(100_000, torch.Generator().manual_seed(1))
    shares = drawn.bincount(minlength=VOCAB) / 100_000
    torch.testing.assert_close(shares.double(), proposal, rtol=0, atol=0.005)


def test_without_exact_steps_draws_are_uniform(tmp_path):
    run = trainer(tmp_path, max_steps=2)
    run.train()
    assert run.prediction.proposal.tolist() == pytest.approx([1 / VOCAB] * VOCAB)


@pytest.mark.parametrize(
    "task, size, draws", [("clm", 40_000, 4096), ("mlm", 40_000, 5000), ("mlm", 9_000, 2250)]
)
def test_default_draws(tmp_path, task, size, draws):
    model, counts = tiny_model(task, size, "sampled_softmax"), torch.ones(size, dtype=torch.long)
    assert trainer(tmp_path, task, model, counts=counts).args.sampled_negatives == draws


@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_evaluation_is_the_exact_softmax_and_weighs_what_the_texts_never_have(tmp_path, task):
    model, counts = model_for(task).eval(), COUNTS.clone()
    counts[:20] = 0
    run = trainer(tmp_path, task, model, counts=counts)
    logits, targets = predictions(model, task, labelled_rows(task, empty=False))
    found = run.evaluate()
    assert (
        found["eval_loss"]
        == found["eval_cross_entropy"]
        == pytest.approx(F.cross_entropy(logits, targets).item())
    )
    assert found["eval_accuracy"] == pytest.approx(
        (logits.argmax(-1) == targets).float().mean().item()
    )
    mass = logits.softmax(-1)[:, :20].sum(-1).mean().item()
    assert found["eval_unseen_token_mass"] == pytest.approx(mass, rel=1e-5)


def test_a_growing_probability_of_what_the_texts_never_have_is_a_warning(tmp_path, caplog):
    counts = COUNTS.clone()
    counts[-25:] = 0
    run = trainer(tmp_path, counts=counts)
    run.evaluate()
    run.evaluate({"a": run.eval_dataset})
    assert "never targets" not in caplog.text
    vectors = run.model.lm_head.weight.detach()
    run.model.transformer.ln_f.bias.data.copy_(1e4 * (vectors[-25:].mean(0) - vectors[:25].mean(0)))
    assert run.evaluate({"a": run.eval_dataset})["eval_a_unseen_token_mass"] > 0.6
    assert (
        "at the first evaluation they had 49.7 %" in caplog.text
        and "sampled_negatives (now 12)" in caplog.text
    )


@pytest.mark.parametrize(
    ("task", "kind"), [("clm", AutoModelForCausalLM), ("mlm", AutoModelForMaskedLM)]
)
@pytest.mark.parametrize("tied", [True, False])
def test_what_leaves_is_what_came(tmp_path, task, kind, tied):
    run = trainer(tmp_path, task, model_for(task, tie_word_embeddings=tied))
    run.train()
    run.save_model()
    model = kind.from_pretrained(tmp_path)
    assert type(model) is type(run.model) and model.config.tie_word_embeddings is tied
    ids = torch.arange(2, 9)[None]
    assert torch.equal(model.eval()(ids).logits, run.model.eval()(ids).logits)
    tables = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert (tables[0].data_ptr() == tables[1].data_ptr()) is tied


@pytest.mark.parametrize("settings", [
    {}, {"sparse_embedding_updates": True}, {"exact_every": 2, "pool_size": 60},
    {"exact_every": 3, "sparse_embedding_updates": True}, {"exact_every": 4},
])  # fmt: skip
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path, settings):
    def make(folder):
        settings_ = {"max_steps": 5, "save_strategy": "steps", "save_steps": 3} | settings
        return trainer(folder, "clm", model_for("clm", dropout=0.1), **settings_)

    builders.assert_resumes(make, tmp_path, 3)


def labelled_dataset() -> Dataset:
    return Dataset.from_dict({"input_ids": [[5, 6, 6, 7, 6], [5, 7, 7, 6, 8]]})


def test_refused(tmp_path):
    with pytest.raises(ValueError, match="token_counts is None but the head scores 50 tokens"):
        trainer(tmp_path, counts=None)
    read_later = Dataset.from_dict({"text": ["5 6"]}).with_transform(
        lambda rows: {"input_ids": [[5, 6]]}
    )
    with pytest.raises(ValueError, match="token_counts is None but the head scores 50 tokens"):
        make_trainer(tmp_path, model_for("clm"), read_later, {"objective": "sampled_softmax"})
    cut = labelled_dataset().with_transform(lambda rows: {"input_ids": rows["input_ids"]})
    with pytest.raises(ValueError, match="token_counts is None.* without a transform"):
        trainer(tmp_path, counts=None, rows=cut)
    for counts in (COUNTS[:3], torch.cat([COUNTS, COUNTS])):
        with pytest.raises(ValueError, match=f"token_counts has {len(counts)} entries but the"):
            trainer(tmp_path, counts=counts)
    with pytest.raises(ValueError, match="model GPT2Model has no vocabulary projection"):
        SampledSoftmaxTrainer(tiny_model("clm"), trainer(tmp_path).args)


def test_counts_are_those_of_the_dataset_by_default(tmp_path):
    rows = Dataset.from_dict({"input_ids": [[5, 6, 6, 7, 6], [5, 7, 7, 6, 8]]})
    run = trainer(tmp_path, counts=None, rows=rows)
    counts = torch.zeros(VOCAB, dtype=torch.long)
    counts[[6, 7, 8]] = torch.tensor([4, 3, 1])
    torch.testing.assert_close(run.frequency, log_prior(counts).exp())
    assert run.unseen.tolist() == (counts == 0).tolist()


@pytest.mark.parametrize(("size", "targets"), [(1_600, 100), (160, 52)])
def test_by_default_a_small_batch_is_topped_up_to_a_sixteenth_of_the_vocabulary(
    tmp_path, size, targets
):
    model = tiny_model("clm", size, "sampled_softmax", positions=16)
    counts = torch.ones(size, dtype=torch.long)
    run = trainer(tmp_path, "clm", model, counts=counts, per_device_train_batch_size=8)
    run.train()
    logs = run.state.log_history[0]
    assert logs["pool_size"] == targets + size // 4  # and the draws
