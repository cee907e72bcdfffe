"""Results of fine-tuning, made by hand."""


def make_result(model="a", task="cola", seed=0, scores=(0.5,), loss="balanced", **changes) -> dict:
    """A result whose epochs have these scores, on one evaluation set or by the names of several."""
    epochs = []
    for index, score in enumerate(scores):
        score_by_set = score if isinstance(score, dict) else {"validation": score}
        sets = {
            name: {"metrics": {"accuracy": value}, "loss": 1.0}
            for name, value in score_by_set.items()
        }
        epochs.append({"epoch": index + 1, "step": 10 * (index + 1), "sets": sets})
    result = {
        "model": model,
        "task": task,
        "benchmark": "glue",
        "train_language": None,
        "seed": seed,
        "loss": loss,
        "settings": {"learning_rate": 1e-5, "batch_size": 32},
        "weights": model * 4,
        "tokenizer_and_code": "tokens",
        "metric": "accuracy",
        "selected_on": list(epochs[0]["sets"]),
        "epochs": epochs,
    }
    return result | changes


def results_of_seeds(model, task, scores, **changes) -> list[dict]:
    """A result for each score, with seeds from 0 on."""
    return [
        make_result(model, task, seed, (score,), **changes) for seed, score in enumerate(scores)
    ]
