"""Each setting of `transformers.Trainer` works here, or is refused with its name, its value and
what to do instead.
"""

import dataclasses
import inspect
import math
import os
import types
from unittest import mock

import numpy as np
import pytest
import torch
from builders import (
    CLASSES,
    SMALL,
    encoded_rows,
    make_trainer,
    tiny_classifier,
    tiny_model,
    token_rows,
    trainer_for,
)
from transformers import LayoutLMConfig, LayoutLMModel, Trainer, TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, VanillaTrainer, refusals
from headless_trainer.arguments import DataArguments, LMHeadArguments, ModelArguments
from headless_trainer.corpus.collator import PaddingCollator
from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.fine_tuning.glue_arguments import GlueArguments, GlueTrainingArguments

# Settings of TrainingArguments that do here what they do there, or that transformers refuses well:
# each was tried, or is read by the parent's loop alone.
WORKS = set(
    """
    seed data_seed save_total_limit logging_steps save_steps eval_delay eval_accumulation_steps
    ddp_timeout dataloader_persistent_workers dataloader_prefetch_factor
    adam_epsilon length_column_name optim
    bf16 fp16 tf32 activation_checkpointing activation_checkpointing_kwargs
    gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode
    use_liger_kernel liger_kernel_config use_cache torch_empty_cache_steps
    logging_strategy logging_first_step logging_nan_inf_filter
    log_on_each_node log_level log_level_replica disable_tqdm report_to run_name
    project trackio_space_id trackio_bucket_id trackio_static_space_id
    eval_strategy dataloader_drop_last eval_on_start eval_use_gather_object prediction_loss_only
    save_only_model
    push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
    metric_for_best_model greater_is_better ignore_data_skip
    restore_callback_states_from_checkpoint resume_from_checkpoint full_determinism use_cpu
    dataloader_pin_memory
    dataloader_multiprocessing_context train_sampling_strategy
    ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_backend
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
    enable_jit_checkpoint include_for_metrics batch_eval_metrics remove_unused_columns
    include_num_input_tokens_seen do_predict parallelism_config load_best_model_at_end neftune_noise_alpha
    eval_steps
    """.split()
)
HERE = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}


def names(table) -> set[str]:
    return {name for row in table for name in row.names.split()}


def test_every_setting_of_transformers_is_judged():
    """One that a later version adds fails here, until it is tried: then it goes into WORKS or into
    a table.
    """
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert fields <= WORKS | names(refusals.PRETRAINING)
    assert fields <= WORKS | names(refusals.CLASSIFICATION) | ALSO_IN_CLASSIFICATION
    refused = names(refusals.PRETRAINING) | names(refusals.CLASSIFICATION)
    works_with_some_values = {
        "train_sampling_strategy",
        "length_column_name",
        "dataloader_drop_last",
        "dataloader_persistent_workers",
        "dataloader_prefetch_factor",
        "seed",
        "data_seed",
        "adam_epsilon",
    }
    assert not (WORKS - works_with_some_values) & refused


def test_every_parameter_of_the_trainer_is_judged():
    given = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert given == PARAMETERS_THAT_WORK | refusals.PRETRAINING_PARAMETERS.keys()
    assert refusals.CLASSIFICATION_PARAMETERS.keys() <= refusals.PRETRAINING_PARAMETERS.keys()


DECAY = {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 4}}
PARALLEL = types.SimpleNamespace(tp_size=1, cp_size=2)
REFUSED = {
    HeadlessTrainingArguments: [
        {"gradient_accumulation_steps": 0}, {"per_device_train_batch_size": 0},
        {"per_device_eval_batch_size": -1},
        {"weight_decay": -0.1}, {"weight_decay": float("nan")}, {"learning_rate": float("inf")},
        {"learning_rate": -1.0},
        {"max_grad_norm": float("nan")}, {"logging_steps": -1}, {"save_steps": -5},
        {"logging_steps": 0},
        {"eval_steps": -2, "eval_strategy": "steps"}, {"eval_steps": 0, "eval_strategy": "steps"},
        {"max_steps": 0}, {"max_steps": -5},
        {"seed": -1}, {"seed": 2**32}, {"data_seed": -1},
        {"num_train_epochs": 0}, {"num_train_epochs": float("inf")}, {"auto_find_batch_size": True},
        {"label_names": ["targets"]}, {"label_smoothing_factor": 0.1},
        {"average_tokens_across_devices": False},
        {"pool_size": 0}, {"pool_size": 1},
        {"pool_size": 1, "objective": "sampled_softmax", "sampled_negatives": 0},
        {"eval_pool_size": 0}, {"sampled_negatives": -1},
        {"muon_learning_rate": -1.0}, {"muon_learning_rate": float("nan")},
        {"mlm_probability": 0.0}, {"mlm_probability": 1.0}, {"neftune_noise_alpha": 5.0},
        {"enable_jit_checkpoint": True},
        {"include_for_metrics": ["inputs"]}, {"batch_eval_metrics": True},
        {"eval_do_concat_batches": False},
        {"remove_unused_columns": True}, {"include_num_input_tokens_seen": "non_padding"},
        {"load_best_model_at_end": True, "save_strategy": "no", "metric_for_best_model": "loss"},
        {"do_predict": True},
        {"parallelism_config": PARALLEL},
        {"head_bias": "prior"}, {"mlm_probability": 0.3, "task": "clm"},
        {"head_bias": "prior", "objective": "vanilla", "fsdp": True},
        {"sparse_embedding_updates": True, "optim": "sgd"},
        {"sparse_embedding_updates": True, "optim": "adafactor"},
        {"sparse_embedding_updates": True, "fsdp": True},
        {"adam_beta2": 0.8, "sparse_embedding_updates": True},
        {"adam_beta1": 0.9999, "sparse_embedding_updates": True},
        {"adam_epsilon": 0.0, "sparse_embedding_updates": True},
        {"weight_decay": 0.1, "learning_rate": 10.0, "sparse_embedding_updates": True},
        {"muon_learning_rate": 0.01, "optim": "sgd"}, {"lr_scheduler_type": "warmup_stable_decay"},
        {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 0}},
        DECAY | {"max_steps": 3},
        DECAY | {"max_steps": 5, "warmup_steps": 2},
        {"eval_steps": 2, "eval_strategy": "steps", "save_steps": 4, "load_best_model_at_end": True},
        {"dataloader_in_order": False},
        {"accelerator_config": AcceleratorConfig(use_seedable_sampler=False)},
        {"accelerator_config": AcceleratorConfig(dispatch_batches=True)},
        {"accelerator_config": AcceleratorConfig(split_batches=True)}, {"bf16_full_eval": True},
        {"accelerator_config": AcceleratorConfig(gradient_accumulation_kwargs={"num_steps": 2})},
        {"dataloader_persistent_workers": True},
        {"dataloader_prefetch_factor": 0, "dataloader_num_workers": 1},
        {"save_on_each_node": True},
        {"save_strategy": "best", "metric_for_best_model": "loss"},
        {"save_strategy": "best", "eval_strategy": "epoch"},
        {"ddp_static_graph": True, "gradient_accumulation_steps": 2}, DECAY,
        {"warmup_steps": 0.1, "lr_scheduler_type": "constant"},
        {"warmup_steps": 2, "lr_scheduler_type": "greedy", "eval_strategy": "epoch"},
        {"lr_scheduler_kwargs": {"a": 1}, "lr_scheduler_type": "constant"},
        {"optim_args": "amsgrad=True"},
        {"optim_args": "scale_parameter=True", "optim": "adafactor"},
        {"optim_target_modules": "all-linear"},
        {"train_sampling_strategy": "batch_rebalance"},
    ],
    LMHeadArguments: [{"head_bias": "prior"}, {"freeze_trunk": True}],
    ModelArguments: [
        {"config_name": "c", "model_type": "bert"}, {"config_name": "c", "model_name_or_path": "m"},
        {"model_type": "bert", "model_name_or_path": "m"},
        {"config_overrides": "n_layer=2", "model_name_or_path": "m"},
        {"tokenizer_name": "t", "train_tokenizer": True}, {"vocab_size": 299},
        {"mask_token": "<mask>", "train_tokenizer": True},
        {"tokenizer_type": "wordpiece"},
        {"train_tokenizer": True, "model_name_or_path": "m"},
    ],
    DataArguments: [
        {"train_file": ["f"], "dataset_name": "d"}, {"validation_file": ["v"]},
        {"validation_split_percentage": 0.0},
        {"validation_split_percentage": 100.0}, {"max_train_samples": 5, "streaming": True},
        {"shuffle_buffer_size": -1},
        {"max_seq_length": 1}, {"max_train_samples": 0}, {"max_eval_samples": 0},
        {"preprocessing_num_workers": 0},
        {"shuffle_buffer_size": 0}, {"dataset_config_name": "en"},
        {"dataset_revision": "r", "train_file": ["f"]},
    ],
    TrainingArguments: [  # of ClassificationTrainer
        {"label_smoothing_factor": 0.1}, {"auto_find_batch_size": True},
        {"average_tokens_across_devices": False},
        {"train_sampling_strategy": "sequential"}, {"length_column_name": "n"},
        {"label_names": ["stars"]},
        {"gradient_accumulation_steps": 0}, {"dataloader_drop_last": True},
        {"eval_do_concat_batches": False},
        {"dataloader_in_order": False}, {"fp16_full_eval": True}, DECAY,
    ],
    GlueTrainingArguments: [
        {"eval_on_start": True}, {"prediction_loss_only": True}, {"eval_do_concat_batches": False},
        {"enable_jit_checkpoint": True}, {"metric_for_best_model": "accuracy"}, {"eval_delay": 1},
        {"lr_scheduler_type": "reduce_lr_on_plateau"}, {"lr_scheduler_type": "greedy"},
    ],
}  # fmt: skip
ROWS = [(kind, settings) for kind, rows in REFUSED.items() for settings in rows]


def make(kind: type, folder, **settings):
    if kind in (ModelArguments, DataArguments):
        return kind(**settings)
    # As a launcher would, without which nothing is sharded.
    launched = {"RANK": "0"} if "fsdp" in settings else {}
    with mock.patch.dict(os.environ, launched):
        args = kind(str(folder), **HERE, **settings)
    fine_tunes = kind is TrainingArguments
    return (
        ClassificationTrainer(tiny_classifier(), args, processing_class=object())
        if fine_tunes
        else args
    )


@pytest.mark.parametrize(("kind", "settings"), ROWS, ids=lambda value: str(value)[:60])
def test_a_setting_is_refused_by_name_and_value(tmp_path, kind, settings):
    """The message names the first of these settings and its value."""
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError) as error:
        make(kind, tmp_path, **settings)
    assert str(error.value).startswith(f"{name} is {value!r} but ")


ACCEPTED = {
    HeadlessTrainingArguments: [
        {"max_steps": 3, "num_train_epochs": 0}, {"learning_rate": 0.0, "max_grad_norm": 0.0},
        {"save_steps": 0, "save_strategy": "no", "eval_steps": 0, "logging_steps": 0.5},
        {"label_names": ["labels"]}, {"objective": "vanilla", "head_bias": "prior"},
        {"train_sampling_strategy": "group_by_length", "length_column_name": "n", "include_num_input_tokens_seen": "all"},
        DECAY | {"max_steps": 4},
        {"parallelism_config": types.SimpleNamespace(dp_replicate_size=2)},
        {"weight_decay": 0.0, "pool_size": 2}, {"pool_size": 1, "sampled_negatives": 1},
        {"pool_size": 1, "negatives": "step"}, {"pool_size": 1, "objective": "sampled_softmax"},
        {"pool_size": 1, "objective": "vanilla"},
        {"sparse_embedding_updates": True, "muon_learning_rate": 0.01, "optim": "adamw_torch", "eval_pool_size": 1},
        {"use_liger_kernel": True, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},
        {"optim_args": "alpha=0.9", "optim": "rmsprop"},
        {"save_strategy": "best", "eval_strategy": "epoch", "metric_for_best_model": "loss", "ddp_static_graph": True},
    ],
    ModelArguments: [{"train_tokenizer": True, "vocab_size": 300, "tokenizer_type": "words"}, {"config_name": "c"}],
    DataArguments: [
        {"max_seq_length": 2, "max_train_samples": 1, "validation_split_percentage": 0.1},
        {"streaming": True, "shuffle_buffer_size": 0, "dataset_name": "d", "dataset_config_name": "en", "text_column": "b"},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "settings"), [(kind, each) for kind, rows in ACCEPTED.items() for each in rows]
)
def test_a_value_at_the_edge_of_its_range_is_accepted(tmp_path, kind, settings):
    make(kind, tmp_path, **settings)


@pytest.mark.parametrize("objective", ["headless", "sampled_softmax", "vanilla"])
def test_settings_that_an_objective_does_not_read_are_left_out_with_a_warning(
    tmp_path, caplog, objective
):
    by_candidates = {"negatives": "step", "sampled_negatives": 8, "sparse_embedding_updates": True}
    evaluation = {"eval_pool_size": 8, "eval_full_vocabulary": False}
    read = {
        "headless": by_candidates | evaluation,
        "sampled_softmax": by_candidates,
        "vanilla": {},
    }[objective]
    args = HeadlessTrainingArguments(
        str(tmp_path), **HERE, objective=objective, **by_candidates, **evaluation
    )
    for name, value in (by_candidates | evaluation).items():
        assert (
            (getattr(args, name) == value)
            is (name in read)
            is (f"{name} {value}" not in caplog.text)
        )


def test_shards_are_refused_for_whole_matrices(tmp_path, monkeypatch):
    monkeypatch.setattr(HeadlessTrainingArguments, "deepspeed_plugin", object(), raising=False)
    for settings in ({"muon_learning_rate": 0.01}, {"sparse_embedding_updates": True}):
        args = HeadlessTrainingArguments(str(tmp_path), **HERE)
        args.__dict__.pop("deepspeed_plugin", None)
        for name, value in settings.items():
            setattr(args, name, value)
        with pytest.raises(ValueError, match=f"{next(iter(settings))} is .*DeepSpeed"):
            refusals.refuse(args, refusals.PRETRAINING)


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
@pytest.mark.parametrize("name", sorted(refusals.PRETRAINING_PARAMETERS))
def test_parameters_of_trainer_that_pretraining_cannot_honour_are_refused(
    tmp_path, clm_tokenizer, objective, name
):
    args = HeadlessTrainingArguments(str(tmp_path), **HERE, objective=objective)
    model = tiny_model("clm", len(clm_tokenizer), objective)
    given = {
        name: lambda *_, **__: model,
        "processing_class": clm_tokenizer,
        "train_dataset": token_rows(clm_tokenizer),
    }
    trainer = HeadlessTrainer if objective == "headless" else VanillaTrainer
    with pytest.raises(ValueError, match=f"{name} is <function .* but "):
        trainer(None if name == "model_init" else model, args, **given)


def test_the_task_of_the_model_decides_too(tmp_path, clm_tokenizer):
    args = HeadlessTrainingArguments(str(tmp_path), **HERE, mlm_probability=0.3)
    with pytest.raises(ValueError, match="mlm_probability is 0.3 .*'clm'"):
        HeadlessTrainer(tiny_model("clm", len(clm_tokenizer)), args, processing_class=clm_tokenizer)


@pytest.mark.parametrize("kind", ["headless", "vanilla", "classification"])
def test_several_gpus_in_one_process_are_refused(tmp_path, clm_tokenizer, monkeypatch, kind):
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(ValueError, match="n_gpu is 2"):
        if kind == "classification":
            args = TrainingArguments(str(tmp_path), **HERE)
            ClassificationTrainer(tiny_classifier(), args, processing_class=clm_tokenizer)
        else:
            trainer_for(tmp_path, "clm", clm_tokenizer, objective=kind)


def test_parameters_of_trainer_that_classification_cannot_honour_are_refused(
    tmp_path, mlm_tokenizer
):
    given = {"args": TrainingArguments(str(tmp_path), **HERE), "compute_loss_func": lambda *_: 0}
    with pytest.raises(ValueError, match="compute_loss_func is"):
        ClassificationTrainer(tiny_classifier(), processing_class=mlm_tokenizer, **given)
    with pytest.raises(ValueError, match="args is None"):
        ClassificationTrainer(tiny_classifier(), processing_class=mlm_tokenizer)
    with pytest.raises(ValueError, match="processing_class is None"):
        ClassificationTrainer(tiny_classifier(), TrainingArguments(str(tmp_path), **HERE))


@pytest.mark.parametrize("label", [1, np.int64(1), torch.tensor(1), 0.5])
def test_a_label_of_the_row_is_refused(clm_tokenizer, label):
    with pytest.raises(ValueError, match="'labels' of row 0 .* 3 tokens"):
        PaddingCollator(clm_tokenizer)([{"input_ids": [5, 6, 7], "labels": label}] * 2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wrong, shown", [
    (0.5, "0.5"), (math.nan, "nan"), (math.inf, "inf"), ("six", "5"), (None, "5"),
])  # fmt: skip
def test_ids_that_are_no_integers_are_refused(clm_tokenizer, wrong, shown):
    said = f"Column 'input_ids' of row 1 holds {shown} but must hold integers"
    with pytest.raises(ValueError, match=said):
        PaddingCollator(clm_tokenizer)([{"input_ids": [5, 6]}, {"input_ids": [5, wrong]}])


def test_rows_in_rows_are_refused(clm_tokenizer):
    row = clm_tokenizer("The river", return_tensors="pt")
    with pytest.raises(ValueError, match=r"row 0 has the shape \(1, \d+\) instead of \(tokens,\)"):
        PaddingCollator(clm_tokenizer)([{"input_ids": row["input_ids"]}] * 2)


def test_a_model_that_calls_its_pooler_trains(tmp_path, mlm_tokenizer):
    model = LayoutLMModel(LayoutLMConfig(vocab_size=300, **SMALL))
    settings = {"task": "mlm", "max_steps": 1, "save_strategy": "no"}
    run = make_trainer(
        tmp_path, model, token_rows(mlm_tokenizer), settings, processing_class=mlm_tokenizer
    )
    run.train()
    assert not any("pooler" in key for key in run.model.state_dict())


def test_liger_leaves_the_forward_of_a_trunk(tmp_path):
    args = HeadlessTrainingArguments(
        str(tmp_path), **HERE, use_liger_kernel=True, liger_kernel_config={"rope": False}
    )
    assert args.liger_kernel_config == {
        "cross_entropy": False,
        "fused_linear_cross_entropy": False,
        "rope": False,
    }


@pytest.mark.parametrize("plugin, fsdp", [(object(), []), (None, ["full_shard"])])
def test_a_grid_on_shards_is_refused(plugin, fsdp):
    training = types.SimpleNamespace(
        deepspeed_plugin=plugin, fsdp=fsdp, do_predict=False, push_to_hub=False
    )
    with pytest.raises(ValueError, match=r"DeepSpeed and FSDP.*multi_gpu"):
        GlueArguments(model_name_or_path=["m"], tasks=["cola"]).check_grid(training)


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
@pytest.mark.parametrize("name, mode", [("perplexity", "min"), ("accuracy", "max")])
def test_a_schedule_that_follows_scores_knows_which_is_better(
    tmp_path, clm_tokenizer, schedule, name, mode
):
    run = trainer_for(
        tmp_path,
        "clm",
        clm_tokenizer,
        eval_strategy="epoch",
        metric_for_best_model=name,
        lr_scheduler_type=schedule,
    )
    run.create_optimizer_and_scheduler(4)
    assert run.lr_scheduler.mode == mode


@pytest.mark.parametrize("name, greater", [
    ("perplexity", False), ("eval_cross_entropy", False), ("accuracy", True),
    ("pool_accuracy", True),
    ("accuracy_without_bias", True), ("cross_entropy_without_bias", False),
])  # fmt: skip
def test_the_best_checkpoint_is_that_of_the_best_evaluation(tmp_path, clm_tokenizer, name, greater):
    """transformers takes every name that does not end in "loss" for one that is better when
    greater.
    """
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "max_steps": 3,
    }
    run = trainer_for(
        tmp_path, "clm", clm_tokenizer, metric_for_best_model=name, load_best_model_at_end=True,
        learning_rate=1e-2, **settings,
    )  # fmt: skip
    run.train()
    figures = [
        log[f"eval_{name.removeprefix('eval_')}"]
        for log in run.state.log_history
        if "eval_loss" in log
    ]
    assert len(set(figures)) > 1
    assert run.state.best_metric == (max if greater else min)(figures)


def test_an_unknown_metric_is_refused_unless_a_subclass_may_log_it(tmp_path, clm_tokenizer):
    unknown = {"metric_for_best_model": "acuracy"}
    with pytest.raises(ValueError, match="metric_for_best_model is 'acuracy' .*accuracy,"):
        trainer_for(tmp_path, "clm", clm_tokenizer, **unknown)
    trainer_for(tmp_path, "clm", clm_tokenizer, kind=type("Own", (HeadlessTrainer,), {}), **unknown)


@pytest.mark.parametrize(
    "objective, settings",
    [("headless", {}), ("vanilla", {}), ("headless", {"eval_full_vocabulary": False})],
)
@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_the_names_of_the_best_metric_are_those_of_an_evaluation(
    tmp_path, request, task, objective, settings
):
    tokenizer = request.getfixturevalue(f"{task}_tokenizer")
    run = trainer_for(tmp_path, task, tokenizer, objective=objective, **settings)
    run.token_counts += 1  # as after a step: without any count there is no free head to score
    found = {name.removeprefix("eval_") for name in run.evaluate()}
    assert refusals.evaluation_metrics(run.args) <= found
    others = ("pool_", "predicted_", "runtime", "samples_", "steps_", "model_p", "epoch")
    assert all(name.startswith(others) for name in found - refusals.evaluation_metrics(run.args))


def test_evaluation_of_a_classifier_has_a_loss(tmp_path, mlm_tokenizer):
    """So that load_best_model_at_end finds it; compute_metrics has the predictions; and the model
    may be made anew.
    """
    data = encoded_rows(CLASSES)
    settings = {
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 5,
        "max_steps": 2,
        "save_steps": 1,
    }
    settings |= {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    args, seen = TrainingArguments(str(tmp_path), **HERE, **settings), []

    def compute(found):
        seen.append((found.predictions.shape, found.label_ids.shape))
        return {"rows": len(found.label_ids)}

    given = {
        "processing_class": mlm_tokenizer,
        "train_dataset": data,
        "eval_dataset": data,
        "compute_metrics": compute,
    }
    run = ClassificationTrainer(
        args=args, model_init=lambda: tiny_classifier(num_labels=3), **given
    )
    run.train()
    metrics, output = run.evaluate(), run.predict(data)
    assert metrics["eval_rows"] == len(CLASSES) and seen[0] == ((32, 3), (32,))
    labels = torch.from_numpy(output.label_ids)
    want = torch.nn.functional.cross_entropy(torch.from_numpy(output.predictions), labels)
    assert metrics["eval_loss"] == pytest.approx(want.item(), rel=1e-5)
    args.prediction_loss_only = True
    assert run.predict(data).predictions is None
