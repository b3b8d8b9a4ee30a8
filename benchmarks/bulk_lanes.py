"""Moves 64 MiB arrays between two processes over gRPC on loopback: pushes one way, and echoes.

    python benchmarks/bulk_lanes.py [--lanes 1 2 3] [--rounds 3] [--pushes 16]

Prints GB/s for each number of lanes, the best and the median of the rounds. On a shared machine
the figures mean little, and the ratios between lines of one run something.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import statistics
import sys
import threading
import time

import numpy as np

from telegrad.errors import WorkerLostError
from telegrad.transport import Exchange, GrpcTransport, bulk_lanes
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

MIB = 2**20
SIZE = 64 * MIB
AT_ONCE = 4  # pushes under way: so many the receiver holds half complete
SECONDS = 120.0


class End:
    """A worker that counts what comes, and may send it back."""

    def __init__(self, name: str, rank: int, *, echo: bool) -> None:
        self.arrived = threading.Semaphore(0)
        self.gone = threading.Event()
        self._echo = echo
        self.exchange = Exchange(
            job="benchmark",
            name=name,
            rank=rank,
            incarnation=1,
            token=b"a token that only benchmarks use",
            transports=[GrpcTransport()],
            receiver=self,
        )

    def on_envelope(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Counts, echoes or answers."""
        self.arrived.release()
        if self._echo:
            buffers = envelope.buffers if envelope.kind == "benchmark.echo" else ()
            self.exchange.post(peer, Envelope("benchmark.reply", reply=True, buffers=buffers))

    def on_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Notes the end."""
        self.gone.set()


def serve(pipe: multiprocessing.connection.Connection, lanes: int) -> None:
    """The other process: answers until its peer has gone."""
    bulk_lanes.LANES = lanes
    sys.setswitchinterval(0.0005)  # as an agent does
    end = End("bob", 1, echo=True)
    pipe.send(end.exchange.start())
    end.gone.wait()
    end.exchange.close(5.0)


def measure(end: End, peer: WorkerInfo, kind: str, pushes: int) -> float:
    """Returns GB/s, both directions together."""
    data = np.random.default_rng(0).bytes(SIZE)
    began = time.perf_counter()
    for i in range(pushes + AT_ONCE):
        if i >= AT_ONCE and not end.arrived.acquire(timeout=SECONDS):
            raise SystemExit("nothing came back")
        if i < pushes:
            end.exchange.post(peer, Envelope(kind, buffers=[data]))
    moved = SIZE * pushes * (2 if kind == "benchmark.echo" else 1)
    return moved / (time.perf_counter() - began) / 1e9


def run(lanes: int, rounds: int, pushes: int) -> dict[str, list[float]]:
    """Returns the figures of every round, by what was done."""
    bulk_lanes.LANES = lanes
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(there, lanes), daemon=True)
    process.start()
    end = End("alice", 0, echo=False)
    end.exchange.start()
    try:
        peer = end.exchange.introduce(here.recv()[0], timeout=SECONDS)
        measure(end, peer, "benchmark.echo", 2)  # lanes are opened, memory is touched
        return {
            kind: [measure(end, peer, f"benchmark.{kind}", pushes) for _ in range(rounds)]
            for kind in ("push", "echo")
        }
    finally:
        end.exchange.close(5.0)
        process.join(SECONDS)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pushes", type=int, default=16)
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)
    sys.stdout.write("lanes  what   best GB/s  median GB/s\n")
    for lanes in options.lanes:
        for kind, figures in run(lanes, options.rounds, options.pushes).items():
            line = f"{max(figures):9.2f}  {statistics.median(figures):11.2f}"
            sys.stdout.write(f"{lanes:5}  {kind:5}  {line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
