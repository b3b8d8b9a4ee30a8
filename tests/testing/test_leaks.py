"""Asks the leak checks to find what was left behind, and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import weakref

import pytest

from telegrad.testing import leaks


def test_a_thread_that_stays_is_named() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="forgotten")
    with pytest.raises(leaks.LeakError, match=r"leaked threads \(after 0.05 s\): forgotten"):
        with leaks.no_leaked_threads(within=0.05):
            thread.start()
    release.set()
    thread.join()


def test_a_thread_that_ends_soon_is_no_leak() -> None:
    release = threading.Event()
    with leaks.no_leaked_threads():
        threading.Thread(target=release.wait).start()
        threading.Timer(0.05, release.set).start()


def test_a_descriptor_that_stays_is_named() -> None:
    with pytest.raises(leaks.LeakError, match="leaked descriptors .* pipe:"):
        with leaks.no_leaked_descriptors(within=0.05):
            ends = os.pipe()
    for end in ends:
        os.close(end)


def test_a_child_that_stays_is_named_with_its_command() -> None:
    with pytest.raises(leaks.LeakError, match=r"leaked child processes .*input\(\)"):
        with leaks.no_leaked_children(within=0.05):
            child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child.communicate()


@pytest.mark.asyncio
async def test_a_task_that_stays_is_named() -> None:
    loop = asyncio.get_running_loop()
    task: list[asyncio.Task[None]] = []
    with pytest.raises(leaks.LeakError, match="leaked tasks .*forgotten"):
        with leaks.no_leaked_tasks(loop, within=0.05):
            task.append(loop.create_task(asyncio.Event().wait(), name="forgotten"))  # type: ignore[arg-type]
    task[0].cancel()


def test_a_look_holds_nothing_of_what_it_found() -> None:
    class Thing:
        pass

    things = [Thing()]
    thing = weakref.ref(things[0])

    def left() -> list[Thing]:
        found = [each for each in [thing()] if each is not None]
        things.clear()
        return found

    leaks.wait_until_gone("things", left, within=10.0)
    assert thing() is None
