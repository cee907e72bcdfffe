"""A tiny trained decoder, documents and task definitions for the tests of zero-shot scoring."""

from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from headless_trainer.scoring.zero_shot_arguments import ZeroShotArguments

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


TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 300}


ARC = [
    {"question": question, "choices": {"text": texts, "label": list("ABC")}, "answerKey": answer}
    for question, texts, answer in (
        ("What did the miller cross?", ["the river", "a wheel", "her letter"], "A"),
        ("What did my sister mend?", ["the sky", "a broken wheel", "red"], "B"),
        ("Who watched?", ["a grey heron", "the old clock", "the sky"], "A"),
    )
]


def arguments(output_dir=None, **changes):
    settings = {
        "model_name_or_path": ["any"],
        "tasks": ["tiny_lambada"],
        "batch_size": "4",
        "device": "cpu",
    }
    settings |= {"bootstrap_iters": 100, "output_dir": output_dir and str(output_dir)}
    return ZeroShotArguments(**settings | changes)


def scored(model: str, args) -> dict[tuple[str, str], SimpleNamespace]:
    """Scores of a model by task and metric, after all of them were found."""
    from headless_trainer.scoring import zero_shot
    from headless_trainer.scoring.score_store import folder_name, read_results, score_rows

    assert zero_shot.score_models([model], args) == []
    rows = score_rows(read_results(Path(args.output_dir, folder_name(model)))).itertuples()
    return {(row.task, row.metric.removesuffix(",none")): row for row in rows}


def naive_scores(model, tokenizer, context: str, target: str) -> tuple[float, bool]:
    """Log-likelihood of a target after its context, and whether each of its tokens is the most
    likely one.
    """
    context_ids = tokenizer(context).input_ids
    ids = context_ids + tokenizer(context + target).input_ids[len(context_ids) :]
    with torch.no_grad():
        log_probs = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    positions = range(len(context_ids), len(ids))
    greedy = all(log_probs[i - 1].argmax() == ids[i] for i in positions)
    return sum(log_probs[i - 1, ids[i]].item() for i in positions), greedy
