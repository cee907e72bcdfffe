#!/usr/bin/env python
"""Pretrain a small decoder without a vocabulary head, and let it write.

    python examples/pretrain.py corpus.txt

A line of the file is a document. Five minutes on two CPU cores; more steps, rows and layers make
it better.
"""

import sys

from datasets import load_dataset
from transformers import AutoConfig, AutoModel, AutoTokenizer, set_seed

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, attach_lm_head

STEPS = 200
ROWS = 32
LENGTH = 128


def main(
    corpus: str, output_dir: str = "runs/example", tokenizer_name: str = "gpt2", steps: int = STEPS
) -> str:
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_name)
    texts = load_dataset("text", data_files=corpus, split="train").filter(
        lambda row: row["text"].strip()
    )
    rows = texts.map(
        lambda row: tokenizer(row["text"], truncation=True, max_length=LENGTH),
        remove_columns="text",
    )
    parts = rows.train_test_split(test_size=0.02, seed=0)

    # Any architecture of transformers; those that end in a LayerNorm (GPT-2, GPT-NeoX, OPT) become
    # language models for free.
    sizes = {
        "hidden_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 768,
    }
    model = AutoModel.from_config(
        AutoConfig.for_model(
            "gpt_neox", vocab_size=1 + max(tokenizer.get_vocab().values()), **sizes
        )
    )
    args = HeadlessTrainingArguments(
        output_dir,
        max_steps=steps,
        per_device_train_batch_size=ROWS,
        learning_rate=4e-3,
        muon_learning_rate=8e-3,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,
        eval_strategy="steps",
        eval_steps=0.25,
        logging_steps=10,
    )
    trainer = HeadlessTrainer(
        model,
        args,
        train_dataset=parts["train"],
        eval_dataset=parts["test"],
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()

    # The language model that the trunk implies: its own embeddings, and the frequencies of the
    # tokens. Nothing is trained.
    language_model = attach_lm_head(output_dir)
    start = tokenizer("The ", return_tensors="pt")
    written = language_model.generate(
        **start, max_new_tokens=30, do_sample=True, top_k=50, pad_token_id=0
    )
    return tokenizer.decode(written[0])


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
