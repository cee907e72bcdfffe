"""Batches of a collator become inputs and aligned labels; packed documents stay apart in real
models.
"""

from dataclasses import replace

import pytest
import torch
from builders import tiny_trainer
from transformers import AutoConfig, AutoModel

from headless_trainer import HeadlessTrainingArguments
from headless_trainer.objective.masking import IGNORE_INDEX
from headless_trainer.trainers.step import TargetMaker

VOCAB_SIZE = 300  # of both tokenizers
WIDTH = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
MODELS = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    **dict.fromkeys(("gpt_neox", "bert", "deberta", "eurobert"), WIDTH),
    # Windows shorter than the documents, in one layer of two.
    "modernbert": WIDTH | {"local_attention": 4, "global_attn_every_n_layers": 2},
    "deberta-v2": WIDTH | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "roformer": WIDTH | {"max_position_embeddings": 64},
    "roberta": WIDTH | {"max_position_embeddings": 66, "pad_token_id": 0},
    "opt": WIDTH | {"ffn_dim": 32, "word_embed_proj_dim": 16, "max_position_embeddings": 64},
    "bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 2},
}


def build(name: str, attention: str = "sdpa"):
    torch.manual_seed(0)
    special = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "vocab_size": VOCAB_SIZE}
    config = AutoConfig.for_model(name, **special | MODELS[name])
    model = AutoModel.from_config(config, attn_implementation=attention).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)  # at its first values a model hardly attends to anything
    return model


@pytest.fixture
def make(tmp_path, clm_tokenizer, mlm_tokenizer):
    """A TargetMaker for a model, with the tokenizer of its task."""

    def make(task: str, model, tokenizer="of the task", **settings) -> TargetMaker:
        if tokenizer == "of the task":
            tokenizer = clm_tokenizer if task == "clm" else mlm_tokenizer
        return TargetMaker(
            task, model, tokenizer, HeadlessTrainingArguments(output_dir=str(tmp_path), **settings)
        )

    return make


@pytest.fixture(scope="module")
def bert():
    return build("bert")


@pytest.fixture(scope="module")
def gpt2():
    return build("gpt2")


@pytest.mark.parametrize("batch, wanted", [
    (  # padding is no target
        {"input_ids": [[5, 6, 7, 8], [9, 10, 0, 0]], "attention_mask": [[1, 1, 1, 1], [1, 1, 0, 0]],
         "special_tokens_mask": [[1, 1, 1, 1], [1, 1, 0, 0]]},
        [[6, 7, 8, -100], [10, -100, -100, -100]],
    ),
    # of a collator: a prompt left out, and a target that is not the input
    ({"input_ids": [[5, 6, 7, 8]], "labels": [[-100, -100, 77, 8]]}, [[-100, 77, 8, -100]]),
    ({"input_ids": [[5, 6, 7, 8]], "labels": [[5, 6, 7, 8]]}, [[6, 7, 8, -100]]),
    ({"input_ids": [[5, 6, 7, 8]], "position_ids": [[0, 1, 0, 1]]}, [[6, -100, 8, -100]]),
])  # fmt: skip
def test_next_tokens_of_a_batch(make, gpt2, batch, wanted):
    batch = {name: torch.tensor(value) for name, value in batch.items()}
    made = make("clm", gpt2)(batch, 0)
    assert made["labels"].tolist() == wanted and torch.equal(made["input_ids"], batch["input_ids"])
    assert set(made) == {"labels", *batch} - {"special_tokens_mask"}


def text_rows(tokenizer, lines, count: int = 32) -> dict[str, torch.Tensor]:
    return dict(
        tokenizer(lines[:count], padding=True, return_special_tokens_mask=True, return_tensors="pt")
    )


def test_mlm_masks_tokens_of_the_text_alone(make, bert, mlm_tokenizer, text_lines):
    batch = text_rows(mlm_tokenizer, text_lines)
    assert (batch["attention_mask"] == 0).any()
    del batch["special_tokens_mask"]  # the trainer knows the special tokens itself
    made = make("mlm", bert, mlm_probability=0.5)(batch, 0)
    assert set(made) == {"input_ids", "token_type_ids", "attention_mask", "labels"} & {
        *batch,
        "labels",
    }
    target = made["labels"] != IGNORE_INDEX
    special = torch.isin(batch["input_ids"], torch.tensor(mlm_tokenizer.all_special_ids))
    assert not (target & special).any()
    assert 0.4 < target.sum() / (~special).sum() < 0.6
    assert torch.equal(made["labels"][target], batch["input_ids"][target])
    assert torch.equal(made["input_ids"][~target], batch["input_ids"][~target])
    shown = made["input_ids"][target]
    assert 0.7 < (shown == mlm_tokenizer.mask_token_id).double().mean() < 0.9
    assert shown.max() < VOCAB_SIZE


def test_mlm_respects_the_special_tokens_of_a_collator(make, bert):
    ids = torch.arange(10, 90).view(2, 40)
    special = torch.zeros_like(ids)
    special[:, ::2] = 1
    made = make("mlm", bert, mlm_probability=0.9)(
        {"input_ids": ids, "special_tokens_mask": special}, 0
    )
    target = made["labels"] != IGNORE_INDEX
    assert not target[:, ::2].any() and target[:, 1::2].sum() > 20


def test_mlm_takes_the_labels_of_a_collator(make, bert):
    batch = {
        "input_ids": torch.tensor([[5, 4, 7, 8]]),
        "labels": torch.tensor([[-100, 6, -100, -100]]),
    }
    made = make("mlm", bert)(batch, 0)
    assert made["labels"].tolist() == [[-100, 6, -100, -100]]
    assert made["input_ids"].tolist() == [[5, 4, 7, 8]]


def test_mlm_seeds(make, bert, mlm_tokenizer, text_lines):
    batch = text_rows(mlm_tokenizer, text_lines)
    maker, other = make("mlm", bert), make("mlm", bert, seed=43)

    def labels(maker, step) -> torch.Tensor:
        return maker(batch, step)["labels"]

    assert torch.equal(labels(maker, 3), labels(maker, 3))
    drawn = [labels(maker, 3), labels(maker, 4), labels(other, 3), labels(maker, None)]
    assert len({tuple(row.flatten().tolist()) for row in drawn}) == 4
    # Held-out rows have the same targets under every seed, or its seeds would be compared on
    # different ones.
    assert torch.equal(labels(other, None), labels(maker, None))


@pytest.mark.parametrize("step", [3, None])
def test_mlm_does_not_depend_on_the_batch(make, bert, mlm_tokenizer, text_lines, step):
    maker = make("mlm", bert)
    together = maker(text_rows(mlm_tokenizer, text_lines), step)
    assert (together["labels"] != IGNORE_INDEX).sum() > 20
    for row, line in enumerate(text_lines[:32]):
        alone = maker(text_rows(mlm_tokenizer, [line]), step)
        length = alone["labels"].shape[1]
        assert torch.equal(alone["labels"][0], together["labels"][row, :length])
        assert torch.equal(alone["input_ids"][0], together["input_ids"][row, :length])


@pytest.mark.parametrize("step", [3, None])
@pytest.mark.parametrize("ignored", [[], [0, 4]])
def test_mlm_refuses_labels_that_copy_the_inputs(make, bert, step, ignored):
    """Many scripts add them for causal models. With them nothing would be masked."""
    ids = torch.randint(5, VOCAB_SIZE, (4, 100), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids.clone()}
    batch["labels"][:, ignored] = IGNORE_INDEX
    with pytest.raises(
        ValueError, match="column 'labels' all equal their input_ids.*Remove the column 'labels'"
    ):
        make("mlm", bert)(batch, step)


@pytest.mark.parametrize("step", [3, None])
@pytest.mark.parametrize("name, wrong", [
    ("input_ids", VOCAB_SIZE), ("input_ids", -1), ("labels", VOCAB_SIZE), ("labels", -1),
])  # fmt: skip
def test_ids_without_a_row_in_the_embedding_are_refused(make, step, name, wrong):
    ids = torch.tensor([[5, 6, 7, 8]])
    batch = {"input_ids": ids, "labels": ids.clone()}
    batch["labels"][0, 0] = IGNORE_INDEX
    maker = make("clm", build("gpt2"))
    maker(batch, step)
    batch[name] = batch[name].clone()
    batch[name][0, 2] = wrong
    said = f"{name} holds the token id {wrong} but the embedding has 300 rows: use the tokenizer"
    with pytest.raises(ValueError, match=said):
        maker(batch, step)


@pytest.mark.parametrize("name, task, positions", [
    ("gpt2", "clm", 64), ("opt", "clm", 64), ("roberta", "mlm", 65), ("roformer", "mlm", 64),
])  # fmt: skip
def test_rows_longer_than_the_embedding_of_positions_are_refused(make, name, task, positions):
    """The longest row that is taken is the longest that the model itself reads."""
    model = build(name, attention="eager")  # RoFormer has no other
    maker = make(task, model)
    longest = torch.full((1, positions), 5)
    longer = torch.full((1, positions + 1), 5)
    model(input_ids=maker({"input_ids": longest}, step=3)["input_ids"])
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=longer)
    said = f"A row has {positions + 1} tokens but the model has {positions} positions: cut"
    with pytest.raises(ValueError, match=said):
        maker({"input_ids": longer}, step=3)


def test_a_tokenizer_with_gaps_in_its_ids_masks_with_its_largest_ids_too(make, mlm_tokenizer):
    """Half of the ids have no token; the random replacements are from all that have one."""

    class Gaps:
        mask_token_id, all_special_ids, name_or_path = 4, [0, 1, 2, 3, 4], "gaps"

        def __len__(self):
            return 150

        def get_vocab(self):
            ids = [*range(5), *range(VOCAB_SIZE - 145, VOCAB_SIZE)]
            return {str(token_id): token_id for token_id in ids}

    maker = make("mlm", build("bert"), tokenizer=Gaps(), mlm_probability=0.5)
    ids = torch.full((8, 500), VOCAB_SIZE - 1)
    masked = maker({"input_ids": ids}, step=3)["input_ids"]
    replaced = masked[(masked != ids) & (masked != Gaps.mask_token_id)]
    assert (replaced >= 150).sum() > 50


def test_rows_longer_than_the_configuration_says_are_taken_with_rotary_positions(make):
    model = build("gpt_neox")
    longer = torch.full((1, model.config.max_position_embeddings + 1), 5)
    assert make("clm", model)({"input_ids": longer}, step=3)["input_ids"].shape == longer.shape


def test_documents_that_count_their_positions_anew_may_fill_a_longer_row(make):
    model = build("gpt2")
    row = {"input_ids": torch.full((1, 128), 5), "position_ids": torch.arange(128)[None] % 64}
    inputs = make("clm", model)(row, step=3)
    del inputs["labels"]
    assert model(**inputs).last_hidden_state.shape == (1, 128, 16)


def test_mlm_takes_labels_whose_targets_are_all_shown_by_chance(make, bert):
    """A tenth of the targets is shown as it is: a few may all be, in a batch or two, and then
    others are not.
    """
    ids = torch.randint(5, VOCAB_SIZE, (2, 50), generator=torch.Generator().manual_seed(0))
    few = torch.full_like(ids, IGNORE_INDEX)
    few[:, 3] = ids[:, 3]
    other, maker = few.clone(), make("mlm", bert)
    other[0, 3] += 1
    # From the third on they are those of a collator that masks.
    for labels in (
        few,
        few,
        other,
        *[few] * 300,
    ):
        assert torch.equal(maker({"input_ids": ids, "labels": labels}, 0)["labels"], labels)


def test_the_batch_of_the_collator_is_left_as_it_is(make, bert, mlm_tokenizer, text_lines):
    batch = text_rows(mlm_tokenizer, text_lines)
    before = {name: tensor.clone() for name, tensor in batch.items()}
    make("mlm", bert, isolate_documents=True)(batch, 0)
    assert set(batch) == set(before)
    assert all(torch.equal(batch[name], before[name]) for name in batch)


def documents(end: int) -> list[list[int]]:
    return [[12, 13, 14, 15, 16, end], [20, 21, 22, end], [30, 31, 32, 33, 34, 35, 36, end]]


@torch.no_grad()
def outputs(model, batch: dict, ids: torch.Tensor) -> torch.Tensor:
    """Of the tokens themselves, since masks would not be the same in another row."""
    inputs = {name: value for name, value in batch.items() if name != "labels"} | {"input_ids": ids}
    return model(**inputs).last_hidden_state


ISOLATED = [
    *((name, "clm") for name in ("gpt2", "gpt_neox")),
    *((name, "mlm") for name in ("bert", "roberta", "modernbert", "eurobert")),
]


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize(
    ("name", "task", "attention"),
    [
        *((*model, attention) for model in ISOLATED for attention in ("sdpa", "eager")),
        *((name, "mlm", "eager") for name in ("deberta", "deberta-v2")),  # they have no other
    ],
)
def test_a_packed_document_reads_as_if_alone(
    make, name, task, attention, padding, clm_tokenizer, mlm_tokenizer
):
    model = build(name, attention)
    parts = documents(clm_tokenizer.eos_token_id if task == "clm" else mlm_tokenizer.sep_token_id)
    orders = [(0, 1, 2), (2, 0, 1)]
    ids = torch.tensor([sum((parts[index] for index in order), []) for order in orders])
    alone = [model(input_ids=torch.tensor([part])).last_hidden_state[0].detach() for part in parts]
    batch = {"input_ids": ids}
    if padding:  # in its own places, so that padding has nobody but padding to see
        mask = torch.tensor([[0] * 3 + [1] * 18 if padding == "left" else [1] * 18 + [0] * 3] * 2)
        padded = torch.full(mask.shape, model.config.pad_token_id)
        batch = {
            "input_ids": (ids := padded.masked_scatter(mask.bool(), ids)),
            "attention_mask": mask,
        }
    isolated = outputs(model, make(task, model, isolate_documents=True)(batch, None), ids)
    together = outputs(model, make(task, model)(batch, None), ids)
    assert torch.isfinite(isolated).all()
    for row, order in enumerate(orders):
        start = 3 if padding == "left" else 0
        for place, index in enumerate(order):
            span = slice(start, start + len(parts[index]))
            assert (isolated[row, span] - alone[index]).abs().max() < 1e-5
            if place:
                assert (together[row, span] - alone[index]).abs().max() > 1e-3
            start = span.stop


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_after_a_document_has_something_to_see(make, attention, mlm_tokenizer):
    """A row of the mask without an entry is a softmax of nothing: NaN on some devices, and NaN
    spreads to the others.
    """
    maker = make("mlm", build("bert", attention), isolate_documents=True)
    ids = torch.tensor([[5, 6, mlm_tokenizer.sep_token_id, 0, 0]])
    mask = maker({"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 0, 0]])}, None)[
        "attention_mask"
    ]
    seen = mask[0, 0] if attention == "sdpa" else mask[0, 0] == 0
    assert seen.long().tolist() == [[1, 1, 1, 0, 0]] * 3 + [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]


def test_isolated_documents_predict_no_first_token(make, gpt2, clm_tokenizer):
    end = clm_tokenizer.eos_token_id
    batch = make("clm", gpt2, isolate_documents=True)(
        {"input_ids": torch.tensor([[5, 6, end, 7, 8, end]])}, None
    )
    assert batch["labels"].tolist() == [[6, end, -100, 8, end, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2]]


@pytest.mark.parametrize("isolate", [True, False])
def test_positions_that_rows_bring_keep_a_decoders_documents_apart_in_a_padded_batch(
    make, gpt2, isolate
):
    given = {
        "position_ids": torch.tensor([[0, 1, 0, 1, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 0]]),
    }
    batch = make("clm", gpt2, isolate_documents=isolate)(
        {"input_ids": torch.tensor([[5, 6, 7, 8, 0]])} | given, None
    )
    # A mask would let them see each other.
    assert batch.keys() == {"input_ids", "position_ids", "labels", *["use_cache"][:isolate]}
    assert batch["labels"].tolist() == [[6, -100, 8, -100, -100]]
    assert torch.equal(batch["position_ids"], given["position_ids"])


def test_isolated_documents_end_before_they_are_masked(make, bert, mlm_tokenizer):
    """A token replaced by [SEP] at random ends no document, and a masked one still does."""
    ids = torch.full((40, 8), mlm_tokenizer.sep_token_id)
    ids[:, :6] = torch.randint(5, VOCAB_SIZE, (40, 6), generator=torch.Generator().manual_seed(0))
    maker = make("mlm", bert, isolate_documents=True, mlm_probability=0.9)
    maker.rule = replace(maker.rule, mask_share=0.0, random_share=1.0)
    batch = maker({"input_ids": ids}, 0)
    assert not torch.equal(batch["input_ids"], ids)
    assert torch.equal(batch["position_ids"], torch.tensor([0, 1, 2, 3, 4, 5, 6, 0]).expand(40, -1))


@pytest.mark.parametrize("name, task, tokenizer, settings, text", [
    ("bert", "mlm", "clm", {}, "task is 'mlm' .*no mask token"),
    ("bert", "mlm", None, {}, "pass processing_class=tokenizer"),
    ("gpt2", "clm", None, {"isolate_documents": True}, "isolate_documents is True .*eos or sep token"),
    # OPT takes position_ids and attends across documents all the same; BLOOM swallows them.
    *((name, "clm", "clm", {"isolate_documents": True}, "Model packed documents still attend to each other")
      for name in ("opt", "bloom")),
])  # fmt: skip
def test_refused(make, request, name, task, tokenizer, settings, text):
    tokenizer = tokenizer and request.getfixturevalue(f"{tokenizer}_tokenizer")
    with pytest.raises(ValueError, match=text):
        make(task, build(name, "eager").train(), tokenizer, **settings)


@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2", "flex_attention"])
def test_the_look_at_isolation_leaves_the_model_as_it_was(make, attention):
    """It needs neither the kernels nor their compiler."""
    for mode in (True, False):
        model = build("gpt2").train(mode)
        model.config._attn_implementation = attention
        make("clm", model, isolate_documents=True)
        assert (model.training, model.config._attn_implementation) == (mode, attention)
        assert all(parameter.grad is None for parameter in model.parameters())
    model = build("opt")
    model.config._attn_implementation = attention
    with pytest.raises(ValueError, match="still attend to each other"):
        make("clm", model, isolate_documents=True)


def test_labels_of_rows_are_no_labels_of_tokens(make, bert):
    with pytest.raises(
        ValueError, match=r"labels has shape \(2,\), not one for each token: remove the column"
    ):
        make("mlm", bert)({"input_ids": torch.full((2, 2), 9), "labels": torch.tensor([0, 1])}, 0)


def test_each_step_masks_the_same_rows_anew(tmp_path):
    run, drawn = tiny_trainer(tmp_path), []
    batch = run.data_collator([run.train_dataset[index] for index in range(4)])
    for run.state.global_step in (0, 1, 1):
        drawn.append(run._draw([dict(batch)]).input_ids[0])
    assert not torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[1], drawn[2])


def test_random_tokens_are_those_of_the_tokenizer(make, bert, mlm_tokenizer):
    model = AutoModel.from_config(bert.config)
    model.resize_token_embeddings(len(mlm_tokenizer) + 500)
    batch = {"input_ids": torch.full((64, 60), 7) + torch.arange(64)[:, None]}
    assert make("mlm", model)(batch, 0)["input_ids"].max() < len(mlm_tokenizer)
