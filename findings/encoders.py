"""Findings about encoders that are pretrained from random weights, and about their tasks."""

from findings.cards import Card, Conditions
from findings.recipes import (
    ENCODER_WITH_DRAWN_TARGETS,
    ENCODER_WITH_EXACT_STEPS,
    ENCODER_WITH_GROWING_POOLS,
    ENCODER_WITH_POOLS,
    TIED,
    TIED_VANILLA,
    UNTIED,
    UNTIED_VANILLA,
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
    millions,
    of_seeds,
    paired_difference,
    percent,
    results,
    share_to_match,
)
from findings.statements import (
    encoder_with_drawn_targets,
    exact_steps_of_encoders_change_nothing_clearly,
    other_pools_differ_in_sign_alone,
)
from headless_trainer.presentation.significance import holm, is_significant, mean_test

TITLE = "Encoders"

SMALL_ENCODER = "two layers of width 128, tied"
SMALL_ROFORMER = "RoFormer with two layers of width 128, tied"
HEADLESS = f"{TIED} + RoFormer"
VANILLA = f"{TIED_VANILLA} + RoFormer"
BATCHES = "batches of 32 rows of 128, 15 % of the tokens masked"
TASKS = {"sst2": "SST-2", "cola": "CoLA", "mrpc": "MRPC", "rte": "RTE", "stsb": "STS-B"}


def do_encoders_gain_early() -> Card:
    runs = results("studies/results/recipe_trunks")
    rows = []
    leads = []
    for name, ending in (
        ("BERT, learned positions", ""),
        ("RoBERTa, learned positions", " + RoBERTa"),
        ("DeBERTa, relative positions", " + DeBERTa"),
        ("RoFormer, rotary positions", " + RoFormer"),
    ):
        headless = runs[TIED + ending]["perplexity"]
        vanilla = runs[TIED_VANILLA + ending]["perplexity"]
        check(max(headless) < min(vanilla), f"headless leads in every pretraining: {name}")
        leads.append(below(headless, vanilla))
        # A vanilla DeBERTa has only the first seed.
        pairs = min(len(headless), len(vanilla))
        rows.append(
            (
                name,
                figure(headless),
                figure(vanilla),
                difference(headless[:pairs], vanilla[:pairs]),
            )
        )
    return Card(
        name="do_encoders_gain_early",
        question="Do encoders gain early in training?",
        answer="Headless leads in every pretraining, most with relative positions",
        figure=f"RoFormer: perplexity {rows[3][1]} against vanilla's {rows[3][2]}, BERT "
        f"{rows[0][1]} against {rows[0][2]}",
        text=f"The lead is {percent(leads[0])} with learned positions and {percent(leads[3])} with "
        "rotary ones, yet two pretrainings do not make it clear. It is a [head "
        "start](does_the_encoders_lead_last.md) that ends.",
        columns=("model", "headless: perplexity", "vanilla: perplexity", "difference"),
        rows=rows,
        picture="studies/results/recipe_trunks/results.png",
        conditions=Conditions(
            model=SMALL_ENCODER,
            vocabulary="8,000",
            tokens=f"{millions(runs[TIED]['tokens'])}, in {BATCHES}",
            machine="CPU",
            seeds="two, and one for a vanilla DeBERTa",
            rates="searched for RoFormer, and for BERT on fewer rows; the others have BERT's",
        ),
        would_change="Longer training, which ends the lead.",
        records=("studies/results/recipe_trunks",),
    )


def does_the_encoders_lead_last() -> Card:
    first = results("studies/results/recipe_trunks")
    longer = results("studies/results/recipe_roformer_longest")
    longest = results("studies/results/recipe_roformer_6000")
    rows = []
    for runs in (first, longer, longest):
        headless = runs[HEADLESS]
        vanilla = runs[VANILLA]
        check(headless["seeds"] == vanilla["seeds"], "the seeds are pairs")
        rows.append(
            (
                millions(headless["tokens"]),
                str(len(headless["seeds"])),
                figure(headless["perplexity"]),
                figure(vanilla["perplexity"]),
                difference(headless["perplexity"], vanilla["perplexity"], 3),
                difference(headless["accuracy"], vanilla["accuracy"], 2, factor=100),
            )
        )
    # Half and twice the rate of the longest runs were tried with one seed.
    other_rates = results("studies/results/recipe_roformer_6000_rates")
    losses = [
        perplexity / longest[recipe]["rates_tried"]["0.002"] - 1
        for recipe in (HEADLESS, VANILLA)
        for perplexity in other_rates[recipe]["rates_tried"].values()
    ]
    check(min(losses) > 0, "half and twice the rate are worse")
    for runs in (longer, longest):
        perplexities = runs[HEADLESS]["perplexity"], runs[VANILLA]["perplexity"]
        accuracies = runs[HEADLESS]["accuracy"], runs[VANILLA]["accuracy"]
        check(not is_clear(*perplexities), "later perplexities show no clear difference")
        check(is_clear(*accuracies), "later accuracies differ clearly")
        check(sum(accuracies[0]) < sum(accuracies[1]), "headless's later accuracy is lower")
    return Card(
        name="does_the_encoders_lead_last",
        question="Are headless encoders better in the end?",
        answer="No, headless's accuracy ends a point lower, and the perplexities do not differ "
        "clearly",
        figure=f"perplexity {rows[2][2]} against vanilla's {rows[2][3]} after 24.6 M tokens",
        text="The large lead after 1.6 M tokens is a head start. Later the perplexities do not "
        "differ clearly, and the accuracies do. Headless predicts a point fewer of the masked "
        "tokens.",
        columns=(
            "tokens",
            "seeds",
            "headless: perplexity",
            "vanilla: perplexity",
            "difference of perplexities",
            "difference of accuracies, points",
        ),
        rows=rows,
        picture="studies/results/recipe_roformer_longest/results.png",
        conditions=Conditions(
            model=SMALL_ROFORMER,
            vocabulary="8,000",
            tokens=f"as in the table, in {BATCHES}",
            machine="CPU, but an H100 for nine of the sixteen longest runs",
            seeds="as in the table",
            rates="searched; for 24.6 M tokens on one seed, where half and twice are "
            f"{figure(min(losses), 0, 100)} to {percent(max(losses))} worse for both",
        ),
        would_change="[Larger pools](do_larger_pools_help_encoders.md), which close the gap; "
        "larger encoders, larger vocabularies.",
        records=(
            "studies/results/recipe_trunks",
            "studies/results/recipe_roformer_longest",
            "studies/results/recipe_roformer_6000",
            "studies/results/recipe_roformer_6000_rates",
        ),
    )


def do_larger_pools_help_encoders() -> Card:
    lengths = []
    for of_batches, with_pools in (
        ("recipe_roformer_longest", "recipe_roformer_longest_pools"),
        ("recipe_roformer_6000", "recipe_roformer_6000_pools"),
    ):
        runs = results(f"studies/results/{of_batches}")
        pools = results(f"studies/results/{with_pools}")[ENCODER_WITH_POOLS]
        perplexities, accuracies = (
            by_candidates(key, pools, runs[HEADLESS], runs[VANILLA])
            for key in ("perplexity", "accuracy")
        )
        lengths.append((pools, perplexities, accuracies))
    rows = []
    for pools, perplexities, accuracies in lengths:
        tokens = millions(pools["tokens"])
        pairs = zip(accuracies[LARGER_POOLS], accuracies[BATCH_ALONE], strict=True)
        for with_more, without in pairs:
            check(with_more - without > 0.005, f"pools raise each accuracy: {tokens}")
        gap = paired_difference(accuracies[LARGER_POOLS], accuracies["vanilla"])[0]
        check(gap > -0.002, f"accuracy is within 0.2 points of vanilla's, or above it: {tokens}")
        check(
            below(perplexities[LARGER_POOLS], perplexities["vanilla"]) > -0.005,
            f"perplexity is level or lower: {tokens}",
        )
        for label, name in (
            ("headless, the batch alone", BATCH_ALONE),
            ("headless, pools of 16,256", LARGER_POOLS),
            ("vanilla", "vanilla"),
        ):
            compared = ["", ""]
            if name != "vanilla":
                compared = [
                    difference(perplexities[name], perplexities["vanilla"], 2),
                    difference(accuracies[name], accuracies["vanilla"], 2, factor=100),
                ]
            rows.append(
                (
                    f"{tokens}, {label}",
                    figure(perplexities[name]),
                    compared[0],
                    percent(accuracies[name], 2),
                    compared[1],
                )
            )
    (shorter, _, _), (longer, _, in_the_end) = lengths
    higher_rate = results("studies/results/recipe_roformer_longest_pools_rate")[ENCODER_WITH_POOLS]
    gain = below(higher_rate["perplexity"], shorter["perplexity"][:1])
    check(0 < gain < 0.02, "twice the rate is a little better with the first seed")
    return Card(
        name="do_larger_pools_help_encoders",
        question="Do larger pools close the gap of encoders?",
        answer="Yes, with pools of 16,256 targets accuracy is vanilla's, too",
        figure=f"accuracy {percent(in_the_end[LARGER_POOLS], 2)} against vanilla's "
        f"{percent(in_the_end['vanilla'], 2)} after 24.6 M tokens",
        text="An encoder predicts few tokens in a step, so its pools are small. `--pool_size` adds "
        "the targets of some twenty steps before. It removes the point of accuracy that headless "
        "lacks without it.",
        columns=(
            "tokens, candidates",
            "perplexity",
            "minus vanilla",
            "accuracy",
            "minus vanilla, points",
        ),
        rows=rows,
        conditions=Conditions(
            model=SMALL_ROFORMER,
            vocabulary="8,000",
            tokens=f"as in the table, in {BATCHES}",
            machine="CPU",
            seeds=" and ".join(in_words(len(pools["seeds"])) for pools in (shorter, longer)),
            rates="searched without pools; with pools 2e-3 alone, but for one pretraining of "
            f"12.3 M tokens at 4e-3, whose perplexity is {percent(gain)} lower",
        ),
        would_change="More pretrainings, larger encoders, larger vocabularies, other sizes of "
        "pools.",
        records=(
            "studies/results/recipe_roformer_longest_pools",
            "studies/results/recipe_roformer_longest_pools_rate",
            "studies/results/recipe_roformer_longest",
            "studies/results/recipe_roformer_6000_pools",
            "studies/results/recipe_roformer_6000",
        ),
    )


def do_other_pools_do_better() -> Card:
    recent = results("studies/results/recipe_roformer_longest_pools")[ENCODER_WITH_POOLS]
    others = dict(results("studies/results/recipe_roformer_pool_variants"))
    others |= results("studies/results/recipe_roformer_exact_steps")
    others[ENCODER_WITH_DRAWN_TARGETS] = encoder_with_drawn_targets()
    rows = [
        (
            "targets of recent steps",
            str(len(recent["seeds"])),
            figure(recent["perplexity"]),
            "",
            percent(recent["accuracy"], 2),
            "",
        )
    ]
    for label, recipe in (
        ("targets drawn by frequency", ENCODER_WITH_DRAWN_TARGETS),
        ("targets of recent steps, growing", ENCODER_WITH_GROWING_POOLS),
        ("targets of recent steps, every eighth step exact", ENCODER_WITH_EXACT_STEPS),
    ):
        other = others[recipe]
        same = {key: of_seeds(recent, key, other["seeds"]) for key in ("perplexity", "accuracy")}
        rows.append(
            (
                label,
                str(len(other["seeds"])),
                figure(other["perplexity"]),
                difference(other["perplexity"], same["perplexity"], 2),
                percent(other["accuracy"], 2),
                difference(other["accuracy"], same["accuracy"], 2, factor=100),
            )
        )
    check(
        other_pools_differ_in_sign_alone(others),
        "drawn targets are worse in each pretraining, growing pools better, and none clearly",
    )
    check(exact_steps_of_encoders_change_nothing_clearly(others), "nor do exact steps")
    return Card(
        name="do_other_pools_do_better",
        question="Should an encoder's pools be drawn, or grow, or some steps be exact?",
        answer="No clear difference: drawn targets are worse and growing pools better in each "
        "pretraining, by little",
        figure=f"perplexity {rows[1][2]} with drawn targets, {rows[2][2]} with growing pools, "
        f"{rows[0][2]} with neither",
        text="`--pool_size` tops pools up with the targets of recent steps. Growing pools begin "
        "with the batch alone and end with the same size, so that most steps cost less. The "
        "commands have no flag for these variants.",
        columns=(
            "pools of 16,256 targets",
            "seeds",
            "perplexity",
            "minus that of recent targets",
            "accuracy",
            "minus, points",
        ),
        rows=rows,
        conditions=Conditions(
            model=SMALL_ROFORMER,
            vocabulary="8,000",
            tokens=f"12.3 M, in {BATCHES}",
            machine="CPU",
            seeds="as in the table; differences are between the same seeds",
            rates="2e-3 alone",
        ),
        would_change="Other sizes of pools, of which smaller ones might do as growing ones; other "
        "rates; longer training. A decoder's growing pools are "
        "[level](do_growing_pools_help_decoders.md) with those of one size.",
        records=(
            "studies/results/recipe_roformer_pool_variants",
            "studies/results/recipe_roformer_drawn_third",
            "studies/results/recipe_roformer_exact_steps",
            "studies/results/recipe_roformer_longest_pools",
        ),
    )


def is_glue_better() -> Card:
    shorter = results("studies/results/glue")
    of_pools = [shorter[0], *results("studies/results/glue_pools")]
    plain = results("studies/results/glue_cross_entropy")
    longer = results("studies/results/glue_6000")
    tuned = results("studies/results/glue_6000_rate")
    compared = (
        ("12.3 M", "balanced cross-entropy", HEADLESS, shorter),
        ("12.3 M", "the same, headless with pools", ENCODER_WITH_POOLS, of_pools),
        ("12.3 M", "plain cross-entropy", HEADLESS, plain),
        ("24.6 M", "balanced cross-entropy", HEADLESS, longer),
        ("24.6 M", "the same, rate 3e-4", HEADLESS, tuned),
    )
    rows = []
    for tokens, fine_tuning, recipe, runs in compared:
        vanilla, headless = (run["scores"]["average"] for run in runs)
        check(runs[0]["recipe"] == VANILLA, "the first record is vanilla")
        check(runs[1]["recipe"] == recipe, "the second record is headless")
        check(not is_clear(headless, vanilla), f"no clear difference: {tokens}, {fine_tuning}")
        rows.append(
            (
                tokens,
                fine_tuning,
                figure(headless),
                figure(vanilla),
                difference(headless, vanilla),
            )
        )
    return Card(
        name="is_glue_better",
        question="Are headless encoders better on GLUE?",
        answer="No clear difference on five tasks of GLUE",
        figure=f"average {rows[-1][2]} against vanilla's {rows[-1][3]}",
        short_figure="none that is clear",
        text="The averages of SST-2, CoLA, MRPC, RTE and STS-B are within a point of each other "
        "with both losses and both lengths, also with pools of 16,256 targets. The paper reports "
        "0.9 points at equal tokens for larger models.",
        columns=("tokens", "fine-tuning", "headless", "vanilla", "headless minus vanilla"),
        rows=rows,
        conditions=Conditions(
            model=SMALL_ROFORMER,
            vocabulary="8,000",
            tokens="as in the table; fine-tuned on all rows of a task, best of three epochs",
            machine="CPU, but an H100 for nine of the longer pretrainings",
            seeds="four pretrainings, and eight in the last row, with one fine-tuning each",
            rates="pretrained at 2e-3; fine-tuned at 1e-3, and at the best of three rates on two "
            "other models in the last row",
        ),
        would_change="Larger encoders, which learn more on tasks other than SST-2; more texts. An "
        "older comparison of [BERTs after 1.6 M tokens](archive.md#encoders-on-tasks) is in the "
        "archive.",
        records=(
            "studies/results/glue",
            "studies/results/glue_pools",
            "studies/results/glue_cross_entropy",
            "studies/results/glue_6000",
            "studies/results/glue_6000_rate",
        ),
    )


def which_tasks_differ() -> Card:
    vanilla, headless = (run["scores"] for run in results("studies/results/glue_6000_rate"))
    p_values = [mean_test(headless[task], vanilla[task], paired=True) for task in TASKS]
    check(not any(map(is_significant, holm(p_values))), "no task differs after a correction")
    check(is_clear(headless["sst2"], vanilla["sst2"]), "SST-2 alone is clear by itself")
    rows = [
        (
            name,
            figure(headless[task]),
            figure(vanilla[task]),
            difference(headless[task], vanilla[task], 2),
        )
        for task, name in TASKS.items()
    ]
    clear = [task for task in TASKS if is_clear(headless[task], vanilla[task])]
    check(clear == ["sst2"], "no other task is clear")
    check(sum(headless["sst2"]) < sum(vanilla["sst2"]), "vanilla leads on SST-2")
    return Card(
        name="which_tasks_differ",
        question="On which tasks of GLUE do the methods differ?",
        answer="On none, after a correction for five tests",
        figure=f"SST-2: {rows[0][1]} against vanilla's {rows[0][2]}",
        text="Vanilla's lead on SST-2 is clear by itself, and no longer after Holm's correction "
        "for five tasks. Only on SST-2 do encoders this small learn much.",
        columns=("task", "headless", "vanilla", "headless minus vanilla"),
        rows=rows,
        conditions=Conditions(
            model=SMALL_ROFORMER,
            vocabulary="8,000",
            tokens="24.6 M; fine-tuned with balanced cross-entropy, best of three epochs",
            machine="CPU, but an H100 for nine of the pretrainings",
            seeds=f"{in_words(len(headless['sst2']))} pretrainings with one fine-tuning each",
            rates="pretrained at 2e-3, fine-tuned at 3e-4, the best of three on two other models",
        ),
        would_change="Larger encoders, more pretrainings. After 12.3 M tokens headless leads on "
        "SST-2 by about a point, which is not clear either.",
        records=("studies/results/glue_6000_rate", "studies/results/glue"),
    )


def do_large_weights_harm_fine_tuning() -> Card:
    weight_decay = results("studies/results/glue_weight_decay")
    more = results("studies/results/glue_weight_decay_more")
    others = results("studies/results/glue_weight_decay_others")
    vanilla_of_glue = results("studies/results/glue")[0]
    pretrained = results("studies/results/recipe_roformer_longest")
    decayed = results("studies/results/recipe_roformer_weight_decay")
    scores = {
        "headless, 0.01": weight_decay[0]["scores"]["average"],
        "headless, 0.1": others[0]["scores"]["average"],
        "headless, 0.3": weight_decay[1]["scores"]["average"] + more[0]["scores"]["average"],
        "vanilla, 0.01": vanilla_of_glue["scores"]["average"] + more[1]["scores"]["average"],
        "vanilla, 0.3": others[1]["scores"]["average"],
    }
    perplexities = {
        "headless, 0.01": pretrained[HEADLESS]["perplexity"],
        "headless, 0.1": decayed[f"{HEADLESS} + weight decay 0.1"]["perplexity"],
        "headless, 0.3": pretrained[f"{HEADLESS} + weight decay 0.3"]["perplexity"],
        "vanilla, 0.01": pretrained[VANILLA]["perplexity"],
        "vanilla, 0.3": decayed[f"{VANILLA} + weight decay 0.3"]["perplexity"],
    }
    of_four = weight_decay[1]["scores"]["average"]
    check(
        not is_clear(of_four, scores["headless, 0.01"]), "more weight decay is not clearly better"
    )
    check(
        not is_clear(scores["headless, 0.3"], scores["vanilla, 0.01"]),
        "headless with weight decay is not clearly better than vanilla",
    )
    return Card(
        name="do_large_weights_harm_fine_tuning",
        question="Do headless models' large weights harm fine-tuning?",
        answer="Not shown, since more weight decay gives no clear difference on GLUE",
        figure=f"average {figure(of_four)} with a weight decay of 0.3, "
        f"{figure(scores['headless, 0.01'])} with 0.01",
        text="Headless pretraining allows higher rates, which leave larger weights. A weight decay "
        "of 0.3 shrinks them. The scores rise a little in headless and vanilla, and vanilla's "
        "perplexity suffers.",
        columns=(
            "method, weight decay",
            "average of five tasks",
            "its pretrainings",
            "perplexity",
            "its pretrainings",
        ),
        rows=[
            (
                name,
                figure(scores[name]),
                str(len(scores[name])),
                figure(perplexities[name]),
                str(len(perplexities[name])),
            )
            for name in scores
        ],
        conditions=Conditions(
            model=SMALL_ROFORMER,
            vocabulary="8,000",
            tokens=f"{millions(pretrained[HEADLESS]['tokens'])}, in {BATCHES}",
            machine="CPU",
            seeds="as in the table",
            rates="pretrained at 4e-3, vanilla at 2e-3; fine-tuned at 1e-3",
        ),
        would_change="More pretrainings, larger encoders, other rates of fine-tuning.",
        records=(
            "studies/results/glue_weight_decay",
            "studies/results/glue_weight_decay_more",
            "studies/results/glue_weight_decay_others",
            "studies/results/glue",
            "studies/results/recipe_roformer_longest",
            "studies/results/recipe_roformer_weight_decay",
        ),
    )


def tied_or_untied_encoders() -> Card:
    runs = results("studies/results/recipe_encoders")
    rows = [
        (name, figure(runs[recipe]["perplexity"]), percent(runs[recipe]["accuracy"], 2))
        for name, recipe in (
            ("headless, tied", TIED),
            ("headless, untied", UNTIED),
            ("vanilla, tied", TIED_VANILLA),
            ("vanilla, untied", UNTIED_VANILLA),
        )
    ]
    tied = runs[TIED]["perplexity"]
    check(min(runs[UNTIED]["perplexity"]) > max(tied), "untied headless is worse")
    check(
        is_clear(runs[UNTIED_VANILLA]["perplexity"], runs[TIED_VANILLA]["perplexity"]),
        "untied vanilla is clearly worse",
    )
    return Card(
        name="tied_or_untied_encoders",
        question="Should an encoder's candidates have a matrix of their own?",
        answer="No, untying harms a small BERT with either method",
        figure=f"headless: perplexity {figure(tied)} tied, {rows[1][1]} untied",
        text="A reason may be that an encoder predicts only the masked tokens, so that a separate "
        "matrix learns from few targets. Small [decoders](tied_or_untied.md) gain from it.",
        columns=("", "perplexity", "accuracy"),
        rows=rows,
        conditions=Conditions(
            model="BERT with two layers of width 128",
            vocabulary="8,000",
            tokens=f"{millions(runs[TIED]['tokens'])}, in {BATCHES}",
            machine="CPU",
            seeds="two, and one for untied headless",
            rates="searched for the tied models; 4e-3 alone, and the better of two, for the untied",
        ),
        would_change="Longer training, encoders with rotary positions.",
        records=("studies/results/recipe_encoders",),
    )


def does_it_hold_for_seven_languages() -> Card:
    runs = results("studies/results/recipe_multilingual")
    headless = runs[HEADLESS]
    vanilla = runs[VANILLA]
    check(max(headless["perplexity"]) < min(vanilla["perplexity"]), "headless leads early")
    time = headless["seconds"] / vanilla["seconds"]
    to_match = share_to_match(headless, vanilla, "seconds")
    return Card(
        name="does_it_hold_for_seven_languages",
        question="Does a multilingual encoder gain?",
        answer="Its loss falls sooner, though not clearly; on XNLI it is behind at that rate, and "
        "level at half of it",
        figure=f"vanilla's final perplexity after {percent(to_match)} of its time",
        text="The scores on XNLI have no file and stand in the [archive](archive.md#xnli). There "
        "headless pretrained at vanilla's rate is level with vanilla, and headless pretrained at "
        "twice that rate, as in this table, is behind.",
        columns=("", "rate", "perplexity", "time, share of vanilla's"),
        rows=[
            ("headless", "8e-3", figure(headless["perplexity"]), percent(time)),
            ("vanilla", "4e-3", figure(vanilla["perplexity"]), percent(1)),
            (
                "headless minus vanilla",
                "",
                difference(headless["perplexity"], vanilla["perplexity"]),
                "",
            ),
        ],
        picture="studies/results/recipe_multilingual/results.png",
        conditions=Conditions(
            model=SMALL_ROFORMER,
            vocabulary="32,000",
            tokens=f"{millions(headless['tokens'])} in Arabic, Chinese, English, French, German, "
            f"Hindi and Spanish, in {BATCHES}",
            machine="CPU",
            seeds=in_words(len(headless["seeds"])),
            rates="the better of 4e-3 and 8e-3 for headless, 4e-3 alone for vanilla",
        ),
        would_change="Rates searched for vanilla; longer training, in which the lead of an English "
        "encoder [ends](does_the_encoders_lead_last.md).",
        records=("studies/results/recipe_multilingual",),
    )


CARDS = (
    does_the_encoders_lead_last,
    do_larger_pools_help_encoders,
    do_other_pools_do_better,
    do_encoders_gain_early,
    is_glue_better,
    which_tasks_differ,
    do_large_weights_harm_fine_tuning,
    tied_or_untied_encoders,
    does_it_hold_for_seven_languages,
)
