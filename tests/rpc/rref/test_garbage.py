"""Very many references that are dropped at once go in parts, one for each turn of the loop."""

from __future__ import annotations

import pytest

from telegrad import rpc
from telegrad.testing import Cluster
from telegrad.testing.leaks import wait_until_gone
from tests.rpc import remote_code


def test_all_go_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telegrad.rpc.rref.table.MOST_AT_ONCE", 3)

    def drop() -> None:
        references = [rpc.remote(1, remote_code.who) for _ in range(100)]
        assert references[-1].to_here() == "worker1"
        assert rpc.rpc_sync(1, rpc.statistics).owned_rrefs == 100
        references.clear()

    def left() -> list[str]:
        return ["a reference"] * cluster.call(1, rpc.statistics).owned_rrefs

    with Cluster(2) as cluster:
        cluster.call(0, drop)
        wait_until_gone("references", left)
