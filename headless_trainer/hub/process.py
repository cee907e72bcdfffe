"""The process of one upload: started with a job, waited for no longer than its limit, ended at any moment."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from huggingface_hub import get_token

from .upload import without_secrets

PROGRAM = Path(__file__).with_name("upload.py")
ENDED = {"error": "it was ended"}


class UploadProcess:
    """Runs `upload` with one job.

    A thread could not be ended, and would keep its process from ending: the client of huggingface_hub waits without limit,
    in threads that Python waits for when it exits.
    """

    def __init__(self):
        self._process: subprocess.Popen | None = None
        self._ended = False

    def run(self, job: dict, limit: float) -> dict[str, str]:
        """Do the job within ``limit`` seconds: ``{"url": ...}`` or ``{"error": ...}``.

        Args:
            job: what `upload` reads. It goes through a pipe, because other users see command lines.
            limit: seconds.

        Raises:
            OSError: if the process cannot be started.
        """
        if self._ended:
            return ENDED
        with tempfile.TemporaryFile("w+") as noise, self._start(noise) as process:
            self._process = process
            try:
                with suppress(BrokenPipeError):  # it ended at once: what it said of that is read below
                    process.stdin.write(json.dumps(job) + "\n")
                    process.stdin.flush()
                if not self._ended:
                    process.wait(limit)
            except subprocess.TimeoutExpired:
                return {"error": f"it took longer than {limit / 60:.0f} minutes"}
            finally:
                process.kill()
                with suppress(BrokenPipeError):
                    process.stdin.close()
            if self._ended:
                return ENDED
            answer = process.stdout.read()
            if answer:
                return json.loads(answer)
            noise.seek(0)
            last = (noise.read().strip().splitlines() or ["no message"])[-1]
            secrets = [job["token"], get_token()]
            return {"error": without_secrets(f"the upload ended with code {process.returncode}: {last}", secrets)}

    def end(self) -> None:
        """End the job now, or keep it from starting."""
        self._ended = True  # before the process is looked for: it may be starting
        if self._process is not None:
            self._process.kill()

    @staticmethod
    def _start(noise) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            text=True,
            env=os.environ | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        )
