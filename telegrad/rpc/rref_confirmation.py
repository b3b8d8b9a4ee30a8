"""A call starts once the owners have counted the RRefs that it brought.

     parent                child                        owner
     ------                -----                        -----
     call(rref, ...) ----> decoded, parked
                           ForkRequest ---------------> counted
                           started    <---------------- ForkConfirm

So whoever runs with an RRef has one that is confirmed, and what it does with it, on any worker,
comes after the owner's count. Nothing waits for what the owner sent itself, for an RRef that came
home, or for a value that is still being created: one round trip, without a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from telegrad.rpc.future import Future, new_future
from telegrad.rpc.rref_reference import Reference
from telegrad.rpc.rref_registry import RRefRegistry

__all__ = ["when_confirmed"]


def when_confirmed(registry: RRefRegistry, references: Sequence[Reference]) -> Future[Any] | None:
    """Returns what completes once the owners of all references have counted them.

    Args:
        registry: Where they are held.
        references: What arrived in one message. Kept until then.

    Returns:
        None where nothing has to be waited for. Else a future that completes on any thread, and
        fails when a reference never will be counted: its owner is lost, or its value gone.
    """
    waited = new_future(registry.agent.submit, "the owners' count of a call's RRefs")
    count_lock = threading.Lock()
    missing = 1  # this function itself, so that nothing completes before all are looked at

    def count() -> None:
        nonlocal missing
        with count_lock:
            missing -= 1
            if missing:
                return
        failures = (registry.failure(each) for each in references)
        failure = next((error for error in failures if error is not None), None)
        if failure is None:
            waited.try_set_result(None)
        else:
            waited.try_set_exception(failure)

    parked = False
    for each in references:
        if each.fork is not None:
            with count_lock:
                missing += 1
            if registry.when_settled(each.fork, count):
                parked = True
            else:
                with count_lock:
                    missing -= 1
    count()
    if not parked and waited.exception() is None:
        return None
    return waited
