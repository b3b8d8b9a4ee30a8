"""The slow tick that counts garbage: never two at once, none where there is nothing to count."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from telegrad.rpc import RpcOptions
from telegrad.rpc.rref.table import RRefRegistry
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.rpc.seams import AgentCore


class Ticks:
    """What an agent is for a registry; it keeps what is to be called later."""

    info = WorkerInfo("w0", 0, 1)
    options = RpcOptions()

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.posted: Callable[[], None]
        self.deadlines = self.messages = self.pool = self

    def after(self, delay: float, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def post(self, *_: object, **__: object) -> None:
        self.posted()

    def flush(self) -> None:
        pass

    def submit(self, func: Callable[..., Any], *args: Any) -> None:
        func(*args)


def test_who_begins_while_a_tick_drains_starts_no_second_one() -> None:
    ticks = Ticks()
    own: list[object] = []

    registry = RRefRegistry(cast("AgentCore", ticks))
    ticks.posted = lambda: own.append(registry.own("value"))
    reference = registry.create(WorkerInfo("w1", 1, 2))
    assert reference.fork is not None
    registry.event(registry.users.created, reference.fork)
    (tick,) = ticks.waiting
    ticks.waiting.clear()
    del reference
    tick()
    assert len(own) == 1
    assert len(ticks.waiting) == 1
    (tick,) = ticks.waiting
    ticks.waiting.clear()
    own.clear()
    tick()
    assert ticks.waiting == []
