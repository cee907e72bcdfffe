#!/usr/bin/env python
"""How much of the gradient of the scores survives the way back into the trunk: through a vocabulary head, and through CWT.

    python studies/surviving_gradient.py --train_file corpus.txt.gz --output_dir runs/recipe

The gradient of the loss by the scores of one prediction has an entry for every token that is scored. The trunk of width D
receives it multiplied by their embeddings, so whatever stands at right angles to the D columns of that matrix is lost: most of
it, with a vocabulary many times as large as D (arXiv 2603.10145). Contrastive weight tying scores fewer tokens. The figure is
the share of the norm that lies in the columns, over predictions of training batches, for decoders of `studies/recipe.py` in
the same ``--output_dir``. Each is also asked what the other loss would give; what is added to the scores of the head is log q.
"""

import itertools
import statistics
from pathlib import Path

import torch
from shared import at_scale, best_runs, data_arguments, model_arguments, spread, token_rows, write_results
from torch import Tensor
from transformers import AutoTokenizer

from headless_trainer import NegativePool, load_token_counts
from headless_trainer.models.candidate_head import CandidateHead, load_trunk
from headless_trainer.models.fold import unfold
from headless_trainer.objective.prior import log_prior
from headless_trainer.pictures import Panel, Series, curves
from headless_trainer.tables import markdown

BATCHES = 4


def main() -> None:
    parser = model_arguments(__doc__)
    args = at_scale(parser.parse_args())
    runs = {recipe: best_runs(args, recipe).values() for recipe in args.recipes}
    tokenizer = AutoTokenizer.from_pretrained(next(iter(runs[args.recipes[0]])))
    batches = token_rows(data_arguments(args), tokenizer, "train", BATCHES * args.batch_size).split(args.batch_size)
    found = {recipe: [measure(folder, batches) for folder in folders] for recipe, folders in runs.items()}
    rows = []
    for recipe, seeds in found.items():
        for loss in seeds[0]:
            scored, share = ([seed[loss][name] for seed in seeds] for name in ("tokens", "share"))
            rows.append((recipe, loss, spread(scored, 0), spread(share, 1)))
    text = [markdown(["decoder", "loss", "tokens scored", "surviving share of the norm (%)"], rows)]
    folder = args.results_dir or args.output_dir / "surviving_gradient"
    write_results(folder, found, text, draw(found), itertools.chain(*runs.values()))


def draw(found: dict[str, list[dict]]):
    """A point for each decoder and loss: the mean over seeds."""
    series = []
    for loss in next(iter(found.values()))[0]:
        shares = [statistics.mean(seed[loss]["share"] for seed in seeds) for seeds in found.values()]
        series.append(Series(shares, list(found), "o", label=loss))
    return curves([Panel(series, xlabel="share of the norm that reaches the trunk (%)", xlim=(0, 100))], size=(6, 3))


@torch.no_grad()
def measure(folder: Path, batches: tuple[Tensor, ...]) -> dict[str, dict[str, float]]:
    """Tokens scored and share that survives in percent, means over batches, for both losses on one model."""
    trunk = unfold(load_trunk(folder)).eval()
    log_q = log_prior(load_token_counts(folder)[0]).float()
    embedding = CandidateHead(trunk).vectors(torch.arange(len(log_q)))
    sums = {"vocabulary head": [0.0, 0.0], "contrastive": [0.0, 0.0]}
    for batch in batches:
        hidden = trunk(input_ids=batch).last_hidden_state[:, :-1].flatten(0, 1)
        targets = batch[:, 1:].flatten()
        pool = NegativePool.from_targets(targets)
        whole = (embedding, log_q, targets)
        for loss, scored in zip(
            sums, (whole, (embedding[pool.ids], pool.log_counts(), pool.positions(targets))), strict=True
        ):
            sums[loss][0] += len(scored[0]) / len(batches)
            sums[loss][1] += 100 * surviving_share(hidden, *scored) / len(batches)
    return {loss: {"tokens": tokens, "share": share} for loss, (tokens, share) in sums.items()}


def surviving_share(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> float:
    """Mean share of the norm of the scores' gradient that the trunk can receive.

    Args:
        hidden: ``(K, D)`` outputs.
        weight: ``(U, D)`` embeddings of the tokens that are scored.
        bias: ``(U,)`` added to the scores.
        targets: ``(K,)`` row of the target of each output.
    """
    columns = torch.linalg.qr(weight.double()).Q.float()  # (U, D), of length 1 and at right angles
    total = 0.0
    for outputs, ids in zip(hidden.split(1024), targets.split(1024), strict=True):
        gradient = (outputs @ weight.T + bias).softmax(-1)
        gradient[torch.arange(len(ids)), ids] -= 1
        total += ((gradient @ columns).norm(dim=-1) / gradient.norm(dim=-1)).sum().item()
    return total / len(targets)


if __name__ == "__main__":
    main()
