"""Moves arrays both ways at once between two hosts over a link of known speed; prints shares of it.

    python benchmarks/wire.py [--rates 1 10] [--seconds 2] [--sizes 1KiB 64MiB ...]

The hosts are network namespaces (tests/hosts); tbf limits the link. Each worker keeps some arrays
under way to the other one. A cell has the slower one of both directions, in Gbit/s of the arrays' own
bytes; the share of the link's rate; and the processor time of both workers together for each GiB that
goes from one to the other, in seconds. A share of 0.95 is all that TCP leaves of an Ethernet link. The row `plain
sockets` is what two threads of each host move over two TCP sockets, with neither encryption nor
telegrad: on a fast link, or a busy machine, the processors are the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from telegrad import doctor, rpc  # noqa: E402
from tests.hosts.namespaces import Hosts  # noqa: E402

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = {
    "1KiB": KIB,
    "64KiB": 64 * KIB,
    "1MiB": MIB,
    "4MiB": 4 * MIB,
    "16MiB": 16 * MIB,
    "64MiB": 64 * MIB,
    "256MiB": 256 * MIB,
    "1GiB": 1024 * MIB,
}
# Gbit/s: the burst and the queue of tbf. A timer lets out a burst at a time: 1 MiB is 0.8 ms at 10.
LINKS = {1.0: ("128kb", "1mb"), 10.0: ("1mb", "8mb")}
UNDER_WAY = 256 * MIB  # of arrays, each way, but at least one and at most MOST_UNDER_WAY
MOST_UNDER_WAY = 64
PORT, PLAIN_PORT = 29500, 29400
PART = MIB  # of a plain socket's bytes
PROGRAM_SECONDS = 200.0


# -- on the hosts ------------------------------------------------------------------------------


def take(array: np.ndarray[Any, Any]) -> int:
    """Takes an array; returns its size in bytes."""
    return array.nbytes


class Moved(NamedTuple):
    """The bytes that one worker sent, in how many seconds, and its processor time."""

    nbytes: int
    seconds: float
    processor: float


class Clock:
    """Measures a worker from now on."""

    def __init__(self) -> None:
        self._began, self._processor = time.perf_counter(), time.process_time()

    def seconds(self) -> float:
        """Returns the seconds until now."""
        return time.perf_counter() - self._began

    def moved(self, nbytes: int) -> Moved:
        """Returns the figures, with so many bytes that were sent."""
        return Moved(nbytes, self.seconds(), time.process_time() - self._processor)


def push(to: str, nbytes: int, seconds: float) -> Moved:
    """Pushes arrays for a while, and waits for all of them."""
    array = np.ones(nbytes, np.uint8)
    under_way: deque[rpc.Future[int]] = deque()
    most, sent = min(max(1, UNDER_WAY // nbytes), MOST_UNDER_WAY), 0
    # In a virtual machine memory that nobody has used yet costs ten times as much as other memory.
    rpc.wait_all([rpc.rpc_async(to, take, (array,)) for _ in range(most)])
    clock = Clock()
    while clock.seconds() < seconds:
        under_way.append(rpc.rpc_async(to, take, (array,)))
        if len(under_way) == most:
            sent += under_way.popleft().wait()
    sent += sum(each.wait() for each in under_way)
    return clock.moved(sent)


def push_back(to: str, nbytes: int, seconds: float) -> tuple[int, float, float]:
    """Does the same for the other worker."""
    sent, *times = push(to, nbytes, seconds)
    return sent, times[0], times[1]


def both_ways(nbytes: int, seconds: float) -> list[Moved]:
    """Pushes there and back at once; returns the figures of both workers."""
    back = rpc.rpc_async("worker1", push_back, ("worker0", nbytes, seconds))
    there = push("worker1", nbytes, seconds)
    return [there, Moved(*back.wait())]


def plain(rank: int, host: str, seconds: float) -> list[Moved]:
    """Moves bytes over two plain sockets, there and back at once; returns this worker's figures."""
    if rank == 0:
        with socket.create_server((host, PLAIN_PORT)) as listening:
            ends = [listening.accept()[0] for _ in range(2)]
    else:
        ends = [_connected(host) for _ in range(2)]
    out, back = ends if rank == 0 else reversed(ends)
    sending = threading.Thread(target=_send, args=(out, seconds))
    sending.start()
    came, place, clock = 0, memoryview(bytearray(PART)), Clock()
    while size := back.recv_into(place):
        came += size
    sending.join()
    found = [clock.moved(came)]  # the other one is doing the same
    for end in ends:
        end.close()
    return found * 2


def _connected(host: str) -> socket.socket:
    while True:
        try:
            return socket.create_connection((host, PLAIN_PORT))
        except ConnectionRefusedError:  # it does not listen yet
            time.sleep(0.05)


def _send(out: socket.socket, seconds: float) -> None:
    data, began = bytes(PART), time.perf_counter()
    while time.perf_counter() - began < seconds:
        out.sendall(data)
    out.shutdown(socket.SHUT_WR)


def worker(given: argparse.Namespace) -> None:
    """One of the two workers; the first one prints the figures."""
    found: dict[str, Any] = {}
    if given.insecure:
        found["plain"] = plain(given.rank, given.host, given.seconds)
    rpc.init_rpc(
        f"worker{given.rank}",
        rank=given.rank,
        world_size=2,
        init_method=f"tcp://{given.host}:{PORT}",
        options=rpc.RpcOptions(insecure=given.insecure, timeout=PROGRAM_SECONDS),
    )
    if given.rank == 0:
        for size in given.sizes:
            found[size] = both_ways(SIZES[size], given.seconds)
        found["transport"] = doctor.examine().pairs[0].transport
        sys.stdout.write(json.dumps(found))
        sys.stdout.flush()
    rpc.shutdown()


# -- on this machine ---------------------------------------------------------------------------


def run(hosts: Hosts, given: argparse.Namespace, *, insecure: bool) -> dict[str, Any]:
    """Runs both workers; returns the figures."""
    words = ["--seconds", str(given.seconds), "--sizes", *given.sizes]
    words += ["--host", hosts.address(0), *(["--insecure"] if insecure else [])]
    environment = {name: value for name, value in os.environ.items() if "TELEGRAD" not in name}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if not insecure:
        environment["TELEGRAD_TOKEN"] = secrets.token_hex(16)
    programs = [
        subprocess.Popen(
            [*hosts.python(rank), __file__, "--rank", str(rank), *words],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        output, _ = programs[0].communicate(timeout=PROGRAM_SECONDS)
        programs[1].wait(PROGRAM_SECONDS)
    finally:
        for program in programs:
            program.kill()
    found: dict[str, Any] = json.loads(output)
    return found


def cell(found: list[list[float]] | None, rate: float) -> str:
    """Returns the figures of both workers in words; empty where there are none."""
    if found is None:
        return ""
    both = [Moved(int(nbytes), seconds, processor) for nbytes, seconds, processor in found]
    gigabits = min(8 * each.nbytes / each.seconds / 1e9 for each in both)
    processor = sum(each.processor for each in both) / sum(each.nbytes for each in both) * GIB
    return f"{gigabits:.2f} ({gigabits / rate:.2f}), {processor:.1f} s"


def table(rates: Sequence[float], figures: dict[tuple[float, bool], dict[str, Any]]) -> str:
    """Returns a table in Markdown: a row for each size, two columns for each rate."""
    hows = {True: "insecure", False: "encrypted"}
    columns = [(rate, insecure) for rate in rates for insecure in hows]
    lines = ["| array | " + " | ".join(f"{rate:g} Gbit/s, {hows[how]}" for rate, how in columns)]
    lines += ["|---" * (len(columns) + 1)]
    names = [name for name in figures[columns[0]] if name in SIZES]
    for name in ["plain", *names]:
        row = [name if name in SIZES else "plain sockets"]
        row += [cell(figures[column].get(name), column[0]) for column in columns]
        lines.append("| " + " | ".join(row))
    carried = " | ".join(str(figures[column]["transport"]) for column in columns)
    return "\n".join(f"{line} |" for line in [*lines, f"| transport | {carried}"])


def main() -> None:
    """Measures and prints, or is one of the workers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[*LINKS], choices=[*LINKS])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--sizes", nargs="+", default=[*SIZES], choices=[*SIZES])
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    parser.add_argument("--insecure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        worker(given)
        return
    figures = {}
    with Hosts.made(2) as hosts:
        for rate in given.rates:
            burst, queue = LINKS[rate]
            hosts.limit(1, f"{rate:g}gbit", burst=burst, queue=queue)
            for insecure in (True, False):
                figures[rate, insecure] = run(hosts, given, insecure=insecure)
    sys.stdout.write(table(given.rates, figures) + "\n")


if __name__ == "__main__":
    main()
