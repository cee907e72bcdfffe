"""Tiny models, corpora and trainers that the tests share."""

import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, GPT2Config, GPT2LMHeadModel, GPT2Model, PrinterCallback

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, VanillaTrainer

VOCAB = 50


class Tokenizer:
    """What a trainer asks of a tokenizer."""

    pad_token_id, mask_token_id, all_special_ids, name_or_path = 0, 1, [0, 1], "toy"

    def __len__(self) -> int:
        return VOCAB

    def save_pretrained(self, folder) -> None:
        """Nothing to save."""


def tiny_trainer(folder, **settings):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    data = [{"input_ids": torch.randint(2, VOCAB, (12,), generator=generator)} for _ in range(8)]
    args = HeadlessTrainingArguments(
        str(folder), max_steps=2, logging_steps=1, eval_strategy="steps", eval_steps=2, save_strategy="no", use_cpu=True,
        disable_tqdm=True, per_device_train_batch_size=2, mlm_probability=0.15 if settings.get("task") == "clm" else 0.4,
        **settings,
    )  # fmt: skip
    headless = args.objective == "headless"
    if args.task == "clm":
        config = GPT2Config(n_embd=8, n_layer=1, n_head=1, n_positions=16, vocab_size=VOCAB)
        model = GPT2Model(config) if headless else GPT2LMHeadModel(config)
    else:
        config = BertConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=VOCAB
        )
        model = BertModel(config) if headless else BertForMaskedLM(config)
    counts = torch.ones(VOCAB, dtype=torch.long)
    made = (HeadlessTrainer if headless else VanillaTrainer)(
        model, args, token_counts=counts, train_dataset=data, eval_dataset=data, processing_class=Tokenizer()
    )
    made.pop_callback(PrinterCallback)
    return made
