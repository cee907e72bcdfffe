"""Rows of earlier texts among new ones: how many, which, where, and the same again
after a resume.
"""

import pytest
from builders import Tokenizer, assert_resumes, trainer_for
from datasets import Dataset

from headless_trainer.corpus.packing import target_counts
from headless_trainer.corpus.replay import mix_rows


def numbered(count: int, first: int, length: int = 1) -> Dataset:
    rows = [[first + number] * length for number in range(count)]
    return Dataset.from_dict({"input_ids": rows}).with_format("numpy")


def numbers_of(rows) -> list[int]:
    return [int(row["input_ids"][0]) for row in rows]


def test_earlier_rows_stand_evenly_among_new_ones_which_keep_their_order():
    mixed = mix_rows(numbered(12, 0), numbered(50, 100), share=0.25, seed=3)
    numbers = numbers_of(mixed)
    assert len(numbers) == 16
    assert [number for number in numbers if number < 100] == list(range(12))
    assert [place for place, number in enumerate(numbers) if number >= 100] == [3, 7, 11, 15]
    assert mixed.format["type"] == "numpy"  # as that of both parts


@pytest.mark.parametrize(("share", "count"), [(0.1, 10), (0.5, 90), (0.9, 810), (1 / 3, 45)])
def test_earlier_rows_are_the_share_that_was_asked_for(share, count):
    numbers = numbers_of(mix_rows(numbered(90, 0), numbered(7, 100), share, seed=0))
    assert sum(number >= 100 for number in numbers) == count


def test_every_earlier_row_is_drawn_before_any_is_drawn_again():
    numbers = numbers_of(mix_rows(numbered(30, 0), numbered(7, 100), share=0.4, seed=0))
    drawn = [number for number in numbers if number >= 100]
    assert len(drawn) == 20
    passes = [drawn[:7], drawn[7:14], drawn[14:]]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(100, 107))
    assert len(set(passes[2])) == 6
    assert passes[0] != passes[1] != list(range(100, 107))


def test_the_draw_depends_on_the_seed_alone():
    def drawn(seed):
        return numbers_of(mix_rows(numbered(50, 0), numbered(60, 100), share=0.3, seed=seed))

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize(("share", "old"), [(0.01, 9), (0.1, 0)])
def test_a_share_of_no_row_is_refused(share, old):
    with pytest.raises(ValueError, match=f"replay_share is {share}"):
        mix_rows(numbered(30, 0), numbered(old, 100), share, seed=0)


def test_counts_for_log_q_are_of_new_and_earlier_rows():
    mixed = mix_rows(numbered(3, 2, length=4), numbered(1, 9, length=4), share=0.5, seed=0)
    counts = target_counts(mixed, 12, "clm", Tokenizer())
    assert counts.tolist() == [0, 0, 3, 3, 3, 0, 0, 0, 0, 9, 0, 0]


@pytest.mark.parametrize("sampling", ["random", "group_by_length"])
def test_a_run_with_earlier_rows_resumes_bit_for_bit(tmp_path, sampling):
    def make(folder):
        mixed = mix_rows(numbered(9, 2, length=12), numbered(20, 20, length=9), 0.5, seed=0)
        return trainer_for(
            folder,
            "mlm",
            Tokenizer(),
            data=mixed,
            max_steps=7,  # more than a pass
            save_strategy="steps",
            save_steps=1,
            train_sampling_strategy=sampling,
        )

    for step in (2, 6):
        whole, _ = assert_resumes(make, tmp_path / str(step), step)
    assert whole.token_counts[20:].sum() > 0 and whole.token_counts[2:20].sum() > 0


def test_another_share_or_seed_is_other_rows_for_a_resume(tmp_path):
    def make(folder, share, seed):
        mixed = mix_rows(numbered(9, 2, length=12), numbered(20, 20, length=12), share, seed)
        return trainer_for(
            folder, "mlm", Tokenizer(), data=mixed, save_strategy="steps", save_steps=1
        )

    make(tmp_path / "first", 0.5, 0).train()
    for share, seed in ((0.4, 0), (0.5, 1)):
        run = make(tmp_path / f"{share} {seed}", share, seed)
        with pytest.raises(ValueError, match="training rows"):
            run.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-1"))
