"""Only tokens that a row's masks name are learned, scored, and counted for log q."""

import numpy as np
import pytest
import torch
from builders import VOCAB, Tokenizer, logged, make_trainer, tiny_model
from datasets import Dataset, List, Value
from transformers import DataCollatorForLanguageModeling

from headless_trainer.corpus.collator import PaddingCollator
from headless_trainer.corpus.packing import target_counts

OBJECTIVES = ["headless", "sampled_softmax", "vanilla"]
# Two prompts with their completions. Without the masks, a causal model would predict 9 tokens.
PROMPTS = [
    {"input_ids": [5, 6, 7, 8, 9, 10], "completion_mask": [0, 0, 0, 1, 1, 1]},
    {"input_ids": [5, 6, 11, 8, 12], "completion_mask": [0, 0, 0, 1, 1]},
]
LEARNED = {8: 2, 9: 1, 10: 1, 12: 1}  # times that each token is a target
# As TRL packs them: a document begins where the position is 0; its first token is not predicted.
PACKED = [
    {
        "input_ids": [5, 6, 7, 20, 21, 22, 23],
        "position_ids": [0, 1, 2, 0, 1, 2, 3],
        "completion_mask": [0, 1, 1, 1, 1, 0, 1],
    }
]
CASES = {
    "completion_mask": (PROMPTS, LEARNED),
    "assistant_masks": (
        [
            {"input_ids": row["input_ids"], "assistant_masks": row["completion_mask"]}
            for row in PROMPTS
        ],
        LEARNED,
    ),
    "both masks": (
        [row | {"assistant_masks": [1] * 4 + [0] * (len(row["input_ids"]) - 4)} for row in PROMPTS],
        {8: 2},
    ),
    "labels": (
        [
            {
                "input_ids": row["input_ids"],
                "labels": np.where(row["completion_mask"], row["input_ids"], -100).tolist(),
            }
            for row in PROMPTS
        ],
        LEARNED,
    ),
    "a mask and labels": (
        [row | {"labels": [-100] * 4 + row["input_ids"][4:]} for row in PROMPTS],
        {9: 1, 10: 1, 12: 1},
    ),
    "packed": (PACKED, {6: 1, 7: 1, 21: 1, 23: 1}),
}


def counted(counts: torch.Tensor) -> dict[int, int]:
    return {token: int(counts[token]) for token in counts.nonzero().flatten().tolist()}


def trainer(folder, rows, objective="vanilla", task="clm", **parameters):
    settings = {
        "objective": objective,
        "task": task,
        "max_steps": 1,
        "per_device_train_batch_size": len(rows),
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "no",
    }
    return make_trainer(
        folder,
        tiny_model(task, objective=objective),
        rows,
        settings,
        eval_dataset=rows,
        processing_class=Tokenizer(),
        **parameters,
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("case", CASES)
def test_only_tokens_that_the_masks_name_are_learned_and_scored(tmp_path, case, objective):
    rows, learned = CASES[case]
    run = trainer(tmp_path, Dataset.from_list(rows), objective)
    run.train()
    assert counted(run.token_counts) == learned
    assert logged(run, "predicted_tokens") == [sum(learned.values())]
    assert logged(run, "eval_predicted_tokens") == [sum(learned.values())]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_masks_give_the_loss_of_labels_that_leave_the_same_tokens_out(tmp_path, objective):
    runs = [
        trainer(tmp_path / name.replace(" ", "_"), Dataset.from_list(CASES[name][0]), objective)
        for name in ("completion_mask", "labels")
    ]
    for run in runs:
        run.train()
    assert logged(runs[0]) == logged(runs[1])
    assert logged(runs[0], "eval_loss") == logged(runs[1], "eval_loss")
    for name, weight in runs[0].model.state_dict().items():
        assert torch.equal(weight, runs[1].model.state_dict()[name]), name


@pytest.mark.parametrize("case", CASES)
def test_counts_for_log_q_are_of_learned_tokens(case):
    rows, learned = CASES[case]
    counts = target_counts(Dataset.from_list(rows), VOCAB, "clm", Tokenizer())
    assert counted(counts) == learned


@pytest.mark.parametrize("name", ["completion_mask", "assistant_masks"])
def test_an_encoder_masks_only_tokens_that_are_learned(tmp_path, name):
    row = {"input_ids": list(range(5, 35)), name: [0] * 10 + [1] * 20}
    rows = Dataset.from_list([row] * 4)
    run = trainer(tmp_path, rows, task="mlm")
    run.train()
    assert run.token_counts[:15].sum() == 0 and run.token_counts[15:].sum() > 0
    assert counted(target_counts(rows, VOCAB, "mlm", run.processing_class)) == dict.fromkeys(
        range(15, 35), 4
    )


def test_masks_beside_the_labels_of_a_users_collator_are_honoured(tmp_path, clm_tokenizer):
    rows = [
        {name: values[:5] for name, values in row.items()}  # it stacks only rows of one length
        for row in PROMPTS
    ]
    collate = DataCollatorForLanguageModeling(clm_tokenizer, mlm=False)
    run = trainer(tmp_path, rows, data_collator=collate)
    run.train()
    assert counted(run.token_counts) == {8: 2, 9: 1, 12: 1}


@pytest.mark.parametrize("in_a_dataset", [True, False])
def test_a_column_of_numbers_for_tokens_that_nothing_reads_is_refused(tmp_path, in_a_dataset):
    rows = [row | {"loss_mask": row["completion_mask"]} for row in PROMPTS]
    run = trainer(tmp_path, Dataset.from_list(rows) if in_a_dataset else rows)
    with pytest.raises(ValueError, match="'loss_mask'.*drop it.*'completion_mask'"):
        run.train()


def test_a_column_for_tokens_that_a_users_collator_keeps_and_nothing_reads_is_refused(tmp_path):
    def collate(rows):
        batch = PaddingCollator(None)([{"input_ids": row["input_ids"]} for row in rows])
        return batch | {"loss_weights": torch.ones(batch["input_ids"].shape)}

    run = trainer(tmp_path, PROMPTS, data_collator=collate)
    with pytest.raises(ValueError, match="'loss_weights'.*data_collator"):
        run.train()


def test_columns_that_say_nothing_of_targets_stay():
    row = {
        "input_ids": [5, 6, 7],
        "tokens": ["a", "b", "c"],
        "offset_mapping": [(0, 1), (1, 2), (2, 3)],
        "pos_tags": ["N", "V", "N"],
        "sentence_lengths": [2, 1],
        "length": 3,
        "text": "abc",
    }
    collate = PaddingCollator(None)
    assert list(collate([row])) == ["input_ids"]
    later = row | {"sentence_lengths": [1, 1, 1]}  # as many sentences as tokens, by chance
    assert list(collate([later])) == ["input_ids"]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([PROMPTS[0], {"input_ids": [1, 2]}], "Row 1 .*'completion_mask'"),
        ([{"input_ids": [1, 2], "completion_mask": [0, 2]}], "'completion_mask'.* 2 .*0"),
        ([{"input_ids": [1, 2], "assistant_masks": [0.5, 1]}], "'assistant_masks'.* 0.5 .*0"),
        ([{"input_ids": [1, 2], "labels": [1.5, 2]}], "'labels'.* 1.5 .*integers"),
        ([{"input_ids": [1, 2], "completion_mask": [1]}], "'completion_mask'.*1 values for 2"),
    ],
)
def test_masks_with_other_values_or_in_some_rows_only_are_refused(rows, names):
    with pytest.raises(ValueError, match=names):
        PaddingCollator(None)(rows)


def test_a_mask_of_another_length_is_refused_before_it_is_counted():
    rows = Dataset.from_list([{"input_ids": [1, 2], "completion_mask": [1]}])
    with pytest.raises(ValueError, match="'completion_mask' of row 0 has 1 values for 2 tokens"):
        target_counts(rows, VOCAB, "clm", Tokenizer())
    without = rows.select([]).add_item({"input_ids": [3], "completion_mask": None})
    with pytest.raises(ValueError, match="'completion_mask' of row 0 has 0 values for 1 tokens"):
        target_counts(without, VOCAB, "clm", Tokenizer())


def test_masks_of_truth_values_are_counted_as_numbers():
    rows = Dataset.from_list(PROMPTS).cast_column("completion_mask", List(Value("bool")))
    assert counted(target_counts(rows, VOCAB, "clm", Tokenizer())) == LEARNED
    assert PaddingCollator(None)(list(rows))["completion_mask"].tolist() == [
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 0],
    ]
