"""The findings: every page is what its records give, and a card says one thing."""

import dataclasses

import pytest

pytest.importorskip("scipy")
from findings import records, write  # noqa: E402
from findings.cards import Card, Conditions  # noqa: E402

CONDITIONS = Conditions("GPT-2", "32,000", "25 M", "CPU", "three", "searched")
CARD = Card(
    name="lead",
    question="Does the lead last?",
    answer="No",
    figure="82.7",
    text="Vanilla leads late.",
    columns=("tokens", "perplexity"),
    rows=[("25 M", "82.7")],
    conditions=CONDITIONS,
    would_change="Larger pools.",
    records=("studies/results/recipe_32k_24400",),
)


def test_every_page_is_what_its_records_give():
    assert write.differing(write.pages()) == []


def test_a_figure_that_is_not_its_records_is_noticed(tmp_path, monkeypatch):
    page = tmp_path / "docs" / "findings" / "lead.md"
    page.parent.mkdir(parents=True)
    page.write_text(CARD.page().replace("82.7", "82.8"), encoding="utf-8")
    monkeypatch.setattr(write, "ROOT", tmp_path)
    assert write.differing({"docs/findings/lead.md": CARD.page()}) == ["docs/findings/lead.md"]


@pytest.mark.parametrize(
    "change",
    [
        {"text": "word " * 41},
        {"rows": [("25 M", "82.7")] * 7},
        {"rows": [("25 M",)]},
        {"rows": [("25 M", "word " * 26)]},
    ],
    ids=["long text", "many rows", "short row", "long cell"],
)
def test_a_card_that_says_too_much_is_refused(change):
    with pytest.raises(ValueError, match="lead"):
        dataclasses.replace(CARD, **change)


def test_a_statement_that_the_records_do_not_make_stops_the_writing():
    with pytest.raises(ValueError, match="headless leads"):
        records.check(False, "headless leads")


def test_a_record_that_is_not_there_once_is_refused():
    rows = [{"rate": 1e-3, "seed": 0}, {"rate": 1e-3, "seed": 1}]
    assert records.one_having(rows, seed=1) is rows[1]
    with pytest.raises(ValueError, match="0.001"):
        records.one_having(rows, rate=1e-3)


def test_a_block_is_filled_where_its_page_has_the_place():
    page = "before\n<!-- findings: steps -->\nold\n<!-- end of findings -->\nafter\n"
    expected = "before\n<!-- findings: steps -->\n\nnew\n\n<!-- end of findings -->\nafter\n"
    assert write.with_block(page, "steps", "new") == expected
    with pytest.raises(ValueError, match="others"):
        write.with_block(page, "others", "new")
