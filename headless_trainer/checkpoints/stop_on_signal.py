"""End a training run early with a checkpoint: at a signal, or when its rows cannot be read."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

from ..processes.coordination import HostExchange
from ..signals.handlers import NAMES, handled, say

logger = logging.getLogger(__name__)


class StopOnSignal(TrainerCallback):
    """Ends the run at SIGTERM or Ctrl-C after the current step, with a checkpoint.

    That is what the schedulers of clusters expect. A second Ctrl-C ends the process at once. Before
    the first step there is nothing to save, and signals act as usual.

    Attributes:
        number: the signal that ended the run, or 0.
        fault: the error for which `stop_for` ended the run, or None.
    """

    def __init__(self, host: HostExchange):
        self._host = host
        self._handlers = ExitStack()
        self._begin()

    def _begin(self) -> None:
        self.number = 0
        self.fault: Exception | None = None
        # The signal that this process has received.
        self._heard = 0
        # The previous handler of Ctrl-C.
        self._interrupt: Any = None

    @property
    def stopped(self) -> bool:
        return self.number > 0 or self.fault is not None

    @property
    def exit_code(self) -> int:
        """Exit code of the process: Ctrl-C counts as a failure, for `&&` in shells."""
        if self.number == signal.SIGINT:
            return 128 + self.number
        return 0

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Handle signals during a training run, and restore their handlers afterwards."""
        self._begin()
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                "Training runs in a thread, which cannot catch SIGTERM and Ctrl-C: no checkpoint "
                "then."
            )
        with self._handlers:
            yield
        # It came after the last step, so that no checkpoint answered it.
        if self._heard and not self.number:
            signal.raise_signal(self._heard)

    def stop_for(self, fault: Exception, control, save: bool) -> None:
        """End the run between two steps because of an error, if ``save`` with a checkpoint."""
        self.fault = fault
        control.should_training_stop = True
        control.should_save = save

    def on_step_begin(self, args, state, control, **kwargs):
        # Only now: while models and texts are loaded, a signal should end the process at once.
        if self._interrupt is None:
            self._interrupt = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
            self._handlers.enter_context(handled(dict.fromkeys(NAMES, self._request)))

    def on_train_end(self, args, state, control, **kwargs):
        self._handlers.close()

    def on_step_end(self, args, state, control, **kwargs):
        if self.agreed():
            control.should_save = True
            control.should_training_stop = True
            if args.save_strategy == SaveStrategy.BEST:
                # It saves only after the best evaluation.
                control.should_evaluate = False

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.fault is not None:
            control.should_evaluate = False
        elif self.number and state.epoch % 1:
            # In the middle of an epoch, where the parent would also evaluate and save again.
            control.should_evaluate = False
            control.should_save = False

    def on_evaluate(self, args, state, control, **kwargs):
        if self.agreed():
            # There may be no further step.
            control.should_save = True
            control.should_training_stop = True

    def on_save(self, args, state, control, **kwargs):
        if self.agreed():
            # The signal may have come while the checkpoint was written.
            control.should_training_stop = True

    def beside_checkpoints(self, folder: str, control) -> str:
        """Return where `Trainer`, at its end, looks for checkpoints to delete.

        That is not the folder with the checkpoint that was written because the run was stopped.
        """
        if self.stopped and not control.should_save:
            return os.path.join(folder, "stopped")
        return folder

    def agreed(self) -> bool:
        """Return whether any process has received a signal.

        A signal reaches the processes at different steps, and all stop together.
        """
        self.number = self._host.largest(self._heard)
        return self.number > 0

    def _request(self, number, frame):
        # Only a note: a handler runs between any two lines of Python, also within a step.
        self._heard = number
        if number == signal.SIGINT:
            second = signal.SIG_DFL
            if self._interrupt is signal.default_int_handler:
                # Python handled Ctrl-C before, as in a notebook, which a second one does not end.
                second = signal.default_int_handler
            signal.signal(number, second)
            if os.environ.get("RANK", "0") == "0":
                say(
                    "Ctrl-C: the run ends after this step, with a checkpoint. A second Ctrl-C ends "
                    "it at once."
                )
