"""Findings about the free head, which turns a headless model into a language model."""

import math

from findings.cards import Card, Conditions
from findings.recipes import (
    BATCHES,
    GPT2,
    SMALL_NEOX,
    TIED_VANILLA,
    UNTIED_VANILLA,
)
from findings.records import (
    check,
    difference,
    figure,
    having,
    is_clear,
    millions,
    one_having,
    paired_difference,
    results,
)

TITLE = "The free head"

VANILLA_NEOX = f"{UNTIED_VANILLA} + GPT-NeoX"
# The three pretrainings on lower-cased text, of 7,200 steps.
LONG_RUNS = ("heads_lambada_longer", "heads_lambada_longer_second", "heads_lambada_third")
LAST_STEP = 7200
# The first of them with larger pools; without a vanilla one of its own.
WITH_POOLS = "heads_lambada_pools"


def what_is_the_free_head_worth() -> Card:
    record = results("studies/results/heads")

    def perplexity(series: str, step: int) -> list[float]:
        models = having(record["models"], series=series, step=step)
        return [model["eval_perplexity"] for model in models]

    first = 50
    last = 200
    worth = record["steps_worth"]
    check(worth[str(last)] == [None, None], "at the end no step of fine-tuning reaches it")
    free = perplexity("free head", last)
    tuned = perplexity("fine-tuned from E^T", last)
    check(is_clear(free, tuned), "the free head is clearly ahead of the fine-tuned one")
    check(max(free) < min(perplexity(TIED_VANILLA, last)), "it is ahead of tied vanilla")
    check(min(free) > max(perplexity(UNTIED_VANILLA, last)), "untied vanilla ends ahead")
    tokens = [
        millions(having(record["models"], series="free head", step=step)[0]["tokens"])
        for step in (first, last)
    ]
    return Card(
        name="what_is_the_free_head_worth",
        question="What is the free head worth?",
        answer="After 0.8 million tokens, more than the paper's fine-tuning at one rate, and it "
        "needs no step",
        figure=f"perplexity {figure(free)}, fine-tuned {figure(tuned)}",
        text=f"After {tokens[0]} tokens it is worth {figure(worth[str(first)], 0)} steps of "
        "fine-tuning, later more than all 320. Untied vanilla, with one matrix more, ends ahead "
        "of it, though not clearly.",
        columns=("head", f"perplexity after {tokens[0]}", f"perplexity after {tokens[1]}"),
        rows=[
            (label, figure(perplexity(series, first)), figure(perplexity(series, last)))
            for label, series in (
                ("the embedding alone", "E^T alone"),
                ("free head: the embedding and log q", "free head"),
                ("the embedding, fine-tuned as in the paper", "fine-tuned from E^T"),
                ("the free head, fine-tuned", "fine-tuned from the free head"),
                ("vanilla, tied", TIED_VANILLA),
                ("vanilla, untied", UNTIED_VANILLA),
            )
        ],
        picture="studies/results/heads/results.png",
        conditions=Conditions(
            model=f"{GPT2}, headless tied",
            vocabulary="8,000",
            tokens=f"as in the table, in {BATCHES}; fine-tuning adds 0.7 M, trunk included",
            machine="CPU",
            seeds="two",
            rates="pretrained at 8e-3, fine-tuned at 1e-4, one rate each",
        ),
        would_change="A higher rate of fine-tuning, which "
        "[recovers most of the loss](does_fine_tuning_recover_a_language_model.md) sooner.",
        records=("studies/results/heads",),
    )


def does_fine_tuning_recover_a_language_model() -> Card:
    models = [results(f"studies/results/{name}")["models"] for name in LONG_RUNS]

    def perplexity(series: str) -> list[float]:
        return [
            one_having(of_run, series=series, step=LAST_STEP)["eval_perplexity"]
            for of_run in models
        ]

    free = perplexity("free head")
    vanilla = perplexity(VANILLA_NEOX)
    tuned = perplexity("fine-tuned from E^T")
    check(is_clear(tuned, free), "the fine-tuned head is clearly behind the free head")
    check(not is_clear(free, vanilla), "the free head and vanilla are level")
    other_rates = [
        one_having(
            results(f"studies/results/heads_lambada_tuning_{rate}")["models"],
            series="fine-tuned from E^T",
            step=LAST_STEP,
        )["eval_perplexity"]
        for rate in ("3e-4", "1e-4")
    ]
    return Card(
        name="does_fine_tuning_recover_a_language_model",
        question="Does fine-tuning the head on 2 % of the data recover a language model?",
        answer="Nearly, but the free head is better and needs no step",
        figure=f"perplexity {figure(tuned)} fine-tuned, {figure(free)} with the free head",
        text="Without log q the embedding is a poor head. Fine-tuning recovers most of it, and the "
        "free head all of it, level with vanilla.",
        columns=("head", "perplexity", "minus vanilla"),
        rows=[
            (label, figure(values), "" if values is vanilla else difference(values, vanilla))
            for label, values in (
                ("the embedding alone", perplexity("E^T alone")),
                ("the embedding, fine-tuned on 2 % of the tokens", tuned),
                ("free head", free),
                ("vanilla", vanilla),
            )
        ],
        conditions=Conditions(
            model=SMALL_NEOX,
            vocabulary="8,000",
            tokens=f"29.5 M of lower-cased text, in {BATCHES}, read 1.6 times",
            machine="CPU",
            seeds="three",
            rates="pretrained at 4e-3 alone; fine-tuned at 1e-3, the third at 3e-4; the second "
            f"also had {figure(other_rates[0])} at 3e-4 and {figure(other_rates[1])} at 1e-4",
        ),
        would_change="More fine-tuning; the paper's models are larger and read billions of tokens.",
        records=tuple(
            f"studies/results/{name}"
            for name in (
                *LONG_RUNS,
                "heads_lambada_tuning_3e-4",
                "heads_lambada_tuning_1e-4",
            )
        ),
    )


def who_leads_on_lambada() -> Card:
    named = (
        ("9.8 M", "heads_lambada", 2400),
        ("29.5 M, first", LONG_RUNS[0], LAST_STEP),
        ("29.5 M, second", LONG_RUNS[1], LAST_STEP),
        ("29.5 M, third", LONG_RUNS[2], LAST_STEP),
    )
    rows = []
    long_runs = []
    for label, folder, step in named:
        record = results(f"studies/results/{folder}")
        free = one_having(record["models"], series="free head", step=step)
        vanilla = one_having(record["models"], series=VANILLA_NEOX, step=step)
        tuned = one_having(record["models"], series="fine-tuned from E^T", step=step)
        # The comparisons over documents: the free head's comes first, then the fine-tuned head's.
        of_free, of_tuned = (tests[0] for _, tests in record["tests"])
        check(of_free["metric"].startswith("perplexity"), "the first test is of the perplexity")
        check(
            tuned["lambada_perplexity"] > vanilla["lambada_perplexity"]
            and of_tuned["difference"][2] < 0,
            f"the fine-tuned head is clearly behind vanilla: {label}",
        )
        # A positive difference in the record means that the free head is better.
        middle, low, high = (-value for value in of_free["difference"])
        interval = f"{middle:.2f} (95 %: {min(low, high):.2f} to {max(low, high):.2f})"
        if min(low, high) <= 0 <= max(low, high):
            interval += ", no clear difference"
        rows.append(
            (
                label,
                figure(free["lambada_perplexity"], 2, 1e-6),
                figure(vanilla["lambada_perplexity"], 2, 1e-6),
                interval,
                figure(free["lambada_accuracy"], 2, 100),
                figure(vanilla["lambada_accuracy"], 2, 100),
            )
        )
        if step == LAST_STEP:
            long_runs.append((free, vanilla))
    logs = [
        [math.log(models[which]["lambada_perplexity"]) for models in long_runs] for which in (0, 1)
    ]
    accuracies = [[models[which]["lambada_accuracy"] for models in long_runs] for which in (0, 1)]
    check(not is_clear(*logs), "over pretrainings the perplexities show no clear difference")
    check(is_clear(*accuracies), "over pretrainings the accuracies differ clearly")
    check(paired_difference(*accuracies)[0] < 0, "vanilla's accuracy is higher")
    rows.append(
        (
            "29.5 M, over the three",
            "",
            "",
            difference(*logs, 2),
            figure(accuracies[0], 2, 100),
            figure(accuracies[1], 2, 100),
        )
    )
    pooled = one_having(
        results(f"studies/results/{WITH_POOLS}")["models"], series="free head", step=LAST_STEP
    )
    free, vanilla = long_runs[0]
    check(
        free["lambada_accuracy"] < pooled["lambada_accuracy"] < vanilla["lambada_accuracy"],
        "pools raise the accuracy, not to vanilla's",
    )
    ratio = pooled["lambada_perplexity"] / vanilla["lambada_perplexity"]
    check(abs(ratio - 1) < 0.02, "with pools the perplexity is level with vanilla's")
    rows.append(
        (
            "29.5 M, first, `--pool_size 32512`",
            figure(pooled["lambada_perplexity"], 2, 1e-6),
            figure(vanilla["lambada_perplexity"], 2, 1e-6),
            f"{math.log(ratio):.2f}, not tested",
            figure(pooled["lambada_accuracy"], 2, 100),
            figure(vanilla["lambada_accuracy"], 2, 100),
        )
    )
    return Card(
        name="who_leads_on_lambada",
        question="Who leads on LAMBADA?",
        answer="Vanilla has more words right, and the perplexities show no clear difference",
        figure=f"accuracy {rows[4][4]} % against vanilla's {rows[4][5]} %",
        text="The free head leads after 9.8 M tokens and trails after 29.5 M, where larger pools "
        "remove most of the deficit in one pretraining. The paper's fine-tuned head is behind "
        "vanilla. Models this small hardly solve the task.",
        columns=(
            "tokens, pretraining",
            "free head: perplexity, millions",
            "vanilla: perplexity, millions",
            "free head minus vanilla, log-perplexity",
            "free head: accuracy, %",
            "vanilla: accuracy, %",
        ),
        rows=rows,
        conditions=Conditions(
            model=SMALL_NEOX,
            vocabulary="8,000",
            tokens=f"as in the table, of [lower-cased text](../../studies/lambada_corpus.md), in "
            f"{BATCHES}; LAMBADA's development set",
            machine="CPU",
            seeds="one, three, and one with larger pools",
            rates="4e-3 alone; the intervals of single pretrainings are over documents",
        ),
        would_change="Larger models and more tokens; the paper reports a headless lead for 70 M "
        "parameters.",
        records=tuple(
            f"studies/results/{name}" for name in ("heads_lambada", *LONG_RUNS, WITH_POOLS)
        ),
    )


def does_the_free_head_need_tuning() -> Card:
    record = results("studies/results/prior")
    scales = record["perplexity_by_scale"]
    weights = record["taus"]
    best = min(value for of_scale in scales.values() for value in of_scale)
    at_one = scales["1.0"][weights.index(1.0)]
    check(at_one == best, "a scale and a weight of one are the best pair")
    trained = [
        result["perplexity"] for steps, result in record["trained"].items() if int(steps) > 0
    ]
    check(min(trained) > at_one, "training both is worse")
    return Card(
        name="does_the_free_head_need_tuning",
        question="Does the free head need tuning?",
        answer="No, the scores plus log q, both unscaled, are best",
        figure=f"perplexity {figure(at_one)}, the lowest of fifteen pairs",
        text="The table varies the weight of log q and the scale of the scores. Training scale, "
        "weight and a bias on training rows makes the held-out perplexity worse.",
        columns=("weight of log q", *(f"scale {scale}" for scale in scales)),
        rows=[
            (str(weight), *(figure(of_scale[row]) for of_scale in scales.values()))
            for row, weight in enumerate(weights)
        ],
        picture="studies/results/prior/results.png",
        conditions=Conditions(
            model=f"{GPT2}, headless tied",
            vocabulary="8,000",
            tokens=f"0.8 M, in {BATCHES}",
            machine="CPU",
            seeds="one",
            rates="8e-3",
        ),
        would_change="Texts whose token frequencies differ from those of the training texts, for "
        "which `--counts_from` recounts; counts from [few targets](archive.md#token-frequencies-"
        "from-few-targets).",
        records=("studies/results/prior",),
    )


CARDS = (
    what_is_the_free_head_worth,
    does_fine_tuning_recover_a_language_model,
    who_leads_on_lambada,
    does_the_free_head_need_tuning,
)
