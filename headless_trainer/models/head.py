"""The protocol of heads: how an output of the trunk scores a token.

Letters used in shapes: K predicted positions, U ids, D width, V vocabulary size.
"""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from transformers import PreTrainedModel


@runtime_checkable
class Head(Protocol):
    """Scores token x for the output o: ``cap(scale(x) * o . w(x) + b(x))``.

    `CandidateHead` scores with the input embedding or a candidate matrix, `VocabularyHead` with the
    vocabulary projection of a language model. Evaluation, sparse rows and saving know no more of a
    head than this; the free head also reads the tables of a `CandidateHead`, and the losses of
    language models those of a `VocabularyHead`. Another score is a subclass of one of the two,
    given to a trainer as its ``head_class``.

    A factor for each token is part of what `vectors` returns. A `VocabularyHead` has it as
    ``token_scale``: the losses of language models are computed inside their forward
    (`VocabularyHead.within`), where a distributed wrapper has whole weights.

    Attributes:
        size: V.
        softcap: bound c of the scores, ``c * tanh(score / c)``, or None. The losses and both
            evaluations apply it; the free head refuses it, because no class of transformers that it
            could become has one for every architecture.
    """

    size: int
    softcap: float | None

    def __init__(self, model: PreTrainedModel) -> None: ...

    @classmethod
    def check(cls, model: PreTrainedModel, args: Any) -> None:
        """Raise ValueError, before any long work, for a model or settings that the head cannot
        have.
        """

    def attach(self, args: Any) -> None:
        """Change the model and the settings as training with the head needs it, once."""

    def vectors(self, ids: Tensor) -> Tensor:
        """Return the ``(U, D)`` vectors of the ``(U,)`` ids, each times its token's scale.

        Every process of a sharded model must call it equally often.
        """

    def bias(self, ids: Tensor) -> Tensor | None:
        """Return the ``(U,)`` biases of the ``(U,)`` ids, or None."""

    def hidden(self, model: nn.Module, inputs: dict[str, Tensor], predicted: Tensor) -> Tensor:
        """Return the ``(K, D)`` outputs that score, at ``(K,)`` positions counted over the
        batch.
        """

    def finish_weights(self, folder: Path, leaves_run: bool) -> None:
        """Bring the weights in a folder into the form in which others can load them."""

    @property
    def row_weights(self) -> list[Tensor]:
        """Return the weights of which a step reads single rows, the input embedding first."""
