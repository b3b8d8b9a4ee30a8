"""Event loops of the user's own: several at once, uvloop's, pytest-asyncio's, a running one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import pytest_asyncio

from telegrad import rpc
from telegrad.rpc import seams
from tests.rpc import remote_code
from tests.rpc.conftest import Job
from tests.rpc.turns import turn

N_CALLS = 50


def uvloop_runner() -> asyncio.Runner:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed; make test-uvloop")
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


RUNNERS = [asyncio.Runner, uvloop_runner]


async def many_calls(agent: seams.AgentCore, met: threading.Barrier | None = None) -> list[int]:
    """Awaits plain and coroutine functions, all at once, with timers of the loop in between."""
    if met is not None:
        met.wait(20)  # both loops run; a wait of the test's, before any of theirs
    with seams.use_agent(agent):
        plain = [rpc.rpc_async("w1", remote_code.add, (i, i)) for i in range(N_CALLS)]
        awaited = [rpc.rpc_async("w2", remote_code.async_add, (i, 1)) for i in range(N_CALLS)]
        await turn()
        found = [await future for future in plain]
        found += await asyncio.gather(*awaited)
        assert await asyncio.wait_for(rpc.rpc_async("w1", remote_code.add, (1, 1)), 20) == 2
    return found


EXPECTED = [2 * i for i in range(N_CALLS)] + [i + 1 for i in range(N_CALLS)]


@pytest.mark.parametrize("runners", [RUNNERS[:1] * 2, RUNNERS], ids=["asyncio", "both kinds"])
def test_two_loops_at_once(job: Job, runners: list[Callable[[], asyncio.Runner]]) -> None:
    """Of one agent, and of two."""
    met = threading.Barrier(4)
    made = [runner() for runner in runners * 2]

    def run(rank: int, runner: asyncio.Runner) -> list[int]:
        with runner:
            return runner.run(many_calls(job.agents[rank], met))

    with ThreadPoolExecutor(4) as pool:
        running = [
            pool.submit(run, rank, each) for rank, each in zip((0, 0, 1, 2), made, strict=True)
        ]
        assert [each.result(40) for each in running] == [EXPECTED] * 4


def test_a_future_may_be_awaited_on_two_loops(job: Job) -> None:
    future = seams.call(job.agents[0], "w1", remote_code.hold, ("loops",))
    assert remote_code.entered("loops")
    waiting = threading.Barrier(3)

    async def wait() -> str:
        task = asyncio.ensure_future(wrapped())
        await turn()  # it waits by now
        await asyncio.to_thread(waiting.wait, 20)
        return await task

    async def wrapped() -> str:
        name: str = await future
        return name

    with ThreadPoolExecutor(2) as pool:
        awaited = [pool.submit(asyncio.run, wait()) for _ in range(2)]
        waiting.wait(20)
        remote_code.release("loops")
        assert [each.result(20) for each in awaited] == ["loops", "loops"]


def test_verbs_that_block_may_do_so_in_a_running_loop(job: Job) -> None:
    """As in a notebook: the loop is the user's, and only his waits."""

    async def cell() -> object:
        with seams.use_agent(job.agents[0]):
            rref = rpc.remote("w1", remote_code.who)
            assert await rref == "w1"
            return rpc.rpc_sync("w1", remote_code.who), rref.to_here()

    assert asyncio.run(cell()) == ("w1", "w1")


@pytest.mark.usefixtures("alone")
def test_an_agent_may_begin_and_end_on_different_loops() -> None:
    async def begin() -> rpc.Agent:
        return rpc.init_rpc("alone")

    async def end(agent: rpc.Agent) -> None:
        async with agent:
            assert await rpc.rpc_async("alone", remote_code.async_add, (1, 2)) == 3

    agent = asyncio.run(begin())
    asyncio.run(end(agent))
    assert agent.ended


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("fails", [False, True])
def test_an_agent_ends_with_grace_where_its_block_did(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutdown, how = rpc.Agent.shutdown, []

    def noted(agent: rpc.Agent, *, graceful: bool) -> None:
        how.append(graceful)
        shutdown(agent, graceful=graceful)

    async def block() -> None:
        async with rpc.init_rpc("alone"):
            if fails:
                raise remote_code.CustomError("in the block", code=1)

    monkeypatch.setattr(rpc.Agent, "shutdown", noted)
    with pytest.raises(remote_code.CustomError) if fails else contextlib.nullcontext():
        asyncio.run(block())
    assert how == [not fails]


# -- pytest-asyncio ------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def agent(alone: None) -> AsyncIterator[rpc.Agent]:
    """An agent that begins and ends on the loop of the test."""
    async with rpc.init_rpc("alone") as made:
        yield made


@pytest.mark.asyncio
@pytest.mark.parametrize("again", [0, 1])
async def test_under_pytest_asyncio(agent: rpc.Agent, again: int) -> None:
    """Each test has a loop of its own, and the agent's is another one."""
    assert await rpc.rpc_async("alone", remote_code.async_add, (again, 1)) == again + 1
    rref = rpc.remote("alone", remote_code.add, (again, 2))
    assert await rref == again + 2
    with pytest.raises(remote_code.CustomError):
        await rpc.rpc_async("alone", remote_code.fail, ("here",))
    many: list[Coroutine[Any, Any, int]] = [one(i) for i in range(N_CALLS)]
    assert await asyncio.gather(*many) == [2 * i for i in range(N_CALLS)]


async def one(i: int) -> int:
    found: int = await rpc.rpc_async("alone", remote_code.add, (i, i))
    return found
