"""studies/refined_correction.py: its loss is that of its formula, in value and gradients."""

import pytest
import torch

from headless_trainer.objective.negatives import NegativePool


def test_against_the_formula_term_by_term(study):
    script = study("refined_correction")
    generator = torch.Generator().manual_seed(0)
    ids = torch.tensor([3, 1, 3, 0, 3, 5])
    pool = NegativePool.from_targets(ids)
    hidden = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    table = torch.randn(7, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    log_q = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    found = script.refined_loss(
        hidden, pool.positions(ids), table[pool.ids], pool, log_q=log_q[pool.ids], reduction="sum", temperature=0.5
    )
    scores = hidden @ table.T / 0.5
    want = 0.0
    for row, target in enumerate(ids.tolist()):
        negatives = [other for other in ids.tolist() if other != target]  # each occurrence
        terms = [(scores[row, other] - scores[row, target]).exp() / (6 * log_q[other].exp()) for other in negatives]
        want = want + torch.log(1 + torch.stack(terms).sum())
    assert found.item() == pytest.approx(want.item(), rel=1e-9)
    for ours, theirs in zip(
        torch.autograd.grad(found, [hidden, table]), torch.autograd.grad(want, [hidden, table]), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_recipe_with_it_is_run_by_it(study, tmp_path, monkeypatch):
    shared = study("shared")
    started = []
    monkeypatch.setattr(
        shared, "results_of", lambda command, *_: started.append(command) or {"eval_cross_entropy": 1.0}
    )
    args = shared.at_scale(shared.model_arguments("A study.").parse_args(["--output_dir", str(tmp_path)]))
    for recipe in ("headless + refined correction", "headless"):
        shared.pretrain(args, recipe, 1e-3, 0)
    assert [command[1] for command in started] == ["studies/refined_correction.py", "run_pretrain.py"]
    assert started[0][-2:] == ["--log_q_correction", "true"]
