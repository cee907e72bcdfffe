"""Findings about fine-tuning a real encoder with `glue`."""

from findings.cards import Card, Conditions
from findings.records import (
    check,
    difference,
    figure,
    having,
    in_words,
    is_clear,
    one_having,
    results,
)
from findings.statements import balanced_is_steadier_but_not_better

TITLE = "Fine-tuning a real encoder"

STEPS = "studies/results/fine_tuning_parity_steps"
SCORES = "studies/results/fine_tuning_parity_scores"
ACCUMULATED = "studies/results/fine_tuning_parity_accumulated"
NAMES = {"mrpc": "MRPC", "stsb": "STS-B", "cola": "CoLA", "rte": "RTE", "sst2": "SST-2"}
METRICS = {
    "balanced_accuracy": "balanced accuracy",
    "matthews_correlation": "Matthews' correlation",
    "spearmanr": "Spearman's correlation",
}
# Of studies/balanced_loss.py: what it trained on, and whether the balanced loss is clearly better.
BALANCED_RECORDS = (
    ("SST-2 cut to 9 : 1", "studies/results/balanced_loss_sst2", True),
    ("CoLA as it is", "studies/results/balanced_loss_cola", True),
    ("MRPC as it is", "studies/results/balanced_loss_mrpc", False),
)
MINILM = "all-MiniLM-L6-v2, a BERT with six layers of width 384, and a new classifier"
VOCABULARY = "30,522"
ONE_THREAD = "one thread of a shared CPU"


def parity_row(label: str, record: list[dict], task: str) -> tuple[str, ...]:
    """Return the row of a task: its steps, the losses of both at the last one, and by how much the
    losses of a step differ at most.
    """
    ours = one_having(record, task=task, way="glue")
    theirs = one_having(record, task=task, way="same_order")
    return (
        label,
        f"{ours['steps']}",
        figure(ours["last_loss"], 4),
        figure(theirs["last_loss"], 4),
        f"{max(theirs['difference_of_losses']):.1g}",
    )


def is_glue_transformers_own() -> Card:
    record = results(STEPS)
    accumulated = results(ACCUMULATED)
    same_order = having(record, way="same_order")
    for run in same_order:
        check(max(run["difference_of_losses"]) == 0, f"the losses of {run['task']} are equal")
        for name in ("held_out_losses", "scores"):
            check(max(run[f"difference_of_{name}"]) < 1e-7, f"{name} of {run['task']} are equal")
    ours, theirs = (one_having(accumulated, way=way)["last_loss"] for way in ("glue", "same_order"))
    doubled = [twice / once for once, twice in zip(ours, theirs, strict=True)]
    check(all(1.9 < ratio < 2.1 for ratio in doubled), "two micro-batches double the loss")
    rows = [parity_row(NAMES[run["task"]], record, run["task"]) for run in same_order]
    rows.append(parity_row("CoLA, two micro-batches a step", accumulated, "cola"))
    return Card(
        name="is_glue_transformers_own",
        question="Does `glue` train as transformers' own `Trainer` does?",
        answer="Yes, bit for bit, but for the order of rows and for micro-batches",
        figure=f"{in_words(len(same_order))} tasks of {same_order[0]['steps']} steps each: the "
        "losses are the same",
        text="With the same rows in each step all losses are equal, and held-out losses but for "
        "rounding. transformers 5.23 adds up the losses of a step's micro-batches, of which "
        "`glue` takes the mean.",
        columns=(
            "task",
            "steps",
            "last loss: `glue`",
            "last loss: transformers",
            "largest difference of a step's loss",
        ),
        rows=rows,
        conditions=Conditions(
            model=MINILM,
            vocabulary=VOCABULARY,
            tokens="640 rows of each task in steps of 32, for micro-batches 320; one epoch; plain "
            "cross-entropy, for STS-B the squared error; 200 rows held out",
            machine=f"{ONE_THREAD}, float32",
            seeds="one",
            rates="1e-4, which falls linearly",
        ),
        would_change="Another version of transformers, a GPU, several processes.",
        records=(STEPS, ACCUMULATED),
    )


def does_the_order_of_rows_cost_scores() -> Card:
    record = results(SCORES)
    ours, theirs = (one_having(record, way=way) for way in ("glue", "transformers"))
    check(not is_clear(ours["score"], theirs["score"]), "there is no clear difference")
    check(ours["score"] == ours["last_score"], "the last epoch of glue is the best one")
    check(theirs["score"] == theirs["last_score"], "the last epoch of transformers, too")
    name = NAMES[ours["task"]]
    row = (
        f"{name}, {METRICS[ours['metric']]}",
        figure(ours["score"], 1, 100),
        figure(theirs["score"], 1, 100),
        difference(ours["score"], theirs["score"], 1, 100),
    )
    return Card(
        name="does_the_order_of_rows_cost_scores",
        question="Does it cost scores that `glue` puts rows of similar length into one step?",
        answer=f"No clear difference on {name}",
        figure=f"{METRICS[ours['metric']]} x 100 of {row[1]}, rows at random {row[2]}",
        text="`glue` shuffles the rows, sorts groups of them by length and shuffles their steps, "
        "so that little is padded. transformers' own script draws each row at random. Everything "
        "else is equal.",
        columns=("score x 100", "`glue`", "transformers", "`glue` minus transformers"),
        rows=[row],
        conditions=Conditions(
            model=MINILM,
            vocabulary=VOCABULARY,
            tokens="1,000 rows, cut to 64 tokens, in steps of 32; three epochs, scored on all "
            "validation rows; the squared error",
            machine=f"{ONE_THREAD}, bfloat16",
            seeds=f"{in_words(len(ours['seeds']))}, the same for both",
            rates="1e-4, which falls linearly",
        ),
        would_change="More seeds, since the interval is wide; other tasks; whole training sets.",
        records=(SCORES,),
    )


def is_balanced_cross_entropy_better() -> Card:
    rows = []
    numbers_of_seeds = set()
    for label, folder, is_clearly_better in BALANCED_RECORDS:
        balanced, plain = (
            one_having(results(folder), loss=loss) for loss in ("balanced", "cross_entropy")
        )
        numbers_of_seeds.add(len(balanced["seeds"]))
        for name, epoch in (("score", "best epoch"), ("last_score", "last epoch")):
            clear = is_clear(balanced[name], plain[name])
            is_higher = sum(balanced[name]) > sum(plain[name])
            check((clear and is_higher) == is_clearly_better, f"{folder} says so at the {epoch}")
            rows.append(
                (
                    f"{label}, {METRICS[balanced['metric']]}, {epoch}",
                    figure(balanced[name], 1, 100),
                    figure(plain[name], 1, 100),
                    difference(balanced[name], plain[name], 1, 100),
                )
            )
    [number_of_seeds] = numbers_of_seeds
    check(
        balanced_is_steadier_but_not_better(results("studies/results/balanced_loss_mrpc")),
        "scores on MRPC spread less with the balanced loss",
    )
    return Card(
        name="is_balanced_cross_entropy_better",
        question="Does balanced cross-entropy fine-tune a real encoder better than the plain one?",
        answer="Clearly on two of three unbalanced tasks, and its scores spread less on the third",
        figure=f"SST-2 cut to 9 : 1: balanced accuracy {rows[0][1]}, plain {rows[0][2]}",
        text="Balanced cross-entropy weighs all classes alike. On MRPC its scores differ less "
        "between seeds, by Levene's test. SST-2's validation rows have both classes about equally "
        "often, those of CoLA and MRPC about 7 : 3 and 2 : 1.",
        columns=("score x 100", "balanced", "plain", "balanced minus plain"),
        rows=rows,
        conditions=Conditions(
            model=MINILM,
            vocabulary=VOCABULARY,
            tokens="SST-2: 2,000 rows, drawn once for all seeds, three epochs; CoLA and MRPC: all "
            "8,551 and 3,668 rows, two epochs; steps of 32 rows",
            machine=f"{ONE_THREAD}, bfloat16, and float32 for MRPC",
            seeds=f"{in_words(number_of_seeds)} on each task, the same for both losses",
            rates="1e-4, which falls linearly",
        ),
        would_change="More seeds; accuracy as the score, on validation rows as unbalanced as the "
        "training rows; more epochs; a rate searched for each loss.",
        records=tuple(folder for _, folder, _ in BALANCED_RECORDS),
    )


CARDS = (
    is_glue_transformers_own,
    does_the_order_of_rows_cost_scores,
    is_balanced_cross_entropy_better,
)
