"""A convolutional network with BatchNorm learns on four ranks as it does in one process.

The data set is uneven: the ranks have 8, 7, 7 and 6 batches. The results are not bitwise those of one
process, for three reasons. BatchNorm normalises with the statistics of a rank's own 8 images, not
with those of all 32. The running statistics are those of one rank's images. And one process divides
by the size of its last, smaller batch, while ranks divide by the number of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad.autograd import no_grad, tensor
from telegrad.nn import BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential
from telegrad.nn.functional import cross_entropy
from telegrad.optim import SGD
from telegrad.parallel import DistributedDataParallel, distributed_sampler
from telegrad.testing import Cluster
from telegrad.types import Array

N = 4
BATCH = 8  # of a rank
ENDS = np.cumsum([8 * BATCH, 7 * BATCH, 7 * BATCH, 6 * BATCH])  # of the ranks' parts
COUNT = int(ENDS[-1])
EPOCHS = 4
RATE = 0.05
MOMENTUM = 0.9


def images(count: int, seed: int) -> tuple[Array, Array]:
    """Returns noisy images of a bar, and its direction: horizontal, vertical or diagonal."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    pixels = rng.normal(0.0, 0.4, (count, 1, 8, 8))
    for pixel, label, place in zip(pixels, labels, rng.integers(1, 7, count), strict=True):
        if label == 0:
            pixel[0, place, :] += 1.5
        elif label == 1:
            pixel[0, :, place] += 1.5
        else:
            pixel[0] += 1.5 * np.eye(8, k=place - 4)
    return pixels.astype(np.float32), labels


def network() -> Module:
    rng = np.random.default_rng(0)
    return Sequential(
        Conv2d(1, 8, 3, padding=1, rng=rng),
        BatchNorm2d(8),
        ReLU(),
        MaxPool2d(2),
        Flatten(),
        Linear(8 * 16, 3, rng=rng),
    )


class Learned(NamedTuple):
    """What came of training: the loss and accuracy on images not seen, and the model."""

    loss: float
    accuracy: float
    state: bytes


def examined(model: Module) -> Learned:
    pixels, labels = images(300, seed=1)
    model.eval()
    with no_grad():
        logits: Any = model(tensor(pixels))
    loss = float(cross_entropy(logits, labels).item())
    accuracy = float((logits.data.argmax(axis=1) == labels).mean())
    return Learned(loss, accuracy, b"".join(x.tobytes() for x in model.state_dict().values()))


def batches(indices: Array, size: int) -> Iterator[Array]:
    for start in range(0, len(indices), size):
        yield indices[start : start + size]


def step(model: Module, optimizer: SGD, pixels: Array, labels: Array) -> None:
    optimizer.zero_grad()
    cross_entropy(model(tensor(pixels)), labels).backward()
    optimizer.step()


def order(epoch: int) -> Array:
    return np.random.default_rng(epoch).permutation(COUNT)


def on_ranks() -> Learned:
    """Each rank has a part of another size; those that have more go on without the others."""
    rank = dist.init_process_group().rank
    pixels, labels = images(COUNT, seed=0)
    model = DistributedDataParallel(network(), bucket_bytes=1000)
    optimizer = SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for epoch in range(EPOCHS):
        with model.join():
            for batch in batches(np.split(order(epoch), ENDS)[rank], BATCH):
                step(model, optimizer, pixels[batch], labels[batch])
    return examined(model)


def with_a_sampler() -> Learned:
    """Each rank draws equally many, some of them twice."""
    dist.init_process_group()
    pixels, labels = images(COUNT, seed=0)
    model = DistributedDataParallel(network(), bucket_bytes=1000)
    optimizer = SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    sampler = distributed_sampler(COUNT)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for batch in batches(np.array(list(sampler)), BATCH):
            step(model, optimizer, pixels[batch], labels[batch])
    dist.barrier()
    return examined(model)


@pytest.fixture(scope="module")
def alone() -> Learned:
    """One process that trains on the batches of all ranks at once."""
    pixels, labels = images(COUNT, seed=0)
    model = network()
    optimizer = SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for epoch in range(EPOCHS):
        for batch in batches(order(epoch), N * BATCH):
            step(model, optimizer, pixels[batch], labels[batch])
    return examined(model)


def test_ranks_with_uneven_parts_learn_as_one_process_does(alone: Learned) -> None:
    with Cluster(N) as cluster:
        found = cluster.run(on_ranks)
    assert len({each.state for each in found}) == 1  # of one that was last, statistics included
    assert alone.accuracy >= 0.95
    assert found[0].accuracy >= alone.accuracy - 0.03
    assert found[0].loss <= alone.loss + 0.1


def test_ranks_with_a_sampler_learn_as_one_process_does(alone: Learned) -> None:
    with Cluster(N) as cluster:
        found = cluster.run(with_a_sampler)
    assert found[0].accuracy >= alone.accuracy - 0.03
    assert found[0].loss <= alone.loss + 0.1
