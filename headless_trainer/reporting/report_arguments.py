"""Arguments of `headless-trainer report`."""

from dataclasses import dataclass

from transformers.hf_argparser import HfArg

# `from __future__ import annotations` must stay out of this file: HfArgumentParser reads the annotations as types.


@dataclass
class ReportArguments:
    """Runs and the report."""

    runs: list[str] = HfArg(
        help="Output folders of training runs, or NAME=RUN1,RUN2 for the seeds of one. The flag itself is optional "
        "in front of the first."
    )
    output_dir: str = HfArg(help="Folder of the report.")
