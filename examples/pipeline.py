"""Trains a classifier of handwritten digits whose layers are split over the workers of the job.

    telegrad run --nproc-per-node 3 examples/pipeline.py

Rank 0 has the images. Each worker gets one stage of the model; the micro-batches of a mini-batch
follow each other through the stages, forward and backward by turns (`docs/pipelines.md`).
"""

from __future__ import annotations

import time
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from telegrad import nn, optim, rpc
from telegrad.parallel import Pipeline

Floats: TypeAlias = npt.NDArray[np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]

EPOCHS = 10
BATCH = 96
MICRO_BATCHES = 4
HIDDEN = 128
LEARNING_RATE = 0.1
MOMENTUM = 0.9


def make_model() -> nn.Sequential:
    """Returns the whole model, the same on each call."""
    rng = np.random.default_rng(0)
    return nn.Sequential(
        nn.Linear(64, HIDDEN, rng=rng),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN, rng=rng),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN, rng=rng),
        nn.ReLU(),
        nn.Linear(HIDDEN, 10, rng=rng),
    )


def load_data() -> tuple[tuple[Floats, Labels], tuple[Floats, Labels]]:
    """Returns images and labels of four fifths of the digits, and of the fifth held out."""
    digits = load_digits()
    images = (digits.data / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = np.split(order, [len(order) * 4 // 5])
    return (images[train], labels[train]), (images[test], labels[test])


def train() -> None:
    """Makes the pipeline, trains it and tells the result."""
    began = time.monotonic()
    (images, labels), (test_images, test_labels) = load_data()
    workers = [worker.name for worker in rpc.get_worker_infos()]
    rng = np.random.default_rng(0)

    loss_of = nn.functional.cross_entropy
    pipe = Pipeline.from_sequential(
        make_model(), workers, balance="time", num_microbatches=MICRO_BATCHES, loss=loss_of
    )
    optimizer = pipe.optimizer(optim.SGD, lr=LEARNING_RATE, momentum=MOMENTUM)
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for batch in np.array_split(rng.permutation(len(images)), len(images) // BATCH):
            losses.append(pipe.step(images[batch], labels[batch]))
            optimizer.step()
        print(f"epoch {epoch:2}/{EPOCHS}  loss {np.mean(losses):.4f}", flush=True)
    right = pipe.forward(test_images).data.argmax(axis=1) == test_labels

    print(f"test accuracy: {100 * right.mean():.1f} %")
    print(f"most micro-batches that a stage held: {pipe.report().held}")
    print(f"time: {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    with rpc.init_rpc() as agent:
        if agent.rank == 0:
            train()
