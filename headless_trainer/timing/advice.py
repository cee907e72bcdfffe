"""Says in a sentence or two which objective the measured steps speak for, and for whom.

The rules, in their order:

1. Times that contradict each other speak for nothing: if rounds differ by more than `NOISY`, or the
   trunk alone takes longer than a whole step, other programs were in the way.
2. Exact means the fastest exact softmax: `vanilla`, or one of the heads of other libraries. No
   objective can be faster than the trunk alone. If the head takes less than `WORTH_IT` of an exact
   step, nothing is to be gained: stay with exact softmax, whose loss is the reference.
3. A checkpoint that has a head must keep it where it will generate text, fill masks or be
   distilled: only sampled_softmax trains that head on candidates. It is worth a try if it takes
   `WORTH_IT` less time than exact softmax, beside a run of exact softmax, because its gradients are
   estimates.
4. A model without a head, new or pretrained headless, may be trained headless, and so may a
   checkpoint of which only the trunk is needed, for features or for fine-tuning. Most models get a
   free head afterwards; for the others it is said that a head must be trained.
5. Who trains with transformers' own loss today gets the same loss from exact softmax here: if that
   takes `WORTH_IT` less time or memory, it is said.
"""

from .exact_heads import LIBRARIES
from .step_arguments import LABELS, TRANSFORMERS, TRUNK
from .turns import Measurements, head_share

EXACT = ("vanilla", "liger", "cce", "quack")
# A smaller share of a step is no reason to change an objective, and often within the noise.
WORTH_IT = 0.1
# A larger difference between the rounds hides what the objectives differ by.
NOISY = 0.3
# How to train with the exact head of another library.
PAGE_OF_OTHER_HEADS = "docs/howto/gpus.md"


def advise(measured: dict[str, Measurements], has_head: bool) -> str:
    """Return the advice for a model; ``has_head`` is whether it is a checkpoint with a head."""
    timed = {name: turns for name, turns in measured.items() if turns.was_timed}
    exact_names = [name for name in EXACT if name in timed]
    if not exact_names:
        return "No exact softmax was timed, so there is nothing to compare the others with."
    exact_name = min(exact_names, key=lambda name: timed[name].median)
    exact = timed[exact_name]
    noise = _noise(timed, exact_name)
    if noise is not None:
        return f"{noise}, so no advice can be given: close other programs, and repeat the command."
    sentences = [_choice(timed, exact_name, has_head)]
    if exact_name in LIBRARIES:
        sentences.append(f"{PAGE_OF_OTHER_HEADS} shows how to train {_name(exact_name)}.")
    # Rule 5, which no other rule excludes.
    theirs = timed.get(TRANSFORMERS)
    if theirs is not None:
        less_time = 1 - exact.time_over(theirs)
        less_memory = 1 - exact.peak_mib / theirs.peak_mib
        if max(less_time, less_memory) >= WORTH_IT:
            sentences.append(
                f"Whoever uses transformers' own loss today: {_name(exact_name)} has the same "
                f"loss, with {_change(less_time, 'time')} and {_change(less_memory, 'memory')}."
            )
    return " ".join(sentences)


def _noise(timed: dict[str, Measurements], exact_name: str) -> str | None:
    """Return what shows that the times are not reliable, or None."""
    # Rule 1.
    noisiest = max(timed, key=lambda name: timed[name].spread)
    spread = timed[noisiest].spread
    if spread > NOISY:
        return f"The times of {_name(noisiest)} differ by {_percent(spread)}"
    if TRUNK in timed and timed[TRUNK].time_over(timed[exact_name]) > 1 + WORTH_IT:
        return f"The trunk alone took longer than a step of {_name(exact_name)}"
    return None


def _choice(timed: dict[str, Measurements], exact_name: str, has_head: bool) -> str:
    exact = timed[exact_name]
    name = _name(exact_name)
    # Rule 2. Without a time of the trunk, the share of the head is not known.
    share = head_share(exact, timed)
    if share is not None and round(100 * share) == 0:
        return (
            f"The head takes no measurable part of a step of {name}: stay with {name}, since no "
            "objective can save more than the head."
        )
    if share is not None and share < WORTH_IT:
        return (
            f"The head is {_percent(share)} of a step of {name}: stay with {name}, since no "
            "objective can save more than that."
        )
    if share is not None:
        beginning = f"The head is {_percent(share)} of a step of {name}"
    else:
        beginning = f"A step of {name} is the one to compare with"
    headless_saves = _saved(timed, "headless", exact)
    sampled_saves = _saved(timed, "sampled_softmax", exact)
    if not has_head:
        return beginning + _choice_without_head(timed, headless_saves, name)
    choice = beginning + _choice_with_head(sampled_saves, name)
    # Rule 4, for a checkpoint of which only the trunk is needed.
    if headless_saves is not None and headless_saves >= WORTH_IT:
        choice += (
            "; if you need only the trunk, for features or fine-tuning, headless takes "
            f"{_change(headless_saves, 'time')}"
        )
    return choice + "."


def _choice_without_head(
    timed: dict[str, Measurements], headless_saves: float | None, exact_name: str
) -> str:
    """Return the end of a sentence by rule 4, for a model that has no head to keep."""
    if headless_saves is None:
        return f", and headless was not timed: stay with {exact_name}."
    if headless_saves < WORTH_IT:
        return f", but headless takes {_change(headless_saves, 'time')}: stay with {exact_name}."
    choice = f": pretrain headless, which takes {_change(headless_saves, 'time')}"
    if timed["headless"].has_free_head:
        return f"{choice}, and attach the free head afterwards."
    return (
        f"{choice}, if you need only the trunk. A head for it must be trained afterwards "
        "(headless-trainer lm-head --init embeddings --do_train), since this model has no place "
        "for log q."
    )


def _choice_with_head(sampled_saves: float | None, exact_name: str) -> str:
    """Return the middle of a sentence by rule 3, for a checkpoint that must keep its head."""
    if sampled_saves is None:
        return f", and sampled_softmax was not timed: to keep the head, use {exact_name}"
    if sampled_saves < WORTH_IT:
        return (
            f", but sampled_softmax takes {_change(sampled_saves, 'time')}: to keep the head, stay "
            f"with {exact_name}"
        )
    return (
        ": to keep the head, try sampled_softmax, which takes "
        f"{_change(sampled_saves, 'time')}, beside a run of {exact_name}"
    )


def _name(line: str) -> str:
    """Return what a line of the table is called in a sentence."""
    return LABELS.get(line, line)


def _saved(timed: dict[str, Measurements], name: str, exact: Measurements) -> float | None:
    """Return the share of an exact step that an objective saves; None if it was not timed."""
    if name not in timed:
        return None
    return 1 - timed[name].time_over(exact)


def _change(saved: float, what: str) -> str:
    """Return a saved share in words: ``12 % less time``, ``3 % more memory``."""
    percent = round(100 * abs(saved))
    if percent == 0:
        return f"the same {what}"
    if saved > 0:
        return f"{percent} % less {what}"
    return f"{percent} % more {what}"


def _percent(share: float) -> str:
    return f"{round(100 * share)} %"
