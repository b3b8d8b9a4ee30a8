"""`rpc.Limits`: what it takes, and that each of them reaches what it bounds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import DecodeError, EncodeError, PoolExhaustedError
from telegrad.rpc import Limits, seams
from telegrad.rpc.seams import connection_limits
from telegrad.transport import ConnectionLimits
from telegrad.wire import DecodeLimits
from tests.rpc import remote_code
from tests.rpc.conftest import MakeJob
from tests.rpc.rest import wait_until_idle


def test_the_defaults_of_the_floors_are_the_same() -> None:
    assert Limits().received == DecodeLimits()
    assert connection_limits(Limits()) == ConnectionLimits()


def test_each_of_them_is_described() -> None:
    described = (Limits.__doc__ or "").partition("Attributes:")[2]
    for field in dataclasses.fields(Limits):
        assert f"        {field.name}: " in described


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (
            {"document_bytes": 2**33},
            ValueError,
            r"Limits\.document_bytes must be from 65536 to 42.*\(got 85",
        ),
        ({"message_bytes": True}, TypeError, "must be an integer, not True"),
        ({"served_calls_per_peer": 0}, ValueError, "from 1"),
        ({"pending_calls_per_peer": 0}, ValueError, r"Limits\.pending_calls_per_peer"),
        ({"pending_bytes": 0}, ValueError, "pending_bytes must be from 1"),
        ({"allowance": 3}, TypeError, "unexpected keyword"),
    ],
)
def test_wrong_limits(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Limits(**wrong)


def test_limits_reach_what_is_decoded(make_job: MakeJob) -> None:
    job = make_job(2, limits=Limits(document_bytes=2**16))
    with seams.use_agent(job.agents[0]):
        with pytest.raises(DecodeError, match="more than 2520 elements"):
            rpc.rpc_sync("w1", remote_code.echo, ([0] * 2600,))
        with pytest.raises(EncodeError, match="Limits.document_bytes at both ends"):
            rpc.rpc_sync("w1", remote_code.echo, ("x" * 2**17,))
        assert rpc.rpc_sync("w1", remote_code.echo, ([1.5] * 900,)) == [1.5] * 900


def test_a_caller_has_so_many_calls_at_once(make_job: MakeJob) -> None:
    job = make_job(3, limits=Limits(served_calls_per_peer=3))
    held = [job.on(0, rpc.rpc_async, "w1", remote_code.hold, ("limits",)) for _ in range(3)]
    try:
        with pytest.raises(PoolExhaustedError, match="has 3 calls of 'w0' to serve"):
            job.on(0, rpc.rpc_sync, "w1", remote_code.echo, (1,))
        assert job.on(2, rpc.rpc_sync, "w1", remote_code.echo, (1,)) == 1
    finally:
        remote_code.release("limits")
    rpc.wait_all(held)
    wait_until_idle(job.agents[1])
    again = [job.on(0, rpc.rpc_async, "w1", remote_code.echo, (i,)) for i in range(3)]
    assert rpc.wait_all(again) == [0, 1, 2]
