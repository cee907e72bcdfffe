"""Each setting of `transformers.Trainer` works here, or is refused with its name, its value and what to do instead."""

import dataclasses
import inspect
import types

import numpy as np
import pytest
import torch
from builders import CLASSES, encoded_rows, tiny_classifier, tiny_model, token_rows, trainer_for
from transformers import (
    LayoutLMConfig,
    LayoutLMModel,
    SqueezeBertConfig,
    SqueezeBertForMaskedLM,
    SqueezeBertModel,
    Trainer,
    TrainingArguments,
)

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, VanillaTrainer
from headless_trainer.arguments import DataArguments, ModelArguments
from headless_trainer.cli.training import check_run
from headless_trainer.corpus.collator import PaddingCollator
from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.fine_tuning.glue_arguments import DECIDED, GlueTrainingArguments
from headless_trainer.settings_check import (
    CLASSIFICATION,
    CLASSIFICATION_PARAMETERS,
    PRETRAINING,
    PRETRAINING_PARAMETERS,
    RUN,
    evaluation_metrics,
    warn,
)

# Settings of TrainingArguments that do here what they do there: each was tried, or is read by the parent's loop alone.
WORKS = set(
    """
    lr_scheduler_type lr_scheduler_kwargs optim
    bf16 fp16 bf16_full_eval fp16_full_eval tf32 activation_checkpointing activation_checkpointing_kwargs
    gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode
    use_liger_kernel liger_kernel_config use_cache torch_empty_cache_steps
    logging_strategy logging_first_step logging_nan_inf_filter
    log_on_each_node log_level log_level_replica disable_tqdm report_to run_name
    project trackio_space_id trackio_bucket_id trackio_static_space_id
    eval_strategy eval_on_start eval_use_gather_object prediction_loss_only
    save_only_model save_on_each_node
    push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
    metric_for_best_model greater_is_better ignore_data_skip
    restore_callback_states_from_checkpoint resume_from_checkpoint full_determinism use_cpu
    accelerator_config dataloader_drop_last dataloader_pin_memory
    dataloader_multiprocessing_context dataloader_in_order train_sampling_strategy
    ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend
    fsdp fsdp_config deepspeed debug skip_memory_metrics do_train do_eval local_rank
    """.split()
)
# The same for the parameters of Trainer.
PARAMETERS_THAT_WORK = set(
    "model args data_collator train_dataset eval_dataset processing_class callbacks optimizers optimizer_cls_and_kwargs".split()
)
# What fine-tuning also does as the parent does.
ALSO_IN_CLASSIFICATION = set(
    """
    enable_jit_checkpoint include_for_metrics batch_eval_metrics eval_do_concat_batches remove_unused_columns
    neftune_noise_alpha include_num_input_tokens_seen do_predict parallelism_config load_best_model_at_end save_strategy
    """.split()
)
HERE = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}


def names(table) -> set[str]:
    return {name for row in table for name in row.names.split()}


# A later transformers ----------------------------------------------------------------------------------------------------


def test_every_setting_of_transformers_is_judged():
    """One that a later version adds fails here, until it is tried: then it goes into WORKS or into a table."""
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert fields <= WORKS | names(PRETRAINING)
    assert fields <= WORKS | names(CLASSIFICATION) | ALSO_IN_CLASSIFICATION
    assert not (WORKS - {"train_sampling_strategy"}) & (names(PRETRAINING) | names(CLASSIFICATION))


def test_every_parameter_of_the_trainer_is_judged():
    given = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert given == PARAMETERS_THAT_WORK | PRETRAINING_PARAMETERS.keys()
    assert CLASSIFICATION_PARAMETERS.keys() <= PRETRAINING_PARAMETERS.keys()


def test_the_tables_name_settings_that_exist():
    for table in (PRETRAINING, CLASSIFICATION):
        arguments = HeadlessTrainingArguments if table is PRETRAINING else TrainingArguments
        assert names(table) <= {field.name for field in dataclasses.fields(arguments)}
    assert names(DECIDED) <= {field.name for field in dataclasses.fields(GlueTrainingArguments)}


# What is refused ---------------------------------------------------------------------------------------------------------


REFUSED = [
    ({"auto_find_batch_size": True}, "auto_find_batch_size is True but after a batch that .* set a smaller per_device"),
    ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha is 5.0 but its noise would reach .* leave it out"),
    ({"label_smoothing_factor": 0.1}, "label_smoothing_factor is 0.1 but the losses here .* leave it at 0"),
    ({"average_tokens_across_devices": False}, "average_tokens_across_devices is False but objective and negatives say"),
    ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint is True but SIGTERM ends a run with a whole checkpoint"),
    ({"include_for_metrics": ["inputs"]}, r"include_for_metrics is \['inputs'\] but it shapes what compute_metrics gets"),
    ({"batch_eval_metrics": True}, "batch_eval_metrics is True"),
    ({"eval_do_concat_batches": False}, "eval_do_concat_batches is False"),
    ({"label_names": ["targets"]}, r"label_names is \['targets'\] but the targets are made here"),
    ({"remove_unused_columns": True}, "remove_unused_columns is True but the targets are made from columns"),
    ({"include_num_input_tokens_seen": "non_padding"}, "include_num_input_tokens_seen is 'non_padding' but .* tokens_seen"),
    ({"length_column_name": "n"}, "length_column_name is 'n' but nothing reads it: set train_sampling_strategy"),
    ({"optim_target_modules": ["mlp"]}, r"optim_target_modules is \['mlp'\] but the optimizer does not read it"),
    ({"optim_args": "foo=1"}, "optim_args is 'foo=1' but the optimizer does not read it"),
    ({"do_predict": True}, "do_predict is True but there is no test part"),
    ({"parallelism_config": types.SimpleNamespace(tp_size=1, cp_size=2)}, "parallelism_config is .*cp_size=2.* cuts rows"),
    ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0 but it must be at least 1"),
    ({"per_device_train_batch_size": 0}, "per_device_train_batch_size is 0 but"),
    ({"per_device_eval_batch_size": -1}, "per_device_eval_batch_size is -1 but"),
    ({"max_steps": 0}, r"max_steps is 0 but it must be at least 1, or left out for whole epochs"),
    ({"num_train_epochs": 0}, "num_train_epochs is 0 but it must be above 0"),
    ({"learning_rate": -1.0}, "learning_rate is -1.0 but it must not be negative"),
    ({"dataloader_num_workers": -1}, "dataloader_num_workers is -1 but"),
    ({"logging_steps": -1}, "logging_steps is -1 but .* logging_strategy 'no'"),
    ({"save_steps": -1}, "save_steps is -1 but .* save_strategy 'no'"),
    ({"eval_strategy": "steps", "eval_steps": -1}, "eval_steps is -1 but .* eval_strategy 'no'"),
    ({"dataloader_persistent_workers": True}, "dataloader_persistent_workers is True but there are no workers"),
    ({"objective": "vanilla", "eval_pool_size": 8}, "eval_pool_size is 8 but objective is 'vanilla'"),
    ({"objective": "vanilla", "eval_full_vocabulary": False}, "eval_full_vocabulary is False but objective is 'vanilla'"),
    ({"task": "clm", "mlm_probability": 0.3}, "mlm_probability is 0.3 but task is 'clm', which masks nothing"),
    ({"task": "clm", "mask_replace_prob": 0.3}, "mask_replace_prob is 0.3 but task is 'clm'"),
    ({"task": "clm", "random_replace_prob": 0.2}, "random_replace_prob is 0.2 but task is 'clm'"),
    ({"input_grad_scale": float("inf")}, "input_grad_scale must be above 0 and finite, got inf"),
]  # fmt: skip


@pytest.mark.parametrize("settings, message", REFUSED, ids=lambda value: str(value)[:40])
def test_what_pretraining_refuses(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        HeadlessTrainingArguments(str(tmp_path), **HERE, **settings)


def test_what_is_said_under_another_name_is_accepted(tmp_path):
    HeadlessTrainingArguments(str(tmp_path), **HERE, max_steps=3, num_train_epochs=0, label_names=["labels"])
    grouped = {"train_sampling_strategy": "group_by_length", "length_column_name": "n"}
    HeadlessTrainingArguments(str(tmp_path), **HERE, **grouped, include_num_input_tokens_seen="all")
    HeadlessTrainingArguments(str(tmp_path), **HERE, parallelism_config=types.SimpleNamespace(dp_replicate_size=2))


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
@pytest.mark.parametrize("name", sorted(PRETRAINING_PARAMETERS))
def test_parameters_that_pretraining_refuses(tmp_path, clm_tokenizer, objective, name):
    args = HeadlessTrainingArguments(str(tmp_path), **HERE, objective=objective)
    make = tiny_model("clm", len(clm_tokenizer), objective)
    given = {name: lambda *_, **__: make, "processing_class": clm_tokenizer, "train_dataset": token_rows(clm_tokenizer)}
    with pytest.raises(ValueError, match=f"{name} is <function .* but .*:"):
        (HeadlessTrainer if objective == "headless" else VanillaTrainer)(
            None if name == "model_init" else make, args, **given
        )


def test_the_task_of_the_model_decides_too(tmp_path, clm_tokenizer):
    with pytest.raises(ValueError, match="mlm_probability is 0.3 but task is 'clm'"):
        args = HeadlessTrainingArguments(str(tmp_path), **HERE, mlm_probability=0.3)
        HeadlessTrainer(tiny_model("clm", len(clm_tokenizer)), args, processing_class=clm_tokenizer)


@pytest.mark.parametrize("kind", ["headless", "vanilla", "classification"])
def test_several_gpus_in_one_process_are_refused(tmp_path, clm_tokenizer, monkeypatch, kind):
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(ValueError, match="n_gpu is 2: .*accelerate launch --num_processes 2 .*CUDA_VISIBLE_DEVICES=0"):
        if kind == "classification":
            ClassificationTrainer(
                tiny_classifier(), TrainingArguments(str(tmp_path), **HERE), processing_class=clm_tokenizer
            )
        else:
            trainer_for(tmp_path, "clm", clm_tokenizer, objective=kind)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor is 0.1 but"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size is True but after a batch that did not fit"),
        ({"average_tokens_across_devices": False}, "average_tokens_across_devices is False but"),
        ({"train_sampling_strategy": "sequential"}, "train_sampling_strategy is 'sequential' but batches are always"),
        ({"length_column_name": "n"}, "length_column_name is 'n' but"),
        ({"label_names": ["stars"]}, r"label_names is \['stars'\] but rows have their label in the column labels"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0 but"),
    ],
)
def test_what_classification_refuses(tmp_path, mlm_tokenizer, given, message):
    args = TrainingArguments(str(tmp_path), **HERE, **given)
    with pytest.raises(ValueError, match=message):
        ClassificationTrainer(tiny_classifier(), args, processing_class=mlm_tokenizer)


def test_parameters_that_classification_refuses(tmp_path, mlm_tokenizer):
    args = TrainingArguments(str(tmp_path), **HERE)
    with pytest.raises(
        ValueError, match="compute_loss_func is <function .* but the loss is that of the parameter loss"
    ):
        ClassificationTrainer(tiny_classifier(), args, processing_class=mlm_tokenizer, compute_loss_func=lambda *_: 0)
    with pytest.raises(ValueError, match="args must be TrainingArguments, got NoneType"):
        ClassificationTrainer(tiny_classifier(), processing_class=mlm_tokenizer)
    with pytest.raises(ValueError, match="processing_class is None: pass the tokenizer"):
        ClassificationTrainer(tiny_classifier(), args)


@pytest.mark.parametrize("name, value", [("eval_on_start", True), ("prediction_loss_only", True),
    ("eval_do_concat_batches", False), ("enable_jit_checkpoint", True), ("metric_for_best_model", "accuracy")])  # fmt: skip
def test_what_run_glue_decides(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r} but `headless-trainer glue` sets it"):
        GlueTrainingArguments(str(tmp_path), **HERE, **{name: value})


# Settings of a script that mean nothing together -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, own, settings, message",
    [
        ({"streaming": True}, {}, {"train_sampling_strategy": "sequential"}, "train_sampling_strategy is 'sequential' but"),
        ({}, {"tie_word_embeddings": True}, {}, "tie_word_embeddings is True but objective is 'headless'"),
        ({}, {}, {"metric_for_best_model": "f1"}, "metric_for_best_model is 'f1', which is none of accuracy, accuracy_w"),
        ({}, {}, {"metric_for_best_model": "perplexity"}, "metric_for_best_model is 'perplexity', which is none of"),
        ({}, {}, {"task": "clm", "mlm_probability": 0.3}, "mlm_probability is 0.3"),
    ],
)  # fmt: skip
def test_what_means_nothing_together(tmp_path, data, own, settings, message):
    with pytest.raises(ValueError, match=message):
        args = HeadlessTrainingArguments(str(tmp_path), **HERE, **({"task": "mlm"} | settings))
        check_run(ModelArguments(**own), DataArguments(**data), args)


@pytest.mark.parametrize(
    "arguments, settings, message",
    [
        (ModelArguments, {"vocab_size": 999}, "vocab_size is 999, which has no effect: no tokenizer is trained"),
        (ModelArguments, {"tokenizer_type": "words"}, "tokenizer_type is 'words', which has no effect"),
        (ModelArguments, {"train_tokenizer": True, "mask_token": "<m>"}, "mask_token is '<m>', which has no effect"),
        (ModelArguments, {"resize_embeddings": True}, "resize_embeddings is True, which has no effect"),
        (ModelArguments, {"model_type": "gpt2", "model_revision": "v1"}, "model_revision is 'v1', which has no effect"),
        (DataArguments, {"dataset_config_name": "en"}, "dataset_config_name is 'en', which has no effect"),
        (DataArguments, {"text_column": "body"}, "text_column is 'body', which has no effect"),
        (DataArguments, {"sample_by": "document"}, "sample_by is 'document', which has no effect"),
        (
            DataArguments,
            {"shuffle_buffer_size": 5},
            "shuffle_buffer_size is 5, which has no effect: nothing is streamed",
        ),
        (DataArguments, {"streaming": True, "overwrite_cache": True}, "overwrite_cache is True, which has no effect"),
        (
            DataArguments,
            {"streaming": True, "preprocessing_num_workers": 2},
            "preprocessing_num_workers is 2, which has no",
        ),
        (
            DataArguments,
            {"train_file": ["a.txt"], "validation_file": ["b.txt"], "validation_split_percentage": 1.0},
            "validation_split_percentage is 1.0, which has no effect: --validation_file",
        ),
    ],
)
def test_what_nothing_reads_is_said_once(caplog, arguments, settings, message):
    arguments(**settings)
    assert len(caplog.messages) == 1 and message in caplog.messages[0]


def test_defaults_are_silent(caplog, tmp_path):
    ModelArguments(train_tokenizer=True, vocab_size=999, tokenizer_type="words")
    DataArguments(streaming=True, shuffle_buffer_size=5, dataset_name="d", dataset_config_name="en", text_column="body")
    assert not caplog.messages


# Rows and models that did not work ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [1, np.int64(1), torch.tensor(1), 0.5])
def test_a_label_of_the_row_is_refused(clm_tokenizer, label):
    with pytest.raises(ValueError, match="Column 'labels' has one value a row, such as .*remove_columns.'labels'"):
        PaddingCollator(clm_tokenizer)([{"input_ids": [5, 6, 7], "labels": label}] * 2)


@pytest.mark.parametrize("name", ["layoutlm", "squeezebert"])
@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_models_that_call_their_pooler_train(tmp_path, mlm_tokenizer, name, objective):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    if name == "layoutlm":
        from transformers import LayoutLMForMaskedLM

        made = LayoutLMModel if objective == "headless" else LayoutLMForMaskedLM
        made = made(LayoutLMConfig(vocab_size=300, **sizes))
    else:
        made = SqueezeBertModel if objective == "headless" else SqueezeBertForMaskedLM
        groups = {f"{part}_groups": 1 for part in ("q", "k", "v", "post_attention", "intermediate", "output")}
        made = made(SqueezeBertConfig(vocab_size=300, embedding_size=16, **sizes, **groups))
    args = HeadlessTrainingArguments(
        str(tmp_path), task="mlm", objective=objective, **HERE, max_steps=2, logging_steps=1, save_strategy="no"
    )
    cls = HeadlessTrainer if objective == "headless" else VanillaTrainer
    run = cls(made, args, train_dataset=token_rows(mlm_tokenizer), processing_class=mlm_tokenizer)
    run.train()
    assert not any("pooler" in key for key in run.model.state_dict())


# Settings that work, and did not or did so in a way of their own ----------------------------------------------------------


@pytest.mark.parametrize("name, greater", [("perplexity", False), ("eval_cross_entropy", False), ("accuracy", True)])
def test_the_best_checkpoint_is_the_best(tmp_path, clm_tokenizer, name, greater):
    """transformers takes every name that does not end in "loss" for one that is better when greater."""
    settings = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    run = trainer_for(
        tmp_path, "clm", clm_tokenizer, metric_for_best_model=name, load_best_model_at_end=True,
        learning_rate=1e-2, **settings,
    )  # fmt: skip
    run.train()
    figures = [log[f"eval_{name.removeprefix('eval_')}"] for log in run.state.log_history if "eval_loss" in log]
    assert len(set(figures)) > 1
    assert run.state.best_metric == (max if greater else min)(figures)


@pytest.mark.parametrize(
    "objective, settings", [("headless", {}), ("vanilla", {}), ("headless", {"eval_full_vocabulary": False})]
)
@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_the_names_of_the_best_metric_are_those_of_an_evaluation(tmp_path, request, task, objective, settings):
    tokenizer = request.getfixturevalue(f"{task}_tokenizer")
    run = trainer_for(tmp_path, task, tokenizer, objective=objective, **settings)
    run.token_counts += 1  # as after a step: without any count there is no free head to score
    found = {name.removeprefix("eval_") for name in run.evaluate()}
    assert evaluation_metrics(run.args) <= found
    extra = found - evaluation_metrics(run.args)
    assert all(
        name.startswith(("pool_", "layer_", "predicted_", "runtime", "samples_", "steps_", "model_p", "epoch"))
        for name in extra
    )


def test_evaluation_of_a_classifier_has_a_loss(tmp_path, mlm_tokenizer):
    """So that load_best_model_at_end finds it; and compute_metrics has the predictions."""
    data = encoded_rows(CLASSES)
    settings = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 5, "max_steps": 2, "save_steps": 1}
    args = TrainingArguments(
        str(tmp_path), **HERE, **settings, eval_strategy="steps", eval_steps=1, load_best_model_at_end=True
    )
    seen = []

    def compute(found):
        seen.append((found.predictions.shape, found.label_ids.shape))
        return {"rows": len(found.label_ids)}

    run = ClassificationTrainer(
        tiny_classifier(num_labels=3), args, processing_class=mlm_tokenizer, train_dataset=data, eval_dataset=data,
        compute_metrics=compute,
    )  # fmt: skip
    run.train()
    metrics = run.evaluate()
    assert metrics["eval_rows"] == len(CLASSES) and seen[0] == ((32, 3), (32,))
    output = run.predict(data)
    labels = torch.from_numpy(output.label_ids)
    want = torch.nn.functional.cross_entropy(torch.from_numpy(output.predictions), labels)
    assert metrics["eval_loss"] == pytest.approx(want.item(), rel=1e-5)
    args.prediction_loss_only = True
    assert run.predict(data).predictions is None


def test_a_classifier_that_is_made_anew(tmp_path, mlm_tokenizer):
    args = TrainingArguments(str(tmp_path), **HERE, max_steps=1, save_strategy="no")
    given = {"processing_class": mlm_tokenizer, "train_dataset": encoded_rows(CLASSES)}
    run = ClassificationTrainer(args=args, model_init=lambda: tiny_classifier(num_labels=3), **given)
    assert run.train().global_step == 1


def test_a_name_on_the_hub_without_a_push_is_said(tmp_path, caplog):
    args = HeadlessTrainingArguments(str(tmp_path), hub_model_id="me/x", **HERE)
    with caplog.at_level("WARNING", "headless_trainer"):
        warn(args, RUN)
    assert "hub_model_id is 'me/x', which has no effect: nothing is pushed: see --push_to_hub" in caplog.text
