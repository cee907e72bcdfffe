"""Configurations, tokenizers and models that the arguments name fit each other, or the reason is
said.
"""

import copy
import json

import pytest
import torch
from architectures import ARCHITECTURES, make_model, multimodal_config, tiny_config
from builders import VOCAB, Tokenizer, attached_head, make_trainer, save, tiny_model, token_rows
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
)

from headless_trainer.arguments import HeadlessTrainingArguments, ModelArguments
from headless_trainer.files import sources
from headless_trainer.models.candidate_head import candidate_matrix
from headless_trainer.models.lm_head import attach_lm_head
from headless_trainer.models.loading import (
    find_tokenizer,
    load_config,
    load_model,
    load_tokenizer,
)
from headless_trainer.models.trunk import check_vocabulary, find_trunk
from headless_trainer.objectives import OBJECTIVES

TINY = "hidden_size=16,num_hidden_layers=2,num_attention_heads=2,intermediate_size=24"


def loaded(tokenizer, objective="headless", task="clm", **settings):
    args = ModelArguments(**settings)
    return load_model(
        args,
        load_config(args),
        tokenizer or load_tokenizer(args),
        objective=OBJECTIVES[objective],
        task=task,
    )


@pytest.fixture
def headless_run(tmp_path, clm_tokenizer):
    """The folder of a headless run of GPT-2, and that of the language model made of it."""
    model = tiny_model("clm", len(clm_tokenizer))
    settings = {"max_steps": 1, "save_strategy": "no"}
    run = make_trainer(tmp_path / "run", model, token_rows(clm_tokenizer), settings)
    run.train()
    run.save_model()
    run.language_model().save_pretrained(tmp_path / "lm")
    return tmp_path / "run", tmp_path / "lm"


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_a_new_model_of_several_modalities_has_a_row_for_each_token(
    objective, tmp_path, clm_tokenizer
):
    folder = str(tmp_path / "config")
    multimodal_config().save_pretrained(folder)
    model = loaded(clm_tokenizer, objective, config_name=folder)
    assert model.get_input_embeddings().num_embeddings == len(clm_tokenizer)
    assert model.config.get_text_config().eos_token_id == clm_tokenizer.eos_token_id


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_a_new_model_takes_nothing_but_its_architecture_from_a_headless_run(
    objective, headless_run, clm_tokenizer
):
    for folder in headless_run:
        config = AutoConfig.from_pretrained(folder)
        model = loaded(clm_tokenizer, objective, config_name=str(folder))
        assert model.config.n_embd == config.n_embd == 16
        assert model.name_or_path == model.config.name_or_path == ""
        assert not hasattr(model.config, "headless_fold")
        # What GPT-2 has by default, and not what the head of the run needs.
        assert model.config.tie_word_embeddings and not config.tie_word_embeddings


@pytest.mark.parametrize(
    "settings",
    [{"tie_word_embeddings": False}, {"config_overrides": "tie_word_embeddings=false"}],
)
def test_a_new_model_from_a_headless_run_is_untied_if_that_is_wanted(
    settings, headless_run, clm_tokenizer
):
    for folder in headless_run:
        model = loaded(clm_tokenizer, "vanilla", config_name=str(folder), **settings)
        assert not model.config.tie_word_embeddings


def test_a_new_model_from_a_run_of_an_untied_language_model_is_untied(tmp_path, clm_tokenizer):
    model = tiny_model("clm", len(clm_tokenizer), "vanilla", tie_word_embeddings=False)
    settings = {"objective": "vanilla", "max_steps": 1, "save_strategy": "no"}
    run = make_trainer(tmp_path, model, token_rows(clm_tokenizer), settings)
    run.train()
    run.save_model()
    again = loaded(clm_tokenizer, "vanilla", config_name=str(tmp_path))
    assert not again.config.tie_word_embeddings


@pytest.fixture
def checkpoint(tmp_path, clm_tokenizer):
    """A folder with a GPT-NeoX language model in bfloat16 and its tokenizer, 10 rows more than
    tokens.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        tiny_config("gpt_neox", vocab_size=len(clm_tokenizer) + 10)
    )
    folder = tmp_path / "checkpoint"
    save(folder, model.to(torch.bfloat16), clm_tokenizer)
    return folder


def test_overrides_as_pairs_and_as_json_by_common_names():
    values = {
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "attn_pdrop": 0.25,
        "tie_word_embeddings": True,
    }
    pairs = "hidden_size=24,num_hidden_layers=3,attn_pdrop=0.25,tie_word_embeddings=true"
    for overrides in (pairs, json.dumps(values)):
        config = load_config(ModelArguments(model_type="gpt2", config_overrides=overrides))
        assert {name: getattr(config, name) for name in values} == values
        # Its own names; the rest as it was.
        assert (config.n_embd, config.n_layer, config.n_positions) == (
            24,
            3,
            1024,
        )


@pytest.mark.parametrize("source", ["model_type", "config_name"])
def test_values_that_follow_from_others_follow_the_overrides(source, tmp_path):
    # Llama derives the heads of keys and values and the width of a head; Qwen3 the kinds of its
    # layers
    def load(model_type):
        if source == "config_name":
            (tmp_path / model_type).mkdir()
            settings = {"model_type": model_type, "rms_norm_eps": 0.5}
            (tmp_path / model_type / "config.json").write_text(json.dumps(settings))
        named = (
            {"config_name": str(tmp_path / model_type)}
            if source == "config_name"
            else {"model_type": model_type}
        )
        return load_config(
            ModelArguments(config_overrides=TINY.replace("heads=2", "heads=4"), **named)
        )

    llama, qwen = load("llama"), load("qwen3")
    assert (llama.num_key_value_heads, llama.head_dim) == (4, 4)
    assert qwen.layer_types == ["full_attention"] * 2
    if source == "config_name":
        assert llama.rms_norm_eps == qwen.rms_norm_eps == 0.5
    llama.vocab_size = 50
    assert AutoModel.from_config(llama)(
        input_ids=torch.tensor([[5, 6]])
    ).last_hidden_state.shape == (1, 2, 16)


@pytest.mark.parametrize(("settings", "text"), [
    ({"model_type": "bert", "config_overrides": "num_hiden_layers=2"}, "'num_hiden_layers'.*'num_hidden_layers'"),
    ({"model_type": "gpt2", "config_overrides": "n_head=5"}, "model_type is 'gpt2' and config_overrides is 'n_head=5', from"),
    ({"model_type": "gpt-neox"}, "model_type 'gpt-neox' .*'gpt_neox'"),
    ({}, "--model_name_or_path, --config_name or --model_type"),
])  # fmt: skip
def test_names_that_are_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        load_config(ModelArguments(**settings))


@pytest.mark.parametrize(("given", "tied"), [(None, False), (True, True), (False, False)])
def test_untied_candidates_go_on_from_what_the_checkpoint_scored_with(
    given, tied, tmp_path, clm_tokenizer
):
    settings = {"model_type": "gpt_neox", "config_overrides": TINY, "tie_word_embeddings": given}
    model = loaded(clm_tokenizer, "vanilla", **settings)
    assert (model.lm_head.weight is model.get_input_embeddings().weight) is tied
    model.save_pretrained(tmp_path)
    trunk = loaded(
        clm_tokenizer, "headless", model_name_or_path=str(tmp_path), tie_word_embeddings=False
    )
    assert torch.equal(candidate_matrix(trunk).weight, model.lm_head.weight)
    trunk.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match="tie_word_embeddings is True but .* has a candidate matrix: leave it out"
    ):
        loaded(
            clm_tokenizer, "headless", model_name_or_path=str(tmp_path), tie_word_embeddings=True
        )


def test_untied_candidates_of_scaled_embeddings_keep_the_scale(tmp_path, clm_tokenizer):
    gemma = AutoModel.from_config(
        tiny_config("gemma3_text", vocab_size=len(clm_tokenizer), head_dim=8)
    )
    gemma.save_pretrained(tmp_path)
    trunk = loaded(
        clm_tokenizer, "headless", model_name_or_path=str(tmp_path), tie_word_embeddings=False
    )
    # The root of 16.
    assert torch.equal(candidate_matrix(trunk).weight, 4 * gemma.get_input_embeddings().weight)


def test_the_tokenizer_of_the_model_or_the_one_that_is_named(checkpoint, mlm_tokenizer, tmp_path):
    with pytest.raises(ValueError, match="--tokenizer_name, or --train_tokenizer"):
        load_tokenizer(ModelArguments(model_type="bert"))
    assert (
        load_tokenizer(ModelArguments(model_name_or_path=str(checkpoint))).eos_token
        == "<|endoftext|>"
    )
    mlm_tokenizer.save_pretrained(tmp_path / "other")
    args = ModelArguments(
        model_name_or_path=str(checkpoint), tokenizer_name=str(tmp_path / "other")
    )
    assert load_tokenizer(args).mask_token == "[MASK]"


def test_a_tokenizer_of_other_ids_than_the_checkpoints_is_warned_of(
    checkpoint, clm_tokenizer, mlm_tokenizer, tmp_path, caplog
):
    larger = copy.deepcopy(clm_tokenizer)
    larger.add_tokens(["the miller crossed"])
    larger.save_pretrained(tmp_path / "larger")
    mlm_tokenizer.save_pretrained(tmp_path / "other")
    training_args = HeadlessTrainingArguments(
        output_dir=str(tmp_path), task="clm", use_cpu=True, report_to="none"
    )

    def found(name: str):
        names = {"model_name_or_path": str(checkpoint), "tokenizer_name": str(tmp_path / name)}
        return find_tokenizer(ModelArguments(**names), training_args, (), 16, None)

    found("larger")
    assert caplog.text == ""
    found("other")
    assert "tokenizer_name is" in caplog.text
    assert str(tmp_path / "other") in caplog.text
    assert "of the 300 tokens" in caplog.text


def test_a_checkpoint_with_another_vocab_size_is_not_told_to_train_a_tokenizer(
    checkpoint, tmp_path, caplog
):
    training_args = HeadlessTrainingArguments(
        output_dir=str(tmp_path), task="clm", use_cpu=True, report_to="none"
    )
    args = ModelArguments(model_name_or_path=str(checkpoint), vocab_size=9_000)
    find_tokenizer(args, training_args, (), 16, None)
    assert "vocab_size is 9000 but the loaded tokenizer has 300 tokens" in caplog.text
    assert "train_tokenizer" not in caplog.text


def test_a_mask_token_is_added_or_an_existing_token_taken(checkpoint):
    plain = load_tokenizer(ModelArguments(model_name_or_path=str(checkpoint)))
    assert plain.mask_token is None
    added = load_tokenizer(ModelArguments(model_name_or_path=str(checkpoint), mask_token="<mask>"))
    assert (added.mask_token, added.mask_token_id, len(added)) == (
        "<mask>",
        len(plain),
        len(plain) + 1,
    )
    assert added("a<mask>b")["input_ids"].count(added.mask_token_id) == 1
    named = load_tokenizer(ModelArguments(tokenizer_name=str(checkpoint)), "elsewhere")
    assert (
        named.get_vocab()
        == plain.get_vocab()
        == load_tokenizer(ModelArguments(), str(checkpoint)).get_vocab()
    )
    taken = load_tokenizer(ModelArguments(model_name_or_path=str(checkpoint), mask_token="z"))
    assert (taken.mask_token_id, len(taken)) == (plain.convert_tokens_to_ids("z"), len(plain))


@pytest.mark.parametrize(("task", "kind"), [("clm", "bpe"), ("mlm", "wordpiece"), ("mlm", "words")])
def test_a_trained_tokenizer_is_saved_and_read_on_resume(task, kind, tmp_path, text_lines, caplog):
    args = ModelArguments(
        model_type="bert", train_tokenizer=True, tokenizer_type=kind, vocab_size=320
    )
    training_args = HeadlessTrainingArguments(
        output_dir=str(tmp_path), task=task, use_cpu=True, report_to="none"
    )
    tokenizer = find_tokenizer(args, training_args, text_lines, 64, None)
    assert (tokenizer.mask_token is None) is (task == "clm")
    assert tokenizer.model_max_length == 64
    loads = ModelArguments(
        model_type="bert", tokenizer_name=str(tmp_path / "tokenizer"), vocab_size=9_000
    )
    assert (
        find_tokenizer(loads, training_args, text_lines, 64, None).get_vocab()
        == tokenizer.get_vocab()
    )
    assert f"vocab_size is 9000 but the loaded tokenizer has {len(tokenizer)} tokens" in caplog.text
    sentence = text_lines[0]
    expected = tokenizer(sentence)["input_ids"]
    assert AutoTokenizer.from_pretrained(tmp_path / "tokenizer")(sentence)["input_ids"] == expected

    folder = tmp_path / "checkpoint-2"
    # So that what is read is seen to be the checkpoint's.
    tokenizer.add_tokens(["the miller crossed"])
    tokenizer.save_pretrained(folder)
    again = find_tokenizer(args, training_args, None, 64, str(folder))  # and no text is read again
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again(sentence)["input_ids"] == tokenizer(sentence)["input_ids"] != expected


def test_a_model_has_a_row_for_the_largest_id_of_a_tokenizer_with_gaps(tmp_path, clm_tokenizer):
    tokenizer = copy.deepcopy(clm_tokenizer)
    tokenizer.get_vocab = lambda: {"a": 1, "b": 15}
    model = loaded(
        tokenizer, task="clm", model_type="gpt2", config_overrides="n_embd=16,n_layer=1,n_head=2"
    )
    assert model.config.vocab_size == 16
    check_vocabulary(model, tokenizer, "x", "resize")
    tokenizer.get_vocab = lambda: {"a": 1, "b": 16}
    with pytest.raises(
        ValueError, match="tokenizer for 'x' has ids up to 16 but the embedding has 16 rows: resize"
    ):
        check_vocabulary(model, tokenizer, "x", "resize")
    model.save_pretrained(tmp_path)
    larger = loaded(tokenizer, model_name_or_path=str(tmp_path), resize_embeddings=True)
    assert larger.get_input_embeddings().num_embeddings == 17


@pytest.mark.parametrize("model_type", ["bert", "roberta", "modernbert", "electra"])
def test_a_new_model_has_the_tokens_and_special_ids_of_its_tokenizer(mlm_tokenizer, model_type):
    overrides = TINY + ",max_position_embeddings=32"
    settings = {
        "model_type": model_type,
        "config_overrides": overrides,
        "attn_implementation": "eager",
    }
    model = loaded(mlm_tokenizer, task="mlm", **settings)
    assert type(model).__name__.endswith("Model") and model.config._attn_implementation == "eager"
    assert (
        model.get_input_embeddings().num_embeddings == model.config.vocab_size == len(mlm_tokenizer)
    )
    for role in ("pad", "bos", "eos", "cls", "sep"):
        if hasattr(model.config, f"{role}_token_id"):
            assert getattr(model.config, f"{role}_token_id") == getattr(
                mlm_tokenizer, f"{role}_token_id"
            ), role
    model(input_ids=torch.tensor([[0, 2, 5, 3]]))


def test_a_new_xlm_knows_padding_by_the_tokenizers_id(mlm_tokenizer):
    overrides = "emb_dim=16,n_layers=1,n_heads=2,max_position_embeddings=32"
    model = loaded(mlm_tokenizer, task="mlm", model_type="xlm", config_overrides=overrides)
    assert model.pad_index == mlm_tokenizer.pad_token_id == 0
    assert model.config.mask_token_id == mlm_tokenizer.mask_token_id


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_models_have_float32_weights_and_checkpoints_go_on_in_float32(
    objective, checkpoint, tmp_path, clm_tokenizer
):
    """Of a language model, and of its trunk."""
    assert AutoConfig.from_pretrained(checkpoint).dtype == torch.bfloat16
    assert loaded(clm_tokenizer, objective, config_name=str(checkpoint)).dtype == torch.float32
    stored = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert stored.dtype == torch.bfloat16
    expected = dict((stored if objective == "vanilla" else find_trunk(stored)).float().state_dict())
    find_trunk(stored).save_pretrained(tmp_path / "trunk")
    for folder in (checkpoint, tmp_path / "trunk")[: 1 if objective == "vanilla" else 2]:
        model = loaded(
            None, objective, model_name_or_path=str(folder), tokenizer_name=str(checkpoint)
        )
        assert type(model).__name__ == (
            "GPTNeoXModel" if objective == "headless" else "GPTNeoXForCausalLM"
        )
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        torch.testing.assert_close(dict(model.state_dict()), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["bert", "modernbert", "electra", "gpt2", "llama", "phi"])
def test_what_becomes_of_the_head_is_said(name, tmp_path, caplog, request):
    """And which architecture has no free head, as `attach_lm_head` finds."""
    task = ARCHITECTURES[name].task
    model, tokenizer = make_model(name, lm=True), request.getfixturevalue(f"{task}_tokenizer")
    model.save_pretrained(tmp_path / "lm")
    trunk = loaded(tokenizer, task=task, model_name_or_path=str(tmp_path / "lm"))
    (said,) = [
        each
        for each in caplog.messages
        if f"vocabulary head of {type(model).__name__} is dropped" in each
    ]
    assert "objective sampled_softmax" in said
    try:
        attach_lm_head(trunk, torch.ones(300, dtype=torch.long))
        assert "gives it a free head" in said
    except ValueError:
        assert "cannot have a free head" in said
    caplog.clear()
    trunk.save_pretrained(tmp_path / "trunk")
    loaded(tokenizer, task=task, model_name_or_path=str(tmp_path / "trunk"))
    assert "is dropped" not in caplog.text


def test_a_head_of_random_weights_is_said(tmp_path, caplog, clm_tokenizer):
    make_model("llama").save_pretrained(tmp_path)
    loaded(clm_tokenizer, "vanilla", model_name_or_path=str(tmp_path))
    assert "lacks lm_head.weight, which starts from random weights" in caplog.text


def test_a_head_with_a_weight_that_its_class_leaves_out_is_refused(tmp_path, clm_tokenizer):
    model = AutoModelForCausalLM.from_config(tiny_config("gpt2", vocab_size=300))
    model.lm_head.bias = torch.nn.Parameter(torch.ones(300))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds lm_head\.bias, which GPT2LMHeadModel ignores"):
        loaded(clm_tokenizer, "vanilla", model_name_or_path=str(tmp_path))


def test_a_checkpoint_with_fewer_layers_than_its_configuration_is_refused(
    headless_run, clm_tokenizer
):
    run, language_model = headless_run
    for folder in headless_run:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"n_layer": config["n_layer"] + 1}))
    lacks = "lacks 12 weights of a gpt2, such as '.*h.2.attn.c_attn.bias': its config.json"
    for objective in ("headless", "vanilla", "sampled_softmax"):
        with pytest.raises(ValueError, match=lacks):
            loaded(clm_tokenizer, objective, model_name_or_path=str(language_model))
    with pytest.raises(ValueError, match=lacks):
        attach_lm_head(run)


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_the_weights_of_a_wrapper_are_refused_by_its_name(tmp_path, clm_tokenizer, objective):
    model = make_model("llama")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    wrapped = {f"_orig_mod.{name}": weight for name, weight in weights.items()}
    save_file(wrapped, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match="names begin with '_orig_mod.', since the result of torch"
    ):
        loaded(clm_tokenizer, objective, model_name_or_path=str(tmp_path))


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_a_tokenizer_larger_than_the_embedding(objective, checkpoint):
    rows, tokenizer = (
        AutoConfig.from_pretrained(checkpoint).vocab_size,
        AutoTokenizer.from_pretrained(checkpoint),
    )
    settings = {"objective": objective, "model_name_or_path": str(checkpoint)}
    before = loaded(tokenizer, **settings)  # fewer tokens than rows: nothing to do
    assert before.get_input_embeddings().num_embeddings == rows == len(tokenizer) + 10

    tokenizer.add_tokens([f"<extra {number}>" for number in range(12)])
    with pytest.raises(
        ValueError, match=f"ids up to {rows + 1} .* {rows} rows.*--resize_embeddings"
    ):
        loaded(tokenizer, **settings)
    model = loaded(tokenizer, **settings, resize_embeddings=True)
    weight = model.get_input_embeddings().weight
    assert len(weight) == model.config.vocab_size == rows + 2
    torch.testing.assert_close(weight[:rows], before.get_input_embeddings().weight)
    assert weight[rows:].isfinite().all()
    if objective == "vanilla":
        assert model.get_output_embeddings().weight.shape == (rows + 2, 16)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_resized_head_that_is_not_tied_is_saved_with_its_bias(name, tmp_path, mlm_tokenizer):
    model = make_model(name, lm=True, vocab_size=290, tie_word_embeddings=False)
    model.get_output_embeddings().bias.data.fill_(1.0)
    model.save_pretrained(tmp_path / "small")
    settings = {"model_name_or_path": str(tmp_path / "small"), "resize_embeddings": True}
    attached_head(loaded(mlm_tokenizer, "vanilla", "mlm", **settings)).model.save_pretrained(
        tmp_path / "large"
    )
    bias = AutoModelForMaskedLM.from_pretrained(tmp_path / "large").get_output_embeddings().bias
    assert bias[:290].eq(1.0).all() and len(bias) == len(mlm_tokenizer)


@pytest.mark.parametrize("name", ["./missing", "~/missing", "/missing", "a/b/c"])
def test_a_path_that_is_not_there_is_not_asked_of_the_hub(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with (
        pytest.raises(OSError, match=f"model '{name}' is not a local folder. Name one"),
        sources.source("model", name),
    ):
        pytest.fail("the Hub was asked")
    for there in ("someone/model", "runs/model"):  # a folder may have the name of an owner
        with sources.source("model", there):
            """Which the Hub may have."""


def test_a_head_that_a_user_resized_keeps_its_trained_bias(tmp_path):
    model = tiny_model("mlm", objective="vanilla", tie_word_embeddings=False)
    model.resize_token_embeddings(VOCAB + 3)
    settings, tokenizer = (
        {"objective": "vanilla", "max_steps": 2, "learning_rate": 0.1},
        Tokenizer(VOCAB + 3),
    )
    run = make_trainer(tmp_path, model, token_rows(tokenizer), settings, processing_class=tokenizer)
    run.train()
    run.save_model()
    bias = run.model.get_output_embeddings().bias
    assert bias.any() and AutoModelForMaskedLM.from_pretrained(
        tmp_path
    ).get_output_embeddings().bias.equal(bias)
