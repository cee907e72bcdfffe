"""Balanced cross-entropy against a naive loop, against values worked by hand, and as the sum of its parts."""

import math

import pytest
import torch
import torch.nn.functional as F

from headless_trainer.objective.losses import balanced_cross_entropy

LABELS = [0, 2, 2, 0, 0, 2, 0, 0, 3]  # of five classes, two of which are absent


def naive(logits, labels):
    """The mean over the classes present of each one's mean loss, row by row in float64."""
    logits = logits.double()
    by_class = {}
    for row, label in zip(logits, labels.tolist(), strict=True):
        by_class.setdefault(label, []).append(-torch.log(row[label].exp() / row.exp().sum()))
    return sum(sum(losses) / len(losses) for losses in by_class.values()) / len(by_class)


def batch(labels=LABELS, classes=5, dtype=torch.float32, seed=0):
    logits = torch.randn(len(labels), classes, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return logits.requires_grad_(), torch.tensor(labels)


def loss_and_gradient(function, logits, labels):
    loss = function(logits, labels)
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss, gradient


@pytest.mark.parametrize("labels", [LABELS, [0, 1, 2, 3, 4], [4, 4, 4], [1], [0, 0, 0, 0, 0, 0, 1]])
def test_equals_the_naive_loop(labels):
    logits, labels = batch(labels)
    loss, gradient = loss_and_gradient(balanced_cross_entropy, logits, labels)
    wanted_loss, wanted_gradient = loss_and_gradient(naive, logits, labels)
    assert gradient.abs().sum() > 0
    torch.testing.assert_close(loss.double(), wanted_loss, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-5, atol=1e-7)


def test_value_and_gradient_by_hand():
    # Losses ln 2, ln 2 and ln 4: class 0 has two rows, class 1 one, so (ln 2 + ln 4) / 2 = 1.5 ln 2.
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [math.log(3.0), 0.0]], requires_grad=True)
    loss, gradient = loss_and_gradient(balanced_cross_entropy, logits, torch.tensor([0, 0, 1]))
    assert loss.item() == pytest.approx(1.0397208, abs=1e-6)
    # (probability - one at the label) / (rows of the class * 2 classes)
    wanted = [[-0.125, 0.125], [-0.125, 0.125], [0.375, -0.375]]
    torch.testing.assert_close(gradient, torch.tensor(wanted))
    plain = F.cross_entropy(logits, torch.tensor([0, 0, 1]))  # (ln 2 + ln 2 + ln 4) / 3
    assert plain.item() == pytest.approx(0.9241962, abs=1e-6)


@pytest.mark.parametrize("labels", [[0, 1, 2, 2, 1, 0], [3, 1, 1, 3], [2, 2, 2]], ids=["all", "some absent", "one"])
def test_equals_cross_entropy_where_classes_are_equally_frequent(labels):
    logits, labels = batch(labels, classes=4)
    loss, gradient = loss_and_gradient(balanced_cross_entropy, logits, labels)
    wanted_loss, wanted_gradient = loss_and_gradient(F.cross_entropy, logits, labels)
    torch.testing.assert_close(loss, wanted_loss)
    torch.testing.assert_close(gradient, wanted_gradient)


def test_repeating_a_class_changes_nothing():
    """The property that gives the loss its name, which plain cross-entropy does not have."""
    logits, labels = batch([0, 1, 1], classes=3)
    repeated = balanced_cross_entropy(logits[[0, 0, 0, 0, 1, 2]], labels[[0, 0, 0, 0, 1, 2]])
    torch.testing.assert_close(repeated, balanced_cross_entropy(logits, labels))


@pytest.mark.parametrize("sizes", [[9], [4, 5], [1, 3, 0, 2, 2, 1]])
def test_parts_of_a_step_add_up_to_its_loss(sizes):
    logits, labels = batch()
    counts = torch.bincount(labels, minlength=5)
    wanted_loss, wanted_gradient = loss_and_gradient(balanced_cross_entropy, logits, labels)

    def in_parts(logits, labels):
        pairs = zip(logits.split(sizes), labels.split(sizes), strict=True)
        return sum(balanced_cross_entropy(part, own, counts) for part, own in pairs)

    loss, gradient = loss_and_gradient(in_parts, logits, labels)
    torch.testing.assert_close(loss, wanted_loss)
    torch.testing.assert_close(gradient, wanted_gradient)
    alone = [balanced_cross_entropy(*pair) for pair in zip(logits.split([4, 5]), labels.split([4, 5]), strict=True)]
    assert (sum(alone) / 2 - wanted_loss).abs() > 1e-3  # what the parts' own counts would give


def test_classes_of_other_micro_batches_count_as_present():
    logits, labels = batch([1, 1], classes=3)
    part = balanced_cross_entropy(logits, labels, torch.tensor([5, 2, 0]))
    torch.testing.assert_close(part, F.cross_entropy(logits, labels) / 2)


@pytest.mark.parametrize("class_counts", [None, torch.tensor([3, 0, 1])])
def test_no_rows_give_a_zero_that_is_attached(class_counts):
    logits = torch.empty(0, 3, dtype=torch.bfloat16, requires_grad=True)
    loss = balanced_cross_entropy(logits, torch.empty(0, dtype=torch.long), class_counts)
    assert loss.item() == 0.0
    assert loss.dtype == torch.float32
    loss.backward()
    assert logits.grad.shape == (0, 3)


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_is_computed_in_float32_or_wider(dtype, wide):
    logits, labels = batch(dtype=dtype)
    loss = balanced_cross_entropy(logits, labels)
    assert loss.dtype == wide
    exact = 1e-12 if wide == torch.float64 else 1e-6
    assert loss.item() == pytest.approx(naive(logits, labels).item(), rel=exact)


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1e4, 0.0], [0.0, 1e4]])
    assert balanced_cross_entropy(logits, torch.tensor([1, 1])).item() == pytest.approx(5e3)


@pytest.mark.parametrize("labels", [[0, -1], [-100, 2], [1, 3]])
def test_labels_outside_the_classes_are_refused(labels):
    logits, labels = batch(labels, classes=3)
    with pytest.raises(ValueError, match=rf"labels must be in \[0, 3\).*got {labels.min()} to {labels.max()}\..*head"):
        balanced_cross_entropy(logits, labels)


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"logits must be \(N, C\) and labels \(N,\), got \(2, 3\) and \(3,\)"):
        balanced_cross_entropy(torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"got \(2,\) and \(2,\)"):  # a regression head
        balanced_cross_entropy(torch.zeros(2), torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize("class_counts", [[2, 0, 3], [1, 5, 5], [2, 1]], ids=["absent", "too few", "too short"])
def test_counts_of_another_batch_are_refused(class_counts):
    logits, labels = batch([0, 0, 1], classes=3)
    with pytest.raises(ValueError, match=r"class_counts must count.*\[2, 1, 0\] among them, got \["):
        balanced_cross_entropy(logits, labels, torch.tensor(class_counts))
