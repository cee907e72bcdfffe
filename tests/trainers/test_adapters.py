"""Adapters of peft under the objectives that keep a model's own head."""

import copy

import pytest
import torch
from builders import (
    VOCAB,
    Gradients,
    Tokenizer,
    labelled_rows,
    make_trainer,
    predictions,
    tiny_model,
)
from packaging.version import Version
from safetensors.torch import load_file
from transformers.integrations.peft import MIN_PEFT_VERSION

from headless_trainer import attach_lm_head
from headless_trainer.files.manifest import read_facts, write_manifest

peft = pytest.importorskip("peft")
TASKS = {"clm": ["c_attn"], "mlm": ["query", "value"]}
TASKS_IN_WORDS = {"clm": "causal", "mlm": "masked"}


def trainer(folder, objective, task, callbacks=(), base=None, lora=None, **settings):
    """A run of an adapter with the settings ``lora`` for the model ``base``."""
    torch.manual_seed(0)
    lora = {"r": 2, "target_modules": TASKS[task], "fan_in_fan_out": task == "clm"} | (lora or {})
    config = peft.LoraConfig(init_lora_weights=False, **lora)
    settings = {
        "objective": objective, "task": task, "max_steps": 4, "save_steps": 2, "learning_rate": 1e-2,
        "train_sampling_strategy": "sequential", "per_device_train_batch_size": 4,
    } | settings  # fmt: skip
    counts = (
        {"token_counts": torch.ones(VOCAB, dtype=torch.long)}
        if objective == "sampled_softmax"
        else {}
    )
    rows = labelled_rows(task, empty=False)
    model = peft.get_peft_model(base or tiny_model(task, objective="vanilla"), config)
    given = {
        "eval_dataset": rows,
        "processing_class": Tokenizer(),
        "callbacks": list(callbacks),
    } | counts
    return make_trainer(folder, model, rows, settings, **given)


@pytest.mark.parametrize("objective", ["vanilla", "sampled_softmax"])
@pytest.mark.parametrize("task", TASKS)
def test_an_adapter_alone_is_trained_saved_and_resumed(tmp_path, objective, task, caplog):
    run = trainer(tmp_path / "a", objective, task)
    before = {name: weight.clone() for name, weight in run.model.named_parameters()}
    run.train()
    changed = {
        name
        for name, weight in run.model.named_parameters()
        if not torch.equal(weight, before[name])
    }
    assert changed == {name for name in before if ".lora_" in name}
    run.save_model()
    assert (tmp_path / "a" / "adapter_config.json").is_file() and not (
        tmp_path / "a" / "model.safetensors"
    ).exists()
    ids = torch.arange(5, 15)[None]
    want = run.model.eval()(input_ids=ids).logits
    read = peft.PeftModel.from_pretrained(
        tiny_model(task, objective="vanilla"), tmp_path / "a"
    ).eval()
    torch.testing.assert_close(read(input_ids=ids).logits, want)
    card = (tmp_path / "a" / "README.md").read_text()
    assert f"an adapter of peft (LORA) for a {TASKS_IN_WORDS[task]} language model" in card
    assert (
        "library_name: peft" in card
        and "More Information Needed" not in card
        and "Kept" not in caplog.text
    )
    again = trainer(tmp_path / "b", objective, task)
    again.train(str(tmp_path / "a" / "checkpoint-2"))
    torch.testing.assert_close(again.model.eval()(input_ids=ids).logits, want, rtol=0, atol=0)


def test_an_adapter_of_a_checkpoint_in_16_bits_is_saved(tmp_path):
    """Its weights stay in the precision in which they were trained."""
    run = trainer(tmp_path, "vanilla", "clm")
    run.train()
    run.saved_dtype = torch.bfloat16
    run.save_model()
    weights = load_file(tmp_path / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


@pytest.mark.parametrize(("setting", "value", "before"), [
    ("r", 4, "2"),
    ("lora_alpha", 16, "8"),
    ("use_rslora", True, "False"),
    ("target_modules", ["c_fc"], r"\['c_attn'\]"),
])  # fmt: skip
def test_an_adapter_with_other_settings_is_refused(tmp_path, setting, value, before):
    trainer(tmp_path / "a", "vanilla", "clm").train()
    again = trainer(tmp_path / "b", "vanilla", "clm", lora={setting: value})
    with pytest.raises(ValueError, match=f"{setting} is .*{before}"):
        again.train(str(tmp_path / "a" / "checkpoint-2"))
    assert again.state.global_step == 0


def test_an_adapter_of_another_base_is_refused(tmp_path):
    trainer(tmp_path / "a", "vanilla", "clm").train()
    checkpoint = str(tmp_path / "a" / "checkpoint-2")
    of_other_weights = tiny_model("clm", objective="vanilla")
    of_other_weights.transformer.h[1].mlp.c_fc.weight.data[3, 5] += 0.25
    with pytest.raises(ValueError, match="other weights than that of checkpoint"):
        trainer(tmp_path / "b", "vanilla", "clm", base=of_other_weights).train(checkpoint)
    unscaled = tiny_model("clm", objective="vanilla", scale_attn_weights=False)
    with pytest.raises(ValueError, match="scale_attn_weights is False, .* True"):
        trainer(tmp_path / "c", "vanilla", "clm", base=unscaled).train(checkpoint)


def test_checkpoints_of_an_adapter_and_of_a_whole_model_are_told_apart(tmp_path):
    def whole(folder):
        settings = {"objective": "vanilla", "max_steps": 4, "save_steps": 2}
        model = tiny_model("clm", objective="vanilla")
        rows = labelled_rows("clm", empty=False)
        return make_trainer(folder, model, rows, settings, processing_class=Tokenizer())

    trainer(tmp_path / "adapter", "vanilla", "clm").train()
    whole(tmp_path / "whole").train()
    with pytest.raises(ValueError, match="holds an adapter but this run trains a whole model"):
        whole(tmp_path / "b").train(str(tmp_path / "adapter" / "checkpoint-2"))
    with pytest.raises(ValueError, match="holds no adapter but this run trains one"):
        trainer(tmp_path / "c", "vanilla", "clm").train(str(tmp_path / "whole" / "checkpoint-2"))


def test_an_adapter_is_resumed_from_a_checkpoint_that_does_not_describe_its_base(tmp_path):
    """As earlier versions wrote it."""
    trainer(tmp_path / "a", "vanilla", "clm").train()
    checkpoint = tmp_path / "a" / "checkpoint-2"
    facts = read_facts(checkpoint)
    del facts["hash_of_frozen_weights"], facts["configuration_under_adapter"]
    write_manifest(checkpoint, **facts)
    again = trainer(tmp_path / "b", "vanilla", "clm")
    assert again.train(str(checkpoint)).global_step == 4


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_and_the_gradients_are_those_of_the_merged_logits(tmp_path, task):
    steps = Gradients()
    run = trainer(
        tmp_path, "vanilla", task, [steps], max_steps=1, max_grad_norm=0.0, save_strategy="no"
    )
    reference = copy.deepcopy(run.model)
    logits, targets = predictions(reference, task, labelled_rows(task, empty=False)[:4])
    loss = torch.nn.functional.cross_entropy(logits, targets)
    loss.backward()
    run.train()
    want = loss.item()
    wanted = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}
    assert steps.kept.keys() == wanted.keys() and all(".lora_" in name for name in wanted)
    for name, gradient in wanted.items():
        torch.testing.assert_close(steps.kept[name], gradient, rtol=1e-4, atol=1e-8)
    assert run.state.log_history[0]["loss"] == pytest.approx(want, rel=1e-5)


def test_what_an_adapter_cannot_do_is_refused(tmp_path):
    model = tiny_model("clm", objective="vanilla")
    prompts = peft.get_peft_model(
        model, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    )
    with pytest.raises(ValueError, match="learned prompts .PROMPT_TUNING."):
        make_trainer(tmp_path, prompts, labelled_rows("clm", empty=False), {"objective": "vanilla"})
    for on_head_or_embedding in (
        {"target_modules": ["lm_head"]},
        {"target_modules": ["c_attn"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["c_attn"], "modules_to_save": ["wte"]},
    ):
        config = peft.LoraConfig(fan_in_fan_out=True, **on_head_or_embedding)
        head = peft.get_peft_model(tiny_model("clm", objective="vanilla"), config)
        with pytest.raises(
            ValueError, match="with an adapter on its embedding or its vocabulary head"
        ):
            make_trainer(
                tmp_path, head, labelled_rows("clm", empty=False), {"objective": "vanilla"}
            )
    with pytest.raises(
        ValueError,
        match="sparse_embedding_updates is True but the embedding of the model is frozen",
    ):
        trainer(tmp_path, "sampled_softmax", "clm", sparse_embedding_updates=True)
    with pytest.raises(ValueError, match="head_bias is 'prior' but a peft adapter"):
        trainer(tmp_path, "vanilla", "clm", head_bias="prior")
    with pytest.raises(ValueError, match="model must be a transformers PreTrainedModel"):
        trainer(tmp_path, "headless", "clm")
    free_head = attach_lm_head(tiny_model("mlm"), torch.ones(VOCAB, dtype=torch.long))
    free_head = peft.get_peft_model(free_head, peft.LoraConfig(target_modules=["dense"]))
    with pytest.raises(ValueError, match="an adapter would destroy the head's dense layer"):
        make_trainer(
            tmp_path, free_head, [], {"objective": "vanilla"}, processing_class=Tokenizer()
        )


@pytest.mark.skipif(
    Version(peft.__version__) < Version(MIN_PEFT_VERSION),
    reason=f"add_adapter of this transformers needs peft {MIN_PEFT_VERSION}",
)
@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_an_adapter_that_transformers_added_is_refused(tmp_path, objective):
    model = tiny_model("clm", objective=objective)
    model.add_adapter(peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    with pytest.raises(ValueError, match="use peft.get_peft_model"):
        make_trainer(tmp_path, model, labelled_rows("clm", empty=False), {"objective": objective})


def test_an_adapter_of_an_untied_encoder_leaves_the_rest_frozen(tmp_path):
    model = tiny_model("mlm", objective="vanilla", tie_word_embeddings=False)
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"]))
    run = make_trainer(tmp_path, model, [], {"objective": "vanilla"}, processing_class=Tokenizer())
    assert all(
        ".lora_" in name for name, weight in run.model.named_parameters() if weight.requires_grad
    )


def test_the_best_model_of_an_adapter_with_a_name_is_refused_before_training(tmp_path):
    config = peft.LoraConfig(target_modules=TASKS["clm"], fan_in_fan_out=True)
    model = peft.get_peft_model(tiny_model("clm", objective="vanilla"), config, "mine")
    settings = {
        "objective": "vanilla", "task": "clm", "load_best_model_at_end": True, "eval_strategy": "steps",
        "eval_steps": 1, "save_steps": 1, "metric_for_best_model": "loss",
    }  # fmt: skip
    with pytest.raises(ValueError, match="load_best_model_at_end is True.*'mine'"):
        make_trainer(
            tmp_path, model, labelled_rows("clm", empty=False), settings,
            processing_class=Tokenizer(),
        )  # fmt: skip
