"""Findings about one GPU, with the kernels that were measured and an estimate of newer ones."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from findings.cards import Card, Conditions, card_links
from findings.records import (
    check,
    figure,
    having,
    one_having,
    parts,
    percent,
    results,
    share_to_match,
)
from headless_trainer.presentation.tables import markdown

TITLE = "On a GPU"

FIRST = "benchmarks/results/h100"
SECOND = "benchmarks/results/h100_aligned"
# What stands behind a row of earlier code, in tables that have rows of both.
MARKS = {FIRST: " *", SECOND: ""}

FIRST_CODE = (
    "an earlier version (385c0f1), whose batches had twice a text's distinct tokens, with "
    "candidates that were not aligned and chunks of 2^23 scores"
)
SECOND_CODE = "an earlier version (727bf20), whose steps had chunks of 2^23 scores, today 2^26"
BOTH_CODES = f"rows with * are of {FIRST_CODE}; the others of {SECOND_CODE}"
NO_EXACT_STEPS = "sampled softmax then had uniform draws and no exact steps"

GPU = "one NVIDIA H100 80GB, bfloat16, torch 2.11"
KERNELS = "Liger 0.8.5 (its Triton path), Cut Cross-Entropy 25.1.1 (CCE), and plain logits"
MEASURED = f"{GPU}; exact heads measured: {KERNELS}. QuACK and Liger's CuTe kernels were not"
ROUNDS = "none; medians over rounds in which the methods take turns"
ROUNDS_OF_STEPS = f"{ROUNDS}; what did not fit lacked the memory that the other methods left"
NO_RATES = "not trained; only steps are timed"
RANDOM_WEIGHTS = "with random weights"
DID_NOT_FIT = "did not fit"

OF_LOSSES = Conditions(
    model="none, only the loss of random outputs, forward and backward",
    vocabulary="as in the table",
    tokens="as many different targets as in a text",
    machine=MEASURED,
    seeds=ROUNDS,
    rates=NO_RATES,
)
OF_STEPS = Conditions(
    model=f"as in the table, {RANDOM_WEIGHTS}",
    vocabulary="as in the table",
    tokens="rows of 512 tokens; masked models predict 15 % of them, decoders all",
    machine=MEASURED,
    seeds=ROUNDS,
    rates=NO_RATES,
)

HEADLESS = "headless"
POOLS = "headless, pools of 16,384"
SMALL_POOLS = "headless, pools of 4,096"
TRUNK = "trunk only"
SAMPLED = "sampled softmax"
SPARSE = "sampled softmax, rows"
EXACT = "our vanilla"
TRANSFORMERS = "transformers"

CANDIDATES = "K x U, cwt_loss (auto)"
CANDIDATES_IN_CHUNKS = "K x U, cwt_loss chunks of 67,108,864"
LIGER_ON_CANDIDATES = "K x U, Liger"
PAPERS_FORM = "K x K, the paper's form"
LIGER = "K x V, Liger"
CCE = "K x V, CCE"
PLAIN = "K x V, cross_entropy"
OURS = "K x V, vocabulary_cross_entropy chunks of 67,108,864"

# Targets K, width D and vocabulary V of the losses that cards show.
LOSS_SIZES = (
    (4_096, 768, 32_000),
    (16_384, 768, 50_304),
    (16_384, 768, 128_000),
    (16_384, 2_048, 256_000),
    (65_536, 768, 50_304),
    (65_536, 2_048, 256_000),
)

# What others report of kernels that were not measured here: milliseconds of forward and backward
# on an H200 for 4,096 targets of width 4,096 and a vocabulary of 128,256, in bfloat16. Comparisons
# of this kind stand in https://github.com/linkedin/Liger-Kernel/pull/1356.
REPORTED_SIZE = (4_096, 4_096, 128_256)
REPORTED_MS = {"QuACK 0.6.5": 17.3, "Liger, CuTe": 18.1, "Liger, Triton": 141.0}
# Their rate at that size: 745 TFLOP/s, in units of floating-point operations in a millisecond.
REPORTED_RATE = 745e9

# Widths of the models whose steps were timed.
WIDTHS = {"pythia-70m": 512, "bert-base": 768, "xlm-roberta-base": 768, "gemma-3-270m": 640}
NAMES = {
    "pythia-70m": "Pythia-70M, V = 50,304",
    "bert-base": "BERT-base, V = 50,304",
    "xlm-roberta-base": "XLM-R base, V = 250,002",
    "gemma-3-270m": "Gemma 3 270M, V = 262,144",
}
MASKED = ("bert-base", "xlm-roberta-base")
MASKED_SHARE = 0.15

# Names of the heads that served vanilla, which took the fastest that fits.
HEAD_NAMES = {
    "cross_entropy": "plain logits",
    "Liger": "Liger",
    "Liger, float32 sums": "Liger",
    "CCE": "CCE",
}


def loss_row(size: tuple[int, int, int], method: str) -> dict[str, Any]:
    """Return the timing of a loss at K targets, width D and vocabulary V."""
    targets, width, vocabulary = size
    rows = parts(SECOND)["loss"]["rows"]
    return one_having(rows, K=targets, D=width, V=vocabulary, method=method)


def loss_ms(size: tuple[int, int, int], method: str) -> float | None:
    """Return the milliseconds of a loss, or None where it did not fit into memory."""
    targets, width, vocabulary = size
    rows = having(
        parts(SECOND)["loss"]["rows"], K=targets, D=width, V=vocabulary, method=method, fits=True
    )
    if not rows:
        return None
    return rows[0]["ms"]


def headless_loss_ms(size: tuple[int, int, int]) -> float:
    """Return the milliseconds of the headless loss as it is computed today."""
    targets, _, _ = size
    method = CANDIDATES
    # With so many targets, the default of the measured code had smaller chunks than today's.
    if targets == 65_536:
        method = CANDIDATES_IN_CHUNKS
    return loss_row(size, method)["ms"]


def measured_exact_ms(size: tuple[int, int, int]) -> float:
    """Return the milliseconds of the fastest exact head that was measured."""
    times = [loss_ms(size, method) for method in (LIGER, CCE, PLAIN, OURS)]
    return min(time for time in times if time is not None)


def estimated_ms(size: tuple[int, int, int]) -> float:
    """Return the milliseconds of an exact head at the reported rate.

    Three products of matrices, the scores and both gradients, take two operations for each of
    K x D x V terms.
    """
    targets, width, vocabulary = size
    return 6 * targets * width * vocabulary / REPORTED_RATE


def written_ms(value: float | None, digits: int = 1) -> str:
    """Format milliseconds, or say that they were not measured for lack of memory."""
    if value is None:
        return DID_NOT_FIT
    return figure(value, digits)


def written_size(size: tuple[int, int, int]) -> str:
    """Return the name of a problem of K targets, width D and vocabulary V."""
    targets, width, vocabulary = size
    return f"{targets:,} targets, width {width:,}, V = {vocabulary:,}"


def step(folder: str, model: str, batch: int, method: str) -> dict[str, Any] | None:
    """Return the timing of a step, or None where it did not fit into memory."""
    rows = having(
        parts(folder)["steps"]["rows"], model=model, batch=batch, method=method, fits=True
    )
    if not rows:
        return None
    return rows[0]


def step_ms(folder: str, model: str, batch: int, method: str) -> float:
    """Return the milliseconds of a step.

    Raises:
        ValueError: it did not fit into memory.
    """
    timing = step(folder, model, batch, method)
    if timing is None:
        raise ValueError(f"{method!r} of {model} with {batch} rows did not fit into memory.")
    return timing["ms"]


def exact_over_headless(folder: str, model: str, batch: int) -> float:
    """Return the time of vanilla's step over that of the headless one, the median over rounds."""
    rows = parts(folder)["steps"]["rows"]
    return one_having(rows, model=model, batch=batch, method=EXACT)["over_headless"]


def written_step(folder: str, model: str, batch: int, method: str) -> str:
    """Return the milliseconds of a step for a table."""
    timing = step(folder, model, batch, method)
    if timing is None:
        return DID_NOT_FIT
    return figure(timing["ms"], digits=0)


def written_gib(folder: str, model: str, batch: int, method: str) -> str:
    """Return the peak memory of a step in GiB for a table."""
    timing = step(folder, model, batch, method)
    if timing is None:
        return DID_NOT_FIT
    return figure(timing["gib"])


def exact_head(folder: str, model: str, batch: int) -> str:
    """Return the name of the exact head that vanilla had."""
    timing = step(folder, model, batch, EXACT)
    if timing is None:
        raise ValueError(f"vanilla of {model} with {batch} rows did not fit into memory.")
    return HEAD_NAMES[timing["head"]]


def written_model(folder: str, model: str, batch: int) -> str:
    """Return the name of a model and a batch, with the mark of earlier code."""
    return f"{NAMES[model]}, {batch} rows{MARKS[folder]}"


def loss_alone() -> Card:
    ratios = [measured_exact_ms(size) / headless_loss_ms(size) for size in LOSS_SIZES]
    check(min(ratios) > 1.5, "the headless loss is faster than every exact head measured")
    return Card(
        name="gpu_loss",
        question="How much faster is the headless loss alone on a GPU?",
        answer="The headless loss beats every exact head that was measured on an H100, "
        "and the newest were not",
        figure=f"{figure(min(ratios))} to {figure(max(ratios), digits=0)} times as fast as the "
        "best of Liger's Triton path, CCE and plain logits",
        text="QuACK and Liger's CuTe kernels are reported about eight times as fast as the Triton "
        "path in this table. [By an estimate](gpu_newer_kernels.md) they would leave a smaller "
        "lead, and none at few targets.",
        columns=(
            "size",
            "headless (ms)",
            "Liger, Triton (ms)",
            "CCE (ms)",
            "plain logits (ms)",
        ),
        rows=[
            (
                written_size(size),
                figure(headless_loss_ms(size)),
                *(written_ms(loss_ms(size, method)) for method in (LIGER, CCE, PLAIN)),
            )
            for size in LOSS_SIZES
        ],
        conditions=replace(
            OF_LOSSES,
            tokens="targets drawn with a Zipf-like distribution, as many different ones as in a "
            "text",
        ),
        would_change="The newest kernels. CCE skips small gradients.",
        records=(SECOND,),
    )


def newer_kernels() -> Card:
    estimates = {size: estimated_ms(size) for size in LOSS_SIZES}
    leads = {size: estimates[size] / headless_loss_ms(size) for size in LOSS_SIZES}
    check(
        abs(estimated_ms(REPORTED_SIZE) - REPORTED_MS["QuACK 0.6.5"]) < 0.1,
        "the reported rate is that of the reported time",
    )
    faster = [
        REPORTED_MS["Liger, Triton"] / REPORTED_MS[name] for name in ("QuACK 0.6.5", "Liger, CuTe")
    ]
    check(7.5 < min(faster) and max(faster) < 8.5, "they are about eight times as fast")
    fewest, *others = LOSS_SIZES
    check(leads[fewest] < 1, "headless is slower at 4,096 targets")
    check(min(leads[size] for size in others) > 1.2, "headless keeps a lead at the other sizes")
    many = (65_536, 768, 50_304)
    return Card(
        name="gpu_newer_kernels",
        question="What would the newest exact kernels leave of the headless loss's lead?",
        answer="By an estimate the newest Hopper kernels would shrink the headless loss's lead, "
        "and end it at few targets",
        figure=f"{figure(headless_loss_ms(many))} ms measured against about "
        f"{figure(estimates[many], digits=0)} ms estimated",
        text="At the 745 TFLOP/s that QuACK and Liger's CuTe kernels are reported to reach, an "
        "exact head needs the time in the last column. Nobody measured them beside the headless "
        "loss.",
        columns=(
            "size",
            "headless, measured (ms)",
            "best exact head measured (ms)",
            "newest kernels, estimated (ms)",
        ),
        rows=[
            (
                written_size(size),
                figure(headless_loss_ms(size)),
                figure(measured_exact_ms(size)),
                figure(estimates[size]),
            )
            for size in LOSS_SIZES
        ],
        conditions=replace(
            OF_LOSSES,
            machine=f"{MEASURED}. The rate is reported for an H200 at "
            f"{written_size(REPORTED_SIZE)}: QuACK 0.6.5 {REPORTED_MS['QuACK 0.6.5']} ms, Liger's "
            f"CuTe kernels {REPORTED_MS['Liger, CuTe']} ms, its Triton path "
            f"{REPORTED_MS['Liger, Triton']:g} ms",
        ),
        would_change="A measurement: these kernels may fall short of that rate at small widths "
        "([a comparison by others](https://github.com/linkedin/Liger-Kernel/pull/1356)).",
        records=(SECOND,),
    )


def newer_kernels_in_steps() -> Card:
    batches = (
        (SECOND, "pythia-70m", 128, HEADLESS),
        (SECOND, "pythia-70m", 128, POOLS),
        (FIRST, "bert-base", 128, HEADLESS),
        (FIRST, "xlm-roberta-base", 128, HEADLESS),
        (FIRST, "gemma-3-270m", 16, HEADLESS),
    )
    rows = []
    leads = []
    for folder, model, batch, method in batches:
        timing = step(folder, model, batch, method)
        predicted = batch * timing["length"]
        if model in MASKED:
            predicted = int(MASKED_SHARE * predicted)
        head = estimated_ms((predicted, WIDTHS[model], timing["V"]))
        exact = step_ms(folder, model, batch, TRUNK) + head
        leads.append(exact / timing["ms"])
        name = written_model(folder, model, batch)
        if method == POOLS:
            name += ", pools of 16,384"
        rows.append(
            (
                name,
                figure(timing["ms"], digits=0),
                written_step(folder, model, batch, EXACT),
                figure(exact, digits=0),
            )
        )
    check(max(leads) < 1.08, "no headless step would be clearly faster")
    check(min(leads) < 0.6, "a decoder with many targets and no pools would be far behind")
    return Card(
        name="gpu_newer_kernels_in_steps",
        question="What would the newest exact kernels leave of the lead in whole steps?",
        answer="By an estimate the newest Hopper kernels would leave hardly any lead in whole "
        "steps",
        figure="XLM-R base "
        f"{figure(step_ms(FIRST, 'xlm-roberta-base', 128, HEADLESS), digits=0)} ms measured "
        f"against about {rows[3][3]} ms estimated",
        text="The last column adds an exact head at the reported 745 TFLOP/s to the measured step "
        "of the trunk alone. Headless training on a GPU would then pay by what it learns, not by "
        "its steps.",
        columns=(
            "model, vocabulary, batch",
            "headless, measured (ms)",
            "best exact head measured (ms)",
            "newest kernels, estimated (ms)",
        ),
        rows=rows,
        conditions=replace(
            OF_STEPS,
            code=BOTH_CODES,
        ),
        would_change="A measurement. QuACK's head takes no bias, which BERT and XLM-R have; small "
        "widths may stay below that rate.",
        records=(FIRST, SECOND),
    )


def papers_form() -> Card:
    sizes = (
        (1_024, 768, 128_000),
        (4_096, 768, 32_000),
        (4_096, 768, 128_000),
        (16_384, 768, 50_304),
        (65_536, 768, 50_304),
        (65_536, 2_048, 256_000),
    )
    for size in sizes:
        paper = loss_row(size, PAPERS_FORM)["ms"]
        check((paper < headless_loss_ms(size)) == (size[0] <= 4_096), "few targets favour the form")
    many = (65_536, 768, 50_304)
    return Card(
        name="gpu_papers_form",
        question="Is the headless loss faster than the paper's form of it on a GPU?",
        answer="Up to 4,096 targets the paper's form is faster, above them it is far slower",
        figure=f"{figure(loss_row(many, PAPERS_FORM)['ms'])} ms against "
        f"{figure(headless_loss_ms(many))} ms with 65,536 targets",
        text="The paper scores each target against all others, ours against the distinct ones, "
        "which takes a few more kernels. Both compute the same loss and gradients.",
        columns=("size", "headless (ms)", "the paper's form (ms)"),
        rows=[
            (
                written_size(size),
                figure(headless_loss_ms(size)),
                figure(loss_row(size, PAPERS_FORM)["ms"]),
            )
            for size in sizes
        ],
        conditions=replace(
            OF_LOSSES,
            machine=GPU,
        ),
        would_change="`--pool_size`, which splits a batch's targets into pools.",
        records=(SECOND,),
    )


def exact_heads() -> Card:
    size = (65_536, 768, 50_304)
    methods = {
        "headless": CANDIDATES_IN_CHUNKS,
        "Liger, Triton, over the same candidates": LIGER_ON_CANDIDATES,
        "exact: Liger, Triton": LIGER,
        "exact: plain logits": PLAIN,
        "exact: CCE": CCE,
        "exact: ours, in chunks": OURS,
    }
    timings = {name: loss_row(size, method) for name, method in methods.items()}
    exact = {name: row for name, row in timings.items() if name.startswith("exact")}
    ours = timings["exact: ours, in chunks"]
    liger = timings["exact: Liger, Triton"]
    check(ours["ms"] == max(row["ms"] for row in exact.values()), "our exact head is the slowest")
    check(liger["ms"] == min(row["ms"] for row in exact.values()), "Liger's is the fastest")
    check(liger["mib"] < timings["headless"]["mib"], "Liger's needs less memory than headless")
    on_candidates = timings["Liger, Triton, over the same candidates"]["ms"]
    check(on_candidates < timings["headless"]["ms"], "Liger's kernel is faster on candidates")
    return Card(
        name="gpu_exact_heads",
        question="How good is our own exact head on a GPU?",
        answer="Our exact head is the slowest of those that were measured on an H100",
        figure=f"{figure(ours['ms'])} ms against {figure(liger['ms'])} ms of Liger's Triton path",
        text="On a GPU, `--objective vanilla` with our head is a slow baseline. Liger also needs "
        "less memory than headless. Its kernel would speed up the headless loss too, but rounds "
        "the counts of candidates.",
        columns=("loss, forward and backward", "ms", "peak memory (MiB)"),
        rows=[
            (name, figure(row["ms"]), figure(row["mib"], digits=0)) for name, row in timings.items()
        ],
        conditions=replace(
            OF_LOSSES,
            model="none, only the loss of 65,536 random outputs of width 768",
            vocabulary="50,304",
            tokens="65,536 targets, as many different ones as in a text",
        ),
        would_change="Other sizes: with width 2,048 and V = 256,000, CCE is faster than Liger's "
        "Triton path at 16,384 targets.",
        records=(SECOND,),
    )


def encoders() -> Card:
    batches = (
        ("xlm-roberta-base", 32),
        ("xlm-roberta-base", 64),
        ("xlm-roberta-base", 128),
        ("bert-base", 128),
        ("bert-base", 256),
    )
    gains = {(model, batch): exact_over_headless(FIRST, model, batch) for model, batch in batches}
    best = gains["xlm-roberta-base", 128]
    check(best == max(gains.values()) and best > 1.5, "XLM-R gains half")
    check(gains["bert-base", 128] < 1.06, "BERT-base gains at most a twentieth")
    return Card(
        name="gpu_encoders",
        question="Is an encoder's headless step faster on a GPU?",
        answer="An encoder gained on an H100 with a large vocabulary, against plain logits",
        figure=f"{figure(best)} times as fast with XLM-R, "
        f"{figure(gains['bert-base', 128], digits=2)} times with BERT-base",
        text="Plain logits were the fastest exact head that takes these models' bias, but for "
        "Liger's in the last row. [By an estimate](gpu_newer_kernels_in_steps.md) newer kernels "
        "would leave hardly any lead.",
        columns=(
            "model, vocabulary, batch",
            "headless (ms)",
            "trunk alone (ms)",
            "best exact head (ms)",
            "transformers (ms)",
        ),
        rows=[
            (
                f"{NAMES[model]}, {batch} rows",
                *(
                    written_step(FIRST, model, batch, method)
                    for method in (HEADLESS, TRUNK, EXACT, TRANSFORMERS)
                ),
            )
            for model, batch in batches
        ],
        conditions=replace(
            OF_STEPS,
            seeds=ROUNDS_OF_STEPS,
            code=FIRST_CODE,
        ),
        would_change="Small batches, which [wait for the host](gpu_small_batches.md).",
        records=(FIRST,),
    )


def decoders() -> Card:
    batches = (
        (SECOND, "pythia-70m", 64),
        (SECOND, "pythia-70m", 128),
        (FIRST, "pythia-70m", 256),
        (FIRST, "gemma-3-270m", 16),
    )
    gains = {
        (model, batch): exact_over_headless(folder, model, batch)
        for folder, model, batch in batches
    }
    pooled = step_ms(SECOND, "pythia-70m", 128, EXACT) / step_ms(SECOND, "pythia-70m", 128, POOLS)
    losing = gains["pythia-70m", 128]
    check(losing < 0.9 and gains["pythia-70m", 256] < 0.5, "many targets without pools lose")
    check(pooled > 1.4, "pools win")
    small = step_ms(SECOND, "pythia-70m", 128, SMALL_POOLS)
    check(small > step_ms(SECOND, "pythia-70m", 128, POOLS), "pools of 4,096 are slower")
    headless = step_ms(SECOND, "pythia-70m", 64, HEADLESS)
    theirs = step_ms(SECOND, "pythia-70m", 64, TRANSFORMERS)
    check(0.95 < theirs / headless < 1, "transformers' own loss is as fast with 64 rows")

    def written_pools(folder: str, model: str, batch: int) -> str:
        if folder == FIRST:
            return "not measured"
        return written_step(folder, model, batch, POOLS)

    return Card(
        name="gpu_decoders",
        question="Is a decoder's headless step faster on a GPU?",
        answer="A decoder with many targets loses to Liger's Triton path on an H100 without "
        "`--pool_size`, and gains on it with pools",
        figure=f"{figure(losing, digits=2)} times as fast as with Liger's Triton path, "
        f"{figure(pooled, digits=2)} times in pools of 16,384",
        short_figure=f"{figure(losing, digits=2)} times as fast without it",
        text="Each row adds candidates to the one pool of a batch, so that the loss grows faster "
        "than the batch. With 64 rows transformers' own loss was as fast. Pools of 4,096 "
        "targets were worse. Gemma 3 270M gained little.",
        columns=(
            "model, vocabulary, batch",
            "headless (ms)",
            "in pools of 16,384 (ms)",
            "trunk alone (ms)",
            "best exact head (ms)",
            "transformers (ms)",
        ),
        rows=[
            (
                written_model(folder, model, batch),
                written_step(folder, model, batch, HEADLESS),
                written_pools(folder, model, batch),
                *(
                    written_step(folder, model, batch, method)
                    for method in (TRUNK, EXACT, TRANSFORMERS)
                ),
            )
            for folder, model, batch in batches
        ],
        conditions=replace(
            OF_STEPS,
            machine=f"{MEASURED}. The best was Liger's for Pythia-70M, and CCE for Gemma",
            seeds=ROUNDS_OF_STEPS,
            code=BOTH_CODES,
        ),
        would_change="[Newer kernels](gpu_newer_kernels_in_steps.md), by an estimate, and today's "
        "larger chunks.",
        records=(FIRST, SECOND),
    )


def memory() -> Card:
    batches = (
        (SECOND, "pythia-70m", 128),
        (FIRST, "gemma-3-270m", 16),
        (FIRST, "bert-base", 128),
        (FIRST, "xlm-roberta-base", 128),
    )
    shares = {}
    for folder, model, batch in batches:
        exact = step(folder, model, batch, EXACT)
        shares[model] = step(folder, model, batch, HEADLESS)["gib"] / exact["gib"]
    for model in ("pythia-70m", "gemma-3-270m"):
        check(0.95 < shares[model] < 1, "headless is level with a fused head")
    check(shares["xlm-roberta-base"] < 0.55, "headless takes half of the memory of plain logits")
    check(shares["bert-base"] > 0.8, "BERT-base saves less")
    return Card(
        name="gpu_memory",
        question="How much memory does a headless step save on a GPU?",
        answer="Against a fused exact head memory is level, against plain logits up to half is "
        "saved",
        figure=f"{written_gib(FIRST, 'xlm-roberta-base', 128, HEADLESS)} GiB against "
        f"{written_gib(FIRST, 'xlm-roberta-base', 128, EXACT)} with XLM-R, "
        f"{written_gib(SECOND, 'pythia-70m', 128, HEADLESS)} against "
        f"{written_gib(SECOND, 'pythia-70m', 128, EXACT)} with Pythia-70M",
        text="Liger and CCE never hold all scores, and then nothing is left to save. transformers "
        "holds them for every position. Plain logits were the fastest head with these encoders.",
        columns=(
            "model, vocabulary, batch",
            "headless (GiB)",
            "sampled softmax (GiB)",
            "best exact head (GiB)",
            "which head",
            "transformers (GiB)",
        ),
        rows=[
            (
                written_model(folder, model, batch),
                written_gib(folder, model, batch, HEADLESS),
                written_gib(folder, model, batch, SAMPLED),
                written_gib(folder, model, batch, EXACT),
                exact_head(folder, model, batch),
                written_gib(folder, model, batch, TRANSFORMERS),
            )
            for folder, model, batch in batches
        ],
        conditions=replace(
            OF_STEPS,
            seeds=ROUNDS_OF_STEPS,
            code=f"{BOTH_CODES}; {NO_EXACT_STEPS}",
        ),
        would_change="A fused head that takes a bias, with encoders. Liger's does, and is slower "
        "there.",
        records=(FIRST, SECOND),
    )


def small_batches() -> Card:
    batches = (
        ("pythia-70m", 16),
        ("pythia-70m", 32),
        ("bert-base", 16),
        ("bert-base", 32),
        ("bert-base", 64),
        ("gemma-3-270m", 8),
        ("xlm-roberta-base", 16),
        ("xlm-roberta-base", 32),
    )
    shown = [batch for batch in batches if batch not in (("bert-base", 64), ("gemma-3-270m", 8))]
    led_by_transformers = 0
    for model, batch in batches:
        headless = step(SECOND, model, batch, HEADLESS)
        exact = step(SECOND, model, batch, EXACT)
        overlap = headless["low"] <= exact["high"] and exact["low"] <= headless["high"]
        check(overlap, "the spreads of headless and exact steps overlap")
        theirs = step_ms(SECOND, model, batch, TRANSFORMERS)
        if theirs < min(headless["ms"], exact["ms"]):
            led_by_transformers += 1
    check(led_by_transformers == 5, "transformers' own loss is fastest in five of eight batches")
    return Card(
        name="gpu_small_batches",
        question="Is a headless step faster with small batches on a GPU?",
        answer="Small batches wait for the host, so that headless training gains nothing there",
        figure="no clear difference up to 32 rows of 512 tokens, with BERT-base up to 64",
        text="The device finishes before the host has launched the next kernels. What launches "
        "least is then fastest. In five of the eight batches of the record that is transformers' "
        "own loss.",
        columns=(
            "model, vocabulary, batch",
            "headless (ms)",
            "headless, least (ms)",
            "headless, most (ms)",
            "best exact head (ms)",
            "transformers (ms)",
        ),
        rows=[
            (
                written_model(SECOND, model, batch),
                written_step(SECOND, model, batch, HEADLESS),
                figure(step(SECOND, model, batch, HEADLESS)["low"], digits=0),
                figure(step(SECOND, model, batch, HEADLESS)["high"], digits=0),
                written_step(SECOND, model, batch, EXACT),
                written_step(SECOND, model, batch, TRANSFORMERS),
            )
            for model, batch in shown
        ],
        conditions=replace(
            OF_STEPS,
            machine=f"{MEASURED}. The host was a slow one",
            code=SECOND_CODE,
        ),
        would_change="A faster host: on another one XLM-R [gained](gpu_encoders.md) from 32 rows "
        "on, with earlier code.",
        records=(SECOND,),
    )


def sampled_softmax() -> Card:
    batches = (
        (FIRST, "xlm-roberta-base", 128),
        (FIRST, "gemma-3-270m", 16),
        (SECOND, "pythia-70m", 128),
    )
    gains = {
        model: step_ms(folder, model, batch, EXACT) / step_ms(folder, model, batch, SAMPLED)
        for folder, model, batch in batches
    }
    check(gains["xlm-roberta-base"] > 1.3, "XLM-R gains a third")
    check(0.95 < gains["gemma-3-270m"] < 1.05, "Gemma gains nothing")
    check(gains["pythia-70m"] < 0.8, "Pythia-70M loses")
    share_with_exact_steps = 7 / 8 / gains["xlm-roberta-base"] + 1 / 8
    check(0.72 < share_with_exact_steps < 0.78, "with exact steps XLM-R takes a quarter less")
    return Card(
        name="gpu_sampled_softmax",
        question="Is a step with sampled softmax faster on a GPU?",
        answer="With sampled softmax a step took a quarter less time with XLM-R, the same time "
        "with Gemma, and more with Pythia-70M",
        figure=f"{figure(gains['xlm-roberta-base'], digits=2)}, "
        f"{figure(gains['gemma-3-270m'], digits=2)} and "
        f"{figure(gains['pythia-70m'], digits=2)} times as fast as the best exact head measured",
        text="XLM-R gained against plain logits, since CCE takes no bias. Against Liger or CCE the "
        "decoders gained nothing. With every eighth step exact, as today, XLM-R takes about a "
        "quarter less time.",
        columns=(
            "model, vocabulary, batch",
            "sampled softmax (ms)",
            "best exact head (ms)",
            "which head",
            "exact over sampled",
        ),
        rows=[
            (
                written_model(folder, model, batch),
                written_step(folder, model, batch, SAMPLED),
                written_step(folder, model, batch, EXACT),
                exact_head(folder, model, batch),
                figure(gains[model], digits=2),
            )
            for folder, model, batch in batches
        ],
        conditions=replace(
            OF_STEPS,
            code=f"{BOTH_CODES}; {NO_EXACT_STEPS}",
        ),
        would_change="Newer exact kernels, which by an estimate would leave XLM-R [no "
        "lead](gpu_newer_kernels_in_steps.md) either.",
        records=(FIRST, SECOND),
    )


def sparse_updates() -> Card:
    rows = parts(FIRST)["steps"]["rows"]
    ratios = [
        step_ms(FIRST, row["model"], row["batch"], SPARSE) / row["ms"]
        for row in having(rows, method=SAMPLED, fits=True)
    ]
    check(min(ratios) > 0.95 and max(ratios) > 1.1, "sparse updates save nothing")
    batches = (
        ("bert-base", 128),
        ("pythia-70m", 128),
        ("gemma-3-270m", 16),
        ("xlm-roberta-base", 128),
    )
    return Card(
        name="gpu_sparse_updates",
        question="Do sparse updates of the embedding save time on a GPU?",
        answer="Sparse updates of the embedding save no time on an H100",
        figure=f"{figure(min(ratios), digits=2)} to {figure(max(ratios), digits=2)} times the "
        "time of dense updates",
        text="On a CPU `--sparse_embedding_updates` matters with a large vocabulary. Here it was "
        "level or slower at nearly each size. Memory falls a little with a large vocabulary.",
        columns=(
            "model, vocabulary, batch",
            "dense updates (ms)",
            "sparse updates (ms)",
            "dense updates (GiB)",
            "sparse updates (GiB)",
        ),
        rows=[
            (
                f"{NAMES[model]}, {batch} rows",
                written_step(FIRST, model, batch, SAMPLED),
                written_step(FIRST, model, batch, SPARSE),
                written_gib(FIRST, model, batch, SAMPLED),
                written_gib(FIRST, model, batch, SPARSE),
            )
            for model, batch in batches
        ],
        conditions=replace(
            OF_STEPS,
            model=f"as in the table, {RANDOM_WEIGHTS}, with sampled softmax",
            machine=GPU,
            seeds=f"{ROUNDS}; the range in the figure is that of all batch sizes",
            code=f"{FIRST_CODE}; {NO_EXACT_STEPS}",
        ),
        would_change="A vocabulary far above these.",
        records=(FIRST,),
    )


def pretraining() -> Card:
    folder = "studies/results/recipe_pythia_70m"
    record = results(folder)
    headless = record["headless untied + Muon + Pythia-70M"]
    vanilla = record["vanilla untied + bias log q + Muon + Pythia-70M"]
    tokens = share_to_match(headless, vanilla)
    time = share_to_match(headless, vanilla, "seconds")
    check(max(headless["perplexity"]) < min(vanilla["perplexity"]), "headless is ahead")
    check(0.5 < time < tokens < 1, "it is ahead in tokens and further in time")
    return Card(
        name="gpu_pretraining",
        question="Does headless training save time in a pretraining on a GPU?",
        answer="Pythia-70M's layers reached vanilla's perplexity in "
        f"{percent(time)} of its time on an H100, against our slow exact head",
        figure=f"perplexity {figure(headless['perplexity'])} against "
        f"{figure(vanilla['perplexity'])} at equal tokens",
        text=f"Headless needs {percent(tokens)} of the tokens, and its steps are shorter. Vanilla "
        "had [the slowest exact head](gpu_exact_heads.md). A fused one was not tried, and may "
        "leave little of the lead in time.",
        columns=("method", "perplexity", "accuracy (%)", "tokens a second"),
        rows=[
            (
                name,
                figure(recipe["perplexity"]),
                figure(recipe["accuracy"], digits=2, factor=100),
                figure(recipe["tokens"] / recipe["seconds"], digits=0),
            )
            for name, recipe in (("headless", headless), ("vanilla", vanilla))
        ],
        picture=f"{folder}/results.png",
        conditions=Conditions(
            model="Pythia-70M's layers, untied, with Muon and a beta2 of 0.98",
            vocabulary="32,000",
            tokens="14.7 M of novels, in 900 batches of 128 x 128",
            machine=f"{GPU}; times exclude the wait for the device at each log, at most a tenth",
            seeds="two",
            rates="searched",
        ),
        would_change="A faster exact head, a beta2 of 0.999, more tokens: on a CPU vanilla "
        "[overtakes](does_the_lead_last.md).",
        records=(folder,),
    )


CHECKS = {
    "losses and gradients against float64": ("precision", "backends"),
    "masks against the CPU's": ("masks",),
    "training steps against the CPU's": ("step",),
    "resumed runs against uninterrupted ones": ("resume",),
    "sparse updates against dense ones": ("rows",),
    "compiled models against others": ("compiled",),
}


def correctness() -> Card:
    all_rows = parts(FIRST)["parity"]["rows"]
    table = []
    for name, checks in CHECKS.items():
        rows = [row for row in all_rows if row["check"] in checks]
        shares = [row["value"] / row["bound"] for row in rows if row["bound"] > 0]
        outside = sum(not row["ok"] for row in rows)
        largest = "no difference allowed"
        if shares:
            largest = percent(max(shares))
        table.append((name, str(len(rows)), str(outside), largest))
    known = set(itertools.chain.from_iterable(CHECKS.values()))
    check({row["check"] for row in all_rows} == known, "the table has all checks")
    check(all(row["ok"] for row in all_rows), "all figures are within their bounds")
    return Card(
        name="gpu_correctness",
        question="Does a GPU compute what a CPU computes?",
        answer=f"All {len(all_rows)} figures of the parity check are within their bounds on an "
        "H100",
        figure=f"none of {len(all_rows)} outside its bound",
        text="Masks have the CPU's bits, and resumed runs equal uninterrupted ones. In float32, "
        "float16 and bfloat16, losses and gradients are as near to float64 as the paper's form.",
        columns=("what is compared", "figures", "outside their bounds", "largest share of a bound"),
        rows=table,
        conditions=Conditions(
            model="random outputs, and an encoder and a decoder of a few thousand parameters",
            vocabulary="small",
            tokens="a few batches",
            machine="one NVIDIA H100 80GB, torch 2.11, float32, float16 and bfloat16",
            seeds="one",
            rates="one",
            code="an earlier version (385c0f1)",
        ),
        would_change="Other GPUs and versions: `python benchmarks/accelerator.py` checks yours.",
        records=(FIRST,),
    )


def steps_table(cards: Mapping[str, Card]) -> str:
    """Return the table of steps on an H100 for docs/will_i_gain.md, and what limits it."""
    batches = (
        (FIRST, "xlm-roberta-base", 128, HEADLESS),
        (FIRST, "gemma-3-270m", 16, HEADLESS),
        (FIRST, "bert-base", 128, HEADLESS),
        (SECOND, "pythia-70m", 64, HEADLESS),
        (SECOND, "pythia-70m", 128, HEADLESS),
        (SECOND, "pythia-70m", 128, POOLS),
    )
    rows = []
    for folder, model, batch, method in batches:
        name = NAMES[model]
        sampled = written_step(folder, model, batch, SAMPLED)
        if method == POOLS:
            name += ", `--pool_size 16384`"
            sampled = "not measured"
        rows.append(
            (
                f"{name}{MARKS[folder]}",
                str(batch),
                written_step(folder, model, batch, method),
                sampled,
                written_step(folder, model, batch, EXACT),
                exact_head(folder, model, batch),
                written_step(folder, model, batch, TRANSFORMERS),
            )
        )
    head = (
        "model, vocabulary",
        "rows",
        "headless (ms)",
        "sampled softmax (ms)",
        "vanilla, best exact head (ms)",
        "which head",
        "transformers (ms)",
    )
    notes = (
        "Milliseconds of a training step on one H100, in bfloat16, with rows of 512 tokens. The "
        "best exact head is that of plain logits, Liger's Triton path and CCE; QuACK and Liger's "
        "newer kernels were not measured. transformers computes the exact softmax with its own "
        "head. Sampled softmax had no exact steps yet. A method that did not fit lacked the memory "
        "that the others left. \\* Earlier code, with more distinct tokens in a batch than a text "
        "has."
    )
    limits = card_links(
        cards,
        (
            "gpu_newer_kernels_in_steps",
            "gpu_encoders",
            "gpu_decoders",
            "gpu_sampled_softmax",
            "gpu_small_batches",
            "gpu_memory",
        ),
        folder="findings",
    )
    return f"{markdown(head, rows, left=1)}\n\n{notes}\n\n{limits}"


CARDS = (
    loss_alone,
    newer_kernels,
    newer_kernels_in_steps,
    encoders,
    decoders,
    sampled_softmax,
    memory,
    small_batches,
    sparse_updates,
    exact_heads,
    papers_form,
    pretraining,
    correctness,
)
