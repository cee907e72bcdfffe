"""Batches move between devices whole; the device ``meta`` stands for an accelerator."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headless_trainer.trainers.transfer import on_device


@dataclass(frozen=True)
class Pool:
    ids: Tensor
    size: int


def test_every_tensor_inside_is_moved_and_everything_else_is_kept():
    batch = {
        "input_ids": torch.ones(2, 3),
        "masks": [torch.ones(1), (torch.ones(2), "name")],
        "pool": Pool(torch.ones(4), size=4),
    }
    moved = on_device(batch, torch.device("meta"))
    assert moved["input_ids"].device.type == "meta"
    first, (second, name) = moved["masks"]
    assert (first.device.type, second.device.type, name) == ("meta", "meta", "name")
    assert moved["pool"].ids.device.type == "meta"
    assert moved["pool"].size == 4


def test_a_tensor_that_occurs_twice_is_moved_once():
    ids = torch.ones(4)
    moved = on_device({"looked_up": ids, "pool": Pool(ids, size=4)}, torch.device("meta"))
    assert moved["looked_up"] is moved["pool"].ids


def test_tensors_that_are_already_there_are_not_copied():
    ids = torch.ones(4)
    assert on_device([ids], torch.device("cpu"))[0] is ids
