"""Tests of the report on style: what it counts, and what it leaves out."""

from pathlib import Path

import style_report

import headless_trainer


def counted(source: str) -> style_report.Counts:
    return style_report.count_source(source)


def test_lines_of_code_are_neither_empty_nor_comments_nor_docstrings_nor_lone_brackets():
    counts = counted(
        '''"""A module.

It has a docstring of three lines.
"""

# A comment.
value = call(
    1,
)  # a comment behind code
text = """a text, which is code
"""
'''
    )
    assert counts.lines == 11
    assert counts.lines_with_text == 9
    assert counts.comment_lines == 1
    assert counts.trailing_comments == 1
    # "value = call(", "1,", ")  # a comment behind code", and the text in two lines.
    assert counts.lines_of_code == 5


def test_a_comment_is_told_from_a_number_sign_in_a_text():
    counts = counted('heading = "# no comment"\n')
    assert counts.comment_lines == counts.trailing_comments == 0


def test_ternaries_and_walruses_are_counted_in_code_alone():
    counts = counted(
        "# a if b else c, and (d := e)\n"
        "first = a if b else (c if d else e)\n"
        "if (size := len(first)) > 3 and 'x if y else z':\n"
        "    pass\n"
    )
    assert counts.ternaries == 2
    assert counts.walruses == 1


def test_names_that_are_given_written_out_values_together_are_a_tuple_assignment():
    assert counted("a, b = 1, 2\n").tuple_assignments == 1
    assert counted("a, self.b, c = x, y.z, f(x)\n").tuple_assignments == 1
    # The second value reads the second name, which nothing has changed yet.
    assert counted("a, b = f(a), g(b)\n").tuple_assignments == 1


def test_unpacking_and_what_needs_one_statement_are_no_tuple_assignment():
    assert counted("a, b = pair()\n").tuple_assignments == 0
    assert counted("pair = 1, 2\n").tuple_assignments == 0
    assert counted("a, b = b, a\n").tuple_assignments == 0
    assert counted("low, high = high, low + high\n").tuple_assignments == 0


def test_long_lines_are_counted_in_docstrings_too():
    assert counted('"""' + "x" * 94 + '"""\n').long_lines == 0
    assert counted('"""' + "x" * 95 + '"""\n').long_lines == 1


def test_vague_names_are_counted_as_names_and_not_as_words():
    counts = counted("# each kind\nfor each in rows:\n    print(each, kind='own place')\n")
    assert dict(counts.vague_names) == {"each": 2, "kind": 1}


def test_the_report_shows_the_package_by_folder(capsys):
    package = Path(headless_trainer.__file__).parent
    style_report.main([str(package)])
    printed = capsys.readouterr().out
    for expected in ("headless_trainer", "ternaries", "comment lines", "cli", "measures.py"):
        assert expected in printed
