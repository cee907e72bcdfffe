"""Findings about models that are continued on new texts."""

import statistics
from dataclasses import dataclass, replace
from typing import Any

from findings.cards import Card, Conditions
from findings.records import (
    below,
    check,
    difference,
    figure,
    having,
    is_clear,
    one_having,
    percent,
    results,
)
from findings.speed import GEMMA_STEPS, GEMMA_WITH_RANDOM_WEIGHTS

TITLE = "Continuing a model on new texts"

EXACT = "vanilla"
SAMPLED = "sampled_softmax"
WITHOUT_DRAWS = "sampled_softmax with 0 draws"
HEADLESS = "headless"

UNIFORM_DRAWS = (
    "an earlier version, with uniform draws, no exact steps and targets that were not counted once"
)
ONE_THREAD = "one thread of a shared CPU"


@dataclass(frozen=True)
class Toy:
    """A small model that studies/adaptation.py pretrained, then continued with each objective."""

    name: str
    folder: str
    rate: float  # the best of each objective
    steps: int  # of the runs with equal tokens

    def run(self, objective: str, rate: float | None = None) -> dict[str, Any]:
        """Return the run of an objective, at the best rate unless another is asked for."""
        return one_having(
            results(self.folder),
            objective=objective,
            rate=self.rate if rate is None else rate,
            steps=self.steps,
        )

    def run_of_equal_time(self, objective: str) -> dict[str, Any]:
        """Return the run of an objective that took as long as the exact softmax did."""
        (longer,) = [
            run
            for run in results(self.folder)
            if run["objective"] == objective and run["steps"] != self.steps
        ]
        return longer

    def relative_times(self, objective: str) -> list[float]:
        """Return the time of each pretraining's run over that of the exact softmax."""
        return [
            seconds / exact
            for seconds, exact in zip(
                self.run(objective)["seconds"], self.run(EXACT)["seconds"], strict=True
            )
        ]

    def relative_time(self, objective: str) -> float:
        """Return the mean time of an objective's runs over that of the exact softmax."""
        exact = statistics.mean(self.run(EXACT)["seconds"])
        return statistics.mean(self.run(objective)["seconds"]) / exact


TIED = Toy("GPT-2, tied", "studies/results/adaptation_decoder", 6e-3, 200)
TIED_SECOND = Toy("GPT-2, tied", "studies/results/adaptation_decoder_draws", 6e-3, 200)
TIED_THIRD = Toy("GPT-2, tied", "studies/results/adaptation_decoder_fourth", 6e-3, 200)
UNTIED = Toy("GPT-2, untied", "studies/results/adaptation_untied", 6e-3, 200)
LARGE = Toy("GPT-2, V = 128,000", "studies/results/adaptation_large_vocabulary", 4e-3, 300)
ROFORMER = Toy("RoFormer", "studies/results/adaptation_encoder", 6e-3, 200)
ROFORMER_TODAY = Toy("RoFormer, today", "studies/results/adaptation_encoder_today", 6e-3, 200)
TIED_TODAY = Toy("GPT-2, today", "studies/results/adaptation_decoder_today", 6e-3, 200)
ROFORMER_SECOND = Toy("RoFormer, others", "studies/results/adaptation_encoder_draws", 6e-3, 200)

DECODER = "GPT-2 with two layers of width 128, pretrained on English novels with the exact softmax"
ENCODER = "RoFormer with two layers of width 128, pretrained on English novels"
BOTH = "GPT-2 and RoFormer with two layers of width 128, pretrained on English novels"
FRENCH = "0.8 M of French novels, in batches of 32 x 128"
WIKIPEDIA = "0.8 M of English Wikipedia, in batches of 32 x 128"
# Of the two cards about today's sampled softmax.
PERPLEXITIES_OF_BOTH = (
    "exact: perplexity of new texts",
    "sampled: perplexity of new texts",
    "exact: old texts",
    "sampled: old texts",
)
BEST_RATE_AND_A_SIXTH = "0.006, the best in earlier runs, and a sixth of it"
BOTH_TEXTS = "0.8 M of French novels (GPT-2) or English Wikipedia (RoFormer)"


# Rows begin with <bos>, as all texts that Gemma read did.
GEMMA = "studies/results/real_models_gemma_begun"
GEMMA_ON_ABSTRACTS = "studies/results/real_models_gemma_medical"
GEMMA_WITH_HALF_OF_THE_STEPS = "studies/results/real_models_gemma_begun_half"
# Of an earlier version, whose rows begin with <bos> only where a text begins.
GEMMA_WITHOUT_BOS = "studies/results/real_models_gemma"
GEMMA_EXACT_AT_A_HIGH_RATE = "studies/results/real_models_gemma_high"
GEMMA_WITH_UNIFORM_DRAWS = "studies/results/real_models_gemma_uniform"


def gemma_runs(rate: float = 3e-5) -> dict[str, dict[str, Any]]:
    """Return the evaluations of Gemma 3 270M before training and after it at a rate, by the names
    that the tables give them.
    """
    record = results(GEMMA)
    return {
        "before": record["before"],
        "exact softmax": one_having(record["runs"], objective=EXACT, rate=rate),
        "sampled softmax": one_having(record["runs"], objective="sampled_softmax", rate=rate),
    }


def gemma_runs_without_bos(rate: float) -> dict[str, dict[str, Any]]:
    """Return the same with other candidates, too, in rows without <bos>."""
    record = results(GEMMA_WITHOUT_BOS)
    runs_of_all_rates = record["runs"]
    for further in (GEMMA_EXACT_AT_A_HIGH_RATE, GEMMA_WITH_UNIFORM_DRAWS):
        runs_of_all_rates = runs_of_all_rates + results(further)["runs"]
    pools = "sampled_softmax with --pool_size 16384"
    objectives = {
        "exact softmax": EXACT,
        "sampled softmax": pools,
        "recent targets": f"{pools} --exact_every 8",
        "uniform draws": "sampled_softmax with --exact_every 0",
    }
    runs = {"before": record["before"]}
    for name, objective in objectives.items():
        matching = having(runs_of_all_rates, objective=objective, rate=rate)
        if matching:
            (runs[name],) = matching
    return runs


def run_row(name: str, run: dict[str, Any]) -> tuple[str, ...]:
    """Return what a run of studies/real_models.py learned of new texts and kept of old ones."""
    return (
        name,
        figure(run["new"]),
        figure(run["new_accuracy"], digits=2),
        figure(run["old"]),
        figure(run["old_accuracy"], digits=2),
    )


GEMMA_COLUMNS = (
    "method",
    "French: perplexity",
    "French: accuracy (%)",
    "English: perplexity",
    "English: accuracy (%)",
)
OF_GEMMA = Conditions(
    model="Gemma 3 270M, its weights dequantized from 4 bits",
    vocabulary="262,144",
    tokens="51,200 of French novels in 100 batches of 4 x 128; evaluated on 128 rows of these "
    "novels and 128 of English Wikipedia, all held out",
    machine="one thread of a CPU, float32; it was shared, so no times are given",
    seeds="one",
    rates="3e-5 alone, with a beta2 of 0.999",
)


def gemma() -> Card:
    runs = gemma_runs()
    before = runs["before"]
    exact = runs["exact softmax"]
    sampled = runs["sampled softmax"]
    learned = below(exact["new"], sampled["new"])
    check(-0.01 < learned < 0.01, "both learn French alike")
    kept = below(exact["old"], sampled["old"])
    check(0 < kept < 0.02, "sampled softmax keeps less than 2 % less English")
    high = gemma_runs(1e-4)
    exact_at_a_high_rate = high["exact softmax"]
    sampled_at_a_high_rate = high["sampled softmax"]
    gap = sampled_at_a_high_rate["old"][0] / exact_at_a_high_rate["old"][0] - 1
    check(-0.06 < gap < 0, "at 1e-4 sampled softmax keeps slightly more English")
    higher = gemma_runs(3e-4)
    exact_at_the_highest = higher["exact softmax"]
    sampled_at_the_highest = higher["sampled softmax"]
    check(
        sampled_at_the_highest["old"][0] < 0.7 * exact_at_the_highest["old"][0],
        "at 3e-4 sampled softmax keeps more English",
    )
    check(
        min(exact_at_the_highest["old"][0], sampled_at_the_highest["old"][0]) > 1000, "hardly any"
    )
    learned_at_the_highest = below(exact_at_the_highest["new"], sampled_at_the_highest["new"])
    check(0 < learned_at_the_highest < 0.03, "and learns slightly less French")
    forgetful = (
        exact_at_a_high_rate,
        sampled_at_a_high_rate,
        exact_at_the_highest,
        sampled_at_the_highest,
    )
    for run in forgetful:
        check(run["new"][0] > max(exact["new"][0], sampled["new"][0]), "and both learn less French")
    for run in (exact, sampled):
        forgotten = run["old"][0] / before["old"] - 1
        check(0 < forgotten < 0.02, "English stays where it was")
        check(run["new"][0] < 0.4 * before["new"], "French gains much")
    return Card(
        name="continue_gemma",
        question="Does sampled softmax continue a real model as well as the exact softmax?",
        answer="With sampled softmax Gemma 3 270M learns as much and keeps as much, at a gentle "
        "rate nearly all that it knew",
        figure=f"French {figure(sampled['new'])} against {figure(exact['new'])}, English "
        f"{figure(sampled['old'])} against {figure(exact['old'])}",
        short_figure=f"{percent(-below(sampled['old'], exact['old']), 1)} higher perplexity on old "
        "texts",
        text=f"Before training French had {figure(before['new'])} and English "
        f"{figure(before['old'])}. At 1e-4 both methods learn less French and forget English, and "
        "at 3e-4 they lose it. Rows begin with `<bos>`, [which this model "
        "needs](do_rows_need_a_beginning.md).",
        columns=("rate, method", *GEMMA_COLUMNS[1:]),
        rows=[
            run_row("3e-5, exact softmax", exact),
            run_row("3e-5, sampled softmax", sampled),
            run_row("1e-4, exact softmax", exact_at_a_high_rate),
            run_row("1e-4, sampled softmax", sampled_at_a_high_rate),
            run_row("3e-4, exact softmax", exact_at_the_highest),
            run_row("3e-4, sampled softmax", sampled_at_the_highest),
        ],
        conditions=replace(OF_GEMMA, rates="as in the table, with a beta2 of 0.999"),
        would_change="[Other candidates](continue_gemma_candidates.md), more tokens, other seeds, "
        "and old texts among the new ones (`--replay_file`).",
        records=(GEMMA,),
    )


def gemma_on_abstracts() -> Card:
    record = results(GEMMA_ON_ABSTRACTS)
    before = record["before"]
    exact = one_having(record["runs"], objective=EXACT)
    sampled = one_having(record["runs"], objective="sampled_softmax")
    check(0 < below(exact["new"], sampled["new"]) < 0.01, "sampled learns less than 1 % less")
    check(0 < below(sampled["old"], exact["old"]) < 0.01, "and keeps slightly more")
    for run in (exact, sampled):
        check(run["new"][0] < 0.9 * before["new"], "both learn")
        check(run["old"][0] < before["old"], "and old texts become easier")
        check(run["old_accuracy"][0] < before["old_accuracy"], "though accuracy falls")
    return Card(
        name="continue_gemma_abstracts",
        question="Does sampled softmax continue Gemma 3 270M as well on another domain?",
        answer="On medical abstracts Gemma 3 270M learns less than 1 % less with sampled softmax "
        "and keeps as much",
        figure=f"abstracts {figure(sampled['new'])} against {figure(exact['new'])}, Wikipedia "
        f"{figure(sampled['old'])} against {figure(exact['old'])}",
        text="The new texts have the language of the old ones, whose perplexity falls with both "
        "methods; their accuracy falls a little, too. English may become easier because the "
        "weights had been rounded to 4 bits.",
        columns=(
            "method",
            "abstracts: perplexity",
            "abstracts: accuracy (%)",
            "Wikipedia: perplexity",
            "Wikipedia: accuracy (%)",
        ),
        rows=[
            run_row("before", before),
            run_row("exact softmax", exact),
            run_row("sampled softmax", sampled),
        ],
        conditions=replace(
            OF_GEMMA,
            tokens="51,200 of PubMedQA's abstracts in 100 batches of 4 x 128; evaluated on 97 "
            "rows of these abstracts and 128 of English Wikipedia, all held out",
        ),
        would_change="Other seeds, more tokens, higher rates, at which [French costs "
        "English](continue_gemma.md).",
        records=(GEMMA_ON_ABSTRACTS,),
    )


def gemma_in_equal_time() -> Card:
    runs = gemma_runs()
    sampled = runs["sampled softmax"]
    exact = runs["exact softmax"]
    half = one_having(results(GEMMA_WITH_HALF_OF_THE_STEPS)["runs"], objective=EXACT)
    check(half["steps"] == sampled["steps"] / 2, "the exact softmax makes half of the steps")
    shares = []
    for folder in GEMMA_STEPS:
        methods = results(folder)["objectives"]
        shares.append(methods[SAMPLED]["median_seconds"] / methods[EXACT]["median_seconds"])
    of_random_weights = results(GEMMA_WITH_RANDOM_WEIGHTS)["4"]
    shares.append(1 / of_random_weights["our vanilla"]["ratio"])
    check(0.45 < min(shares) < 0.5 < max(shares) < 0.6, "a sampled step takes about half the time")
    gain = below(sampled["new"], half["new"])
    check(gain > 0.05, "sampled softmax learns more French in the same time")
    lost = sampled["old"][0] / half["old"][0] - 1
    check(0.02 < lost < 0.05, "and keeps slightly less English")
    return Card(
        name="continue_gemma_equal_time",
        question="Which continues Gemma 3 270M better in equal time?",
        answer="In about the same time on a CPU, Gemma 3 270M learns more with sampled softmax "
        "and keeps slightly less",
        figure=f"French {figure(sampled['new'])} in {sampled['steps']} steps against "
        f"{figure(half['new'])} in {half['steps']}, English {figure(sampled['old'])} against "
        f"{figure(half['old'])}",
        short_figure=f"{percent(gain)} lower perplexity on new texts, {percent(lost)} higher on "
        "old ones",
        text=f"In three measurements on two CPUs a sampled step takes {figure(shares[0], 0, 100)}, "
        f"{figure(shares[1], 0, 100)} and {percent(shares[2])} of the time of "
        "[an exact one](cpu_gemma.md). The exact softmax was given half of the steps, by the last "
        f"measurement {figure(sampled['steps'] * shares[2] - half['steps'], 0)} too few.",
        columns=("method, steps", *GEMMA_COLUMNS[1:]),
        rows=[
            run_row(f"sampled softmax, {sampled['steps']}", sampled),
            run_row(f"exact softmax, {half['steps']}", half),
            run_row(f"exact softmax, {exact['steps']}", exact),
        ],
        conditions=replace(
            OF_GEMMA,
            tokens=OF_GEMMA.tokens.replace("in 100 batches", "in 100 batches, or half of them,"),
        ),
        would_change="A GPU, on which [nothing is gained](gpu_sampled_softmax.md) with this model; "
        "more tokens, other seeds, other rates for the shorter run.",
        records=(
            GEMMA_WITH_HALF_OF_THE_STEPS,
            GEMMA,
            *GEMMA_STEPS,
            GEMMA_WITH_RANDOM_WEIGHTS,
        ),
    )


def rows_need_a_beginning() -> Card:
    """The same texts in rows with and without <bos>, before and after training."""
    with_bos = gemma_runs()
    without = gemma_runs_without_bos(3e-5)
    before = with_bos["before"]
    before_without = without["before"]
    exact = with_bos["exact softmax"]
    exact_without = without["exact softmax"]
    check(before_without["old"] > 3 * before["old"], "English is much harder without")
    check(before_without["new"] > 2 * before["new"], "French, too")
    check(exact_without["old"][0] > 1.2 * exact["old"][0], "after training English still is")
    check(exact_without["new"][0] > exact["new"][0], "and French")
    return Card(
        name="do_rows_need_a_beginning",
        question="Must packed rows begin with the token that texts begin with?",
        answer="Yes with Gemma 3 270M, which predicts badly in rows that begin without `<bos>`",
        figure=f"before training English {figure(before['old'])} with `<bos>` and "
        f"{figure(before_without['old'])} without",
        text="Most packed rows begin within a text, and `run_clm.py` leaves them so. The first "
        "steps are then spent on learning such rows. Here packed rows of decoders begin with what "
        "the tokenizer puts before a text.",
        columns=GEMMA_COLUMNS,
        rows=[
            run_row("before training, without", before_without),
            run_row("before training, with", before),
            run_row("exact softmax, 100 steps, without", exact_without),
            run_row("exact softmax, 100 steps, with", exact),
        ],
        conditions=replace(
            OF_GEMMA,
            tokens=f"{OF_GEMMA.tokens}; a row with `<bos>` has one token less of its text",
            code="the rows without are of an earlier version",
        ),
        would_change="Longer rows, of which fewer tokens stand near the beginning; a model that "
        "has seen rows without it. SmolLM2 puts nothing before a text.",
        records=(GEMMA, GEMMA_WITHOUT_BOS),
    )


def gemma_candidates() -> Card:
    runs_at = {rate: gemma_runs_without_bos(float(rate)) for rate in ("3e-5", "1e-4", "3e-4")}
    for rate, runs in runs_at.items():
        for name in runs.keys() - {"before", "uniform draws"}:
            is_worst = runs["uniform draws"]["old"][0] > runs[name]["old"][0]
            check(is_worst, f"at {rate} uniform draws forget more: {name}")
    gentle = runs_at["3e-5"]
    high = runs_at["1e-4"]
    highest = runs_at["3e-4"]
    uniform = gentle["uniform draws"]
    sampled = gentle["sampled softmax"]
    check(uniform["new"][0] > sampled["new"][0], "they learn less French at the best rate")
    check(
        highest["uniform draws"]["new"][0] < highest["sampled softmax"]["new"][0],
        "and more at the highest",
    )
    check(
        high["recent targets"]["new"][0] < high["sampled softmax"]["new"][0],
        "targets of recent steps learn more French",
    )

    def row(label: str, name: str) -> tuple[str, ...]:
        """Return the perplexities of French and English at each rate that was run."""
        cells = []
        for runs in runs_at.values():
            for texts in ("new", "old"):
                cells.append(figure(runs[name][texts]) if name in runs else "not run")
        return (label, *cells)

    return Card(
        name="continue_gemma_candidates",
        question="Which candidates protect what a real model knew?",
        answer="Uniform draws without exact steps forget most at each rate",
        figure=f"at 3e-5 English perplexity {figure(uniform['old'])} against "
        f"{figure(sampled['old'])}, French {figure(uniform['new'])} against "
        f"{figure(sampled['new'])}",
        text="Exact steps and draws from the model's own prediction replaced uniform draws. Pools "
        "topped up from recent steps learned more French, but were given up, since a rare recent "
        "target would weigh much in many steps.",
        columns=(
            "method, perplexities",
            *(f"{rate}: {texts}" for rate in runs_at for texts in ("French", "English")),
        ),
        rows=[
            row("exact softmax", "exact softmax"),
            row("sampled softmax, topped up by frequency", "sampled softmax"),
            row("topped up with targets of recent steps", "recent targets"),
            row("4,096 uniform draws, no exact steps", "uniform draws"),
        ],
        conditions=replace(
            OF_GEMMA,
            rates="as in the table, with a beta2 of 0.999",
            code="an earlier version, whose rows begin [without `<bos>`]"
            "(do_rows_need_a_beginning.md); that of the last two rows (c5084c5) took targets of "
            "recent steps for `--pool_size`, and topped up nothing without it",
        ),
        would_change="More seeds, longer training.",
        records=(GEMMA_WITHOUT_BOS, GEMMA_EXACT_AT_A_HIGH_RATE, GEMMA_WITH_UNIFORM_DRAWS),
    )


CANDIDATE_SETS = (
    ("targets of the step", "the step's targets"),
    ("and 4,096 uniform draws", "+ 4,096 uniform"),
    ("and 65,536 uniform draws", "+ 65,536 uniform"),
    ("and 16,384 targets of recent steps", "+ 16,384 recent targets"),
    ("and 4,096 draws by mean prediction", "+ 4,096 by mean prediction, once"),
    (
        "and 16,384 by frequency, 4,096 by mean prediction",
        "+ 16,384 by frequency + 4,096 by mean prediction, once",
    ),
)


def candidates() -> Card:
    """The gradient of each set of candidates beside the exact one, without training."""
    models = [
        {
            candidate_set["label"]: candidate_set
            for candidate_set in results(f"benchmarks/results/candidates_{name}")["sets"]
        }
        for name in ("roformer", "smollm2", "gemma")
    ]
    *_, gemma = models
    uniform, predicted, default = (CANDIDATE_SETS[index][1] for index in (1, 4, 5))
    for model in models:
        check(
            model[default]["error"] == min(model[label]["error"] for _, label in CANDIDATE_SETS),
            "draws by frequency and by mean prediction together have the smallest error",
        )
        check(
            model[predicted]["error"] < 0.75 * model[uniform]["error"],
            "as many draws by mean prediction reduce the error by a quarter or more",
        )
    shares = [model[predicted]["distinct"] / model[uniform]["distinct"] for model in models]
    share_of_encoder, *shares_of_decoders = shares
    check(share_of_encoder < 0.55, "draws by mean prediction are about half as many tokens")
    check(max(shares_of_decoders) < 0.5, "and fewer with larger vocabularies")
    return Card(
        name="continue_candidates",
        question="Which candidates stand for the whole vocabulary?",
        answer="Draws by the model's mean prediction and by the texts' frequencies come nearest to "
        "the exact gradient",
        figure=f"gradient {percent(gemma[default]['error'])} off for Gemma 3 270M, "
        f"{percent(gemma[uniform]['error'])} with 4,096 uniform draws",
        text="The error is that of the gradient at the outputs of the layers, relative to the "
        "exact softmax's. As many draws by mean prediction have about half as many distinct "
        "tokens as uniform draws, or fewer, and a smaller error.",
        columns=(
            "candidates",
            "RoFormer: distinct",
            "error",
            "SmolLM2: distinct",
            "error",
            "Gemma: distinct",
            "error",
        ),
        rows=[
            (
                name,
                *(
                    cell
                    for model in models
                    for cell in (
                        figure(model[label]["distinct"], 0),
                        percent(model[label]["error"]),
                    )
                ),
            )
            for name, label in CANDIDATE_SETS
        ],
        conditions=Conditions(
            model="RoFormer with two layers of width 128, trained headless on 12.3 M tokens of "
            "English novels, with its free head; SmolLM2 135M Instruct and Gemma 3 270M, their "
            "weights dequantized from 4 bits",
            vocabulary="8,000, 49,152 and 262,144",
            tokens="six batches of 4 x 128, of English Wikipedia for the RoFormer and of French "
            "novels for the decoders, without training; Gemma's rows begin with `<bos>`; the mean "
            "prediction is that of 24 other rows",
            machine="one thread of a CPU, float32",
            seeds="three draws for each batch",
            rates="none",
        ),
        would_change="Training, which changes both the prediction and what a batch needs; in "
        "training every eighth step is exact. The last two rows count a target once in its own "
        "row.",
        records=(
            "benchmarks/results/candidates_roformer",
            "benchmarks/results/candidates_smollm2",
            "benchmarks/results/candidates_gemma",
        ),
    )


def decoders() -> Card:
    toys = (TIED, TIED_SECOND, TIED_THIRD)
    exact = [value for toy in toys for value in toy.run(EXACT)["new"]]
    sampled = [value for toy in toys for value in toy.run(SAMPLED)["new"]]
    times = [time for toy in toys for time in toy.relative_times(SAMPLED)]
    check(not is_clear(sampled, exact), "decoders do not differ clearly")
    check(0.3 < min(times) and max(times) < 0.6, "a run takes a third to three fifths of the time")
    tokens, time = TIED_SECOND.run(SAMPLED)["reached"]
    names = ("first", "second", "third", "fourth")
    return Card(
        name="continue_decoders",
        question="Does a small decoder learn as much with sampled softmax at equal tokens?",
        answer="A small decoder learns about as much with sampled softmax, in half of the time "
        "without exact steps",
        figure=f"perplexity {figure(sampled)} against {figure(exact)}, no clear difference",
        text=f"Over four pretrainings the difference is {difference(sampled, exact)}. In the third "
        f"one, sampled softmax reaches the exact softmax's end after {percent(tokens)} of the "
        f"tokens and {percent(time)} of the time.",
        columns=(
            "pretraining",
            "exact softmax: perplexity",
            "sampled softmax: perplexity",
            "its time, of the exact softmax's",
        ),
        rows=[
            (name, figure(first), figure(second), percent(relative))
            for name, first, second, relative in zip(names, exact, sampled, times, strict=True)
        ],
        conditions=Conditions(
            model=DECODER,
            vocabulary="16,000",
            tokens=FRENCH,
            machine=ONE_THREAD,
            seeds="four pretrainings",
            rates="6e-3, the best of four for three pretrainings and the only one for the fourth; "
            "a beta2 of 0.98",
            code=UNIFORM_DRAWS,
        ),
        would_change="The code of today, a smaller rate, a real model.",
        records=tuple(toy.folder for toy in toys),
    )


def encoders() -> Card:
    toys = (ROFORMER, ROFORMER_SECOND)
    exact = [value for toy in toys for value in toy.run(EXACT)["new"]]
    sampled = [value for toy in toys for value in toy.run(SAMPLED)["new"]]
    headless = [value for toy in toys for value in toy.run(HEADLESS)["new"]]
    times = [time for toy in toys for time in toy.relative_times(SAMPLED)]
    check(is_clear(sampled, exact), "encoders differ clearly")
    check(below(sampled, exact) > 0, "encoders learn more with sampled softmax")
    check(0.025 < below(sampled, exact) < 0.035, "encoders learn 3 % more")
    check(min(times) > 0.7 and max(times) > 1, "an encoder saves little time or none")
    tokens, time = ROFORMER_SECOND.run(SAMPLED)["reached"]
    names = ("first", "second", "third", "fourth")
    return Card(
        name="continue_encoders",
        question="Does a small encoder learn as much with sampled softmax at equal tokens?",
        answer="A small encoder learns about 3 % more with sampled softmax, and saves little time",
        figure=f"perplexity {percent(below(sampled, exact), digits=1)} lower",
        text=f"The difference is {difference(sampled, exact)}. The head is a small part of a small "
        f"encoder's step. In the third and fourth pretraining, {percent(tokens)} of the tokens and "
        f"{percent(time)} of the time are enough.",
        columns=(
            "pretraining",
            "exact softmax: perplexity",
            "sampled softmax: perplexity",
            "headless: perplexity",
            "sampled softmax's time, of the exact one's",
        ),
        rows=[
            (name, figure(first), figure(second), figure(third), percent(relative))
            for name, first, second, third, relative in zip(
                names, exact, sampled, headless, times, strict=True
            )
        ],
        conditions=Conditions(
            model=ENCODER,
            vocabulary="16,000",
            tokens=WIKIPEDIA,
            machine=f"{ONE_THREAD}, hence times above 100 %",
            seeds="four pretrainings, one of which had learned only token frequencies",
            rates="6e-3, the best of four for each objective",
            code=UNIFORM_DRAWS,
        ),
        would_change="The code of today, a larger vocabulary, a real model.",
        records=tuple(toy.folder for toy in toys),
    )


def learning_rates() -> Card:
    rates = (1e-3, 3e-3, 6e-3, 1.2e-2)
    toys = (TIED, ROFORMER)
    for toy in toys:
        for objective in (EXACT, SAMPLED):
            means = {rate: statistics.mean(toy.run(objective, rate)["new"]) for rate in rates}
            check(min(means, key=means.__getitem__) == toy.rate, "both have the same best rate")
    leads = {
        (toy.name, rate): below(toy.run(SAMPLED, rate)["new"], toy.run(EXACT, rate)["new"])
        for toy in toys
        for rate in rates
    }
    for toy in toys:
        check(leads[toy.name, 1e-3] < leads[toy.name, toy.rate], "a low rate shrinks the lead")
    decoder_lead = leads[TIED.name, 1e-3]
    return Card(
        name="continue_learning_rates",
        question="Does the learning rate decide how sampled softmax compares?",
        answer="Sampled and exact softmax have the same best rate, and at low rates they are "
        "nearly level",
        figure=f"{percent(decoder_lead)} ahead at a sixth of the best rate",
        text="At a sixth of the best rate a decoder's lead shrinks to "
        f"{percent(decoder_lead)}, and an encoder has none. Real models are continued at low "
        "rates.",
        columns=(
            "rate",
            "GPT-2, exact: perplexity",
            "GPT-2, sampled: perplexity",
            "RoFormer, exact: perplexity",
            "RoFormer, sampled: perplexity",
        ),
        rows=[
            (
                f"{rate:g}",
                figure(TIED.run(EXACT, rate)["new"]),
                figure(TIED.run(SAMPLED, rate)["new"]),
                figure(ROFORMER.run(EXACT, rate)["new"]),
                figure(ROFORMER.run(SAMPLED, rate)["new"]),
            )
            for rate in rates
        ],
        conditions=Conditions(
            model=BOTH,
            vocabulary="16,000",
            tokens=BOTH_TEXTS,
            machine=ONE_THREAD,
            seeds="two pretrainings each",
            rates="as in the table",
            code=UNIFORM_DRAWS,
        ),
        would_change="The code of today, with which an encoder was run at two of these rates; "
        "longer training; larger models.",
        records=(TIED.folder, ROFORMER.folder, ROFORMER_TODAY.folder),
    )


def encoders_today() -> Card:
    low, high = 1e-3, ROFORMER_TODAY.rate
    leads = {}
    rows = []
    for rate in (low, high):
        exact = ROFORMER_TODAY.run(EXACT, rate)
        sampled = ROFORMER_TODAY.run(SAMPLED, rate)
        leads[rate] = below(sampled["new"], exact["new"])
        for index, pretraining in enumerate(("first", "second")):
            check(
                (sampled["new"][index] < exact["new"][index]) == (rate == high),
                "encoders learn more with sampled softmax at the high rate, less at the low one",
            )
            check(sampled["old"][index] < exact["old"][index], "they keep more at both rates")
            rows.append(
                (
                    f"{pretraining}, {rate:g}",
                    f"{exact['new'][index]:.1f}",
                    f"{sampled['new'][index]:.1f}",
                    f"{exact['old'][index]:.1f}",
                    f"{sampled['old'][index]:.1f}",
                )
            )
    return Card(
        name="continue_encoders_today",
        question="Does an encoder learn as much with today's sampled softmax at a low rate?",
        answer="At a low rate an encoder learns slightly less with sampled softmax and keeps more",
        figure=f"perplexity {percent(-leads[low])} higher at {low:g}, {percent(leads[high])} lower "
        f"at {high:g}",
        text="Sampled softmax has its defaults here: every eighth step is exact, its draws follow "
        "the mean prediction, and its pools hold a sixteenth of the vocabulary.",
        columns=(
            "pretraining and rate",
            *PERPLEXITIES_OF_BOTH,
        ),
        rows=rows,
        conditions=Conditions(
            model=ENCODER,
            vocabulary="16,000",
            tokens=WIKIPEDIA,
            machine=ONE_THREAD,
            seeds="two pretrainings of 6.1 M tokens each, with the exact softmax",
            rates=BEST_RATE_AND_A_SIXTH,
        ),
        would_change="More pretrainings, which differ much; longer training; a real encoder.",
        records=(ROFORMER_TODAY.folder,),
    )


def decoder_today() -> Card:
    low, high = 1e-3, TIED_TODAY.rate
    rows = []
    leads = {}
    for rate in (low, high):
        exact = TIED_TODAY.run(EXACT, rate)
        sampled = TIED_TODAY.run(SAMPLED, rate)
        leads[rate] = {part: below(sampled[part], exact[part]) for part in ("new", "old")}
        rows.append(
            (
                f"{rate:g}",
                figure(exact["new"]),
                figure(sampled["new"]),
                figure(exact["old"], digits=0),
                figure(sampled["old"], digits=0),
            )
        )
        check(abs(leads[rate]["new"]) < 0.005, "new texts are level")
    check(leads[low]["old"] < -0.05, "at the low rate sampled softmax keeps less")
    check(leads[high]["old"] > 0.05, "at the high rate it keeps more")
    return Card(
        name="continue_decoder_today",
        question="Does a small decoder keep as much with today's sampled softmax at a low rate?",
        answer="At a low rate a small decoder learns as much with sampled softmax and keeps less",
        figure=f"perplexity of old texts {percent(-leads[low]['old'])} higher at {low:g}, "
        f"{percent(leads[high]['old'])} lower at {high:g}",
        text="Both methods learn the same French, and both forget most of the English that this "
        "small model knew. [Real models](continue_gemma.md) are continued at rates at which they "
        "keep it.",
        columns=(
            "rate",
            *PERPLEXITIES_OF_BOTH,
        ),
        rows=rows,
        conditions=Conditions(
            model=DECODER,
            vocabulary="16,000",
            tokens=FRENCH,
            machine=ONE_THREAD,
            seeds="one pretraining of 6.1 M tokens",
            rates=BEST_RATE_AND_A_SIXTH,
        ),
        would_change="More pretrainings, rates below 0.001, a real decoder.",
        records=(TIED_TODAY.folder,),
    )


def forgetting() -> Card:
    toys = (TIED, UNTIED, LARGE, ROFORMER, ROFORMER_SECOND)
    for toy in (TIED, UNTIED, LARGE):
        lost_by_others = [statistics.mean(toy.run(name)["old"]) for name in (EXACT, SAMPLED)]
        lost = statistics.mean(toy.run(HEADLESS)["old"])
        check(lost > 1.5 * max(lost_by_others), "decoders forget most without a head")
    forgotten = [below(toy.run(EXACT)["old"], toy.run(HEADLESS)["old"]) for toy in toys[3:]]
    check(forgotten[0] > 0 > forgotten[1], "encoders forget more in one pair and less in another")
    headless = TIED.run(HEADLESS)["old"]
    exact = TIED.run(EXACT)["old"]
    return Card(
        name="continue_headless",
        question="What does a model forget that is continued without a head?",
        answer="Decoders that are continued without a head forget most",
        figure=f"perplexity {figure(headless, digits=0)} against {figure(exact, digits=0)} "
        "on the old texts",
        text="A free head replaces the checkpoint's head, and small decoders then lose the most "
        "English. Encoders differ less: one pair forgets more than with the exact softmax, the "
        "other pair less.",
        columns=(
            "model",
            "exact softmax: perplexity of old texts",
            "sampled softmax: perplexity of old texts",
            "headless: perplexity of old texts",
        ),
        rows=[
            (
                toy.name,
                figure(toy.run(EXACT)["old"], digits=0),
                figure(toy.run(SAMPLED)["old"], digits=0),
                figure(toy.run(HEADLESS)["old"], digits=0),
            )
            for toy in toys
        ],
        conditions=Conditions(
            model=BOTH,
            vocabulary="16,000 unless the table says otherwise",
            tokens="0.8 M, of French novels (GPT-2) or English Wikipedia (RoFormer); 0.15 M with "
            "128,000 tokens",
            machine=ONE_THREAD,
            seeds="two pretrainings of the tied GPT-2 and of each RoFormer, one of the others",
            rates="the best of three or four for each objective",
            code=UNIFORM_DRAWS,
        ),
        would_change="Lower rates, old texts among the new ones (`--replay_file`). "
        "[One real model](continue_smollm2_headless.md) also forgets.",
        records=tuple(toy.folder for toy in toys),
    )


def heads_and_vocabularies() -> Card:
    toys = (TIED, UNTIED, LARGE)
    for toy in toys:
        check(below(toy.run(SAMPLED)["new"], toy.run(EXACT)["new"]) > 0, "sampled softmax leads")
    for toy in (TIED, UNTIED):
        check(below(toy.run(HEADLESS)["new"], toy.run(SAMPLED)["new"]) > 0, "headless leads")
    check(below(LARGE.run(HEADLESS)["new"], LARGE.run(EXACT)["new"]) < 0, "headless is behind")
    check(0.08 < LARGE.relative_time(SAMPLED) < 0.12, "a tenth of the time suffices")
    return Card(
        name="continue_vocabularies",
        question="Do an untied head or a large vocabulary change what is gained?",
        answer="With a vocabulary of 128,000 a small decoder learned as much in a tenth of the "
        "time, before there were exact steps",
        figure=f"{percent(LARGE.relative_time(SAMPLED))} of the exact softmax's time",
        text="At equal tokens sampled softmax is a little ahead in each row. Continued without a "
        "head, a decoder learns most with 16,000 tokens and least with 128,000.",
        columns=(
            "model",
            "exact: perplexity",
            "sampled: perplexity",
            "sampled: time, of the exact one's",
            "headless: perplexity",
            "headless: time, of the exact one's",
        ),
        rows=[
            (
                toy.name,
                figure(toy.run(EXACT)["new"]),
                figure(toy.run(SAMPLED)["new"]),
                percent(toy.relative_time(SAMPLED)),
                figure(toy.run(HEADLESS)["new"]),
                percent(toy.relative_time(HEADLESS)),
            )
            for toy in toys
        ],
        conditions=Conditions(
            model=DECODER,
            vocabulary="16,000 unless the table says otherwise",
            tokens=f"{FRENCH}; with 128,000 tokens 0.15 M in batches of 4 x 128",
            machine=ONE_THREAD,
            seeds="two pretrainings of the tied model, one of each other",
            rates="the best of three or four for each objective, with worse ones on both sides",
            code=UNIFORM_DRAWS,
        ),
        would_change="The code of today: with every eighth step exact, a run takes more than an "
        "eighth of the exact softmax's time. A wider model, whose head is a smaller part of a "
        "step.",
        records=tuple(toy.folder for toy in toys),
    )


def equal_time() -> Card:
    toys = (TIED, UNTIED, LARGE, ROFORMER)
    for toy in toys:
        exact, sampled, headless = (
            statistics.mean(run["new"])
            for run in (
                toy.run(EXACT),
                toy.run_of_equal_time(SAMPLED),
                toy.run_of_equal_time(HEADLESS),
            )
        )
        check(headless < sampled < 0.9 * exact, "cheaper steps learn more in equal time")
    for toy in (TIED, UNTIED, LARGE):
        check(
            below(toy.run(EXACT)["old"], toy.run_of_equal_time(SAMPLED)["old"]) > 0,
            "decoders forget more in equal time",
        )
    ratios = [
        statistics.mean(toy.run_of_equal_time(objective)["seconds"])
        / statistics.mean(toy.run(EXACT)["seconds"])
        for toy in toys
        for objective in (SAMPLED, HEADLESS)
    ]
    return Card(
        name="continue_equal_time",
        question="What is learned in equal training time?",
        answer="In equal time cheaper steps learn far more of the new texts, "
        "and decoders forget more of the old ones",
        figure=f"perplexity {figure(TIED.run_of_equal_time(SAMPLED)['new'])} against "
        f"{figure(TIED.run(EXACT)['new'])} on the new texts",
        text="The saved time buys further tokens, and with them a decoder moves further from what "
        "it knew. On this shared machine, equal time was "
        f"{min(ratios):.2f} to {max(ratios):.2f} of the exact softmax's.",
        columns=(
            "model",
            "new texts, exact: perplexity",
            "new texts, sampled: perplexity",
            "new texts, headless: perplexity",
            "old texts, exact: perplexity",
            "old texts, sampled: perplexity",
            "old texts, headless: perplexity",
        ),
        rows=[
            (
                toy.name,
                figure(toy.run(EXACT)["new"]),
                figure(toy.run_of_equal_time(SAMPLED)["new"]),
                figure(toy.run_of_equal_time(HEADLESS)["new"]),
                figure(toy.run(EXACT)["old"], digits=0),
                figure(toy.run_of_equal_time(SAMPLED)["old"], digits=0),
                figure(toy.run_of_equal_time(HEADLESS)["old"], digits=0),
            )
            for toy in toys
        ],
        conditions=Conditions(
            model=BOTH,
            vocabulary="16,000 unless the table says otherwise",
            tokens="0.8 M for the exact softmax (0.15 M with 128,000 tokens), more for the others",
            machine=ONE_THREAD,
            seeds="two pretrainings of the tied GPT-2 and of RoFormer, one of each other",
            rates="the best at equal tokens",
            code=UNIFORM_DRAWS,
        ),
        would_change="Few new texts, so that they repeat; the code of today; real models.",
        records=tuple(toy.folder for toy in toys),
    )


def without_draws() -> Card:
    toys = (TIED_SECOND, ROFORMER_SECOND)
    names = {TIED_SECOND.name: "GPT-2", ROFORMER_SECOND.name: "RoFormer"}
    rows = []
    for toy in toys:
        for rate in (1e-3, 6e-3):
            exact = toy.run(EXACT, rate)
            sampled = toy.run(SAMPLED, rate)
            without = toy.run(WITHOUT_DRAWS, rate)
            check(below(sampled["new"], without["new"]) > 0, "fewer new texts are learned")
            check(below(without["old"], exact["old"]) > 0, "more old texts are kept")
            rows.append(
                (
                    f"{names[toy.name]}, {rate:g}",
                    figure(exact["new"]),
                    figure(sampled["new"]),
                    figure(without["new"]),
                    figure(exact["old"], digits=0),
                    figure(without["old"], digits=0),
                )
            )
    behind = [
        -below(toy.run(WITHOUT_DRAWS, 1e-3)["new"], toy.run(EXACT, 1e-3)["new"]) for toy in toys
    ]
    check(min(behind) > 0.1, "a low rate loses much without draws")
    return Card(
        name="continue_without_draws",
        question="Does sampled softmax need drawn tokens?",
        answer="Without drawn tokens less of the new texts is learned, and more of the old is kept",
        figure=f"{percent(behind[0])} behind the exact softmax at a low rate",
        text="With the targets alone as candidates, models learn less, above all at a low rate. "
        "They also change less. Tokens that the new texts lack then gain probability, which "
        "`eval_unseen_token_mass` shows.",
        columns=(
            "model, rate",
            "new texts, exact: perplexity",
            "new texts, sampled: perplexity",
            "new texts, no draws: perplexity",
            "old texts, exact: perplexity",
            "old texts, no draws: perplexity",
        ),
        rows=rows,
        conditions=Conditions(
            model=BOTH,
            vocabulary="16,000",
            tokens=BOTH_TEXTS,
            machine=ONE_THREAD,
            seeds="one GPT-2, two RoFormers, one of which is ahead without draws at 6e-3",
            rates="as in the table, two of four",
            code=UNIFORM_DRAWS,
        ),
        would_change="Exact steps, which now also push down tokens that are never candidates.",
        records=tuple(toy.folder for toy in toys),
    )


def adamw() -> Card:
    settings = {
        "0.98, 1e-8": "studies/results/adaptation_decoder_fourth",
        "0.999, 1e-8": "studies/results/adaptation_decoder_beta2",
        "0.999, 1e-5": "studies/results/adaptation_decoder_epsilon",
    }
    runs = {
        name: {
            objective: one_having(results(folder), objective=objective)
            for objective in (EXACT, SAMPLED)
        }
        for name, folder in settings.items()
    }
    leads = {name: below(run[SAMPLED]["new"], run[EXACT]["new"]) for name, run in runs.items()}
    check(abs(leads["0.98, 1e-8"]) < 0.005, "they are level with a beta2 of 0.98")
    check(leads["0.999, 1e-8"] > 0.02, "sampled softmax leads with a beta2 of 0.999")
    for objective in (EXACT, SAMPLED):
        harmed = runs["0.999, 1e-5"][objective]["new"][0]
        check(harmed > runs["0.999, 1e-8"][objective]["new"][0] + 2, "a large epsilon harms")
    return Card(
        name="continue_adamw",
        question="Do AdamW's settings decide how sampled softmax compares?",
        answer="AdamW's beta2 and epsilon move the lead of sampled softmax by a few percent",
        figure=f"{percent(leads['0.999, 1e-8'])} ahead with AdamW's defaults, level with a beta2 "
        "of 0.98",
        text="With a beta2 of 0.98 both are level. An epsilon of 1e-5, which helps vanilla where "
        "Muon updates the layers, harms both objectives here, where AdamW does.",
        columns=(
            "beta2, epsilon",
            "exact softmax: perplexity",
            "sampled softmax: perplexity",
            "sampled softmax: time, of the exact one's",
        ),
        rows=[
            (
                name,
                figure(run[EXACT]["new"]),
                figure(run[SAMPLED]["new"]),
                percent(run[SAMPLED]["seconds"][0] / run[EXACT]["seconds"][0]),
            )
            for name, run in runs.items()
        ],
        conditions=Conditions(
            model=DECODER,
            vocabulary="16,000",
            tokens=FRENCH,
            machine=f"{ONE_THREAD}, whose times differ much",
            seeds="one pretraining",
            rates="6e-3 alone",
            code=UNIFORM_DRAWS,
        ),
        would_change="Further pretrainings: the lead differs as much between them.",
        records=tuple(settings.values()),
    )


def encoder_draws() -> Card:
    folder = "studies/results/adaptation_encoder_large_vocabulary"
    record = results(folder)
    exact = one_having(record, objective=EXACT, rate=2e-3)
    many = one_having(record, objective="sampled_softmax with 16384 draws", rate=4e-3)
    few = one_having(record, objective=SAMPLED, rate=4e-3)
    for best in (exact, many, few):
        tried = [run["new"][0] for run in record if run["objective"] == best["objective"]]
        check(best["new"][0] == min(tried), "each is at its best rate")
    check(many["new"][0] < exact["new"][0] < few["new"][0], "few draws are behind")
    check(exact["old"][0] < min(many["old"][0], few["old"][0]), "the exact softmax keeps most")
    tokens, time = many["reached"]
    return Card(
        name="continue_encoder_draws",
        question="How many tokens should an encoder with a large vocabulary draw?",
        answer="Encoders with a large vocabulary need more drawn tokens than decoders",
        figure=f"perplexity {figure(many['new'], digits=0)} with 16,384, "
        f"{figure(few['new'], digits=0)} with 4,096",
        text="An encoder predicts few tokens in a step. With 16,384 draws it matches the exact "
        f"softmax after {percent(time)} of its time; with 4,096 it stays behind. "
        "Masked models therefore draw an eighth of the vocabulary by default.",
        columns=("method", "new texts: perplexity", "old texts: perplexity", "best rate"),
        rows=[
            (
                name,
                figure(run["new"], digits=0),
                figure(run["old"], digits=0),
                f"{run['rate']:g}",
            )
            for name, run in (
                ("exact softmax", exact),
                ("sampled softmax, 16,384 draws", many),
                ("sampled softmax, 4,096 draws", few),
            )
        ],
        conditions=Conditions(
            model=ENCODER,
            vocabulary="128,000",
            tokens="0.4 M of English Wikipedia in batches of 16 x 128, 300 of 2,048 predicted",
            machine=ONE_THREAD,
            seeds="one pretraining",
            rates="the best of four for each method",
            code=UNIFORM_DRAWS,
        ),
        would_change="The code of today, larger batches, further pretrainings.",
        records=(folder,),
    )


def fine_tuned() -> Card:
    scores = {
        name: ROFORMER_SECOND.run(objective)["scores"]
        for name, objective in (
            ("exact softmax", EXACT),
            ("sampled softmax", SAMPLED),
            ("sampled softmax without draws", WITHOUT_DRAWS),
            ("headless", HEADLESS),
        )
    }
    exact = scores["exact softmax"]["average"]
    for name, tasks in scores.items():
        if name != "exact softmax":
            check(not is_clear(tasks["average"], exact), "averages do not differ clearly")
    sampled = scores["sampled softmax"]["average"]
    return Card(
        name="continue_fine_tuned",
        question="Do continued encoders differ once they are fine-tuned?",
        answer="After fine-tuning, continued encoders do not differ clearly",
        figure=f"average {figure(sampled)} against {figure(exact)}",
        text="Two pretrainings are too few to tell. On the average of both tasks every interval "
        "against the exact softmax contains zero; for sampled softmax the difference is "
        f"{difference(sampled, exact)}.",
        columns=("continued with", "MRPC", "STS-B", "average"),
        rows=[
            (name, figure(tasks["mrpc"]), figure(tasks["stsb"]), figure(tasks["average"]))
            for name, tasks in scores.items()
        ],
        conditions=Conditions(
            model=ENCODER,
            vocabulary="16,000",
            tokens=WIKIPEDIA,
            machine=ONE_THREAD,
            seeds="two pretrainings, each fine-tuned once",
            rates="6e-3 for continuing, the best of four; one for fine-tuning",
            code=UNIFORM_DRAWS,
        ),
        would_change="More pretrainings, larger models, more tasks.",
        records=(ROFORMER_SECOND.folder,),
    )


CARDS = (
    gemma,
    gemma_on_abstracts,
    gemma_in_equal_time,
    rows_need_a_beginning,
    gemma_candidates,
    candidates,
    decoders,
    encoders,
    learning_rates,
    encoders_today,
    decoder_today,
    forgetting,
    heads_and_vocabularies,
    equal_time,
    without_draws,
    adamw,
    encoder_draws,
    fine_tuned,
)
