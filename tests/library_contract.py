"""What this package takes from its libraries beyond their public functions: the one list of it,
which tests hold to the code.

`test_library_contract.py` compares it with the source of the package and with the libraries that
are installed. A name that the package starts or ceases to use, or that a library renames, fails a
test there.
"""

# Methods of `transformers.Trainer` that our trainers override, in every version that setup.cfg
# allows.
OVERRIDDEN = set(
    """
    _clip_grad_norm _determine_best_metric _evaluate _get_dataloader _get_eval_sampler _get_grad_norm _get_output_dir
    _get_train_sampler _load_best_model _load_from_checkpoint _push_from_checkpoint _save_checkpoint
    autocast_smart_context_manager call_model_init compute_loss create_model_card create_optimizer evaluate
    evaluation_loop get_batch_samples hyperparameter_search init_hf_repo log predict
    prediction_step push_to_hub save_model save_state train training_step
    """.split()
)
# Names with a leading underscore, by the class or module that has them: what each is needed for.
PRIVATE = {
    "transformers.Trainer": {
        "_clip_grad_norm": (
            "the embedding's rows are clipped with the rest, and accelerate does not clip sparse "
            "gradients"
        ),
        "_get_dataloader": (
            "the workers of all its loaders leave signals to the process that trains"
        ),
        "_get_eval_sampler": "rows are read in the order of their length",
        "_determine_best_metric": (
            "with save_strategy best, it alone decides whether a checkpoint is saved"
        ),
        "_evaluate": "a run whose evaluation fails ends with a checkpoint",
        "_get_grad_norm": "a norm that is not finite stops the run before the update",
        "_get_output_dir": "a checkpoint is written aside, and the folder of the run is asked for",
        "_get_train_sampler": (
            "the rows of a step are of similar length, in an order that a resumed run finds again"
        ),
        "_internal_call": "save_model says with it that the model is part of a checkpoint",
        "_load_best_model": "weights that save_pretrained converts or splits are converted back",
        "_load_from_checkpoint": (
            "the same; and a run that has ended has its last checkpoint's weights"
        ),
        "_prepare_inputs": "batches are moved to the device before their targets are drawn there",
        "_push_from_checkpoint": "the parent pushes a checkpoint before it has its name",
        "_save": (
            "whole weights are saved where save_model would save shards, or before there are any"
        ),
        "_save_checkpoint": (
            "checkpoints are written aside, with the place in the stream, and then renamed"
        ),
    },
    "transformers.PreTrainedConfig": {
        "_attn_implementation": (
            "masks between pairs of tokens depend on the kernel; a probe runs without special "
            "kernels"
        )
    },
    "transformers.configuration_utils": {
        "_commit_hash": "tells one revision of a model of the Hub from another"
    },
    "transformers.PreTrainedModel": {
        "_from_config": "makes a model of a known class in its dtype, without weights",
        "_hf_peft_config_loaded": (
            "a model's own adapter leaves no checkpoint that a run could resume from"
        ),
        "_no_split_modules": (
            "says which layers accelerate shards, of which those around the embedding are left out"
        ),
    },
    "transformers.RwkvModel": {
        "_rescale_layers": "weights that an evaluation has divided are multiplied again"
    },
    "transformers.initialization": {
        "_is_hf_initialized": "tells a row that was read from one that was drawn"
    },
    "torch.nn.Module": {
        "_parameters": "a shell of a model shares all but its weights, which hold no values",
        "_buffers": "the same",
        "_modules": "the same, for the modules inside it",
    },
    "torch.utils.data.DataLoader": {"_get_iterator": "workers start with signals blocked"},
    "torch.nn.parallel.DistributedDataParallel": {
        "_ddp_ignored": (
            "what _set_params_and_buffers_to_ignore_for_model leaves on the weight is removed "
            "after training"
        ),
        "_ddp_params_and_buffers_to_ignore": "the same, on the model",
        "_set_params_and_buffers_to_ignore_for_model": (
            "the embedding's rows are exchanged here, not a whole gradient"
        ),
    },
    "torch.distributed.distributed_c10d": {
        "_get_default_store": (
            "processes that lost each other still meet at the store, without a connection"
        )
    },
    "torch.amp.GradScaler": {
        "_step_supports_amp_scaling": "a fused kernel would not see infinities in the rows"
    },
    "datasets.Dataset": {
        "_fingerprint": "names the cache of tokens after the texts it was made of",
        "_indices": "tells rows that lie in order on the disk from a selection of them",
    },
    "datasets.IterableDataset": {
        "_resolve_features": "a stream knows its columns after its first rows are read"
    },
    "evaluate.Metric": {
        "_compute": "a metric is a class that overrides it",
        "_info": "the same, for its columns",
    },
    "lm_eval.tasks": {"_yaml_loader": "load_yaml reads a task's definition with its includes"},
    "lm_eval.models.huggingface.HFLM": {
        "_loglikelihood_tokens": (
            "requests are put in batches whose scored positions lie near the end"
        )
    },
    "threading": {
        "_register_atexit": "pushes are waited for before Python waits for their threads"
    },
    "atexit": {
        "_run_exitfuncs": (
            "trackers send what they still hold although the process ends without Python's end"
        )
    },
}
