"""Those who hold the token and become members of the job, as its coordinator lets anybody do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from telegrad.rendezvous import control as messages
from telegrad.rendezvous.control import ControlLine
from telegrad.transport import GrpcTransport
from telegrad.types import WorkerInfo

SECONDS = 20.0


@contextmanager
def enlisted(endpoint: str, job: str, token: bytes, name: str) -> Iterator[WorkerInfo]:
    """Takes a place on top of the job, which listens nowhere; gives it back at the end.

    Args:
        endpoint: Of the coordinator.
        job: The job's name.
        token: The job's.
        name: Under which it joins.
    """
    line = ControlLine(
        job=job, rank=-1, token=token, transports=[GrpcTransport()], owner=name, lost_after=SECONDS
    )
    try:
        line.connect(endpoint, SECONDS)
        yield _join(line, name)
        line.ask(messages.LEAVE, {"reason": "it has attacked"}, timeout=SECONDS)
    finally:
        line.close()


def _join(line: ControlLine, name: str) -> WorkerInfo:
    place = line.ask(messages.RESERVE, {"name": name}, timeout=SECONDS)
    count = {"key": messages.INCARNATION_KEY, "amount": 1}
    incarnation = line.ask("store.add", count, timeout=SECONDS)
    assert isinstance(place, dict)
    assert isinstance(incarnation, int)
    body = {**place, "incarnation": incarnation, "endpoints": [], "control": [], "start_when": 1}
    line.ask(messages.JOIN, body, timeout=SECONDS)
    return WorkerInfo(name, place["rank"], incarnation)
