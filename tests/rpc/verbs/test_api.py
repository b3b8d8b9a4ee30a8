"""Every form of a call, over every transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from telegrad import rpc
from telegrad.errors import (
    EncodeError,
    NotInitializedError,
)
from telegrad.rpc import seams
from tests.rpc import remote_code
from tests.rpc.conftest import Job, MakeJob

OVER_PROCESSES_TOO = True  # nothing here touches an agent but that of rank 0
OVER_FAULTS_TOO = True


def test_from_a_loop_of_the_users(job: Job) -> None:
    async def main() -> list[str]:
        with seams.use_agent(job.agents[0]):
            blocking = rpc.rpc_sync("w1", remote_code.who)  # slow here, but no deadlock
            return [blocking, *await asyncio.gather(*(one(f"w{r}") for r in range(3)))]

    async def one(to: str) -> str:
        return await rpc.rpc_async(to, remote_code.who)

    assert asyncio.run(main()) == ["w1", "w0", "w1", "w2"]


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_arguments_and_values_are_copies(job: Job, to: str) -> None:
    array = np.arange(4.0)
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async(to, remote_code.double_in_place, (array,))
        array += 100.0  # what was sent is the value at the time of the call
        np.testing.assert_array_equal(future.wait(), 2 * np.arange(4.0))
        value = future.wait()
        assert value.flags.writeable
        np.testing.assert_array_equal(array, np.arange(4.0) + 100.0)
        sent = {"a": [1]}
        back = rpc.rpc_sync(to, remote_code.echo, (sent,))
        assert back == sent
        assert back["a"] is not sent["a"]


@pytest.mark.parametrize("func", [np.linalg.svd, np.linalg.eigh, np.linalg.qr, np.unique_all])
def test_named_tuples_of_numpy_are_values_and_arguments(job: Job, func: Callable[..., Any]) -> None:
    matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    with seams.use_agent(job.agents[0]):
        value = rpc.rpc_sync("w1", func, (matrix,))
        assert type(value) is type(func(matrix))
        back = rpc.rpc_sync("w2", remote_code.echo, (value,))
    assert type(back) is type(value)
    for one, other in zip(back, func(matrix), strict=True):
        np.testing.assert_array_equal(one, other)


def test_nested_around_a_ring_deeper_than_the_pool(make_job: MakeJob) -> None:
    job = make_job(3, num_threads=2)
    path = [f"w{(i + 1) % 3}" for i in range(24)]
    with seams.use_agent(job.agents[0]):
        assert rpc.rpc_sync("w0", remote_code.chain, (path,)) == ["w0", *path]
        assert rpc.rpc_sync("w0", remote_code.async_chain, (path,)) == ["w0", *path]


def test_futures_of_the_callee(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        assert rpc.rpc_sync("w1", remote_code.encoded_before_set_result_returns) == [1]
        with pytest.raises(TypeError, match="async_execution"):
            rpc.rpc_sync("w1", remote_code.unmarked_future)


def test_wrong_forms_are_refused_before_anything_is_sent(job: Job) -> None:
    before = job.agents[0].statistics().calls_sent
    with seams.use_agent(job.agents[0]):
        with pytest.raises(TypeError, match=r"write args=\(x,\)"):
            rpc.rpc_sync("w1", remote_code.echo, 3)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"not str.*write args=\(x,\)"):
            rpc.rpc_sync("w1", remote_code.echo, "xyz")  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="kwargs must be a dict"):
            rpc.rpc_sync("w1", remote_code.echo, (), [1])  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="keys of kwargs"):
            rpc.rpc_sync("w1", remote_code.echo, (), {1: 2})  # type: ignore[dict-item]
        with pytest.raises(EncodeError) as info:
            rpc.rpc_sync("w1", remote_code.echo, [1, {"lr": [remote_code.Unsendable()]}])
        assert "Unsendable" in str(info.value)
        with pytest.raises(EncodeError) as positional:
            rpc.rpc_sync("w1", remote_code.add, [1, {"lr": [remote_code.Unsendable()]}])
        assert positional.value.path == "args[1]['lr'][0]"
        with pytest.raises(EncodeError) as named:
            rpc.rpc_sync("w1", remote_code.echo, (), {"value": remote_code.Unsendable()})
        assert named.value.path == "kwargs['value']"
    assert job.agents[0].statistics().calls_sent == before


def test_without_an_agent() -> None:
    assert not rpc.is_initialized()
    for verb in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
        with pytest.raises(NotInitializedError, match="init_rpc"):
            verb("w1", remote_code.who)
    for question in (rpc.get_worker_info, rpc.get_worker_infos, rpc.statistics):
        with pytest.raises(NotInitializedError, match="init_rpc"):
            question()


def test_statistics(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        before = rpc.rpc_sync("w1", remote_code.calls_served)
        sent = rpc.statistics().calls_sent
        rpc.rpc_sync("w1", remote_code.who)
        rpc.rpc_sync("w0", remote_code.who)
        own = rpc.statistics()
        assert rpc.rpc_sync("w1", remote_code.calls_served) == before + 2
    assert (own.calls_sent - sent, own.calls_served, own.pending_calls) == (2, 1, 0)
    assert own.bytes_sent > 0
    assert own.bytes_received > 0
