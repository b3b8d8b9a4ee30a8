"""The writes of a burst, whoever makes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from telegrad.transport.io.burst import BURSTS, BurstWriter


class Loop:
    """A loop of another thread, which is ahead of this one: all is over before `call_soon` returns."""

    def __init__(self) -> None:
        self.raises = False

    @property
    def loop(self) -> Loop:
        return self

    def is_loop_thread(self) -> bool:
        return False

    def call_soon(self, function: Callable[[], None]) -> None:
        function()
        if self.raises:
            raise KeyboardInterrupt

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        assert seconds > 0
        function()


def post_burst(bursts: BurstWriter, written: list[int]) -> None:
    for number in range(BURSTS + 1):
        bursts.takes(lambda number=number: written.append(number))  # type: ignore[misc]


@pytest.mark.parametrize("raises", [False, True])
def test_each_burst_is_written_though_the_loop_wrote_the_last_one_at_once(
    monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    monkeypatch.setattr("telegrad.transport.io.burst.BURST_SECONDS", math.inf)
    loop, written = Loop(), list[int]()
    bursts = BurstWriter(cast("Any", loop))
    for _ in range(3):
        loop.raises = raises
        try:
            post_burst(bursts, written)
        except KeyboardInterrupt:
            loop.raises = False
            post_burst(bursts, written)
        assert not bursts.waiting
    assert len(written) >= 3
