"""Findings about the time and memory of training steps on a CPU."""

import statistics
from collections.abc import Mapping
from typing import Any

from findings.cards import Card, Conditions, card_links
from findings.records import check, figure, one_having, percent, results
from headless_trainer.presentation.tables import markdown

TITLE = "Time and memory on a CPU"

HEADLESS = "headless"
TRUNK = "trunk only"
EXACT = "our vanilla"
TRANSFORMERS = "transformers"
SAMPLED = "sampled softmax"

CORES = "two cores of a shared AMD EPYC, float32, torch 2.13"
QUIET_CORES = "two cores of an AMD EPYC with nothing else to do, float32, torch 2.13, two threads"
ROUNDS = (
    "none; medians over rounds in which the methods take turns; a ratio is the median over rounds, "
    "not the quotient of the medians"
)
NO_RATES = "not trained; only steps are timed"
RANDOM_WEIGHTS = "with random weights"
DRAWN = "drawn with as many different ones as in a text"

# What is timed, its record, and the rows of its batch.
STEPS = (
    ("BERT-small, V = 32,000, 16 x 128 tokens", "benchmarks/results/step_bert_small_32k", "16"),
    ("BERT-small, V = 50,304, 8 x 128 tokens", "benchmarks/results/step_bert_small", "8"),
    ("BERT-small, V = 120,000, 8 x 128 tokens", "benchmarks/results/step_bert_small_120k", "8"),
    ("decoder of width 192, V = 32,000, 64 x 128 tokens", "benchmarks/results/step_decoder", "64"),
)
STEP_RECORDS = tuple(folder for _, folder, _ in STEPS)
XLM_R = "benchmarks/results/step_xlm_roberta"
DECODER = "benchmarks/results/step_decoder"
GEMMA = "benchmarks/results/compare_steps_gemma"
# On a first and a second machine.
GEMMA_STEPS = (GEMMA, "benchmarks/results/compare_steps_gemma_second")
# By benchmarks/step.py on the second machine.
GEMMA_WITH_RANDOM_WEIGHTS = "benchmarks/results/step_gemma"
MINILM = "benchmarks/results/compare_steps_minilm"
OBJECTIVES = {
    "trunk": "trunk alone",
    "headless": "headless",
    "sampled_softmax": "sampled softmax, exact steps included",
    "vanilla": "our exact softmax",
    "transformers": "transformers",
}

OF_STEPS = Conditions(
    model="BERT-small (four layers of width 512) and the decoder of the paper's table 10 "
    f"(three layers of width 192), {RANDOM_WEIGHTS}",
    vocabulary="as in the table",
    tokens=f"as in the table, {DRAWN}",
    machine=f"{CORES}; one thread for the first row and the last, two for the others",
    seeds=ROUNDS,
    rates=NO_RATES,
)


def seconds(step: dict[str, Any], digits: int = 2) -> str:
    """Return the median time of a step."""
    return figure(statistics.median(step["seconds"]), digits)


def gib(step: dict[str, Any]) -> str:
    """Return the peak memory of the process that took a step."""
    return figure(step["mib"] / 1024)


def steps() -> Card:
    records = [(name, results(folder)[rows]) for name, folder, rows in STEPS]
    gains = [record[EXACT]["ratio"] for _, record in records]
    check(min(gains) > 1, "every headless step is faster")
    for _, record in records:
        check(record[TRANSFORMERS]["ratio"] > record[EXACT]["ratio"], "transformers is slower")
    check(gains[3] == max(gains), "the narrow decoder gains most")
    check(gains[0] < gains[1] < gains[2], "a larger vocabulary gains more")
    return Card(
        name="cpu_steps",
        question="How much faster is a headless step than an exact one on a CPU?",
        answer=f"A headless step is {figure(min(gains))} to {figure(max(gains))} times as fast as "
        "one with our exact softmax on a CPU",
        figure=f"{figure(gains[1])} times as fast with BERT-small, "
        f"{figure(gains[3])} times with a narrow decoder",
        text="The gain is what the exact head takes of a step, so it grows with the vocabulary and "
        "with the predicted positions, and shrinks with the width and depth of the model.",
        columns=(
            "model, vocabulary, batch",
            "headless (s)",
            "trunk alone (s)",
            "our exact softmax (s)",
            "transformers (s)",
            "exact over headless",
        ),
        rows=[
            (
                name,
                seconds(record[HEADLESS]),
                seconds(record[TRUNK]),
                seconds(record[EXACT]),
                seconds(record[TRANSFORMERS]),
                figure(record[EXACT]["ratio"], digits=2),
            )
            for name, record in records
        ],
        conditions=OF_STEPS,
        would_change="Your model on your machine: `headless-trainer compare-steps` measures it.",
        records=STEP_RECORDS,
    )


def memory() -> Card:
    records = [(name, results(folder)[rows]) for name, folder, rows in STEPS]
    saved = [1 - record[HEADLESS]["mib"] / record[EXACT]["mib"] for _, record in records]
    check(0.01 < min(saved) and max(saved) < 0.13, "headless saves 2 to 12 % of the memory")
    return Card(
        name="cpu_memory",
        question="How much memory does a headless step save on a CPU?",
        answer="Against an exact softmax in chunks, a headless step saves little memory on a CPU",
        figure=f"{percent(min(saved))} to {percent(max(saved))} of the peak",
        text="An exact softmax that is computed in chunks never holds all scores, so most memory "
        "is weights, moments and activations, which both have. transformers holds all scores.",
        columns=(
            "model, vocabulary, batch",
            "headless (GiB)",
            "trunk alone (GiB)",
            "our exact softmax (GiB)",
            "transformers (GiB)",
            "saved of the exact softmax's",
        ),
        rows=[
            (
                name,
                gib(record[HEADLESS]),
                gib(record[TRUNK]),
                gib(record[EXACT]),
                gib(record[TRANSFORMERS]),
                percent(share),
            )
            for (name, record), share in zip(records, saved, strict=True)
        ],
        conditions=OF_STEPS,
        would_change="`--sparse_embedding_updates` with a large vocabulary, larger batches.",
        records=STEP_RECORDS,
    )


def small_pools() -> Card:
    record = results(DECODER)["64"]
    methods = {
        "trunk alone": record[TRUNK],
        "headless, all targets as candidates": record[HEADLESS],
        "headless, `--pool_size 2048`": record["headless, pools of 2,048"],
        "headless, `--pool_size 1024`": record["headless, pools of 1,024"],
        "our exact softmax": record[EXACT],
        "transformers": record[TRANSFORMERS],
    }
    small = record["headless, pools of 1,024"]
    check(small["ratio"] < record["headless, pools of 2,048"]["ratio"] < 1, "pools save time")
    saved = 1 - small["ratio"]
    loss = 1 - record[TRUNK]["ratio"]
    check(saved > 0.8 * loss, "pools take most of the loss's time")
    return Card(
        name="cpu_small_pools",
        question="Do smaller pools make a headless step cheaper?",
        answer="Pools of a batch's targets take most of the loss's time off a narrow decoder's "
        "step",
        figure=f"{percent(saved)} less time with pools of 1,024 targets",
        text=f"Scoring each of 8,192 targets against all of them takes {percent(loss)} of the "
        "step. In pools of 1,024 a target meets an eighth of them. Memory does not change much.",
        columns=("method", "step (s)", "over headless", "peak memory (GiB)"),
        rows=[
            (name, seconds(step), figure(step["ratio"], digits=2), gib(step))
            for name, step in methods.items()
        ],
        conditions=Conditions(
            model=f"the decoder of the paper's table 10, three layers of width 192, "
            f"{RANDOM_WEIGHTS}",
            vocabulary="32,000",
            tokens=f"64 x 128 a step, {DRAWN}",
            machine=f"{CORES}, one thread",
            seeds=ROUNDS,
            rates=NO_RATES,
        ),
        would_change="Wider models, whose loss is a smaller part of a step. Smaller pools may cost "
        "[a little quality](do_smaller_pools_harm.md).",
        records=(DECODER,),
    )


def loss_alone() -> Card:
    folder = "benchmarks/results/loss"
    record = results(folder)
    names = {
        "headless, `cwt_loss`": "K x U, cwt_loss (auto)",
        "headless, torch's `linear_cross_entropy`": "K x U, torch linear_cross_entropy",
        "headless, the paper's form": "K x K, the paper's form",
        "exact softmax, ours in chunks": "K x V, vocabulary_cross_entropy chunked",
        "exact softmax, plain": "K x V, cross_entropy",
        "exact softmax, torch's `linear_cross_entropy`": "K x V, torch linear_cross_entropy",
    }
    methods = {name: one_having(record, method=method) for name, method in names.items()}
    exact = [methods[name]["ratio"] for name in methods if name.startswith("exact")]
    ours = methods["exact softmax, ours in chunks"]["ratio"]
    paper = methods["headless, the paper's form"]["ratio"]
    torch_ratio = methods["headless, torch's `linear_cross_entropy`"]["ratio"]
    check(min(exact) == ours, "our exact softmax is the fastest of three")
    check(0.95 < torch_ratio < 1.05, "torch's loss is as fast on the same candidates")
    return Card(
        name="cpu_loss",
        question="How much faster is the headless loss alone on a CPU?",
        answer=f"The headless loss is {figure(ours, digits=0)} times as fast as the fastest of "
        "three exact ones on a CPU",
        figure=f"{figure(ours, digits=0)} times, and {figure(paper)} times the paper's form",
        text="It scores each prediction against the distinct targets, of which there are few. "
        "torch's own loss takes as long on the same candidates. A whole step gains less, "
        "since the layers take most of it.",
        columns=("loss, forward and backward", "ms", "over `cwt_loss`", "peak memory (MiB)"),
        rows=[
            (
                name,
                figure(statistics.median(method["seconds"]), digits=0, factor=1000),
                figure(method["ratio"], digits=2),
                figure(method["mib"], digits=0),
            )
            for name, method in methods.items()
        ],
        conditions=Conditions(
            model="none, only the loss of 8,192 random outputs of width 512",
            vocabulary="50,304",
            tokens="8,192 targets, 1,919 of them distinct, drawn with a Zipf-like distribution",
            machine=f"{CORES}, two threads",
            seeds=ROUNDS,
            rates=NO_RATES,
        ),
        would_change="A GPU: [there](gpu_loss.md) exact kernels are far faster.",
        records=(folder,),
    )


def sampled_softmax() -> Card:
    record = results(XLM_R)["4"]
    methods = {
        "sampled softmax": record[SAMPLED],
        "trunk alone": record[TRUNK],
        "our exact softmax": record[EXACT],
        "transformers": record[TRANSFORMERS],
    }
    exact = record[EXACT]["ratio"]
    theirs = record[TRANSFORMERS]["ratio"]
    check(1.1 < exact < 1.4, "sampled softmax saves about a fifth of the exact step")
    check(theirs > 1.5 * exact, "most of the gain over transformers is the exact softmax's")
    masked_alone = statistics.median(record[TRANSFORMERS]["seconds"]) / statistics.median(
        record[EXACT]["seconds"]
    )
    check(masked_alone > 1.5, "our exact softmax is much faster than transformers")
    return Card(
        name="cpu_sampled_softmax",
        question="How much faster is a step of XLM-R with sampled softmax on a CPU?",
        answer="Most of what a step of XLM-R saves on a CPU is saved by the exact softmax, which "
        "scores masked positions alone",
        figure=f"{figure(exact)} times as fast as with our exact softmax, {figure(theirs)} times "
        "as fast as transformers",
        text=f"Our exact softmax is {figure(masked_alone)} times as fast as transformers, which "
        "scores every position. Sampled softmax adds little to that with so few predictions, and "
        "its peak of memory is that of its exact steps.",
        columns=("method", "step (s)", "over sampled softmax", "peak memory (GiB)"),
        rows=[
            (name, seconds(step), figure(step["ratio"], digits=2), gib(step))
            for name, step in methods.items()
        ],
        conditions=Conditions(
            model=f"XLM-R base, {RANDOM_WEIGHTS}",
            vocabulary="250,002",
            tokens=f"4 x 128 a step, {DRAWN}; 15 % of them are predicted",
            machine=QUIET_CORES,
            seeds=ROUNDS,
            rates=NO_RATES,
        ),
        would_change="The steps are those between two exact ones; every eighth takes the time of "
        "the exact softmax. Larger batches, a higher share of predictions, and a "
        "[GPU](gpu_sampled_softmax.md).",
        records=(XLM_R,),
    )


def spread_within_turns(objectives: dict[str, Any]) -> float:
    """Return by what share of the median the readings of a turn differ at most."""
    return max(
        (max(turn) - min(turn)) / step["median_seconds"]
        for step in objectives.values()
        for turn in step["seconds"]
    )


def gemma() -> Card:
    machines = [results(folder)["objectives"] for folder in GEMMA_STEPS]
    objectives, second = machines
    methods = results(GEMMA_WITH_RANDOM_WEIGHTS)["4"]
    random_weights = {
        "sampled_softmax": methods[SAMPLED],
        "vanilla": methods[EXACT],
        "transformers": methods[TRANSFORMERS],
    }
    gains = [
        machine["vanilla"]["median_seconds"] / machine["sampled_softmax"]["median_seconds"]
        for machine in machines
    ]
    peaks = [objectives[name]["peak_mib"] for name in ("sampled_softmax", "vanilla")]
    spread = max(spread_within_turns(machine) for machine in machines)
    for name, step in random_weights.items():
        ratio = statistics.median(step["seconds"]) / second[name]["median_seconds"]
        check(abs(ratio - 1) < spread, f"{name} takes as long by both ways of timing")
    check(1.8 < min(gains) <= max(gains) < 2.2, "sampled softmax takes about half of the time")
    check(abs(peaks[0] / peaks[1] - 1) < 0.05, "memory is level")
    return Card(
        name="cpu_gemma",
        question="How much faster is a step of Gemma 3 270M with sampled softmax on a CPU?",
        answer="A step of Gemma 3 270M takes about half of the time with sampled softmax on a CPU, "
        "and as much memory",
        figure=f"{figure(gains[0])} and {figure(gains[1])} times as fast as with our exact softmax "
        "on two machines",
        text="The head of this narrow model with its large vocabulary takes two thirds of an exact "
        "step. Exact steps need the memory that the exact softmax needs.",
        columns=(
            "method",
            "step (s)",
            "head's share of the step",
            "peak memory (GiB)",
            "second machine: step (s)",
            "the same with random weights, by `benchmarks/step.py`: step (s)",
        ),
        rows=[
            (
                label,
                figure(objectives[name]["median_seconds"], 2),
                "" if name == "trunk" else percent(objectives[name]["head_share"]),
                figure(objectives[name]["peak_mib"] / 1024),
                figure(second[name]["median_seconds"], 2),
                seconds(random_weights[name]) if name in random_weights else "not measured",
            )
            for name, label in OBJECTIVES.items()
        ],
        conditions=Conditions(
            model="Gemma 3 270M with its real weights",
            vocabulary="262,144",
            tokens="4 x 128 a step, of French novels",
            machine=f"{QUIET_CORES}; the second one has no AVX-512",
            seeds=f"none; medians of two readings, which differ by at most {percent(spread)}",
            rates=NO_RATES,
        ),
        would_change="On an [H100](gpu_sampled_softmax.md) nothing is gained with this model. "
        "Larger batches, bfloat16 and fused kernels raise what an exact head can do.",
        records=(*GEMMA_STEPS, GEMMA_WITH_RANDOM_WEIGHTS),
    )


def minilm() -> Card:
    timed = results(MINILM)["objectives"]
    objectives = {name: timed[name] for name in OBJECTIVES if "median_seconds" in timed[name]}
    exact = objectives["vanilla"]["median_seconds"]
    theirs = objectives["transformers"]["median_seconds"] / exact
    spread = spread_within_turns(objectives)
    for name in ("trunk", "headless"):
        ratio = objectives[name]["median_seconds"] / exact
        check(abs(ratio - 1) < spread, f"{name} takes as long as the exact softmax")
    check(1.7 < theirs < 2, "transformers takes almost twice as long")
    return Card(
        name="cpu_minilm",
        question="How much faster is a step of MiniLM with headless on a CPU?",
        answer="A step of MiniLM is no faster headless than with our exact softmax on a CPU, which "
        f"is {figure(theirs)} times as fast as transformers",
        figure=f"headless {figure(objectives['headless']['median_seconds'], 2)} s, our exact "
        f"softmax {figure(exact, 2)} s, transformers "
        f"{figure(objectives['transformers']['median_seconds'], 2)} s",
        text="The exact softmax scores masked positions alone, and its head takes no more time "
        "than the readings differ by. The checkpoint has no head that sampled softmax could keep.",
        columns=("method", "step (s)", "peak memory (GiB)"),
        rows=[
            (
                OBJECTIVES[name],
                figure(step["median_seconds"], 2),
                figure(step["peak_mib"] / 1024),
            )
            for name, step in objectives.items()
        ],
        conditions=Conditions(
            model="all-MiniLM-L6-v2 with its real weights, a BERT with six layers of width 384",
            vocabulary="30,522",
            tokens="8 x 128 a step, of English novels; 15 % of them are predicted",
            machine=f"{QUIET_CORES}, without AVX-512",
            seeds=f"none; medians of up to seven readings, which differ by at most "
            f"{percent(spread)} within a round",
            rates=NO_RATES,
        ),
        would_change="A larger vocabulary, a higher share of predictions, or a decoder, which "
        "predicts every token.",
        records=(MINILM,),
    )


def steps_table(cards: Mapping[str, Card]) -> str:
    """Return the table of steps on a CPU for docs/will_i_gain.md, and what limits it."""
    rows = []
    for name, folder, batch in STEPS:
        record = results(folder)[batch]
        times = [seconds(record[method]) for method in (EXACT, TRANSFORMERS)]
        rows.append((name, seconds(record[HEADLESS]), "not measured", *times))
    record = results(XLM_R)["4"]
    rows.append(
        (
            "XLM-R base, V = 250,002, 4 x 128 tokens",
            "not measured",
            seconds(record[SAMPLED]),
            seconds(record[EXACT]),
            seconds(record[TRANSFORMERS]),
        )
    )
    objectives = results(GEMMA)["objectives"]
    rows.append(
        (
            "Gemma 3 270M, V = 262,144, 4 x 128 tokens",
            *(
                figure(objectives[name]["median_seconds"], 2)
                for name in ("headless", "sampled_softmax", "vanilla", "transformers")
            ),
        )
    )
    objectives = results(MINILM)["objectives"]
    headless, exact, theirs = (
        figure(objectives[name]["median_seconds"], 2)
        for name in ("headless", "vanilla", "transformers")
    )
    rows.append(
        ("MiniLM, V = 30,522, 8 x 128 tokens", headless, "has no head to keep", exact, theirs)
    )
    head = (
        "model, vocabulary, batch",
        "headless (s)",
        "sampled softmax (s)",
        "vanilla (s)",
        "transformers (s)",
    )
    notes = (
        "Seconds of a training step on two cores of a CPU, in float32 (one thread: the first row "
        "and the decoder's). Sampled softmax of XLM-R is that between two exact steps, and of "
        "Gemma the mean with its exact steps."
    )
    limits = card_links(
        cards,
        (
            "cpu_steps",
            "cpu_sampled_softmax",
            "cpu_gemma",
            "cpu_minilm",
            "cpu_memory",
            "what_do_larger_pools_cost",
        ),
        folder="findings",
    )
    return f"{markdown(head, rows, left=1)}\n\n{notes}\n\n{limits}"


CARDS = (steps, memory, small_pools, loss_alone, sampled_softmax, gemma, minilm)
