"""What runs on the workers that are attacked: functions that honest peers call, and canaries."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telegrad import rpc
from telegrad.rendezvous import JoinedJob
from telegrad.rpc.seams import current_agent
from telegrad.transport.grpc.options import split_address
from telegrad.transport.session.link import own_endpoints
from telegrad.types import Array
from tests.audit_log import AuditLog

__all__ = [
    "Eager",
    "EagerError",
    "ask_the_other",
    "audit_records",
    "forget_audit",
    "give_back",
    "grpc_port",
    "held",
    "hold",
    "job_name_and_coordinator",
    "let_go",
    "listen_to_audit",
    "members",
    "size_of",
    "wait_for_hold",
    "who_am_i",
]

LOGS: list[AuditLog] = []
HELD: list[rpc.Future[None]] = []
HOLDS = threading.Event()


def who_am_i() -> str:
    """The name of the worker that runs this."""
    return current_agent().info.name


def ask_the_other() -> str:
    """Has the other honest worker say who it is."""
    other = "worker1" if who_am_i() == "worker0" else "worker0"
    return rpc.rpc_sync(other, who_am_i)


def give_back(value: Any) -> Any:
    """Returns what it was called with."""
    return value


async def hold() -> None:
    """Ends when `let_go` is called."""
    HELD.append(rpc.Future())
    HOLDS.set()
    await HELD[-1]


def wait_for_hold() -> bool:
    """Waits until `hold` has begun; returns True if it has within 10 s."""
    return HOLDS.wait(10)


def held() -> int:
    """The number of functions that `let_go` will end."""
    return len(HELD)


def let_go() -> None:
    """Ends every `hold`."""
    HOLDS.clear()
    while HELD:
        HELD.pop().try_set_result(None)  # or its caller has left, and it was cancelled


def size_of(array: Array) -> int:
    """Returns the bytes of an array."""
    return array.nbytes


def _sing() -> None:
    """Leaves a file behind: something ran that must not."""
    Path(os.environ["CANARY"]).touch()


@dataclass
class Eager:
    """A dataclass with code of its own."""

    x: int = field(default=0)

    def __post_init__(self) -> None:
        """Sings."""
        _sing()

    def __setstate__(self, state: object) -> None:
        """Sings."""
        _sing()


class EagerError(Exception):
    """An exception with code of its own."""

    def __init__(self, *args: object) -> None:
        """Sings."""
        super().__init__(*args)
        _sing()


def listen_to_audit() -> None:
    """Keeps what the audit log of this process is told."""
    log = AuditLog()
    logger = logging.getLogger("telegrad.audit")
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    LOGS.append(log)


def audit_records(event: str, count: int, fields: dict[str, object]) -> list[dict[str, Any]]:
    """Waits until the audit log has told so often of something, and returns it."""
    return LOGS[-1].wait(event, count, **fields)


def forget_audit() -> None:
    """Begins with an empty log."""
    with LOGS[-1].changed:
        LOGS[-1].records.clear()


def job_name_and_coordinator() -> tuple[str, str]:
    """The name of the job, and where its coordinator listens."""
    joined = current_agent().attachments[JoinedJob]
    return os.environ["TELEGRAD_JOB"], joined.coordinator_endpoint


def grpc_port() -> int:
    """The port where this worker listens with gRPC; it has a direct one, too."""
    endpoints = own_endpoints(current_agent().exchange)
    (endpoint,) = [each for each in endpoints if each.startswith("grpc")]
    return split_address(endpoint)[1]


def members() -> list[rpc.WorkerInfo]:
    """Whom this worker takes for living members."""
    return rpc.get_worker_infos()
