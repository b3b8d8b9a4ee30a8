"""Trains on handwritten digits that never leave their owners, nor do their labels.

    telegrad run --nproc-per-node 3 examples/split_learning.py

Rank 0 is the server and owns the middle of the model, shared by all. Every other rank is a client:
it has images and labels of its own, and the first and last layers of its own model. The path
through the model is a U: it begins and ends at the client.

    client    images ─ stem ─┐                     ┌─ head ─ loss ◄─ labels
                             │ activations         │
    server                   └────────► body ──────┘                         forward
                             ┌───────── body ◄─────┐
                             │ gradients           │
    client           stem ◄──┘                     └── head ◄─ loss          backward

The server sees activations and gradients, and nothing else: it does not know what the model is for
(Vepakomma and others, "Split learning for health", 2018). This is less than secrecy: activations
and gradients tell something of what they were made from.
"""

from __future__ import annotations

import sys
import threading
import time
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
Data: TypeAlias = tuple[Floats, Labels]

EPOCHS = 20
BATCH = 32
WIDTH = 64  # of what travels, in both directions
LEARNING_RATE = 0.05
MOMENTUM = 0.9
LINE_EVERY = 5  # epochs
NAME = "body"  # under which the server's part is found


@final
class Body(nn.Module):
    """The server's part of the model: (batch, WIDTH) activations to (batch, WIDTH) others."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 128, rng=rng), nn.ReLU(), nn.Linear(128, WIDTH, rng=rng), nn.ReLU()
        )
        self.batches = 0
        self._lock = threading.Lock()  # guards the counter: clients call at the same time

    def forward(self, activations: tg.Tensor) -> tg.Tensor:
        """Returns the activations for the client's last layer."""
        with self._lock:
            self.batches += 1
        result: tg.Tensor = self.layers(activations)
        return result


@final
class Client:
    """Owns data, labels and both ends of a model; the middle is the server's.

    Args:
        body: The server's part.
        training: Images and labels.
        seed: For the parameters, and for the order of the images.
    """

    def __init__(self, body: rpc.RRef[Body], training: Data, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.images, self.labels = training
        self.stem = nn.Sequential(nn.Linear(64, WIDTH, rng=self.rng), nn.ReLU())
        self.body = body
        self.head = nn.Linear(WIDTH, 10, rng=self.rng)
        self.optimizer = DistributedOptimizer(
            optim.SGD,
            [rref for part in (self.stem, body, self.head) for rref in parameter_rrefs(part)],
            lr=LEARNING_RATE,
            momentum=MOMENTUM,
        )

    def logits(self, images: Floats) -> tg.Tensor:
        """Returns what the model makes of some images: here, there, and here again."""
        activations = self.stem(tg.as_tensor(images))
        logits: tg.Tensor = self.head(self.body.rpc_sync().forward(activations))
        return logits

    def step(self, images: Floats, labels: Labels) -> float:
        """Trains on one batch and returns its loss."""
        with dist_autograd.context() as context_id:
            loss = functional.cross_entropy(self.logits(images), labels)
            dist_autograd.backward(context_id, [loss])
            self.optimizer.step(context_id)
        return float(loss.item())

    def epoch(self) -> float:
        """Trains on all images once and returns the mean loss."""
        order = self.rng.permutation(len(self.images))
        batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        return float(np.mean([self.step(self.images[b], self.labels[b]) for b in batches]))

    def accuracy(self, images: Floats, labels: Labels) -> float:
        """Returns how many percent of some images the model recognises."""
        with tg.no_grad():
            logits = self.logits(images)
        return 100.0 * float((logits.numpy().argmax(axis=1) == labels).mean())


def load_data(client: int, clients: int) -> tuple[Data, Data]:
    """Returns what one client has of four fifths of the digits, and of the fifth held out."""
    digits = load_digits()
    images = (digits.data / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = (part[client::clients] for part in np.split(order, [len(order) * 4 // 5]))
    return (images[train], labels[train]), (images[test], labels[test])


def train(client: int, clients: int) -> None:
    """Is one client, from the first step to its accuracy."""
    began = time.monotonic()
    training, held_out = load_data(client, clients)
    me = Client(rpc.lookup(0, NAME), training, seed=1 + client)
    for epoch in range(1, EPOCHS + 1):
        loss = me.epoch()
        if epoch % LINE_EVERY == 0:
            print(f"epoch {epoch:2}/{EPOCHS}  loss {loss:.4f}", flush=True)
    print(
        f"{len(training[0])} images of its own, test accuracy: {me.accuracy(*held_out):.1f} %   "
        f"time: {time.monotonic() - began:.1f} s",
        flush=True,
    )


def main() -> None:
    """Is the server or a client, by rank; the server tells what it has seen."""
    body = None
    with rpc.init_rpc() as agent:
        if agent.world_size < 2:
            sys.exit("a server has no data; run: telegrad run --nproc-per-node 3 " + __file__)
        if agent.rank == 0:
            body = Body(np.random.default_rng(0))
            rpc.publish(NAME, body)
            print(f"one server, {agent.world_size - 1} clients", flush=True)
        else:
            train(agent.rank - 1, agent.world_size - 1)
    if body is not None:  # all clients have left
        print(f"the server saw {body.batches:,} batches of {WIDTH} activations, no image, no label")


if __name__ == "__main__":
    main()
