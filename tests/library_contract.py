"""What this package takes from its libraries beyond their public functions: the one list of it, which tests hold to the code.

`test_library_contract.py` compares it with the source of the package and with the libraries that are installed. A name that
the package starts or ceases to use, or that a library renames, fails a test there.
"""

from dataclasses import dataclass

# Methods of `transformers.Trainer` that our trainers override -> their parameters, by position, in every
# version that setup.cfg allows (`private` of the Hub came after 5.19).
OVERRIDDEN = {
    "_clip_grad_norm": ("model",),
    "_get_dataloader": ("dataset", "description", "batch_size"),
    "_get_eval_sampler": ("eval_dataset",),
    "_get_grad_norm": ("model", "grad_norm"),
    "_get_output_dir": ("trial",),
    "_get_train_sampler": ("train_dataset",),
    "_push_from_checkpoint": ("checkpoint_folder",),
    "_save_checkpoint": ("model", "trial"),
    "autocast_smart_context_manager": ("cache_enabled",),
    "call_model_init": ("trial",),
    "compute_loss": ("model", "inputs", "return_outputs", "num_items_in_batch"),
    "create_model_card": (),
    "create_optimizer": ("model",),
    "evaluation_loop": ("dataloader", "description"),
    "get_batch_samples": ("epoch_iterator", "num_batches", "device"),
    "get_eval_dataloader": ("eval_dataset",),
    "get_test_dataloader": ("test_dataset",),
    "get_train_dataloader": (),
    "hyperparameter_search": (
        "hp_space",
        "compute_objective",
        "n_trials",
        "direction",
        "backend",
        "hp_name",
    ),
    "init_hf_repo": ("token",),
    "log": ("logs", "start_time"),
    "prediction_step": ("model", "inputs", "prediction_loss_only", "ignore_keys"),
    "push_to_hub": ("commit_message", "blocking", "token", "revision"),
    "save_model": ("output_dir", "_internal_call"),
    "save_state": (),
    "train": ("resume_from_checkpoint", "trial", "ignore_keys_for_eval"),
    "training_step": ("model", "inputs", "num_items_in_batch"),
}

# Methods of `Trainer` that are called, as the parent's or where no trainer of ours overrides them -> the parameters given.
CALLED = {
    "__init__": {"model", "args", "data_collator"},
    "_clip_grad_norm": {"model"},
    "_get_collator_with_removed_columns": {"data_collator"},
    "_get_dataloader": set(),
    "_get_grad_norm": {"model", "grad_norm"},
    "_get_output_dir": {"trial"},
    "_get_train_sampler": {"train_dataset"},
    "_load_from_checkpoint": {"resume_from_checkpoint"},
    "_prepare_inputs": {"inputs"},
    "_save": {"output_dir", "state_dict"},
    "_save_checkpoint": {"model", "trial"},
    "add_callback": {"callback"},
    "call_model_init": {"trial"},
    "compute_loss_context_manager": set(),
    "create_optimizer": {"model"},
    "evaluate": set(),
    "evaluation_loop": {"dataloader", "description"},
    "get_batch_samples": {"epoch_iterator", "num_batches", "device"},
    "get_optimizer_cls_and_kwargs": {"args", "model"},
    "get_train_dataloader": set(),
    "is_world_process_zero": set(),
    "log": {"logs", "start_time"},
    "pop_callback": {"callback"},
    "predict": {"test_dataset"},
    "save_model": {"output_dir", "_internal_call"},
    "train": {"resume_from_checkpoint", "trial", "ignore_keys_for_eval"},
    "training_step": {"model", "inputs", "num_items_in_batch"},
}

# Attributes that `Trainer` makes or reads, and that are read or set here.
ATTRIBUTES = {
    "accelerator",
    "args",
    "callback_handler",
    "control",
    "data_collator",
    "deepspeed",
    "eval_dataset",
    "hub_model_id",
    "is_deepspeed_enabled",
    "is_fsdp_enabled",
    "is_in_train",
    "loss_is_scaled_for_ga",
    "model",
    "model_accepts_loss_kwargs",
    "model_wrapped",
    "optimizer",
    "optimizer_cls_and_kwargs",
    "processing_class",
    "state",
    "train_dataset",
}


@dataclass(frozen=True)
class Private:
    """A name with a leading underscore that a library gives to nobody.

    Attributes:
        name: the name.
        owner: dotted name of the class or module that has it, whose source names it.
        used_in: modules of this package, dotted below it.
        why: what it is needed for.
        until: what would remove it.
        upstream: the thread about it, where there is one.
    """

    name: str
    owner: str
    used_in: tuple[str, ...]
    why: str
    until: str
    upstream: str = ""


PRIVATE = (
    Private(
        "_clip_grad_norm",
        "transformers.Trainer",
        ("trainers.pretraining",),
        "the embedding's rows are clipped with the rest, and accelerate does not clip sparse gradients",
        "an event before clipping, or clipping of sparse gradients in accelerate",
    ),
    Private(
        "_get_collator_with_removed_columns",
        "transformers.Trainer",
        ("trainers.pretraining",),
        "held-out rows have a loader of ours, and their columns are removed as the parent does",
        "a public method that makes the collator",
    ),
    Private(
        "_get_dataloader",
        "transformers.Trainer",
        ("fine_tuning.classification",),
        "the workers of all its loaders leave signals to the process that trains",
        "a setting for what workers start with",
    ),
    Private(
        "_get_eval_sampler",
        "transformers.Trainer",
        ("fine_tuning.classification",),
        "rows are read in the order of their length",
        "a setting for the sampler of evaluation",
    ),
    Private(
        "_get_grad_norm",
        "transformers.Trainer",
        ("trainers.pretraining",),
        "a norm that is not finite stops the run before the update",
        "an event that is given the norm of the gradient",
    ),
    Private(
        "_get_output_dir",
        "transformers.Trainer",
        ("trainers.pretraining",),
        "a checkpoint is written aside, and the folder of the run is asked for",
        "a folder that can be chosen for a checkpoint",
    ),
    Private(
        "_get_train_sampler",
        "transformers.Trainer",
        ("fine_tuning.classification", "trainers.pretraining"),
        "the rows of a step are of similar length, in an order that a resumed run finds again",
        "a setting that takes a sampler",
    ),
    Private(
        "_internal_call",
        "transformers.Trainer",
        ("trainers.pretraining",),
        "save_model says with it that the model is part of a checkpoint",
        "a public parameter",
    ),
    Private(
        "_load_from_checkpoint",
        "transformers.Trainer",
        ("trainers.pretraining",),
        "a run that has ended has the weights of its last checkpoint, and the parent would train another step",
        "Trainer.train on a finished run returning without a step",
    ),
    Private(
        "_prepare_inputs",
        "transformers.Trainer",
        ("fine_tuning.classification", "trainers.evaluation"),
        "batches are moved to the device before their targets are drawn there",
        "a public method that moves a batch",
    ),
    Private(
        "_push_from_checkpoint",
        "transformers.Trainer",
        ("trainers.pretraining",),
        "the parent pushes a checkpoint before it has its name",
        "an event before the push, or pushes after on_save",
    ),
    Private(
        "_save",
        "transformers.Trainer",
        ("trainers.pretraining",),
        "whole weights are saved where save_model would save shards, or before there are any",
        "save_model with a state_dict",
    ),
    Private(
        "_save_checkpoint",
        "transformers.Trainer",
        ("trainers.pretraining",),
        "checkpoints are written aside, with the place in the stream, and then renamed",
        "an event before and after a checkpoint is written, and a folder that can be chosen",
    ),
    Private(
        "_attn_implementation",
        "transformers.PreTrainedConfig",
        ("models.trunk", "trainers.isolation"),
        "masks between pairs of tokens depend on the kernel; a probe runs without special kernels",
        "a public property beside the method set_attn_implementation",
    ),
    Private(
        "_commit_hash",
        "transformers.configuration_utils",
        ("fine_tuning.grid", "scoring.zero_shot"),
        "tells one revision of a model of the Hub from another",
        "a public attribute for the commit of what was loaded",
    ),
    Private(
        "_from_config",
        "transformers.PreTrainedModel",
        ("models.fold", "models.lm_head"),
        "makes a model of a known class in its dtype, without weights",
        "from_config of AutoModel for any class",
    ),
    Private(
        "_is_hf_initialized",
        "transformers.initialization",
        ("models.padding_row",),
        "tells a row that was read from one that was drawn",
        "a report of the loaded weights that stays with the model",
    ),
    Private(
        "_no_split_modules",
        "transformers.PreTrainedModel",
        ("trainers.saving",),
        "says which layers accelerate shards, of which those around the embedding are left out",
        "accelerate wrapping an embedding below such a layer by itself",
    ),
    Private(
        "_ddp_ignored",
        "torch.nn.parallel.DistributedDataParallel",
        ("trainers.sparse_rows",),
        "what _set_params_and_buffers_to_ignore_for_model leaves on the weight is removed after training",
        "an argument of DistributedDataParallel for parameters to ignore",
        "https://github.com/pytorch/pytorch/issues/43690",
    ),
    Private(
        "_ddp_params_and_buffers_to_ignore",
        "torch.nn.parallel.DistributedDataParallel",
        ("trainers.sparse_rows",),
        "the same, on the model",
        "an argument of DistributedDataParallel for parameters to ignore",
        "https://github.com/pytorch/pytorch/issues/43690",
    ),
    Private(
        "_set_params_and_buffers_to_ignore_for_model",
        "torch.nn.parallel.DistributedDataParallel",
        ("trainers.sparse_rows",),
        "the rows of the embedding are exchanged here, and not as a whole gradient",
        "an argument of DistributedDataParallel for parameters to ignore",
        "https://github.com/pytorch/pytorch/issues/43690",
    ),
    Private(
        "_get_default_store",
        "torch.distributed.distributed_c10d",
        ("runtime.processes",),
        "processes that lost each other still meet at the store, without a connection",
        "a public way to the store of the default group",
    ),
    Private(
        "_step_supports_amp_scaling",
        "torch.amp.GradScaler",
        ("objective.sparse_adamw",),
        "a fused kernel would not see infinities in the rows",
        "a public attribute of optimizers",
    ),
    Private(
        "_fingerprint",
        "datasets.Dataset",
        ("corpus.packing",),
        "names the cache of tokens after the texts it was made of",
        "a public property",
    ),
    Private(
        "_generate_shards",
        "datasets.ArrowBasedBuilder",
        ("corpus.text_files",),
        "reads files of text in bounded blocks: datasets' documented place for the shards of a builder",
        "datasets giving it a public name",
    ),
    Private(
        "_generate_tables",
        "datasets.ArrowBasedBuilder",
        ("corpus.text_files",),
        "the same, for the tables of a shard",
        "datasets giving it a public name",
    ),
    Private(
        "_info",
        "datasets.ArrowBasedBuilder",
        ("corpus.text_files",),
        "the same, for the columns",
        "datasets giving it a public name",
    ),
    Private(
        "_split_generators",
        "datasets.ArrowBasedBuilder",
        ("corpus.text_files",),
        "the same, for the parts",
        "datasets giving it a public name",
    ),
    Private(
        "_indices",
        "datasets.Dataset",
        ("corpus.packing",),
        "tells rows that lie in order on the disk from a selection of them",
        "a public property",
    ),
    Private(
        "_resolve_features",
        "datasets.IterableDataset",
        ("corpus.texts",),
        "a stream knows its columns after its first rows are read",
        "features of a stream that are inferred by a public method",
        "https://github.com/huggingface/datasets/issues/3888",
    ),
    Private(
        "_yaml_loader",
        "lm_eval.tasks",
        ("scoring.harness_tasks",),
        "load_yaml reads a task's definition with its includes",
        "the same",
    ),
    Private(
        "_loglikelihood_tokens",
        "lm_eval.models.huggingface.HFLM",
        ("scoring.harness_model",),
        "requests are put in batches whose scored positions lie near the end",
        "HFLM projecting only the positions it scores",
    ),
    Private(
        "_run_exitfuncs",
        "atexit",
        ("runtime.launch",),
        "trackers send what they still hold although the process ends without Python's own end",
        "gloo's threads surviving the end of the interpreter",
    ),
    Private(
        "_register_atexit",
        "threading",
        ("hub.pushes",),
        "the end of a process waits for its pushes while they may still start threads",
        "a public way to do something before concurrent.futures closes",
    ),
)
