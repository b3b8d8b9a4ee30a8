"""Numbered calls with side effects, many at once, and the transport that was there when each was made."""

from __future__ import annotations

import threading
from collections import Counter

from telegrad import rpc
from telegrad.transport.channels.lanes import Way
from telegrad.transport.session import carriers as carriers_module
from telegrad.transport.session.ask import Answer
from telegrad.transport.session.dial import Reach
from tests.hosts.traffic import connections, note, ran

__all__ = ["count_moves", "flood", "moves", "ran_times"]

THREADS, TOGETHER = 4, 100
LONG = 300.0  # seconds for one call: longer than any test

_lock = threading.Lock()
_moves: Counter[str] = Counter()
_before: Counter[str] = Counter()  # calls, by the transport that was there when they were made


def count_moves(for_ever: bool) -> None:
    """Counts moves to sockets from now on.

    Args:
        for_ever: Whether streams go on moving when more sockets have broken than they usually may.
    """
    if for_ever:
        carriers_module.MOST_BROKEN_SOCKETS = 10**9
    take_up = Reach._take_up

    async def counted(self: Reach, answer: Answer, way: Way) -> None:
        ended = "broke"
        try:
            await take_up(self, answer, way)
            ended = "done"
        finally:
            _moves[ended] += answer.carrier.takes_over  # else it is gRPC's own

    Reach._take_up = counted  # type: ignore[method-assign]


def moves() -> dict[str, int]:
    """Returns how many moves that this side began were done, and how many broke in their middle."""
    return dict(_moves)


def flood(to: str, key: str, count: int) -> tuple[list[str], dict[str, int]]:
    """Makes so many calls; returns what failed, and the counts of the transports."""
    failures: list[str] = []
    threads = [
        threading.Thread(target=_call, args=(to, key, range(i, count, THREADS), failures))
        for i in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with _lock:
        return failures, dict(_before)


def ran_times(key: str, count: int) -> dict[int, int]:
    """Returns how often calls ran here that did not run once."""
    times = Counter(ran(key))
    return {number: times[number] for number in {*range(count), *times} if times[number] != 1}


def _call(to: str, key: str, numbers: range, failures: list[str]) -> None:
    """Makes one call and waits for it, then many at once, and so on."""
    waiting, size = [*numbers], 1
    try:
        while waiting:
            some, waiting = waiting[:size], waiting[size:]
            futures = []
            for number in some:
                found = _transport(to)
                futures.append(rpc.rpc_async(to, note, (key, number), timeout=LONG))
                with _lock:
                    _before[found] += 1
            rpc.wait_all(futures)
            size = TOGETHER if size == 1 else 1
    except Exception as error:
        failures.append(f"{key} from {numbers}: {error!r}")


def _transport(to: str) -> str:
    """Returns the scheme of the stream to a worker; empty where there is none."""
    for (name, _), known in connections().items():
        if name == to and (stream := known.stream) is not None:
            return stream.carrier.description.partition(" ")[0].partition(":")[0]
    return ""
