"""Give a model rows for the tokens that a larger tokenizer adds.

A new token starts from what the model knows of its text: the mean of the rows of the pieces that
the checkpoint's own tokenizer makes of it. Random rows would have to learn everything anew, and
would disturb the scores of all other tokens until then.
"""

import json
import logging

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..corpus.tokenization import id_count
from .candidate_head import scoring_modules
from .trunk import gathered, input_embedding

logger = logging.getLogger(__name__)

Pieces = dict[int, list[int]]
"""Ids of new tokens, and of each the ids of its pieces, which have rows."""


def add_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    old_tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Enlarge the embedding, head and candidate matrix of a model, in place, to a tokenizer's size.

    The rows of new tokens, and their biases in the head, become the mean of those of their pieces;
    without any piece a row keeps what transformers draws around the mean of all rows. Rows that the
    embedding already had stay as they are, also those that no token had.

    Args:
        tokenizer: the larger tokenizer, whose ids below the model's rows are those of the model.
        old_tokenizer: the model's own; None if there is none, so that ``tokenizer`` itself makes
            the pieces, without the tokens that were added to it.
    """
    rows = input_embedding(model).num_embeddings
    size = id_count(tokenizer)
    if size <= rows:
        logger.info(
            "resize_embeddings: the embedding keeps its %d rows, since the tokenizer's %d ids have "
            "one each.",
            rows,
            size,
        )
        return
    pieces = pieces_of_new_tokens(tokenizer, old_tokenizer or tokenizer, rows)
    only_scoring = scoring_modules(model)
    model.resize_token_embeddings(size)
    # These are ours, so that transformers resizes none of them.
    for name, module in only_scoring.items():
        model.add_module(name, _enlarged(module, size))
    parameters = [input_embedding(model).weight]
    head = model.get_output_embeddings()
    if head is not None:
        parameters.append(head.weight)
        if head.bias is not None:
            parameters.append(head.bias)
    parameters += [module.weight for module in scoring_modules(model).values()]
    for parameter in parameters:
        # A tied head comes twice, which changes nothing.
        _start_from_pieces(parameter, pieces)
    without = size - rows - len(pieces)
    if without:
        logger.warning(
            "resize_embeddings: %d of %d new rows belong to no token, or to one of whose text the "
            "checkpoint's tokenizer knows nothing: they start near the mean of all rows.",
            without,
            size - rows,
        )


def pieces_of_new_tokens(
    tokenizer: PreTrainedTokenizerBase, old_tokenizer: PreTrainedTokenizerBase, rows: int
) -> Pieces:
    """Cut each token whose id is ``rows`` or more into tokens of an older tokenizer.

    Tokens without any known piece are left out.
    """
    encode = _encoder(old_tokenizer, rows)
    unknown = old_tokenizer.unk_token_id
    pieces = {}
    for token, number in tokenizer.get_vocab().items():
        if number < rows:
            continue
        ids = encode(_text_of(token, number, tokenizer))
        known = [piece for piece in ids if piece < rows and piece != unknown]
        if known:
            pieces[number] = known
    return pieces


def _encoder(tokenizer: PreTrainedTokenizerBase, rows: int):
    """Return a function from texts to ids that treats added tokens from id ``rows`` on as text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    # A tokenizer cannot forget an added token, so another is made without them.
    settings = json.loads(backend.to_str())
    settings["added_tokens"] = [token for token in settings["added_tokens"] if token["id"] < rows]
    plain = Tokenizer.from_str(json.dumps(settings))
    plain.no_truncation()
    plain.no_padding()
    return lambda text: plain.encode(text, add_special_tokens=False).ids


def _text_of(token: str, number: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text that a token stands for, such as " word" for ``Ġword``."""
    if number in tokenizer.added_tokens_decoder:
        return tokenizer.added_tokens_decoder[number].content
    # WordPiece writes ``##`` in front of what continues a word, which is no part of its text.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    continues = getattr(getattr(backend, "model", None), "continuing_subword_prefix", None)
    return tokenizer.convert_tokens_to_string([token.removeprefix(continues or "")])


def _enlarged(module: nn.Embedding, size: int) -> nn.Embedding:
    """Return an embedding with further rows, which are the mean of all others."""
    old = module.weight.detach()
    further = old.mean(dim=0, keepdim=True).expand(size - len(old), *old.shape[1:])
    return nn.Embedding.from_pretrained(torch.cat([old, further]), freeze=False)


@torch.no_grad()
def _start_from_pieces(parameter: Tensor, pieces: Pieces) -> None:
    """Set the entries of new tokens in ``(V, ...)`` to the mean of those of their pieces."""
    with gathered(parameter):
        for number, ids in pieces.items():
            parameter[number] = parameter[ids].float().mean(dim=0).to(parameter.dtype)
