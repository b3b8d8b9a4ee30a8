"""Trains a classifier whose layers are split over three workers, with calls and references alone.

`telegrad.parallel.Pipeline` does all of this (`examples/pipeline.py`); here it is done by hand.

    telegrad run --nproc-per-node 3 examples/pipeline_by_hand.py

Each worker owns one stage of the model. Rank 0 has the images too: it cuts a mini-batch into
micro-batches and sends all of them off at once, so that one is in the first stage while those
before it are in the later ones.

    stage 0   0  1  2  3
    stage 1      0  1  2  3             forward, by micro-batch; backward runs the other way
    stage 2         0  1  2  3

A stage is an `async def` method that calls the next stage and awaits what comes back. The gradients
take the same way back by themselves, and the optimizer steps each parameter where it lives.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

import telegrad as tg
from telegrad import dist_autograd, nn, optim, rpc
from telegrad.nn import functional
from telegrad.parallel import DistributedOptimizer, parameter_rrefs

Floats: TypeAlias = npt.NDArray[np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]

EPOCHS = 10
BATCH = 96
MICRO_BATCHES = 4
HIDDEN = 128
LEARNING_RATE = 0.1
MOMENTUM = 0.9


@final
class Stage(nn.Module):
    """One part of the model, and the way to the next one.

    Args:
        j: Which stage it is.
        n: How many there are.
    """

    def __init__(self, j: int, n: int) -> None:
        super().__init__()
        rng = np.random.default_rng(j)
        last = j == n - 1
        layer = nn.Linear(64 if j == 0 else HIDDEN, 10 if last else HIDDEN, rng=rng)
        self.layers = nn.Sequential(layer) if last else nn.Sequential(layer, nn.ReLU())
        self.following: rpc.RRef[Stage] | None = None
        self.turn = asyncio.Lock()  # one micro-batch at a time, first come, first served
        self.in_flight = 0
        self.most_in_flight = 0

    def follow(self, following: rpc.RRef[Stage] | None) -> None:
        """Says which stage is next."""
        self.following = following

    async def run(self, x: tg.Tensor) -> tg.Tensor:
        """Returns the logits: sends a micro-batch through this stage and all that follow."""
        async with self.turn:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            y: tg.Tensor = await rpc.to_thread(self.layers, x)
        try:
            if self.following is not None:
                y = await self.following.rpc_async().run(y)
        finally:
            self.in_flight -= 1
        return y

    def overlap(self) -> int:
        """Returns the most micro-batches that were in this stage or beyond at one time."""
        return self.most_in_flight


@final
class Pipeline:
    """The whole model, as the worker that trains it sees it.

    Args:
        workers: Who owns the stages, in order.
    """

    def __init__(self, workers: Sequence[rpc.WorkerInfo]) -> None:
        n = len(workers)
        self.stages = [rpc.remote(worker, Stage, (j, n)) for j, worker in enumerate(workers)]
        for stage, following in zip(self.stages, [*self.stages[1:], None], strict=True):
            stage.rpc_sync().follow(following)
        self.optimizer = DistributedOptimizer(
            optim.SGD,
            [rref for stage in self.stages for rref in parameter_rrefs(stage)],
            lr=LEARNING_RATE,
            momentum=MOMENTUM,
        )

    def forward(self, images: Floats) -> list[tg.Tensor]:
        """Returns the logits of each micro-batch; all of them are under way at once."""
        first = self.stages[0].rpc_async()
        parts = np.array_split(images, MICRO_BATCHES)
        return rpc.wait_all([first.run(tg.as_tensor(part)) for part in parts])

    def losses(self, images: Floats, labels: Labels) -> list[tg.Tensor]:
        """Returns what each micro-batch adds to the mean loss of the mini-batch."""
        parts = np.array_split(labels, MICRO_BATCHES)
        return [
            functional.cross_entropy(logits, part) * (len(part) / len(labels))
            for logits, part in zip(self.forward(images), parts, strict=True)
        ]

    def step(self, images: Floats, labels: Labels) -> float:
        """Trains on one mini-batch and returns its loss."""
        with dist_autograd.context() as context_id:
            losses = self.losses(images, labels)
            dist_autograd.backward(context_id, losses)
            self.optimizer.step(context_id)
        return sum(float(loss.item()) for loss in losses)

    def right_answers(self, images: Floats, labels: Labels) -> int:
        """Returns how many of the images the model recognises."""
        with tg.no_grad():
            logits = np.concatenate([part.numpy() for part in self.forward(images)])
        return int((logits.argmax(axis=1) == labels).sum())

    def overlap(self) -> list[int]:
        """Returns, by stage, the most micro-batches that were there or beyond at one time."""
        return [stage.rpc_sync().overlap() for stage in self.stages]


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
    workers = rpc.get_worker_infos()
    pipeline = Pipeline(workers)
    print(f"{len(workers)} stages, {MICRO_BATCHES} micro-batches of {BATCH // MICRO_BATCHES}")
    (images, labels), (test_images, test_labels) = load_data()
    rng = np.random.default_rng(0)
    for epoch in range(1, EPOCHS + 1):
        order = rng.permutation(len(images))
        batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        losses = [pipeline.step(images[batch], labels[batch]) for batch in batches]
        print(f"epoch {epoch:2}/{EPOCHS}  loss {np.mean(losses):.4f}", flush=True)
    right = pipeline.right_answers(test_images, test_labels)
    print(f"test accuracy: {100 * right / len(test_labels):.1f} %")
    in_flight = ", ".join(f"{most} from stage {j} on" for j, most in enumerate(pipeline.overlap()))
    print(f"most micro-batches in flight at one time: {in_flight}")
    print(f"time: {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    with rpc.init_rpc() as agent:
        if agent.rank == 0:
            if agent.world_size < 2:
                sys.exit(
                    "one worker is no pipeline; run: telegrad run --nproc-per-node 3 " + __file__
                )
            train()
