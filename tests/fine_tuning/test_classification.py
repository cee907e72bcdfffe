"""Rows, batches, checkpoints and the trainer of fine-tuning: the gradient of a step is that of its rows as one batch."""

import copy
import os
import signal
from functools import partial

import numpy as np
import processes
import pytest
import torch
import torch.nn.functional as F
from builders import CLASSES, QUIET, SMALL, VOCAB, Gradients, encoded_rows, save, tiny_classifier
from datasets import Dataset, Value
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    CanineTokenizer,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    T5Config,
    TrainerCallback,
    TrainingArguments,
    XLNetConfig,
)

from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.fine_tuning.classification_rows import (
    ClassificationCollator,
    encode_rows,
    separator_of,
)
from headless_trainer.fine_tuning.classifiers import agree_on_tokens, load_classifier, load_config
from headless_trainer.fine_tuning.glue_arguments import GlueArguments
from headless_trainer.fine_tuning.problems import MULTI_LABEL
from headless_trainer.fine_tuning.tasks import TASKS
from headless_trainer.models.lm_head import attach_lm_head


def gpt2(cls=GPT2ForSequenceClassification, vocab_size=VOCAB, **settings):
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "pad_token_id": 0}
    silent = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return cls(GPT2Config(vocab_size=vocab_size, **sizes, **silent, **settings))


NUMBERS = np.linspace(0, 5, 32).astype(np.float32)
CHOICES = [0] * 25 + [1] * 7
LABELS = MULTI_LABEL.encode([[0], [], [1, 2], [0, 1, 2]] * 8, 3)  # any number of three labels


def encode(rows: list, labels: list, tokenizer, config, length: int = 32, task=TASKS["cola"]):
    return encode_rows(
        Dataset.from_dict({"texts": rows, "label": labels}), task, tokenizer, config, length
    )


def test_rows_of_an_encoder(mlm_tokenizer, caplog):
    texts, config = [[["a river", "her letter"]], [["the sky", ""]]], BertConfig(vocab_size=300)
    found = encode(texts, [1, 0], mlm_tokenizer, config)
    assert mlm_tokenizer.batch_decode(found[0]["input_ids"]) == ["[CLS]a river[SEP]her letter[SEP]"]
    assert mlm_tokenizer.batch_decode(found[1]["input_ids"]) == ["[CLS]the sky[SEP][SEP]"]
    assert found["label"][:] == [1, 0] and found.features["label"] == Value("int64")
    assert found["length"][:] == [len(found[i]["input_ids"][0]) for i in range(2)]
    assert set(found.column_names) == {"input_ids", "token_type_ids", "length", "label"}
    caplog.set_level("INFO")
    encode(texts, [1, 0], mlm_tokenizer, config, min(found["length"]))
    cut = encode(texts, [1, 0], mlm_tokenizer, config, 5)
    said = [
        f"cola: {n} of 2 inputs are cut to {tokens} tokens (--max_seq_length)"
        for n, tokens in ((1, min(found["length"])), (2, 5))
    ]
    assert caplog.messages == said
    assert max(cut["length"]) == 5 and cut[0]["input_ids"][0][-1] == mlm_tokenizer.sep_token_id


def test_a_tokenizer_in_python_encodes_too():
    found = encode([[["ab"]], [["c"]]], [0, 1], CanineTokenizer(), BertConfig(), 3)
    assert found["input_ids"][:] == [[[0xE000, 97, 0xE001]], [[0xE000, 99, 0xE001]]]


def test_rows_of_a_decoder_have_an_end_token_between_segments_and_no_segment_ids(clm_tokenizer):
    texts = [[["a river", "her letter"]], [["a", "b"]]]
    found = encode(texts, [0.5, 2.0], clm_tokenizer, GPT2Config(), task=TASKS["stsb"])
    assert clm_tokenizer.batch_decode(found[0]["input_ids"]) == ["a river<|endoftext|>her letter"]
    assert (
        "token_type_ids" not in found.column_names
    )  # GPT-2 would look segment ids up among its tokens
    assert found["label"][:] == [0.5, 2.0] and found.features["label"] == Value("float32")


def test_segment_ids_are_those_of_the_tokenizer():
    backend = Tokenizer(
        models.WordLevel({"[PAD]": 0, "[SEP]": 1, "a": 2, "b": 3}, unk_token="[PAD]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    bare = [
        PreTrainedTokenizerFast(tokenizer_object=backend, sep_token=name)
        for name in ("[SEP]", None)
    ]
    assert [*map(separator_of, bare)] == ["[SEP]", " "]
    backend.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", pair="$A [SEP] $B:1 [SEP]:1", special_tokens=[("[SEP]", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", sep_token="[SEP]"
    )
    texts = [[["a", "b b"]], [["a b", "a"]]]
    batch = ClassificationCollator(tokenizer)(
        [row for row in encode(texts, [0, 1], tokenizer, BertConfig())]
    )
    assert batch["input_ids"].tolist() == [[2, 1, 3, 3, 1], [2, 3, 1, 2, 1]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]
    assert "attention_mask" not in batch  # rows of one length need none


def test_candidates_follow_each_other_and_an_empty_text_is_one_padding_token(clm_tokenizer):
    texts = [[["a"], ["bcd"]], [["ef"], [""]]]
    found = encode(texts, [1, 0], clm_tokenizer, GPT2Config(), task=TASKS["copa"])
    assert found[1]["input_ids"][1] == [clm_tokenizer.pad_token_id] and found["length"][:] == [3, 2]
    batch = ClassificationCollator(clm_tokenizer)([found[1], found[0]])
    lengths = batch["attention_mask"].sum(-1)
    shown = [
        clm_tokenizer.decode(ids[:length])
        for ids, length in zip(batch["input_ids"], lengths, strict=True)
    ]
    assert shown == ["ef", clm_tokenizer.pad_token, "a", "bcd"]
    assert batch["labels"].tolist() == [0, 1] and batch["labels"].dtype == torch.int64


def step_gradients(model, rows, tmp_path, split, **kwargs):
    """Gradients and logged loss of one step over 32 rows, in ``split``: (rows of a micro-batch, micro-batches)."""
    args = TrainingArguments(
        tmp_path, per_device_train_batch_size=split[0], gradient_accumulation_steps=split[1], max_steps=1,
        learning_rate=0.0, max_grad_norm=0.0, save_strategy="no", dataloader_pin_memory=False, **QUIET,
    )  # fmt: skip
    trainer = ClassificationTrainer(
        model, args, ClassificationCollator(None), train_dataset=rows, **kwargs
    )
    gradients = Gradients()
    trainer.add_callback(gradients)
    trainer.train()
    return gradients.kept, trainer.state.log_history[0]["loss"]


def naive(model, rows: Dataset, loss: str) -> dict[str, torch.Tensor]:
    """The loss of all rows as one batch, row by row and without padding, as its definition has it."""
    model.zero_grad()
    scores, labels = [], torch.tensor(rows["label"][:])
    for row in rows:
        scores.append(
            torch.cat([model(input_ids=torch.tensor([ids])).logits[0] for ids in row["input_ids"]])
        )
    scores = torch.stack(scores)
    if labels.dim() == 2:
        value = torch.nn.BCEWithLogitsLoss()(scores, labels)
    elif labels.is_floating_point():
        value = torch.nn.MSELoss()(scores[:, 0], labels)
    elif loss == "cross_entropy":
        value = torch.stack(
            [-row.log_softmax(-1)[label] for row, label in zip(scores, labels, strict=True)]
        ).mean()
    else:
        means = [F.cross_entropy(scores[labels == c], labels[labels == c]) for c in labels.unique()]
        value = sum(means) / len(means)
    value.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None} | {
        "loss": value.detach()
    }


@pytest.mark.parametrize("make", [tiny_classifier, gpt2])
@pytest.mark.parametrize("kind, loss", [
    *(("classes", "balanced"), ("classes", "cross_entropy"), ("choices", "balanced")),
    *(("labels", "binary_cross_entropy"), ("numbers", "squared_error"), ("numbers", "balanced")),
])  # fmt: skip
def test_any_split_of_a_step_has_the_gradient_of_all_its_rows(tmp_path, make, kind, loss):
    labels, outputs, candidates = {
        "classes": (CLASSES, 3, 1), "choices": (CHOICES, 1, 2), "labels": (LABELS, 3, 1), "numbers": (NUMBERS, 1, 1),
    }[kind]  # fmt: skip
    rows = encoded_rows(labels, candidates)
    want = naive(make(num_labels=outputs).train(), rows, loss)
    value = want.pop("loss").item()
    assert sum(grad.abs().sum() for grad in want.values()) > 0
    for split in [(32, 1), (8, 4)]:
        got, logged = step_gradients(make(num_labels=outputs), rows, tmp_path, split, loss=loss)
        assert got.keys() == want.keys() and logged == pytest.approx(value, rel=1e-5)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_scores_of_candidates_are_compared_within_their_row(tmp_path):
    rows, model = encoded_rows(CHOICES, candidates=2), tiny_classifier(num_labels=1).eval()
    args = TrainingArguments(
        tmp_path, per_device_eval_batch_size=5, use_cpu=True, dataloader_pin_memory=False
    )
    output = ClassificationTrainer(model, args, ClassificationCollator(None)).predict(rows)
    assert output.predictions.shape == (32, 2) and output.label_ids.tolist() == CHOICES
    with torch.no_grad():
        for row, found in zip(rows, output.predictions, strict=True):
            want = [
                model(input_ids=torch.tensor(each)[None]).logits.item() for each in row["input_ids"]
            ]
            assert found.tolist() == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("loss, changes, message", [
    ("focal", {}, "loss must be one of balanced, cross_entropy, .*, got 'focal'"),
    ("balanced", {"label_smoothing_factor": 0.1}, "label_smoothing_factor is 0.1"),
])  # fmt: skip
def test_settings_that_cannot_work(tmp_path, loss, changes, message):
    args = TrainingArguments(tmp_path, use_cpu=True, **changes)
    with pytest.raises(ValueError, match=message):
        ClassificationTrainer(tiny_classifier(), args, ClassificationCollator(None), loss=loss)


@pytest.mark.parametrize(
    "labels, outputs, loss",
    [(LABELS, 3, torch.nn.BCEWithLogitsLoss()), (NUMBERS, 1, torch.nn.MSELoss())],
)
def test_the_loss_of_an_evaluation_is_that_of_torch(tmp_path, labels, outputs, loss):
    args = TrainingArguments(tmp_path, use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True)
    trainer = ClassificationTrainer(
        tiny_classifier(num_labels=outputs), args, ClassificationCollator(None)
    )
    found = trainer.predict(encoded_rows(labels))
    scores, references = torch.from_numpy(found.predictions), torch.from_numpy(found.label_ids)
    want = loss(scores.reshape(references.shape), references).item()
    assert found.metrics["test_loss"] == pytest.approx(want, rel=1e-5)


def test_tf32_stays_off_beside_torch_compile_and_16_bit_weights_are_told(tmp_path, caplog):
    model, args = tiny_classifier().to(torch.bfloat16), TrainingArguments(tmp_path, tf32=False)
    torch.backends.cuda.matmul.allow_tf32 = True  # as accelerate does, for the whole process
    ClassificationTrainer(model, args, ClassificationCollator(None))
    assert (
        not torch.backends.cuda.matmul.allow_tf32
        and "16-bit weights, which lose small updates" in caplog.text
    )


def test_the_checkpoint_of_a_signal_stays_beside_the_best(tmp_path):
    def end(trainer, args, state, control, **kwargs):
        trainer.signal._heard = signal.SIGTERM * (state.global_step == 2)

    args = TrainingArguments(
        tmp_path, max_steps=4, save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1, save_total_limit=1,
        load_best_model_at_end=True, metric_for_best_model="loss", learning_rate=1.0, **QUIET,
    )  # fmt: skip
    rows = encoded_rows(CLASSES)
    trainer = ClassificationTrainer(tiny_classifier(num_labels=3), args, ClassificationCollator(None), train_dataset=rows,
                                    eval_dataset=rows)  # fmt: skip
    trainer.add_callback(type("End", (TrainerCallback,), {"on_step_end": partial(end, trainer)}))
    trainer.train()
    assert trainer.state.global_step == 2 and (tmp_path / "checkpoint-2").is_dir()


def test_labels_beyond_the_head_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"labels must be in \[0, 2\) for 2 classes, got 0 to 2"):
        step_gradients(tiny_classifier(num_labels=2), encoded_rows(CLASSES), tmp_path, (32, 1))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    model = tiny_classifier(num_labels=3)
    model.classifier.bias.data[0] = torch.nan
    said = r"The loss is nan at step 1, so the run stops. Lower [\w ,]+ max_grad_norm.$"
    with pytest.raises(FloatingPointError, match=said):
        step_gradients(model, encoded_rows(CLASSES), tmp_path, (32, 1))
    trainer = ClassificationTrainer(
        model, TrainingArguments(tmp_path, **QUIET), ClassificationCollator(None)
    )
    with pytest.raises(
        FloatingPointError, match="of classifier.bias are not finite after step 0 and are not saved"
    ):
        trainer.save_model()
    model = tiny_classifier(num_labels=3)
    model.classifier.weight.register_hook(lambda gradient: gradient / 0)
    with pytest.raises(FloatingPointError, match="The norm of the gradient is (nan|inf) at step 1"):
        step_gradients(model, encoded_rows(CLASSES), tmp_path, (32, 1))


def _process(rank: int, folder: str) -> None:
    found, loss = step_gradients(
        tiny_classifier(num_labels=3), encoded_rows(CLASSES), folder, (4, 4)
    )
    if rank == 0:
        torch.save((found, loss), os.path.join(folder, "found.pt"))


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_one(tmp_path):
    processes.run(_process, 2, str(tmp_path))
    found, loss = torch.load(tmp_path / "found.pt")
    want = naive(tiny_classifier(num_labels=3), encoded_rows(CLASSES), "balanced")
    assert loss == pytest.approx(want.pop("loss").item(), rel=1e-5)
    for name, grad in want.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


def load(source: str, tokenizer, num_labels: int = 3, seed: int = 0, **options):
    arguments = GlueArguments(**options)
    config = load_config(arguments, source, num_labels)
    config.num_labels = num_labels
    agree_on_tokens(tokenizer, config)
    model, new = load_classifier(arguments, source, config, tokenizer, seed)
    return model, {name.rpartition(".")[0] for name in new}


def test_a_trunk_gets_a_head_from_the_seed_and_keeps_its_weights(tmp_path, mlm_tokenizer, caplog):
    trunk = tiny_classifier(BertModel, vocab_size=300)
    source = save(tmp_path / "trunk", trunk, mlm_tokenizer)
    (first, _), (again, _), (other, _) = (
        load(source, mlm_tokenizer, seed=seed) for seed in (0, 0, 1)
    )
    assert not caplog.records
    torch.testing.assert_close(first.bert.state_dict(), trunk.state_dict())
    assert first.classifier.weight.equal(again.classifier.weight)
    assert not first.classifier.weight.equal(other.classifier.weight)
    assert first.classifier.weight.shape == (3, 16)


@pytest.mark.parametrize("make, cls, missing", [
    (tiny_classifier, BertModel, {"classifier"}),
    (tiny_classifier, BertForSequenceClassification, set()),
    (tiny_classifier, BertForMaskedLM, {"bert.pooler.dense", "classifier"}),
    (gpt2, GPT2LMHeadModel, {"score"}),
])  # fmt: skip
def test_any_checkpoint_can_be_fine_tuned_and_its_new_weights_are_named(
    tmp_path, mlm_tokenizer, make, cls, missing
):
    before = make(cls, vocab_size=300, num_labels=3)
    model, new = load(save(tmp_path / "model", before, mlm_tokenizer), mlm_tokenizer)
    assert model.get_input_embeddings().weight.equal(before.get_input_embeddings().weight)
    assert new == missing


def test_the_scaled_layer_of_a_free_head_is_not_trained(tmp_path, mlm_tokenizer):
    tokens = {
        f"{r}_token_id": getattr(mlm_tokenizer, f"{r}_token_id")
        for r in ("pad", "bos", "eos", "cls", "sep")
    }
    model = attach_lm_head(
        ModernBertModel(ModernBertConfig(**SMALL, **tokens, vocab_size=300)), torch.arange(300)
    )
    loaded, _ = load(save(tmp_path / "lm", model, mlm_tokenizer), mlm_tokenizer)
    ClassificationTrainer(loaded, TrainingArguments(tmp_path), processing_class=mlm_tokenizer)
    assert (
        loaded.head.dense.weight.equal(model.head.dense.weight)
        and loaded.classifier.weight.requires_grad
    )
    assert not loaded.head.dense.weight.requires_grad


def test_a_decoder_pools_its_last_token_before_the_padding(clm_tokenizer):
    model = gpt2(vocab_size=300, num_labels=2).eval()
    agree_on_tokens(clm_tokenizer, model.config)
    found = encode(
        [[["a river"]], [["her letter crossed the river"]]], [0, 1], clm_tokenizer, model.config
    )
    batch = ClassificationCollator(clm_tokenizer)([found[0], found[1]])
    with torch.no_grad():
        together = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).logits
        for index in range(2):
            ids = torch.tensor(found[index]["input_ids"])
            torch.testing.assert_close(together[index], model(input_ids=ids).logits[0])


def test_the_end_token_pads_where_there_is_no_padding_token(clm_tokenizer):
    tokenizer, config = copy.deepcopy(clm_tokenizer), GPT2Config()
    tokenizer.pad_token, tokenizer.padding_side = None, "left"
    agree_on_tokens(tokenizer, config)
    assert (tokenizer.pad_token, config.pad_token_id, tokenizer.padding_side) == (
        "<|endoftext|>",
        0,
        "right",
    )


def test_a_classifier_of_another_size(tmp_path, mlm_tokenizer):
    source = save(tmp_path / "two", tiny_classifier(vocab_size=300, num_labels=2), mlm_tokenizer)
    with pytest.raises(
        ValueError,
        match="a classifier of 2 outputs but the task needs 3.*--ignore_mismatched_sizes",
    ):
        load_config(GlueArguments(), source, 3)
    model, new = load(source, mlm_tokenizer, ignore_mismatched_sizes=True)
    assert model.classifier.weight.shape == (3, 16) and new == {"classifier"}
    assert load_config(GlueArguments(), source, 2).num_labels == 2


def test_a_classifier_with_its_classes_in_another_order_is_told(tmp_path, mlm_tokenizer, caplog):
    model = tiny_classifier(vocab_size=300, id2label={0: "not_entailment", 1: "Entailment"})
    arguments = GlueArguments(
        model_name_or_path=[save(tmp_path, model, mlm_tokenizer)], tasks=["rte"]
    )
    grid = pytest.importorskip(
        "headless_trainer.fine_tuning.grid", exc_type=ImportError
    )  # needs evaluate
    grid.load_models(arguments, [TASKS["rte"]])
    assert "its classifier starts with the classes of rte in another order" in caplog.text


def test_what_is_no_model_is_refused(tmp_path):
    T5Config(d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"is an encoder-decoder \(t5\)"):
        load_config(GlueArguments(), str(tmp_path), 2)
    XLNetConfig().save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match="is an XLNet, whose classifier reads the last position .* padding"
    ):
        load_config(GlueArguments(), str(tmp_path), 2)


def test_weights_that_are_not_those_of_the_configuration_are_refused(tmp_path, mlm_tokenizer):
    model = tiny_classifier(BertModel, vocab_size=300)
    source = save(tmp_path / "model", model, mlm_tokenizer)
    model.config.num_hidden_layers = 2
    model.config.save_pretrained(source)
    with pytest.raises(
        ValueError, match="lacks 16 weights of a bert, such as 'bert.encoder.layer.1"
    ):
        load(source, mlm_tokenizer)


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused(tmp_path, mlm_tokenizer):
    source = save(tmp_path / "model", tiny_classifier(BertModel, vocab_size=200), mlm_tokenizer)
    with pytest.raises(
        ValueError, match="has ids up to 299 but the embedding has 200 rows: name the"
    ):
        load(source, mlm_tokenizer)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_metrics_of_a_user_get_the_rows_in_their_order(tmp_path, method):
    seen, args = [], TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    run = ClassificationTrainer(
        tiny_classifier(num_labels=10), args, ClassificationCollator(None), train_dataset=encoded_rows([0.0, 1.0]),
        compute_metrics=lambda found: seen.append(found.label_ids) or {},
    )  # fmt: skip
    getattr(run, method)(encoded_rows(range(10)))
    assert seen[0].tolist() == [*range(10)]
    with pytest.raises(ValueError, match="labels are numbers but the model has 10 outputs"):
        run.train()
