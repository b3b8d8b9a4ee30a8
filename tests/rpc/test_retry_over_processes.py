"""Calls that are made again when their callee's process was killed, and another one has its name."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from telegrad import rpc
from telegrad.launch import LocalWorkers
from telegrad.rpc import seams
from telegrad.testing import leaks
from tests.repeated import repeated

pytestmark = pytest.mark.usefixtures("forked_processes")

OPTIONS = rpc.RpcOptions(token="a token that only the tests use", timeout=60.0)


@pytest.fixture
def agent() -> Iterator[seams.AgentCore]:
    with rpc.init_rpc("me", options=OPTIONS) as started:
        yield seams.core_of(started)


@rpc.idempotent
def process_of_the_second_attempt(path: str) -> int:
    """The first attempt writes its process down, and does not end."""
    try:
        with Path(path).open("x") as file:
            file.write(f"{os.getpid()}\n")
    except FileExistsError:
        return os.getpid()
    threading.Event().wait(60)
    raise AssertionError("nobody killed this process")


def first_attempt(path: Path) -> int:
    """Returns the process in which it runs, once it does."""

    def missing() -> list[str]:
        return [] if path.exists() and path.read_text().endswith("\n") else ["the first attempt"]

    leaks.wait_until_gone("attempts", missing)
    return int(path.read_text())


@repeated
def test_the_process_is_killed_and_another_one_takes_its_name(
    agent: seams.AgentCore, tmp_path: Path, run: int
) -> None:
    path = tmp_path / "attempt"
    with LocalWorkers(names=["ps"]):
        call = rpc.rpc_async("ps", process_of_the_second_attempt, (str(path),), retry=1)
        killed = first_attempt(path)
        os.kill(killed, signal.SIGKILL)
        before = agent.members.find("ps")
        leaks.wait_until_gone("worker", lambda: [] if agent.members.lost(before) else ["ps"])
        assert not call.done()
    with LocalWorkers(names=["ps"]):
        answered = call.wait()
        assert answered not in (killed, os.getpid())
        assert agent.members.find("ps").incarnation != before.incarnation
