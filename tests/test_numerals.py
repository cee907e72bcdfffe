"""Numerals are counted in sentences alone."""

import pytest

pytest.importorskip("markdown")
import numerals  # noqa: E402


@pytest.mark.parametrize(
    ("text", "words", "found"),
    [
        ("A run of 1,024 rows took 0.5 hours.", 8, 2),
        ("It was 1.5 times as fast, in 29 % of the time.", 11, 2),
        ("Rates from 1e-3 to 3e-4 were tried.", 7, 2),
        ("GPT-2, Pythia-70M and an H100 are names.", 7, 0),
        ("# The 3 rules\n\nOne rule.", 2, 0),
        ("Two words.\n\n| rows | ms |\n|---|---|\n| 8 | 12 |\n", 2, 0),
        ("Run this:\n\n```bash\npretrain --max_steps 100\n```\n", 2, 0),
        ("Set `--pool_size 16384` there.", 2, 0),
        ("See [the card](findings/2_cards.md#1).", 3, 0),
        ("![A picture of 12 runs](12.png)", 0, 0),
        ("1. First\n2. Second\n", 2, 0),
        ("Before.\n\n    share = 100 * head / step\n", 1, 0),
        ("<!-- 12 of 13 -->\n\nWords.", 1, 0),
    ],
)
def test_numerals_and_words_of_sentences_are_counted(text, words, found):
    assert numerals.count(text) == numerals.Count(words=words, numerals=found)


def test_a_page_with_too_many_numerals_fails_and_a_tutorial_does_not(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs" / "howto").mkdir(parents=True)
    (tmp_path / "docs" / "tutorials").mkdir()
    many = "It took 12 of 13 hours."
    (tmp_path / "README.md").write_text("Words without any figure.")
    (tmp_path / "docs" / "tutorials" / "first.md").write_text(many)
    monkeypatch.setattr(numerals, "ROOT", tmp_path)
    assert numerals.main() == 0
    (tmp_path / "docs" / "howto" / "runs.md").write_text(many)
    assert numerals.main() == 1
    assert "docs/howto/runs.md" in capsys.readouterr().out
