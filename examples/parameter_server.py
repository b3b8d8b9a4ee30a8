"""Trains a classifier of handwritten digits with one parameter server and asynchronous trainers.

    telegrad run --nproc-per-node 3 examples/parameter_server.py

Rank 0 is the server and owns the head of the model, shared by all. Every other rank is a trainer:
it owns a stem and an equal part of the images, and steps the shared head whenever it likes.

    trainer   images ─ stem ─ hidden ──────► head ─ logits     server
                                            (RRef)     │
              loss ◄───────────────────────────────────┘
              backward(loss) ──── gradients ──► head's, kept there
              optimizer.step ─────────────────► steps each parameter where it lives
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

import telegrad as tg
from telegrad import dist_autograd, nn, optim, rpc
from telegrad.nn import functional
from telegrad.parallel import DistributedOptimizer, parameter_rrefs

Floats: TypeAlias = npt.NDArray[np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]

EPOCHS = 20
BATCH = 32
HIDDEN = 128
LEARNING_RATE = 0.05
MOMENTUM = 0.9
LINE_EVERY = 5  # epochs; the lines between are overwritten on a terminal, and dropped elsewhere


class Stem(nn.Module):
    """The trainer's part of the model: (batch, 64) pixels to (batch, HIDDEN) features."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, HIDDEN, rng=rng), nn.ReLU())

    def forward(self, images: tg.Tensor) -> tg.Tensor:
        """Returns the features."""
        features: tg.Tensor = self.layers(images)
        return features


class Head(nn.Module):
    """The server's part of the model: (batch, HIDDEN) features to (batch, 10) logits."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(HIDDEN, 64, rng=rng), nn.ReLU(), nn.Linear(64, 10, rng=rng)
        )

    def forward(self, features: tg.Tensor) -> tg.Tensor:
        """Returns the logits."""
        logits: tg.Tensor = self.layers(features)
        return logits


class Progress:
    """Tells how far the trainers are; lives on the server, and they report to it."""

    def __init__(self, trainers: int) -> None:
        self.losses: dict[int, list[float]] = {r: [] for r in range(1, trainers + 1)}
        self.shown = 0

    def report(self, rank: int, loss: float) -> None:
        """Takes the mean loss of one more epoch of one trainer."""
        self.losses[rank].append(loss)
        epoch = min(len(losses) for losses in self.losses.values())
        if epoch == self.shown:
            return
        self.shown = epoch
        loss = float(np.mean([losses[epoch - 1] for losses in self.losses.values()]))
        stays = epoch % LINE_EVERY == 0 or epoch == EPOCHS
        print(f"epoch {epoch:2}/{EPOCHS}  loss {loss:.4f}", end="\n" if stays else "\r", flush=True)


class Trainer:
    """Owns a stem and a part of the images; the head and the progress are the server's."""

    def __init__(self, head: rpc.RRef[Head], progress: rpc.RRef[Progress]) -> None:
        agent = rpc.get_worker_info()
        trainers = len(rpc.get_worker_infos()) - 1
        (images, labels), self.test = load_data()
        self.rank = agent.rank
        self.images = images[self.rank - 1 :: trainers]
        self.labels = labels[self.rank - 1 :: trainers]
        self.rng = np.random.default_rng(self.rank)
        self.stem = Stem(self.rng)
        self.head = head
        self.progress = progress
        self.optimizer = DistributedOptimizer(
            optim.SGD,
            [*parameter_rrefs(self.stem), *parameter_rrefs(head)],
            lr=LEARNING_RATE,
            momentum=MOMENTUM,
        )

    def train(self) -> None:
        """Runs all epochs, without waiting for any other trainer."""
        for _ in range(EPOCHS):
            order = self.rng.permutation(len(self.images))
            batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
            losses = [self.step(self.images[batch], self.labels[batch]) for batch in batches]
            self.progress.rpc_sync().report(self.rank, float(np.mean(losses)))

    def step(self, images: Floats, labels: Labels) -> float:
        """Trains on one batch and returns its loss."""
        with dist_autograd.context() as context_id:
            features = self.stem(tg.as_tensor(images))
            logits = self.head.rpc_sync().forward(features)
            loss = functional.cross_entropy(logits, labels)
            dist_autograd.backward(context_id, [loss])
            self.optimizer.step(context_id)
        return float(loss.item())

    def right_answers(self) -> int:
        """Returns how many of the held-out images this trainer's model recognises."""
        images, labels = self.test
        with tg.no_grad():
            logits = self.head.rpc_sync().forward(self.stem(tg.as_tensor(images)))
        return int((logits.numpy().argmax(axis=1) == labels).sum())

    def traffic(self) -> tuple[int, int]:
        """Returns the calls and the bytes that this worker sent."""
        statistics = rpc.statistics()
        return statistics.calls_sent, statistics.bytes_sent


def load_data() -> tuple[tuple[Floats, Labels], tuple[Floats, Labels]]:
    """Returns images and labels of four fifths of the digits, and of the fifth held out."""
    digits = load_digits()
    images = (digits.data / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = np.split(order, [len(order) * 4 // 5])
    return (images[train], labels[train]), (images[test], labels[test])


def serve() -> None:
    """Owns the head, sets the trainers to work and tells the result."""
    began = time.monotonic()
    workers = [worker for worker in rpc.get_worker_infos() if worker.rank > 0]
    if not workers:
        sys.exit("a server alone trains nothing; run: telegrad run --nproc-per-node 3 " + __file__)
    head = rpc.RRef(Head(np.random.default_rng(0)))
    progress = rpc.RRef(Progress(len(workers)))
    trainers = [rpc.remote(worker, Trainer, (head, progress)) for worker in workers]
    print(f"one server, {len(trainers)} trainers, {os.cpu_count()} cores", flush=True)

    rpc.wait_all([trainer.rpc_async(timeout=math.inf).train() for trainer in trainers])

    right = rpc.wait_all([trainer.rpc_async().right_answers() for trainer in trainers])
    traffic = rpc.wait_all([trainer.rpc_async().traffic() for trainer in trainers])
    own = rpc.statistics()
    held_out = len(load_data()[1][1])
    calls = own.calls_sent + sum(calls for calls, _ in traffic)
    sent = own.bytes_sent + sum(sent for _, sent in traffic)
    print(f"test accuracy: {100 * sum(right) / (held_out * len(right)):.1f} %")
    print(f"calls: {calls:,}   bytes: {sent / 1e6:.1f} MB   time: {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    with rpc.init_rpc() as agent:
        if agent.rank == 0:
            serve()
