"""What each record asks and answers: the first lines of every results.md.

Answers are in words, because a figure would have to be checked against the table below it. Where
words can be checked simply, `Record.holds` computes from the results.json whether they are true.
"Ahead in both pretrainings" means that every pretraining of one recipe has a lower perplexity than
every one of the other.
"""

import re
from dataclasses import dataclass
from typing import Any

from findings.cards import record_link
from findings.comparisons import (
    Check,
    about,
    all_of,
    below,
    below_in_pairs,
    level,
    share,
    unclear,
    within,
)
from findings.recipes import BETA2, EPSILON, TIED, TIED_VANILLA, UNTIED, UNTIED_VANILLA
from findings.records import ROOT, check
from findings.records import results as read_results
from findings.statements import (
    adagrad_ends_ahead,
    adagrad_ends_behind,
    balanced_is_better_but_not_steadier,
    balanced_is_steadier_but_not_better,
    decay_helps_headless_and_harms_vanilla,
    drawn_targets_are_worse_but_not_clearly,
    epsilon_halves_the_gain,
    everything_is_slower_without_avx512,
    exact_forgets_at_a_high_rate,
    exact_steps_of_encoders_change_nothing_clearly,
    exact_with_half_of_the_steps_is_behind,
    faster_loss_on_the_gpu,
    faster_than_both_heads,
    fastest_loss,
    gain_is_on_rare_tokens,
    gemma_learns_and_keeps,
    gemma_learns_and_keeps_abstracts,
    gemma_learns_less_with_half_of_the_steps,
    growing_pools_of_neox_differ_unclearly,
    lower_score,
    most_of_it_is_an_offset,
    other_pools_differ_in_sign_alone,
    other_rates_are_worse,
    overlap,
    pieces_are_better_inputs,
    pools_are_level_with_vanilla,
    pools_change_no_average_of_glue,
    pools_cost_less_than_the_exact_step,
    pools_help_on_lambada,
    pools_of_encoders_are_level_with_vanilla,
    pools_of_neox_are_level_with_vanilla,
    pools_of_shorter_encoders_are_level_with_vanilla,
    predicted_draws_and_frequencies_are_nearest,
    predicted_draws_are_nearest_with_half_of_the_vocabulary,
    same_losses,
    scores,
    scores_are_within_a_point,
    share_survives,
    steps_of_the_earlier_code,
    third_neox_lies_between,
    twice_the_rate_changes_little,
    tying_pulls_vanilla,
    uniform_draws_forget_most,
    unit_scale_and_full_prior_are_best,
    vanilla_with_adagrad_ends_ahead,
)
from headless_trainer.presentation.tables import markdown

LIST = "docs/findings/records.md"
# Folders whose folders hold one record each.
RECORD_FOLDERS = ("studies/results", "benchmarks/results", "examples/items/results")


ONE = "It is one pretraining."
EARLIER_SAMPLING = "An earlier version of sampled softmax was run."
SHRINKS = "Better settings of AdamW shrink this lead."
TOO_FEW = "Two are too few to call that clear."
NOT_BETTER = "Settings of AdamW that suit vanilla better were not tried."


@dataclass(frozen=True)
class Record:
    """What a record asks, what it answers, and whether its results say so."""

    question: str
    answer: str
    holds: Check | None = None


def continued(objective: str, rate: float, steps: int = 200) -> dict[str, Any]:
    """Return which entry of a record of studies/adaptation.py a run is."""
    return {"objective": objective, "rate": rate, "steps": steps}


def of_smollm2(objective: str, rate: float = 1e-4) -> dict[str, Any]:
    """Return which run of a record of SmolLM2 has an objective and a rate."""
    return {"objective": objective, "rate": rate}


def rows(recipe: str, number: int) -> dict[str, Any]:
    """Return which entry of a record of studies/batch_size.py has so many rows in a batch."""
    return {"recipe": recipe, "rows": number}


def vocabulary(recipe: str, size: int) -> dict[str, Any]:
    """Return which entry of a record of studies/vocabulary_size.py has a vocabulary."""
    return {"recipe": recipe, "vocabulary": size}


def series(name: str, step: int) -> dict[str, Any]:
    """Return which entries of a record of studies/heads.py are a head after some steps."""
    return {"series": name, "step": step}


SAMPLED = continued("sampled_softmax", 0.006)
NO_DRAWS = continued("sampled_softmax with 0 draws", 0.006)
EXACT = continued("vanilla", 0.006)
HEADLESS = continued("headless", 0.006)
GENTLE = 3e-05
GEMMA_SAMPLED = {"objective": "sampled_softmax with --pool_size 16384", "rate": GENTLE}
GEMMA_EXACT = {"objective": "vanilla", "rate": GENTLE}
RATES = (0.001, 0.003, 0.006, 0.012)
HIGH = 3e-4
ADAPTER_RATE = 1e-3
REPLAYED = "sampled_softmax with --replay_file corpora/en_wikipedia.txt.gz"

CONTINUING = {
    "adaptation_decoder": Record(
        "Does sampled softmax continue a small decoder on another language as well as the exact "
        "softmax?",
        "At the best rate and equal tokens it is ahead in both pretrainings, in roughly half of "
        f"the time. {TOO_FEW} Headless training is ahead too, and forgets the old texts most. "
        + EARLIER_SAMPLING,
        all_of(
            unclear(SAMPLED, EXACT, "new"),
            below(SAMPLED, EXACT, "new"),
            below(HEADLESS, EXACT, "new"),
            below(EXACT, HEADLESS, "old"),
            below(SAMPLED, HEADLESS, "old"),
            share(SAMPLED, EXACT, 0.4, 0.6, "seconds"),
        ),
    ),
    "adaptation_decoder_beta2": Record(
        "Which objective continues a small decoder better with a beta2 of 0.999?",
        "Sampled softmax is ahead of the exact softmax, in about half of the time. "
        f"{ONE} {EARLIER_SAMPLING}",
        all_of(below(SAMPLED, EXACT, "new"), share(SAMPLED, EXACT, 0.45, 0.55, "seconds")),
    ),
    "adaptation_decoder_draws": Record(
        "Does sampled softmax need candidates that are drawn from the vocabulary?",
        "Yes. Without draws it is worse on the new texts than the exact softmax at every rate, "
        "though it forgets less. With draws it is about level with the exact softmax at the best "
        f"rate, in less than half of the time. {ONE} {EARLIER_SAMPLING}",
        all_of(
            *(
                below(
                    continued("vanilla", rate),
                    continued("sampled_softmax with 0 draws", rate),
                    "new",
                )
                for rate in RATES
            ),
            *(
                below(
                    continued("sampled_softmax with 0 draws", rate),
                    continued("vanilla", rate),
                    "old",
                )
                for rate in RATES
            ),
            about(SAMPLED, EXACT, "new"),
            share(SAMPLED, EXACT, 0.0, 0.5, "seconds"),
        ),
    ),
    "adaptation_decoder_epsilon": Record(
        "Which objective continues a small decoder better with a beta2 of 0.999 and an epsilon of "
        "1e-5?",
        f"Sampled softmax is ahead of the exact softmax. {ONE} {EARLIER_SAMPLING}",
        below(SAMPLED, EXACT, "new"),
    ),
    "adaptation_decoder_fourth": Record(
        "Does a fourth pretraining show the lead of sampled softmax in continuing a small decoder?",
        "No. Sampled softmax and the exact softmax are level at equal tokens, in roughly half of "
        f"the time. {ONE} {EARLIER_SAMPLING}",
        all_of(about(SAMPLED, EXACT, "new"), share(SAMPLED, EXACT, 0.45, 0.6, "seconds")),
    ),
    "adaptation_encoder": Record(
        "Does sampled softmax continue a small encoder on other texts as well as the exact "
        "softmax?",
        "At the best rate and equal tokens it is ahead in both pretrainings, in about three "
        "quarters of the time, and forgets less. Between headless training and the exact softmax "
        f"there is no clear difference. {EARLIER_SAMPLING}",
        all_of(
            below(SAMPLED, EXACT, "new"),
            below(SAMPLED, EXACT, "old"),
            level(HEADLESS, EXACT, "new"),
            share(SAMPLED, EXACT, 0.7, 0.8, "seconds"),
        ),
    ),
    "adaptation_decoder_today": Record(
        "How does the sampled softmax of today continue a small decoder at two rates?",
        "It learns as much as the exact softmax at both. It keeps less of the old texts at the low "
        f"rate and more at the high one. {ONE}",
        all_of(
            about(continued("sampled_softmax", 0.001), continued("vanilla", 0.001), "new"),
            about(SAMPLED, EXACT, "new"),
            below(continued("vanilla", 0.001), continued("sampled_softmax", 0.001), "old"),
            below(SAMPLED, EXACT, "old"),
        ),
    ),
    "adaptation_encoder_today": Record(
        "How does the sampled softmax of today continue a small encoder at two rates?",
        "At the best rate of earlier runs it learns more than the exact softmax in both "
        "pretrainings, and at a sixth of it less. At both rates it keeps more of the old texts. "
        + TOO_FEW,
        all_of(
            below_in_pairs(SAMPLED, EXACT, "new"),
            below_in_pairs(SAMPLED, EXACT, "old"),
            below_in_pairs(continued("vanilla", 0.001), continued("sampled_softmax", 0.001), "new"),
            below_in_pairs(continued("sampled_softmax", 0.001), continued("vanilla", 0.001), "old"),
        ),
    ),
    "adaptation_encoder_draws": Record(
        "Does continuing a small encoder need candidates that are drawn from the vocabulary?",
        "With draws, sampled softmax is ahead of the exact softmax in both pretrainings; without "
        "them in one of the two, and then it forgets least. Two GLUE tasks show no clear "
        f"difference between sampled and exact softmax. {EARLIER_SAMPLING}",
        all_of(
            below_in_pairs(SAMPLED, EXACT, "new"),
            below_in_pairs(NO_DRAWS, EXACT, "old"),
            below_in_pairs(NO_DRAWS, SAMPLED, "old"),
            below_in_pairs(NO_DRAWS, HEADLESS, "old"),
            level(SAMPLED, EXACT, ("scores", "average")),
        ),
    ),
    "adaptation_encoder_large_vocabulary": Record(
        "How many draws does continuing an encoder need with a vocabulary of 128,000?",
        "More than the default number. With the default, sampled softmax stays behind the exact "
        "softmax at the best rate of each; with four times as many draws it is about level, in "
        f"less time. {ONE} {EARLIER_SAMPLING}",
        all_of(
            below(continued("vanilla", 0.002), continued("sampled_softmax", 0.004), "new"),
            about(
                continued("sampled_softmax with 16384 draws", 0.004),
                continued("vanilla", 0.002),
                "new",
            ),
            share(
                continued("sampled_softmax with 16384 draws", 0.004),
                continued("vanilla", 0.002),
                0.6,
                0.8,
                "seconds",
            ),
        ),
    ),
    "adaptation_large_vocabulary": Record(
        "What does sampled softmax save when a decoder with a vocabulary of 128,000 is continued?",
        "Nine tenths of the time at the best rate, and it is ahead of the exact softmax at every "
        f"rate. {ONE} {EARLIER_SAMPLING}",
        all_of(
            *(
                below(
                    continued("sampled_softmax", rate, 300), continued("vanilla", rate, 300), "new"
                )
                for rate in (0.002, 0.004, 0.008)
            ),
            share(
                continued("sampled_softmax", 0.004, 300),
                continued("vanilla", 0.004, 300),
                0.05,
                0.15,
                "seconds",
            ),
        ),
    ),
    "adaptation_untied": Record(
        "Does sampled softmax also continue an untied decoder?",
        "Yes. It is ahead of the exact softmax at every rate, in about half of the time. Headless "
        "training has the lowest perplexity on the new texts and forgets the old ones most. "
        f"{ONE} {EARLIER_SAMPLING}",
        all_of(
            *(
                below(continued("sampled_softmax", rate), continued("vanilla", rate), "new")
                for rate in (0.003, 0.006, 0.012)
            ),
            below(HEADLESS, SAMPLED, "new"),
            below(EXACT, HEADLESS, "old"),
            share(SAMPLED, EXACT, 0.45, 0.55, "seconds"),
        ),
    ),
    "real_models_gemma_begun": Record(
        "Does sampled softmax continue a real model, Gemma 3 270M, as well as the exact softmax?",
        "Yes, at a gentle rate. Both learn the new French texts and keep nearly all of the English "
        f"ones. At higher rates both forget. {ONE} A hundred steps were run.",
        gemma_learns_and_keeps,
    ),
    "real_models_gemma_medical": Record(
        "Does sampled softmax continue Gemma 3 270M as well on medical abstracts?",
        "Yes, at a gentle rate. Both learn the abstracts, and the perplexity of English Wikipedia "
        f"falls, too. {ONE} A hundred steps were run.",
        gemma_learns_and_keeps_abstracts,
    ),
    "real_models_gemma_begun_half": Record(
        "How far does the exact softmax continue Gemma 3 270M with half of the steps?",
        "It learns less French than sampled softmax with all of them, and keeps a little more "
        f"English. {ONE} Fifty steps were run.",
        gemma_learns_less_with_half_of_the_steps,
    ),
    "real_models_gemma": Record(
        "Does sampled softmax continue Gemma 3 270M as well as the exact softmax in rows that "
        "begin without the token of their texts?",
        "At a gentle rate the two are level on the new French texts, and sampled softmax is a "
        "little behind on the English ones. At a higher rate it keeps less. This model predicts "
        f"badly in such rows. {ONE} A hundred steps were run.",
        within(
            "runs",
            all_of(
                about(GEMMA_SAMPLED, GEMMA_EXACT, "new"), below(GEMMA_EXACT, GEMMA_SAMPLED, "old")
            ),
        ),
    ),
    "real_models_gemma_half": Record(
        "How far does the exact softmax continue Gemma 3 270M with half of the steps, in rows that "
        "begin without the token of their texts?",
        "Less far on the new French texts than sampled softmax with all of them, at the same rate. "
        f"{ONE} Fifty steps were run.",
        exact_with_half_of_the_steps_is_behind,
    ),
    "real_models_gemma_high": Record(
        "Does the exact softmax keep what Gemma 3 270M knew at a rate that is too high?",
        f"No. Like sampled softmax at this rate, it forgets the English texts. {ONE}",
        exact_forgets_at_a_high_rate,
    ),
    "real_models_gemma_uniform": Record(
        "Do uniform draws without exact steps keep what Gemma 3 270M knew at other rates?",
        "No. At a gentle rate and at one that is too high, both sampled softmax with its own "
        f"candidates and the exact softmax keep more. {ONE} An earlier version of sampled softmax "
        "was run.",
        uniform_draws_forget_most,
    ),
    "real_models_smollm2": Record(
        "Does sampled softmax continue SmolLM2 as well as the exact softmax, and what does a tenth "
        "of old texts save?",
        "At a gentle rate the two are level on new and old texts. At a higher one sampled softmax "
        "forgets, and a tenth of old texts undoes that, at a small cost on new ones. "
        f"Headless training forgets most. {ONE} Eighty steps were run.",
        within(
            "runs",
            all_of(
                about(of_smollm2("sampled_softmax"), of_smollm2("vanilla"), "new"),
                about(of_smollm2("sampled_softmax"), of_smollm2("vanilla"), "old"),
                below(of_smollm2(REPLAYED, HIGH), of_smollm2("sampled_softmax", HIGH), "old"),
                below(of_smollm2("sampled_softmax", HIGH), of_smollm2(REPLAYED, HIGH), "new"),
                about(of_smollm2("sampled_softmax", HIGH), of_smollm2(REPLAYED, HIGH), "new"),
                below(of_smollm2("sampled_softmax", HIGH), of_smollm2("headless"), "old"),
            ),
        ),
    ),
    "real_models_smollm2_chat": Record(
        "Does SmolLM2 learn from the answers of conversations as well with sampled softmax?",
        "It is slightly behind in the perplexity of answers, and level on old texts, at a gentle "
        f"rate. {ONE} Forty steps were run.",
        within(
            "runs",
            all_of(
                below(of_smollm2("vanilla"), of_smollm2("sampled_softmax"), "new"),
                about(of_smollm2("sampled_softmax"), of_smollm2("vanilla"), "old"),
            ),
        ),
    ),
    "real_models_smollm2_zero_shot": Record(
        "Does continuing SmolLM2 on French harm its English tasks?",
        "No clear difference is seen on two tasks, with either softmax. "
        f"{ONE} A hundred documents of each task were scored.",
        within(
            "runs",
            all_of(
                *(
                    share(
                        of_smollm2("sampled_softmax"),
                        of_smollm2("vanilla"),
                        0.9,
                        1.1,
                        ("scores", task),
                    )
                    for task in ("lambada_openai", "arc_easy")
                )
            ),
        ),
    ),
    "real_models_smollm2_lora": Record(
        "Does sampled softmax train an adapter of SmolLM2 as well as the exact softmax?",
        f"The two are level on new and old texts. {ONE} Forty steps were run, at one rate.",
        within(
            "runs",
            all_of(
                about(
                    of_smollm2("sampled_softmax + LoRA 16", ADAPTER_RATE),
                    of_smollm2("vanilla + LoRA 16", ADAPTER_RATE),
                    "new",
                ),
                about(
                    of_smollm2("sampled_softmax + LoRA 16", ADAPTER_RATE),
                    of_smollm2("vanilla + LoRA 16", ADAPTER_RATE),
                    "old",
                ),
            ),
        ),
    ),
}

BATCHES = {
    "batch_size": Record(
        "How does the lead over tied vanilla depend on the rows of a batch, at equal tokens?",
        "Headless is ahead in both pretrainings at every size, though not clearly with the largest "
        "batch, and its lead shrinks as batches grow. The smallest batch "
        "is best for both. Rates followed a rule and were not searched.",
        all_of(*(below(rows(TIED, size), rows(TIED_VANILLA, size)) for size in (8, 32, 128))),
    ),
    "batch_size_512_low": Record(
        "Who leads with 512 rows a batch at a quarter of the rule's rate?",
        f"The two are about level, and headless is slightly ahead. {ONE}",
        all_of(
            about(rows(TIED, 512), rows(TIED_VANILLA, 512)),
            below(rows(TIED, 512), rows(TIED_VANILLA, 512)),
        ),
    ),
    "batch_size_512_second": Record(
        "Does a second pretraining with 512 rows a batch show a lead?",
        f"No. The two are level. With eight rows headless is ahead. {ONE}",
        all_of(
            about(rows(TIED, 512), rows(TIED_VANILLA, 512)),
            below(rows(TIED, 8), rows(TIED_VANILLA, 8)),
        ),
    ),
    "batch_size_equal_steps": Record(
        "How does the lead over tied vanilla depend on the rows of a batch, at equal steps?",
        "Larger batches help both, and headless is ahead in each of four pretrainings at the three "
        "smaller sizes. With the largest batch vanilla is ahead in one pretraining, at a rate that "
        "is too high for both.",
        all_of(
            *(below(rows(TIED, size), rows(TIED_VANILLA, size)) for size in (8, 32, 128)),
            below(rows(TIED_VANILLA, 512), rows(TIED, 512)),
        ),
    ),
    "batch_size_rate_high": Record(
        "Does twice the rule's rate change who leads at equal steps?",
        f"No. Headless is ahead with small and with large batches. {ONE}",
        all_of(*(below(rows(TIED, size), rows(TIED_VANILLA, size)) for size in (8, 128))),
    ),
    "batch_size_rate_low": Record(
        "Does half of the rule's rate change who leads at equal steps?",
        "Only with the largest batch, where headless is then slightly ahead. With smaller batches "
        f"it is ahead as before. {ONE}",
        all_of(*(below(rows(TIED, size), rows(TIED_VANILLA, size)) for size in (8, 128, 512))),
    ),
}

AVERAGE = ("scores", "average")
BITS = ("scores", "bits per byte")
ROFORMER = {"recipe": f"{TIED} + RoFormer"}
ROFORMER_VANILLA = {"recipe": f"{TIED_VANILLA} + RoFormer"}

TASKS = {
    "glue": Record(
        "Do small RoFormers score better on five GLUE tasks when they are pretrained headless?",
        "There is no clear difference in the average of four pretrainings, nor in any task.",
        all_of(
            *(
                level(ROFORMER, ROFORMER_VANILLA, ("scores", task))
                for task in ("average", "cola", "mrpc", "rte", "sst2", "stsb")
            )
        ),
    ),
    "glue_pools": Record(
        "Do larger pools change the GLUE scores of RoFormers after 12.3 million tokens?",
        "There is no clear difference from vanilla in the average of four pretrainings.",
        pools_change_no_average_of_glue,
    ),
    "glue_6000": Record(
        "Do the GLUE scores differ after twice as many tokens?",
        "There is no clear difference in the average of four pretrainings. Fine-tuning had a rate "
        "that a later record improves on.",
        level(ROFORMER, ROFORMER_VANILLA, AVERAGE),
    ),
    "glue_6000_rate": Record(
        "Do the GLUE scores differ after twice as many tokens, with a searched rate of "
        "fine-tuning?",
        "There is no clear difference in the average of eight pretrainings. On sentiment "
        "vanilla's lead is clear by itself, and no longer after a correction for five tasks.",
        all_of(
            *(
                unclear(ROFORMER, ROFORMER_VANILLA, ("scores", task))
                for task in ("average", "cola", "mrpc", "rte", "stsb")
            )
        ),
    ),
    "glue_cross_entropy": Record(
        "Does plain cross-entropy in fine-tuning separate headless and vanilla models?",
        "No. There is no clear difference in the average of four pretrainings.",
        level(ROFORMER, ROFORMER_VANILLA, AVERAGE),
    ),
    "glue_weight_decay": Record(
        "Does more weight decay in pretraining help fine-tuning?",
        "The averages of four pretrainings show no clear difference. One task of five improves, "
        "before a correction for the number of tasks.",
        level({"recipe": f"{TIED} + RoFormer + weight decay 0.3"}, ROFORMER, AVERAGE),
    ),
    "glue_weight_decay_more": Record(
        "Do two more pretrainings separate headless with more weight decay from vanilla?",
        "No. There is no clear difference.",
        level({"recipe": f"{TIED} + RoFormer + weight decay 0.3"}, ROFORMER_VANILLA, AVERAGE),
    ),
    "glue_weight_decay_others": Record(
        "Which other amounts of weight decay help fine-tuning?",
        "Headless with a little more and vanilla with much more show no clear difference in two "
        "pretrainings each.",
        level(
            {"recipe": f"{TIED} + RoFormer + weight decay 0.1"},
            {"recipe": f"{TIED_VANILLA} + RoFormer + weight decay 0.3"},
            AVERAGE,
        ),
    ),
}

FREE_HEAD = series("free head", 200)
NEOX_FREE_HEAD = series("free head", 7200)
NEOX_TUNED = series("fine-tuned from E^T", 7200)
NEOX_UNTIED = series(f"{UNTIED_VANILLA} + GPT-NeoX", 7200)
LAMBADA = "lambada_perplexity"
LAMBADA_ACCURACY = "lambada_accuracy"
HELD_OUT = "eval_perplexity"
NEVER_REACHED = (
    "No. After fine-tuning at this rate the perplexity is still above that of the free head, which "
    f"needs no step. {ONE}"
)

HEADS = {
    "heads": Record(
        "What does the head cost that headless training leaves out?",
        "Nothing. Input embeddings alone are a poor head, and adding the log frequencies of tokens "
        "repairs it without a step. This free head ends ahead of a tied vanilla head and of the "
        "paper's fine-tuning at one rate, and behind an untied vanilla head, though not clearly.",
        within(
            "models",
            all_of(
                below(FREE_HEAD, series(TIED_VANILLA, 200), HELD_OUT),
                below(FREE_HEAD, series("fine-tuned from E^T", 200), HELD_OUT),
                below(series(UNTIED_VANILLA, 200), FREE_HEAD, HELD_OUT),
                below(FREE_HEAD, series("E^T alone", 200), HELD_OUT),
            ),
        ),
    ),
    "heads_lambada": Record(
        "How well does a GPT-NeoX with its free head predict LAMBADA after a short pretraining?",
        "Its perplexity there is below that of untied vanilla, and the paper's fine-tuning makes "
        f"it worse. The accuracy of both is next to nothing. {ONE}",
        within(
            "models",
            all_of(
                below(
                    series("free head", 2400), series(f"{UNTIED_VANILLA} + GPT-NeoX", 2400), LAMBADA
                ),
                below(series("free head", 2400), series("fine-tuned from E^T", 2400), LAMBADA),
            ),
        ),
    ),
    "heads_lambada_longer": Record(
        "How well does a GPT-NeoX with its free head predict LAMBADA after three times as many "
        "tokens?",
        "Worse than untied vanilla in perplexity and in accuracy, while the two are level on "
        f"held-out text. The paper's fine-tuning does not help. {ONE}",
        within(
            "models",
            all_of(
                below(NEOX_UNTIED, NEOX_FREE_HEAD, LAMBADA),
                below(NEOX_FREE_HEAD, NEOX_UNTIED, LAMBADA_ACCURACY),
                about(NEOX_FREE_HEAD, NEOX_UNTIED, HELD_OUT),
                below(NEOX_FREE_HEAD, NEOX_TUNED, LAMBADA),
            ),
        ),
    ),
    "heads_lambada_longer_second": Record(
        "Does a second pretraining repeat what LAMBADA shows?",
        "Yes. Untied vanilla is ahead in perplexity and in accuracy, while the two are level on "
        f"held-out text. {ONE}",
        within(
            "models",
            all_of(
                below(NEOX_UNTIED, NEOX_FREE_HEAD, LAMBADA),
                below(NEOX_FREE_HEAD, NEOX_UNTIED, LAMBADA_ACCURACY),
                about(NEOX_FREE_HEAD, NEOX_UNTIED, HELD_OUT),
            ),
        ),
    ),
    "heads_lambada_third": Record(
        "Does a third pretraining repeat what LAMBADA shows?",
        "In accuracy, where untied vanilla is ahead. In perplexity there is no clear difference "
        f"between documents, and held-out text has none. {ONE}",
        within(
            "models",
            all_of(
                about(NEOX_FREE_HEAD, NEOX_UNTIED, HELD_OUT),
                below(NEOX_FREE_HEAD, NEOX_UNTIED, LAMBADA_ACCURACY),
            ),
        ),
    ),
    "heads_lambada_pools": Record(
        "Do larger pools help on LAMBADA?",
        "Yes. The perplexity of the free head is level with that of untied vanilla in the first "
        "pretraining, and it has more words right than without them, though fewer than vanilla. "
        f"{ONE}",
        pools_help_on_lambada,
    ),
    "heads_lambada_tuning_1e-4": Record(
        "Does the paper's fine-tuning reach the free head at a rate of 1e-4?",
        NEVER_REACHED,
        within("models", below(NEOX_FREE_HEAD, NEOX_TUNED, HELD_OUT)),
    ),
    "heads_lambada_tuning_3e-4": Record(
        "Does the paper's fine-tuning reach the free head at a rate of 3e-4?",
        NEVER_REACHED,
        within("models", below(NEOX_FREE_HEAD, NEOX_TUNED, HELD_OUT)),
    ),
    "prior": Record(
        "Does the free head need tuning?",
        "No. An unscaled output and the full weight of the log frequencies are the best pair of "
        "the grid, and training both with a bias makes them worse. One model was tuned.",
        unit_scale_and_full_prior_are_best,
    ),
}


EMBEDDINGS = {
    "novel_tokens": Record(
        "Can a token be added after pretraining as the mean of its pieces?",
        "As a target yes, far better than as its pieces, and better in tied vanilla than headless. "
        "As an input no: the tokens after it are then predicted worse than after the pieces, in "
        "both pretrainings.",
        pieces_are_better_inputs,
    ),
    "rare_tokens": Record(
        "Which tokens gain from headless training?",
        "The rare ones. Between models with equally many matrices, headless is ahead on the rarest "
        "tenth of the targets in both pretrainings, with no clear difference on the most frequent. "
        "It is calibrated as well as vanilla. " + NOT_BETTER,
        gain_is_on_rare_tokens,
    ),
    "rare_tokens_32k": Record(
        "Is the gain on rare tokens the method's or AdamW's?",
        "About half of each: a larger epsilon halves vanilla's deficit on the rarest tenth of the "
        "targets, and headless stays ahead in both pretrainings.",
        epsilon_halves_the_gain,
    ),
    "surviving_gradient": Record(
        "How much of the gradient's norm survives the head?",
        "An eighth with a vocabulary head, and more than twice as much with the contrastive loss, "
        "in headless and in vanilla models alike.",
        share_survives,
    ),
    "synonyms": Record(
        "Are the embeddings of synonyms nearer to each other after headless training?",
        "Yes, but so are those of all words. Without this offset the difference from vanilla is "
        "small, and next to nothing between untied models.",
        most_of_it_is_an_offset,
    ),
    "tying": Record(
        "Does tying pull the embedding towards its role as output?",
        "In vanilla yes, from the beginning. In headless models the embedding first resembles an "
        "input matrix more, and an output matrix slightly more at the end.",
        tying_pulls_vanilla,
    ),
}


RECIPES = {
    "recipe_32k": Record(
        "Who is ahead early with a vocabulary of 32,000 and the paper's beta2?",
        f"Headless, clearly and in both pretrainings. {SHRINKS}",
        below(UNTIED, UNTIED_VANILLA),
    ),
    "recipe_32k_6400": Record(
        "Does the early lead last for 6.6 million tokens, with a vocabulary of 32,000 and the "
        "paper's beta2?",
        f"Yes, but better settings of AdamW remove this lead. {ONE}",
        below(UNTIED, UNTIED_VANILLA),
    ),
    "recipe_32k_epsilon": Record(
        "Who is ahead early with a vocabulary of 32,000 when AdamW suits both?",
        f"Headless, by little and in both pretrainings. {TOO_FEW} It reaches vanilla's perplexity "
        "in a fraction of the time. The accuracies show no clear difference.",
        all_of(
            unclear(UNTIED + EPSILON, UNTIED_VANILLA + EPSILON),
            below(UNTIED + EPSILON, UNTIED_VANILLA + EPSILON),
            level(UNTIED + EPSILON, UNTIED_VANILLA + EPSILON, "accuracy"),
        ),
    ),
    "recipe_32k_epsilon_6400": Record(
        "Who is ahead after 6.6 million tokens when AdamW suits both?",
        f"Vanilla, by little and in both pretrainings, in several times the time. {TOO_FEW}",
        all_of(
            unclear(UNTIED_VANILLA + EPSILON, UNTIED + BETA2),
            below(UNTIED_VANILLA + EPSILON, UNTIED + BETA2),
            share(UNTIED + BETA2, UNTIED_VANILLA + EPSILON, 0.1, 0.33, "seconds"),
        ),
    ),
    "recipe_32k_24400": Record(
        "Who is ahead after 25 million tokens when AdamW suits both?",
        "Vanilla, in all three pretrainings.",
        below(UNTIED_VANILLA + EPSILON, UNTIED + BETA2),
    ),
    "recipe_32k_24400_pools": Record(
        "Do larger pools of candidates close the gap after 25 million tokens?",
        "Yes. Headless is then level with vanilla over three pretrainings. One size of pool and "
        "one rate were run.",
        pools_are_level_with_vanilla,
    ),
    "recipe_table_optimizers": Record(
        "Do tables with one second moment for each row train as well as with AdamW's moments?",
        f"Early in training yes, with a lower perplexity and about the same accuracy. {ONE}",
        all_of(
            *(
                below(f"{UNTIED}{BETA2} + {optimizer}", UNTIED + BETA2)
                for optimizer in (
                    "row-wise Adam",
                    "row-wise Adam without momentum",
                    "row-wise Adagrad at a flat rate",
                )
            )
        ),
    ),
    "recipe_32k_6400_adagrad": Record(
        "Does row-wise Adagrad at a flat rate keep its early lead over AdamW?",
        "It leads early, is level with AdamW in between, and ends ahead of it at the same rate, "
        f"and of vanilla with AdamW in perplexity. {ONE} No other rate was tried for the tables.",
        adagrad_ends_ahead,
    ),
    "recipe_32k_6400_adagrad_vanilla": Record(
        "Does vanilla gain from row-wise Adagrad at a flat rate, too?",
        f"Yes, in runs as short as that of headless, at the same rate. {ONE} No other rate was "
        "tried for the tables.",
        vanilla_with_adagrad_ends_ahead,
    ),
    "recipe_32k_24400_adagrad": Record(
        "Does row-wise Adagrad at a flat rate suit tables after 25 million tokens?",
        "No. It leads at first and ends behind AdamW at the same rate, in perplexity and accuracy. "
        f"{ONE} No other rate was tried for the tables.",
        adagrad_ends_behind,
    ),
    "recipe_table_optimizers_vanilla": Record(
        "Does vanilla gain from one second moment for each row, too?",
        f"Early in training yes, without momentum. {ONE}",
        below(
            UNTIED_VANILLA + EPSILON + " + row-wise Adam without momentum of vanilla",
            UNTIED_VANILLA + EPSILON,
        ),
    ),
    "recipe_longest_pools": Record(
        "Do larger pools close the gap of a GPT-NeoX with a vocabulary of 8,000?",
        "Yes. In the end headless is level with vanilla in both pretrainings. One size of pool and "
        "one rate were run.",
        pools_of_neox_are_level_with_vanilla,
    ),
    "recipe_longest_pools_third": Record(
        "How does a third GPT-NeoX with larger pools end?",
        f"Between the two earlier ones. Vanilla was not run with its seed. {ONE}",
        third_neox_lies_between,
    ),
    "recipe_neox_growing_pools": Record(
        "Should the pools of a GPT-NeoX grow during training?",
        "There is no clear difference from pools of one size over three pretrainings. Growing "
        "pools have fewer candidates in most steps.",
        growing_pools_of_neox_differ_unclearly,
    ),
    "recipe_roformer_longest_pools": Record(
        "Do larger pools close the gap of encoders after 12.3 million tokens?",
        "Yes. Headless then has the accuracy of vanilla in four pretrainings. One size of pool was "
        "run.",
        pools_of_shorter_encoders_are_level_with_vanilla,
    ),
    "recipe_roformer_pool_variants": Record(
        "Should the pools of encoders be topped up with drawn targets, or grow during training?",
        "There is no clear difference. Drawn targets have the higher perplexity in both "
        "pretrainings, and growing pools the lower one in all three.",
        other_pools_differ_in_sign_alone,
    ),
    "recipe_roformer_drawn_third": Record(
        "How does a third encoder end whose pools are topped up with drawn targets?",
        "Its perplexity is higher than with recent targets, as in the two earlier pretrainings. "
        "Over all three there is no clear difference.",
        drawn_targets_are_worse_but_not_clearly,
    ),
    "recipe_roformer_exact_steps": Record(
        "Does an exact step now and then help encoders with larger pools?",
        "There is no clear difference over three pretrainings. Every eighth step scored the "
        "whole vocabulary, with the frequencies as weights.",
        exact_steps_of_encoders_change_nothing_clearly,
    ),
    "recipe_roformer_longest_pools_rate": Record(
        "Would twice the rate help an encoder with larger pools?",
        f"Hardly. Its perplexity is a little lower and its accuracy the same. {ONE}",
        twice_the_rate_changes_little,
    ),
    "recipe_roformer_6000_pools": Record(
        "Do larger pools close the gap of encoders after 24.6 million tokens?",
        "Yes. Headless then has the accuracy of vanilla. One size of pool and one rate were run.",
        pools_of_encoders_are_level_with_vanilla,
    ),
    "recipe_32k_epsilon_sweep": Record(
        "Which epsilon of AdamW suits each objective?",
        "Vanilla needs one above AdamW's default, and then nearly catches up. Headless hardly "
        "depends on it, but the largest one harms it. Most rows are one pretraining.",
        all_of(
            below(UNTIED_VANILLA + EPSILON, UNTIED_VANILLA + BETA2),
            about(UNTIED + EPSILON, UNTIED + BETA2),
            below(UNTIED + EPSILON, UNTIED + BETA2 + " + epsilon 1e-4"),
        ),
    ),
    "recipe_32k_equal_time": Record(
        "Who is ahead in equal time on a CPU with a vocabulary of 32,000?",
        "Headless, clearly and in both pretrainings, because it reads several times as many "
        "tokens.",
        below(UNTIED + BETA2, UNTIED_VANILLA + EPSILON),
    ),
    "recipe_ablations": Record(
        "Which changes of the loss and of the width keep the gain?",
        "Headless is ahead of tied vanilla at all three widths. A higher temperature, a loss "
        "corrected for log frequencies and scaled input gradients make it worse. Each variant is "
        "one pretraining.",
        all_of(
            below(TIED, TIED_VANILLA),
            below(TIED + " + width 64", TIED_VANILLA + " + width 64"),
            below(TIED + " + width 256", TIED_VANILLA + " + width 256"),
            *(
                below(TIED, f"{TIED} + {variant}")
                for variant in (
                    "temperature 2",
                    "corrected for log q",
                    "input gradients x 3",
                    "input gradients x 10",
                )
            ),
        ),
    ),
    "recipe_counts": Record(
        "Should a candidate be weighted by its count, with 32 rows a batch?",
        "Yes. A weight equal to the count, the default, is best in both pretrainings. Smaller and "
        "larger powers are worse.",
        all_of(*(below(TIED, f"{TIED} + counts ^ {power}") for power in ("0", "0.5", "1.5", "2"))),
    ),
    "recipe_counts_32k": Record(
        "Should a candidate be weighted by its count, with 8 rows a batch and more tokens to tell "
        "apart?",
        "It makes no clear difference up to the count itself; higher powers are worse. A sweep of "
        "the vocabulary with few exact rows is far worse.",
        all_of(
            level(TIED, TIED + " + counts ^ 0"),
            level(TIED, TIED + " + counts ^ 0.5"),
            below(TIED, TIED + " + counts ^ 1.5"),
            below(TIED, TIED + " + counts ^ 2"),
            below(TIED, "sweep + Muon"),
        ),
    ),
    "recipe_encoders": Record(
        "Which ingredients help a small BERT?",
        "Tied headless is ahead of tied vanilla in both pretrainings. A second matrix harms both "
        "objectives, and candidates by frequency do not help. Variants are one pretraining, by an "
        "earlier version of the method.",
        all_of(
            below(TIED, TIED_VANILLA),
            below(TIED, UNTIED),
            below(TIED_VANILLA, UNTIED_VANILLA),
            below(TIED, TIED + " + 4096 by frequency"),
        ),
    ),
    "recipe_english": Record(
        "Who is ahead early with a vocabulary of 8,000, and does a second matrix help?",
        "Headless is ahead with one matrix and with two, in both pretrainings, and a second matrix "
        f"helps both. One rate was run. {NOT_BETTER}",
        all_of(
            below(TIED, TIED_VANILLA),
            below(UNTIED, UNTIED_VANILLA),
            below(UNTIED, TIED),
            below(UNTIED_VANILLA, TIED_VANILLA),
        ),
    ),
    "recipe_german": Record(
        "Is the early lead the same on German texts?",
        "Headless is ahead with one matrix and with two, in both pretrainings, at one rate. "
        f"{TOO_FEW} {NOT_BETTER}",
        all_of(
            unclear(TIED, TIED_VANILLA),
            unclear(UNTIED, UNTIED_VANILLA),
            below(TIED, TIED_VANILLA),
            below(UNTIED, UNTIED_VANILLA),
        ),
    ),
    "recipe_ingredients": Record(
        "Which ingredient improves headless training?",
        "None. Smaller pools, an exact end and a lower temperature change nothing clearly; "
        "candidates by frequency and losses corrected for log frequencies are no better.",
        all_of(
            *(
                about(TIED, f"{TIED} + {variant}")
                for variant in ("pools of 2048", "exact at the end", "temperature 0.5")
            ),
            *(
                below(TIED, f"{TIED} + {variant}")
                for variant in ("4096 by frequency", "corrected for log q", "refined correction")
            ),
        ),
    ),
    "recipe_input_gradients": Record(
        "Does a tied vanilla model gain from scaled gradients of its inputs?",
        "No. Doubling them makes no clear difference, and larger factors are worse in both "
        "pretrainings, at one rate.",
        all_of(
            level(TIED_VANILLA, TIED_VANILLA + " + input gradients x 2"),
            below(TIED_VANILLA, TIED_VANILLA + " + input gradients x 5"),
            below(TIED_VANILLA, TIED_VANILLA + " + input gradients x 10"),
        ),
    ),
    "recipe_longer": Record(
        "Is a GPT-NeoX with a vocabulary of 8,000 still ahead after 2.5 million tokens?",
        f"Yes, by less than before, in both pretrainings. {NOT_BETTER}",
        below(UNTIED + " + GPT-NeoX", UNTIED_VANILLA + " + GPT-NeoX"),
    ),
    "recipe_longest": Record(
        "Is a GPT-NeoX with a vocabulary of 8,000 still ahead after 9.8 million tokens?",
        f"No. The two are level, in half of vanilla's time. {ONE}",
        all_of(
            about(UNTIED + " + GPT-NeoX", UNTIED_VANILLA + " + GPT-NeoX"),
            share(UNTIED + " + GPT-NeoX", UNTIED_VANILLA + " + GPT-NeoX", 0.45, 0.55, "seconds"),
        ),
    ),
    "recipe_longest_second": Record(
        "Is the GPT-NeoX of a second pretraining still ahead after 9.8 million tokens?",
        f"No. Vanilla is slightly ahead, in twice the time. {ONE}",
        all_of(
            below(UNTIED_VANILLA + " + GPT-NeoX", UNTIED + " + GPT-NeoX"),
            share(UNTIED + " + GPT-NeoX", UNTIED_VANILLA + " + GPT-NeoX", 0.45, 0.55, "seconds"),
        ),
    ),
    "recipe_multilingual": Record(
        "Who is ahead early when RoFormers learn seven languages?",
        "Headless, in both pretrainings and in about half of the time, at the higher of its two "
        f"rates. {TOO_FEW} Vanilla's rate is the lower one.",
        all_of(
            unclear(TIED + " + RoFormer", TIED_VANILLA + " + RoFormer"),
            below(TIED + " + RoFormer", TIED_VANILLA + " + RoFormer"),
            share(TIED + " + RoFormer", TIED_VANILLA + " + RoFormer", 0.45, 0.55, "seconds"),
        ),
    ),
    "recipe_neox": Record(
        "Who is ahead early when the decoder is a GPT-NeoX?",
        f"Headless, in both pretrainings, with searched rates. {TOO_FEW} {SHRINKS}",
        all_of(
            unclear(UNTIED + " + GPT-NeoX", UNTIED_VANILLA + " + GPT-NeoX"),
            below(UNTIED + " + GPT-NeoX", UNTIED_VANILLA + " + GPT-NeoX"),
        ),
    ),
    "recipe_neox_epsilon": Record(
        "Is the GPT-NeoX still ahead early when AdamW suits both?",
        f"Yes, in both pretrainings. {TOO_FEW}",
        all_of(
            unclear(UNTIED + " + GPT-NeoX" + EPSILON, UNTIED_VANILLA + " + GPT-NeoX" + EPSILON),
            *(
                below(UNTIED + " + GPT-NeoX" + adam, UNTIED_VANILLA + " + GPT-NeoX" + adam)
                for adam in (BETA2, EPSILON)
            ),
        ),
    ),
    "recipe_pythia_70m": Record(
        "Who is ahead when a model with the layers of Pythia-70M is pretrained on an H100?",
        "Headless, by little and in both pretrainings, in less time than vanilla takes with our "
        "slow exact head. A faster head and better settings of AdamW were not tried.",
        all_of(
            below(UNTIED + " + Pythia-70M", UNTIED_VANILLA + " + Pythia-70M"),
            share(UNTIED + " + Pythia-70M", UNTIED_VANILLA + " + Pythia-70M", 0.6, 0.8, "seconds"),
        ),
    ),
    "recipe_roformer_6000": Record(
        "Is a RoFormer still ahead after 24.6 million tokens?",
        "No. Its perplexity shows no clear difference from vanilla's in eight pretrainings, and "
        "its accuracy is lower in each of them.",
        all_of(
            level(TIED + " + RoFormer", TIED_VANILLA + " + RoFormer"),
            below(TIED + " + RoFormer", TIED_VANILLA + " + RoFormer", "accuracy"),
        ),
    ),
    "recipe_roformer_6000_rates": Record(
        "Would another rate help the longest pretraining of RoFormers?",
        "No. The two other rates are worse for both objectives than the one that was chosen. "
        f"{ONE}",
        other_rates_are_worse,
    ),
    "recipe_roformer_beta2": Record(
        "Is a RoFormer still ahead early with a beta2 of 0.999?",
        f"Yes, by far and in both pretrainings. {TOO_FEW}",
        below(TIED + " + RoFormer" + BETA2, TIED_VANILLA + " + RoFormer" + BETA2),
    ),
    "recipe_roformer_longest": Record(
        "Is a RoFormer still ahead after 12.3 million tokens?",
        "No. Its perplexity shows no clear difference from vanilla's in four pretrainings, and "
        "its accuracy is lower in each of them. More weight decay changes little.",
        all_of(
            level(TIED + " + RoFormer", TIED_VANILLA + " + RoFormer"),
            below(TIED + " + RoFormer", TIED_VANILLA + " + RoFormer", "accuracy"),
            level(TIED + " + RoFormer", TIED + " + RoFormer + weight decay 0.3"),
        ),
    ),
    "recipe_roformer_weight_decay": Record(
        "Which weight decay suits each objective?",
        "A little more than the default improves headless slightly, and much more harms vanilla, "
        "in both pretrainings.",
        decay_helps_headless_and_harms_vanilla,
    ),
    "recipe_sampled": Record(
        "Is sampled softmax an alternative to headless training from random weights?",
        "No. It is behind in both pretrainings and takes twice the time. " + EARLIER_SAMPLING,
        all_of(
            below(UNTIED, "sampled softmax untied + Muon"),
            share("sampled softmax untied + Muon", UNTIED, 1.9, 2.1, "seconds"),
        ),
    ),
    "recipe_small_batches": Record(
        "Who is ahead early with 8 rows a batch and a vocabulary of 8,000?",
        f"Headless, in both pretrainings. {SHRINKS}",
        below(UNTIED, UNTIED_VANILLA),
    ),
    "recipe_small_batches_epsilon": Record(
        "Is headless still ahead early with 8 rows a batch when AdamW suits both?",
        "Yes, in both pretrainings, by less.",
        below(UNTIED + EPSILON, UNTIED_VANILLA + EPSILON),
    ),
    "recipe_sweep": Record(
        "Is a sweep of the vocabulary, each candidate once and few rows exact, better?",
        "No. It is worse than headless training in both pretrainings, in more time.",
        all_of(below(TIED, "sweep + Muon"), share("sweep + Muon", TIED, 1.1, 1.3, "seconds")),
    ),
    "recipe_trunks": Record(
        "On which encoders is headless ahead early?",
        "On all four, and by far most with relative or rotary positions. One or two "
        "pretrainings of each are too few to call that clear.",
        all_of(
            *(
                below(TIED + trunk, TIED_VANILLA + trunk)
                for trunk in ("", " + RoBERTa", " + DeBERTa", " + RoFormer")
            )
        ),
    ),
}

VOCABULARIES = {
    "equal_time_vocabulary": Record(
        "Does a smaller vocabulary let vanilla catch up in equal time?",
        "No. With it vanilla needs more bits for each byte than headless with the larger one. At "
        f"equal tokens vanilla with the larger one is best, in more time. {ONE}",
        all_of(
            below(
                vocabulary(UNTIED + BETA2, 32_000),
                vocabulary(UNTIED_VANILLA + EPSILON, 8_000),
                BITS,
            ),
            below(
                vocabulary(UNTIED_VANILLA + EPSILON, 32_000),
                vocabulary(UNTIED + BETA2, 32_000),
                BITS,
            ),
        ),
    ),
    "vocabulary_size": Record(
        "Do larger vocabularies help, and who is ahead at each?",
        "Larger ones need fewer bits for each byte. Headless is slightly ahead of tied vanilla in "
        "both pretrainings at one rate, though not clearly at the largest that both have. "
        + SHRINKS,
        all_of(
            *(
                below(vocabulary(TIED, size), vocabulary(TIED_VANILLA, size), "bits")
                for size in (5_000, 15_000, 50_000)
            ),
            below(vocabulary(TIED, 150_000), vocabulary(TIED, 50_000), "bits"),
        ),
    ),
    "vocabulary_size_encoders": Record(
        "Do larger vocabularies help encoders on tasks?",
        "The scores cannot tell. At no size is there a clear difference between headless and "
        "vanilla, but headless slows down far less as the vocabulary grows.",
        all_of(
            *(
                unclear(
                    vocabulary(TIED + " + RoFormer", size),
                    vocabulary(TIED_VANILLA + " + RoFormer", size),
                    AVERAGE,
                )
                for size in (5_000, 15_000, 50_000)
            )
        ),
    ),
    "vocabulary_size_epsilon": Record(
        "Is headless still ahead with a vocabulary of 50,000 when AdamW suits both?",
        f"No. The two are level, headless in far less time. {ONE}",
        all_of(
            about(
                vocabulary(TIED + EPSILON, 50_000),
                vocabulary(TIED_VANILLA + EPSILON, 50_000),
                BITS,
            ),
            share(
                vocabulary(TIED + EPSILON, 50_000),
                vocabulary(TIED_VANILLA + EPSILON, 50_000),
                0.0,
                0.2,
                "seconds",
            ),
        ),
    ),
    "vocabulary_size_multilingual": Record(
        "Do vocabularies help up to a million tokens, in ten languages?",
        f"Yes, by less and less. Only headless models were trained. {ONE}",
        all_of(
            *(
                below(vocabulary(TIED, larger), vocabulary(TIED, smaller), BITS)
                for smaller, larger in (
                    (32_000, 150_000),
                    (150_000, 500_000),
                    (500_000, 1_000_000),
                )
            )
        ),
    ),
}


STEP_OF_HEADLESS = (
    "The headless step is faster than with the exact head, and much faster than with that of "
    "transformers, on a CPU."
)


NEAREST_CANDIDATES = (
    "Draws by the model's mean prediction on top of many targets, recent or drawn by frequency. "
    "As many uniform draws leave a larger error. Nothing was trained."
)
BENCHMARKS = {
    "candidates_gemma": Record(
        "Which candidates give the gradient of the exact softmax for Gemma 3 270M?",
        NEAREST_CANDIDATES,
        predicted_draws_and_frequencies_are_nearest,
    ),
    "candidates_roformer": Record(
        "Which candidates give the gradient of the exact softmax for a small encoder?",
        "With at most half of the vocabulary, draws by the model's mean prediction. Uniform "
        "draws come as near only when they are nearly the whole of it. Nothing was trained.",
        predicted_draws_are_nearest_with_half_of_the_vocabulary,
    ),
    "candidates_smollm2": Record(
        "Which candidates give the gradient of the exact softmax for SmolLM2 135M Instruct?",
        NEAREST_CANDIDATES,
        predicted_draws_and_frequencies_are_nearest,
    ),
    "h100": Record(
        "Is a step faster on an H100 than with exact kernels?",
        "With the largest vocabulary clearly, with BERT-base hardly, and with a narrow decoder and "
        "many targets it is slower. An earlier version of the code was measured, and the newest "
        "kernels for this GPU were not.",
        steps_of_the_earlier_code,
    ),
    "h100_aligned": Record(
        "How fast are the loss and a step on an H100 with aligned chunks?",
        "The loss alone is faster than every exact head that was measured, at every size. Steps "
        "with small batches wait for the host, and a narrow decoder with many targets is faster "
        "only with pools. The newest kernels for this GPU were not measured.",
        faster_loss_on_the_gpu,
    ),
    "loss": Record(
        "How fast is the loss alone on a CPU?",
        "Several times as fast as the form of the paper, and more than an order of magnitude "
        "faster than cross-entropy over the vocabulary.",
        fastest_loss,
    ),
    "pools_one_thread": Record(
        "What do larger pools cost on a CPU?",
        "Less than the exact softmax at every size that was measured. The larger the vocabulary, "
        "the smaller is their share of the exact step.",
        pools_cost_less_than_the_exact_step,
    ),
    "pools_two_threads": Record(
        "What do larger pools cost on a CPU with two threads?",
        "Less than the exact softmax at every size that was measured, as with one thread.",
        pools_cost_less_than_the_exact_step,
    ),
    "step_bert_small": Record(
        "How fast is a step of BERT-small with a vocabulary of 50,304?",
        STEP_OF_HEADLESS,
        faster_than_both_heads("8"),
    ),
    "step_bert_small_120k": Record(
        "How fast is a step of BERT-small with a vocabulary of 120,000?",
        STEP_OF_HEADLESS,
        faster_than_both_heads("8"),
    ),
    "step_bert_small_32k": Record(
        "How fast is a step of BERT-small with a vocabulary of 32,000, on one thread?",
        STEP_OF_HEADLESS,
        faster_than_both_heads("16"),
    ),
    "step_decoder": Record(
        "How fast is a step of the paper's narrow decoder, on one thread?",
        "A headless step takes a third of the time of one with our exact head. It takes less than "
        "a fifth of that of transformers, on a CPU. Smaller pools save a little more.",
        within(
            "64",
            lambda results: (
                3 < results["our vanilla"]["ratio"] < 3.5
                and 5 < results["transformers"]["ratio"]
                and results["headless, pools of 1,024"]["ratio"] < 1
            ),
        ),
    ),
    "step_xlm_roberta": Record(
        "How fast is a step that continues XLM-R with sampled softmax?",
        "Somewhat faster than with our exact head and more than twice as fast as with that of "
        "transformers, on a CPU. The steps are those between two exact ones.",
        within(
            "4",
            lambda results: (
                1.1 < results["our vanilla"]["ratio"] < 1.4 and 2 < results["transformers"]["ratio"]
            ),
        ),
    ),
    "compare_steps_gemma": Record(
        "How fast is a step that continues Gemma 3 270M, with its real weights?",
        "Less than half of the time of our exact head with sampled softmax, on a CPU. Memory is "
        "level.",
        within(
            "objectives",
            lambda objectives: (
                2 * objectives["sampled_softmax"]["median_seconds"]
                < objectives["vanilla"]["median_seconds"]
            ),
        ),
    ),
    "compare_steps_gemma_second": Record(
        "How fast is the same step on a CPU without AVX-512?",
        "Slower with every objective. Sampled softmax takes half of the time of our exact head.",
        within(
            "objectives",
            all_of(
                share("sampled_softmax", "vanilla", 0.45, 0.55, "median_seconds"),
                everything_is_slower_without_avx512,
            ),
        ),
    ),
    "step_gemma": Record(
        "Does a step of Gemma 3 270M with random weights take as long?",
        "Yes. Sampled softmax takes not much more than half of the time of our exact head.",
        within("4", lambda results: 1.6 < results["our vanilla"]["ratio"] < 2),
    ),
    "compare_steps_minilm": Record(
        "How fast is a step of MiniLM, with its real weights?",
        "As fast headless as with our exact head, on a CPU. The model in transformers takes almost "
        "twice as long.",
        within(
            "objectives",
            all_of(
                share("headless", "vanilla", 0.9, 1.1, "median_seconds"),
                share("transformers", "vanilla", 1.7, 2, "median_seconds"),
            ),
        ),
    ),
}


DRAWN = "headless, 4,096 uniform"
FULL = "full softmax"
BEAUTY = "Beauty, positions from the end"

ITEMS = {
    "Beauty": Record(
        "Is headless as good as the full softmax for items of Beauty?",
        "On the test there is no clear difference once the log frequencies are weighted; without "
        "them headless loses, in each of three seeds. An earlier version of the example was run.",
        all_of(
            lower_score(DRAWN, FULL, "test_ndcg@10_at_tau_0"),
            lambda results: overlap(scores(results, DRAWN), scores(results, FULL)),
        ),
    ),
    "Toys_and_Games": Record(
        "Is headless as good as the full softmax for items of Toys and Games?",
        "On the test there is no clear difference once the log frequencies are weighted; without "
        "them headless loses, in every seed. An earlier version of the example was run.",
        all_of(
            lower_score(DRAWN, FULL, "test_ndcg@10_at_tau_0"),
            lambda results: overlap(scores(results, DRAWN), scores(results, FULL)),
        ),
    ),
    "Sports_and_Outdoors": Record(
        "Is headless as good as the full softmax for items of Sports and Outdoors?",
        "It is slightly behind the one seed of the full softmax, and far behind without the log "
        "frequencies. An earlier version of the example was run.",
        all_of(lower_score(DRAWN, FULL), lower_score(DRAWN, FULL, "test_ndcg@10_at_tau_0")),
    ),
    "in_batch": Record(
        "Do in-batch negatives fail where few items are very popular?",
        "Only without the log frequencies of items. With them they come near the full softmax, at "
        "no cost of training. The data set is small and there are two seeds at most.",
        lower_score("in-batch negatives", FULL, "test_at_tau_0_ndcg@10"),
    ),
    "positions": Record(
        "Does it help to count positions from the end of a history, and how good is headless then?",
        "It helps by too little to be clear. Headless is level with the full softmax on the test "
        "of Beauty, and behind it on validation.",
        all_of(
            lower_score(BEAUTY, f"{BEAUTY}, {FULL}", "validation_ndcg@10"),
            lambda results: overlap(scores(results, BEAUTY), scores(results, f"{BEAUTY}, {FULL}")),
        ),
    ),
}


FINE_TUNING = {
    "balanced_loss_sst2": Record(
        "Does balanced cross-entropy fine-tune a real encoder better where the rows of SST-2 are "
        "cut to nine of one class for each of the other?",
        "Yes, balanced accuracy is clearly higher, at the best epoch and at the last. Between the "
        "spreads of the seeds there is no clear difference.",
        balanced_is_better_but_not_steadier,
    ),
    "balanced_loss_cola": Record(
        "Does balanced cross-entropy fine-tune a real encoder better on CoLA, whose classes are "
        "unbalanced?",
        "Yes, Matthews' correlation is clearly higher. Between the spreads of the seeds there is "
        "no clear difference.",
        balanced_is_better_but_not_steadier,
    ),
    "balanced_loss_mrpc": Record(
        "Does balanced cross-entropy fine-tune a real encoder better on MRPC, whose classes are "
        "unbalanced?",
        "Eight seeds show no clear difference in the mean of Matthews' correlation, and its spread "
        "is smaller with the balanced loss.",
        balanced_is_steadier_but_not_better,
    ),
    "fine_tuning_parity_steps": Record(
        "Does `glue` have the losses of transformers' own `Trainer`, step by step?",
        "Yes, bit for bit, on five tasks, where both take the rows in the same order. Held-out "
        "losses are equal but for rounding. Twenty steps were run with one seed.",
        same_losses,
    ),
    "fine_tuning_parity_scores": Record(
        "Does `glue` score as transformers' own `Trainer`, which draws the rows at random?",
        "There is no clear difference on one task, of which four seeds were run with a part of the "
        "rows.",
        level({"way": "glue"}, {"way": "transformers"}, "score"),
    ),
    "fine_tuning_parity_cola": Record(
        "Does `glue` score as transformers' own `Trainer` on all rows of CoLA?",
        "The two are within a point of Matthews' correlation. One seed was run, which cannot show "
        "a difference of that size.",
        scores_are_within_a_point,
    ),
    "fine_tuning_parity_accumulated": Record(
        "Does `glue` have the losses of transformers' own `Trainer` with two micro-batches a step?",
        "No. That version of transformers adds the losses of the micro-batches up, which doubles "
        "the loss that is minimized, and `glue` takes their mean. One task was run with one seed.",
        lambda rows: not same_losses(rows),
    ),
}


def in_folder(folder: str, records: dict[str, Record]) -> dict[str, Record]:
    return {f"{folder}/{name}": record for name, record in records.items()}


# The sections of the page that lists all records.
SECTIONS = {
    "Pretraining from random weights": in_folder("studies/results", RECIPES | BATCHES),
    "Vocabularies": in_folder("studies/results", VOCABULARIES),
    "Heads": in_folder("studies/results", HEADS),
    "Embeddings": in_folder("studies/results", EMBEDDINGS),
    "Encoders on tasks": in_folder("studies/results", TASKS),
    "Fine-tuning a real encoder": in_folder("studies/results", FINE_TUNING),
    "Continuing a model": in_folder("studies/results", CONTINUING),
    "Time and memory": in_folder("benchmarks/results", BENCHMARKS),
    "Items": in_folder("examples/items/results", ITEMS),
}

# Every record by its folder, from the root of the repository.
RECORDS = {folder: record for section in SECTIONS.values() for folder, record in section.items()}


def folders() -> list[str]:
    """Return all folders of results, from the root of the repository."""
    return [
        path.parent.relative_to(ROOT).as_posix()
        for records in RECORD_FOLDERS
        for path in sorted((ROOT / records).glob("*/results.json"))
    ]


def first_lines(record: Record) -> str:
    """Return the lines with which the results.md of a record begins."""
    return f"> **Question.** {record.question}\n>\n> **Answer.** {record.answer}\n\n"


def with_first_lines(text: str, record: Record) -> str:
    """Return a results.md that begins with the question and the answer of its record."""
    lines = text.splitlines(keepends=True)
    while lines and (lines[0].startswith(">") or not lines[0].strip()):
        lines.pop(0)
    return first_lines(record) + "".join(lines)


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:]) ", text)[0].rstrip(".:")


def list_of_records() -> str:
    """Return the page that lists all records."""
    parts = [
        "# All records",
        "Each row is a question and the short answer of one record: the results of a study, a "
        "benchmark or an example, with its command, versions and commits. A record begins with "
        "the whole answer, which says how far it goes. The [cards](index.md) put records together.",
    ]
    for title, records in SECTIONS.items():
        table = [
            (record.question, first_sentence(record.answer), record_link(folder))
            for folder, record in records.items()
        ]
        parts += [f"## {title}", markdown(("question", "answer", "record"), table)]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return the list of records and what each results.md should hold, by their paths from the
    root of the repository.

    Raises:
        ValueError: the results of a record do not say what its answer says.
    """
    written = {LIST: list_of_records()}
    for folder, record in RECORDS.items():
        if record.holds is not None:
            check(record.holds(read_results(folder)), f"{folder}: {record.answer}")
        page = f"{folder}/results.md"
        if (ROOT / page).is_file():
            text = (ROOT / page).read_text(encoding="utf-8")
            written[page] = with_first_lines(text, record)
    return written
