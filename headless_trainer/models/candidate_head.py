"""The score of a candidate in headless pretraining: everything that depends on how it is computed is in this file.

A trunk's output ``o`` gives token ``x`` the score ``o . vector(x) + bias(x)``. The vectors are those of the input embedding or
of a matrix of their own beside it; there is no bias. The loss, both evaluations, the updates of single rows, the free head,
saving and loading ask `CandidateHead`, so another score is a change here alone.

Letters used in shapes: K predicted positions, U candidates, D width, V vocabulary size.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import SAFE_WEIGHTS_NAME

from .trunk import infer_task, probe, probe_ids

# Submodules of a trunk whose names begin so are the head's own. Beside a model that left its run they lie in a file of their
# own, since clients that load the trunk know nothing of them.
PREFIX = "candidate_"
NAME = "candidate_embeddings"  # the matrix for candidates
FILE_NAME = f"{NAME}.safetensors"
# Entry in the configuration of a trunk that has one.
MARK = "has_candidate_embeddings"
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

    Raises:
        ValueError: if the trunk's output and its embedding differ in width and no projection of the trunk makes up for it, or
            if the trunk was trained with a matrix for candidates that was not loaded with it: its embedding would score in
            that one's place.
    """

    softcap = None

    def __init__(self, trunk: PreTrainedModel):
        self.trunk = trunk
        self.embedding, self.matrix = trunk.get_input_embeddings(), candidate_matrix(trunk)
        self.size = self.embedding.num_embeddings
        name = type(trunk).__name__
        self.own = own_modules(trunk)
        if not self.own and getattr(trunk.config, MARK, False):
            raise ValueError(
                f"model {name} was trained with a matrix of its own for candidates, which AutoModel does not load: pass its "
                "folder instead of the model, or load it with headless_trainer.models.candidate_head.load_trunk."
            )
        self._widen = _input_projection(trunk)
        if self.matrix is not None and self._widen is not None:
            raise ValueError(
                f"tie_word_embeddings is False but model {name} widens its embeddings before its first layer, so a second "
                "matrix would have a different width: leave tie_word_embeddings out."
            )
        if not is_deepspeed_zero3_enabled():  # whose weights are not whole before the first forward
            self._check_widths(trunk)

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
        """Weights of which a step reads single rows: that of the inputs, and that of candidates where it is another."""
        return [each.weight for each in (self.embedding, self.matrix) if each is not None]

    def check_launch(self, args, sharded: bool = False) -> None:
        """Refuse launches that cannot train the head, and set up DDP for it.

        Looking for what the forward does not use, which transformers lets it do by default, DDP would take a matrix for
        candidates, which is read after the forward, for unused.

        Args:
            args: ``TrainingArguments``, whose ``ddp_find_unused_parameters`` is turned off.
            sharded: whether DeepSpeed or FSDP cut weights into shards.

        Raises:
            ValueError: if the matrix for candidates would be taken for unused, or cut into shards.
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

    def _check_widths(self, trunk: PreTrainedModel) -> None:
        """Compare tensors, not configurations: OPT projects its output down, Gemma scales its embedding, and so on."""
        ids, name = probe_ids(trunk), type(trunk).__name__
        outputs = probe(trunk, ids)
        if getattr(outputs, "last_hidden_state", None) is None:
            raise ValueError(f"model {name} returns no last_hidden_state, so its predictions cannot be read.")
        with torch.no_grad():
            output_width, vector_width = outputs.last_hidden_state.shape[-1], self.vectors(ids).shape[-1]
        if output_width != vector_width:
            raise ValueError(
                f"model {name} has outputs of width {output_width} and embeddings of width {vector_width}: contrastive weight "
                "tying needs both to be the same."
            )


def _input_projection(trunk: PreTrainedModel) -> Callable[[Tensor], Tensor] | None:
    for path in INPUT_PROJECTIONS:
        try:
            return trunk.get_submodule(path)
        except AttributeError:
            continue
    return None


def candidate_matrix(trunk: nn.Module) -> nn.Embedding | None:
    """Return the matrix of a trunk that embeds candidates alone, where it has one."""
    return getattr(trunk, NAME, None)


def own_modules(trunk: nn.Module) -> dict[str, nn.Embedding]:
    """Return the submodules of a trunk that score candidates alone, by name."""
    return {name: module for name, module in trunk.named_children() if name.startswith(PREFIX)}


@torch.no_grad()
def give(trunk: PreTrainedModel, name: str, values: Tensor) -> nn.Embedding:
    """Give a trunk, in place, a trained submodule with a row for each candidate, unless it has it.

    Args:
        trunk: model without a head.
        name: begins with `PREFIX`.
        values: ``(V, ...)`` that it starts at.
    """
    if name not in own_modules(trunk):
        weight = trunk.get_input_embeddings().weight
        values = values.to(weight.device, weight.dtype, copy=True)
        trunk.add_module(name, nn.Embedding.from_pretrained(values, freeze=False))
        setattr(trunk.config, MARK, True)
    return cast(nn.Embedding, trunk.get_submodule(name))


@torch.no_grad()
def untie(trunk: PreTrainedModel, values: Tensor | None = None) -> PreTrainedModel:
    """Give a trunk, in place, a matrix for candidates.

    Args:
        trunk: model without a head.
        values: ``(V, D)`` that it starts at; random ones by default.
    """
    weight = trunk.get_input_embeddings().weight
    if values is None:
        values = nn.Embedding(*weight.shape, device=weight.device, dtype=weight.dtype).weight
        values.normal_(std=getattr(trunk.config, "initializer_range", None) or 0.02)
    give(trunk, NAME, values)
    return trunk


def trunk_weights(trunk: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights that any client's model of this architecture has."""
    return {name: value for name, value in trunk.state_dict().items() if not name.startswith(PREFIX)}


def forget_head(config: PreTrainedConfig) -> None:
    """Let a configuration no longer say that its trunk has a matrix for candidates."""
    config.__dict__.pop(MARK, None)


def load_trunk(source: str | Path, **kwargs) -> PreTrainedModel:
    """``AutoModel.from_pretrained``, with the matrix for candidates where the checkpoint has one.

    Raises:
        ValueError: if its configuration says so and its files hold none.
    """
    trunk = AutoModel.from_pretrained(source, **kwargs)
    if not getattr(trunk.config, MARK, False):
        return trunk
    where = {name: kwargs[name] for name in ("revision", "token", "cache_dir") if name in kwargs}
    for file in (FILE_NAME, SAFE_WEIGHTS_NAME):  # of a model that left its run, of a checkpoint
        path = _find(str(source), file, where)
        if path is None:
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


def _find(source: str, file: str, where: dict) -> str | Path | None:
    if Path(source).is_dir():
        path = Path(source, file)
        return path if path.is_file() else None
    try:
        return hf_hub_download(source, file, **where)
    except EntryNotFoundError:
        return None
