"""Pains of users: arrays of more bytes than fit into one message."""

from __future__ import annotations

import numpy as np
import pytest

from telegrad import rpc
from telegrad.testing import Cluster
from tests.pains.remote_code import size_and_last

GIB = 2**30


def push_more_than_2_gib(to: str) -> tuple[int, int]:
    """Lets go of its array before it is told of a loss, if there was one."""
    array = np.ones(2 * GIB + 1, np.uint8)
    return rpc.rpc_sync(to, size_and_last, (array,), timeout=300)


@pytest.mark.long
def test_pain_22_more_than_2_gib_and_nobody_is_taken_for_dead() -> None:
    """A copy under the interpreter's lock would take as long as silence may last here."""
    options = rpc.RpcOptions(lost_after=1.5)
    with Cluster(2, processes=True, options=options) as cluster:
        assert cluster.call(0, push_more_than_2_gib, "worker1") == (2 * GIB + 1, 1)
