"""Trains on handwritten digits with a server that gathers gradients and updates once for all.

    telegrad run --nproc-per-node 4 examples/batch_rpc.py

Rank 0 owns the parameters. Every other rank is a trainer: it computes gradients on its own part of
the images, pushes them, and gets the new parameters for an answer. All images are trained on twice,
from the same first parameters:

    one by one   trainer ─── gradients ───► update ───► parameters       one update for each push

    batched      trainer ─── gradients ──┐           ┌─► parameters
                 trainer ─── gradients ──┼► update ──┼─► parameters      one update for each round
                 trainer ─── gradients ──┘           └─► parameters

A batched push is an `async_execution` function. It returns a Future, and the answer is sent when
that has a value, so no thread of the server waits while a round fills; the push that fills it makes
the update. A trainer that has finished, or is lost, no longer counts: rounds go on without it. If
one lives and does not push any more, the others' calls end with an error after 60 s, and with them
the program.

Batching saves updates and nothing else: the same bytes travel. It pays where an update costs more
than to send the gradients, as with the optimizer here, which makes each step orthogonal (Jordan and
others, "Muon", 2024). With plain SGD, on two cores, the two are equally fast.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

import telegrad as tg
from telegrad import nn, optim, rpc
from telegrad.errors import WorkerLostError
from telegrad.nn import functional
from telegrad.optim import State
from telegrad.types import Array

Floats: TypeAlias = npt.NDArray[np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]
Arrays: TypeAlias = list[Array]
"""One for each parameter of the model."""

EPOCHS = 6
BATCH = 32
HIDDEN = 256
LEARNING_RATE = 0.02
MOMENTUM = 0.9
ITERATIONS = 8  # each takes every singular value nearer to 1; those of a gradient differ by 1e3


@final
class OrthogonalSGD(optim.Optimizer):
    """Momentum whose steps are made orthogonal: they go equally far in each direction.

    Args:
        params: The parameters; vectors are stepped by momentum alone.
        lr: How far a step goes.
    """

    def __init__(self, params: Iterable[tg.Tensor], *, lr: float) -> None:
        super().__init__(params)
        self.lr = lr

    def update(self, parameter: Array, gradient: Array, state: State) -> tuple[Array, State]:
        """Returns the stepped array and the new velocity."""
        velocity = gradient + MOMENTUM * state.get("velocity", np.zeros_like(gradient))
        step = orthogonal(velocity) if velocity.ndim == 2 else velocity
        return parameter - self.lr * step, {"velocity": velocity}


def orthogonal(matrix: Array) -> Array:
    """Returns the orthogonal matrix nearest to this one, by Newton and Schulz' iteration."""
    x: Array = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = x / (np.linalg.norm(x) + 1e-12)
    for _ in range(ITERATIONS):
        x = 1.5 * x - 0.5 * (x @ x.T) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


def make_model() -> nn.Sequential:
    """Makes the model: (batch, 64) pixels to (batch, 10) logits; the same wherever it is made."""
    rng = np.random.default_rng(0)
    return nn.Sequential(
        nn.Linear(64, HIDDEN, rng=rng),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN, rng=rng),
        nn.ReLU(),
        nn.Linear(HIDDEN, 10, rng=rng),
    )


@final
class SharedModel:
    """The model on the server; any thread may update it."""

    def __init__(self) -> None:
        self.model = make_model()
        self.updates = 0
        self._optimizer = OrthogonalSGD(self.model.parameters(), lr=LEARNING_RATE)
        self._lock = threading.Lock()

    def update(self, pushed: Sequence[Arrays]) -> Arrays:
        """Makes one step with the mean of some gradients and returns the new parameters."""
        means = [sum(parts[1:], start=parts[0]) / len(parts) for parts in zip(*pushed, strict=True)]
        with self._lock:
            parameters = list(self.model.parameters())
            self._optimizer.apply(dict(zip(parameters, means, strict=True)))
            self.updates += 1
            return [parameter.data for parameter in parameters]

    def right_answers(self, images: Floats, labels: Labels) -> int:
        """Returns how many images the model recognises."""
        with tg.no_grad():
            logits = self.model(tg.as_tensor(images))
        return int((logits.numpy().argmax(axis=1) == labels).sum())


@final
class OneByOne:
    """Updates the model for each push."""

    def __init__(self, shared: SharedModel, trainers: Iterable[str]) -> None:
        del trainers  # none waits for another
        self._shared = shared

    def push(self, trainer: str, gradients: Arrays) -> Arrays:
        """Takes gradients and returns the new parameters."""
        del trainer
        return self._shared.update([gradients])

    def leave(self, trainer: str) -> None:
        """Hears that a trainer will not push any more."""


@final
class Batched:
    """Gathers one push of each trainer, and updates the model once for all of them."""

    def __init__(self, shared: SharedModel, trainers: Iterable[str]) -> None:
        self._shared = shared
        self._lock = threading.Lock()  # guards the three below
        self._trainers = set(trainers)
        self._gathered: dict[str, Arrays] = {}
        self._answer: rpc.Future[Arrays] = rpc.Future()

    @rpc.functions.async_execution
    def push(self, trainer: str, gradients: Arrays) -> rpc.Future[Arrays]:
        """Takes gradients; the answer, the new parameters, is sent when the round is full."""
        with self._lock:
            answer = self._answer
            self._gathered[trainer] = gradients
            full = self._take_round()
        self._finish(full, answer)
        return answer

    def leave(self, trainer: str) -> None:
        """Hears that a trainer will not push any more; the round may be full without it."""
        with self._lock:
            answer = self._answer
            self._trainers.discard(trainer)
            full = self._take_round()
        self._finish(full, answer)

    def _take_round(self) -> list[Arrays]:
        """Returns the gradients of a full round and begins the next one; else nothing."""
        if self._trainers - self._gathered.keys():
            return []
        # In the order of the trainers, not of arrival: so each run gives the same numbers.
        full = [self._gathered[trainer] for trainer in sorted(self._gathered)]
        self._gathered = {}
        self._answer = rpc.Future()
        return full

    def _finish(self, full: list[Arrays], answer: rpc.Future[Arrays]) -> None:
        if not full:
            return
        try:
            answer.set_result(self._shared.update(full))
        except Exception as error:  # or the others would wait for an answer that never comes
            answer.set_exception(error)


Server: TypeAlias = OneByOne | Batched


def load_data() -> tuple[tuple[Floats, Labels], tuple[Floats, Labels]]:
    """Returns images and labels of four fifths of the digits, and of the fifth held out."""
    digits = load_digits()
    images = (digits.data / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = np.split(order, [len(order) * 4 // 5])
    return (images[train], labels[train]), (images[test], labels[test])


def train(server: rpc.RRef[Server], i: int, n: int) -> int:
    """Runs on a trainer, the i-th of n; returns how many images it trained on."""
    all_images, all_labels = load_data()[0]
    images, labels = all_images[i::n], all_labels[i::n]
    name, rng, model = rpc.get_worker_info().name, np.random.default_rng(i), make_model()
    for _ in range(EPOCHS):
        order = rng.permutation(len(images))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            pushed = gradients_of(model, images[batch], labels[batch])
            parameters = server.rpc_async().push(name, pushed).wait()
            for parameter, array in zip(model.parameters(), parameters, strict=True):
                parameter.data = array
    return EPOCHS * len(images)


def gradients_of(model: nn.Module, images: Floats, labels: Labels) -> Arrays:
    """Returns the gradients of the loss of one mini-batch."""
    model.zero_grad()
    functional.cross_entropy(model(tg.as_tensor(images)), labels).backward()
    return [parameter.grad.data for parameter in model.parameters() if parameter.grad is not None]


@dataclass(frozen=True, slots=True)
class Result:
    """What one form of training came to.

    Attributes:
        updates: How many steps were made.
        images: How many images were trained on.
        seconds: How long it took.
        accuracy: Of the images held out, from 0 to 1.
        lost: The trainers that were lost on the way.
    """

    updates: int
    images: int
    seconds: float
    accuracy: float
    lost: list[str]


def run(form: type[OneByOne] | type[Batched], trainers: Sequence[rpc.WorkerInfo]) -> Result:
    """Trains a new model on the server with some trainers, until all of them have finished."""
    shared = SharedModel()
    server: Server = form(shared, [trainer.name for trainer in trainers])
    reference: rpc.RRef[Server] = rpc.RRef(server)
    lost: list[str] = []

    def finished(trainer: str, training: rpc.Future[int]) -> int:
        server.leave(trainer)
        if isinstance(training.exception(), WorkerLostError):
            lost.append(trainer)
            return 0
        return training.value()

    began = time.monotonic()
    trainings = [
        rpc.rpc_async(trainer, train, (reference, i, len(trainers)), timeout=math.inf).then(
            partial(finished, trainer.name)
        )
        for i, trainer in enumerate(trainers)
    ]
    images = sum(rpc.wait_all(trainings))
    seconds = time.monotonic() - began
    test_images, test_labels = load_data()[1]
    accuracy = shared.right_answers(test_images, test_labels) / len(test_labels)
    return Result(shared.updates, images, seconds, accuracy, lost)


def serve() -> None:
    """Trains in both forms and tells what came out."""
    trainers = [worker for worker in rpc.get_worker_infos() if worker.rank > 0]
    if not trainers:
        sys.exit("a server alone trains nothing; run: telegrad run --nproc-per-node 4 " + __file__)
    print(f"one server, {len(trainers)} trainers", flush=True)
    results = []
    for name, form in (("one by one", OneByOne), ("batched", Batched)):
        result = run(form, trainers)
        results.append(result)
        print(
            f"{name + ':':12}{result.updates:4} updates  {result.images:,} images  "
            f"{result.images / result.seconds:6,.0f} images/s  "
            f"test accuracy: {100 * result.accuracy:.1f} %",
            flush=True,
        )
        if result.lost:
            images = "its images" if len(result.lost) == 1 else "their images"
            print(f"lost: {', '.join(sorted(result.lost))}; the rest of {images} was left out")
        trainers = [trainer for trainer in trainers if trainer.name not in result.lost]
    one_by_one, batched = results
    if not one_by_one.lost and not batched.lost:
        print(f"batched is {one_by_one.seconds / batched.seconds:.2f} times as fast")


if __name__ == "__main__":
    with rpc.init_rpc() as agent:
        if agent.rank == 0:
            serve()
