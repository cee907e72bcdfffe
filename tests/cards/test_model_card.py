"""Model cards as users find them: true, whole, valid, and with lines of Python that run."""

import contextlib
import copy
import io
import json
import math
import re
import shlex
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from builders import SMALL, make_trainer, text_of, tiny_model, trainer_for
from huggingface_hub import ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPTNeoXConfig,
    GPTNeoXModel,
    LlamaConfig,
    LlamaModel,
)

from headless_trainer import HeadlessTrainer, VanillaTrainer
from headless_trainer.arguments import DataArguments, ModelArguments
from headless_trainer.cards import model_card
from headless_trainer.cards.facts import usage_facts
from headless_trainer.cards.file import read_card
from headless_trainer.checkpoints.token_counts import load_token_counts, save_token_counts
from headless_trainer.cli import make_lm_head as run_lm_head
from headless_trainer.cli import pretrain as run_pretrain
from headless_trainer.models.candidate_head import untie
from headless_trainer.trainers.pretraining import PretrainingTrainer

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"
SIZES = "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,max_position_embeddings=32"
CITED = "Headless Language Models: Learning without Predicting with Contrastive Weight Tying"


@pytest.fixture(scope="module")
def here(tmp_path_factory, text_lines) -> Path:
    """A folder with models of every kind that the commands make, each with its card."""
    folder = tmp_path_factory.mktemp("cards")
    lines = folder / "lines.txt"
    lines.write_text("\n".join(text_lines) + "\n", encoding="utf-8")
    data = (
        f" --train_file {lines} --max_seq_length 16 --validation_split_percentage 10 --use_cpu true"
    )
    steps = f" --max_steps 4 --save_steps 2 --logging_steps 1 --eval_strategy steps --eval_steps 2 --token {TOKEN}"
    steps += f" --disable_tqdm true --per_device_train_batch_size 4 --hub_token {TOKEN} --run_name {folder}{data}"
    new = f" --config_overrides {SIZES} --train_tokenizer --vocab_size 300{steps}"

    def pretrain(name: str, flags: str) -> None:
        run_pretrain.main([*flags.split(), *new.split(), "--output_dir", str(folder / name)])

    def lm_head(source: str, name: str, flags: str = "") -> None:
        run_lm_head.main(
            f"--model_name_or_path {folder / source} --output_dir {folder / name}{flags}".split()
        )

    decoder = "--model_type gpt_neox --negatives step --gradient_accumulation_steps 2 --learning_rate 3e-3"
    pretrain("decoder", f"{decoder} --license mit --language en")
    pretrain("encoder", "--model_type bert --tokenizer_type wordpiece")
    pretrain("vanilla", "--model_type gpt_neox --objective vanilla --head_bias prior")
    lm_head("decoder", "decoder-lm")
    lm_head("encoder", "encoder-lm")
    lm_head("decoder", "embeddings", f" --init embeddings --do_eval{data}")
    lm_head("decoder/checkpoint-2", "tuned", f" --counts_from corpus --do_train{steps}")
    lm_head("encoder", "tuned-encoder", f" --do_train --freeze_trunk{steps}")
    return folder


def introduction(folder: Path) -> str:
    """What stands between the title and the next heading."""
    return re.search(r"^# [^\n]*\n\n(.*?)\n\n## ", text_of(folder), re.MULTILINE | re.DOTALL).group(
        1
    )


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next one."""
    pattern = rf"^#+ {re.escape(title)}\n\n(.*?)(?=\n\n#+ |\n\n<!-- |\Z)"
    return re.search(pattern, text, re.MULTILINE | re.DOTALL)[1]


def bullets(folder: Path, title: str) -> dict[str, str]:
    lines = section(text_of(folder), title).splitlines()
    return dict(line.removeprefix("- ").split(": ", 1) for line in lines)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)


def read_history(folder: Path) -> list[dict]:
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


def test_every_folder_with_weights_has_a_card(here):
    folders = {path.parent for path in here.rglob("model.safetensors")}
    assert len(folders) == 8 + 2 * 5  # models, and two checkpoints of each training
    assert all((folder / "README.md").is_file() for folder in folders)
    assert not list(here.rglob("README.md.incomplete"))


FOLDED, WITHOUT = "folded into the head's weights", "without further training"
SAID = {  # and what is not
    "decoder": (
        ["trunk of a causal", "`GPTNeoXModel`", "does not generate: it has no head"],
        ["continues", "continued"],
    ),
    "encoder": (["trunk of a masked", "computed from the whole text", "not fill masks"], ["continued"]),
    "vanilla": (["a causal language model", "cross-entropy over its vocabulary", FOLDED], ["without"]),
    "vanilla/checkpoint-2": ([FOLDED], ["without"]),
    "decoder-lm": (
        [f"from `decoder` {WITHOUT}", "in its pretraining added", "It continues texts", FOLDED],
        ["fine-tuned"],
    ),
    "encoder-lm": (
        ["a masked language model", f"from `encoder` {WITHOUT}", "transform.dense` is"],
        [FOLDED, "continues"],
    ),
    "embeddings": (["in that pretraining, by default the input embedding.\n"], ["log frequency"]),
    "tuned": (["from `decoder/checkpoint-2`", "for 4 optimizer steps", "began as", "in `lines.txt` added"], [WITHOUT]),
    "tuned/checkpoint-2": (["for 2 optimizer steps", FOLDED], [WITHOUT]),
    "tuned-encoder": (["Only the head was trained."], [WITHOUT, "freeze it"]),
}  # fmt: skip
LOOKED_AT = [*SAID, "decoder/checkpoint-2"]


@pytest.mark.parametrize("name", SAID)
def test_a_card_says_what_the_model_is_and_what_head_it_has(here, name):
    text, (said, unsaid) = introduction(here / name), SAID[name]
    assert all(words in text for words in said) and not any(words in text for words in unsaid), text


def test_a_card_describes_the_objective_the_pool_and_the_masks(here):
    text = section(text_of(here / "decoder"), "Objective")
    logs = [logs for logs in read_history(here / "decoder") if "pool_size" in logs]
    # Two forwards of four rows, with 15 targets in each.
    assert [entry["pool_size"] for entry in logs] == [120.0] * 4
    distinct = sum(entry["pool_tokens"] for entry in logs) / 4
    assert "arxiv.org/abs/2309.08351" in text
    assert "optimizer step" in text
    assert "120 targets" in text
    assert f"{distinct:,.1f}" in text
    masks = section(text_of(here / "encoder"), "Objective")
    assert re.findall(r"(\d+) %", masks) == ["15", "80", "10", "10"]
    assert "ross-entropy" in section(text_of(here / "vanilla"), "Objective")


def test_a_card_has_data_tokens_rows_time_and_memory(here):
    data = bullets(here / "decoder", "Data")
    assert "`lines.txt`" in data["Texts"]
    assert data["Held out"].startswith("10 %")
    assert "16 tokens" in data["Rows"]
    epochs, rows = re.fullmatch(
        r"512 tokens, ([\d.]+) epochs of (\d+) rows", data["Seen in training"]
    ).groups()
    assert epochs == f"{round(32 / int(rows), 2):g}"  # 4 steps of 8 rows
    training = section(text_of(here / "decoder"), "Training")
    for number in ("4 optimizer steps", "8 rows", "4 a forward", "2 forwards", "1 process"):
        assert number in training.partition("\n\n|")[0]
    assert bullets(here / "decoder/checkpoint-2", "Data")["Seen in training"].startswith(
        "256 tokens, "
    )
    facts = bullets(here / "decoder", "Environment")
    assert facts["Time"].endswith(" in training steps") and facts["Peak memory"].endswith(
        " MiB of a process"
    )


def test_a_card_has_shape_and_parameters_with_and_without_a_head(here):
    model = bullets(here / "decoder", "Model")
    assert (
        model["Architecture"]
        == "`GPTNeoXModel`, 1 layer, width 16, 2 attention heads, 32 positions"
    )
    tokens = len(
        yaml.safe_load((here / "decoder" / "tokenizer.json").read_text())["model"]["vocab"]
    )
    assert model["Tokenizer"].startswith(f"{tokens} tokens")
    tokenizer_of_head = bullets(here / "decoder-lm", "Model")["Tokenizer"]
    assert tokenizer_of_head.startswith(f"{tokens} tokens")
    assert "`decoder`" in tokenizer_of_head
    own, rest = 16 * tokens, 2 * 32 + 16 * 48 + 48 + 16 * 16 + 16 + 2 * 16 * 32 + 32 + 16 + 32

    def numbers(name: str) -> list[str]:
        return re.findall(r"[\d,]*\d", bullets(here / name, "Model")["Parameters"])

    # All parameters, those of the embedding, and its shape.
    embedding = [f"{own:,}", f"{tokens:,}", "16"]
    assert numbers("decoder") == [f"{own + rest:,}", *embedding]
    for name in ("decoder-lm", "vanilla/checkpoint-2", "vanilla"):
        assert numbers(name) == [f"{2 * own + rest:,}", *embedding]


def test_a_card_has_settings_that_differ_from_the_defaults_and_no_others(here):
    table = section(text_of(here / "decoder"), "Training").split("\n\n")[1].splitlines()
    shown = [tuple(line.strip("| ").split(" | ")) for line in table[2:]]
    assert shown[:2] == [("learning_rate", "0.003"), ("lr_scheduler_type", "linear")]
    assert shown[2:] == [("optim", "adamw_torch_fused"), ("seed", "42"), ("negatives", "step")]
    assert "| head_bias | prior |" in section(text_of(here / "vanilla"), "Training")
    assert "`LMHeadArguments`" in text_of(here / "tuned")


def test_results_are_those_of_the_logs(here):
    held_out = [logs for logs in read_history(here / "decoder") if "eval_loss" in logs]
    for folder, logs in (
        (here / "decoder", held_out[-1]),
        (here / "decoder/checkpoint-2", held_out[0]),
    ):
        accuracy, perplexity = read_card(folder).data.eval_results
        assert (accuracy.metric_type, accuracy.metric_name) == (
            "accuracy",
            "accuracy with log q added",
        )
        assert perplexity.metric_value == pytest.approx(logs["eval_perplexity"], rel=1e-5)
        assert perplexity.metric_args == {"predicted_tokens": logs["eval_predicted_tokens"]}
        assert f"| {perplexity.metric_value:.4g} | predicted tokens " in section(
            text_of(folder), "Evaluation"
        )
    assert [each.metric_type for each in read_card(here / "encoder").data.eval_results] == [
        "accuracy",
        "cross_entropy",
    ]


@pytest.mark.parametrize("name", LOOKED_AT)
def test_metadata_are_what_the_hub_takes_and_the_text_is_whole(here, name):
    """The rules that huggingface_hub has on this side of its request: `ModelCard.validate` asks
    the Hub itself.
    """
    text = text_of(here / name)
    card = ModelCard.load(here / name / "README.md")
    assert str(card) == text
    data = yaml.safe_load(REGEX_YAML_BLOCK.match(text).group(2))
    assert data == card.data.to_dict()
    known = {"library_name", "pipeline_tag", "tags", "license", "language", "model-index"}
    assert set(data) <= known and not [value for value in data.values() if value in (None, [], "")]
    tags = {
        "decoder": "feature-extraction",
        "encoder": "feature-extraction",
        "encoder-lm": "fill-mask",
    }
    tags |= {"tuned-encoder": "fill-mask"}
    assert data["pipeline_tag"] == tags.get(name.partition("/")[0], "text-generation")
    assert data["library_name"] == "transformers" and data["tags"][0] == "headless-trainer"
    assert (
        ("contrastive-weight-tying" in data["tags"])
        == (not name.startswith("vanilla"))
        == (CITED in text)
    )
    for result in card.data.eval_results or ():
        assert isinstance(result.metric_value, float) and result.dataset_type == "local"
        assert result.dataset_name == "held-out part of lines.txt"
        assert result.task_type == ("fill-mask" if "encoder" in name else "text-generation")
    inherits = (
        name.startswith("decoder")
        or name.startswith("tuned")
        and "encoder" not in name
        or name == "embeddings"
    )
    assert (data.get("license"), data.get("language")) == (
        ("mit", ["en"]) if inherits else (None, None)
    )
    limitations = text.partition("## Limitations and bias\n")[2].partition("\n## ")[0]
    assert "stereotypes" in limitations and limitations.count("\n- ") >= 2
    # All is whole, and nothing is private.
    assert TOKEN not in text and str(here) not in text
    assert not re.search(r"(?<![\w.])/(?!/)[a-z]+/", re.sub(r"https://\S+", "", text)), "a path"
    assert not re.search(r"\bNone\b|\bnan\b|\binf\b|\[\]|\{\}|\$\w|\{\{|\{%", text)
    assert not re.search(r"\n\n\n|[ \t]\n|\n\n\Z", text) and text.endswith("\n")
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert all((here / name / picture).is_file() for picture in pictures)
    assert bool(pictures) == (name in ("decoder", "encoder", "vanilla", "tuned", "tuned-encoder"))
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    text = re.sub(
        r"^```.*?^```|^## (Pretraining|Fine-tuning)[^\n]*",
        "a block",
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    assert not re.search(r"^#+ .*\n+(\Z|#+ )", text, re.MULTILINE), "an empty section"


@pytest.mark.parametrize("name", LOOKED_AT)
def test_the_lines_of_python_run_as_printed(here, name, monkeypatch):
    monkeypatch.chdir(here)  # beside the folder
    text = text_of(here / name)
    code = blocks(text, "python")
    assert len(code) == 1
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), torch.random.fork_rng():
        exec(compile(code[0], name, "exec"), {})
    expected = {
        "feature-extraction": r"torch\.Size\(\[\d+, 16\]\) torch\.Size\(\[16\]\)\n",
        "fill-mask": r"(.*\n){5}",
    }
    assert re.fullmatch(
        expected.get(read_card(here / name).data.pipeline_tag, r"(?s).+"), printed.getvalue()
    )


def trainer_by_hand(folder, tokenizer, model=None, **settings) -> PretrainingTrainer:
    model = model or tiny_model("clm", 300, layers=1, dropout=0.1)
    rows = [{"input_ids": list(range(start, start + 8))} for start in range(12)]
    settings = {"max_steps": 2, "save_strategy": "no"} | settings
    return make_trainer(
        folder, model, rows, settings, eval_dataset=rows[:2], processing_class=tokenizer
    )


def test_a_model_saved_by_hand_has_a_card_of_what_is_known(tmp_path, clm_tokenizer):
    trainer = trainer_by_hand(tmp_path / "run", clm_tokenizer)
    trainer.train()
    trainer.save_model()
    text = text_of(tmp_path / "run")
    assert text.startswith("---\nlibrary_name: transformers\npipeline_tag: feature-extraction\n")
    assert (
        ", 1 epoch of 12 rows\n" in text and "- Texts:" not in text and "## Evaluation" not in text
    )
    trainer.save_model(str(tmp_path / "copy"))
    assert '"./copy"' in text_of(tmp_path / "copy") and '"./run"' in text
    (tmp_path / "run" / "model.safetensors").unlink()  # weights in other files
    model_card.write_model_card(trainer.described_run)
    assert set(bullets(tmp_path / "run", "Model")) == {"Architecture", "Tokenizer"}
    trainer_by_hand(tmp_path / "without", None).save_model()
    text = text_of(tmp_path / "without")
    assert "## Use" not in text and "- Tokenizer" not in text and "```python" not in text


ODD = ["plain", "a 'b' \"c\" `d` | $e", "back\\slash\\n", "модель", "two\nlines"]


@pytest.mark.parametrize("name", ODD)
def test_a_folder_of_any_name_has_a_card_whose_lines_run(
    tmp_path, clm_tokenizer, monkeypatch, name
):
    folder = tmp_path / name
    trainer = trainer_by_hand(folder, clm_tokenizer)
    trainer.facts.data_args = DataArguments(train_file=[name])
    trainer.train()
    trainer.save_model()
    text = text_of(folder)
    assert read_card(folder) is not None and str(read_card(folder)) == text
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng():
        exec(compile(blocks(text, "python")[0], "card", "exec"), {})
    program, script, *arguments = shlex.split(blocks(text, "bash")[0])
    assert (program, script, arguments[2:]) == (
        "headless-trainer",
        "lm-head",
        ["--output_dir", f"{name}-lm"],
    )
    run_lm_head.main([*arguments[:3], str(tmp_path / "lm")])
    assert "without further training; `" in text_of(tmp_path / "lm")


@pytest.mark.slow
def test_figures_of_another_step_are_not_those_of_a_checkpoint(tmp_path, clm_tokenizer):
    steps = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 2}
    trainer_by_hand(tmp_path, clm_tokenizer, **steps, max_steps=4).train()
    found = [read_card(tmp_path / f"checkpoint-{step}").data.eval_results for step in (1, 2, 3)]
    assert [bool(results) for results in found] == [False, True, False]


@pytest.mark.slow
def test_the_best_checkpoint_is_named_and_its_figures_are_given(tmp_path, clm_tokenizer):
    steps = {
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "max_steps": 3,
    }
    trainer = trainer_by_hand(
        tmp_path, clm_tokenizer, **steps, load_best_model_at_end=True, learning_rate=3.0
    )
    trainer.train()
    trainer.save_model()
    held_out = {logs["step"]: logs for logs in trainer.state.log_history if "eval_loss" in logs}
    best = min(held_out, key=lambda step: held_out[step]["eval_loss"])
    assert best < 3  # the rate is far too high
    assert re.search(f"after step {best},.* `loss`", text_of(tmp_path))
    results = {
        step: read_card(tmp_path / f"checkpoint-{step}").data.eval_results for step in held_out
    }
    assert read_card(tmp_path).data.eval_results == results[best] != results[3]
    assert "The weights are those" not in text_of(tmp_path / f"checkpoint-{best}")


def test_what_a_decoder_cannot_read_is_not_given_to_it(mlm_tokenizer, clm_tokenizer):
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 300}
    small = SMALL | {"vocab_size": 300}
    decoder, neox = (
        transformers.GPT2LMHeadModel(GPT2Config(**shape)),
        GPTNeoXModel(GPTNeoXConfig(**small)),
    )
    typed = copy.deepcopy(mlm_tokenizer)
    typed.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    for model, option in ((decoder, True), (neox, True), (BertModel(BertConfig(**small)), False)):
        assert usage_facts("x", model, typed)["options"] == ", return_token_type_ids=False" * option
    usage = usage_facts("x", decoder, clm_tokenizer)
    assert (usage["options"], usage["beginning"], usage["new_tokens"]) == (
        "",
        '"<|endoftext|>"',
        40,
    )
    llama = LlamaModel(LlamaConfig(**small))  # which has no LayerNorm
    assert (
        " --init embeddings --do_train --train_file "
        in usage_facts("llama", llama, clm_tokenizer, False)["command"]
    )
    short = transformers.GPT2LMHeadModel(GPT2Config(**shape, n_positions=12))
    assert usage_facts("x", short, clm_tokenizer)["new_tokens"] == 10
    boundless = transformers.XLNetLMHeadModel(
        transformers.XLNetConfig(d_model=16, n_layer=1, n_head=2, d_inner=32, vocab_size=300)
    )
    assert usage_facts("x", boundless, clm_tokenizer)["new_tokens"] == 40


def test_settings_are_put_into_words(tmp_path, clm_tokenizer):
    settings = {
        "isolate_documents": True,
        "adam_beta2": 0.98,
        "pool_size": 6,
        "sampled_negatives": 1000,
    }
    trainer = trainer_by_hand(tmp_path / "run", clm_tokenizer, **settings)
    trainer.facts.data_args = DataArguments(
        train_file=["a.txt"], max_seq_length=8, line_by_line=True
    )
    trainer.train()
    trainer.save_model()
    text = text_of(tmp_path / "run")
    objective = section(text, "Objective")
    for fact in ("forward pass", "6 targets", "1,000 tokens", "do not attend"):
        assert fact in objective
    assert "| adam_beta2 | 0.98 |\n" in text
    rows = bullets(tmp_path / "run", "Data")["Rows"]
    assert "whole documents" in rows and "8 tokens" in rows


def test_a_name_on_the_hub_is_used_where_the_model_goes_there(tmp_path, clm_tokenizer):
    trainer = trainer_by_hand(tmp_path / "run", clm_tokenizer)
    trainer.args.push_to_hub, trainer.args.hub_model_id = True, "someone/some model"
    for folder in (tmp_path / "run", tmp_path / "copy"):
        trainer._save(str(folder))
        save_token_counts(folder, trainer.token_counts, {"tokens_seen": 0, "train_seconds": 0.0})
        model_card.write_model_card(trainer.described_run, folder)
    assert 'from_pretrained("someone/some model")' in text_of(tmp_path / "run")
    assert "--model_name_or_path 'someone/some model' --output_dir 'some model-lm'" in text_of(
        tmp_path / "run"
    )
    assert 'from_pretrained("./copy")' in text_of(tmp_path / "copy")
    assert "relative" not in text_of(tmp_path / "run")
    assert "relative" in text_of(tmp_path / "copy")


def test_a_trunk_without_a_place_for_log_q_is_promised_no_free_head(tmp_path, clm_tokenizer):
    trainer = trainer_by_hand(
        tmp_path, clm_tokenizer, untie(LlamaModel(LlamaConfig(**SMALL, vocab_size=300)))
    )
    trainer.state.log_history.append(
        {"step": 0, "eval_loss": 1.0, "eval_accuracy": 0.5, "eval_predicted_tokens": 14}
    )
    trainer.save_model()
    text, matrix = text_of(tmp_path), 300 * 16
    assert "cannot hold log q" in text
    assert "--init embeddings --do_train" in text
    assert "separate matrix" in text
    parameters = bullets(tmp_path, "Model")["Parameters"]
    assert parameters.startswith(f"{trainer.model.num_parameters():,} ")
    assert f" {matrix:,} " in parameters


def test_sources_on_the_hub_are_linked(tmp_path, clm_tokenizer):
    trainer = trainer_by_hand(tmp_path, clm_tokenizer)
    source = {"dataset_name": "some/texts", "dataset_config_name": "en", "dataset_revision": "abc"}
    trainer.facts.data_args = DataArguments(**source, max_seq_length=8, line_by_line=True)
    trainer.facts.model_args = ModelArguments(model_name_or_path="someone/base")
    trainer.train()
    figures = {
        "eval_loss": 1.0,
        "eval_accuracy": 0.5,
        "eval_perplexity": math.inf,
        "eval_cross_entropy": 800.0,
    }
    trainer.state.log_history.append({"step": 2, **figures, "eval_predicted_tokens": 14})
    trainer.save_model()
    data = bullets(tmp_path, "Data")
    link = "[some/texts](https://huggingface.co/datasets/some/texts)"
    for fact in (link, "`en`", "`abc`"):
        assert fact in data["Texts"]
    assert "Held out" not in data
    assert "one document" in data["Rows"] and "8 tokens" in data["Rows"]
    base = "[someone/base](https://huggingface.co/someone/base)"
    assert f"continued from {base}" in introduction(tmp_path)
    assert base in bullets(tmp_path, "Model")["Tokenizer"]
    data = read_card(tmp_path).data
    assert (data.base_model, data.datasets) == ("someone/base", ["some/texts"])
    described = [
        (each.dataset_type, each.dataset_config, each.dataset_split) for each in data.eval_results
    ]
    assert described == [("some/texts", "en", "held out")] * 2
    # A perplexity beyond all numbers gives way to the cross-entropy behind it.
    assert [each.metric_type for each in data.eval_results] == ["accuracy", "cross_entropy"]


def test_the_main_process_alone_writes_and_says_how_many_there_were(
    tmp_path, clm_tokenizer, monkeypatch
):
    trainer = trainer_by_hand(tmp_path, clm_tokenizer, negatives="step")
    trainer.save_model()
    (tmp_path / "README.md").unlink()
    monkeypatch.setattr(type(trainer.args), "world_size", 2)
    with monkeypatch.context() as other:
        other.setattr(type(trainer.args), "should_save", False)
        trainer.save_model()
        assert not (tmp_path / "README.md").exists()
    model_card.write_model_card(trainer.described_run)
    training = section(text_of(tmp_path), "Training")
    for number in ("0 optimizer steps", "12 rows", "8 a forward", "1 forward", "2 processes"):
        assert number in training
    assert "optimizer step on the same process" in section(text_of(tmp_path), "Objective")


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_a_loss_of_ones_own_is_not_called_another(tmp_path, clm_tokenizer, objective):
    class MarginTrainer({"headless": HeadlessTrainer, "vanilla": VanillaTrainer}[objective]):
        """Not of this package."""

    trainer_for(
        tmp_path, "clm", clm_tokenizer, objective=objective, kind=MarginTrainer
    ).save_model()
    text = text_of(tmp_path)
    assert "`MarginTrainer`" in section(text, "Objective")
    assert "Contrastive Weight Tying ([" not in text
    assert "ross-entropy" not in text
    assert "pretrained" not in introduction(tmp_path)  # which nobody knows


def test_a_readme_that_a_user_wrote_is_kept(tmp_path, clm_tokenizer, caplog):
    trainer = trainer_by_hand(tmp_path, clm_tokenizer)
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n")
    trainer.save_model()
    assert text_of(tmp_path) == "---\nlicense: mit\n---\n\n# Mine\n"
    assert str(tmp_path / "README.md") in caplog.text
    (tmp_path / "README.md").unlink()
    trainer.save_model()
    (tmp_path / "README.md").write_text(text_of(tmp_path) + "\nA user's own words.\n")
    trainer.create_model_card(tags="x", dataset="y")  # that of the parent does not take its place
    assert text_of(tmp_path).endswith("A user's own words.\n")
    trainer.save_model()  # other weights, for all it knows
    assert "A user's own words." not in text_of(tmp_path)


@pytest.mark.slow
def test_a_card_says_which_weights_the_training_started_from(here, tmp_path, text_file):
    flags = f"--train_file {text_file} --max_seq_length 16 --max_steps 1 --use_cpu true --license mpl-2.0".split()
    run_pretrain.main(
        ["--model_name_or_path", str(here / "decoder"), *flags, "--output_dir", str(tmp_path)]
    )
    assert "continued from `decoder`" in introduction(tmp_path)
    assert read_card(tmp_path).data.license == "mpl-2.0"


def test_a_card_that_cannot_be_written_loses_nothing(tmp_path, clm_tokenizer, caplog):
    (tmp_path / "README.md").mkdir()
    trainer = trainer_by_hand(tmp_path, clm_tokenizer)
    trainer.train()
    trainer.save_model()
    assert "A model card could not be written" in caplog.text
    assert (
        transformers.GPT2Model.from_pretrained(tmp_path)
        and load_token_counts(tmp_path)[1]["tokens_seen"] == 96
    )


def test_a_result_names_the_held_out_file_without_its_path():
    data_args = DataArguments(train_file=["a.txt"], validation_file=["../held/out.txt"])
    figures = {"eval_accuracy": 0.5, "eval_predicted_tokens": 14}
    (result,) = model_card.held_out_results(figures, "clm", data_args, "trunk")
    assert result.dataset_name == "out.txt"
