"""Findings about SmolLM2 135M Instruct, a real model that is continued on texts and on
conversations.
"""

from dataclasses import replace
from typing import Any

from findings.cards import Card, Conditions
from findings.continuing import EXACT, HEADLESS, SAMPLED, run_row
from findings.records import below, check, figure, one_having, results

TITLE = "Continuing SmolLM2, a small real model"

TEXTS = "studies/results/real_models_smollm2"
ADAPTERS = "studies/results/real_models_smollm2_lora"
CHATS = "studies/results/real_models_smollm2_chat"
SCORES = "studies/results/real_models_smollm2_zero_shot"

REPLAYED = f"{SAMPLED} with --replay_file corpora/en_wikipedia.txt.gz"
GENTLE = 1e-4
HIGH = 3e-4
ADAPTER_RATE = 1e-3
COLUMNS = (
    "method",
    "French: perplexity",
    "French: accuracy (%)",
    "English: perplexity",
    "English: accuracy (%)",
)
ON_NOVELS = Conditions(
    model="SmolLM2 135M Instruct, its weights dequantized from 4 bits",
    vocabulary="49,152",
    tokens="40,960 of French novels in 80 batches of 4 x 128; evaluated on 64 rows of these "
    "novels and 64 of English Wikipedia, all held out",
    machine="one thread of a CPU, mixed precision in bfloat16; it was shared, so no times are "
    "given",
    seeds="one",
    rates="as in the table, with a beta2 of 0.999",
)


def run_of(folder: str, objective: str, rate: float) -> dict[str, Any]:
    """Return the evaluation of a run: its perplexities and accuracies."""
    return one_having(results(folder)["runs"], objective=objective, rate=rate)


def before(folder: str) -> dict[str, Any]:
    """Return the evaluation of the model as it was."""
    return results(folder)["before"]


def whole() -> Card:
    exact = run_of(TEXTS, EXACT, GENTLE)
    sampled = run_of(TEXTS, SAMPLED, GENTLE)
    high = run_of(TEXTS, SAMPLED, HIGH)
    check(0 < below(exact["new"], sampled["new"]) < 0.01, "French is less than 1 % behind")
    check(abs(below(sampled["old"], exact["old"])) < 0.01, "both keep English alike")
    check(abs(below(high["new"], sampled["new"])) < 0.01, "3e-4 learns no more French")
    check(high["old"][0] > before(TEXTS)["old"], "at 3e-4 English is forgotten")
    return Card(
        name="continue_smollm2",
        question="Does sampled softmax continue SmolLM2 as well as the exact softmax?",
        answer="At a gentle rate SmolLM2 learns less than 1 % less with sampled softmax and keeps "
        "as much",
        figure=f"at 1e-4 French {figure(sampled['new'])} against {figure(exact['new'])}, English "
        f"{figure(sampled['old'])} against {figure(exact['old'])}",
        text="On French, sampled softmax is less than 1 % behind. Three times the rate teaches it "
        "no more French and costs English, which the gentle rate even improves.",
        columns=("rate, method", *COLUMNS[1:]),
        rows=[
            run_row("before", before(TEXTS)),
            run_row("1e-4, exact softmax", exact),
            run_row("1e-4, sampled softmax", sampled),
            run_row("3e-4, sampled softmax", high),
        ],
        conditions=ON_NOVELS,
        would_change="Other seeds, more steps, rates below 1e-4, plain float32. The exact softmax "
        "was not run at 3e-4. English may improve because its weights had been rounded to 4 bits.",
        records=(TEXTS,),
    )


def replay() -> Card:
    gentle = run_of(TEXTS, SAMPLED, GENTLE)
    alone = run_of(TEXTS, SAMPLED, HIGH)
    mixed = run_of(TEXTS, REPLAYED, HIGH)
    check(0 < below(alone["new"], mixed["new"]) < 0.01, "replay costs less than 1 % of French")
    check(0.1 < below(mixed["old"], alone["old"]) < 0.2, "replay keeps clearly more English")
    check(abs(below(gentle["old"], mixed["old"])) < 0.01, "a gentle rate keeps as much")
    check(gentle["new"][0] < mixed["new"][0], "a gentle rate learns as much French")
    return Card(
        name="continue_replay",
        question="What does a tenth of old texts save, and what does it cost?",
        answer="A tenth of old texts undoes the forgetting of a high rate and costs little, but a "
        "gentle rate forgets nothing here either",
        figure=f"at 3e-4 English {figure(mixed['old'])} against {figure(alone['old'])}, French "
        f"{figure(mixed['new'])} against {figure(alone['new'])}",
        text="Replayed and evaluated articles are different ones of the same collection, so part "
        "of the gain may be practice in its style. Without replay, 1e-4 keeps as much English and "
        "learns as much French.",
        columns=("rate, texts", *COLUMNS[1:]),
        rows=[
            run_row("before", before(TEXTS)),
            run_row("1e-4, French alone", gentle),
            run_row("3e-4, French alone", alone),
            run_row("3e-4, a tenth of English", mixed),
        ],
        conditions=replace(
            ON_NOVELS,
            tokens=f"{ON_NOVELS.tokens}; replayed from Wikipedia articles that were not held out",
            rates="as in the table, with sampled softmax and a beta2 of 0.999",
        ),
        would_change="Longer training, which forgets more, other shares, other seeds, and old "
        "texts of another kind than those replayed. The exact softmax was not run with replay.",
        records=(TEXTS,),
    )


def chats() -> Card:
    exact = run_of(CHATS, EXACT, GENTLE)
    sampled = run_of(CHATS, SAMPLED, GENTLE)
    check(0.01 < below(exact["new"], sampled["new"]) < 0.02, "answers are up to 2 % behind")
    check(abs(below(sampled["old"], exact["old"])) < 0.01, "both keep English alike")
    return Card(
        name="continue_chats",
        question="Does a chat model learn from conversations as well with sampled softmax?",
        answer="On answers of conversations sampled softmax is slightly behind in perplexity and "
        "level in accuracy, and SmolLM2 keeps as much",
        figure=f"answers {figure(sampled['new'])} against {figure(exact['new'])}, English "
        f"{figure(sampled['old'])} against {figure(exact['old'])}",
        text="Prompts are read and never learned (`completion_mask`). Of three kinds of requests, "
        "half are for paraphrases, a quarter ask for causes and effects, and a quarter are medical "
        "questions.",
        columns=(
            "method",
            "answers: perplexity",
            "answers: accuracy (%)",
            "English: perplexity",
            "English: accuracy (%)",
        ),
        rows=[
            run_row("before", before(CHATS)),
            run_row("exact softmax", exact),
            run_row("sampled softmax", sampled),
        ],
        conditions=replace(
            ON_NOVELS,
            tokens="320 conversations of MRPC, COPA and PubMedQA in 40 batches of 8, each with, on "
            "average, 30 tokens of answers among 84; evaluated on the answers of 64 others and on "
            "64 rows of 128 tokens of English Wikipedia",
            rates="1e-4, with a beta2 of 0.999",
        ),
        would_change="Other seeds, other rates, longer training, and conversations of several "
        "answers.",
        records=(CHATS,),
    )


def adapters() -> Card:
    exact = run_of(ADAPTERS, f"{EXACT} + LoRA 16", ADAPTER_RATE)
    sampled = run_of(ADAPTERS, f"{SAMPLED} + LoRA 16", ADAPTER_RATE)
    check(abs(below(sampled["new"], exact["new"])) < 0.01, "both learn French alike")
    check(abs(below(sampled["old"], exact["old"])) < 0.01, "both keep English alike")
    return Card(
        name="continue_adapters",
        question="Does sampled softmax train an adapter as well as the exact softmax?",
        answer="An adapter of SmolLM2 learns as much and keeps as much with sampled softmax",
        figure=f"French {figure(sampled['new'])} against {figure(exact['new'])}, English "
        f"{figure(sampled['old'])} against {figure(exact['old'])}",
        text="Every linear layer but the head has a low-rank adapter, which alone is trained. "
        "English is not forgotten. One rate was run, so a better one may exist for either.",
        columns=COLUMNS,
        rows=[
            run_row("before", before(ADAPTERS)),
            run_row("LoRA of rank 16, exact softmax", exact),
            run_row("LoRA of rank 16, sampled softmax", sampled),
        ],
        conditions=replace(
            ON_NOVELS,
            tokens="20,480 of French novels in 40 batches of 4 x 128; evaluated on 64 rows of "
            "these novels and 64 of English Wikipedia, all held out",
            rates="1e-3, with a beta2 of 0.999",
        ),
        would_change="Other rates and ranks, other seeds, longer training.",
        records=(ADAPTERS,),
    )


def without_head() -> Card:
    exact = run_of(TEXTS, EXACT, GENTLE)
    sampled = run_of(TEXTS, SAMPLED, GENTLE)
    headless = run_of(TEXTS, HEADLESS, GENTLE)
    check(below(exact["new"], headless["new"]) > 0.1, "headless learns less French")
    check(headless["old"][0] > 10 * exact["old"][0], "headless forgets much English")
    return Card(
        name="continue_smollm2_headless",
        question="What does SmolLM2 keep if it is continued without its head?",
        answer="Continued headless, SmolLM2 learns less French and forgets much English",
        figure=f"English {figure(headless['old'])} against {figure(exact['old'])}, French "
        f"{figure(headless['new'])} against {figure(exact['new'])}",
        text="The free head adds the token frequencies of the French texts, so part of what is "
        "lost is the head's and not the trunk's. As SmolLM2 ends in an RMSNorm, that head serves "
        "for this measurement only.",
        columns=COLUMNS,
        rows=[
            run_row("before", before(TEXTS)),
            run_row("exact softmax", exact),
            run_row("sampled softmax", sampled),
            run_row("headless, with the free head", headless),
        ],
        conditions=replace(ON_NOVELS, rates="1e-4, with a beta2 of 0.999"),
        would_change="Longer training, other rates, other seeds, a trained head, and old texts "
        "among the new ones (`--replay_file`).",
        records=(TEXTS,),
    )


def zero_shot() -> Card:
    rows = {
        "before": before(SCORES),
        "exact softmax": run_of(SCORES, EXACT, GENTLE),
        "sampled softmax": run_of(SCORES, SAMPLED, GENTLE),
    }
    lambada = [run["scores"]["lambada_openai"] for run in rows.values()]
    arc = [run["scores"]["arc_easy"] for run in rows.values()]
    check(max(lambada) - min(lambada) < 5, "LAMBADA differs by less than one standard error")
    check(max(arc) - min(arc) < 5, "ARC-easy differs by less than one standard error")
    return Card(
        name="continue_zero_shot",
        question="Does continuing a real model on French harm its English tasks?",
        answer="After French novels SmolLM2 shows no clear difference on two English tasks, with "
        "either softmax",
        figure=f"LAMBADA {figure(lambada[2])} % against {figure(lambada[1])} %, no clear "
        "difference",
        text="With 100 documents a score has a standard error of four to five points, so that only "
        "large differences would show.",
        columns=("method", "LAMBADA: accuracy (%)", "ARC-easy: accuracy (%)"),
        rows=[
            (name, figure(run["scores"]["lambada_openai"]), figure(run["scores"]["arc_easy"]))
            for name, run in rows.items()
        ],
        conditions=replace(
            ON_NOVELS,
            tokens="40,960 of French novels in 80 batches of 4 x 128; scored on the first 100 "
            "documents of each task, LAMBADA in its plain development set",
            rates="1e-4, with a beta2 of 0.999",
        ),
        would_change="More documents, higher rates, longer training, other seeds.",
        records=(SCORES,),
    )


CARDS = (whole, replay, chats, adapters, without_head, zero_shot)
