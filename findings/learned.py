"""Findings about what the models have learned: their probabilities and their embeddings."""

from collections.abc import Sequence

import numpy as np

from findings.cards import Card, Conditions
from findings.recipes import (
    BATCHES,
    GPT2,
    TIED,
    TIED_VANILLA,
    UNTIED,
    UNTIED_VANILLA,
)
from findings.records import (
    check,
    difference,
    figure,
    is_clear,
    one_having,
    percent,
    results,
)

TITLE = "What the models learn"

RECIPES = (
    ("headless, tied", TIED),
    ("vanilla, tied", TIED_VANILLA),
    ("headless, untied", UNTIED),
    ("vanilla, untied", UNTIED_VANILLA),
)
CONDITIONS = Conditions(
    model=GPT2,
    vocabulary="8,000",
    tokens=f"0.8 M, in {BATCHES}",
    machine="CPU",
    seeds="two",
    rates="8e-3 alone",
)


def are_headless_models_calibrated() -> Card:
    runs = results("studies/results/rare_tokens")["recipes"]
    errors = {recipe: [run["calibration_error"] for run in runs[recipe]] for _, recipe in RECIPES}
    check(not is_clear(errors[TIED], errors[TIED_VANILLA]), "tied models are level")
    check(not is_clear(errors[UNTIED], errors[UNTIED_VANILLA]), "untied ones are level")
    check(max(map(max, errors.values())) < 1, "all errors are below one point")
    # Each vanilla recipe stands below the headless one that is compared with it.
    vanilla_of = {TIED: TIED_VANILLA, UNTIED: UNTIED_VANILLA}
    rows = []
    for label, recipe in RECIPES:
        minus_vanilla = ""
        if recipe in vanilla_of:
            minus_vanilla = difference(errors[recipe], errors[vanilla_of[recipe]], 2)
        rows.append((label, figure(errors[recipe], 2), minus_vanilla))
    return Card(
        name="are_headless_models_calibrated",
        question="Are headless models calibrated?",
        answer="Yes, as well as vanilla ones",
        figure=f"error of {figure(errors[TIED], 2)} points, vanilla "
        f"{figure(errors[TIED_VANILLA], 2)}",
        text="The calibration error is the mean distance between a model's confidence in its "
        "first choice and how often that choice is right. It is below a point in all models.",
        columns=("", "calibration error, points", "minus vanilla"),
        rows=rows,
        conditions=CONDITIONS,
        would_change="Longer training; texts that differ from the training texts.",
        records=("studies/results/rare_tokens",),
    )


def are_rare_embeddings_degenerate() -> Card:
    runs = results("studies/results/rare_tokens")["recipes"]
    cosines = {recipe: [run["mean_cosine"][0] for run in runs[recipe]] for _, recipe in RECIPES}
    headless = cosines[TIED]
    vanilla = cosines[TIED_VANILLA]
    check(max(headless) < min(vanilla), "headless's rare embeddings are less alike")
    check(is_clear(headless, vanilla), "they are clearly less alike")
    return Card(
        name="are_rare_embeddings_degenerate",
        question="Do the embeddings of rare tokens collapse into one direction?",
        answer="Less than in tied vanilla, and hardly in untied models",
        figure=f"mean cosine x 100 of {figure(headless)}, vanilla {figure(vanilla)}",
        text="A vanilla head pushes all rare tokens away from most outputs at once, which makes "
        "tied embeddings alike. The table has the mean cosine between the input embeddings of the "
        "rarest tenth of the targets.",
        columns=("", "mean cosine x 100 of the rarest"),
        rows=[(label, figure(cosines[recipe])) for label, recipe in RECIPES],
        picture="studies/results/rare_tokens/results.png",
        conditions=CONDITIONS,
        would_change="Better settings of AdamW, longer training.",
        records=("studies/results/rare_tokens",),
    )


def synonym_record(recipe: str, words: str) -> dict:
    """Return what studies/synonyms.py measured of a recipe, for one group of words."""
    return one_having(results("studies/results/synonyms"), recipe=recipe, words=words)


def nearer_than_others(record: dict) -> list[float]:
    """Return by how much synonyms are nearer than the same words in other pairs, of each seed."""
    return np.subtract(record["synonyms"], record["the same words in other pairs"]).tolist()


def are_synonyms_nearer() -> Card:
    rows = []
    for label, words in (("all words", "all words"), ("words of one token", "of one token")):
        headless = synonym_record(TIED, words)
        for name, recipe in (("tied vanilla", TIED_VANILLA), ("untied vanilla", UNTIED_VANILLA)):
            vanilla = synonym_record(recipe, words)
            is_nearer = sum(headless["synonyms"]) > sum(vanilla["synonyms"])
            check(is_nearer, f"synonyms are nearer: {label}, {name}")
            cosine = difference(headless["synonyms"], vanilla["synonyms"])
            without_offset = difference(nearer_than_others(headless), nearer_than_others(vanilla))
            rows.append((label, name, cosine, without_offset))
    return Card(
        name="are_synonyms_nearer",
        question="Are the embeddings of synonyms nearer to each other?",
        answer="Yes, but most of it is an offset that all words share",
        figure=f"{rows[1][2].split(' ')[0]} points of cosine against untied vanilla, "
        f"{rows[1][3].split(' ')[0]} without the offset",
        text="The first difference is of the cosine between synonyms. The second subtracts the "
        "cosine between the same words in other pairs, which is higher in headless models, too.",
        columns=("words", "headless minus", "cosine of synonyms x 100", "without the offset"),
        rows=rows,
        conditions=CONDITIONS,
        would_change="Longer training, larger models; the paper reports 1.4 and 7 points.",
        records=("studies/results/synonyms",),
    )


def are_synonyms_nearer_in_context() -> Card:
    words = "in context, after layer 2"
    rows = []
    shares = []
    for label, recipe in (("headless, tied", TIED), ("vanilla, tied", TIED_VANILLA)):
        record = synonym_record(recipe, words)
        others = record["the same words in other pairs"]
        nearer = nearer_than_others(record)
        share = [gain / (100 - other) for gain, other in zip(nearer, others, strict=True)]
        shares.append(share)
        rows.append(
            (
                label,
                figure(record["synonyms"]),
                figure(others),
                figure(nearer),
                percent(share, 1),
            )
        )
    check(not is_clear(*shares), "the shares show no clear difference")
    return Card(
        name="are_synonyms_nearer_in_context",
        question="Are synonyms nearer in context?",
        answer="No difference beyond an offset",
        figure=f"synonyms close {rows[0][4]} of the remaining distance, in vanilla {rows[1][4]}",
        text="In the last states of words in a text, synonyms are nearer than other words by more "
        "points in headless models. As a share of what the other words leave, both are equal.",
        columns=("", "synonyms: cosine x 100", "other words", "nearer by", "share of the rest"),
        rows=rows,
        conditions=CONDITIONS,
        would_change="Longer training, larger models.",
        records=("studies/results/synonyms",),
    )


def does_tying_pull_the_embedding() -> Card:
    alignment = results("studies/results/tying")["alignment"]
    headless = alignment[TIED]
    vanilla = alignment[TIED_VANILLA]
    for step in vanilla:
        matrices = vanilla[step]["output, rotated"], vanilla[step]["input, rotated"]
        check(min(matrices[0]) > max(matrices[1]), "vanilla is nearer to the output matrix")
    first = headless["50"]
    last = headless["200"]
    check(max(first["output, rotated"]) < min(first["input, rotated"]), "headless starts nearer")
    check(min(last["output, rotated"]) > max(last["input, rotated"]), "headless ends otherwise")
    return Card(
        name="does_tying_pull_the_embedding",
        question="Does tying pull the embedding towards its output role?",
        answer="In vanilla models from the beginning, in headless models later and less",
        figure=f"cosine x 100 with an output matrix: {figure(last['output, rotated'], 1, 100)}, "
        f"vanilla {figure(vanilla['200']['output, rotated'], 1, 100)}",
        text="The table has the mean cosine, after the best rotation, between a tied matrix and "
        "the input and output matrices of an untied vanilla model, as in [arXiv "
        "2603.26663](https://arxiv.org/abs/2603.26663).",
        columns=(
            "steps",
            "headless: with input",
            "headless: with output",
            "vanilla: with input",
            "vanilla: with output",
        ),
        rows=[
            (
                step,
                *(
                    figure(of_method[step][f"{role}, rotated"], 1, 100)
                    for of_method in (headless, vanilla)
                    for role in ("input", "output")
                ),
            )
            for step in vanilla
        ],
        picture="studies/results/tying/results.png",
        conditions=CONDITIONS,
        would_change="Longer training, larger models.",
        records=("studies/results/tying",),
    )


def do_larger_input_gradients_help() -> Card:
    runs = results("studies/results/recipe_input_gradients")
    plain = runs[TIED_VANILLA]["perplexity"]
    rows = [("1", figure(plain), "")]
    for factor in ("2", "5", "10"):
        perplexity = runs[f"{TIED_VANILLA} + input gradients x {factor}"]["perplexity"]
        check(sum(perplexity) > sum(plain), f"a factor of {factor} does not help")
        rows.append((factor, figure(perplexity), difference(perplexity, plain)))
    return Card(
        name="do_larger_input_gradients_help",
        question="Do larger gradients of the input role help a tied vanilla model?",
        answer="No, they harm it the more the larger they are",
        figure=f"perplexity {rows[3][1]} with ten times the gradients, {rows[0][1]} without",
        text="Scaling the gradients that reach a tied matrix as the input embedding is to weaken "
        "[its output role](does_tying_pull_the_embedding.md). Here that does not help.",
        columns=("factor", "perplexity", "minus the plain model"),
        rows=rows,
        picture="studies/results/recipe_input_gradients/results.png",
        conditions=CONDITIONS,
        would_change="Rates searched for each factor, factors between one and two.",
        records=("studies/results/recipe_input_gradients",),
    )


def do_early_layers_leave_the_residual_stream() -> Card:
    streams = results("studies/results/tying")["residual_stream"]
    recipes = (
        ("vanilla, untied", UNTIED_VANILLA),
        ("vanilla, tied", TIED_VANILLA),
        ("headless, tied", TIED),
    )

    def shares(recipe: str, layer: int) -> Sequence[float]:
        return [stream[layer] for stream in streams[recipe]]

    first_layer = {recipe: shares(recipe, 1) for _, recipe in recipes}
    check(min(first_layer[UNTIED_VANILLA]) > max(first_layer[TIED_VANILLA]), "tying lowers it")
    check(not is_clear(first_layer[TIED], first_layer[TIED_VANILLA]), "both are level")
    return Card(
        name="do_early_layers_leave_the_residual_stream",
        question="Does tying take early layers out of the residual stream?",
        answer="A little, and alike in vanilla and headless models",
        figure=f"the first of two layers: {percent(first_layer[UNTIED_VANILLA], 1)} untied, "
        f"{percent(first_layer[TIED_VANILLA], 1)} tied",
        text="The table has what each part adds to the state that the last norm reads, as a share "
        "of its length.",
        columns=("", "embedding", "first layer", "second layer"),
        rows=[
            (label, *(percent(shares(recipe, layer), 1) for layer in (0, 1, 2)))
            for label, recipe in recipes
        ],
        conditions=CONDITIONS,
        would_change="Deeper models.",
        records=("studies/results/tying",),
    )


def does_a_head_suppress_the_gradient() -> Card:
    runs = results("studies/results/surviving_gradient")

    def suppressed(recipe: str, loss: str) -> list[float]:
        return [100 - run[loss]["share"] for run in runs[recipe]]

    rows = [
        (
            label,
            figure(suppressed(recipe, "vocabulary head")),
            figure(suppressed(recipe, "contrastive")),
        )
        for label, recipe in (("headless", TIED), ("vanilla", TIED_VANILLA))
    ]
    everything = [value for recipe in runs for value in suppressed(recipe, "vocabulary head")]
    check(max(everything) < 95, "less than 95 % is suppressed")
    contrastive = [value for recipe in runs for value in suppressed(recipe, "contrastive")]
    check(max(contrastive) < min(everything), "the contrastive loss suppresses less")
    return Card(
        name="does_a_head_suppress_the_gradient",
        question="Does a head suppress 95 to 99 % of the gradient's norm?",
        answer="Less here, and the contrastive loss suppresses less than a vocabulary head",
        figure=f"{rows[1][1]} % and {rows[1][2]} % in a vanilla model",
        text="The table has the share of the gradient's norm that does not reach the trunk, as in "
        "[arXiv 2603.10145](https://arxiv.org/abs/2603.10145). Fewer candidates let more of it "
        "through.",
        columns=("model", "vocabulary head: %", "contrastive loss: %"),
        rows=rows,
        conditions=Conditions(
            model=f"{GPT2}, tied",
            vocabulary="8,000, which is 62 times the width",
            tokens=f"0.8 M, in {BATCHES}",
            machine="CPU",
            seeds="two",
            rates="8e-3 alone",
        ),
        would_change="Larger vocabularies relative to the width.",
        records=("studies/results/surviving_gradient",),
    )


def can_tokens_be_added() -> Card:
    record = results("studies/results/novel_tokens")

    def nats(recipe: str, part: str, form: str) -> list[float]:
        return [run[part][form] for run in record["recipes"][recipe]]

    word, following = "the word", "each following token"
    mean, pieces = "mean of the pieces", "pieces"
    for recipe in (TIED, TIED_VANILLA):
        check(
            max(nats(recipe, word, mean)) < min(nats(recipe, word, pieces)),
            "as a target the new token is better than its pieces",
        )
        check(
            min(nats(recipe, following, mean)) > max(nats(recipe, following, pieces)) - 0.01,
            "as an input the new token is worse than its pieces",
        )
    check(
        min(nats(TIED, word, mean)) > max(nats(TIED_VANILLA, word, mean)),
        "as a target vanilla is ahead",
    )
    return Card(
        name="can_tokens_be_added",
        question="Can tokens be added after pretraining, as the mean of their pieces?",
        answer="As a target yes, as an input no, and vanilla predicts them better",
        figure=f"a new word: {figure(nats(TIED, word, mean), 2)} nats, vanilla "
        f"{figure(nats(TIED_VANILLA, word, mean), 2)}",
        text=f"{record['words']} frequent words of several pieces became tokens. They are "
        "predicted better than their pieces, and the text after them worse, even than after the "
        "mean of all tokens.",
        columns=(
            "the word as",
            "headless: nats of the word",
            "vanilla: nats of the word",
            "headless: nats of each next token",
            "vanilla: nats of each next token",
        ),
        rows=[
            (
                form,
                *(
                    figure(nats(recipe, part, form), 2)
                    for part in (word, following)
                    for recipe in (TIED, TIED_VANILLA)
                ),
            )
            for form in (pieces, mean, "mean of all tokens")
        ],
        conditions=CONDITIONS,
        would_change="Training on texts with the new tokens; larger models.",
        records=("studies/results/novel_tokens",),
    )


CARDS = (
    are_headless_models_calibrated,
    are_rare_embeddings_degenerate,
    are_synonyms_nearer,
    are_synonyms_nearer_in_context,
    does_tying_pull_the_embedding,
    do_larger_input_gradients_help,
    do_early_layers_leave_the_residual_stream,
    does_a_head_suppress_the_gradient,
    can_tokens_be_added,
)
