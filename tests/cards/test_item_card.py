"""The card of a model of items: it speaks of items, its figures are those of the run, and its command runs as printed."""

import json
import re
import shlex
from pathlib import Path

import pytest

from headless_trainer.cards.facts import curve
from headless_trainer.cards.file import read_card
from headless_trainer.cli import items, recommend

TINY = [
    *("--hidden_size", "16", "--num_hidden_layers", "1", "--max_seq_length", "8", "--num_train_epochs", "2"),
    *(
        "--per_device_train_batch_size",
        "8",
        "--use_cpu",
        "--disable_tqdm",
        "true",
        "--learning_rate",
        "0.02",
        "--logging_steps",
        "5",
    ),
]
RUNS = {
    "headless": ("--sampled_negatives", "6"),
    "vanilla": ("--objective", "vanilla", "--min_item_count", "2"),
    "encoder": ("--task", "mlm", "--keep_seen"),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    lines = [f"u{user} " + " ".join(f"i{(user + step) % 20}" for step in range(5 + user % 6)) for user in range(40)]
    (folder / "histories.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, flags in RUNS.items():
        corpus = ["--train_file", str(folder / "histories.txt"), "--output_dir", str(folder / name)]
        items.main([*TINY, *corpus, *flags])
    return folder


def text_of(folder: Path) -> str:
    return read_card(folder).text


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("checkpoint", ["", "checkpoint-10"])
def test_a_card_speaks_of_items_and_of_no_text(here, name, checkpoint):
    text = text_of(here / name / checkpoint)
    prose = re.sub(r"```.*?```|`[^`]*`|^#.*$|\(http[^)]*\)", "", text, flags=re.MULTILINE | re.DOTALL)
    found = set(re.findall(r"\b(?:texts?|tokens?|vocabulary|encodes|generates?|tokenizer|GLUE|fill\w*)\b", prose, re.I))
    assert found <= ({"token"} if name == "encoder" else set())  # the mask token
    assert "glue" not in text and "lm-head" not in text and "run_lm_head" not in text
    assert "20 items" in text and "296 interactions of 40 users with 20 items, from `histories.txt`" in text
    assert "(40 users in validation, 40 users in the test)" in text
    assert ("| item embedding, 23 x 16 | 368 |" in text) and "the most recent 8 items" in text


def test_what_was_trained_is_told_apart(here):
    headless, vanilla, encoder = (text_of(here / name) for name in RUNS)
    assert "a decoder, a `GPT2Model`, trained without a head over the catalogue." in headless
    assert "and 6 items drawn in each step from the catalogue." in headless
    assert "head | none; one over the catalogue would have 368" in headless
    assert "a decoder, a `GPT2LMHeadModel`, trained with cross-entropy over the catalogue." in vanilla
    assert "Cross-entropy over the catalogue, at the predicted positions." in vanilla
    assert "- Rarest items: with 2 interactions" in vanilla and "Rarest items" not in headless
    assert "an encoder, a `BertModel`," in encoder and "- Ranked: all items\n" in encoder
    assert "- Ranked: all items, without those that the user had before" in headless


@pytest.mark.parametrize("name", RUNS)
def test_figures_are_those_of_the_run(here, name):
    found = json.loads((here / name / "items_results.json").read_text(encoding="utf-8"))
    card = read_card(here / name)
    assert f"Validation chose tau {found['tau']:g}." in card.text
    keys = {"ndcg@10": "NDCG@10", "recall@10": "recall@10", "mrr": "MRR", "coverage@10": "coverage@10"}
    expected = {}
    for part, ending, tau in (("test", "", found["tau"]), ("test", "_at_tau_0", 0.0), ("validation", "", found["tau"])):
        for key, label in keys.items():
            label = label + " at tau 0" if ending else label
            value = float(f"{found[f'{part}_{key}{ending}']:.6g}")
            expected[part, label] = value, {"tau": tau, "users": 40}
            assert f"| {part} part of histories.txt | {label} | {f'{value:.4g}'} | tau {tau:g}, users 40 |" in card.text
    given = {
        (each.dataset_split, each.metric_name): (each.metric_value, each.metric_args) for each in card.data.eval_results
    }
    assert given == expected and "sequential-recommendation" in card.data.tags and card.data.pipeline_tag is None


@pytest.mark.parametrize("name", RUNS)
def test_its_command_runs_as_printed(here, monkeypatch, name):
    monkeypatch.chdir(here)
    (here / "best.jsonl").unlink(missing_ok=True)
    (command,) = re.findall(r"^```bash\n(.*?)\n```$", text_of(here / name), re.MULTILINE | re.DOTALL)
    words = shlex.split(command)
    recommend.main(words[words.index("--model_name_or_path") :])
    lines = [json.loads(line) for line in (here / "best.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 40 and lines[0].keys() == {"user", "items", "scores"}


def test_a_checkpoint_says_that_it_cannot_recommend(here):
    text = text_of(here / "headless" / "checkpoint-10")
    assert "takes the folder of the run, and no checkpoint of it." in text
    assert "## Use" not in text and "## Evaluation" not in text and "Validation chose" not in text


def test_everything_is_written_before_the_card_and_the_push(here, tmp_path, monkeypatch):
    """A push sends the folder as it is: what `recommend` needs must be in it."""
    from headless_trainer.cli import training

    written = []
    write = training.write_model_card
    monkeypatch.setattr(
        training,
        "write_model_card",
        lambda trainer, **kwargs: (written.extend(path.name for path in tmp_path.iterdir()), write(trainer, **kwargs)),
    )
    items.main([*TINY, "--train_file", str(here / "histories.txt"), "--output_dir", str(tmp_path)])
    assert {"items.json", "item_prior.safetensors", "items_results.json"} <= set(written)


def test_the_curve_has_the_figure_that_chooses(here):
    assert re.search(r"^\| step \| items \| .*NDCG@10 \|$", text_of(here / "headless"), re.MULTILINE)


def test_a_curve_keeps_the_evaluation_of_its_step():
    """Figures of one step may lie in several logs; those of the best weights, which come after the run, are not of its end."""
    history = [
        {"loss": 3.0, "step": 2, "tokens_seen": 10},
        {"eval_loss": 2.0, "step": 2},
        {"eval_ndcg@10": 0.5, "step": 2},
    ]
    history += [
        {"loss": 1.0, "step": 4, "tokens_seen": 20},
        {"eval_loss": 2.5, "step": 4},
        {"eval_ndcg@10": 0.4, "step": 4},
    ]
    history += [{"eval_loss": 2.0, "step": 4}, {"eval_ndcg@10": 0.5, "step": 4}]
    assert curve(history, "item").splitlines()[2:] == ["| 2 | 10 | 3.000 | 0.5000 |", "| 4 | 20 | 1.000 | 0.4000 |"]
