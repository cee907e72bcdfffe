#!/usr/bin/env python
"""A loss of one's own: candidates also have to be far from the output in proportion to a margin.

    headless-trainer pretrain demo --trainer examples.own_loss:MarginTrainer --train_file corpus.txt
    python examples/own_loss.py --train_file corpus.txt

The target's score is lowered by a margin before the softmax over the candidates, as CosFace does
it with classes (https://arxiv.org/abs/1801.09414), so a target must win by that much. One method
is overridden, one number is logged.
"""

import sys

import torch
from torch.nn.functional import cross_entropy

from headless_trainer import HeadlessTrainer

MARGIN = 1.0


class MarginTrainer(HeadlessTrainer):
    def pool_loss(self, outputs, part, vectors, bias):
        """Sum of the losses of the predictions of one pool: ``outputs`` ``(N, D)``, ``vectors``
        ``(U, D)`` of its tokens.
        """
        # (N, U): repeated targets count each time.
        scores = outputs @ vectors.T + part.pool.log_counts(outputs.dtype)
        rows = torch.arange(len(scores), device=scores.device)
        won = scores.argmax(-1) == part.target_index
        # The mean since the last log, over all processes.
        self.window.add("targets_that_win", won.sum(), len(won))
        lowered = scores.index_put(
            (rows, part.target_index), scores.new_tensor(-MARGIN), accumulate=True
        )
        return cross_entropy(lowered, part.target_index, reduction="sum")


if __name__ == "__main__":
    from headless_trainer.cli.pretrain import main

    main(
        [
            "demo",
            "--trainer",
            "own_loss:MarginTrainer",
            "--output_dir",
            "runs/own_loss",
            *sys.argv[1:],
        ]
    )
