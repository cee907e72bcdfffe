"""A tiny trained decoder, documents and task definitions for the tests of zero-shot scoring."""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

LAMBADA_YAML = """task: tiny_lambada
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
output_type: loglikelihood
test_split: test
doc_to_text: "{{{{text.split(' ')[:-1]|join(' ')}}}}"
doc_to_target: "{{{{' '+text.split(' ')[-1]}}}}"
metric_list:
  - {{metric: perplexity, aggregation: perplexity, higher_is_better: false}}
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1.0}}
"""
GENERATION_YAML = """task: tiny_generation
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{text.split(' ')[:-1]|join(' ')}}}}"
doc_to_target: "{{{{text.split(' ')[-1]}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 6}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
  - {{metric: !function metrics.length, aggregation: mean, higher_is_better: false}}
metadata: {{version: 1.0}}
"""
GROUP_YAML = """group: tiny_group
task: [tiny_lambada, tiny_generation]
aggregate_metric_list:
  - {metric: acc, weight_by_size: true, filter_list: none}
"""


def train(
    tokenizer: PreTrainedTokenizerFast, lines: list[str], seed: int = 0, steps: int = 40
) -> GPT2LMHeadModel:
    """A decoder that gets some of the last words of these lines right."""
    torch.manual_seed(seed)
    sizes = {
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 64,
        "vocab_size": len(tokenizer),
    }
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).train()
    batch = tokenizer(lines[::2], return_tensors="pt", padding=True)
    labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def write_tasks(folder: Path, documents: str) -> str:
    """Definitions of a LAMBADA, a task that generates, and a group of both, on a file of texts."""
    folder.mkdir()
    (folder / "lambada.yaml").write_text(LAMBADA_YAML.format(path=documents))
    (folder / "generation.yaml").write_text(GENERATION_YAML.format(path=documents))
    (folder / "group.yaml").write_text(GROUP_YAML)
    (folder / "metrics.py").write_text(
        "def length(references, predictions):\n    return len(predictions[0])\n"
    )
    return str(folder)


def as_scores(
    task: str, metrics: dict[str, tuple[float, bool | None, list]], hashes=None, stderr: float = 0.1
) -> dict:
    """What the harness's ``evaluate`` returns for one task, from value, direction and documents'
    scores of its metrics.
    """
    count, samples = len(next(iter(metrics.values()))[2]), []
    for index, own in enumerate(hashes or map(str, range(count))):
        scores = {name: found[index] for name, (_, _, found) in metrics.items()}
        known = {
            "doc_hash": own,
            "prompt_hash": "",
            "target_hash": "",
            "filter": "none",
            "metrics": [*metrics],
        }
        samples.append({"doc_id": index} | known | scores)
    values = {f"{name},none": value for name, (value, _, _) in metrics.items()}
    return {
        "results": {task: values | {f"{name}_stderr,none": stderr for name in metrics}},
        "higher_is_better": {task: {name: way for name, (_, way, _) in metrics.items()}},
        "n-samples": {task: {"original": count, "effective": count}},
        "n-shot": {task: 0},
        "configs": {task: {"dataset_path": "json"}},
        "samples": {task: samples},
    }
