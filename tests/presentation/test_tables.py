"""Tables in Markdown."""

from headless_trainer.presentation.tables import markdown


def test_columns_of_numbers_are_aligned_to_the_right():
    table = markdown(("a", "b"), [("x", 0.25), ("yy", 1200)], left=1)
    assert table == "| a | b |\n| --- | ---: |\n| x | 0.25 |\n| yy | 1200 |"


def test_without_rows_there_is_no_table():
    assert markdown(("a", "b"), []) == ""
