"""What of a history is trained on, validated and tested, with literal values."""

import numpy as np
import pytest

from headless_trainer.items.histories import Histories
from headless_trainer.items.splits import global_time, leave_one_out, training_rows, validation_rows


def histories(*parts: list[int], times=None) -> Histories:
    lengths = np.cumsum([0, *map(len, parts)])
    ids = np.array([item for part in parts for item in part], dtype=np.int64)
    times = None if times is None else np.array([time for part in times for time in part], dtype=float)
    users = np.array([f"u{number}" for number in range(len(parts))], dtype=object)
    return Histories(users, np.array(list("abcdefgh"), dtype=object), ids, lengths, times)


def scored(found: Histories, targets) -> dict[str, tuple[list[int], int]]:
    """What stands before the next item of each user, and that item."""
    spans = zip(targets.users, targets.starts, targets.places, strict=True)
    return {found.users[user]: (found.ids[start:place].tolist(), int(found.ids[place])) for user, start, place in spans}


def rows_of(rows) -> list[list[int]]:
    return [rows[number]["input_ids"].tolist() for number in range(len(rows))]


def test_leave_one_out(caplog):
    found = histories([0, 1, 2, 3, 4], [5], [6, 7], [1, 2, 3])
    with caplog.at_level("INFO", "headless_trainer"):
        split = leave_one_out(found)
        rows = training_rows(found, split, 3, 10)
    assert scored(found, split.validation) == {"u0": ([0, 1, 2], 3), "u3": ([1], 2)}
    assert scored(found, split.test) == {"u0": ([0, 1, 2, 3], 4), "u3": ([1, 2], 3)}
    assert rows_of(rows) == [[3, 4, 5], [9, 10]]
    assert rows.target_counts(12, "clm").nonzero().flatten().tolist() == [4, 5, 10]
    assert rows.target_counts(12, "mlm").tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]
    assert "2 of 4 users have fewer than three items, so they are trained on and not scored" in caplog.text
    assert "2 of 4 users have fewer than two items to train on, so they give no row" in caplog.text


def test_next_items_that_a_user_had_before_are_counted(caplog):
    found = histories([0, 1, 0, 2], [3, 3, 3], [4, 5, 6, 4], [7, 6, 5])
    split = leave_one_out(found)
    assert split.validation.had_before(found).tolist() == [True, True, False, False]
    assert split.test.had_before(found).tolist() == [False, True, True, False]
    split.check_ranked(found)
    said = (
        "2 of 4 next items of {} are ones that their users had before: they are not ranked, so they are never found. "
    )
    assert all(said.format(part) + "--keep_seen ranks them" in caplog.text for part in ("validation", "test"))
    found = histories([3, 3, 3], [4, 5, 4])
    with pytest.raises(
        ValueError, match="^keep_seen is False but every next item of test is one that its user had before"
    ):
        leave_one_out(found).check_ranked(found)


def test_rows_hold_the_most_recent_items():
    found = histories([0, 1, 2, 3, 4, 5, 6])
    assert rows_of(training_rows(found, leave_one_out(found), 3, 3)) == [[5, 6, 7]]


def test_global_time():
    """Ten interactions: the test begins at the ninth in time, 9.0, and validation at the seventh, 7.0."""
    times = [[1, 3, 5, 9], [2, 4, 7, 8], [6, 10]]
    found = histories([0, 1, 2, 3], [4, 5, 6, 7], [0, 1], times=times)
    split = global_time(found, 0.2)
    assert rows_of(training_rows(found, split, 0, 10)) == [[0, 1, 2], [4, 5]]
    assert scored(found, split.validation) == {"u1": ([4, 5], 6)}  # u2 has nothing in its time, and u0 neither
    assert scored(found, split.test) == {"u0": ([0, 1, 2], 3), "u2": ([0], 1)}  # u1 has nothing in its time


def test_users_without_a_past_are_not_scored(caplog):
    found = histories([0, 1, 2, 3], [4], times=[[1, 2, 3, 5], [4]])
    with caplog.at_level("INFO", "headless_trainer"):
        split = global_time(found, 0.3)  # validation from the time 3, the test from 4
    assert scored(found, split.validation) == {"u0": ([0, 1], 2)}
    assert scored(found, split.test) == {"u0": ([0, 1, 2], 3)}
    assert "test: 1 users; 1 with an item in its time and none before are left out" in caplog.text


@pytest.mark.parametrize("mask_id, expected", [(None, [[3, 4, 5, 6]]), (2, [[3, 4, 5, 2]])])
def test_validation_rows_have_one_label(mask_id, expected):
    found = histories([0, 1, 2, 3, 4])
    rows = validation_rows(found, leave_one_out(found).validation, 3, 10, mask_id)
    assert rows_of(rows) == expected and rows[0]["labels"].tolist() == [-100, -100, -100, 6]
    short = validation_rows(found, leave_one_out(found).validation, 3, 2, mask_id)
    assert rows_of(short) == [expected[0][-2:]]


def test_what_cannot_be_split_is_refused():
    with pytest.raises(ValueError, match="No user has three items, one to train on, one to validate and one to test"):
        leave_one_out(histories([0, 1], [2]))
    with pytest.raises(ValueError, match="split is 'global_time' but lines of text have no times"):
        global_time(histories([0, 1]), 0.2)
    with pytest.raises(
        ValueError, match="test_share is 0.1 but no user has an item in the time of validation and one before"
    ):
        global_time(histories([0, 1], [2, 3], times=[[1, 2], [1, 2]]), 0.1)
    found = histories([0, 1, 2])
    with pytest.raises(ValueError, match="No user has two items to train on"):
        training_rows(found, leave_one_out(found), 0, 10)
