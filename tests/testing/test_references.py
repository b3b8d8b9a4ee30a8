"""Asks the check across a cluster to find an RRef and a context that stay, and nothing else."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import telegrad as tg
from telegrad import dist_autograd, rpc
from telegrad.testing import Cluster, LeakError, no_leaked_references
from telegrad.testing.leaks import wait_until_gone

KEPT: list[object] = []


def double(x: tg.Tensor) -> tg.Tensor:
    return x + x


def keep_a_reference() -> None:
    rref = rpc.remote("worker1", double, (tg.as_tensor(np.ones(2)),))
    wait_until_gone("creations", lambda: [] if rref.confirmed_by_owner() else [rref])
    KEPT.append(rref)


def drop_it() -> None:
    KEPT.clear()


def enter_a_context() -> None:
    context = dist_autograd.context()
    context.__enter__()
    KEPT.append(context)


def test_a_kept_reference_is_named() -> None:
    with Cluster(2) as cluster:
        with no_leaked_references(cluster):  # until it is dropped
            with pytest.raises(LeakError, match="worker0 holds 1 more user RRefs, worker1 holds 1"):
                with no_leaked_references(cluster, within=0.2):
                    cluster.call(0, keep_a_reference)
            cluster.call(0, drop_it)


def test_a_context_that_is_not_left_is_named() -> None:
    with Cluster(1) as cluster:
        with pytest.raises(LeakError, match="worker0 holds 1 more autograd contexts"):
            with no_leaked_references(cluster, within=0.2):
                cluster.call(0, enter_a_context)
        KEPT.clear()


def fail() -> Any:
    raise ValueError("no value")


def use_a_failed_value(use: str) -> None:
    reference = rpc.remote("worker1", fail)
    with pytest.raises(ValueError, match="no value"):
        if use == "fetch":
            reference.to_here()
        elif use == "method":
            reference.rpc_sync().anything()
        else:
            reference.remote().anything().to_here()


@pytest.mark.parametrize("use", ["fetch", "method", "method kept"])
def test_a_failed_value_leaves_nothing_for_the_collector(use: str) -> None:
    """The error that was told to whoever fetched it kept the value, in a circle of frames."""
    # At the next heartbeat both know what the other has let go of: five in `lost_after`.
    with Cluster(2, options=rpc.RpcOptions(lost_after=1.0)) as cluster:
        gc.disable()
        try:
            with no_leaked_references(cluster):
                cluster.call(0, use_a_failed_value, use)
        finally:
            gc.enable()
