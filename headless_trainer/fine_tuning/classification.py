"""Fine-tune any encoder or decoder on a task, with a loss over the whole optimizer step.

Letters used in shapes: N rows, C classes or candidates, T tokens.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer

from ..arguments import with_settings
from ..checkpoints.stop_on_signal import StopOnSignal
from ..checkpoints.writing import model_aside
from ..corpus.row_order import SimilarLengthSampler
from ..models.lm_head import freeze_scaled_layer
from ..models.padding_row import free_padding_row, keep_padding_id, may_be_token
from ..objective.losses import balanced_cross_entropy
from ..processes.coordination import HostExchange, ended_with_launcher, lost_processes_named
from ..processes.launch import check_devices
from ..refusals import CLASSIFICATION, CLASSIFICATION_PARAMETERS, refuse, refuse_parameters
from ..signals.workers import with_following_workers
from ..trainers.finite import FiniteCheck, check_precision
from .classification_rows import ClassificationCollator
from .problems import LOSSES, problem_of


class ClassificationTrainer(Trainer):
    """`Trainer` for single labels, multiple choice, multiple labels per row, and regression.

    The labels determine the problem (`problems.problem_of`): ``(N,)`` int64 are classes or
    candidates, ``(N, C)`` floats of 0 and 1 multiple labels, and ``(N,)`` floats numbers.

    The trainer computes the loss from the logits over the whole optimizer step: it counts classes
    and rows in all micro-batches on all processes, so any split of a step has the same gradient.
    (transformers 5.23 wrongly assumes that sequence classifiers scale their loss for accumulation,
    which multiplies the gradient by the number of micro-batches and of processes.)

    SIGTERM and Ctrl-C end a training run with a checkpoint, unless ``save_strategy`` is "no".

    Args:
        model: a ``...ForSequenceClassification``, with one output for candidates and for numbers.
        args: `transformers.TrainingArguments`.
        data_collator: makes batches; by default a `classification_rows.ClassificationCollator`.
        loss: ``balanced`` (`losses.balanced_cross_entropy`) or ``cross_entropy``, for classes and
            candidates. Float labels have a fixed loss: binary cross-entropy, averaged over rows and
            labels, or the mean squared error.
        kwargs: passed on to `Trainer`. Datasets have the columns of
            `classification_rows.encode_rows`.

    Example:
        >>> trainer = ClassificationTrainer(
        ...     AutoModelForSequenceClassification.from_pretrained("runs/bert", num_labels=3),
        ...     TrainingArguments("runs/topics"),
        ...     train_dataset=encode_rows(rows, task, tokenizer, config, max_seq_length=128),
        ...     processing_class=tokenizer,
        ... )
        >>> trainer.train()
    """

    # compute_loss returns each micro-batch's part of the step's loss, so nothing is left to divide.
    loss_is_scaled_for_ga = True
    model: PreTrainedModel

    def __init__(
        self, model=None, args=None, data_collator=None, *, loss: str = "balanced", **kwargs
    ):
        if loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}.")
        if args is None:
            raise ValueError("args is None: pass the settings, a TrainingArguments.")
        if data_collator is None and kwargs.get("processing_class") is None:
            raise ValueError("processing_class is None: pass the tokenizer, which pads batches.")
        refuse_parameters(kwargs, CLASSIFICATION_PARAMETERS)
        refuse(args, CLASSIFICATION)
        check_devices(args)
        # The rows' columns have names of their own.
        args.remove_unused_columns = False
        # For call_model_init, which the parent calls first.
        tokenizer: Any = kwargs.get("processing_class")
        self.processing_class = tokenizer
        if data_collator is None:
            data_collator = ClassificationCollator(tokenizer)
        super().__init__(model, args, data_collator, **kwargs)
        check_precision(args, self.model)
        self._make_trainable(self.model)
        self.loss = loss
        # Otherwise the parent would count the step's rows too.
        self.model_accepts_loss_kwargs = False
        self._counts: Tensor | None = None
        self.finite = FiniteCheck(args)
        self.signal = StopOnSignal(HostExchange(args.ddp_timeout))
        if args.save_strategy != "no":
            self.add_callback(self.signal)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial=None,
        ignore_keys_for_eval=None,
    ):
        with self.signal.given_back(), lost_processes_named(), ended_with_launcher():
            result = super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
            self.finite.read_all()
            return result

    def call_model_init(self, trial=None):
        model = super().call_model_init(trial)
        self._make_trainable(model)
        return model

    def _make_trainable(self, model) -> None:
        # A ModernBERT's classifier keeps the dense layer of its language model.
        freeze_scaled_layer(model)
        # Decoders' pairs have the padding token between two texts.
        if may_be_token(model.get_input_embeddings().padding_idx, self.processing_class):
            free_padding_row(model, self.processing_class, self.args.seed)

    def _get_dataloader(self, *args, **kwargs) -> DataLoader:
        return with_following_workers(super()._get_dataloader(*args, **kwargs))

    def _get_train_sampler(self, train_dataset=None):
        dataset = train_dataset
        if dataset is None:
            dataset = self.train_dataset
        return SimilarLengthSampler(
            _lengths_of(dataset),
            self.get_total_train_batch_size(self.args),
            self.args,
            epoch=lambda: self.state.epoch,
        )

    def _get_eval_sampler(self, eval_dataset):
        lengths = _lengths_of(eval_dataset)  # (N,)
        if self.compute_metrics is not None:
            # It may join predictions with other columns of the dataset, row by row.
            return np.arange(len(lengths))
        # The longest first: little padding, and a batch that is too large for the memory fails at
        # once instead of after an hour.
        return np.argsort(-lengths, kind="stable")

    def predict(self, test_dataset, *args, **kwargs):
        """Predict as `Trainer` does, and return the predictions in the order of the dataset."""
        output = super().predict(test_dataset, *args, **kwargs)
        # The inverse of the order in which the rows were read.
        order = np.argsort(self._get_eval_sampler(test_dataset))
        return output._replace(
            predictions=_reordered(output.predictions, order),
            label_ids=_reordered(output.label_ids, order),
        )

    def get_batch_samples(self, epoch_iterator, num_batches: int, device: torch.device):
        """Count the rows of each class in the coming optimizer step.

        They are those of all its micro-batches, on all processes.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._counts = self._count(batches).to(self.args.device)
        if self.args.world_size > 1:
            self._counts = self.accelerator.reduce(self._counts, "sum")
        return batches, None

    def _count(self, batches: list[dict[str, Tensor]]) -> Tensor:
        """Return the ``(C,)`` rows of each class, or the ``(1,)`` number of float labels."""
        labels = torch.cat([batch["labels"] for batch in batches])  # (N,) or (N, C)
        outputs = self.accelerator.unwrap_model(self.model).config.num_labels
        if labels.is_floating_point():
            if labels.dim() == 1 and outputs > 1:
                raise ValueError(
                    f"labels are numbers but the model has {outputs} outputs: make classes "
                    "integers."
                )
            return torch.tensor([labels.numel()])
        if outputs > 1:
            classes = outputs
        else:
            # Candidates, one output each, which follow each other in the batch.
            classes = len(batches[0]["input_ids"]) // len(batches[0]["labels"])
        if labels.min() < 0 or labels.max() >= classes:
            raise ValueError(
                f"labels must be in [0, {classes}) for {classes} classes, got {labels.min()} to "
                f"{labels.max()}: the model needs as many outputs as the task has classes."
            )
        return torch.bincount(labels, minlength=classes)

    def compute_loss(self, model, inputs, return_outputs: bool = False, num_items_in_batch=None):
        """Return the micro-batch's part of its optimizer step's loss in training.

        In evaluation it is the mean over the micro-batch's rows. The unit is nats (for numbers, the
        squared unit of the label). The ``(N, C)`` logits are those of classes, of candidates (one
        output each) or, with C = 1, the number.
        """
        labels = inputs["labels"]  # (N,), or (N, C) for multiple labels
        model_inputs = {name: value for name, value in inputs.items() if name != "labels"}
        logits = model(**model_inputs).logits  # (N, C), or (N * C, 1) for candidates
        scores = logits.float().reshape(len(labels), -1)  # (N, C)
        problem = problem_of(labels)
        if not model.training:
            # Every row weighs the same: class frequencies are those of a step.
            loss = problem.loss_sum(scores, labels) / labels.numel()
            return (loss, {"logits": scores}) if return_outputs else loss
        # Whoever calls this outside of `train` has no step that was counted.
        counts = self._counts
        if counts is None:
            counts = self._count([inputs])
        if self.loss == "balanced" and not labels.is_floating_point():
            loss = balanced_cross_entropy(scores, labels, counts)
        else:
            loss = problem.loss_sum(scores, labels) / counts.sum()
        # The parts of all processes add up to the step's loss, but gradients will be averaged.
        loss = loss * self.args.world_size
        return (loss, {"logits": scores}) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.finite.watch(self.state.global_step + 1, loss, "The loss")
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        grad_norm = super()._get_grad_norm(model, grad_norm)
        return self.finite.watch_norm(self.state.global_step + 1, grad_norm, self.accelerator)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self.finite.read_all()
        super().log(logs, start_time)

    def _determine_best_metric(self, metrics, trial) -> bool:
        # A run that is stopped is saved even if its score did not improve: see PretrainingTrainer.
        stopped = self.signal.agreed()
        return super()._determine_best_metric(metrics, trial) or stopped

    def _get_output_dir(self, trial) -> str:
        return self.signal.beside_checkpoints(super()._get_output_dir(trial), self.control)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        self.finite.check_weights(self.model, self.state.global_step)
        keep_padding_id(self.model)
        folder = str(output_dir or self.args.output_dir)
        # `Trainer` pickles its arguments beside the model, where anybody could read a token.
        with (
            model_aside(folder, self.args.should_save) as aside,
            with_settings(self.args, hub_token=None),
        ):
            super().save_model(str(aside), _internal_call=True)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub("Model save", revision=self.args.hub_revision)


def _lengths_of(dataset) -> np.ndarray:
    """Return the ``(N,)`` tokens of each row's longest candidate."""
    # [:] reads the column as one list: row by row takes about 200 times as long.
    return np.array(dataset["length"][:])


def _reordered(values: np.ndarray | None, order: np.ndarray) -> np.ndarray | None:
    if values is None:
        return None
    return values[order]
