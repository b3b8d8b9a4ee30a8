"""A thread looks before it sleeps where that paid in the last waits."""

from __future__ import annotations

import os
import time

import pytest

from telegrad.transport.io.spin import Spin, longest_spin

READY = [(3, 1)]


class World:
    """A clock and a descriptor: what is looked for is there after so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.comes = 0.0
        self.looked = self.slept = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.others_take = 0.0  # seconds, while this thread lets others have the processor
        monkeypatch.setattr(os, "sched_yield", self.let_others)
        monkeypatch.setattr("telegrad.transport.io.spin.WANTED_SECONDS", 1.5)

    def let_others(self) -> None:
        self.now += self.others_take

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        if timeout == 0:
            self.looked += 1
            self.now += 1
        else:
            self.slept += 1
            self.now = max(self.now, min(self.comes, self.now + timeout))
        return READY if self.now >= self.comes else []

    def wait(self, spin: Spin, seconds: float) -> tuple[int, int]:
        """Waits for what comes after so many seconds; returns how often it looked and slept."""
        self.looked = self.slept = 0
        self.comes = self.now + seconds
        spin.poll(self.poll, 100.0)
        return self.looked, self.slept


def test_it_looks_once_waits_were_short(monkeypatch: pytest.MonkeyPatch) -> None:
    world, spin = World(monkeypatch), Spin(10)
    assert world.wait(spin, 5) == (0, 1)
    assert world.wait(spin, 5) == (5, 0)
    assert world.wait(spin, 1) == (1, 0)


def test_it_gives_that_up_when_waits_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    world, spin = World(monkeypatch), Spin(8)
    world.wait(spin, 1)
    looked = [world.wait(spin, 50)[0] for _ in range(6)]
    assert looked == [8, 4, 2, 1, 0, 0]
    assert world.wait(spin, 1) == (0, 1)
    assert world.wait(spin, 1) == (1, 0)


def test_it_sleeps_where_others_want_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    world, spin = World(monkeypatch), Spin(10)
    world.wait(spin, 5)
    world.others_take = 1.0
    assert world.wait(spin, 8) == (2, 1)
    assert world.wait(spin, 1) == (1, 0)
    world.others_take = 0.0
    assert world.wait(spin, 8) == (8, 0)


def test_a_wait_that_ends_for_nothing_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    world, spin = World(monkeypatch), Spin(1)
    world.comes = 100
    assert spin.poll(world.poll, 50.0) == []
    assert world.wait(spin, 50) == (0, 1)


def test_none_is_allowed_where_the_process_has_one_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, spin = World(monkeypatch), Spin(0.0)
    assert [world.wait(spin, 0.0005) for _ in range(3)] == [(0, 1)] * 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    assert longest_spin() == 0.0
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert longest_spin() == 0.001
