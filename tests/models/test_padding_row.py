"""The row of the padding id is trained where it is a token, as input and as target, and never where
it is padding.
"""

import copy

import builders
import pytest
import torch
import torch.nn.functional as F
from architectures import ARCHITECTURES, ENCODER, LLAMA, LM_CLASSES, Architecture
from builders import Gradients, make_trainer
from datasets import Dataset
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    TrainingArguments,
)

from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.models.candidate_head import CandidateHead
from headless_trainer.models.trunk import infer_task

PAD, EOS, MASK, VOCAB = 0, 1, 2, 40
LENGTHS = (9, 9, 6, 4)
MODELS = ARCHITECTURES | {
    "qwen2": Architecture("clm", "qwen2", LLAMA),
    "mistral": Architecture("clm", "mistral", LLAMA),
    "convbert": Architecture(
        "mlm", "convbert", ENCODER | {"embedding_size": 16, "num_groups": 1, "head_ratio": 1}
    ),
}
DECODERS = [
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "opt",
    "olmo2",
    "gemma",
    "phi",
    "gpt2",
    "gpt_neox",
    "bloom",
]
ENCODERS = ["bert", "roberta"]
CASES = [(name, "dense") for name in DECODERS + ENCODERS]
CASES += [
    (name, mode) for name in ("llama", "opt", "gemma", "bert") for mode in ("sparse", "vanilla")
]


class Tokenizer(builders.Tokenizer):
    """One whose special tokens are three, and which pads with one of them."""

    eos_token_id = sep_token_id = EOS
    bos_token_id = cls_token_id = unk_token_id = None
    mask_token_id, all_special_ids = MASK, [PAD, EOS, MASK]

    def __init__(self, pad: int):
        super().__init__(VOCAB)
        self.pad_token_id = pad


def make_model(name: str, pad: int, auto_class=AutoModel):
    ids = {"pad_token_id": pad, "eos_token_id": EOS, "bos_token_id": None}
    settings = {"vocab_size": VOCAB} | MODELS[name].settings | ids
    torch.manual_seed(0)
    return auto_class.from_config(AutoConfig.for_model(MODELS[name].model_type, **settings))


def documents() -> list[torch.Tensor]:
    """Token ids of different lengths, with EOS inside and at the end, and without PAD."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(MASK + 1, VOCAB, (length,), generator=generator) for length in LENGTHS]
    for row in rows:
        row[2] = row[-1] = EOS
    return rows


def trainer_of(model, folder, pad: int, **settings):
    settings = {
        "max_steps": 1, "per_device_train_batch_size": len(LENGTHS), "learning_rate": 1e-2, "weight_decay": 0.0,
        "max_grad_norm": 0.0, "save_strategy": "no", "mlm_probability": 0.5 if infer_task(model) == "mlm" else 0.15,
    } | settings  # fmt: skip
    rows = [{"input_ids": row} for row in documents()]
    trainer = make_trainer(folder, model, rows, settings, processing_class=Tokenizer(pad))
    trainer.gradients = Gradients()
    trainer.add_callback(trainer.gradients)
    return trainer


def gradient_of(trainer) -> torch.Tensor:
    """Of the embedding, at the first step."""
    name = next(
        name
        for name, weight in trainer.model.named_parameters()
        if weight is trainer.embedding.weight
    )
    return trainer.gradients.kept[name].to_dense()


def train_and_watch(trainer) -> tuple[dict, torch.Tensor]:
    """Inputs and labels of the only micro-batch of a run of one step."""
    seen, take_out = [], trainer.take_out

    def watched(batch):
        inputs, micro_batch = take_out(batch)
        labels = torch.full_like(inputs["input_ids"], -100)
        labels = (
            labels.flatten()
            .index_put((micro_batch.predicted,), micro_batch.target_ids)
            .view_as(labels)
        )
        seen.append((inputs, labels))
        return inputs, micro_batch

    trainer.take_out = watched
    trainer.train()
    return seen[0]


def naive_gradients(model, inputs, labels, headless: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of the whole table of the paper's K x K loss, or of the full logits; and the part of
    the input role.
    """
    embedding, predicted = model.get_input_embeddings(), labels >= 0
    embedded = []
    handle = embedding.register_forward_hook(
        lambda module, args, output: embedded.append((args[0], output))
    )
    output = model(**inputs)
    handle.remove()
    embedded[0][1].retain_grad()
    if headless:
        targets = labels[predicted]
        scores = output.last_hidden_state[predicted] @ CandidateHead(model).vectors(targets).T
        loss = (scores.logsumexp(-1) - scores.diagonal()).mean()
    else:
        loss = F.cross_entropy(output.logits[predicted], labels[predicted])
    loss.backward()
    ids, grad = embedded[0][0].flatten(), embedded[0][1].grad.flatten(0, 1)
    as_input = torch.zeros_like(embedding.weight).index_add_(0, ids, grad)
    return embedding.weight.grad, as_input


@pytest.mark.parametrize("pad", [EOS, PAD], ids=["pad_is_eos", "pad_of_its_own"])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_token_has_the_gradients_of_both_roles_and_padding_has_none(name, pad, mode, tmp_path):
    headless = mode != "vanilla"
    model = make_model(name, pad, AutoModel if headless else LM_CLASSES[MODELS[name].task])
    objective = "headless" if headless else "vanilla"
    trainer = trainer_of(
        model, tmp_path, pad, objective=objective, sparse_embedding_updates=mode == "sparse"
    )
    reference = copy.deepcopy(trainer.model)
    reference.get_input_embeddings().padding_idx = (
        None  # padding is what the attention mask hides, here and there
    )
    before = reference.get_input_embeddings().weight.detach().clone()
    inputs, labels = train_and_watch(trainer)
    found, (wanted, as_input) = (
        gradient_of(trainer),
        naive_gradients(reference, inputs, labels, headless),
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert as_input[EOS].norm() > 1e-4
    assert before[EOS].any()
    # A head may be a matrix of its own; mlm predicts no special token.
    if headless and MODELS[name].task == "clm":
        assert (wanted - as_input)[EOS].norm() > 1e-4
    after = trainer.embedding.weight
    assert not torch.equal(after[EOS], before[EOS])
    # A vocabulary head trains all of its rows, and a tied one is the embedding.
    if pad != EOS and headless:
        assert not found[pad].any() and torch.equal(after[pad], before[pad])


@pytest.mark.parametrize("name", ["llama", "gemma", "bert"])
def test_a_new_row_is_drawn_like_the_others_from_the_seed(name, tmp_path):
    drawn = []
    for seed in (1, 1, 2):
        model = make_model(name, EOS)
        others = [row for row in range(VOCAB) if row != EOS]
        before = model.get_input_embeddings().weight.detach().clone()
        assert not before[EOS].any()
        trainer = trainer_of(model, tmp_path, EOS, seed=seed)
        weight = trainer.embedding.weight
        assert torch.equal(weight[others], before[others])
        assert 0.5 < weight[EOS].std() / before[others].std() < 1.5
        drawn.append(weight[EOS].clone())
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[1], drawn[2])
    assert trainer.model.config.pad_token_id == EOS


def test_what_only_pads_has_no_vector(tmp_path):
    trainer = trainer_of(make_model("llama", PAD), tmp_path, PAD)
    trainer.train()
    assert not trainer.embedding.weight[PAD].any()
    # 0 is a token of a tokenizer that pads with another, whatever the configuration's default says
    assert trainer_of(make_model("llama", PAD), tmp_path, EOS).embedding.weight[PAD].any()


def test_a_row_of_a_checkpoint_is_left_as_it_is_and_trained_for_other_clients(tmp_path):
    make_model("llama", EOS).save_pretrained(tmp_path / "first")
    trainer = trainer_of(AutoModel.from_pretrained(tmp_path / "first"), tmp_path / "run", EOS)
    assert not trainer.embedding.weight[EOS].any()  # the model may have learned with it
    trainer.train()
    trainer.save_model()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert loaded.config.pad_token_id == EOS
    assert torch.equal(loaded.get_input_embeddings().weight, trainer.embedding.weight)
    assert loaded.get_input_embeddings().weight[EOS].any()


@pytest.mark.parametrize("sparse", [False, True])
def test_convolutions_that_read_padding_do_not_train_it(sparse, tmp_path):
    trainer = trainer_of(
        make_model("convbert", PAD), tmp_path, PAD, sparse_embedding_updates=sparse
    )
    trainer.train()
    assert not gradient_of(trainer)[PAD].any() and gradient_of(trainer)[EOS].any()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_text_may_contain_the_token_that_pads(sparse, tmp_path):
    trainer = trainer_of(make_model("llama", PAD), tmp_path, PAD, sparse_embedding_updates=sparse)
    trainer.train_dataset[0]["input_ids"][1] = PAD
    trainer.train()
    assert gradient_of(trainer)[PAD].any() and trainer.token_counts[PAD] == 1


@pytest.mark.parametrize("pad", [EOS, PAD], ids=["pad_is_eos", "pad_of_its_own"])
def test_fine_tuning_trains_the_end_token_between_two_texts(pad, tmp_path):
    make_model("llama", pad).save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=2)
    ids = [[row[:-1].tolist()] for row in documents()]
    rows = Dataset.from_dict(
        {"input_ids": ids, "length": [length - 1 for length in LENGTHS], "label": [0, 1, 0, 1]}
    )
    args = TrainingArguments(
        str(tmp_path / "run"), max_steps=1, per_device_train_batch_size=4, use_cpu=True, report_to="none",
        disable_tqdm=True, save_strategy="no", weight_decay=0.0, learning_rate=1e-2,
    )  # fmt: skip
    trainer = ClassificationTrainer(
        model, args, train_dataset=rows, processing_class=Tokenizer(pad)
    )
    before = load_file(tmp_path / "model.safetensors")["embed_tokens.weight"]
    trainer.train()
    after = trainer.model.get_input_embeddings().weight
    assert not torch.equal(after[EOS], before[EOS])
    assert torch.equal(after[pad], before[pad]) == (pad != EOS)
