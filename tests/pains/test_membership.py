"""Pains of users: workers that die, come late, are slow, or cannot be reached."""

from __future__ import annotations

import pytest

from telegrad import rpc
from telegrad.testing import Cluster
from tests.pains import remote_code
from tests.pains.remote_code import (
    outcome,
    who,
)
from tests.patience import with_more_time

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.mark.long
def test_pain_28_slow_is_taken_for_dead() -> None:
    """A worker computes in pure Python for longer than the bound of silence, and is kept."""

    def work(lost_after: float) -> None:
        options = rpc.RpcOptions(lost_after=lost_after)
        with Cluster(2, processes=True, options=options) as cluster:
            found = cluster.call(0, busy_beside, "worker1", 4.0 * lost_after)
            assert found == ["worker1"] * 5

    with_more_time(work, 1.0, 4.0)


def busy_beside(to: str, seconds: float) -> list[str]:
    """Four threads that never wait, and a call of another one beside them."""
    busy = [rpc.rpc_async(to, remote_code.compute, (seconds,)) for _ in range(4)]
    return [outcome(wait) for wait in (lambda: rpc.rpc_sync(to, who), *(one.wait for one in busy))]
