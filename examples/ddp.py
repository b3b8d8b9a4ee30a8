"""Trains a classifier of handwritten digits on several ranks, as one process would on all of them.

    telegrad run --nproc-per-node 3 examples/ddp.py

Every rank has a copy of the model and takes an equal part of each batch; gradients are averaged
while backward still computes. At the end rank 0 trains the same model alone, on whole batches.

    rank 0   batch[0::3] ─ model ─ loss ─ backward ─┐             ┌─ optimizer.step
    rank 1   batch[1::3] ─ model ─ loss ─ backward ─┼─ gradients ─┼─ optimizer.step
    rank 2   batch[2::3] ─ model ─ loss ─ backward ─┘  averaged   └─ optimizer.step
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

import telegrad as tg
from telegrad import collectives as dist
from telegrad import nn, optim
from telegrad.nn import functional
from telegrad.parallel import DistributedDataParallel

Floats: TypeAlias = npt.NDArray[np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]
Data: TypeAlias = tuple[Floats, Labels]

EPOCHS = 20
BATCH_OF_A_RANK = 32
LEARNING_RATE = 0.1
MOMENTUM = 0.9


def load_data() -> tuple[Data, Data]:
    """Returns images and labels of four fifths of the digits, and of the fifth held out."""
    digits = load_digits()
    images = (digits.data / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = np.split(order, [len(order) * 4 // 5])
    return (images[train], labels[train]), (images[test], labels[test])


def make_model(seed: int) -> nn.Module:
    """Returns a classifier: (batch, 64) pixels to (batch, 10) logits."""
    rng = np.random.default_rng(seed)
    return nn.Sequential(
        nn.Linear(64, 128, rng=rng), nn.ReLU(), nn.Linear(128, 64, rng=rng), nn.ReLU(),
        nn.Linear(64, 10, rng=rng),
    )  # fmt: skip


def batches(count: int, size: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yields the same batches on every rank; all are whole, so that all have as many."""
    rng = np.random.default_rng(1)
    for _ in range(EPOCHS):
        order = rng.permutation(count)
        for start in range(0, count - size + 1, size):
            yield order[start : start + size]


def train(model: nn.Module, data: Data, batch_size: int, rank: int, world_size: int) -> None:
    """Trains on every world_size-th image of each batch."""
    images, labels = data
    optimizer = optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    for batch in batches(len(images), batch_size):
        mine = batch[rank::world_size]
        optimizer.zero_grad()
        logits = model(tg.as_tensor(images[mine]))
        functional.cross_entropy(logits, labels[mine]).backward()
        optimizer.step()


def accuracy(model: nn.Module, data: Data) -> float:
    """Returns how many percent of the images the model recognises."""
    images, labels = data
    with tg.no_grad():
        logits = model(tg.as_tensor(images))
    return 100.0 * float((logits.numpy().argmax(axis=1) == labels).mean())


def state(model: nn.Module) -> Floats:
    """Returns all parameters in one array."""
    return np.concatenate([array.ravel() for array in model.state_dict().values()])


def main() -> None:
    """Trains on all ranks, then on rank 0 alone, and compares."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    training, held_out = load_data()
    batch_size = BATCH_OF_A_RANK * world_size

    model = DistributedDataParallel(make_model(seed=rank))  # all start as rank 0
    began = time.monotonic()
    train(model, training, batch_size, rank, world_size)
    seconds = time.monotonic() - began

    states = dist.all_gather(state(model))
    if rank == 0:
        equal = all(other.tobytes() == states[0].tobytes() for other in states)
        print(f"ranks: {world_size}   time: {seconds:.1f} s")
        print(f"test accuracy, every rank with its part: {accuracy(model, held_out):.1f} %")
        alone = make_model(seed=0)
        train(alone, training, batch_size, 0, 1)
        distance = float(np.abs(state(alone) - states[0]).max())
        print(f"test accuracy, one process with all: {accuracy(alone, held_out):.1f} %")
        print(f"largest difference of a parameter between the two: {distance:.1g}")
        print(f"parameters bitwise equal on all ranks: {'yes' if equal else 'no'}")


if __name__ == "__main__":
    dist.init_process_group()
    main()
    dist.destroy_process_group()
