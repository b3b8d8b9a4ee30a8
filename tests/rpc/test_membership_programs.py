"""Workers in processes of their own that are busy, which is no loss."""

from __future__ import annotations

import pytest

from telegrad import rpc
from telegrad.testing import Cluster
from tests.faults.remote_code import call_everybody
from tests.patience import with_more_time
from tests.rpc import busy_code


@pytest.mark.parametrize(
    "bounds",
    [1.5, pytest.param(60.0, marks=[pytest.mark.long, pytest.mark.timeout(400)])],
)
def test_a_worker_that_is_busy_in_python_is_not_lost(bounds: float) -> None:
    """Nor is it silent, however long it is busy: unless the machine itself stands still."""

    def work(lost_after: float) -> None:
        options = rpc.RpcOptions(lost_after=lost_after)
        with Cluster(2, processes=True, options=options, limit=300.0) as cluster:
            cluster.run(call_everybody)
            assert cluster.call(0, busy_code.calls_busy, "worker1", bounds * lost_after) == []
            assert cluster.run(call_everybody) == [["worker0", "worker1"]] * 2

    with_more_time(work, 0.5, 1.0, 4.0)
