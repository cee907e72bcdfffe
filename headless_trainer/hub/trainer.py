"""A trainer that pushes to the Hub without letting the Hub stop, delay or lose a training, or a token get out."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import Trainer
from transformers.trainer_utils import HubStrategy, SaveStrategy

from ..checkpoints import last_checkpoint
from .uploads import MODEL_EXCLUDED, HubUploads, Upload

logger = logging.getLogger(__name__)


class HubTrainer(Trainer):
    """`Trainer` whose pushes are `HubUploads`; ``hub_strategy`` and the other ``hub_`` settings mean what they mean there.

    Differences: no failure of the Hub raises; what cannot be pushed is said with the command that pushes it later; a folder
    is pushed once everything is in it; ``training_args.bin`` is not pushed, and where it is saved it holds no token.

    Attributes:
        hub: the run's uploads; None where nothing is pushed, and in all processes but the main one.
    """

    hub: HubUploads | None = None
    _held = False
    _noted: dict | None = None

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        if not self.is_world_process_zero():
            return
        self.hub = HubUploads.of_run(self.args, token, private)
        self.hub_model_id = self.hub.repo
        self.hub.check()

    def push_to_hub(
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
    ) -> None:
        """Save the model and push the folder of the run, with everything that is in it but its checkpoints.

        Args:
            commit_message: of the commit on the Hub.
            blocking: wait for the upload, for a bounded time. Otherwise it ends when the process does.
            token: where ``args.push_to_hub`` is False, the token; ``args.hub_token`` or the stored login by default.
            revision: branch to push to; ``args.hub_revision`` by default.
            private: where ``args.push_to_hub`` is False, whether the repository is created private.
        """
        request = {"message": commit_message, "blocking": blocking, "revision": revision}
        if self._held:
            self._noted = request
            return
        if not self.args.push_to_hub and self.hub is None:
            self.init_hf_repo(token, private)
        with self.one_push():
            self.save_model()
            self._noted = request

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        folder = output_dir or self.args.output_dir
        with self.one_push():
            self.save_weights(folder, to_resume=_internal_call)
            # Not from somewhere else, where nobody asked for it to be pushed from.
            if self.args.push_to_hub and not _internal_call and Path(folder) == Path(self.args.output_dir):
                self.push_to_hub(commit_message="Model save")

    def save_weights(self, folder: str, to_resume: bool) -> None:
        """Save the model as the parent does, and nothing more.

        Args:
            folder: where it goes.
            to_resume: whether it is part of a checkpoint, and not the model that leaves the run.
        """
        super().save_model(folder, _internal_call=True)

    @contextmanager
    def one_push(self) -> Iterator[None]:
        """Within it, what saving would push is only noted; at its end, all that lies in the folder by then is pushed once."""
        if self._held:
            yield
            return
        self._held, self._noted = True, None
        try:
            yield
        except BaseException:
            self._leave()
            raise
        finally:
            self._held = False
        if self._noted is not None:
            self._push_folder(**self._noted)

    def _push_folder(self, message: str, blocking: bool, revision: str | None) -> None:
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub is not None:
            self.hub.push_run(message, revision, blocking=blocking)

    def _must_leave(self) -> bool:
        """Whether the process was told to end soon, so that nothing may be waited for."""
        return False

    def _leave(self) -> None:
        """End the uploads now, and say how to push what was saved last."""
        if self.hub is None:
            return
        self.hub.stop()
        checkpoint = last_checkpoint(self.args.output_dir)
        if self._noted is not None:
            saved = self.hub.of_folder(revision=self._noted["revision"])
        elif checkpoint is not None and Path(checkpoint).name != self.hub.pushed:
            saved = Upload(Path(checkpoint), checkpoint, exclude=MODEL_EXCLUDED)
        else:
            return
        logger.warning("%s is saved, but not on the Hub. %s", saved.label, self.hub.later(saved))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        args = self.args
        if self.hub is None or args.hub_strategy == HubStrategy.END or self._must_leave():
            return
        step = self.state.global_step
        if self.hub.unfinished and not args.hub_always_push:
            logger.info("step %d is not pushed: the push before it is still running", step)
            return
        self.callback_handler.on_push_begin(args, self.state, self.control)
        by_step = args.save_strategy == SaveStrategy.STEPS
        message = f"Training in progress, {f'step {step}' if by_step else f'epoch {int(self.state.epoch)}'}"
        self.hub.start_checkpoint(checkpoint_folder, message)
        if args.hub_strategy == HubStrategy.CHECKPOINT:
            self.hub.start_checkpoint(checkpoint_folder, f"{message}, checkpoint", "last-checkpoint", whole=True)
        elif args.hub_strategy == HubStrategy.ALL_CHECKPOINTS:
            self.hub.start_checkpoint(checkpoint_folder, f"{message}, checkpoint", f"checkpoint-{step}", whole=True)

    def _finish_current_push(self) -> None:
        if self._must_leave():
            self._leave()
        elif self.hub is not None and not self._held:
            self.hub.wait()  # and within one_push at its end, when all is saved

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        token, self.args.hub_token = self.args.hub_token, None  # training_args.bin is a pickle of the settings
        try:
            super()._save(output_dir, state_dict)
        finally:
            self.args.hub_token = token
