"""The start of a call: once the owners have counted the RRefs that it brought.

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

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.rref.table import Reference, RRefRegistry


def when_confirmed(registry: RRefRegistry, references: Sequence[Reference]) -> Future[Any] | None:
    """Returns what completes once the owners of all references have counted them.

    Args:
        registry: Where they are held.
        references: What arrived in one message. Kept until then.

    Returns:
        None where nothing has to be waited for. Else a future that completes on any thread, and
        fails when a reference never will be counted: its owner is lost, or its value gone.
    """
    waited = new_future(registry.agent.pool.submit, "the owners' count of a call's RRefs")
    _wait_for_each(registry, references, iter(references), waited)
    return None if waited.done() and not waited._failed else waited


def _wait_for_each(
    registry: RRefRegistry,
    references: Sequence[Reference],
    left: Iterator[Reference],
    waited: Future[Any],
) -> None:
    """Waits for the next one that is not counted; completes the future after the last."""
    go_on = partial(_wait_for_each, registry, references, left, waited)
    for each in left:
        if each.fork is not None and registry.when_settled(each.fork, go_on):
            return
    failures = (registry.failure(each) for each in references)
    failure = next((error for error in failures if error is not None), None)
    if failure is None:
        waited.try_set_result(None)
    else:
        waited.try_set_exception(failure)
