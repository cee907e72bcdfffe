"""What `transformers.Trainer` offers around a training run works with our trainers as it does
there, or is refused by name.

Settings and parameters of the constructor: tests/test_refusals.py.
"""

import inspect
import types
from concurrent.futures import ThreadPoolExecutor

import builders
import pytest
import torch
import transformers
from architectures import make_model
from builders import (
    CLASSES,
    SMALL,
    VOCAB,
    Tokenizer,
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
    AutoModelForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from headless_trainer import (
    HeadlessTrainer,
    HeadlessTrainingArguments,
    attach_lm_head,
    load_token_counts,
)
from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.models.candidate_head import CandidateHead, add_candidate_table, load_trunk
from headless_trainer.objective.negatives import NegativePool
from headless_trainer.objective.prior import log_prior
from headless_trainer.trainers.sparse_rows import SparseRows
from headless_trainer.trainers.step import MicroBatch, Step

QUIET = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
STEPS = {
    "max_steps": 3, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 4,
    "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
}  # fmt: skip
EVENTS = [
    name
    for name, _ in inspect.getmembers(TrainerCallback, inspect.isfunction)
    if name.startswith("on_")
]


class Events(TrainerCallback):
    """Keeps the names of events in their order."""

    def __init__(self):
        self.seen = []


for _name in EVENTS:
    setattr(Events, _name, lambda self, *_args, _name=_name, **_kwargs: self.seen.append(_name))


def classifier(folder, tokenizer, *, model=None, **parameters):
    settings = parameters.pop("settings", {})
    args = TrainingArguments(
        str(folder), **QUIET | {"max_steps": 2, "save_strategy": "no"} | settings
    )
    data = dict.fromkeys(("train_dataset", "eval_dataset"), builders.encoded_rows(CLASSES))
    return ClassificationTrainer(model, args, processing_class=tokenizer, **data, **parameters)


@pytest.mark.parametrize("kind", ["headless", "vanilla", "classification"])
def test_callbacks_have_the_events_of_transformers(tmp_path, clm_tokenizer, kind):
    plain, ours = Events(), Events()
    rows = [row | {"labels": row["input_ids"]} for row in token_rows(clm_tokenizer)]
    args = TrainingArguments(str(tmp_path / "plain"), **QUIET, **STEPS)
    model = tiny_model("clm", len(clm_tokenizer), "vanilla")
    # As many batches to evaluate as the others have.
    Trainer(model, args, train_dataset=rows, eval_dataset=rows[:10], callbacks=[plain]).train()
    if kind == "classification":
        model = builders.tiny_classifier(num_labels=3)
        run = classifier(
            tmp_path / "ours", clm_tokenizer, model=model, settings=STEPS, callbacks=[ours]
        )
        run.eval_dataset = builders.encoded_rows(CLASSES[:10])
    else:
        run = trainer_for(
            tmp_path / "ours", "clm", clm_tokenizer, objective=kind, callbacks=[ours], **STEPS
        )
    run.train()
    assert ours.seen == plain.seen
    assert {"on_substep_end", "on_save", "on_evaluate", "on_prediction_step"} <= set(plain.seen)
    ours.seen.clear()
    run.predict(run.eval_dataset)
    assert ours.seen == ["on_prediction_step"] * 3 + ["on_predict"]


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_predict_gives_the_figures_of_an_evaluation(tmp_path, request, task, objective):
    run = trainer_for(
        tmp_path, task, request.getfixturevalue(f"{task}_tokenizer"), objective=objective
    )
    run.train()
    rows = token_rows(run.processing_class, 7, lengths=(12, 5))
    output, want = run.predict(rows), run.evaluate(rows)
    # Of a vocabulary, nobody could hold them.
    assert output.predictions is None and output.label_ids is None
    names = [name for name in want if not name.endswith(("runtime", "_per_second", "epoch"))]
    assert "eval_accuracy" in names and "eval_loss" in names
    for name in names:
        assert output.metrics[name.replace("eval_", "test_")] == want[name], name
    assert "own_loss" in run.predict(rows, metric_key_prefix="own").metrics


def test_a_model_that_is_made_anew_learns_the_token_that_pads(tmp_path, clm_tokenizer):
    """That of a decoder ends texts as well; ``nn.Embedding`` would keep all gradients
    from its row.
    """

    def model_init():
        sizes = {
            "n_embd": 16,
            "n_layer": 1,
            "n_head": 2,
            "n_positions": 16,
            "vocab_size": VOCAB,
            "num_labels": 3,
        }
        config = transformers.GPT2Config(pad_token_id=clm_tokenizer.pad_token_id, **sizes)
        model = transformers.GPT2ForSequenceClassification(config)
        # As other decoders have it.
        model.get_input_embeddings().padding_idx = clm_tokenizer.pad_token_id
        return model

    run = classifier(tmp_path, clm_tokenizer, model_init=model_init)
    assert run.model.get_input_embeddings().padding_idx is None
    run.train()
    assert run.model.get_input_embeddings().padding_idx is None


@pytest.mark.parametrize(("name", "greater"), [
    ("eval_perplexity", False), ("accuracy", True), ("eval_other_cross_entropy", False), ("eval_hinge_accuracy", True),
    ("eval_of_my_own", True), ("eval_my_own_loss", False),
])  # fmt: skip
def test_the_best_checkpoint_is_the_best_of_a_users_own_figure_too(tmp_path, name, greater):
    args = HeadlessTrainingArguments(str(tmp_path), use_cpu=True, metric_for_best_model=name)
    assert args.greater_is_better is greater


@pytest.mark.parametrize(
    "shape, first", [((40, 1), {1, 2, 7, 9}), ((40, 4), {1, 2})]
)  # a bias; a matrix that scores
def test_rows_that_score_are_brought_up_to_date_too(shape, first):
    rows, read = (
        SparseRows(
            None, types.SimpleNamespace(world_size=1), [torch.zeros(40, 4), torch.zeros(shape)]
        ),
        [],
    )
    rows.use(
        types.SimpleNamespace(catch_up=lambda *ids: read.extend({*each.tolist()} for each in ids))
    )
    pools = (NegativePool.from_targets(torch.tensor([7, 9])),)
    micro_batch = MicroBatch.of(torch.tensor([0]), torch.tensor([7]), pools, 1, 2, 2)
    rows.catch_up(Step([], [torch.tensor([[1, 2]])], [micro_batch]))
    assert read == [first, {7, 9}]


def test_a_bias_of_the_candidates_is_a_subclass_of_their_head(tmp_path, clm_tokenizer):
    """Trained, saved beside the trunk, loaded, resumed, scored in both evaluations and in the free
    head.
    """

    class Biased(CandidateHead):
        def __init__(self, trunk):
            self.offset = add_candidate_table(
                trunk, "candidate_bias", torch.zeros(trunk.get_input_embeddings().num_embeddings, 1)
            )
            super().__init__(trunk)

        def bias(self, ids):
            return self.offset(ids)[:, 0]

    class Trainer(HeadlessTrainer):
        head_class = Biased

        def pool_loss(self, outputs, part, vectors, bias):
            best = (outputs @ vectors.T + bias + part.pool.log_counts()).argmax(
                1
            ) == part.target_index
            self.window.add("pool_hits", best.sum(), len(best))
            return super().pool_loss(outputs, part, vectors, bias)

    data = token_rows(clm_tokenizer)
    rest = {"task": "clm", "logging_steps": 1, "max_steps": 2, "save_strategy": "no"}, Trainer

    def run(folder, model):
        return make_trainer(
            folder, model, data, *rest, eval_dataset=data[:10], processing_class=clm_tokenizer
        )

    first = run(tmp_path, tiny_model("clm", len(clm_tokenizer)))
    first.train()
    first.save_model()
    assert all(0 <= logs["pool_hits"] <= 1 for logs in first.state.log_history if "loss" in logs)
    bias = first.head.offset.weight.detach()
    assert bias.abs().max() > 0 and "candidate_bias.weight" not in load_file(
        tmp_path / "model.safetensors"
    )
    loaded = load_trunk(tmp_path)
    again = run(tmp_path / "b", loaded)
    assert torch.equal(again.head.offset.weight, bias)
    ids = torch.arange(5, 12)[None]
    scores = first.model.eval()(ids).last_hidden_state @ first.embedding.weight.T + bias[:, 0]
    got = attach_lm_head(loaded, tmp_path, head_class=Biased)(ids).logits
    with pytest.raises(
        ValueError,
        match="has candidate_bias, which CandidateHead does not read: pass its head_class",
    ):
        attach_lm_head(loaded, tmp_path)
    log_q = log_prior(load_token_counts(tmp_path)[0])
    torch.testing.assert_close(got, scores + log_q, rtol=1e-4, atol=1e-4)
    figures = again.evaluate()
    again.head.offset.weight.data.zero_()
    assert {name for name, value in again.evaluate().items() if value != figures[name]} >= {
        "eval_loss", "eval_cross_entropy", "eval_cross_entropy_without_bias",
    }  # fmt: skip


def test_a_trainer_gives_the_language_model_that_its_trunk_implies(tmp_path):
    run = tiny_trainer(tmp_path, task="clm", sampled_negatives=5)
    run.train()
    run.save_model()
    ids = torch.arange(2, 10)[None]
    model = run.language_model()
    torch.testing.assert_close(model(ids).logits, attach_lm_head(tmp_path)(ids).logits)
    assert model.base_model is not run.model and model.can_generate()


def test_positions_are_counted_as_in_training_where_another_id_pads(tmp_path, mlm_tokenizer):
    # The tokenizer pads with 0.
    trunk, rows = (
        make_model("roberta", pad_token_id=1),
        token_rows(mlm_tokenizer),
    )
    run = make_trainer(tmp_path, trunk, rows, {"max_steps": 1}, processing_class=mlm_tokenizer)
    run.train()
    run.save_model()
    ids = rows[0]["input_ids"][None]
    for folder in (tmp_path, tmp_path / "checkpoint-1"):
        torch.testing.assert_close(
            AutoModel.from_pretrained(folder)(ids)[0], run.model.eval()(ids)[0]
        )
    torch.testing.assert_close(
        run.language_model()(ids).logits, attach_lm_head(tmp_path)(ids).logits
    )


def test_a_headless_folder_is_not_taken_for_a_language_model_in_silence(tmp_path):
    """A tied head would be E, which scores log p - log q."""
    run = tiny_trainer(tmp_path, task="clm", save_strategy="steps", save_steps=1)
    run.train()
    run.save_model()
    for folder in (tmp_path, tmp_path / "checkpoint-1"):
        _, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert report["missing_keys"] == {"lm_head.weight"}
        _, report = AutoModel.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"]


@pytest.mark.parametrize("kind, without_free_head", [("llama", True), ("gpt2", False)])
def test_what_becomes_of_the_head_is_said_before_the_first_step(
    tmp_path, caplog, kind, without_free_head
):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=50, **SMALL))
    HeadlessTrainer(model, HeadlessTrainingArguments(str(tmp_path), use_cpu=True), train_dataset=[])
    assert (
        f"vocabulary head of {type(model).__name__} is dropped" in caplog.text
        and "sampled_softmax" in caplog.text
    )
    assert ("cannot have a free head" in caplog.text) == without_free_head
    caplog.clear()
    HeadlessTrainer(
        model.base_model, HeadlessTrainingArguments(str(tmp_path), use_cpu=True), train_dataset=[]
    )
    assert (
        "is dropped" not in caplog.text
        and ("cannot have a free head" in caplog.text) == without_free_head
    )


def test_rows_that_kept_their_text_train_with_a_collator_of_transformers(tmp_path, mlm_tokenizer):
    texts = Dataset.from_dict(
        {"text": ["the miller crossed the river", "a boat"] * 4, "meta": [{"id": 1}] * 8}
    )
    rows = texts.map(lambda row: mlm_tokenizer(row["text"]))
    args = HeadlessTrainingArguments(str(tmp_path), use_cpu=True, max_steps=1, save_strategy="no")
    collate = transformers.DataCollatorForLanguageModeling(mlm_tokenizer, mlm_probability=0.5)
    given = {"train_dataset": rows, "eval_dataset": rows, "processing_class": mlm_tokenizer}
    run = HeadlessTrainer(tiny_model("mlm", len(mlm_tokenizer)), args, collate, **given)
    assert run.train().global_step == 1 and run.evaluate()["eval_predicted_tokens"] > 0


def test_a_run_in_a_thread_says_that_signals_end_it(tmp_path, clm_tokenizer, caplog):
    run = trainer_for(tmp_path, "clm", clm_tokenizer, max_steps=1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run.train).result()
    assert "which cannot catch SIGTERM and Ctrl-C" in caplog.text and run.state.global_step == 1
    caplog.clear()
    trainer_for(tmp_path / "main", "clm", clm_tokenizer, max_steps=1).train()
    assert "cannot catch" not in caplog.text


def test_a_run_stays_in_its_folder_wherever_the_process_goes(tmp_path, clm_tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = trainer_for("run", "clm", clm_tokenizer, max_steps=2, save_strategy="steps", save_steps=1)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run.train()
    run.save_model()
    assert not list((tmp_path / "elsewhere").iterdir())
    assert {"checkpoint-1", "checkpoint-2", "model.safetensors"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }


@pytest.mark.parametrize("additive", [True, False])
def test_a_mask_between_pairs_of_tokens_counts_each_token_once(tmp_path, additive):
    def collate(rows):
        ids = torch.stack([row["input_ids"] for row in rows])
        mask = torch.ones(len(ids), 1, ids.shape[1], ids.shape[1]).tril()
        return {
            "input_ids": ids,
            "labels": ids.int(),
            "attention_mask": mask.log() if additive else mask.bool(),
        }

    run = make_trainer(
        tmp_path,
        tiny_model("clm"),
        token_rows(Tokenizer()),
        {"max_steps": 1},
        data_collator=collate,
    )
    run.train()
    assert run.state.log_history[0]["tokens_seen"] == 8 * 12
