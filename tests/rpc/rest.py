"""Agents at rest: nothing is called or served any more, and nothing waits for admission."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from telegrad.errors import PoolExhaustedError
from telegrad.rpc import seams
from telegrad.testing import leaks
from tests.rpc import remote_code

__all__ = ["assert_at_rest", "refusal_of", "refused", "wait_until_idle"]


def wait_until_idle(agent: seams.AgentCore) -> None:
    """Waits until a worker calls and serves nothing, not even what nobody waits for."""
    assert agent.drain(time.monotonic() + leaks.GONE_WITHIN), agent.waits_for()


def assert_at_rest(agents: Iterable[seams.AgentCore]) -> None:
    """Waits until nothing is left of any call; then each of the agents may call each other."""
    living = list(agents)
    for agent in living:
        wait_until_idle(agent)

    def counted() -> list[str]:  # the last withdrawal may still be on its way
        found = {agent.info.name: agent.statistics() for agent in living}
        return [
            f"{name}: {each}"
            for name, each in found.items()
            if (each.pending_calls, each.waiting_calls, each.admitted_bytes) != (0, 0, 0)
        ]

    leaks.wait_until_gone("calls", counted)
    for agent in living:
        for to in living:
            leaks.wait_until_gone("calls", partial(refused, agent, to))


def refused(agent: seams.AgentCore, to: seams.AgentCore) -> list[str]:
    """Calls one worker from another one; returns the words with which its pool refused that."""
    return refusal_of(agent, to, remote_code.who, (), to.info.name)


def refusal_of(
    agent: seams.AgentCore,
    to: seams.AgentCore,
    func: Callable[..., object],
    args: tuple[Any, ...],
    value: object,
) -> list[str]:
    """Calls a function that returns `value`; returns the words with which the pool refused that."""
    try:
        assert seams.call(agent, to.info.name, func, args).wait() == value
    except PoolExhaustedError as error:  # its only thread is on its way back
        return [str(error)]
    return []
