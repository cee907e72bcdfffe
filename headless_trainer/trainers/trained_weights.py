"""Refuse settings of an optimizer that do not fit the weights that a run trains."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..arguments import HeadlessTrainingArguments
from ..models.candidate_head import candidate_matrix
from ..models.trunk import layer_matrices

# Settings that choose an optimizer, and the parameters of a trainer that do so too.
SETTINGS = ("sparse_embedding_updates", "muon_learning_rate")
PARAMETERS = ("optimizers", "optimizer_cls_and_kwargs")


def check_optimizer(args: HeadlessTrainingArguments, parameters: Mapping[str, Any]) -> None:
    """Refuse an optimizer among the ``parameters`` of a trainer if a setting also chooses one."""
    for setting in SETTINGS:
        for parameter in PARAMETERS:
            if getattr(args, setting) and any(parameters.get(parameter) or ()):
                raise ValueError(
                    f"{setting} is {getattr(args, setting)} but {parameter} also chooses an "
                    "optimizer: drop one."
                )


def check_anything_is_trained(model: nn.Module) -> None:
    """Refuse to train a model whose weights are all frozen; it may still be evaluated."""
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError(
            f"model {type(model).__name__} trains nothing, since all of its weights are frozen "
            "(requires_grad is False): unfreeze those to train, or add an adapter."
        )


def check_trained_weights(
    model: PreTrainedModel, trunk: PreTrainedModel, args: HeadlessTrainingArguments
) -> None:
    """Refuse sparse updates of frozen weights, and Muon where it or its companion trains nothing.

    ``trunk`` is the part of the ``model`` below its head, or the model itself.
    """
    if args.sparse_embedding_updates:
        _check_rows_are_trained(model, trunk)
    if args.muon_learning_rate:
        _check_both_optimizers_train(model, args.muon_learning_rate)


def _check_rows_are_trained(model: PreTrainedModel, trunk: PreTrainedModel) -> None:
    modules = {
        "the embedding": trunk.get_input_embeddings(),
        "the vocabulary head": model.get_output_embeddings(),
        "the candidate matrix": candidate_matrix(trunk),
    }
    for name, module in modules.items():
        if module is not None and not module.weight.requires_grad:
            raise ValueError(
                f"sparse_embedding_updates is True but {name} of the model is frozen: leave it out."
            )


def _check_both_optimizers_train(model: PreTrainedModel, muon_learning_rate: float) -> None:
    matrices = layer_matrices(model)
    if not matrices:
        raise ValueError(
            f"muon_learning_rate is {muon_learning_rate} but the model trains no linear layer: "
            "leave it out."
        )
    for_muon = {id(weight) for weight in matrices}
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    if all(id(weight) in for_muon for weight in trained):
        raise ValueError(
            f"muon_learning_rate is {muon_learning_rate} but the model trains linear layers alone, "
            "as an adapter such as LoRA does, which leaves nothing to AdamW: leave it out, and set "
            "learning_rate."
        )
