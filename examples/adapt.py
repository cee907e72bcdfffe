#!/usr/bin/env python
"""Train a language model on with texts of another kind, at a fraction of the price of its
vocabulary head.

    python examples/adapt.py FacebookAI/xlm-roberta-base new_texts.txt runs/adapted

A line of the file is a document. The model keeps its class and its own head: what is saved loads
wherever it came from.
"""

import sys

from datasets import load_dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from headless_trainer import HeadlessTrainingArguments, SampledSoftmaxTrainer

LENGTH = 128


def main(
    name: str, corpus: str, output_dir: str = "runs/adapted", steps: int = 1000
) -> dict[str, float]:
    tokenizer = AutoTokenizer.from_pretrained(name)
    masked = AutoConfig.from_pretrained(name).architectures[0].endswith("ForMaskedLM")
    model = (AutoModelForMaskedLM if masked else AutoModelForCausalLM).from_pretrained(
        name, dtype="float32"
    )
    texts = load_dataset("text", data_files=corpus, split="train").filter(
        lambda row: row["text"].strip()
    )
    rows = texts.map(
        lambda row: tokenizer(row["text"], truncation=True, max_length=LENGTH),
        remove_columns="text",
    )
    parts = rows.train_test_split(test_size=0.05, seed=0)
    args = HeadlessTrainingArguments(
        output_dir,
        objective="sampled_softmax",
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=1e-4,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,
        eval_on_start=True,
        eval_strategy="steps",
        eval_steps=0.25,
        logging_steps=20,
    )
    trainer = SampledSoftmaxTrainer(
        model,
        args,
        train_dataset=parts["train"],
        eval_dataset=parts["test"],
        processing_class=tokenizer,
    )
    # Evaluated by the exact cross-entropy over the vocabulary, before the first step too.
    trainer.train()
    trainer.save_model()
    return trainer.evaluate()


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
