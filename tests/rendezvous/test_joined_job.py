"""A worker that asks whether it was given up, until it has a definite answer."""

from __future__ import annotations

import queue
import threading
from typing import Any, cast

import pytest

from telegrad.errors import DecodeError
from telegrad.rendezvous import joined_job as standing
from telegrad.rendezvous.control import ControlLine
from telegrad.rendezvous.joined_job import Standing
from telegrad.testing.leaks import wait_until_gone
from telegrad.types import WorkerInfo

COORDINATOR = WorkerInfo("coordinator", -1, 9)
INFO = WorkerInfo("w1", 1, 2)
LIMIT = 20.0


class Line:
    """A ControlLine whose answers are written down; one that is an exception is raised."""

    coordinator = COORDINATOR
    endpoint = "test"

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.opened = self.closed = 0
        self.asked = threading.Event()

    def another(self) -> Line:
        if isinstance(self._answers[0], OSError):
            raise self._answers.pop(0)
        self.opened += 1
        return self

    def connect(self, endpoint: str, timeout: float) -> WorkerInfo:
        return COORDINATOR

    def ask(self, kind: str, body: object, *, timeout: float) -> object:
        self.asked.set()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, threading.Event):
            answer.wait(LIMIT)
            return {"member": True}
        return answer

    def close(self, *, reason: str) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "FIRST_PAUSE_SECONDS", 0.001)


def threads() -> list[str]:
    """Returns the names of the living threads that ask."""
    names = [each.name for each in threading.enumerate()]
    return [name for name in names if name.startswith("telegrad-standing")]


def asks(line: Line, evicted: queue.Queue[str]) -> Standing:
    return Standing(cast("ControlLine", line), INFO, lambda: evicted.put("evicted"))


@pytest.mark.parametrize(
    "answer",
    [
        OSError("no port is free"),
        TypeError("what the coordinator answered"),
        ValueError("what the coordinator answered"),
        DecodeError("garbage"),
        "garbage",
        {"member": "perhaps"},
    ],
    ids=repr,
)
def test_without_a_definite_answer_it_asks_again(answer: object) -> None:
    evicted: queue.Queue[str] = queue.Queue()
    line = Line(answer, {"member": True}, {"member": False})
    asking = asks(line, evicted)
    asking.start()
    assert evicted.get(timeout=LIMIT) == "evicted"
    asking.close(LIMIT)
    assert line.opened == line.closed > 1


def test_where_nobody_can_say_it_asks_no_more() -> None:
    """The coordinator was the one that was away: it knows by now that it is lost here."""
    evicted: queue.Queue[str] = queue.Queue()
    line = Line({"member": None})
    asking = asks(line, evicted)
    asking.start()
    wait_until_gone("threads", threads, LIMIT)
    assert line.opened == line.closed == 1
    assert evicted.empty()


def test_closing_waits_no_longer_than_it_may() -> None:
    answers = threading.Event()
    line = Line(answers)
    asking = asks(line, queue.Queue())
    asking.start()
    assert line.asked.wait(LIMIT)
    asking.close(0.001)
    assert threads()
    answers.set()
    wait_until_gone("threads", threads, LIMIT)
