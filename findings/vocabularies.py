"""Findings about the size of the vocabulary and about rare tokens."""

from collections.abc import Sequence

from findings.cards import Card, Conditions
from findings.recipes import (
    BATCHES,
    HEADLESS,
    SMALL_BATCHES,
    SMALL_DECODER,
    TIED,
    TIED_DECODER,
    TIED_VANILLA,
    UNTIED,
    UNTIED_VANILLA,
    VANILLA,
    VANILLA_DEFAULT,
)
from findings.records import (
    check,
    difference,
    figure,
    having,
    is_clear,
    one_having,
    results,
)

TITLE = "Vocabularies and rare tokens"

BITS = "bits per byte"


def are_larger_vocabularies_better() -> Card:
    runs = results("studies/results/vocabulary_size")
    tuned = results("studies/results/vocabulary_size_epsilon")
    rows = []
    headless_bits = []
    for vocabulary in (5_000, 15_000, 50_000):
        headless = one_having(runs, recipe=TIED, vocabulary=vocabulary)["bits"]
        vanilla = one_having(runs, recipe=TIED_VANILLA, vocabulary=vocabulary)["bits"]
        check(max(headless) < min(vanilla), f"headless leads in each pretraining: {vocabulary}")
        headless_bits.append(headless)
        rows.append(
            (
                figure(vocabulary, 0),
                figure(headless, 3),
                figure(vanilla, 3),
                difference(headless, vanilla, 3),
            )
        )
    largest = one_having(runs, vocabulary=150_000)["bits"]
    rows.append((figure(150_000, 0), figure(largest, 3), "not run", ""))
    tuned_bits = [run["scores"][BITS] for run in tuned]
    check(abs(tuned_bits[0][0] - tuned_bits[1][0]) < 0.002, "better settings make both level")
    rows.append(
        (
            "50,000, better settings of AdamW",
            figure(tuned_bits[0], 3),
            figure(tuned_bits[1], 3),
            difference(*tuned_bits, 3),
        )
    )
    for smaller, larger in zip(headless_bits, [*headless_bits[1:], largest], strict=True):
        check(is_clear(larger, smaller), "each larger vocabulary is clearly better")
    return Card(
        name="are_larger_vocabularies_better",
        question="Are larger vocabularies better?",
        answer="Yes, up to 150,000 tokens for headless, and up to 50,000 for vanilla",
        figure=f"headless: {rows[3][1]} bits per byte with 150,000 tokens, {rows[0][1]} with 5,000",
        text="Each larger vocabulary is clearly better at equal tokens. Headless's small lead over "
        "vanilla at 50,000 disappears with AdamW's beta2 of 0.999 and epsilon of 1e-5.",
        columns=("vocabulary", "headless: bits per byte", "vanilla: bits per byte", "difference"),
        rows=rows,
        picture="studies/results/vocabulary_size/results.png",
        conditions=Conditions(
            model=TIED_DECODER,
            vocabulary="as in the table",
            tokens=f"0.4 M, in {BATCHES}, so that longer tokens read more text; all models score "
            "the same held-out bytes",
            machine="CPU",
            seeds="two, and one for the last row",
            rates="8e-3 alone",
        ),
        would_change="Rates searched for each vocabulary, longer training, equal text.",
        records=(
            "studies/results/vocabulary_size",
            "studies/results/vocabulary_size_epsilon",
        ),
    )


def does_time_grow_with_the_vocabulary() -> Card:
    decoders = results("studies/results/vocabulary_size")
    encoders = results("studies/results/vocabulary_size_encoders")

    def seconds(runs: Sequence[dict], **values) -> Sequence[float] | None:
        matching = having(runs, **values)
        return matching[0]["seconds"] if matching else None

    sizes = (5_000, 15_000, 50_000, 150_000)
    columns = [
        [seconds(runs, recipe=recipe, vocabulary=size) for size in sizes]
        for runs, recipe in (
            (decoders, TIED),
            (decoders, TIED_VANILLA),
            (encoders, f"{TIED} + RoFormer"),
            (encoders, f"{TIED_VANILLA} + RoFormer"),
        )
    ]
    growths = [sum(times[2]) / sum(times[0]) for times in columns]
    check(growths[1] > 3 * growths[0], "vanilla decoders grow three times as much as headless ones")
    check(growths[3] > 1.9 * growths[2], "vanilla encoders grow twice as much as headless ones")
    return Card(
        name="does_time_grow_with_the_vocabulary",
        question="Does the time of a run grow with the vocabulary?",
        answer="For headless far less than for vanilla",
        figure=f"from 5,000 to 50,000 tokens: decoders {figure(growths[0])} times as long, vanilla "
        f"{figure(growths[1])} times",
        text="Headless still updates the whole embedding in each step. With "
        "`--sparse_embedding_updates` a step's time [does not "
        "grow](archive.md#size-of-the-vocabulary) up to two million tokens, while memory does.",
        columns=(
            "vocabulary",
            "decoder, headless: s",
            "decoder, vanilla: s",
            "encoder, headless: s",
            "encoder, vanilla: s",
        ),
        rows=[
            (
                figure(size, 0),
                *(figure(times[row], 0) if times[row] else "not run" for times in columns),
            )
            for row, size in enumerate(sizes)
        ],
        picture="studies/results/vocabulary_size/results.png",
        conditions=Conditions(
            model="two layers of width 128, tied: GPT-2 and RoFormer",
            vocabulary="as in the table",
            tokens=f"0.4 M for decoders and 1.6 M for encoders, in {BATCHES}",
            machine="CPU; the decoders' seconds are of a whole run, the encoders' of its steps",
            seeds="two",
            rates="none",
        ),
        would_change="Wider models, in which the head is a smaller part of a step.",
        records=(
            "studies/results/vocabulary_size",
            "studies/results/vocabulary_size_encoders",
        ),
    )


def are_a_million_tokens_better() -> Card:
    runs = results("studies/results/vocabulary_size_multilingual")
    bits = [run["scores"][BITS][0] for run in runs]
    check(bits == sorted(bits, reverse=True), "each larger vocabulary is better")
    return Card(
        name="are_a_million_tokens_better",
        question="Are a million tokens better for many languages?",
        answer="Yes, slightly better than half a million, and slower without sparse updates",
        figure=f"{figure(bits[3], 3)} bits per byte with a million tokens, {figure(bits[0], 3)} "
        "with 32,000",
        text="On ten languages bits per byte fall with each larger vocabulary. The seconds are of "
        "training steps without `--sparse_embedding_updates`.",
        columns=("vocabulary", "bytes in a token", "bits per byte", "seconds"),
        rows=[
            (
                figure(run["vocabulary"], 0),
                figure(run["bytes_per_token"], 2),
                figure(run["scores"][BITS], 3),
                figure(run["seconds"], 0),
            )
            for run in runs
        ],
        picture="studies/results/vocabulary_size_multilingual/results.png",
        conditions=Conditions(
            model=f"{TIED_DECODER}, headless",
            vocabulary="as in the table",
            tokens=f"0.4 M of ten languages, in {BATCHES}; all models score the same held-out "
            "bytes",
            machine="CPU",
            seeds="one",
            rates="8e-3 alone",
        ),
        would_change="More pretrainings, longer training; vanilla was not run.",
        records=("studies/results/vocabulary_size_multilingual",),
    )


def do_tasks_gain_from_larger_vocabularies() -> Card:
    runs = results("studies/results/vocabulary_size_encoders")
    rows = []
    for vocabulary in (5_000, 15_000, 50_000):
        headless = one_having(runs, recipe=f"{TIED} + RoFormer", vocabulary=vocabulary)
        vanilla = one_having(runs, recipe=f"{TIED_VANILLA} + RoFormer", vocabulary=vocabulary)
        pair = headless["scores"]["average"], vanilla["scores"]["average"]
        check(not is_clear(*pair), f"no clear difference with {vocabulary}")
        rows.append((figure(vocabulary, 0), figure(pair[0]), figure(pair[1]), difference(*pair)))
    return Card(
        name="do_tasks_gain_from_larger_vocabularies",
        question="Do tasks gain from larger vocabularies?",
        answer="Our runs cannot tell, and headless is not ahead of vanilla",
        figure=f"average of two tasks with 50,000 tokens: {rows[2][1]} against vanilla's "
        f"{rows[2][2]}",
        text="The averages of SST-2 and STS-B rise from 5,000 to 15,000 tokens and not further. "
        "Vanilla's are higher or equal, without a clear difference.",
        columns=("vocabulary", "headless", "vanilla", "headless minus vanilla"),
        rows=rows,
        picture="studies/results/vocabulary_size_encoders/results.png",
        conditions=Conditions(
            model="RoFormer with two layers of width 128, tied",
            vocabulary="as in the table",
            tokens=f"1.6 M, in {BATCHES}; fine-tuned on at most 20,000 rows of a task",
            machine="CPU",
            seeds="two pretrainings with one fine-tuning each",
            rates="pretrained at 8e-3, vanilla at 4e-3, one rate each",
        ),
        would_change="Larger encoders, more tasks, longer pretraining.",
        records=("studies/results/vocabulary_size_encoders",),
    )


def rarest_nats(runs: Sequence[dict], group: int = 0) -> list[float]:
    """Return the cross-entropy of a group of tokens, by default the rarest, of each seed."""
    return [run["cross_entropy"][group] for run in runs]


def which_tokens_gain() -> Card:
    record = results("studies/results/rare_tokens")
    runs = record["recipes"]
    rows = []
    for group in (0, 2, 9):
        tied = (
            rarest_nats(runs[TIED], group),
            rarest_nats(runs[TIED_VANILLA], group),
        )
        untied = (
            rarest_nats(runs[UNTIED], group),
            rarest_nats(runs[UNTIED_VANILLA], group),
        )
        rows.append(
            (
                figure(record["tokens"][group], 0),
                figure(tied[0], 2),
                figure(tied[1], 2),
                difference(*tied, 2),
                difference(*untied, 2),
            )
        )
        if group == 0:
            check(is_clear(*tied), "the gain on the rarest tokens is clear")
            gain = sum(tied[1]) / 2 - sum(tied[0]) / 2
        if group == 9:
            check(not is_clear(*tied), "there is no gain on the most frequent tokens")
    return Card(
        name="which_tokens_gain",
        question="Which tokens gain from headless training?",
        answer="The rarest gain, and the most frequent do not",
        figure=f"{figure(gain, 2)} nats on the rarest tenth of the targets, tied",
        text="Each group has a tenth of the training targets, from tokens that are rare to two "
        "that are very frequent. Early in training headless is ahead on the rare ones.",
        columns=(
            "tokens in the group",
            "headless, tied: nats",
            "vanilla, tied: nats",
            "difference, tied",
            "difference, untied",
        ),
        rows=rows,
        picture="studies/results/rare_tokens/results.png",
        conditions=Conditions(
            model="GPT-2 with two layers of width 128",
            vocabulary="8,000",
            tokens=f"0.8 M, in {BATCHES}; 1,000 held-out rows",
            machine="CPU",
            seeds="two",
            rates="8e-3 alone",
        ),
        would_change="Better settings of AdamW, to which [half of the gain](is_it_adamw.md) "
        "belongs with 32,000 tokens; longer training.",
        records=("studies/results/rare_tokens",),
    )


def is_it_adamw() -> Card:
    runs = results("studies/results/rare_tokens_32k")["recipes"]
    headless = rarest_nats(runs[f"{HEADLESS} + epsilon 1e-5"])
    by_default = rarest_nats(runs[VANILLA_DEFAULT])
    tuned = rarest_nats(runs[VANILLA])
    for vanilla in (by_default, tuned):
        check(is_clear(headless, vanilla), "the gain is clear with either epsilon")
    left = (sum(tuned) - sum(headless)) / (sum(by_default) - sum(headless))
    check(0.4 < left < 0.6, "half of the gain is left")
    return Card(
        name="is_it_adamw",
        question="Is the gain on rare tokens AdamW's doing?",
        answer="Half of it is, with a vocabulary of 32,000",
        figure=f"{difference(by_default, headless, 2).split(' ')[0]} nats with vanilla's default "
        f"epsilon, {difference(tuned, headless, 2).split(' ')[0]} with 1e-5",
        text="AdamW turns the tiny gradients of rows that are no target into full steps, which "
        "harms rare tokens of a vanilla head. An epsilon of 1e-5 removes half of the deficit.",
        columns=("epsilon", "rarest tenth of the targets: nats", "minus headless"),
        rows=[
            ("headless, 1e-5", figure(headless, 2), ""),
            ("vanilla, 1e-8", figure(by_default, 2), difference(by_default, headless, 2)),
            ("vanilla, 1e-5", figure(tuned, 2), difference(tuned, headless, 2)),
        ],
        picture="studies/results/rare_tokens_32k/results.png",
        conditions=Conditions(
            model=SMALL_DECODER,
            vocabulary="32,000",
            tokens=f"0.8 M, in {SMALL_BATCHES}; 400 held-out rows",
            machine="CPU",
            seeds="two",
            rates="4e-3, the best of three for each",
        ),
        would_change="Longer training, other optimizers for the head.",
        records=("studies/results/rare_tokens_32k",),
    )


CARDS = (
    are_larger_vocabularies_better,
    does_time_grow_with_the_vocabulary,
    are_a_million_tokens_better,
    do_tasks_gain_from_larger_vocabularies,
    which_tokens_gain,
    is_it_adamw,
)
