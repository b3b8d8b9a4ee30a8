"""Moves 64 MiB arrays between two processes over loopback TCP: pushes one way, and echoes.

    python benchmarks/bulk_lanes.py [--over grpc tcp] [--lanes 1 2 3] [--encrypted]
                                    [--rounds 3] [--pushes 16]

Prints for each kind of lane, and each number of those over gRPC, GB/s, the best and the median of the
rounds; and what one array takes of both processes together, at the least: milliseconds of processor time,
and voluntary switches. On a shared machine the first two mean little, and the ratios of the others something.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import multiprocessing.connection
import resource
import statistics
import sys
import threading
import time
from typing import NamedTuple

import numpy as np

from telegrad.errors import WorkerLostError
from telegrad.transport import (
    Credentials,
    Exchange,
    GrpcTransport,
    Identity,
    Receiver,
    TcpTransport,
    self_signed_tls,
)
from telegrad.transport.channels import lanes as bulk_lanes
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

MIB = 2**20
SIZE = 64 * MIB
AT_ONCE = 4  # pushes under way: so many the receiver holds half complete
SECONDS = 120.0


class Way(NamedTuple):
    """What arrays go over."""

    over: str
    lanes: int
    encrypted: bool


class Used(NamedTuple):
    """What a process has used: processor time in milliseconds, and voluntary switches."""

    milliseconds: float
    switches: float

    @classmethod
    def now(cls) -> Used:
        """Returns that of this process."""
        return cls(1e3 * time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)


class Figures(NamedTuple):
    """Of one round."""

    rate: float  # GB/s, both directions together
    used: Used  # for one array, by both processes


class End(Receiver):
    """A worker that counts what comes, and may send it back."""

    def __init__(self, name: str, rank: int, way: Way, *, echo: bool) -> None:
        tls = self_signed_tls() if way.encrypted else None
        at = "127.0.0.1", tls
        sockets = [TcpTransport((0,), lambda: at, tls=tls)] if way.over == "tcp" else []
        self.arrived = threading.Semaphore(0)
        self.gone = threading.Event()
        self.last = Envelope("benchmark.nothing")
        self._echo = echo
        identity = Identity("benchmark", WorkerInfo(name, rank, 1))
        self.exchange = Exchange(
            Credentials(identity=identity, token=b"a token that only benchmarks use"),
            transports=[GrpcTransport(tls=tls), *sockets],
            receiver=self,
        )

    def on_envelope(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Counts, echoes or answers."""
        if self._echo:
            buffers = envelope.buffers if envelope.kind == "benchmark.echo" else ()
            document = (
                repr(tuple(Used.now())).encode() if envelope.kind == "benchmark.used" else b""
            )
            reply = Envelope("benchmark.reply", reply=True, document=document, buffers=buffers)
            self.exchange.post(peer, reply)
        self.last = envelope
        self.arrived.release()

    def on_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Notes the end."""
        self.gone.set()


def serve(pipe: multiprocessing.connection.Connection, way: Way) -> None:
    """The other process: answers until its peer has gone."""
    bulk_lanes.LANES = way.lanes
    sys.setswitchinterval(0.0005)  # as an agent does
    end = End("bob", 1, way, echo=True)
    pipe.send(end.exchange.start())
    end.gone.wait()
    end.exchange.close(5.0)


def used(end: End, peer: WorkerInfo) -> Used:
    """Returns what both processes have used."""
    end.exchange.post(peer, Envelope("benchmark.used"))
    if not end.arrived.acquire(timeout=SECONDS):
        raise SystemExit("nothing came back")
    there, here = Used(*ast.literal_eval(end.last.document.decode())), Used.now()
    return Used(here.milliseconds + there.milliseconds, here.switches + there.switches)


def measure(end: End, peer: WorkerInfo, kind: str, pushes: int) -> Figures:
    """Moves arrays: pushes some at once, echoes one after the other."""
    at_once = 1 if kind == "benchmark.echo" else AT_ONCE
    data = np.random.default_rng(0).bytes(SIZE)
    before, began = used(end, peer), time.perf_counter()
    for i in range(pushes + at_once):
        if i >= at_once and not end.arrived.acquire(timeout=SECONDS):
            raise SystemExit("nothing came back")
        if i < pushes:
            end.exchange.post(peer, Envelope(kind, buffers=[data]))
    seconds, after = time.perf_counter() - began, used(end, peer)
    moved = SIZE * pushes * (2 if kind == "benchmark.echo" else 1)
    each = [(late - early) / pushes for early, late in zip(before, after, strict=True)]
    return Figures(moved / seconds / 1e9, Used(*each))


def run(way: Way, rounds: int, pushes: int) -> dict[str, list[Figures]]:
    """Returns the figures of every round, by what was done."""
    bulk_lanes.LANES = way.lanes
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(there, way), daemon=True)
    process.start()
    end = End("alice", 0, way, echo=False)
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
    parser.add_argument("--over", nargs="+", choices=["grpc", "tcp"], default=["grpc", "tcp"])
    parser.add_argument("--lanes", type=int, nargs="+", default=[2])
    parser.add_argument("--encrypted", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pushes", type=int, default=16)
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)
    sys.stdout.write("over     lanes  what   best GB/s  median GB/s  processor ms  switches\n")
    for over in options.over:
        for lanes in options.lanes if over == "grpc" else [1]:
            way = Way(over, lanes, options.encrypted)
            for kind, rounds in run(way, options.rounds, options.pushes).items():
                rates = [each.rate for each in rounds]
                least = [min(each.used[i] for each in rounds) for i in range(2)]
                line = f"{max(rates):9.2f}  {statistics.median(rates):11.2f}"
                line += f"  {least[0]:12.0f}  {least[1]:8.0f}"
                sys.stdout.write(f"{over:7}  {lanes:5}  {kind:5}  {line}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
