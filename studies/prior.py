#!/usr/bin/env python
"""Whether the free head of a headless decoder gains from tuning: a scale of its scores, a weight of the prior, a trained bias.

    python studies/prior.py runs/recipe/.../headless_Muon/0.008_0 --train_file corpus.txt.gz

The free head scores ``o E^T + log q``. This scores ``scale * o E^T + tau * log q + b`` on held-out rows: on a grid of scale and
tau with ``b = 0``, and after training scale, tau and ``b`` on training rows with everything else frozen.
"""

import argparse
import math
from pathlib import Path

import torch
from shared import results_argument, token_rows, write_results
from torch import Tensor
from transformers import AutoTokenizer

from headless_trainer import load_token_counts
from headless_trainer.arguments import DataArguments
from headless_trainer.models.candidate_head import CandidateHead, load_trunk
from headless_trainer.objective.prior import log_prior
from headless_trainer.pictures import Panel, Series, curves
from headless_trainer.tables import markdown

SCALES = (0.9, 1.0, 1.1)
TAUS = (0.8, 0.9, 1.0, 1.1, 1.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a headless decoder")
    parser.add_argument("--train_file", nargs="+", help="the corpus; the documentation on this machine by default")
    parser.add_argument("--validation_split_percentage", type=float, default=2, help="as in its training run")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--held_out_rows", type=int, default=200)
    parser.add_argument("--training_rows", type=int, default=1_000)
    parser.add_argument("--steps", type=int, nargs="+", default=[25, 50, 100], help="of training the bias")
    results_argument(parser)
    args = parser.parse_args()

    data = DataArguments(
        train_file=args.train_file,
        validation_split_percentage=args.validation_split_percentage,
        max_seq_length=args.max_seq_length,
    )
    tokenizer, trunk = AutoTokenizer.from_pretrained(args.model), load_trunk(args.model).eval()
    log_q = log_prior(load_token_counts(args.model)[0]).float()
    embedding = CandidateHead(trunk).vectors(torch.arange(len(log_q))).detach()

    def predictions(part: str, rows: int) -> tuple[Tensor, Tensor]:
        """``(K, D)`` outputs and ``(K,)`` next tokens of the first rows of a part."""
        ids = token_rows(data, tokenizer, part, rows)
        with torch.no_grad():
            hidden = torch.cat(
                [trunk(input_ids=batch).last_hidden_state[:, :-1].flatten(0, 1) for batch in ids.split(16)]
            )
        return hidden, ids[:, 1:].flatten()

    def cross_entropy(hidden: Tensor, targets: Tensor, scale=1.0, tau=1.0, bias=0.0) -> Tensor:
        """Mean in nats."""
        parts = zip(hidden.split(2048), targets.split(2048), strict=True)
        sums = [
            torch.nn.functional.cross_entropy(part @ embedding.T * scale + tau * log_q + bias, ids, reduction="sum")
            for part, ids in parts
        ]
        return torch.stack(sums).sum() / len(targets)

    held_out = predictions("validation", args.held_out_rows)
    grid, trained = {}, {}
    with torch.no_grad():
        for scale in SCALES:
            grid[scale] = [math.exp(cross_entropy(*held_out, scale, tau)) for tau in TAUS]

    hidden, targets = predictions("train", args.training_rows)
    torch.manual_seed(0)
    learned = [torch.ones((), requires_grad=True), torch.ones((), requires_grad=True)]
    learned.append(torch.zeros_like(log_q, requires_grad=True))
    optimizer = torch.optim.Adam(learned, lr=0.02)
    for step in range(max(args.steps) + 1):
        if step in (0, *args.steps):
            scale, tau, bias = (value.detach() for value in learned)
            perplexity = math.exp(cross_entropy(*held_out, scale, tau, bias))
            trained[step] = {"scale": scale.item(), "tau": tau.item(), "perplexity": perplexity}
        chosen = torch.randint(len(hidden), (4096,))
        optimizer.zero_grad()
        cross_entropy(hidden[chosen], targets[chosen], *learned).backward()
        optimizer.step()
    rows = [(f"**{scale}**", *(f"{value:.1f}" for value in values)) for scale, values in grid.items()]
    learned_rows = [
        (step, f"{row['scale']:.3f}", f"{row['tau']:.3f}", f"{row['perplexity']:.1f}") for step, row in trained.items()
    ]
    table = [
        *(
            "Held-out perplexity by scale (rows) and weight of the prior (columns):",
            "",
            markdown(["", *map(str, TAUS)], rows),
            "",
        ),
        *("Scale, weight of the prior and a bias trained on training rows, 4,096 predictions a step:", ""),
        markdown(["steps", "scale", "weight of the prior", "held-out perplexity"], learned_rows),
    ]
    results = {"taus": TAUS, "perplexity_by_scale": grid, "trained": trained}
    write_results(args.results_dir or args.model / "prior", results, table, draw(grid), [args.model])


def draw(grid: dict[float, list[float]]):
    series = [Series(TAUS, perplexities, "o-", label=f"scale {scale}") for scale, perplexities in grid.items()]
    return curves([Panel(series, xlabel="weight of log q", ylabel="held-out perplexity")])


if __name__ == "__main__":
    main()
