"""What workers see and do whose coordinator is stopped for longer than they wait, and woken."""

from __future__ import annotations

import threading

from telegrad import rpc
from telegrad.errors import RendezvousError
from telegrad.rendezvous import JoinedJob
from telegrad.rpc.seams import current_agent
from telegrad.testing import leaks
from tests.faults.outcome import Failure, failure_of
from tests.faults.remote_code import LIMIT, who

__all__ = [
    "abandoned_by",
    "calls",
    "check_closed",
    "joins_late",
    "part",
    "wait_until_gone",
    "wait_until_known",
    "wait_until_lost",
]

_farewells = threading.Semaphore(0)


def _asking() -> list[str]:
    """Returns the thread in which a worker that has lost the coordinator asks what that means."""
    name = f"telegrad-standing-{rpc.get_worker_info().name}"
    return [thread.name for thread in threading.enumerate() if thread.name == name]


def wait_until_lost() -> None:
    """Waits until this worker has lost the coordinator, which it asks then until it answers."""
    leaks.wait_until_gone("lines", lambda: [] if _asking() else ["the line"], within=LIMIT)


def wait_until_known() -> None:
    """Waits until this worker asks no more: it is evicted by now, or never will be."""
    leaks.wait_until_gone("questions", _asking, within=LIMIT)


def wait_until_gone(*names: str) -> None:
    """Waits until this worker has lost others."""
    leaks.wait_until_gone(
        "workers",
        lambda: [info.name for info in rpc.get_worker_infos() if info.name in names],
        within=LIMIT,
    )


def calls(name: str) -> Failure:
    """Calls a worker; a lost one has a name still."""
    return failure_of(lambda: rpc.rpc_sync(name, who, timeout=LIMIT))


def joins_late() -> Failure:
    """Joins the job of this worker on top, from this process, as another agent."""
    endpoint = current_agent().attachments[JoinedJob].coordinator_endpoint
    address = f"tcp://{endpoint.rpartition('://')[2]}?late=1"
    options = rpc.RpcOptions(init_timeout=LIMIT)
    return failure_of(lambda: rpc.Agent("late", init_method=address, options=options))


def abandoned_by() -> tuple[int, int]:
    """Returns how many members the coordinator has that runs here, and how many gave it up."""
    coordinator = current_agent().attachments[JoinedJob].coordinator
    assert coordinator is not None
    statistics = coordinator.statistics()
    return statistics.members, statistics.abandoned_by


def farewell() -> None:
    _farewells.release()


def part() -> None:
    """Returns when all have called this: where the coordinator is lost nobody else says so."""
    others = rpc.get_worker_infos()
    for info in others:
        rpc.rpc_sync(info, farewell, timeout=LIMIT)
    for _ in others:
        assert _farewells.acquire(timeout=LIMIT), "somebody did not come"


def check_closed(error: Failure) -> None:
    error.check(RendezvousError, "gave up the coordinator", "nobody can join this job any more")
