"""The items that a model knows: a tokenizer with a token for each, and the model of a folder that was trained on them."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from ..models.trunk import infer_task
from ..runtime.checkpoints import whole_file, write_whole
from ..runtime.sources import source
from .ranking import Ranker

SPECIALS = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
FIRST_ID = len(SPECIALS)
FACTS_NAME, PRIOR_NAME = "items.json", "item_prior.safetensors"


def item_tokenizer(items, max_seq_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer of whole names of items, whose ids are their places in ``items`` after those of the special tokens.

    Raises:
        ValueError: if an item has the name of a special token.
    """
    tokens = [*SPECIALS.values(), *items]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise ValueError(f"An item is called like one of {', '.join(SPECIALS.values())}: rename it.")
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIALS["unk_token"]))
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=max_seq_length, **SPECIALS)


def save_facts(folder: str | Path, log_q: Tensor, facts: dict) -> None:
    """Write beside a model what turns its outputs into scores: ``(V,)`` log q, and tau with other facts."""
    with whole_file(Path(folder) / PRIOR_NAME) as aside:
        save_file({"log_q": log_q.float().cpu().contiguous()}, aside)
    write_whole(Path(folder) / FACTS_NAME, (json.dumps(facts, indent=2) + "\n").encode())


def load_ranker(folder: str | Path) -> tuple[Ranker, list[str], float]:
    """What `headless-trainer items` saved: the ranker, the names of the items in the order of their ids, and tau.

    Raises:
        FileNotFoundError: if the folder holds no model of items.
        ValueError: if a file of it is missing, damaged, or of another model.
    """
    folder = Path(folder)
    if not (folder / FACTS_NAME).is_file():
        raise FileNotFoundError(
            f"model_name_or_path {str(folder)!r} holds no {FACTS_NAME}: name a folder that `headless-trainer items` wrote."
        )
    with source("model_name_or_path", str(folder), weights=True):
        facts = _facts(folder / FACTS_NAME)
        is_decoder = infer_task(AutoConfig.from_pretrained(folder)) == "clm"
        kind = AutoModel
        if facts["objective"] == "vanilla":
            kind = AutoModelForCausalLM if is_decoder else AutoModelForMaskedLM
        model = kind.from_pretrained(folder, dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        log_q = load_file(folder / PRIOR_NAME)["log_q"]
        if len(tokenizer) != len(log_q):  # without its files it is an empty one
            raise ValueError(f"its tokenizer has {len(tokenizer)} tokens, and {PRIOR_NAME} is of {len(log_q)}")
    if torch.cuda.is_available():
        model = model.cuda()
    ranker = Ranker(
        model,
        log_q,
        first_id=FIRST_ID,
        mask_id=None if is_decoder else tokenizer.mask_token_id,
        max_seq_length=facts["max_seq_length"],
        temperature=facts["temperature"],
    )
    return ranker, tokenizer.convert_ids_to_tokens(range(FIRST_ID, len(ranker.log_q))), facts["tau"]


def _facts(path: Path) -> dict:
    """What `save_facts` wrote.

    Raises:
        ValueError: if it is something else.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        missing = {"objective", "tau", "temperature", "max_seq_length"} - set(facts)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path.name} is damaged ({error})") from error
    if missing:
        raise ValueError(f"{path.name} lacks {', '.join(sorted(missing))}")
    return facts
