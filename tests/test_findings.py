"""The findings: every page is what its records give, and a card says one thing."""

import copy
import dataclasses
import doctest
import re

import pytest

pytest.importorskip("scipy")
from findings import cards, comparisons, from_scratch, questions, records, write  # noqa: E402
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


def test_a_table_on_a_page_that_is_written_by_hand_is_noticed_where_it_differs(monkeypatch):
    blocks = (("README.md", "front page", lambda cards: "| other |"),)
    monkeypatch.setattr(write, "BLOCKS", blocks)
    written = write.pages()
    assert "| other |" in written["README.md"]
    assert write.differing(written) == ["README.md"]


def test_every_folder_of_results_has_its_question():
    assert sorted(questions.folders()) == sorted(questions.RECORDS)


@pytest.mark.parametrize("folder", questions.RECORDS)
def test_the_answer_of_a_record_has_no_figures_and_stays_short(folder):
    answer = questions.RECORDS[folder].answer
    assert not re.search(r"\d", answer)
    assert len(answer.split()) <= 60
    # The list of records has it in a cell.
    assert len(questions.first_sentence(answer).split()) <= 25


def test_a_record_begins_with_its_question_and_answer_however_often_they_are_written():
    record = questions.Record("Who leads?", "Nobody.")
    table = "| recipe | perplexity |\n|---|---|\n> not a question\n"
    expected = "> **Question.** Who leads?\n>\n> **Answer.** Nobody.\n\n" + table
    once = questions.with_first_lines(table, record)
    assert once == expected
    assert questions.with_first_lines(once, record) == expected
    other = questions.with_first_lines("> **Question.** Old?\n\n" + table, record)
    assert other == expected


def test_an_answer_that_the_results_do_not_give_stops_the_writing(monkeypatch):
    false = questions.Record("Who leads?", "Headless.", lambda results: False)
    monkeypatch.setattr(questions, "RECORDS", {"studies/results/prior": false})
    with pytest.raises(ValueError, match="prior"):
        questions.pages()


def test_the_list_of_records_has_the_first_sentence_of_an_answer():
    assert questions.first_sentence("Yes, by little. It is one pretraining.") == "Yes, by little"
    assert questions.first_sentence("Nothing: embeddings are a poor head.") == "Nothing"


RUNS = {
    "headless": {"perplexity": [10.0, 11.0]},
    "vanilla": {"perplexity": [10.5, 11.5]},
    "slow": {"perplexity": [12.0, 13.0]},
}


def test_one_recipe_is_below_another_only_if_all_its_pretrainings_are():
    assert comparisons.below("headless", "slow")(RUNS)
    assert not comparisons.below("headless", "vanilla")(RUNS)
    assert comparisons.below_in_pairs("headless", "vanilla")(RUNS)


def test_recipes_are_level_if_their_ranges_overlap_and_no_pairs_tell_them_apart():
    other = {"other": {"perplexity": [10.5, 10.8]}}
    assert comparisons.level("headless", "other")(RUNS | other)
    # Pretrainings that differ by as much in each pair.
    assert not comparisons.level("headless", "vanilla")(RUNS)
    assert not comparisons.level("other", "slow")(RUNS | other)


def test_a_difference_is_unclear_if_its_interval_holds_zero():
    spread = {"a": {"perplexity": [1.0, 2.0, 3.0]}, "b": {"perplexity": [1.5, 1.5, 3.0]}}
    assert comparisons.unclear("a", "b")(spread)
    steady = {"a": {"perplexity": [1.0, 2.0, 3.0]}, "b": {"perplexity": [1.5, 2.5, 3.6]}}
    assert not comparisons.unclear("a", "b")(steady)


def test_means_are_about_the_same_or_a_share_of_each_other():
    runs = {"a": {"seconds": [100.0]}, "b": {"seconds": [101.0]}, "c": {"seconds": [200.0]}}
    assert comparisons.about("a", "b", "seconds")(runs)
    assert not comparisons.about("a", "c", "seconds")(runs)
    assert comparisons.share("a", "c", 0.45, 0.55, "seconds")(runs)
    assert not comparisons.share("a", "b", 0.45, 0.55, "seconds")(runs)


def test_several_statements_about_a_part_of_the_results_hold_only_together():
    results = {"runs": RUNS}
    true = comparisons.below("headless", "slow")
    false = comparisons.below("slow", "headless")
    assert comparisons.within("runs", comparisons.all_of(true, true))(results)
    assert not comparisons.within("runs", comparisons.all_of(true, false))(results)


def test_an_entry_of_a_list_has_the_values_of_all_its_pretrainings():
    listed = [
        {"head": "free", "seed": 0, "scores": {"sst2": 1.0}},
        {"head": "free", "seed": 1, "scores": {"sst2": 2.0}},
    ]
    values = comparisons.values_of(listed, {"head": "free"}, ("scores", "sst2"))
    assert values.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="tuned"):
        comparisons.values_of(listed, {"head": "tuned"}, ("scores", "sst2"))


def test_the_examples_of_the_helpers_are_what_they_print():
    for module in (records, cards, write):
        assert doctest.testmod(module).failed == 0


def test_a_difference_is_clear_only_if_its_interval_lacks_zero():
    assert records.is_clear([1.0, 1.1, 0.9], [2.0, 2.1, 1.8])
    assert not records.is_clear([1.0, 2.0, 3.0], [1.5, 1.5, 3.0])


def test_the_card_of_larger_pools_reads_every_seed_of_its_record(monkeypatch):
    read = from_scratch.results

    def with_three_seeds(folder):
        record = copy.deepcopy(read(folder))
        if folder.endswith("_pools"):
            recipe = record[f"{from_scratch.HEADLESS} + pools of 32512"]
            recipe.update(seeds=[2, 0, 1], perplexity=[82.5, 82.4, 83.2], accuracy=[0.232] * 3)
        return record

    monkeypatch.setattr(from_scratch, "results", with_three_seeds)
    card = from_scratch.do_larger_pools_close_the_gap()
    assert card.conditions.seeds == "three"
    # Each seed is compared with vanilla's of the same number: 82.4, 82.4 and 83.2 for 2, 0 and 1.
    assert card.rows[1][2] == "0.0 (95 %: -0.1 to 0.1), no clear difference"


def test_a_card_written_by_hand_has_to_begin_with_its_answer_and_question(tmp_path, monkeypatch):
    folder = tmp_path / "docs" / "findings"
    folder.mkdir(parents=True)
    (folder / "faults.md").write_text("# All\n\n*Which survive?*\n\nText.\n", encoding="utf-8")
    (folder / "others.md").write_text("# All\n\nText.\n", encoding="utf-8")
    monkeypatch.setattr(write, "ROOT", tmp_path)
    assert write.question_and_answer("faults") == ("Which survive?", "All")
    with pytest.raises(ValueError, match="others"):
        write.question_and_answer("others")
