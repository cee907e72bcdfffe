"""The score of a candidate in headless pretraining: everything that depends on how it is computed is in this file.

A trunk's output ``o`` gives token ``x`` the score ``o . vector(x) + bias(x)``. The vectors are those of the input embedding or
of a matrix of their own beside it; there is no bias. The loss, both evaluations, the updates of single rows, the free head,
saving and loading ask `CandidateHead`, so another score is a change here alone.

Letters used in shapes: K predicted positions, U candidates, D width, V vocabulary size.
"""

import json
from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import SAFE_WEIGHTS_NAME, cached_file

from .trunk import infer_task, probe, probe_ids

# Submodules of a trunk whose names begin so are the head's own. Beside a model that left its run they lie in a file of their
# own, since clients that load the trunk know nothing of them.
PREFIX = "candidate_"
NAME = "candidate_embeddings"  # the matrix for candidates
FILE_NAME = f"{NAME}.safetensors"
MARK = "has_candidate_embeddings"  # entry in the configuration of a trunk that has one
# Where trunks whose embedding is narrower than their layers keep the projection that widens it (ELECTRA, ALBERT).
INPUT_PROJECTIONS = ("embeddings_project", "encoder.embedding_hidden_mapping_in")


class CandidateHead:
    """Scores candidates with the vectors of a trunk.

    Args:
        trunk: model without a head.

    Attributes:
        embedding: the input embedding.
        matrix: the matrix for candidates of a trunk that has one, else None.
        own: submodules of the trunk that score candidates alone, that matrix among them, by name.
        size: V.
        softcap: None: scores have no bound.

    Refused are a trunk whose output and embedding differ in width without a projection that makes up for it, and one that was
    trained with a matrix for candidates that was not loaded with it: its embedding would score in that one's place.
    """

    softcap = None

    def __init__(self, trunk: PreTrainedModel):
        self.trunk = trunk
        self.embedding, self.matrix = trunk.get_input_embeddings(), candidate_matrix(trunk)
        self.size, name = self.embedding.num_embeddings, type(trunk).__name__
        self.own = own_modules(trunk)
        if not self.own and getattr(trunk.config, MARK, False):
            raise ValueError(
                f"model {name} was trained with a matrix of its own for candidates, which AutoModel does not load: pass its "
                "folder instead of the model, or load it with headless_trainer.models.candidate_head.load_trunk."
            )
        if type(self) is CandidateHead and (unread := self.own.keys() - {NAME}):
            raise ValueError(f"model {name} has {min(unread)}, which CandidateHead does not read: pass its head_class.")
        self._widen = next((each for path, each in trunk.named_modules() if path in INPUT_PROJECTIONS), None)
        if is_deepspeed_zero3_enabled():  # whose weights are not whole before the first forward
            return
        # Tensors, not configurations: OPT projects its output down, Gemma scales its embedding, and so on.
        ids = probe_ids(trunk)
        output_width, width = probe(trunk, ids).last_hidden_state.shape[-1], self.vectors(ids).shape[-1]
        if output_width != width:
            raise ValueError(
                f"model {name} has outputs of width {output_width} and embeddings of width {width}: contrastive weight tying "
                "needs both to be the same."
            )

    def vectors(self, ids: Tensor) -> Tensor:
        """``(U, D)`` vectors that score the ``(U,)`` ids, by the module: outside its forward a weight may be a shard."""
        found = (self.matrix or self.embedding)(ids)
        return found if self._widen is None else self._widen(found)

    def bias(self, ids: Tensor) -> Tensor | None:
        """``(U,)`` added to the scores of the ``(U,)`` ids, None for nothing."""
        return None

    def hidden(self, model: nn.Module, inputs: dict[str, Tensor], predicted: Tensor) -> Tensor:
        """``(K, D)`` outputs of the trunk at the ``(K,)`` positions ``predicted``, counted over all rows of the batch."""
        return model(**inputs).last_hidden_state.flatten(0, 1)[predicted]

    @property
    def row_weights(self) -> list[nn.Parameter]:
        """Weights of which a step reads single rows: that of the inputs, then those of candidates where they are others."""
        return [each.weight for each in (self.embedding, self.matrix) if each is not None]

    def check_launch(self, args, sharded: bool = False) -> None:
        """Refuse launches that cannot train a matrix for candidates, and turn ``args.ddp_find_unused_parameters`` off for it.

        That matrix is read after the forward, so DDP would take it for unused. ``sharded`` says whether DeepSpeed or FSDP cut
        weights into shards.
        """
        if not self.own:
            return
        if args.ddp_find_unused_parameters:
            raise ValueError(
                "ddp_find_unused_parameters is True but the model has a matrix of its own for candidates "
                "(tie_word_embeddings False), which would count as unused: leave ddp_find_unused_parameters out."
            )
        args.ddp_find_unused_parameters = False
        if sharded:
            raise ValueError(
                "tie_word_embeddings is False, which gives candidates a matrix of their own, but the run was started with "
                "DeepSpeed or FSDP, which would cut it into shards: drop one of the two."
            )

    def finish_weights(self, folder: Path, leaves_run: bool) -> None:
        """Move the matrix out of the weights in a folder that leaves its run, into a file of its own.

        The configuration of a decoder says that a head is not tied: a client that loads the folder as a language model then
        says that its head is new, and does not take the embeddings for one.
        """
        config = PreTrainedConfig.get_config_dict(folder)[0]
        if infer_task(self.trunk) == "clm":
            (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}, indent=2) + "\n")
        if not (self.own and leaves_run):
            return
        weights = load_file(folder / SAFE_WEIGHTS_NAME)
        own = {name: weights.pop(name) for name in list(weights) if name.startswith(PREFIX)}
        save_file(own, folder / FILE_NAME, metadata={"format": "pt"})
        save_file(weights, folder / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})


def candidate_matrix(trunk: nn.Module) -> nn.Embedding | None:
    """Return the matrix of a trunk that embeds candidates alone, where it has one."""
    return getattr(trunk, NAME, None)


def own_modules(trunk: nn.Module) -> dict[str, nn.Embedding]:
    """Return the submodules of a trunk that score candidates alone, by name."""
    return {name: module for name, module in trunk.named_children() if name.startswith(PREFIX)}


@torch.no_grad()
def give(trunk: PreTrainedModel, name: str, values: Tensor) -> nn.Embedding:
    """Give a trunk, in place, a trained submodule with a row for each candidate, unless it has it.

    Its ``name`` begins with `PREFIX`; ``values``, ``(V, ...)``, are what it starts at.
    """
    if name not in own_modules(trunk):
        weight = trunk.get_input_embeddings().weight
        values = values.to(weight.device, weight.dtype, copy=True)
        trunk.add_module(name, nn.Embedding.from_pretrained(values, freeze=False))
        setattr(trunk.config, MARK, True)
    return cast(nn.Embedding, trunk.get_submodule(name))


@torch.no_grad()
def untie(trunk: PreTrainedModel, values: Tensor | None = None) -> PreTrainedModel:
    """Give a trunk, in place, a matrix for candidates that starts at the ``(V, D)`` values, random ones by default."""
    weight = trunk.get_input_embeddings().weight
    if values is None:
        values = nn.Embedding(*weight.shape, device=weight.device, dtype=weight.dtype).weight
        values.normal_(std=getattr(trunk.config, "initializer_range", None) or 0.02)
    give(trunk, NAME, values)
    return trunk


def trunk_weights(trunk: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights that any client's model of this architecture has."""
    return {name: value for name, value in trunk.state_dict().items() if not name.startswith(PREFIX)}


def load_trunk(source: str | Path, **kwargs) -> PreTrainedModel:
    """``AutoModel.from_pretrained``, with the matrix for candidates where the checkpoint's configuration says it has one."""
    trunk = AutoModel.from_pretrained(source, **kwargs)
    if not getattr(trunk.config, MARK, False):
        return trunk
    where = {name: kwargs[name] for name in ("revision", "token", "cache_dir") if name in kwargs}
    for file in (FILE_NAME, SAFE_WEIGHTS_NAME):  # of a model that left its run, of a checkpoint
        try:
            path = cached_file(source, file, **where)
        except OSError:  # it has no such file
            continue
        with safe_open(path, framework="pt") as weights:
            for name in (own := [each for each in weights.keys() if each.startswith(PREFIX)]):  # noqa: SIM118
                give(trunk, name.removesuffix(".weight"), weights.get_tensor(name))
            if own:
                return trunk
    raise ValueError(
        f"model_name_or_path {str(source)!r} was trained with a matrix of its own for candidates, and holds neither "
        f"{FILE_NAME} nor {SAFE_WEIGHTS_NAME} with it: copy the whole folder."
    )
