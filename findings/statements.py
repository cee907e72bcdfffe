"""Statements about single records, whose results are arranged as no others are."""

import statistics
from typing import Any

import numpy as np
from scipy import stats

from findings.comparisons import Check, within
from findings.recipes import (
    BETA2,
    ENCODER_WITH_DRAWN_TARGETS,
    ENCODER_WITH_EXACT_STEPS,
    ENCODER_WITH_GROWING_POOLS,
    ENCODER_WITH_POOLS,
    EPSILON,
    LARGE_POOLS,
    NEOX_WITH_GROWING_POOLS,
    NEOX_WITH_POOLS,
    TIED,
    TIED_VANILLA,
    UNTIED,
    UNTIED_VANILLA,
    VANILLA,
)
from findings.records import is_clear, joined, of_each_seed, of_seeds, one_having
from findings.records import results as read_results
from headless_trainer.presentation.significance import LEVEL

# With the default size of chunks.
CHUNKED_LOSS = "K x U, cwt_loss chunks of 67,108,864"


def mean_of(models: list[dict], name: str, group: int | None = None) -> float:
    """Return the mean over pretrainings of a figure, or of its value for one group of tokens."""
    values = [model[name] for model in models]
    if group is not None:
        values = [value_of_groups[group] for value_of_groups in values]
    return statistics.mean(values)


def gain_is_on_rare_tokens(results: Any) -> bool:
    """Whether headless is ahead on the rarest tokens, and level on the most frequent."""
    for headless, vanilla in ((TIED, TIED_VANILLA), (UNTIED, UNTIED_VANILLA)):
        ours = np.array([model["cross_entropy"] for model in results["recipes"][headless]])
        theirs = np.array([model["cross_entropy"] for model in results["recipes"][vanilla]])
        ahead_on_rarest = ours[:, 0].max() < theirs[:, 0].min()
        level_on_frequent = ours[:, -1].min() <= theirs[:, -1].max() + 0.01
        if not (ahead_on_rarest and level_on_frequent):
            return False
    return True


def epsilon_halves_the_gain(results: Any) -> bool:
    """Whether a larger epsilon halves vanilla's deficit on the rarest tokens."""
    recipes = results["recipes"]
    headless = mean_of(recipes[UNTIED + EPSILON], "cross_entropy", group=0)
    default = mean_of(recipes[UNTIED_VANILLA + BETA2], "cross_entropy", group=0)
    larger = mean_of(recipes[UNTIED_VANILLA + EPSILON], "cross_entropy", group=0)
    return 0.4 < (larger - headless) / (default - headless) < 0.6


def pieces_are_better_inputs(results: Any) -> bool:
    """Whether the mean of the pieces is the better target and the worse input, in all models."""
    return all(
        model["the word"]["mean of the pieces"] < model["the word"]["pieces"]
        and model["each following token"]["pieces"]
        < model["each following token"]["mean of the pieces"]
        for recipe in results["recipes"].values()
        for model in recipe
    )


def share_survives(results: Any) -> bool:
    """Whether a vocabulary head passes an eighth of the norm, and the contrastive loss more than
    twice as much.
    """
    for models in results.values():
        for model in models:
            through_head = model["vocabulary head"]["share"]
            if not 12 < through_head < 14 or model["contrastive"]["share"] < 2 * through_head:
                return False
    return True


def most_of_it_is_an_offset(results: Any) -> bool:
    """Whether synonyms are nearer in headless models, and most of it is true of all words."""
    ours = one_having(results, recipe=TIED, words="all words")
    theirs = one_having(results, recipe=TIED_VANILLA, words="all words")
    other = "the same words in other pairs"
    nearer = statistics.mean(ours["synonyms"]) - statistics.mean(theirs["synonyms"])
    offset = statistics.mean(ours[other]) - statistics.mean(theirs[other])
    return nearer > 0 and offset > nearer / 2


def output_less_input(results: Any, recipe: str, step: str) -> float:
    """Return how much more an embedding resembles an output matrix than an input matrix."""
    alignment = results["alignment"][recipe][step]
    return statistics.mean(alignment["output, rotated"]) - statistics.mean(
        alignment["input, rotated"]
    )


def tying_pulls_vanilla(results: Any) -> bool:
    """Whether vanilla's embedding is an output matrix from the beginning, headless's in the end."""
    return (
        output_less_input(results, TIED_VANILLA, "50") > 0
        and output_less_input(results, TIED, "50") < 0
        and output_less_input(results, TIED, "200") > 0
    )


def unit_scale_and_full_prior_are_best(results: Any) -> bool:
    """Whether no pair of the grid and no trained pair is better than none at all."""
    perplexities = results["perplexity_by_scale"]
    untuned = perplexities["1.0"][results["taus"].index(1.0)]
    trained = [step["perplexity"] for step in results["trained"].values()]
    return untuned == min(min(row) for row in perplexities.values()) and untuned == min(trained)


def everything_is_slower_without_avx512(objectives: Any) -> bool:
    """Whether a step takes longer with each objective than on the first machine."""
    first = read_results("benchmarks/results/compare_steps_gemma")["objectives"]
    return all(objectives[name]["median_seconds"] > first[name]["median_seconds"] for name in first)


def gemma_learns_and_keeps(results: Any) -> bool:
    """Whether Gemma 3 270M learns the new texts alike with both objectives, and keeps the old
    ones.
    """
    before = results["before"]
    sampled = one_having(results["runs"], objective="sampled_softmax", rate=3e-5)
    exact = one_having(results["runs"], objective="vanilla", rate=3e-5)
    for run in (sampled, exact):
        learns = run["new"][0] < 0.4 * before["new"]
        keeps = run["old"][0] < 1.02 * before["old"]
        if not learns or not keeps:
            return False
    return abs(sampled["new"][0] / exact["new"][0] - 1) < 0.01


def gemma_learns_and_keeps_abstracts(results: Any) -> bool:
    """Whether both objectives lower the perplexities of new and old texts, and differ by less than
    1 %.
    """
    before = results["before"]
    sampled, exact = (
        one_having(results["runs"], objective=name) for name in ("sampled_softmax", "vanilla")
    )
    for name in ("new", "old"):
        if max(sampled[name][0], exact[name][0]) >= before[name]:
            return False
        if abs(sampled[name][0] / exact[name][0] - 1) > 0.01:
            return False
    return True


def gemma_learns_less_with_half_of_the_steps(results: Any) -> bool:
    """Whether the exact softmax with half of the steps learns less of the new texts than sampled
    softmax with all of them, and keeps a little more of the old ones.
    """
    [half] = results["runs"]
    runs = read_results("studies/results/real_models_gemma_begun")["runs"]
    sampled = one_having(runs, objective="sampled_softmax", rate=half["rate"])
    learns_less = half["new"][0] > sampled["new"][0]
    keeps_more = 0 < 1 - half["old"][0] / sampled["old"][0] < 0.05
    return learns_less and keeps_more


def sampled_run_of_gemma(rate: float) -> dict:
    """Return the run that continues Gemma 3 270M with sampled softmax at a rate."""
    return one_having(
        read_results("studies/results/real_models_gemma")["runs"],
        objective="sampled_softmax with --pool_size 16384",
        rate=rate,
    )


def exact_forgets_at_a_high_rate(results: Any) -> bool:
    """Whether the exact softmax and sampled softmax raise the perplexity of the old texts tenfold,
    at the same rate.
    """
    [exact] = results["runs"]
    sampled = sampled_run_of_gemma(exact["rate"])
    before = read_results("studies/results/real_models_gemma")["before"]
    return min(exact["old"][0], sampled["old"][0]) > 10 * before["old"]


def adagrad_ends_ahead(results: Any) -> bool:
    """Whether row-wise Adagrad ends with a lower perplexity than both seeds of AdamW, headless and
    vanilla.
    """
    [adagrad] = results.values()
    others = read_results("studies/results/recipe_32k_epsilon_6400").values()
    lowest = min(perplexity for run in others for perplexity in run["perplexity"])
    tokens = {run["tokens"] for run in others}
    return max(adagrad["perplexity"]) < lowest and tokens == {adagrad["tokens"]}


def vanilla_with_adagrad_ends_ahead(results: Any) -> bool:
    """Whether vanilla has a lower perplexity with row-wise Adagrad than both seeds with AdamW."""
    [adagrad] = results.values()
    adamw = read_results("studies/results/recipe_32k_epsilon_6400")[VANILLA]
    return (
        max(adagrad["perplexity"]) < min(adamw["perplexity"])
        and adagrad["tokens"] == adamw["tokens"]
    )


def adagrad_ends_behind(results: Any) -> bool:
    """Whether row-wise Adagrad ends behind all seeds of headless with AdamW, after it has led."""
    [adagrad] = results.values()
    adamw = read_results("studies/results/recipe_32k_24400")[UNTIED + BETA2]
    first, *_ = adagrad["curves"]["0"]
    first_of_adamw, *_ = adamw["curves"]["0"]
    return (
        first["eval_cross_entropy"] < first_of_adamw["eval_cross_entropy"]
        and min(adagrad["perplexity"]) > max(adamw["perplexity"])
        and max(adagrad["accuracy"]) < min(adamw["accuracy"])
        and adagrad["tokens"] == adamw["tokens"]
    )


def uniform_draws_forget_most(results: Any) -> bool:
    """Whether both other ways to continue Gemma 3 270M keep more of the old texts, at each rate."""
    exact_runs = [
        *read_results("studies/results/real_models_gemma")["runs"],
        *read_results("studies/results/real_models_gemma_high")["runs"],
    ]
    for uniform in results["runs"]:
        rate = uniform["rate"]
        exact = one_having(exact_runs, objective="vanilla", rate=rate)
        sampled = sampled_run_of_gemma(rate)
        if not uniform["old"][0] > max(exact["old"][0], sampled["old"][0]):
            return False
    return True


def exact_with_half_of_the_steps_is_behind(results: Any) -> bool:
    """Whether the exact softmax with half of the steps of sampled softmax learns less of the new
    texts, at the same rate.
    """
    [half] = results["runs"]
    sampled = sampled_run_of_gemma(half["rate"])
    return half["steps"] == sampled["steps"] / 2 and half["new"][0] > sampled["new"][0]


def pools_help_on_lambada(results: Any) -> bool:
    """Whether the free head with larger pools is level with vanilla's perplexity on LAMBADA, and
    has more words right than the free head without them, after the same steps.
    """
    pooled = one_having(results["models"], series="free head", step=7200)
    earlier = read_results("studies/results/heads_lambada_longer")["models"]
    free = one_having(earlier, series="free head", step=7200)
    vanilla = one_having(earlier, series="vanilla untied + bias log q + Muon + GPT-NeoX", step=7200)
    ratio = pooled["lambada_perplexity"] / vanilla["lambada_perplexity"]
    accuracies = [model["lambada_accuracy"] for model in (free, pooled, vanilla)]
    return abs(ratio - 1) < 0.02 and accuracies == sorted(set(accuracies))


def pools_are_level_with_vanilla(results: Any) -> bool:
    """Whether headless with large pools has no clear difference from vanilla of the same seeds."""
    pools = results[LARGE_POOLS]
    vanilla = read_results("studies/results/recipe_32k_24400")[VANILLA]
    of_same_seeds = of_seeds(vanilla, "perplexity", pools["seeds"])
    return not is_clear(pools["perplexity"], of_same_seeds)


def pools_change_no_average_of_glue(results: Any) -> bool:
    """Whether headless encoders with large pools have no clear difference from vanilla in their
    average, for the same seeds.
    """
    [pools] = results
    vanilla = one_having(read_results("studies/results/glue"), recipe=f"{TIED_VANILLA} + RoFormer")
    return not is_clear(pools["scores"]["average"], vanilla["scores"]["average"])


def pools_of_encoders_are_level_with_vanilla(results: Any) -> bool:
    """Whether a headless encoder with large pools is at most 0.2 points of accuracy below vanilla
    of the same seeds, after 24.6 million tokens.
    """
    return has_accuracy_of_vanilla(results, "studies/results/recipe_roformer_6000")


def pools_of_shorter_encoders_are_level_with_vanilla(results: Any) -> bool:
    """The same after 12.3 million tokens."""
    return has_accuracy_of_vanilla(results, "studies/results/recipe_roformer_longest")


def has_accuracy_of_vanilla(results: Any, folder_of_vanilla: str) -> bool:
    """Whether the mean accuracy of a headless encoder with large pools is at most 0.2 points below
    vanilla's, for the same seeds.
    """
    pools = results[ENCODER_WITH_POOLS]
    vanilla = read_results(folder_of_vanilla)[f"{TIED_VANILLA} + RoFormer"]
    of_same_seeds = of_seeds(vanilla, "accuracy", pools["seeds"])
    return float(np.mean(pools["accuracy"])) > float(np.mean(of_same_seeds)) - 0.002


def other_pools_differ_in_sign_alone(results: Any) -> bool:
    """Whether the perplexities of an encoder are higher in each pretraining if its pools are topped
    up with drawn targets instead of recent ones, lower in each if they grow, and clearly neither.
    """
    recent = read_results("studies/results/recipe_roformer_longest_pools")[ENCODER_WITH_POOLS]
    for recipe, sign in ((ENCODER_WITH_DRAWN_TARGETS, 1), (ENCODER_WITH_GROWING_POOLS, -1)):
        perplexities = results[recipe]["perplexity"]
        of_same_seeds = of_seeds(recent, "perplexity", results[recipe]["seeds"])
        pairs = zip(perplexities, of_same_seeds, strict=True)
        if not all(sign * (other - ours) > 0 for other, ours in pairs):
            return False
        if is_clear(perplexities, of_same_seeds):
            return False
    return True


def encoder_with_drawn_targets() -> dict:
    """Return all pretrainings of the encoder whose pools are topped up with drawn targets."""
    return joined(
        read_results("studies/results/recipe_roformer_pool_variants")[ENCODER_WITH_DRAWN_TARGETS],
        read_results("studies/results/recipe_roformer_drawn_third")[ENCODER_WITH_DRAWN_TARGETS],
    )


def drawn_targets_are_worse_but_not_clearly(results: Any) -> bool:
    """Whether the perplexity of the third encoder with drawn targets is higher than with recent
    ones, as those of the others are, and all three together are not clearly so.
    """
    drawn = encoder_with_drawn_targets()
    recent = read_results("studies/results/recipe_roformer_longest_pools")[ENCODER_WITH_POOLS]
    of_same_seeds = of_seeds(recent, "perplexity", drawn["seeds"])
    pairs = zip(drawn["perplexity"], of_same_seeds, strict=True)
    is_last = drawn["perplexity"][-1:] == results[ENCODER_WITH_DRAWN_TARGETS]["perplexity"]
    are_worse = all(other > ours for other, ours in pairs)
    return is_last and are_worse and not is_clear(drawn["perplexity"], of_same_seeds)


def twice_the_rate_changes_little(results: Any) -> bool:
    """Whether an encoder with larger pools is at most 2 % better at twice the rate, with a seed
    that both have.
    """
    higher = results[ENCODER_WITH_POOLS]
    lower = read_results("studies/results/recipe_roformer_longest_pools")[ENCODER_WITH_POOLS]
    [perplexity] = higher["perplexity"]
    [perplexity_before] = of_seeds(lower, "perplexity", higher["seeds"])
    [accuracy] = higher["accuracy"]
    [accuracy_before] = of_seeds(lower, "accuracy", higher["seeds"])
    return 0 < 1 - perplexity / perplexity_before < 0.02 and abs(accuracy - accuracy_before) < 0.001


def pools_of_neox_are_level_with_vanilla(results: Any) -> bool:
    """Whether the perplexities of GPT-NeoX with large pools are at most 0.5 % above vanilla's of
    the same seeds.
    """
    pools = results[f"{UNTIED} + GPT-NeoX + pools of 32512"]["perplexity"]
    vanilla = [
        read_results(f"studies/results/{record}")[f"{UNTIED_VANILLA} + GPT-NeoX"]["perplexity"][0]
        for record in ("recipe_longest", "recipe_longest_second")
    ]
    pairs = zip(pools, vanilla, strict=True)
    return all(with_pools < 1.005 * exact for with_pools, exact in pairs)


def exact_steps_of_encoders_change_nothing_clearly(results: Any) -> bool:
    """Whether perplexity and accuracy of an encoder of which every eighth step is exact do not
    differ clearly from those without such steps.
    """
    exact = results[ENCODER_WITH_EXACT_STEPS]
    recent = read_results("studies/results/recipe_roformer_longest_pools")[ENCODER_WITH_POOLS]
    return not any(
        is_clear(exact[key], of_seeds(recent, key, exact["seeds"]))
        for key in ("perplexity", "accuracy")
    )


def third_neox_lies_between(results: Any) -> bool:
    """Whether a further pretraining of GPT-NeoX with large pools ends between two earlier ones."""
    [perplexity] = results[NEOX_WITH_POOLS]["perplexity"]
    earlier = read_results("studies/results/recipe_longest_pools")[NEOX_WITH_POOLS]["perplexity"]
    return min(earlier) < perplexity < max(earlier)


def growing_pools_of_neox_differ_unclearly(results: Any) -> bool:
    """Whether the perplexities of a GPT-NeoX whose pools grow do not differ clearly from those with
    pools of one size.
    """
    growing = results[NEOX_WITH_GROWING_POOLS]["perplexity"]
    return not is_clear(growing, neox_with_pools()["perplexity"])


def neox_with_pools() -> dict:
    """Return all pretrainings of GPT-NeoX with large pools."""
    return joined(
        read_results("studies/results/recipe_longest_pools")[NEOX_WITH_POOLS],
        read_results("studies/results/recipe_longest_pools_third")[NEOX_WITH_POOLS],
    )


def other_rates_are_worse(results: Any) -> bool:
    """Whether the record that chose the rate has lower perplexities than other rates have."""
    chosen = read_results("studies/results/recipe_roformer_6000")
    return all(
        max(chosen[recipe]["perplexity"]) < min(results[recipe]["perplexity"])
        for recipe in (f"{TIED} + RoFormer", f"{TIED_VANILLA} + RoFormer")
    )


def decay_helps_headless_and_harms_vanilla(results: Any) -> bool:
    """Whether weight decay lowers headless's perplexity and raises vanilla's, for the same two
    seeds.
    """
    default = read_results("studies/results/recipe_roformer_longest")
    headless = f"{TIED} + RoFormer"
    vanilla = f"{TIED_VANILLA} + RoFormer"
    little = results[f"{headless} + weight decay 0.1"]["perplexity"]
    much = results[f"{vanilla} + weight decay 0.3"]["perplexity"]
    return max(little) < min(default[headless]["perplexity"][:2]) and min(much) > max(
        default[vanilla]["perplexity"][:2]
    )


def fastest_loss(results: Any) -> bool:
    """Whether ours is several times as fast as the paper's, and ten times as the vocabulary's."""
    paper = one_having(results, method="K x K, the paper's form")["ratio"]
    vocabularies = [one["ratio"] for one in results if one["method"].startswith("K x V")]
    return 3 < paper < 10 < min(vocabularies)


def pools_cost_less_than_the_exact_step(results: Any) -> bool:
    """Whether all pools take less time than the exact step, and less of it with more tokens."""
    shares = [
        [step["share of the exact step"] for name, step in steps.items() if name != "exact softmax"]
        for steps in results.values()
    ]
    rows_of_shares = np.array(shares)
    return bool((rows_of_shares < 1).all() and (np.diff(rows_of_shares, axis=0) < 0).all())


def predicted_draws_and_frequencies_are_nearest(results: Any) -> bool:
    """Whether a set of draws by mean prediction, with targets that are topped up, has the smallest
    error of all, and uniform draws alone have a larger one than draws by mean prediction alone.
    """
    errors = {candidates["label"]: candidates["error"] for candidates in results["sets"]}
    nearest = min(errors, key=lambda label: errors[label])
    predicted_are_nearer = errors["+ 4,096 by mean prediction"] < errors["+ 4,096 uniform"]
    return nearest.endswith("+ 4,096 by mean prediction, once") and predicted_are_nearer


def predicted_draws_are_nearest_with_half_of_the_vocabulary(results: Any) -> bool:
    """Whether draws by mean prediction have the smallest error of all sets with at most about half
    of 8,000 tokens, and uniform draws need nearly all of them for an error as small.
    """
    small_sets = [candidates for candidates in results["sets"] if candidates["distinct"] < 4100]
    nearest = min(small_sets, key=lambda candidates: candidates["error"])
    as_near = [
        candidates
        for candidates in results["sets"]
        if candidates["label"].endswith("uniform, once")
        and not candidates["recent"]
        and not candidates["by_frequency"]
        and candidates["error"] <= nearest["error"]
    ]
    return "by mean prediction" in nearest["label"] and all(
        candidates["distinct"] > 7900 for candidates in as_near
    )


def faster_loss_on_the_gpu(results: Any) -> bool:
    """Whether the loss with the default chunks beats every exact head, at every size."""
    rows_of_sizes: dict[tuple, list[dict]] = {}
    for row in results["parts"]["loss"]["rows"]:
        if row["fits"]:
            rows_of_sizes.setdefault((row["K"], row["D"], row["V"]), []).append(row)
    for measured in rows_of_sizes.values():
        ours = [row["ms"] for row in measured if row["method"] == CHUNKED_LOSS]
        exact = [row["ms"] for row in measured if row["method"].startswith("K x V")]
        if min(ours) >= min(exact):
            return False
    return True


def steps_of_the_earlier_code(results: Any) -> bool:
    """Whether a step gains clearly with XLM-R's vocabulary, hardly with BERT-base, and loses with
    the many targets of a Pythia-70M.
    """
    gains = {
        (row["model"], row["batch"]): row["over_headless"]
        for row in results["parts"]["steps"]["rows"]
        if row["method"] == "our vanilla" and row["fits"]
    }
    return (
        gains["xlm-roberta-base", 128] > 1.4
        and 1 < gains["bert-base", 128] < 1.1
        and gains["pythia-70m", 256] < 1
    )


def scores(results: Any, method: str, measure: str = "test_ndcg@10") -> list[float]:
    """Return a score of a method of examples/items, one for each seed."""
    return of_each_seed(results[method], measure)


def lower_score(first: str, second: str, measure: str = "test_ndcg@10") -> Check:
    """Check that every seed of one method scores lower than every seed of another."""

    def holds(results: Any) -> bool:
        return max(scores(results, first, measure)) < min(scores(results, second, measure))

    return holds


def overlap(first: list[float], second: list[float]) -> bool:
    return min(first) <= max(second) and min(second) <= max(first)


def faster_than_both_heads(rows_of_a_batch: str) -> Check:
    """Check in which order a step takes more time on a CPU."""
    return within(
        rows_of_a_batch,
        lambda results: 1 < results["our vanilla"]["ratio"] < results["transformers"]["ratio"],
    )


def scores_are_within_a_point(results: Any) -> bool:
    """Whether the best and the last scores of both ways differ by less than 0.01.

    Source: the results of studies/fine_tuning_parity.py.
    """
    ours, theirs = (one_having(results, way=way) for way in ("glue", "transformers"))
    return all(
        abs(score - other) < 0.01
        for name in ("score", "last_score")
        for score, other in zip(ours[name], theirs[name], strict=True)
    )


def same_losses(results: Any) -> bool:
    """Whether the losses of all steps are those of transformers with the same rows.

    Source: the results of studies/fine_tuning_parity.py.
    """
    compared = [row for row in results if row["way"] == "same_order"]
    return bool(compared) and all(max(row["difference_of_losses"]) == 0 for row in compared)


def scores_of_both_losses(results: Any) -> list[tuple[list[float], list[float]]]:
    """Return the scores of the balanced and of the plain loss, one for each seed, at the best epoch
    and at the last one.

    Source: the results of studies/balanced_loss.py for one task.
    """
    balanced, plain = (one_having(results, loss=loss) for loss in ("balanced", "cross_entropy"))
    return [(balanced[name], plain[name]) for name in ("score", "last_score")]


def balanced_is_better_but_not_steadier(results: Any) -> bool:
    """Whether the balanced loss has clearly higher scores than the plain one, and the spreads of
    both do not differ by Levene's test.

    Source: the results of studies/balanced_loss.py for one task.
    """
    for ours, theirs in scores_of_both_losses(results):
        is_better = is_clear(ours, theirs) and statistics.mean(ours) > statistics.mean(theirs)
        if not is_better or stats.levene(ours, theirs).pvalue <= 1 - LEVEL:
            return False
    return True


def balanced_is_steadier_but_not_better(results: Any) -> bool:
    """Whether the scores of the balanced loss spread less than those of the plain one by Levene's
    test, and their means do not differ clearly.

    Source: the results of studies/balanced_loss.py for one task.
    """
    for ours, theirs in scores_of_both_losses(results):
        is_steadier = statistics.stdev(ours) < statistics.stdev(theirs)
        if not is_steadier or stats.levene(ours, theirs).pvalue > 1 - LEVEL:
            return False
        if is_clear(ours, theirs):
            return False
    return True
