"""The table of figures that are shown."""

from headless_trainer.measures import EVALUATION, higher_is_better


def test_higher_is_better_for_accuracies_alone():
    higher = {"accuracy", "pool_accuracy", "accuracy_without_bias"}
    names = {measure.bare_name for measure in EVALUATION}
    assert {name for name in names if higher_is_better(name)} == higher < names


def test_a_figure_is_known_with_the_name_of_a_dataset_and_an_unknown_one_is_not():
    assert higher_is_better("eval_old_accuracy") is True
    assert higher_is_better("eval_old_perplexity") is False
    assert higher_is_better("eval_runtime") is None
