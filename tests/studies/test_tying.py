"""studies/tying.py: how alike two embeddings are."""

import pytest
import torch
from transformers import GPT2Config, GPT2Model


def test_what_each_comparison_does_not_see(study):
    script = study("tying")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 6, generator=generator)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=generator)).Q
    linear = torch.randn(6, 6, generator=generator)
    same, rotated, mapped = (
        script.alignment(rows, other) for other in (rows, rows @ rotation, rows @ linear)
    )
    assert same == pytest.approx(
        dict.fromkeys(("as they are", "rotated", "mapped", "nearest ten"), 1.0), abs=1e-4
    )
    assert rotated["as they are"] < 0.9 and rotated["rotated"] == pytest.approx(1, abs=1e-4)
    assert rotated["nearest ten"] == pytest.approx(1)
    assert (
        mapped["rotated"] < 0.95
        and mapped["mapped"] == pytest.approx(1, abs=1e-4)
        and mapped["nearest ten"] < 0.9
    )


def test_shares_of_the_residual_stream(study):
    """Against the blocks called one by one, and of a layer that adds nothing."""
    torch.manual_seed(0)
    model = GPT2Model(
        GPT2Config(vocab_size=50, n_embd=16, n_layer=3, n_head=2, n_positions=8)
    ).eval()
    for name in ("attn", "mlp"):
        torch.nn.init.zeros_(getattr(model.h[1], name).c_proj.weight)
    ids = torch.randint(50, (4, 8))
    shares = study("tying").stream_shares(model, ids)
    stream = model.wte(ids) + model.wpe(torch.arange(8))
    parts = [stream]
    for block in model.h:
        out = block(stream)
        out = out[0] if isinstance(out, tuple) else out
        parts.append(out - stream)
        stream = out
    want = [((part * stream).sum(-1) / (stream * stream).sum(-1)).mean().item() for part in parts]
    assert shares == pytest.approx(want, abs=1e-5) and sum(shares) == pytest.approx(1, abs=1e-5)
    assert shares[2] == pytest.approx(0, abs=1e-6) and min(shares[0], shares[1], shares[3]) > 1e-4
