"""Findings about decoders that are pretrained from random weights."""

import math

from findings.cards import Card, Conditions
from findings.recipes import (
    BATCHES,
    GPT2,
    HEADLESS,
    LARGE_POOLS,
    NEOX_WITH_GROWING_POOLS,
    SMALL_BATCHES,
    SMALL_DECODER,
    SMALL_NEOX,
    TIED,
    TIED_VANILLA,
    UNTIED,
    UNTIED_VANILLA,
    VANILLA,
    VANILLA_DEFAULT,
)
from findings.records import (
    BATCH_ALONE,
    LARGER_POOLS,
    below,
    by_candidates,
    check,
    difference,
    figure,
    in_words,
    is_clear,
    is_searched,
    millions,
    one_having,
    paired_difference,
    percent,
    results,
    share_to_match,
)
from findings.statements import neox_with_pools

TITLE = "Pretraining a decoder from random weights"

# Columns of the cards that follow a lead over lengths of training.
BY_TOKENS = (
    "tokens",
    "seeds",
    "headless: perplexity",
    "vanilla: perplexity",
    "headless minus vanilla",
)


def does_the_lead_last() -> Card:
    early = results("studies/results/recipe_32k_epsilon")
    middle = results("studies/results/recipe_32k_epsilon_6400")
    late = results("studies/results/recipe_32k_24400")
    runs = [
        (early[f"{HEADLESS} + epsilon 1e-5"], early[VANILLA]),
        (middle[HEADLESS], middle[VANILLA]),
        (late[HEADLESS], late[VANILLA]),
    ]
    check(max(runs[0][0]["perplexity"]) < min(runs[0][1]["perplexity"]), "headless leads first")
    check(min(runs[1][0]["perplexity"]) > max(runs[1][1]["perplexity"]), "vanilla leads at 6.6 M")
    check(min(runs[2][0]["perplexity"]) > max(runs[2][1]["perplexity"]), "vanilla leads at 25 M")
    check(is_clear(runs[2][0]["perplexity"], runs[2][1]["perplexity"]), "the last lead is clear")
    for headless, vanilla in runs:
        check(is_searched(headless) and is_searched(vanilla), "all rates are searched")
    headless, vanilla = runs[2]
    return Card(
        name="does_the_lead_last",
        question="Does headless training stay ahead of the exact softmax at equal tokens?",
        answer="No, headless training leads early, shows no clear difference after seven million "
        "tokens, and trails after 25",
        figure=f"perplexity {figure(headless['perplexity'])} against vanilla's "
        f"{figure(vanilla['perplexity'])} after 25 M tokens",
        short_figure=f"{percent(-below(headless['perplexity'], vanilla['perplexity']))} higher "
        "perplexity in the end",
        text="With the targets of one small batch as candidates, headless training leads early and "
        "trails late, since a batch of about a thousand targets cannot tell finer scores apart. "
        "With larger pools no clear difference remains.",
        columns=BY_TOKENS,
        rows=[
            (
                millions(first["tokens"]),
                str(len(first["perplexity"])),
                figure(first["perplexity"]),
                figure(second["perplexity"]),
                difference(first["perplexity"], second["perplexity"]),
            )
            for first, second in runs
        ],
        picture="studies/results/recipe_32k_24400/results.png",
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="32,000",
            tokens=f"as in the table, in {SMALL_BATCHES}",
            machine="CPU, but an H100 for four of the six longest runs",
            seeds="as in the table",
            rates="searched for each method and length",
        ),
        would_change="Larger pools of candidates (`--pool_size`), wider models, other texts. Each "
        "method has the better epsilon of AdamW: 1e-5, and for headless 1e-8 in the two longer "
        "trainings.",
        records=(
            "studies/results/recipe_32k_epsilon",
            "studies/results/recipe_32k_epsilon_6400",
            "studies/results/recipe_32k_24400",
        ),
    )


def do_larger_pools_close_the_gap() -> Card:
    of_batches = results("studies/results/recipe_32k_24400")
    with_pools = results("studies/results/recipe_32k_24400_pools")[LARGE_POOLS]
    times = results("benchmarks/results/pools_one_thread")["32000"]
    seeds = with_pools["seeds"]
    perplexities, accuracies = (
        by_candidates(key, with_pools, of_batches[HEADLESS], of_batches[VANILLA])
        for key in ("perplexity", "accuracy")
    )
    vanilla = perplexities["vanilla"]
    deficit = sum(perplexities[BATCH_ALONE]) - sum(vanilla)
    left = sum(perplexities[LARGER_POOLS]) - sum(vanilla)
    check(left < deficit / 4, "pools remove three quarters of the deficit or more")
    check(not is_clear(perplexities[LARGER_POOLS], vanilla), "pools and vanilla are level")
    accuracy = paired_difference(accuracies[LARGER_POOLS], accuracies["vanilla"])
    check(accuracy[0] > -0.0015, "accuracy is within 0.15 points of vanilla's")
    rows = [
        (
            label,
            figure(perplexities[name]),
            "" if name == "vanilla" else difference(perplexities[name], vanilla),
            percent(accuracies[name], 2),
            percent(times[timed]["share of the exact step"]),
        )
        for label, name, timed in (
            ("headless, the batch alone", BATCH_ALONE, "the batch"),
            ("headless, pools of 32,512", LARGER_POOLS, "32,512 targets"),
            ("vanilla", "vanilla", "exact softmax"),
        )
    ]
    return Card(
        name="do_larger_pools_close_the_gap",
        question="Do larger pools close the gap at equal tokens?",
        answer="Yes, with pools of 32,512 targets headless is level with vanilla",
        figure=f"perplexity {figure(perplexities[LARGER_POOLS])} against vanilla's "
        f"{figure(vanilla)} after 25 M tokens ({pretrainings(seeds)})",
        short_figure="no clear difference in perplexity",
        text="`--pool_size` adds the targets of recent steps to those of the batch. The step takes "
        "longer than with the batch alone, and still far less than the exact softmax.",
        columns=(
            "candidates",
            "perplexity",
            "minus vanilla",
            "accuracy",
            "time of a step, share of vanilla's",
        ),
        rows=rows,
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="32,000",
            tokens=f"{millions(with_pools['tokens'])}, in {SMALL_BATCHES}; the pools also hold the "
            "targets of the last 31 steps",
            machine="CPU, and an H100 for some runs without pools; the times are of one CPU thread",
            seeds=in_words(len(seeds)),
            rates="searched without pools; with pools 2e-3 alone, the best rate without them",
        ),
        would_change="Another size of the pools, another rate, more tokens, wider models.",
        records=(
            "studies/results/recipe_32k_24400_pools",
            "studies/results/recipe_32k_24400",
            "benchmarks/results/pools_one_thread",
        ),
    )


def pretrainings(seeds: list[int]) -> str:
    number = in_words(len(seeds))
    return f"{number} pretraining" if len(seeds) == 1 else f"{number} pretrainings"


def do_growing_pools_help_decoders() -> Card:
    fixed = neox_with_pools()
    growing = results("studies/results/recipe_neox_growing_pools")[NEOX_WITH_GROWING_POOLS]
    check(fixed["seeds"] == growing["seeds"], "the seeds are pairs")
    for key in ("perplexity", "accuracy"):
        check(not is_clear(growing[key], fixed[key]), f"no clear difference of {key}")
    return Card(
        name="do_growing_pools_help_decoders",
        question="Should the pools of a decoder grow during training?",
        answer="There is no clear difference between growing pools and those of one size",
        figure=f"perplexity {figure(growing['perplexity'])} with growing pools, "
        f"{figure(fixed['perplexity'])} with those of one size",
        text="Growing pools begin with the batch alone and end with the size of the others, so "
        "that most steps have fewer candidates. The commands have no flag for them.",
        columns=("pools of 32,512 targets", "perplexity", "accuracy"),
        rows=[
            ("of one size", figure(fixed["perplexity"]), percent(fixed["accuracy"], 2)),
            ("growing", figure(growing["perplexity"]), percent(growing["accuracy"], 2)),
            (
                "growing minus one size",
                difference(growing["perplexity"], fixed["perplexity"], 2),
                difference(growing["accuracy"], fixed["accuracy"], 2, factor=100),
            ),
        ],
        conditions=Conditions(
            model=SMALL_NEOX,
            vocabulary="8,000",
            tokens=f"{millions(growing['tokens'])}, in {BATCHES}",
            machine="CPU",
            seeds=in_words(len(growing["seeds"])),
            rates="4e-3 alone",
        ),
        would_change="Other sizes of pools, larger vocabularies. An encoder's growing pools are "
        "[better in each pretraining](do_other_pools_do_better.md), though not clearly.",
        records=(
            "studies/results/recipe_neox_growing_pools",
            "studies/results/recipe_longest_pools",
            "studies/results/recipe_longest_pools_third",
        ),
    )


def what_do_larger_pools_cost() -> Card:
    times = results("benchmarks/results/pools_one_thread")
    sizes = ("8000", "32000", "250000")
    pools = (
        ("vanilla, the exact softmax", "exact softmax"),
        ("headless, the batch alone", "the batch"),
        ("headless, pools of 4,064", "4,064 targets"),
        ("headless, pools of 16,256", "16,256 targets"),
        ("headless, pools of 32,512", "32,512 targets"),
        ("headless, pools of 65,024", "65,024 targets"),
    )
    largest = [times[size]["65,024 targets"]["share of the exact step"] for size in sizes]
    check(max(largest) < 0.75, "the largest pools still save a quarter of the exact step")
    smallest = times["8000"]
    share_of_batch = smallest["the batch"]["share of the exact step"]
    lost = (largest[0] - share_of_batch) / (1 - share_of_batch)
    check(0.45 < lost < 0.55, "the largest pools cost half of what is saved with V = 8,000")
    pools_of_32k = times["32000"]["32,512 targets"]["share of the exact step"]
    of_the_batch = times["32000"]["the batch"]["share of the exact step"]
    with_two_threads = results("benchmarks/results/pools_two_threads")
    differences = [
        with_two_threads[size][name]["share of the exact step"]
        - times[size][name]["share of the exact step"]
        for size in sizes
        for _, name in pools
    ]
    check(max(differences) > -min(differences), "two threads raise shares rather than lower them")
    return Card(
        name="what_do_larger_pools_cost",
        question="What do larger pools cost?",
        answer="Even pools of 65,024 targets leave a step cheaper than the exact softmax",
        figure=f"pools of 32,512 targets: {percent(pools_of_32k)} of the exact step, the batch "
        f"alone {percent(of_the_batch)}",
        text="The table shows the time of a training step, as a share of the exact softmax's "
        "with the same vocabulary. With the smallest vocabulary the largest pools cost half of "
        "what the method saves.",
        columns=("candidates", "V = 8,000", "V = 32,000", "V = 250,000"),
        rows=[
            (
                label,
                *(percent(times[size][name]["share of the exact step"]) for size in sizes),
            )
            for label, name in pools
        ],
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="as in the table",
            tokens="a step of 8 rows of 128, drawn as frequently as in a text; measured before the "
            "command clipped gradients",
            machine="one thread of an AMD EPYC; the exact step takes "
            + ", ".join(
                f"{figure(times[size]['exact softmax']['milliseconds'], 0)} ms" for size in sizes
            )
            + "; with two threads no share is over "
            f"{figure(max(differences), 0, factor=100)} points higher or "
            f"{figure(-min(differences), 0, factor=100)} lower",
            seeds="none, medians of nine rounds in turns",
            rates="none",
        ),
        would_change="A wider model, where the head is a smaller part of a step; a GPU; larger "
        "batches, which fill a pool by themselves.",
        records=(
            "benchmarks/results/pools_one_thread",
            "benchmarks/results/pools_two_threads",
        ),
    )


def who_leads_in_equal_time() -> Card:
    runs = results("studies/results/recipe_32k_equal_time")
    headless = runs[HEADLESS]
    vanilla = runs[VANILLA]
    check(headless["seconds"] < vanilla["seconds"], "headless takes no longer than vanilla")
    time_of_a_token = headless["seconds"] / headless["tokens"]
    ratio = time_of_a_token / (vanilla["seconds"] / vanilla["tokens"])
    check(0.17 < ratio < 0.23, "a headless step takes a fifth of a vanilla step")
    check(is_clear(headless["perplexity"], vanilla["perplexity"]), "the lead is clear")
    check(below(headless["perplexity"], vanilla["perplexity"]) > 0.2, "headless is far ahead")
    return Card(
        name="who_leads_in_equal_time",
        question="Who leads in equal time?",
        answer="In equal time on a CPU, headless is far ahead",
        figure=f"perplexity {figure(headless['perplexity'])} against vanilla's "
        f"{figure(vanilla['perplexity'])} in {figure(headless['seconds'] / 60, 0)} and "
        f"{figure(vanilla['seconds'] / 60, 0)} minutes",
        short_figure=f"{percent(below(headless['perplexity'], vanilla['perplexity']))} lower "
        "perplexity",
        text="A headless step of this narrow model takes about a fifth of a vanilla step, so "
        "headless reads five times as many tokens. At equal tokens it is vanilla that leads in "
        "the end.",
        columns=("", "tokens", "minutes", "perplexity"),
        rows=[
            (
                name,
                millions(recipe["tokens"]),
                figure(recipe["seconds"] / 60, 0),
                figure(recipe["perplexity"]),
            )
            for name, recipe in (("headless", headless), ("vanilla", vanilla))
        ]
        + [
            (
                "headless minus vanilla",
                "",
                "",
                difference(headless["perplexity"], vanilla["perplexity"]),
            )
        ],
        picture="studies/results/recipe_32k_equal_time/results.png",
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="32,000",
            tokens=f"as in the table, in {SMALL_BATCHES}; headless reads the texts 1.9 times",
            machine="one thread of an AMD EPYC",
            seeds=in_words(len(headless["seeds"])),
            rates="searched for vanilla; headless at 2e-3 alone",
        ),
        would_change="A wider model or a smaller vocabulary, where the head is a smaller part of "
        "a step; a GPU.",
        records=("studies/results/recipe_32k_equal_time",),
    )


def does_a_smaller_vocabulary_save_vanilla() -> Card:
    runs = results("studies/results/equal_time_vocabulary")
    small = one_having(runs, vocabulary=8000)
    headless = one_having(runs, vocabulary=32000, recipe=HEADLESS)
    large = one_having(runs, vocabulary=32000, recipe=VANILLA)
    bits = "bits per byte"
    check(headless["scores"][bits][0] < small["scores"][bits][0], "headless is ahead of 8,000")
    check(large["scores"][bits][0] < headless["scores"][bits][0], "vanilla leads at equal tokens")
    return Card(
        name="does_a_smaller_vocabulary_save_vanilla",
        question="Would a smaller vocabulary help vanilla in equal time?",
        answer="No, its cheaper steps do not make up for its shorter tokens",
        figure=f"{figure(headless['scores'][bits], 2)} bits per byte against "
        f"{figure(small['scores'][bits], 2)} in equal time",
        text="Vanilla with 8,000 tokens takes as long as headless with 32,000 and ends behind it. "
        "Vanilla with 32,000 tokens reads the same tokens as headless, is ahead, and takes "
        "longest.",
        columns=("", "vocabulary", "text read, MB", "bits per byte"),
        rows=[
            (
                name,
                figure(run["vocabulary"], 0),
                figure(run["training_bytes"], 0, 1e-6),
                figure(run["scores"][bits], 3),
            )
            for name, run in (
                ("headless", headless),
                ("vanilla, equal time", small),
                ("vanilla, equal tokens", large),
            )
        ],
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="as in the table",
            tokens="25.0 M with a vocabulary of 32,000, 12.3 M with 8,000, in batches of 8 rows "
            "of 128; all models score the same held-out bytes",
            machine="CPU; on one thread, vanilla with 8,000 tokens takes 6 % more time than "
            "headless",
            seeds="one",
            rates="the best of three for each",
        ),
        would_change="Vocabularies between 8,000 and 32,000, other languages, longer training.",
        records=("studies/results/equal_time_vocabulary",),
    )


def how_soon_is_vanilla_matched() -> Card:
    first = results("studies/results/recipe_32k_epsilon")
    longer = results("studies/results/recipe_32k_equal_time")
    english = results("studies/results/recipe_english")
    small_batches = results("studies/results/recipe_small_batches")
    neox = results("studies/results/recipe_neox")
    neox_longer = results("studies/results/recipe_longer")
    neox_names = (f"{UNTIED} + GPT-NeoX", f"{UNTIED_VANILLA} + GPT-NeoX")
    compared = (
        ("GPT-2, V = 32,000", first[f"{HEADLESS} + epsilon 1e-5"], first[VANILLA]),
        ("GPT-2, V = 32,000, longer", longer[HEADLESS], longer[VANILLA]),
        ("GPT-2, V = 8,000", english[UNTIED], english[UNTIED_VANILLA]),
        (
            "GPT-2, V = 8,000, batches of 8",
            small_batches[UNTIED],
            small_batches[UNTIED_VANILLA],
        ),
        ("GPT-NeoX, V = 8,000", *(neox[name] for name in neox_names)),
        ("GPT-NeoX, V = 8,000, longer", *(neox_longer[name] for name in neox_names)),
    )
    rows = []
    shares_of_time = []
    for name, headless, vanilla in compared:
        check(below(headless["perplexity"], vanilla["perplexity"]) > 0, f"it is reached: {name}")
        shares_of_time.append(share_to_match(headless, vanilla, "seconds"))
        rows.append(
            (
                name,
                millions(vanilla["tokens"]),
                percent(share_to_match(headless, vanilla)),
                percent(shares_of_time[-1]),
            )
        )
    return Card(
        name="how_soon_is_vanilla_matched",
        question="How soon does headless reach vanilla's final loss?",
        answer=f"In {figure(min(shares_of_time), 0, 100)} to {percent(max(shares_of_time))} of "
        "vanilla's time on a CPU, early in training",
        figure=f"{rows[0][3]} of the time and {rows[0][2]} of the tokens after 0.8 M tokens, "
        f"{rows[1][3]} and {rows[1][2]} after 6.6 M",
        text="The shares are those after which the mean curve of headless reaches vanilla's end. "
        "A share of the tokens above 100 % means that headless needs more tokens than vanilla.",
        columns=("model", "vanilla's tokens", "share of the tokens", "share of the time"),
        rows=rows,
        conditions=Conditions(
            model="two layers of width 128, untied",
            vocabulary="as in the table",
            tokens="as in the table; with V = 32,000 in batches of 8 rows of 128, otherwise of 32 "
            "unless the row says 8",
            machine="one thread of an AMD EPYC",
            seeds="two",
            rates="searched, except that the third row has 8e-3 alone, the longer GPT-2 headless "
            "2e-3 alone, and the longer GPT-NeoX the better of two",
        ),
        would_change="Longer training, after which headless needs larger pools; wider models and "
        "GPUs, where the head is a smaller part of a step. With V = 8,000, AdamW's beta2 is 0.98 "
        "and its epsilon 1e-8, which [slow vanilla](do_adamws_settings_decide.md).",
        records=(
            "studies/results/recipe_32k_epsilon",
            "studies/results/recipe_32k_equal_time",
            "studies/results/recipe_english",
            "studies/results/recipe_small_batches",
            "studies/results/recipe_neox",
            "studies/results/recipe_longer",
        ),
    )


def do_adamws_settings_decide() -> Card:
    first = results("studies/results/recipe_32k")
    first_longer = results("studies/results/recipe_32k_6400")
    sweep = results("studies/results/recipe_32k_epsilon_sweep")
    tuned = results("studies/results/recipe_32k_epsilon")
    longer = results("studies/results/recipe_32k_epsilon_6400")
    headless_epsilon = f"{HEADLESS} + epsilon 1e-5"
    compared = (
        ("0.98", "1e-8", first[UNTIED], first[UNTIED_VANILLA]),
        ("0.999", "1e-8", sweep[HEADLESS], sweep[VANILLA_DEFAULT]),
        ("0.999", "1e-5", tuned[headless_epsilon], tuned[VANILLA]),
        ("0.98", "1e-8", first_longer[UNTIED], first_longer[UNTIED_VANILLA]),
        ("0.999", "1e-8", longer[HEADLESS], longer[VANILLA_DEFAULT]),
        ("0.999", "1e-5", longer[headless_epsilon], longer[VANILLA]),
    )
    rows = []
    leads = []
    for beta2, epsilon, headless, vanilla in compared:
        # Some runs have the first seed alone.
        seeds = min(len(headless["seeds"]), len(vanilla["seeds"]))
        pair = headless["perplexity"][:seeds], vanilla["perplexity"][:seeds]
        leads.append(below(*pair))
        rows.append(
            (
                millions(headless["tokens"]),
                beta2,
                epsilon,
                figure(pair[0]),
                figure(pair[1]),
                difference(*pair),
            )
        )
    check(leads[0] > leads[1] > leads[2] > 0, "each better setting shrinks the early lead")
    check(leads[3] > leads[4] > 0 > leads[5], "with the best settings the later lead is gone")
    return Card(
        name="do_adamws_settings_decide",
        question="Do AdamW's settings decide who leads?",
        answer="Yes, unsuitable settings slow vanilla much more than headless",
        figure=f"headless {percent(leads[0])} below vanilla with a beta2 of 0.98 and an epsilon of "
        f"1e-8, {percent(leads[2])} with 0.999 and 1e-5",
        text="Rows of a vanilla head that are no target get tiny gradients, which AdamW [scales "
        "up](https://arxiv.org/abs/2502.08441) to full steps. Headless gives them none. Give a "
        "vanilla baseline with Muon `--adam_epsilon 1e-5`.",
        columns=("tokens", "beta2", "epsilon", "headless", "vanilla", "headless minus vanilla"),
        rows=rows,
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="32,000",
            tokens=f"as in the table, in {SMALL_BATCHES}",
            machine="CPU",
            seeds="two, or one where there is no interval",
            rates="searched for the first three rows; 2e-3 for the last three, which is the best "
            "rate of headless with 0.999 and 1e-8 and of vanilla with 0.999 and 1e-5",
        ),
        would_change="A smaller vocabulary, where the effect is smaller. If AdamW also trains the "
        "layers, a large epsilon may harm.",
        records=(
            "studies/results/recipe_32k",
            "studies/results/recipe_32k_epsilon_sweep",
            "studies/results/recipe_32k_epsilon",
            "studies/results/recipe_32k_6400",
            "studies/results/recipe_32k_epsilon_6400",
        ),
    )


def which_epsilon_is_best() -> Card:
    runs = results("studies/results/recipe_32k_epsilon_sweep")
    endings = {
        "1e-8": "",
        "1e-6": " + epsilon 1e-6",
        "1e-5": " + epsilon 1e-5",
        "1e-4": " + epsilon 1e-4",
    }
    headless = {name: runs[HEADLESS + end]["perplexity"][0] for name, end in endings.items()}
    vanilla = {name: runs[VANILLA_DEFAULT + end]["perplexity"][0] for name, end in endings.items()}
    other_beta2 = runs[f"{UNTIED_VANILLA} + beta2 0.9999"]["perplexity"][0]
    check(min(vanilla, key=vanilla.__getitem__) == "1e-5", "1e-5 is vanilla's best epsilon")
    check(min(headless, key=headless.__getitem__) == "1e-5", "1e-5 is headless's best epsilon")
    check(other_beta2 > vanilla["1e-5"] + 5, "a larger beta2 does not replace the epsilon")
    check(8 < vanilla["1e-8"] - vanilla["1e-5"] < 12, "vanilla falls by about ten points")
    check(0 < headless["1e-8"] - headless["1e-5"] < 1.5, "headless falls by about one point")
    return Card(
        name="which_epsilon_is_best",
        question="Which epsilon of AdamW is best?",
        answer="1e-5 is best for vanilla; up to there headless hardly depends on it",
        figure=f"vanilla: perplexity {figure(vanilla['1e-5'])} with 1e-5, "
        f"{figure(vanilla['1e-8'])} with the default",
        text="From 1e-8 to 1e-5 the perplexity of vanilla falls by about ten points and that of "
        "headless by one. A larger beta2 of 0.9999 does not replace the epsilon.",
        columns=("epsilon", "beta2", "headless: perplexity", "vanilla: perplexity"),
        rows=[
            *((name, "0.999", figure(headless[name]), figure(vanilla[name])) for name in endings),
            ("1e-8", "0.9999", "not run", figure(other_beta2)),
        ],
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="32,000",
            tokens=f"{millions(runs[HEADLESS]['tokens'])}, in {SMALL_BATCHES}",
            machine="CPU",
            seeds="one",
            rates="4e-3, the best of three for 1e-8 and 1e-5",
        ),
        would_change="After 6.6 M tokens headless is better with 1e-8 than with 1e-5.",
        records=("studies/results/recipe_32k_epsilon_sweep",),
    )


def do_adamws_settings_matter_with_small_vocabularies() -> Card:
    gpt2 = results("studies/results/recipe_small_batches")
    gpt2_tuned = results("studies/results/recipe_small_batches_epsilon")
    neox = results("studies/results/recipe_neox")
    neox_tuned = results("studies/results/recipe_neox_epsilon")
    roformer = results("studies/results/recipe_trunks")
    roformer_tuned = results("studies/results/recipe_roformer_beta2")
    better = " + beta2 0.999 + epsilon 1e-5"
    compared = (
        (
            "GPT-2, batches of 8 rows",
            (gpt2[UNTIED], gpt2[UNTIED_VANILLA]),
            (gpt2_tuned[UNTIED + better], gpt2_tuned[UNTIED_VANILLA + better]),
        ),
        (
            "GPT-NeoX, batches of 32 rows",
            (neox[f"{UNTIED} + GPT-NeoX"], neox[f"{UNTIED_VANILLA} + GPT-NeoX"]),
            (
                neox_tuned[f"{UNTIED} + GPT-NeoX{better}"],
                neox_tuned[f"{UNTIED_VANILLA} + GPT-NeoX{better}"],
            ),
        ),
        (
            "RoFormer, beta2 alone changed",
            (roformer[f"{TIED} + RoFormer"], roformer[f"{TIED_VANILLA} + RoFormer"]),
            (
                roformer_tuned[f"{TIED} + RoFormer + beta2 0.999"],
                roformer_tuned[f"{TIED_VANILLA} + RoFormer + beta2 0.999"],
            ),
        ),
    )
    rows = []
    for name, before, after in compared:
        lead_before = below(before[0]["perplexity"], before[1]["perplexity"])
        lead_after = below(after[0]["perplexity"], after[1]["perplexity"])
        check(lead_before > lead_after > 0, f"the lead shrinks and stays: {name}")
        rows.append(
            (
                name,
                percent(lead_before, 1),
                percent(lead_after, 1),
                difference(after[0]["perplexity"], after[1]["perplexity"]),
            )
        )
    return Card(
        name="do_adamws_settings_matter_with_small_vocabularies",
        question="Do AdamW's settings also decide with a vocabulary of 8,000?",
        answer="Less, and part of the early lead remains",
        figure=f"GPT-2: headless {rows[0][2]} below vanilla instead of {rows[0][1]}",
        text="With a beta2 of 0.999 and an epsilon of 1e-5 headless leads by less than with 0.98 "
        "and 1e-8. These are early leads, and longer training with the better settings was not "
        "tried.",
        columns=(
            "model",
            "lead with 0.98 and 1e-8",
            "lead with 0.999 and 1e-5",
            "headless minus vanilla with 0.999 and 1e-5",
        ),
        rows=rows,
        picture="studies/results/recipe_neox_epsilon/results.png",
        conditions=Conditions(
            model="two layers of width 128; the decoders untied, the encoder tied",
            vocabulary="8,000",
            tokens=f"{millions(gpt2[UNTIED]['tokens'])}, RoFormer "
            f"{millions(roformer[f'{TIED} + RoFormer']['tokens'])}",
            machine="CPU",
            seeds="two",
            rates="searched with 0.98 and 1e-8, and kept for the better settings",
        ),
        would_change="Rates searched again, longer training, a larger vocabulary.",
        records=(
            "studies/results/recipe_small_batches",
            "studies/results/recipe_small_batches_epsilon",
            "studies/results/recipe_neox",
            "studies/results/recipe_neox_epsilon",
            "studies/results/recipe_trunks",
            "studies/results/recipe_roformer_beta2",
        ),
    )


def does_the_lead_last_with_a_small_vocabulary() -> Card:
    headless_name = f"{UNTIED} + GPT-NeoX"
    vanilla_name = f"{UNTIED_VANILLA} + GPT-NeoX"
    first = results("studies/results/recipe_neox")
    longer = results("studies/results/recipe_longer")
    longest = [
        results("studies/results/recipe_longest"),
        results("studies/results/recipe_longest_second"),
    ]
    seeds_of_longest = {
        name: [perplexity for runs in longest for perplexity in runs[name]["perplexity"]]
        for name in (headless_name, vanilla_name)
    }
    pools_name = f"{headless_name} + pools of 32512"
    with_pools = results("studies/results/recipe_longest_pools")[pools_name]
    lower_cased = [
        results(f"studies/results/{name}")["models"]
        for name in (
            "heads_lambada_longer",
            "heads_lambada_longer_second",
            "heads_lambada_third",
        )
    ]
    last_step = 7200
    seeds_of_lower_cased = {
        series: [
            one_having(models, series=series, step=last_step)["eval_perplexity"]
            for models in lower_cased
        ]
        for series in ("free head", vanilla_name)
    }
    tokens_of_lower_cased = one_having(lower_cased[0], series="free head", step=last_step)["tokens"]
    compared = (
        (
            millions(first[headless_name]["tokens"]),
            first[headless_name]["perplexity"],
            first[vanilla_name]["perplexity"],
        ),
        (
            millions(longer[headless_name]["tokens"]),
            longer[headless_name]["perplexity"],
            longer[vanilla_name]["perplexity"],
        ),
        (
            millions(longest[0][headless_name]["tokens"]),
            seeds_of_longest[headless_name],
            seeds_of_longest[vanilla_name],
        ),
        (
            f"{millions(with_pools['tokens'])}, pools of 32,512 targets",
            with_pools["perplexity"],
            seeds_of_longest[vanilla_name],
        ),
        (
            f"{millions(tokens_of_lower_cased)}, lower-cased text",
            seeds_of_lower_cased["free head"],
            seeds_of_lower_cased[vanilla_name],
        ),
    )
    check(max(compared[0][1]) < min(compared[0][2]), "headless leads first")
    check(is_clear(*compared[1][1:]), "the lead after 2.5 M tokens is clear")
    pairs = zip(*compared[2][1:], strict=True)
    check(all(first > second for first, second in pairs), "vanilla is ahead in each pair")
    check(with_pools["seeds"] == [0, 1], "the pools have the seeds of both records")
    check(below(*compared[3][1:]) > -0.005, "with larger pools headless is level")
    check(not is_clear(*compared[3][1:]), "with larger pools there is no clear difference")
    check(not is_clear(*compared[4][1:]), "after 29.5 M tokens there is no clear difference")
    time = longest[0][headless_name]["seconds"] / longest[0][vanilla_name]["seconds"]
    return Card(
        name="does_the_lead_last_with_a_small_vocabulary",
        question="Does the lead last with a vocabulary of 8,000 and larger batches?",
        answer="After about ten million tokens the lead is gone, in half of vanilla's time",
        figure=f"perplexity {figure(compared[2][1])} against vanilla's {figure(compared[2][2])} "
        f"after 9.8 M tokens, in {percent(time)} of its time",
        text=f"Headless leads by {percent(below(*compared[0][1:]))} at first and by "
        f"{percent(below(*compared[1][1:]))} after 2.5 M tokens. After 9.8 M vanilla is slightly "
        "ahead, unless headless has larger pools. On other text they end level after 29.5 M.",
        columns=BY_TOKENS,
        rows=[
            (
                tokens,
                str(len(headless)),
                figure(headless),
                figure(vanilla),
                difference(headless, vanilla, 2),
            )
            for tokens, headless, vanilla in compared
        ],
        picture="studies/results/recipe_longest/results.png",
        conditions=Conditions(
            model=SMALL_NEOX,
            vocabulary="8,000",
            tokens=f"as in the table, in {BATCHES}",
            machine="CPU",
            seeds="as in the table",
            rates="searched for the first row; the better of two for the second and, with one "
            "seed, for the third; 4e-3 alone in the last two",
        ),
        would_change="AdamW's beta2 of 0.999 instead of 0.98 and its epsilon of 1e-5 instead of "
        "1e-8, which help vanilla more; other sizes of pools.",
        records=(
            "studies/results/recipe_neox",
            "studies/results/recipe_longer",
            "studies/results/recipe_longest",
            "studies/results/recipe_longest_second",
            "studies/results/recipe_longest_pools",
            "studies/results/heads_lambada_longer",
            "studies/results/heads_lambada_longer_second",
            "studies/results/heads_lambada_third",
        ),
    )


def tied_or_untied() -> Card:
    runs = results("studies/results/recipe_english")
    rows = []
    for name, recipe in (
        ("headless, untied", UNTIED),
        ("vanilla, untied", UNTIED_VANILLA),
        ("headless, tied", TIED),
        ("vanilla, tied", TIED_VANILLA),
    ):
        perplexity = runs[recipe]["perplexity"]
        rows.append(
            (
                name,
                figure(perplexity),
                percent(runs[recipe]["accuracy"], 2),
                difference(perplexity, runs[UNTIED_VANILLA]["perplexity"])
                if recipe != UNTIED_VANILLA
                else "",
            )
        )
    untied = runs[UNTIED]["perplexity"]
    tied = runs[TIED]["perplexity"]
    check(is_clear(untied, tied), "untied headless is clearly ahead of tied")
    check(is_clear(untied, runs[UNTIED_VANILLA]["perplexity"]), "it is ahead of untied vanilla")
    check(is_clear(tied, runs[TIED_VANILLA]["perplexity"]), "tied headless is ahead of tied")
    check(min(tied) > max(runs[UNTIED_VANILLA]["perplexity"]), "untied vanilla beats tied headless")
    return Card(
        name="tied_or_untied",
        question="Should candidates have a matrix of their own?",
        answer="For small decoders yes, a second matrix clearly helps headless",
        figure=f"headless: perplexity {figure(untied)} untied, {figure(tied)} tied",
        text="With `--tie_word_embeddings false` candidates have their own matrix, as vanilla's "
        "untied head does. Tied headless is behind untied vanilla in both pretrainings, so "
        "compare models with equally many matrices.",
        columns=("", "perplexity", "accuracy", "minus untied vanilla"),
        rows=rows,
        picture="studies/results/recipe_english/results.png",
        conditions=Conditions(
            model=GPT2,
            vocabulary="8,000",
            tokens=f"{millions(runs[UNTIED]['tokens'])}, in {BATCHES}",
            machine="CPU",
            seeds="two",
            rates="8e-3 alone",
        ),
        would_change="An encoder, where [untying harms](tied_or_untied_encoders.md); better "
        "settings of AdamW; longer training. The second matrix adds V x D parameters.",
        records=("studies/results/recipe_english",),
    )


def does_it_hold_for_german() -> Card:
    runs = results("studies/results/recipe_german")
    rows = []
    for name, headless, vanilla in (
        ("untied", UNTIED, UNTIED_VANILLA),
        ("tied", TIED, TIED_VANILLA),
    ):
        pair = runs[headless]["perplexity"], runs[vanilla]["perplexity"]
        check(max(pair[0]) < min(pair[1]), f"headless leads with both seeds: {name}")
        rows.append((name, figure(pair[0]), figure(pair[1]), difference(*pair)))
    return Card(
        name="does_it_hold_for_german",
        question="Does the early lead hold for German?",
        answer="Headless leads in both pretrainings, which are too few to make it clear",
        figure=f"perplexity {rows[0][1]} against vanilla's {rows[0][2]}, untied",
        text="German novels give the same order as English ones after 0.8 M tokens. The intervals "
        "of two pretrainings are wide.",
        columns=("matrices", "headless: perplexity", "vanilla: perplexity", "difference"),
        rows=rows,
        picture="studies/results/recipe_german/results.png",
        conditions=Conditions(
            model=GPT2,
            vocabulary="8,000",
            tokens=f"{millions(runs[TIED]['tokens'])} of 10 MB of novels, in {BATCHES}",
            machine="CPU",
            seeds="two",
            rates="8e-3; the tied models also tried 4e-3, which is worse",
        ),
        would_change="More pretrainings, longer training, better settings of AdamW.",
        records=("studies/results/recipe_german",),
    )


def does_sampled_softmax_work_from_scratch() -> Card:
    runs = results("studies/results/recipe_sampled")
    sampled = runs["sampled softmax untied + Muon"]
    headless = runs[UNTIED]
    check(min(sampled["perplexity"]) > max(headless["perplexity"]), "sampled softmax is behind")
    check(is_clear(sampled["perplexity"], headless["perplexity"]), "it is clearly behind")
    time = sampled["seconds"] / headless["seconds"]
    check(1.9 < time < 2.1, "sampled softmax takes twice headless's time")
    return Card(
        name="does_sampled_softmax_work_from_scratch",
        question="Does sampled softmax work from random weights?",
        answer="It trains, but behind headless and in twice its time",
        figure=f"perplexity {figure(sampled['perplexity'])} against headless's "
        f"{figure(headless['perplexity'])}",
        text="Sampled softmax is meant for continuing a checkpoint, whose head it keeps. From "
        "random weights headless is the better choice.",
        columns=("", "perplexity", "time, share of headless's"),
        rows=[
            ("headless", figure(headless["perplexity"]), percent(1)),
            ("sampled softmax", figure(sampled["perplexity"]), percent(time)),
            ("difference", difference(sampled["perplexity"], headless["perplexity"]), ""),
        ],
        picture="studies/results/recipe_sampled/results.png",
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="32,000, of which sampled softmax draws 4,096",
            tokens=f"{millions(headless['tokens'])}, in {SMALL_BATCHES}",
            machine="CPU",
            seeds="two",
            rates="searched for each",
        ),
        would_change="AdamW's beta2 of 0.999 instead of 0.98; the present draws and exact steps, "
        "which came later.",
        records=("studies/results/recipe_sampled",),
    )


def does_the_gain_depend_on_width() -> Card:
    runs = results("studies/results/recipe_ablations")
    rows = []
    leads = []
    for width, ending in (("64", " + width 64"), ("128", ""), ("256", " + width 256")):
        headless = runs[TIED + ending]["perplexity"]
        vanilla = runs[TIED_VANILLA + ending]["perplexity"]
        leads.append(below(headless, vanilla))
        rows.append((width, figure(headless), figure(vanilla), percent(leads[-1], 1)))
    check(min(leads) > 0, "headless leads at each width")
    check(max(leads) == leads[1], "the lead is largest at a width of 128")
    return Card(
        name="does_the_gain_depend_on_width",
        question="Does the early lead depend on the width?",
        answer="Our runs cannot tell, since only one width has a searched rate",
        figure=f"{rows[0][3]} at a width of 64, {rows[2][3]} at 256",
        text=f"Headless leads by {figure(min(leads), 0, 100)} to {percent(max(leads))}. The lead "
        "is largest at the only width whose rates were searched, so the others may owe their "
        "smaller leads to their rates.",
        columns=("width", "headless: perplexity", "vanilla: perplexity", "headless below vanilla"),
        rows=rows,
        conditions=Conditions(
            model="GPT-2 with two layers, tied",
            vocabulary="8,000",
            tokens=f"{millions(runs[TIED]['tokens'])}, in {BATCHES}",
            machine="CPU",
            seeds="one, and two at 128",
            rates="searched at 128, and 8e-3 alone at the others",
        ),
        would_change="Rates searched at each width, more pretrainings.",
        records=("studies/results/recipe_ablations",),
    )


def do_tables_need_adamws_moments() -> Card:
    runs = results("studies/results/recipe_table_optimizers")
    of_vanilla = results("studies/results/recipe_table_optimizers_vanilla")
    without_momentum = "row-wise Adam without momentum"
    adamw = runs[HEADLESS]
    adagrad = runs[f"{HEADLESS} + row-wise Adagrad at a flat rate"]
    others = {
        "Adam, one second moment a row": ("D + 1", runs[f"{HEADLESS} + row-wise Adam"]),
        "without momentum": ("1", runs[f"{HEADLESS} + {without_momentum}"]),
        "row-wise Adagrad at a flat rate": ("1", adagrad),
    }
    vanilla_with_adamw = of_vanilla[VANILLA]
    vanilla_by_rows = of_vanilla[f"{VANILLA} + {without_momentum} of vanilla"]
    gain_of_vanilla = below(vanilla_by_rows["perplexity"], vanilla_with_adamw["perplexity"])
    check(0 < gain_of_vanilla < 0.06, "vanilla gains as well")
    accuracies = adamw["accuracy"].copy()
    for _, other in others.values():
        check(other["perplexity"] < adamw["perplexity"], "each has a lower perplexity than AdamW")
        accuracies += other["accuracy"]
    check(max(accuracies) - min(accuracies) < 0.003, "the accuracies are within 0.3 points")
    compared = (
        ("headless: AdamW", "2 D", adamw),
        *((f"headless: {label}", numbers, run) for label, (numbers, run) in others.items()),
        ("vanilla: AdamW", "2 D", vanilla_with_adamw),
        ("vanilla: one second moment a row, without momentum", "1", vanilla_by_rows),
    )
    return Card(
        name="do_tables_need_adamws_moments",
        question="Do the tables of a model need AdamW's two numbers for each weight?",
        answer="Not early in training, where one number a row gives a lower perplexity",
        figure=f"perplexity {figure(adagrad['perplexity'])} with row-wise Adagrad against "
        f"{figure(adamw['perplexity'])} with AdamW after 0.8 M tokens",
        text="A table of V rows and D columns then needs V numbers instead of 2 V D. Vanilla gains "
        "alike without momentum. After 25 M tokens Adagrad "
        "[is behind](does_row_wise_adagrad_keep_its_lead.md), so that no option offers these.",
        columns=("method: optimizer of the tables", "numbers a row", "perplexity", "accuracy"),
        rows=[
            (label, numbers, figure(run["perplexity"]), percent(run["accuracy"], 2))
            for label, numbers, run in compared
        ],
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="8,000",
            tokens=f"{millions(adamw['tokens'])}, in {SMALL_BATCHES}",
            machine="CPU",
            seeds="one",
            rates="4e-3 alone, and 20 times as much for the tables with Adagrad; a beta2 of 0.999, "
            "and for vanilla an epsilon of 1e-5",
        ),
        would_change="Longer training with Adam's row-wise moments; other rates, more "
        "pretrainings, larger vocabularies.",
        records=(
            "studies/results/recipe_table_optimizers",
            "studies/results/recipe_table_optimizers_vanilla",
        ),
    )


def does_row_wise_adagrad_keep_its_lead() -> Card:
    shorter = "studies/results/recipe_32k_6400_adagrad"
    shorter_with_adamw = "studies/results/recipe_32k_epsilon_6400"
    longer = "studies/results/recipe_32k_24400_adagrad"
    longer_with_adamw = "studies/results/recipe_32k_24400"
    with_adagrad = f"{HEADLESS} + row-wise Adagrad at a flat rate"
    early_adagrad = results(shorter)[with_adagrad]
    early_adamw = results(shorter_with_adamw)[HEADLESS]
    of_vanilla = "studies/results/recipe_32k_6400_adagrad_vanilla"
    vanilla_with_adagrad = results(of_vanilla)[
        f"{VANILLA_DEFAULT} + row-wise Adagrad at a flat rate of vanilla"
    ]
    vanilla_with_adamw = results(shorter_with_adamw)[VANILLA]
    adagrad = results(longer)[with_adagrad]
    adamw = results(longer_with_adamw)[HEADLESS]
    check(early_adagrad["tokens"] == early_adamw["tokens"], "both short runs have read as much")
    check(
        max(early_adagrad["perplexity"]) < min(early_adamw["perplexity"]),
        "Adagrad ends ahead of AdamW in the short runs",
    )
    check(
        max(vanilla_with_adagrad["perplexity"]) < min(vanilla_with_adamw["perplexity"]),
        "and so does vanilla's",
    )
    check(adagrad["tokens"] == adamw["tokens"], "both long runs have read as much")
    check(
        min(adagrad["perplexity"]) > max(adamw["perplexity"])
        and max(adagrad["accuracy"]) < min(adamw["accuracy"]),
        "and behind it in the long ones",
    )
    # Of seed 0; the runs were evaluated at the same steps.
    curves = [run["curves"]["0"] for run in (adagrad, adamw)]
    loss = "eval_cross_entropy"
    leads = [mine[loss] < theirs[loss] for mine, theirs in zip(*curves, strict=True)]
    check(leads == sorted(leads, reverse=True), "AdamW passes it once")
    rows = []
    for index in (0, 1, 3, 5, 7, 9):
        points = [curve[index] for curve in curves]
        cells = [millions(points[0]["tokens_seen"])]
        for point in points:
            cells += [figure(math.exp(point[loss])), percent(point["eval_accuracy"], 2)]
        rows.append(tuple(cells))
    return Card(
        name="does_row_wise_adagrad_keep_its_lead",
        question="Does row-wise Adagrad at a flat rate keep its early lead?",
        answer="No: AdamW passes row-wise Adagrad between 7.5 and 10 million tokens",
        figure=f"perplexity {figure(adagrad['perplexity'])} against "
        f"{figure(adamw['perplexity'])} with AdamW after 25 M tokens",
        text="In runs whose schedule ended at 6.6 M tokens it was ahead: "
        f"{figure(early_adagrad['perplexity'])} against {figure(early_adamw['perplexity'])}, and "
        f"for vanilla {figure(vanilla_with_adagrad['perplexity'])} against "
        f"{figure(vanilla_with_adamw['perplexity'])}. No option offers it.",
        columns=(
            "tokens",
            "row-wise Adagrad: perplexity",
            "accuracy",
            "AdamW: perplexity",
            "accuracy",
        ),
        rows=rows,
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="32,000",
            tokens=f"as in the table, in {SMALL_BATCHES}, without larger pools",
            machine="CPU",
            seeds="one with Adagrad, two and three with AdamW; the table has the first",
            rates="2e-3, the best of AdamW, and 20 times as much for the tables with Adagrad, "
            "where no other was tried; a beta2 of 0.999",
        ),
        would_change="Other rates of the tables, more pretrainings, larger pools.",
        records=(shorter, of_vanilla, shorter_with_adamw, longer, longer_with_adamw),
    )


CARDS = (
    does_the_lead_last,
    do_larger_pools_close_the_gap,
    do_growing_pools_help_decoders,
    what_do_larger_pools_cost,
    who_leads_in_equal_time,
    does_a_smaller_vocabulary_save_vanilla,
    how_soon_is_vanilla_matched,
    do_adamws_settings_decide,
    which_epsilon_is_best,
    do_adamws_settings_matter_with_small_vocabularies,
    does_the_lead_last_with_a_small_vocabulary,
    tied_or_untied,
    does_it_hold_for_german,
    does_sampled_softmax_work_from_scratch,
    does_the_gain_depend_on_width,
    do_tables_need_adamws_moments,
    does_row_wise_adagrad_keep_its_lead,
)
