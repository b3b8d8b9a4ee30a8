"""Trains a classifier of handwritten digits whose parameters are spread over several servers.

    telegrad run --nproc-per-node 3 examples/parameter_server.py
    telegrad run --nproc-per-node 4 examples/parameter_server.py --servers 2 --mode synchronous

The first ranks are servers, and each owns some of the parameters. The others are trainers with an
equal part of the images each, and own nothing: for every batch a trainer fetches the parameters,
and the gradients go back to where they were fetched.

    server 0   0.weight 0.bias ──┐                                        ┌──► gradients ─ step
    server 1   1.weight 2.bias ──┴─ fetch ─► trainer   images ─ loss ─────┴──► gradients ─ step
                                                          backward(loss)

How far trainers may be apart is the mode:

    synchronous     one step of all servers for a batch of each trainer, with the mean of gradients
    asynchronous    each trainer steps whenever it likes (Recht and others, "Hogwild", 2011)
    bounded         so too, but none is more than `--staleness` steps ahead of the slowest (Ho and
                    others, "More effective distributed ML via a stale synchronous parameter
                    server", 2013)
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import time
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

import telegrad as tg
from telegrad import dist_autograd, nn, optim, rpc
from telegrad.errors import WorkerLostError
from telegrad.nn import functional
from telegrad.parallel import DistributedOptimizer, parameter_rrefs

Floats: TypeAlias = npt.NDArray[np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]

EPOCHS = 10
BATCH = 32
WIDTHS = (64, 128, 64, 10)  # of the images, between the layers, and of the logits
LEARNING_RATE = 0.05
MOMENTUM = 0.9
LINE_EVERY = 5  # epochs; the lines between are overwritten on a terminal, and dropped elsewhere
MODES = ("synchronous", "asynchronous", "bounded")


def make_parameters() -> dict[str, Floats]:
    """Returns the first parameters of the whole model by name; the same wherever it is called."""
    rng = np.random.default_rng(0)
    made: dict[str, Floats] = {}
    for i, (given, returned) in enumerate(pairwise(WIDTHS)):
        layer = nn.Linear(given, returned, rng=rng)
        made |= {f"{i}.{name}": array for name, array in layer.state_dict().items()}
    return made


def share_out(sizes: dict[str, int], servers: int) -> list[list[str]]:
    """Returns names by server: the largest first, each to the server that has least so far."""
    shares: list[list[str]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        server = loads.index(min(loads))
        shares[server].append(name)
        loads[server] += sizes[name]
    return shares


@final
class Shard(nn.Module):
    """What one server owns of the model.

    Args:
        server: Which one it is.
        servers: How many there are.
        trainers: How many trainers there are.
    """

    def __init__(self, server: int, servers: int, trainers: int) -> None:
        super().__init__()
        whole = make_parameters()
        self.names = share_out({name: array.size for name, array in whole.items()}, servers)[server]
        self.owned = nn.ParameterList(nn.Parameter(whole[name]) for name in self.names)
        self._lock = threading.Lock()  # guards the two below
        self._fetched = dict.fromkeys(range(trainers), 0)
        self._furthest = 0

    def fetch(self, trainer: int) -> dict[str, tg.Tensor]:
        """Returns the parameters by name, for the next step of a trainer."""
        with self._lock:
            if trainer in self._fetched:
                self._fetched[trainer] += 1
                ahead = self._fetched[trainer] - min(self._fetched.values())
                self._furthest = max(self._furthest, ahead)
        return self.parameters_by_name()

    def forget(self, trainer: int) -> None:
        """Hears that a trainer is lost."""
        with self._lock:
            self._fetched.pop(trainer, None)

    def parameters_by_name(self) -> dict[str, tg.Tensor]:
        """Returns the parameters by name."""
        return dict(zip(self.names, self.owned, strict=True))

    def furthest(self) -> int:
        """Returns how many steps more than the slowest a trainer had begun, at most."""
        return self._furthest


def logits_of(parameters: dict[str, tg.Tensor], images: Floats) -> tg.Tensor:
    """Returns what the model makes of some images: (batch, 64) pixels to (batch, 10) logits."""
    x = tg.as_tensor(images)
    last = len(WIDTHS) - 2
    for i in range(last + 1):
        x = x @ parameters[f"{i}.weight"].T + parameters[f"{i}.bias"]
        x = x if i == last else functional.relu(x)
    return x


@final
class Progress:
    """Tells how far the trainers are; lives on the first server, and they report to it."""

    def __init__(self, trainers: int) -> None:
        self._losses: dict[int, list[float]] = {k: [] for k in range(trainers)}
        self._shown = 0
        self._lock = threading.Lock()  # guards both

    def report(self, trainer: int, loss: float) -> None:
        """Takes the mean loss of one more epoch of one trainer."""
        with self._lock:
            self._losses[trainer].append(loss)
            self._show()

    def forget(self, trainer: int) -> None:
        """Hears that a trainer is lost."""
        with self._lock:
            self._losses.pop(trainer, None)
            self._show()

    def _show(self) -> None:
        epoch = min((len(losses) for losses in self._losses.values()), default=0)
        if epoch <= self._shown:
            return
        self._shown = epoch
        loss = float(np.mean([losses[epoch - 1] for losses in self._losses.values()]))
        stays = epoch % LINE_EVERY == 0 or epoch == EPOCHS
        print(f"epoch {epoch:2}/{EPOCHS}  loss {loss:.4f}", end="\n" if stays else "\r", flush=True)


class Trainer:
    """Owns a part of the images; parameters and progress are the servers'.

    Args:
        me: Which trainer it is.
        trainers: How many there are.
        shards: The parameters, by server.
        optimizer: Steps them, and knows who waits for whom.
        progress: Hears of each epoch.
    """

    def __init__(
        self,
        me: int,
        trainers: int,
        shards: list[rpc.RRef[Shard]],
        optimizer: DistributedOptimizer,
        progress: rpc.RRef[Progress],
    ) -> None:
        (images, labels), self.test = load_data()
        each = len(images) // trainers  # so that all trainers have as many steps
        self.images = images[me::trainers][:each]
        self.labels = labels[me::trainers][:each]
        self.me = me
        self.rng = np.random.default_rng(1 + me)
        self.shards = shards
        self.optimizer = optimizer
        self.progress = progress

    def train(self) -> None:
        """Runs all epochs."""
        try:
            for _ in range(EPOCHS):
                self.progress.rpc_sync().report(self.me, self.epoch())
        finally:
            self.optimizer.leave()  # or the others would wait for steps that never come

    def epoch(self) -> float:
        """Trains on all images once and returns the mean loss."""
        order = self.rng.permutation(len(self.images))
        batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        return float(np.mean([self.step(self.images[b], self.labels[b]) for b in batches]))

    def step(self, images: Floats, labels: Labels) -> float:
        """Trains on one batch and returns its loss."""
        with dist_autograd.context() as context_id:
            loss = functional.cross_entropy(logits_of(self.fetch(), images), labels)
            dist_autograd.backward(context_id, [loss])
            self.optimizer.step(context_id)
        return float(loss.item())

    def fetch(self) -> dict[str, tg.Tensor]:
        """Returns all parameters as they are now, from all servers at once."""
        parts = [shard.rpc_async().fetch(self.me) for shard in self.shards]
        return {name: each for part in rpc.wait_all(parts) for name, each in part.items()}


def load_data() -> tuple[tuple[Floats, Labels], tuple[Floats, Labels]]:
    """Returns images and labels of four fifths of the digits, and of the fifth held out."""
    digits = load_digits()
    images = (digits.data / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = np.split(order, [len(order) * 4 // 5])
    return (images[train], labels[train]), (images[test], labels[test])


def traffic() -> tuple[int, int]:
    """Returns the calls and the bytes that this worker sent."""
    statistics = rpc.statistics()
    return statistics.calls_sent, statistics.bytes_sent


def make_optimizer(
    shards: list[rpc.RRef[Shard]],
    trainers: list[rpc.WorkerInfo],
    mode: str,
    staleness: int,
) -> DistributedOptimizer:
    """Returns one optimizer for all trainers; it travels to each, and steps at the servers."""
    waits: dict[str, dict[str, Any]] = {
        "synchronous": {"trainers": trainers},
        "asynchronous": {},
        "bounded": {"trainers": trainers, "staleness": staleness},
    }
    return DistributedOptimizer(
        optim.SGD,
        [rref for shard in shards for rref in parameter_rrefs(shard)],
        lr=LEARNING_RATE,
        momentum=MOMENTUM,
        **waits[mode],
    )


def serve(options: argparse.Namespace) -> None:
    """Spreads the parameters, sets the trainers to work and tells the result."""
    began = time.monotonic()
    workers = sorted(rpc.get_worker_infos(), key=lambda worker: worker.rank)
    servers, others = workers[: options.servers], workers[options.servers :]
    counts = (len(servers), len(others))
    shards = [rpc.remote(server, Shard, (i, *counts)) for i, server in enumerate(servers)]
    optimizer = make_optimizer(shards, others, options.mode, options.staleness)
    progress = rpc.RRef(Progress(len(others)))
    trainers = [
        rpc.remote(worker, Trainer, (k, len(others), shards, optimizer, progress))
        for k, worker in enumerate(others)
    ]
    print(
        f"{options.mode}, servers: {len(shards)}, trainers: {len(trainers)}, "
        f"cores: {os.cpu_count()}",
        flush=True,
    )

    lost: list[rpc.WorkerInfo] = []

    def finished(k: int, training: rpc.Future[None]) -> None:
        error = training.exception()
        if isinstance(error, WorkerLostError) and error.worker == others[k].name:
            lost.append(others[k])
            shards[0].local_value().forget(k)
            progress.local_value().forget(k)
        else:
            training.value()

    trainings = [trainer.rpc_async(timeout=math.inf).train() for trainer in trainers]
    rpc.wait_all([training.then(partial(finished, k)) for k, training in enumerate(trainings)])
    if lost:
        print(f"lost: {', '.join(worker.name for worker in lost)}; the others went on")

    living = [worker for worker in workers if worker not in lost]
    sums = zip(*rpc.wait_all([rpc.rpc_async(each, traffic) for each in living]), strict=True)
    calls, sent = map(sum, sums)
    seconds = time.monotonic() - began
    images, labels = load_data()[1]
    with tg.no_grad():
        parameters = [shard.rpc_sync().parameters_by_name() for shard in shards]
        whole = {name: each for part in parameters for name, each in part.items()}
        right = logits_of(whole, images).numpy().argmax(axis=1) == labels
    print(f"test accuracy: {100.0 * float(right.mean()):.1f} %")
    furthest = shards[0].rpc_sync().furthest()
    print(f"steps that a trainer had begun more than the slowest: {furthest}, at most")
    print(f"calls: {calls:,}   bytes: {sent / 1e6:.1f} MB   time: {seconds:.1f} s")


def parse(world_size: int) -> argparse.Namespace:
    """Returns what the command line asks for; ends the program where it does not add up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--trainers", type=int, help="all other workers, unless told otherwise")
    parser.add_argument("--mode", choices=MODES, default="asynchronous")
    parser.add_argument("--staleness", type=int, default=3, help="steps; of bounded")
    options = parser.parse_args()
    if options.trainers is None:
        options.trainers = world_size - options.servers
    if min(options.servers, options.trainers) < 1 or (
        options.servers + options.trainers != world_size
    ):
        sys.exit(
            f"--servers {options.servers} and --trainers {options.trainers} do not make "
            f"{world_size} workers, one of each at least; run: telegrad run --nproc-per-node 3 "
            f"{__file__}"
        )
    return options


if __name__ == "__main__":
    with rpc.init_rpc() as agent:
        if agent.rank == 0:
            serve(parse(agent.world_size))
