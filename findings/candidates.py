"""Findings about batches, pools and other choices of candidates."""

from findings.cards import Card, Conditions
from findings.recipes import (
    BATCHES,
    TIED,
    TIED_DECODER,
    TIED_VANILLA,
)
from findings.records import (
    check,
    difference,
    figure,
    is_clear,
    is_searched,
    millions,
    one_having,
    percent,
    results,
)

TITLE = "Batches, pools and candidates"


def do_larger_batches_help_at_equal_tokens() -> Card:
    runs = results("studies/results/batch_size")
    rows = []
    leads = []
    for batch, pool in ((8, 1016), (32, 4064), (128, 16256)):
        headless = one_having(runs, recipe=TIED, rows=batch, pool=pool)["perplexity"]
        vanilla = one_having(runs, recipe=TIED_VANILLA, rows=batch)["perplexity"]
        check(max(headless) < min(vanilla), f"headless leads with {batch} rows")
        check(is_clear(headless, vanilla) == (batch < 128), f"the lead is clear: {batch} rows")
        leads.append(sum(headless) / sum(vanilla))
        rows.append(
            (
                str(batch),
                figure(pool, 0),
                figure(headless),
                figure(vanilla),
                difference(headless, vanilla),
            )
        )
    check(leads == sorted(leads), "the lead shrinks with the batch")
    tokens = 8 * 128 * one_having(runs, recipe=TIED, rows=8)["steps"]
    return Card(
        name="do_larger_batches_help_at_equal_tokens",
        question="Do larger batches help headless at equal tokens?",
        answer="No, smaller batches are better for both methods, and the lead is largest there",
        figure=f"headless: perplexity {rows[0][2]} with 8 rows, {rows[2][2]} with 128",
        text="At equal tokens a smaller batch takes more steps. Headless leads with each size, "
        "clearly with 8 and 32 rows.",
        columns=("rows", "targets", "headless: perplexity", "vanilla: perplexity", "difference"),
        rows=rows,
        picture="studies/results/batch_size/results.png",
        conditions=Conditions(
            model=TIED_DECODER,
            vocabulary="8,000",
            tokens=f"{millions(tokens)}, in rows of 128",
            machine="CPU",
            seeds="two",
            rates="8e-3 with 32 rows and scaled with the square root of the rows, not searched "
            "with 8 and 128",
        ),
        would_change="Rates searched for each size; longer training, in which batches of a "
        "thousand targets [fall behind](does_the_lead_last.md).",
        records=("studies/results/batch_size",),
    )


def do_larger_batches_help_at_equal_steps() -> Card:
    by_rule = results("studies/results/batch_size_equal_steps")
    half = results("studies/results/batch_size_rate_low")
    half_again = results("studies/results/batch_size_512_second")
    quarter = results("studies/results/batch_size_512_low")

    def perplexity(runs, recipe, batch):
        return one_having(runs, recipe=recipe, rows=batch)["perplexity"]

    compared = [
        (
            str(batch),
            rate,
            perplexity(by_rule, TIED, batch),
            perplexity(by_rule, TIED_VANILLA, batch),
        )
        for batch, rate in ((8, "4e-3"), (32, "8e-3"), (128, "16e-3"), (512, "32e-3"))
    ]
    compared += [
        (
            "512",
            "16e-3",
            perplexity(half, TIED, 512) + perplexity(half_again, TIED, 512),
            perplexity(half, TIED_VANILLA, 512) + perplexity(half_again, TIED_VANILLA, 512),
        ),
        (
            "512",
            "8e-3",
            perplexity(quarter, TIED, 512),
            perplexity(quarter, TIED_VANILLA, 512),
        ),
    ]
    for batch, _, headless, vanilla in compared[:3]:
        check(is_clear(headless, vanilla), f"the lead with {batch} rows is clear")
    check(not is_clear(compared[4][2], compared[4][3]), "512 rows show no clear lead")
    return Card(
        name="do_larger_batches_help_at_equal_steps",
        question="Who leads at equal steps with larger batches?",
        answer="Headless leads clearly up to 128 rows, and with 512 rows neither does",
        figure=f"128 rows: perplexity {figure(compared[2][2])} against vanilla's "
        f"{figure(compared[2][3])}",
        text="Larger batches help both methods at equal steps. With 512 rows the rate of the rule "
        "is too high, and headless suffers most; at lower rates the two are close.",
        columns=(
            "rows",
            "rate",
            "seeds",
            "headless: perplexity",
            "vanilla: perplexity",
            "difference",
        ),
        rows=[
            (
                batch,
                rate,
                str(len(headless)),
                figure(headless),
                figure(vanilla),
                difference(headless, vanilla),
            )
            for batch, rate, headless, vanilla in compared
        ],
        conditions=Conditions(
            model=TIED_DECODER,
            vocabulary="8,000",
            tokens="200 steps of the rows in the table, each of 128",
            machine="CPU",
            seeds="as in the table",
            rates="as in the table. With 128 rows half of the rule's rate is level and twice is "
            "worse; with 8 rows twice is level and half is worse, with one seed each",
        ),
        would_change="Larger vocabularies, where a batch covers fewer tokens; longer training.",
        records=(
            "studies/results/batch_size_equal_steps",
            "studies/results/batch_size_rate_low",
            "studies/results/batch_size_rate_high",
            "studies/results/batch_size_512_second",
            "studies/results/batch_size_512_low",
        ),
    )


def do_smaller_pools_harm() -> Card:
    of_32_rows = results("studies/results/recipe_ingredients")
    of_128_rows = results("studies/results/batch_size")
    whole_32 = of_32_rows[TIED]["perplexity"]
    half_32 = of_32_rows[f"{TIED} + pools of 2048"]["perplexity"]
    run_of_128_rows = one_having(of_128_rows, recipe=TIED, rows=128)
    whole_128 = run_of_128_rows["perplexity"]
    tokens_of_128_rows = 128 * 128 * run_of_128_rows["steps"]
    parts_of_128 = [
        (size, one_having(of_128_rows, recipe=f"{TIED} + pools of {size}")["perplexity"])
        for size in (4064, 1016)
    ]
    for whole, part in ((whole_32, half_32), *((whole_128, part) for _, part in parts_of_128)):
        check(not is_clear(part, whole), "no smaller pool differs clearly")
        check(sum(part) / sum(whole) < 1.0035, "a smaller pool loses 0.3 % at most")
    return Card(
        name="do_smaller_pools_harm",
        question="Do pools smaller than a batch harm?",
        answer="There is no clear harm early in training",
        figure=f"pools of half a batch: perplexity {figure(half_32)} instead of {figure(whole_32)}",
        text="`--pool_size` splits the targets of a large batch into several pools, which makes a "
        "step cheaper.",
        columns=("rows", "targets in a pool", "perplexity", "minus the whole batch"),
        rows=[
            ("32", figure(4064, 0), figure(whole_32), ""),
            ("32", figure(2048, 0), figure(half_32), difference(half_32, whole_32)),
            ("128", figure(16256, 0), figure(whole_128), ""),
            *(
                ("128", figure(size, 0), figure(part), difference(part, whole_128))
                for size, part in parts_of_128
            ),
        ],
        picture="studies/results/batch_size/results.png",
        conditions=Conditions(
            model=TIED_DECODER,
            vocabulary="8,000",
            tokens=f"{millions(of_32_rows[TIED]['tokens'])} with 32 rows, "
            f"{millions(tokens_of_128_rows)} with 128, in rows of 128",
            machine="CPU",
            seeds="two",
            rates="8e-3 with 32 rows, 16e-3 with 128, not searched",
        ),
        would_change="Longer training, where [pools of a thousand targets "
        "trail](do_larger_pools_close_the_gap.md); larger vocabularies.",
        records=("studies/results/recipe_ingredients", "studies/results/batch_size"),
    )


def do_other_ingredients_help() -> Card:
    runs = results("studies/results/recipe_ingredients")
    ablations = results("studies/results/recipe_ablations")
    compared = (
        ("the exact softmax in the last fifth of the steps", "exact at the end", runs),
        ("4,096 more candidates, drawn by frequency", "4096 by frequency", runs),
        ("a temperature of 0.5", "temperature 0.5", runs),
        ("a temperature of 2", "temperature 2", ablations),
        ("the loss corrected for log q", "corrected for log q", runs),
        ("the same, [refined](https://arxiv.org/abs/2507.09331)", "refined correction", runs),
    )
    rows = []
    for label, ingredient, folder in compared:
        with_it = folder[f"{TIED} + {ingredient}"]["perplexity"]
        without = folder[TIED]["perplexity"][: len(with_it)]
        check(sum(with_it) > sum(without), f"it does not help: {ingredient}")
        rows.append((label, figure(without), figure(with_it), difference(with_it, without)))
    return Card(
        name="do_other_ingredients_help",
        question="Do other candidates, temperatures or corrections help?",
        answer="No, none of six ingredients improves headless training",
        figure=f"4,096 more candidates: perplexity {rows[1][2]} instead of {rows[1][1]}",
        text="The plain loss is at least as good as each variant. Correcting the loss for log q "
        "does not replace the free head, which adds log q after training.",
        columns=("ingredient", "without it", "with it", "difference"),
        rows=rows,
        conditions=Conditions(
            model=TIED_DECODER,
            vocabulary="8,000",
            tokens=f"{millions(runs[TIED]['tokens'])}, in {BATCHES}",
            machine="CPU",
            seeds="two, or one where there is no interval",
            rates="8e-3 alone for the variants",
        ),
        would_change="Rates searched for each; for items instead of text, "
        "[uniform draws help](../../examples/items/README.md). The temperature of 2 was measured "
        "on other documents.",
        records=("studies/results/recipe_ingredients", "studies/results/recipe_ablations"),
    )


def should_candidates_be_weighted_by_count() -> Card:
    small = results("studies/results/recipe_counts")
    large = results("studies/results/recipe_counts_32k")
    rows = []
    for power, ending in (
        ("0", " + counts ^ 0"),
        ("0.5", " + counts ^ 0.5"),
        ("1", ""),
        ("1.5", " + counts ^ 1.5"),
        ("2", " + counts ^ 2"),
    ):
        rows.append(
            (
                power,
                figure(small[TIED + ending]["perplexity"]),
                figure(large[TIED + ending]["perplexity"]),
            )
        )
    at_one = small[TIED]["perplexity"]
    others = [run["perplexity"] for name, run in small.items() if name != TIED]
    check(all(min(other) > max(at_one) for other in others), "1 is the best power")
    at_one = large[TIED]["perplexity"]
    for ending in (" + counts ^ 0", " + counts ^ 0.5"):
        other = large[TIED + ending]["perplexity"]
        check(abs(sum(other) / sum(at_one) - 1) < 0.01, f"it is within 1 %: {ending}")
    return Card(
        name="should_candidates_be_weighted_by_count",
        question="Should a candidate be weighted by its count in the pool?",
        answer="Yes with 8,000 tokens, and with 32,000 the weight hardly matters",
        figure=f"V = 8,000: perplexity {rows[2][1]} with the count, {rows[0][1]} without",
        text="The loss weights a candidate by its count to a power. The paper's loss has a power "
        "of one. With 32,000 tokens most candidates occur once, and smaller powers are as good.",
        columns=("power", "V = 8,000, batches of 32 rows", "V = 32,000, batches of 8 rows"),
        rows=rows,
        picture="studies/results/recipe_counts/results.png",
        conditions=Conditions(
            model=TIED_DECODER,
            vocabulary="as in the table",
            tokens=f"{millions(small[TIED]['tokens'])}, in rows of 128",
            machine="CPU",
            seeds="two",
            rates="8e-3 with 8,000 tokens, 4e-3 with 32,000, not searched",
        ),
        would_change="Larger pools, in which counts are higher; rates searched for each power.",
        records=("studies/results/recipe_counts", "studies/results/recipe_counts_32k"),
    )


def is_a_uniform_sweep_better() -> Card:
    small = results("studies/results/recipe_sweep")
    large = results("studies/results/recipe_counts_32k")
    check(is_searched(small["sweep + Muon"]), "the sweep's rate is searched")
    rows = []
    for vocabulary, runs in (("8,000", small), ("32,000", large)):
        sweep = runs["sweep + Muon"]
        headless = runs[TIED]
        check(is_clear(sweep["perplexity"], headless["perplexity"]), "the sweep is clearly worse")
        rows.append(
            (
                vocabulary,
                figure(headless["perplexity"]),
                figure(sweep["perplexity"]),
                difference(sweep["perplexity"], headless["perplexity"]),
                percent(sweep["seconds"] / headless["seconds"]),
            )
        )
    return Card(
        name="is_a_uniform_sweep_better",
        question="Is a uniform sweep over the vocabulary better than the targets of a batch?",
        answer="No, it is clearly worse and takes longer",
        figure=f"perplexity {rows[0][2]} instead of {rows[0][1]}",
        text="The variant of modded-nanogpt takes each candidate once, sweeps uniformly over the "
        "vocabulary, and ends with the exact softmax for 7 % of the steps.",
        columns=(
            "vocabulary",
            "headless: perplexity",
            "sweep: perplexity",
            "difference",
            "time of the sweep, share of headless's",
        ),
        rows=rows,
        picture="studies/results/recipe_sweep/results.png",
        conditions=Conditions(
            model=TIED_DECODER,
            vocabulary="as in the table",
            tokens=f"{millions(small['sweep + Muon']['tokens'])}, in batches of 32 rows of 128 "
            "with 8,000 tokens, 8 rows with 32,000",
            machine="CPU",
            seeds="two",
            rates="searched with 8,000 tokens; 4e-3 alone with 32,000",
        ),
        would_change="A longer exact end, more draws, the larger models that the variant was made "
        "for.",
        records=("studies/results/recipe_sweep", "studies/results/recipe_counts_32k"),
    )


CARDS = (
    do_larger_batches_help_at_equal_tokens,
    do_larger_batches_help_at_equal_steps,
    do_smaller_pools_harm,
    do_other_ingredients_help,
    should_candidates_be_weighted_by_count,
    is_a_uniform_sweep_better,
)
