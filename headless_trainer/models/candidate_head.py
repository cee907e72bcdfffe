"""The score of a candidate in headless pretraining, and everything that depends on how it is
computed.

A trunk's output ``o`` gives token ``x`` the score ``o . vector(x) + bias(x)``. The vectors come
from the input embedding or from a separate candidate matrix; there is no bias. The loss, both
evaluations, the updates of single rows, the free head, saving and loading call `CandidateHead`,
which implements the protocol of head.py: a new score is a subclass.

Letters used in shapes: K predicted positions, U candidates, D width, V vocabulary size.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ..files.sources import find_file
from ..processes.launch import shards
from .checkpoint_weights import take_out
from .trunk import check_is_whole, find_task, find_trunk, input_embedding, probe_hidden, probe_ids

# Submodules of a trunk with this prefix belong to the head. A final model stores them in a separate
# file, since other clients that load the trunk do not know them.
PREFIX = "candidate_"
NAME = "candidate_embeddings"  # the candidate matrix
FILE_NAME = f"{NAME}.safetensors"
MARK = "has_candidate_embeddings"  # entry in the configuration of a trunk that has one
# Names of the projection that widens an embedding narrower than the layers (ELECTRA, ALBERT).
INPUT_PROJECTIONS = ("embeddings_project", "encoder.embedding_hidden_mapping_in")


class CandidateHead:
    """Scores candidates with the vectors of a trunk.

    Args:
        trunk: model without a head.

    Attributes:
        embedding: the input embedding.
        matrix: the candidate matrix, or None.
        scoring_modules: submodules of the trunk that only score candidates, by name, including that
            matrix.
        size: V.
        softcap: None, since scores are unbounded.

    Raises ValueError for a trunk whose output and embedding differ in width without a projection
    between them, and for one that was trained with a candidate matrix but loaded without it: its
    embedding would score instead.
    """

    softcap: float | None = None

    def __init__(self, trunk: PreTrainedModel):
        self.trunk = trunk
        self.embedding = input_embedding(trunk)
        self.matrix = candidate_matrix(trunk)
        self.size = self.embedding.num_embeddings
        name = type(trunk).__name__
        self.scoring_modules = scoring_modules(trunk)
        if not self.scoring_modules and getattr(trunk.config, MARK, False):
            raise ValueError(
                f"model {name} was trained with a separate candidate matrix, which AutoModel does "
                "not load: pass its folder instead of the model, or load it with "
                "headless_trainer.models.candidate_head.load_trunk."
            )
        unread = self.scoring_modules.keys() - {NAME}
        if type(self) is CandidateHead and unread:
            raise ValueError(
                f"model {name} has {min(unread)}, which CandidateHead does not read: pass its "
                "head_class."
            )
        # None for a trunk whose embedding is as wide as its layers.
        self._widen = next(
            (module for path, module in trunk.named_modules() if path in INPUT_PROJECTIONS), None
        )
        if is_deepspeed_zero3_enabled():  # weights are not whole before the first forward
            return
        # Compare the widths of tensors, since configurations do not tell them: OPT projects its
        # output down.
        ids = probe_ids(trunk)
        outputs = probe_hidden(trunk, ids)
        if outputs.shape[1] != ids.shape[1]:
            raise ValueError(
                f"model {name} has {outputs.shape[1]} outputs for {ids.shape[1]} tokens, so most "
                "tokens have none that could predict them: use another architecture."
            )
        output_width = outputs.shape[-1]
        width = self.vectors(ids).shape[-1]
        if output_width != width:
            raise ValueError(
                f"model {name} has outputs of width {output_width} and embeddings of width "
                f"{width}: contrastive weight tying needs equal widths. Use another architecture."
            )

    def vectors(self, ids: Tensor) -> Tensor:
        """Return ``(U, D)`` vectors for the ``(U,)`` ids, through the module: outside its forward a
        weight may be a shard.
        """
        table = self.matrix or self.embedding
        vectors = table(ids)
        if self._widen is None:
            return vectors
        return self._widen(vectors)

    def bias(self, ids: Tensor) -> Tensor | None:
        """Return the ``(U,)`` biases of the ``(U,)`` ids, or None."""
        return None

    def hidden(self, model: nn.Module, inputs: dict[str, Tensor], predicted: Tensor) -> Tensor:
        """Return ``(K, D)`` outputs of the trunk at ``(K,)`` predicted positions, counted over all
        rows of the batch.
        """
        hidden = model(**inputs).last_hidden_state  # (B, T, D)
        return hidden.flatten(0, 1)[predicted]

    @property
    def row_weights(self) -> list[Tensor]:
        """Return the weights of which a step reads single rows: the input embedding, then the
        candidate matrix if any.
        """
        return [table.weight for table in (self.embedding, self.matrix) if table is not None]

    @classmethod
    def check(cls, model: PreTrainedModel, args) -> None:
        """Raise ValueError, before any long work, for a model or settings that this head cannot
        have.
        """
        cls(find_trunk(model)).check_launch(args)

    def check_launch(self, args) -> None:
        """Refuse launches that cannot train a candidate matrix."""
        if not self.scoring_modules:
            return
        if args.ddp_find_unused_parameters:
            raise ValueError(
                "ddp_find_unused_parameters is True but the model has a separate candidate matrix "
                "(tie_word_embeddings False), which would count as unused: leave "
                "ddp_find_unused_parameters out."
            )
        if shards(args):
            raise ValueError(
                "tie_word_embeddings is False, which adds a candidate matrix, but the run was "
                "started with DeepSpeed or FSDP, which would shard it: drop one of the two."
            )

    def attach(self, args) -> None:
        """Turn ``args.ddp_find_unused_parameters`` off for a candidate matrix.

        The loss reads that matrix after the forward, so DDP would consider it unused.
        """
        if self.scoring_modules:
            args.ddp_find_unused_parameters = False

    def finish_weights(self, folder: Path, leaves_run: bool) -> None:
        """Move the matrix of a final model out of the weights in its folder, into a separate file.

        A decoder's configuration is set to an untied head, so that a client that loads the folder
        as a language model reports a new head instead of using the embeddings as one.
        """
        config = PreTrainedConfig.get_config_dict(folder)[0]
        # An architecture without language models has no such client.
        if find_task(self.trunk) == "clm":
            (folder / "config.json").write_text(
                json.dumps(config | {"tie_word_embeddings": False}, indent=2) + "\n"
            )
        if not (self.scoring_modules and leaves_run):
            return
        save_file(take_out(folder, PREFIX), folder / FILE_NAME, metadata={"format": "pt"})


def candidate_matrix(trunk: nn.Module) -> nn.Embedding | None:
    return getattr(trunk, NAME, None)


def scoring_modules(trunk: nn.Module) -> dict[str, Any]:
    """Return the submodules of a trunk that only score candidates, by name: embeddings, or what a
    head of one's own has instead.
    """
    return {name: module for name, module in trunk.named_children() if name.startswith(PREFIX)}


@torch.no_grad()
def add_candidate_table(trunk: PreTrainedModel, name: str, values: Tensor) -> nn.Embedding:
    """Add to a trunk, in place, a trainable submodule with one row per candidate, unless it exists.

    Its ``name`` begins with `PREFIX`; ``values``, ``(V, ...)``, are its initial values.
    """
    if name not in scoring_modules(trunk):
        weight = input_embedding(trunk).weight
        # A copy, or training the new rows would change those that they start from.
        values = values.to(weight.device, weight.dtype, copy=True)
        trunk.add_module(name, nn.Embedding.from_pretrained(values, freeze=False))
        setattr(trunk.config, MARK, True)
    return getattr(trunk, name)


@torch.no_grad()
def untie(trunk: PreTrainedModel, values: Tensor | None = None) -> PreTrainedModel:
    """Add to a trunk, in place, a candidate matrix that starts at ``(V, D)`` values, random ones by
    default.
    """
    weight = input_embedding(trunk).weight
    if values is None:
        # Drawn as transformers draws a new embedding.
        rows, width = weight.shape
        values = nn.Embedding(rows, width, device=weight.device, dtype=weight.dtype).weight
        values.normal_(std=getattr(trunk.config, "initializer_range", None) or 0.02)
    add_candidate_table(trunk, NAME, values)
    return trunk


def load_trunk(source: str | Path, **kwargs) -> PreTrainedModel:
    """Call ``AutoModel.from_pretrained``, and load the candidate matrix if the configuration
    records one.

    Raises:
        ValueError: if weights of the trunk or the candidate matrix are missing.
    """
    trunk, report = AutoModel.from_pretrained(source, output_loading_info=True, **kwargs)
    check_is_whole(trunk, report, source)
    if not getattr(trunk.config, MARK, False):
        return trunk
    for path in _files_with_scoring_modules(source, **kwargs):
        with safe_open(path, framework="pt") as weights:
            # An open file of safetensors has names, but cannot be iterated over.
            for name in weights.keys():  # noqa: SIM118
                if name.startswith(PREFIX):
                    add_candidate_table(
                        trunk, name.removesuffix(".weight"), weights.get_tensor(name)
                    )
    if not scoring_modules(trunk):
        raise ValueError(
            f"model_name_or_path {str(source)!r} was trained with a separate candidate matrix, "
            f"which neither {FILE_NAME} nor {SAFE_WEIGHTS_NAME} holds: copy the whole folder."
        )
    return trunk


def _files_with_scoring_modules(source: str | Path, **kwargs) -> list[str]:
    """Return the files that hold the candidate matrix: one of its own beside a final model, those
    of a checkpoint's weights.
    """
    for name in (FILE_NAME, SAFE_WEIGHTS_NAME):
        path = find_file(source, name, **kwargs)
        if path is not None:
            return [path]
    index = find_file(source, SAFE_WEIGHTS_INDEX_NAME, **kwargs)
    if index is None:
        return []
    file_of_weight = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
    shards = {file for name, file in file_of_weight.items() if name.startswith(PREFIX)}
    paths = [find_file(source, shard, **kwargs) for shard in sorted(shards)]
    return [path for path in paths if path is not None]
