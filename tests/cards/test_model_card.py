"""Model cards as users find them: true, whole, valid, and with lines of Python that run."""

import contextlib
import copy
import io
import json
import math
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
import yaml
from builders import make_trainer, tiny_model
from huggingface_hub import ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    GPTNeoXConfig,
    GPTNeoXModel,
    LlamaConfig,
    LlamaModel,
)

from headless_trainer.arguments import DataArguments, ModelArguments
from headless_trainer.cards import facts as card_facts
from headless_trainer.cards import model_card
from headless_trainer.cards import usage as card_usage
from headless_trainer.cards.file import read_card
from headless_trainer.cli import lm_head as run_lm_head
from headless_trainer.cli import pretrain as run_pretrain
from headless_trainer.runtime.checkpoints import load_token_counts, save_token_counts
from headless_trainer.trainers.pretraining import PretrainingTrainer

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"
SMALL = "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,max_position_embeddings=32"
LOOKED_AT = [
    "decoder",
    "decoder/checkpoint-2",
    "encoder",
    "vanilla",
    "vanilla/checkpoint-2",
    "decoder-lm",
    "encoder-lm",
]
LOOKED_AT += ["embeddings", "tuned", "tuned/checkpoint-2", "tuned-encoder"]
CITED = "Headless Language Models: Learning without Predicting with Contrastive Weight Tying"


def argv(*values) -> list[str]:
    return [str(value) for value in values]


@pytest.fixture(scope="module")
def here(tmp_path_factory, text_lines) -> Path:
    """A folder with models of every kind that the scripts make, each with its card."""
    folder = tmp_path_factory.mktemp("cards")
    (folder / "lines.txt").write_text("\n".join(text_lines) + "\n", encoding="utf-8")
    data = argv("--train_file", folder / "lines.txt", "--max_seq_length", 16, "--validation_split_percentage", 10)
    steps = argv(
        "--max_steps", 4, "--save_steps", 2, "--logging_steps", 1, "--eval_strategy", "steps", "--eval_steps", 2
    )
    steps += argv("--use_cpu", "true", "--disable_tqdm", "true", "--per_device_train_batch_size", 4, *data)
    secrets = argv("--token", TOKEN, "--hub_token", TOKEN, "--run_name", f"a run of {folder}")
    new = argv("--config_overrides", SMALL, "--train_tokenizer", "--vocab_size", 300, *steps, *secrets)

    def out(name: str) -> list[str]:
        return ["--output_dir", str(folder / name)]

    def source(name: str) -> list[str]:
        return ["--model_name_or_path", str(folder / name)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "codecarbon", None)  # nothing is measured where it is installed
        decoder = ["--model_type", "gpt_neox", "--negatives", "step", "--gradient_accumulation_steps", "2"]
        decoder += ["--learning_rate", "3e-3", "--license", "mit", "--language", "en"]
        run_pretrain.main([*new, *decoder, *out("decoder")])
        run_pretrain.main([*new, "--model_type", "bert", "--tokenizer_type", "wordpiece", *out("encoder")])
        vanilla = ["--model_type", "gpt_neox", "--objective", "vanilla", "--head_bias", "prior"]
        run_pretrain.main([*new, *vanilla, *out("vanilla")])
        run_lm_head.main([*source("decoder"), *out("decoder-lm")])
        run_lm_head.main([*source("encoder"), *out("encoder-lm")])
        run_lm_head.main(
            [*source("decoder"), *out("embeddings"), "--init", "embeddings", "--do_eval", "--use_cpu", "true", *data]
        )
        corpus = ["--counts_from", "corpus", *steps, "--do_train"]
        run_lm_head.main([*source("decoder/checkpoint-2"), *out("tuned"), *corpus])
        run_lm_head.main([*source("encoder"), *out("tuned-encoder"), *steps, "--do_train", "--freeze_trunk"])
    return folder


def text_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def introduction(folder: Path) -> str:
    """What stands between the title and the next heading."""
    return re.search(r"^# [^\n]*\n\n(.*?)\n\n## ", text_of(folder), re.MULTILINE | re.DOTALL).group(1)


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next one."""
    return re.search(rf"^#+ {re.escape(title)}\n\n(.*?)(?=\n\n#+ |\Z)", text, re.MULTILINE | re.DOTALL).group(1)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)


# What they say -------------------------------------------------------------------------------------------------------------


def test_every_folder_with_weights_has_a_card(here):
    folders = {path.parent for path in here.rglob("model.safetensors")}
    assert len(folders) == 8 + 2 * 5  # models, and two checkpoints of each training
    assert all((folder / "README.md").is_file() for folder in folders)
    assert not list(here.rglob("README.md.incomplete"))


def test_a_trunk_says_that_it_is_no_language_model(here):
    assert introduction(here / "decoder") == (
        "This is the trunk of a causal language model, a `GPTNeoXModel`, pretrained without a vocabulary head.\n"
        "It turns a text into one vector of width 16 for each token, made of that token and those before it.\n"
        "It does not generate: it has no head, and `AutoModelForCausalLM` would give it one of random weights."
    )
    assert introduction(here / "encoder") == (
        "This is the trunk of a masked language model, a `BertModel`, pretrained without a vocabulary head.\n"
        "It turns a text into one vector of width 16 for each token, made of the whole text.\n"
        "It does not fill masks: it has no head, and `AutoModelForMaskedLM` would give it one of random weights."
    )


FOLDED = (
    "The bias of its head is folded into the head's weights and the last LayerNorm, so the outputs of the trunk in it are "
    "shifted and scaled; headless_trainer undoes this where it trains the trunk on.\n"
)


def test_a_language_model_says_where_its_head_comes_from(here):
    instructions = f"\n{FOLDED}It continues texts, and was not trained to follow instructions."
    assert introduction(here / "vanilla") == (
        "This is a causal language model, a `GPTNeoXForCausalLM`, pretrained with cross-entropy over its vocabulary."
        + instructions
    )
    made = "made without further training of `{}`, which was pretrained without a vocabulary head.\n"
    prior = (
        "Its head is the input embedding, with the log frequency of each token in its pretraining added to the scores."
    )
    assert introduction(here / "decoder-lm") == (
        f"This is a causal language model, a `GPTNeoXForCausalLM`, {made.format('decoder')}{prior}{instructions}"
    )
    assert introduction(here / "encoder-lm") == (
        f"This is a masked language model, a `BertForMaskedLM`, {made.format('encoder')}{prior}"
    )
    assert f"{made.format('decoder')}Its head is the input embedding.\n" in introduction(here / "embeddings")


def test_a_tuned_model_says_what_it_was_made_of(here):
    said = (
        "This is a causal language model, a `GPTNeoXForCausalLM`, made of `decoder/checkpoint-2`, which was pretrained "
        "without a vocabulary head, and then fine-tuned with cross-entropy over the vocabulary for {} optimizer steps.\n"
        "Its head began as the input embedding, with the log frequency of each token in `lines.txt` added to the scores.\n"
    )
    end = "It continues texts, and was not trained to follow instructions."
    assert introduction(here / "tuned") == said.format(4) + FOLDED + end
    apart = (
        "A bias of its head is trained beside it, which `from_pretrained` leaves out of this checkpoint; the model that is "
        "saved at the end of the run has it in its weights.\n"
    )
    assert introduction(here / "tuned" / "checkpoint-2") == said.format(2) + apart + end
    assert apart in introduction(here / "vanilla" / "checkpoint-2")
    assert introduction(here / "tuned-encoder").endswith("added to the scores.\nOnly the head was trained.")


def test_objectives(here):
    text = section(text_of(here / "decoder"), "Objective")
    logs = [logs for logs in read_history(here / "decoder") if "pool_size" in logs]
    sizes, distinct = ([logs[name] for logs in logs] for name in ("pool_size", "pool_tokens"))
    assert text == (
        "Contrastive Weight Tying ([arXiv 2309.08351](https://arxiv.org/abs/2309.08351)): the output at each predicted "
        "position must pick the input embedding of its target token among those of the targets of the same optimizer step.\n"
        f"This pool held {sum(sizes) / 4:g} targets on average (K), of which {round(sum(distinct) / 4, 1):g} were distinct "
        "(U).\nEach token is predicted from those before it."
    )
    assert sizes == [120.0] * 4  # two forwards of four rows of 16 tokens, of which 15 are predicted
    assert section(text_of(here / "encoder"), "Objective").endswith(
        "15 % of the tokens are predicted; of these, 80 % become the mask token, 10 % another token, and 10 % stay as they are."
    )
    want = (
        "Cross-entropy over the vocabulary, at the predicted positions.\nEach token is predicted from those before it."
    )
    assert section(text_of(here / "vanilla"), "Objective") == want


def read_history(folder: Path) -> list[dict]:
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


def test_data_and_tokens(here, text_lines):
    rows = dict(line.removeprefix("- ").split(": ") for line in section(text_of(here / "decoder"), "Data").splitlines())
    assert rows["Texts"] == "the local file `lines.txt`"
    assert rows["Held out"] == "10 % of the documents"
    assert rows["Rows"] == "documents joined, then cut to 16 tokens"
    tokens, count = re.fullmatch(r"([\d,]+) tokens in (\d+) rows", rows["Training set"]).groups()
    assert int(tokens.replace(",", "")) == 16 * int(count)
    assert rows["Seen in training"] == f"512 tokens, {round(32 / int(count), 2):g} epochs"  # 4 steps of 8 rows
    assert section(text_of(here / "decoder"), "Training").startswith(
        "4 optimizer steps of 8 rows (4 a forward x 2 forwards x 1 process)."
    )
    assert section(text_of(here / "decoder" / "checkpoint-2"), "Data").count("256 tokens") == 1


def test_parameters_with_and_without_a_head(here):
    model = "## Model\n\n- Architecture: `GPTNeoXModel`, 1 layer, width 16, 2 attention heads, 32 positions\n"
    assert model in text_of(here / "decoder")
    table = section(text_of(here / "decoder"), "Model").split("\n\n")[1].splitlines()
    tokens = len(yaml.safe_load((here / "decoder" / "tokenizer.json").read_text())["model"]["vocab"])
    own, rest = 16 * tokens, 2 * 32 + 16 * 48 + 48 + 16 * 16 + 16 + 2 * 16 * 32 + 32 + 16 + 32
    assert table[2:] == [
        f"| token embedding, {tokens} x 16 | {own:,} |",
        f"| rest of the trunk | {rest:,} |",
        f"| head | none; one over the vocabulary would have {own:,} |",
        f"| all | {own + rest:,} |",
    ]
    assert section(text_of(here / "decoder-lm"), "Model").endswith(f"| head | {own:,} |\n| all | {2 * own + rest:,} |")
    # A checkpoint holds the bias of its head beside the weights; the end of the run has it in them.
    with_bias = section(text_of(here / "vanilla" / "checkpoint-2"), "Model")
    assert f"| head | {own + tokens:,} |" in with_bias
    assert f"| head | {own:,} |" in section(text_of(here / "vanilla"), "Model")
    assert "| head, which shares the embedding |" in section(text_of(here / "encoder-lm"), "Model")


def test_settings_that_differ_from_the_defaults_and_no_others(here):
    table = section(text_of(here / "decoder"), "Training").split("\n\n")[1]
    assert table.splitlines()[2:] == [
        "| learning_rate | 0.003 |",
        "| lr_scheduler_type | linear |",
        "| optim | adamw_torch_fused |",
        "| seed | 42 |",
    ]
    assert "| head_bias | prior |" in section(text_of(here / "vanilla"), "Training")
    assert "The other settings have the defaults of `LMHeadArguments`." in text_of(here / "tuned")


def test_curve_and_results_are_those_of_the_logs(here):
    history = read_history(here / "decoder")
    held_out = [logs for logs in history if "eval_loss" in logs]
    trained = {logs["step"]: logs for logs in history if "loss" in logs}
    lines = [line.strip("| ").split(" | ") for line in section(text_of(here / "decoder"), "Training").splitlines()]
    header = ["step", "tokens", "loss (nats)", "floor (nats)", "held-out accuracy", "held-out perplexity"]
    rows = lines[lines.index(header) + 2 :][:2]
    assert [row[0] for row in rows] == ["2", "4"] and [row[1] for row in rows] == ["256", "512"]
    for row, logs in zip(rows, held_out[:2], strict=True):
        assert row[2] == f"{trained[logs['step']]['loss']:.3f}"
        assert row[4:] == [f"{100 * logs['eval_accuracy']:.2f}%", f"{logs['eval_perplexity']:,.1f}"]
    results = read_card(here / "decoder").data.eval_results
    names = [(result.metric_type, result.metric_name) for result in results]
    assert names == [("accuracy", "accuracy of the free head"), ("perplexity", "perplexity of the free head")]
    assert results[1].metric_value == pytest.approx(held_out[-1]["eval_perplexity"], rel=1e-5)
    assert [result.metric_name for result in read_card(here / "encoder").data.eval_results][1] == (
        "cross-entropy (nats) of the free head"
    )
    # A checkpoint has the evaluation of its own step.
    results = read_card(here / "decoder" / "checkpoint-2").data.eval_results
    assert results[1].metric_value == pytest.approx(held_out[0]["eval_perplexity"], rel=1e-5)


def test_a_long_curve_is_thinned_and_keeps_its_end():
    history = [{"step": step, "loss": 5.0, "tokens_seen": 10 * step} for step in range(1, 101)]
    lines = card_facts.curve(history).splitlines()
    assert lines[0] == "| step | tokens | loss (nats) |"
    assert [int(line.split(" | ")[0].strip("| ")) for line in lines[2:]] == [1, 21, 41, 60, 80, 100]
    assert card_facts.curve([]) is None


def test_what_the_pretraining_was_comes_along(here):
    earlier = text_of(here / "decoder-lm").partition("## Pretraining of `decoder`\n")[2]
    own = text_of(here / "decoder").partition("## Pretraining\n")[2].partition("\n## Evaluation")[0]
    assert earlier.startswith(own.replace("(loss.png)", "(decoder_loss.png)").rstrip())
    assert (here / "decoder-lm" / "decoder_loss.png").read_bytes() == (here / "decoder" / "loss.png").read_bytes()
    assert "\n## Fine-tuning\n" in text_of(here / "tuned")
    assert "\n## Pretraining of `decoder/checkpoint-2`\n" in text_of(here / "tuned")
    assert "2 optimizer steps of 8 rows" in text_of(here / "tuned")


# What is true of all -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOOKED_AT)
def test_metadata_are_what_the_hub_takes(here, name):
    """The rules that huggingface_hub has on this side of its request: `ModelCard.validate` asks the Hub itself.

    The block between the dashes is found by the Hub's own pattern, is a mapping, and is written again as it was; its
    model-index has every name that `EvalResult` needs, plain numbers, and survives the way there and back.
    """
    text = text_of(here / name)
    assert REGEX_YAML_BLOCK.match(text)
    card = ModelCard.load(here / name / "README.md")
    assert str(card) == text
    data = yaml.safe_load(REGEX_YAML_BLOCK.match(text).group(2))
    assert data == card.data.to_dict()
    known = {"library_name", "pipeline_tag", "tags", "license", "language", "model-index"}
    assert set(data) <= known and not [value for value in data.values() if value in (None, [], "")]
    tags = {"decoder": "feature-extraction", "encoder": "feature-extraction", "encoder-lm": "fill-mask"}
    tags |= {"tuned-encoder": "fill-mask"}
    assert data["pipeline_tag"] == tags.get(name.partition("/")[0], "text-generation")
    assert data["library_name"] == "transformers" and data["tags"][0] == "headless-trainer"
    assert ("contrastive-weight-tying" in data["tags"]) == (not name.startswith("vanilla")) == (CITED in text)
    for result in card.data.eval_results or ():
        assert isinstance(result.metric_value, float) and result.dataset_type == "local"
        assert result.dataset_name == "held-out part of lines.txt"
        assert result.task_type in ("text-generation", "fill-mask")


def test_licence_and_language_are_those_given(here):
    for name in ("decoder", "decoder/checkpoint-2", "decoder-lm", "tuned", "tuned/checkpoint-2"):
        data = read_card(here / name).data
        assert (data.license, data.language) == ("mit", ["en"]), name
    for name in ("encoder", "encoder-lm", "vanilla"):
        data = read_card(here / name).data
        assert (data.license, data.language) == (None, None), name


@pytest.mark.parametrize("name", LOOKED_AT)
def test_nothing_that_is_nobodys_business_and_nothing_unknown(here, name):
    text = text_of(here / name)
    assert TOKEN not in text and str(here) not in text
    assert not re.search(r"(?<![\w.])/(?!/)[a-z]+/", re.sub(r"https://\S+", "", text)), "a path"
    assert not re.search(r"\bNone\b|\bnan\b|\binf\b|\[\]|\{\}|\$\w|\{\{|\{%", text)
    assert "\n\n\n" not in text and text.endswith("\n") and not text.endswith("\n\n")
    assert not re.search(r"[ \t]$", text, re.MULTILINE)


@pytest.mark.parametrize("name", LOOKED_AT)
def test_pictures_are_there_tables_are_even_and_headings_have_content(here, name):
    text = text_of(here / name)
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert all((here / name / picture).is_file() for picture in pictures)
    assert bool(pictures) == ("checkpoint" not in name)
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert tables
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    headings = list(re.finditer(r"^(#+) .+$", re.sub(r"```.*?```", "a block", text, flags=re.DOTALL), re.MULTILINE))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        end = following.start() if following else len(heading.string)
        deeper = following is not None and len(following.group(1)) > len(heading.group(1))
        assert heading.string[heading.end() : end].strip() or deeper, heading.group()
    assert not headings[-1].group().startswith("###")


@pytest.mark.parametrize("name", LOOKED_AT)
def test_the_lines_of_python_run_as_printed(here, name, monkeypatch):
    monkeypatch.chdir(here)  # beside the folder
    text = text_of(here / name)
    code = blocks(text, "python")
    assert len(code) == 1
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), torch.random.fork_rng():
        exec(compile(code[0], name, "exec"), {})
    if "feature-extraction" in text:
        assert re.fullmatch(r"torch\.Size\(\[\d+, 16\]\) torch\.Size\(\[16\]\)\n", printed.getvalue())
    elif "fill-mask" in text:
        assert len(printed.getvalue().splitlines()) == 5
    elif "checkpoint" not in name:
        assert "It prints:" in text and blocks(text, "text") == [printed.getvalue().removesuffix("\n")]
    assert ("It prints:" in text) == (name in ("vanilla", "decoder-lm", "embeddings", "tuned"))


@pytest.mark.parametrize("name", ["decoder", "encoder/checkpoint-2"])
def test_the_command_makes_a_language_model(here, name, tmp_path, monkeypatch):
    command = blocks(text_of(here / name), "bash")
    assert len(command) == 1
    program, script, *arguments = shlex.split(command[0])
    assert (program, script) == ("headless-trainer", "lm-head")
    assert arguments == ["--model_name_or_path", name, "--output_dir", f"{name.rpartition('/')[2]}-lm"]
    monkeypatch.chdir(here)
    run_lm_head.main([*arguments[:3], str(tmp_path / "lm")])
    assert read_card(tmp_path / "lm").data.pipeline_tag in ("text-generation", "fill-mask")


# Trainers made by hand -----------------------------------------------------------------------------------------------------


def trainer_by_hand(folder, tokenizer, model=None, **settings) -> PretrainingTrainer:
    model = model or tiny_model("clm", 300, layers=1, dropout=0.1)
    rows = [{"input_ids": list(range(start, start + 8))} for start in range(12)]
    parameters = {name: settings.pop(name) for name in ("token_counts",) if name in settings}
    settings = {"max_steps": 2, "save_strategy": "no"} | settings
    return make_trainer(folder, model, rows, settings, eval_dataset=rows[:2], processing_class=tokenizer, **parameters)


def test_a_model_saved_by_hand_has_a_card_too(tmp_path, clm_tokenizer):
    trainer = trainer_by_hand(tmp_path / "run", clm_tokenizer)
    trainer.train()
    trainer.save_model()
    text = text_of(tmp_path / "run")
    assert text.startswith("---\nlibrary_name: transformers\npipeline_tag: feature-extraction\n")
    assert "- Training set: 12 rows\n" in text and "- Texts:" not in text and "## Evaluation" not in text
    trainer.save_model(str(tmp_path / "copy"))
    assert '"copy"' in text_of(tmp_path / "copy") and '"run"' in text


def test_a_head_with_a_bias_of_its_own_is_counted_as_it_leaves_the_run(tmp_path, clm_tokenizer):
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, vocab_size=300)
    model = GPT2LMHeadModel(config)
    settings = {"objective": "vanilla", "head_bias": "prior"}
    trainer = trainer_by_hand(
        tmp_path, clm_tokenizer, model, token_counts=torch.ones(300, dtype=torch.long), **settings
    )
    trainer.save_model()
    assert "| head | 4,800 |\n" in text_of(tmp_path)  # 300 x 16, untied, with the bias in it


def test_figures_of_another_step_are_not_those_of_a_checkpoint(tmp_path, clm_tokenizer):
    steps = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 2}
    trainer_by_hand(tmp_path, clm_tokenizer, **steps, max_steps=4).train()
    found = [read_card(tmp_path / f"checkpoint-{step}").data.eval_results for step in (1, 2, 3)]
    assert [bool(results) for results in found] == [False, True, False]


def test_the_best_checkpoint_is_named_and_its_figures_are_given(tmp_path, clm_tokenizer):
    steps = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 3}
    trainer = trainer_by_hand(tmp_path, clm_tokenizer, **steps, load_best_model_at_end=True, learning_rate=3.0)
    trainer.train()
    trainer.save_model()
    held_out = {logs["step"]: logs for logs in trainer.state.log_history if "eval_loss" in logs}
    best = min(held_out, key=lambda step: held_out[step]["eval_loss"])
    assert best < 3  # the rate is far too high
    said = (
        f"rows (8 a forward x 1 forward x 1 process).\nThe weights are those after step {best}, the best by `loss`.\n"
    )
    assert said in text_of(tmp_path)
    results = {step: read_card(tmp_path / f"checkpoint-{step}").data.eval_results for step in held_out}
    assert read_card(tmp_path).data.eval_results == results[best] != results[3]
    assert "The weights are those" not in text_of(tmp_path / f"checkpoint-{best}")


def test_parameters_of_the_trunk_are_those_below_its_name(tmp_path):
    save_file(
        {"model.a": torch.ones(2, 3), "model_head.b": torch.ones(5)}, tmp_path / "model-00001-of-00002.safetensors"
    )
    save_file(
        {"model.c.d": torch.ones(()), "lm_head.weight": torch.ones(7)}, tmp_path / "model-00002-of-00002.safetensors"
    )
    save_file({"token_counts": torch.ones(99)}, tmp_path / "token_counts.safetensors")
    assert card_facts.parameter_counts(tmp_path, "model") == (7, 12)
    assert card_facts.parameter_counts(tmp_path, None) == (19, 0)


def test_what_a_decoder_cannot_read_is_not_given_to_it(mlm_tokenizer, clm_tokenizer):
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 300}
    decoder, neox = (
        GPT2LMHeadModel(GPT2Config(**shape)),
        GPTNeoXModel(GPTNeoXConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)),
    )
    encoder = BertModel(BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=300))
    typed = copy.deepcopy(mlm_tokenizer)
    typed.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    options = [card_usage.usage_facts("x", model, typed)["options"] for model in (decoder, neox, encoder)]
    assert options == [", return_token_type_ids=False"] * 2 + [""]
    usage = card_usage.usage_facts("x", decoder, clm_tokenizer)
    assert usage["options"] == "" and usage["beginning"] == '"<|endoftext|>"'
    assert usage["generation"] == "max_new_tokens=40, do_sample=True, top_p=0.9, temperature=0.8"


def test_settings_are_put_into_words(tmp_path, clm_tokenizer):
    settings = {"temperature": 0.5, "isolate_documents": True, "adam_beta2": 0.98, "warmup_steps": 1}
    trainer = trainer_by_hand(tmp_path / "run", clm_tokenizer, **settings)
    trainer.train()
    trainer.save_model()
    text = text_of(tmp_path / "run")
    assert "those of the targets of the same forward pass.\n" in text
    assert "\nScores were divided by a temperature of 0.5.\n" in text
    assert "\nDocuments in one row do not see each other.\n" in text
    assert "| adam_beta2 | 0.98 |\n" in text and "| warmup_steps | 1 |\n" in text and "| temperature | 0.5 |\n" in text


def test_drawn_negatives_are_put_into_words(tmp_path, clm_tokenizer):
    trainer = trainer_by_hand(tmp_path / "run", clm_tokenizer, pool_size=6, sampled_negatives=1000)
    trainer.train()
    trainer.save_model()
    text = text_of(tmp_path / "run")
    assert "of the same forward pass, in groups of at most 6 predictions, and 1,000 tokens drawn in each step" in text
    assert " drawn in each step from the vocabulary.\n" in text


def test_a_name_on_the_hub_is_used_where_the_model_goes_there(tmp_path, clm_tokenizer):
    trainer = trainer_by_hand(tmp_path / "run", clm_tokenizer)
    trainer.args.push_to_hub, trainer.args.hub_model_id = True, "someone/some model"
    model_card_of = {}
    for folder in (tmp_path / "run", tmp_path / "copy"):
        trainer._save(str(folder))
        save_token_counts(folder, trainer.token_counts, {"tokens_seen": 0, "train_seconds": 0.0})
        model_card.write_model_card(trainer, folder)
        model_card_of[folder.name] = text_of(folder)
    assert 'from_pretrained("someone/some model")' in model_card_of["run"]
    assert "--model_name_or_path 'someone/some model' --output_dir 'some model-lm'" in model_card_of["run"]
    assert 'from_pretrained("copy")' in model_card_of["copy"]


def test_rows_that_documents_share_are_named(tmp_path, clm_tokenizer):
    trainer = trainer_by_hand(tmp_path, clm_tokenizer)
    trainer.args.isolate_documents = True
    trainer.facts.data_args = DataArguments(train_file=["a.txt"], max_seq_length=8, line_by_line=True)
    trainer.train()
    trainer.save_model()
    assert "- Rows: whole documents, as many as fit, each cut to 8 tokens\n" in text_of(tmp_path)


def test_sources_on_the_hub_are_linked(tmp_path, clm_tokenizer):
    trainer = trainer_by_hand(tmp_path, clm_tokenizer)
    source = {"dataset_name": "some/texts", "dataset_config_name": "en", "dataset_revision": "abc"}
    trainer.facts.data_args = DataArguments(**source, max_seq_length=8, line_by_line=True)
    trainer.facts.model_args = ModelArguments(model_name_or_path="someone/base")
    trainer.train()
    trainer.state.log_history.append(
        {"step": 2, "eval_loss": 1.0, "eval_accuracy": 0.5, "eval_perplexity": math.inf}
        | {"eval_cross_entropy": 800.0, "eval_predicted_tokens": 14}
    )
    trainer.save_model()
    text, data = text_of(tmp_path), read_card(tmp_path).data
    assert (
        "- Texts: [some/texts](https://huggingface.co/datasets/some/texts), configuration `en`, revision `abc`\n"
        in text
    )
    assert "- Held out:" not in text and "- Rows: one document in each, cut to 8 tokens\n" in text
    assert introduction(tmp_path).endswith(
        "Its pretraining began with the weights of [someone/base](https://huggingface.co/someone/base)."
    )
    assert ", that of [someone/base](https://huggingface.co/someone/base)\n" in text
    assert (data.base_model, data.datasets) == ("someone/base", ["some/texts"])
    described = [(each.dataset_type, each.dataset_config, each.dataset_split) for each in data.eval_results]
    assert described == [("some/texts", "en", "held out")] * 2
    # A perplexity beyond all numbers gives way to the cross-entropy behind it.
    assert [each.metric_type for each in data.eval_results] == ["accuracy", "cross_entropy"]


def test_a_folder_is_not_taken_for_a_name_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert card_facts.on_hub("runs/bert") and card_facts.on_hub("gpt2")
    (tmp_path / "runs" / "bert").mkdir(parents=True)
    assert not card_facts.on_hub("runs/bert") and not card_facts.on_hub("/runs/bert") and not card_facts.on_hub(None)
    assert (
        card_facts.linked("runs/bert") == "`bert`" and card_facts.linked("runs/bert/checkpoint-5") != "`checkpoint-5`"
    )
    (tmp_path / "runs" / "bert" / "checkpoint-5").mkdir()
    assert card_facts.linked("runs/bert/checkpoint-5") == "`bert/checkpoint-5`"


def test_files_are_named_without_their_paths():
    files = [f"far/away/{number}.txt" for number in range(7)]
    data_args = DataArguments(train_file=files, validation_file=["../held/out.txt"])
    assert card_facts.data_name(data_args) == "0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 others"
    assert card_facts.data_name(DataArguments()) == "the documentation on the machine that trained it"
    assert card_facts._texts(data_args)["Held out"] == "`out.txt`"


def test_a_trunk_without_a_layer_norm_is_to_be_trained(tmp_path, clm_tokenizer):
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=300
    )
    trainer = trainer_by_hand(tmp_path / "llama", clm_tokenizer, LlamaModel(config))
    trainer.save_model()
    assert blocks(text_of(tmp_path / "llama"), "bash") == [
        "headless-trainer lm-head --model_name_or_path llama --output_dir llama-lm --init embeddings --do_train "
        "--train_file corpus.txt"
    ]


def test_without_a_tokenizer_there_is_nothing_to_run(tmp_path):
    trainer = trainer_by_hand(tmp_path / "run", None)
    trainer.save_model()
    text = text_of(tmp_path / "run")
    assert "## Use" not in text and "- Tokenizer" not in text and "```python" not in text


def test_a_start_from_other_weights_is_said(here, tmp_path, text_file):
    flags = argv("--train_file", text_file, "--max_seq_length", 16, "--max_steps", 1, "--use_cpu", "true", "--license")
    run_pretrain.main(["--model_name_or_path", str(here / "decoder"), *flags, "mpl-2.0", "--output_dir", str(tmp_path)])
    assert introduction(tmp_path).endswith("\nIts pretraining began with the weights of `decoder`.")
    assert "\n## Pretraining of `decoder`\n" in text_of(tmp_path)
    assert read_card(tmp_path).data.license == "mpl-2.0"


def test_somebody_elses_readme_is_left_alone(tmp_path, clm_tokenizer, caplog):
    trainer = trainer_by_hand(tmp_path, clm_tokenizer)
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n")
    trainer.save_model()
    trainer.create_model_card()
    assert text_of(tmp_path) == "---\nlicense: mit\n---\n\n# Mine\n"
    assert "is not a card of headless_trainer, so it is left as it is and no card is written" in caplog.text


def test_a_card_that_cannot_be_written_loses_nothing(tmp_path, clm_tokenizer, caplog):
    trainer = trainer_by_hand(tmp_path, clm_tokenizer)
    (tmp_path / "README.md").mkdir()
    trainer.train()
    trainer.save_model()
    assert re.search(r"A model card could not be written \(\w+Error: .*\)\. Nothing else is lost\.", caplog.text)
    assert GPT2Model.from_pretrained(tmp_path) and load_token_counts(tmp_path)[1]["tokens_seen"] == 96


def test_the_parents_card_does_not_take_its_place(tmp_path, clm_tokenizer):
    trainer = trainer_by_hand(tmp_path, clm_tokenizer)
    trainer.save_model()
    assert "pipeline_tag: feature-extraction" in text_of(tmp_path)
    (tmp_path / "README.md").write_text(text_of(tmp_path) + "\nA user's own words.\n")
    trainer.create_model_card(tags="x", dataset="y")
    assert text_of(tmp_path).endswith("A user's own words.\n")
    trainer.save_model()  # other weights, for all it knows
    assert "A user's own words." not in text_of(tmp_path)


def test_only_the_main_process_writes(tmp_path, clm_tokenizer, monkeypatch):
    trainer = trainer_by_hand(tmp_path, clm_tokenizer)
    trainer.save_model()
    (tmp_path / "README.md").unlink()
    monkeypatch.setattr(trainer, "is_world_process_zero", lambda: False)
    model_card.write_model_card(trainer)
    assert not (tmp_path / "README.md").exists()


def test_weights_in_other_files_leave_the_parameters_out(tmp_path, clm_tokenizer):
    trainer = trainer_by_hand(tmp_path, clm_tokenizer)
    trainer.save_model()
    (tmp_path / "model.safetensors").unlink()
    model_card.write_model_card(trainer)
    assert "| parameters |" not in text_of(tmp_path) and "\n## Model\n\n- Architecture:" in text_of(tmp_path)


@pytest.mark.parametrize(
    ("number", "noun", "want"),
    [(1, "epoch", "1 epoch"), (2.5, "epoch", "2.5 epochs"), (1.0, "epoch", "1 epoch"), (10.0, "row", "10 rows")]
    + [(1000, "process", "1,000 processes"), (0, "row", "0 rows")],
)
def test_counts_in_words(number, noun, want):
    assert card_facts.count(number, noun) == want


@pytest.mark.parametrize("given", ["MIT License", "MIT", "-", "mit\nbase_model: x"])
def test_a_licence_is_one_of_the_hubs_names(given):
    with pytest.raises(ValueError, match=r"license must be one of the Hub's names, such as apache-2.0, mit"):
        ModelArguments(license=given)
    assert ModelArguments(license="cc-by-nc-sa-4.0").license == "cc-by-nc-sa-4.0"


@pytest.mark.parametrize("given", ["English", "EN", "e", "en-US"])
def test_languages_are_codes(given):
    with pytest.raises(
        ValueError, match=re.escape(f"language must hold codes of ISO 639, such as en or deu, got {given!r}")
    ):
        ModelArguments(language=["fr", given])
    assert ModelArguments(language=["fr", "deu", "code", "multilingual"]).language
