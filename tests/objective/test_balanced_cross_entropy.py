"""Balanced cross-entropy against a naive loop, against values worked by hand, and as the sum of its
parts.
"""

import math

import pytest
import torch

from headless_trainer.objective.losses import balanced_cross_entropy

LABELS = [0, 2, 2, 0, 0, 2, 0, 0, 3]  # of five classes, two of which are absent


def naive(logits, labels):
    """The mean over the classes present of each one's mean loss, row by row in float64."""
    by_class = {}
    for row, label in zip(logits.double(), labels.tolist(), strict=True):
        by_class.setdefault(label, []).append(-torch.log(row[label].exp() / row.exp().sum()))
    return sum(sum(losses) / len(losses) for losses in by_class.values()) / len(by_class)


def batch(labels=LABELS, classes=5, dtype=torch.float32):
    logits = torch.randn(len(labels), classes, generator=torch.Generator().manual_seed(0)).to(dtype)
    return logits.requires_grad_(), torch.tensor(labels)


def loss_and_gradient(function, logits, labels):
    loss = function(logits, labels)
    return loss, torch.autograd.grad(loss, logits)[0]


def assert_same(function, wanted, logits, labels):
    (loss, gradient), (want, want_gradient) = (
        loss_and_gradient(each, logits, labels) for each in (function, wanted)
    )
    assert want_gradient.abs().sum() > 0
    torch.testing.assert_close(loss, want, rtol=1e-6, atol=1e-7, check_dtype=False)
    torch.testing.assert_close(gradient, want_gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("labels", [LABELS, [0, 1, 2, 3, 4], [4, 4, 4], [1], [0, 0, 0, 0, 0, 0, 1]])
def test_equals_the_naive_loop(labels):
    assert_same(balanced_cross_entropy, naive, *batch(labels))


def test_value_and_gradient_by_hand():
    # Losses ln 2, ln 2 and ln 4: class 0 has two rows, class 1 one, so (ln 2 + ln 4) / 2 = 1.5 ln
    # 2.
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [math.log(3.0), 0.0]], requires_grad=True)
    loss, gradient = loss_and_gradient(balanced_cross_entropy, logits, torch.tensor([0, 0, 1]))
    assert loss.item() == pytest.approx(1.0397208, abs=1e-6)
    # (probability - one at the label) / (rows of the class * 2 classes)
    torch.testing.assert_close(
        gradient, torch.tensor([[-0.125, 0.125], [-0.125, 0.125], [0.375, -0.375]])
    )


@pytest.mark.parametrize("sizes", [[9], [4, 5], [1, 3, 0, 2, 2, 1]])
def test_parts_of_a_step_add_up_to_its_loss(sizes):
    logits, labels = batch()
    counts = torch.bincount(labels, minlength=5)

    def in_parts(logits, labels):
        pairs = zip(logits.split(sizes), labels.split(sizes), strict=True)
        return sum(balanced_cross_entropy(part, own, counts) for part, own in pairs)

    assert_same(in_parts, balanced_cross_entropy, logits, labels)


@pytest.mark.parametrize("class_counts", [None, torch.tensor([3, 0, 1])])
def test_no_rows_give_a_zero_that_is_attached(class_counts):
    logits = torch.empty(0, 3, dtype=torch.bfloat16, requires_grad=True)
    loss = balanced_cross_entropy(logits, torch.empty(0, dtype=torch.long), class_counts)
    assert loss.item() == 0.0 and loss.dtype == torch.float32
    loss.backward()
    assert logits.grad.shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_is_computed_in_float32_or_wider(dtype):
    logits, labels = batch(dtype=dtype)
    loss = balanced_cross_entropy(logits, labels)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    exact = 1e-12 if dtype == torch.float64 else 1e-6
    assert loss.item() == pytest.approx(naive(logits, labels).item(), rel=exact)


@pytest.mark.parametrize("logits, labels, class_counts, text", [
    (torch.zeros(2, 3), [0, 0, 0], None, r"logits .*\(2, 3\) and \(3,\)"),
    (torch.zeros(2), [0, 0], None, r"logits .*\(2,\) and \(2,\)"),  # a regression head
    *((torch.zeros(3, 3), [0, 0, 1], counts, r"class_counts .*\[2, 1, 0\]")
      for counts in ([2, 0, 3], [1, 5, 5], [2, 1])),
])  # fmt: skip
def test_refused(logits, labels, class_counts, text):
    counts = None if class_counts is None else torch.tensor(class_counts)
    with pytest.raises(ValueError, match=text):
        balanced_cross_entropy(logits, torch.tensor(labels), counts)
