"""The start of a call: once the owners have counted the RRefs that it brought.

     parent                child                        owner
     ------                -----                        -----
     call(rref, ...) ----> decoded, parked
                           ForkRequest ---------------> counted
                           started    <---------------- ForkConfirm

So a function that runs with an RRef has one that is confirmed, and all that it does with it, on any
worker, comes after the owner's count. The wait takes one round trip and no thread. RRefs that the
owner sent itself, that came home, or whose value is still being created need none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.rref.table import Reference, RRefRegistry


def when_confirmed(registry: RRefRegistry, references: Sequence[Reference]) -> Future[Any] | None:
    """Returns a future that completes once the owners of all references have counted them.

    The references have arrived in one message, and are kept until then.

    Returns:
        None if there is nothing to wait for. Else a future that completes in any thread. It fails
        if a reference will never be counted: its owner is lost, or its value gone.
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
    """Waits for the next reference that is not counted; completes the future after the last."""
    go_on = partial(_wait_for_each, registry, references, left, waited)
    # One after the other, not all at once: that needs no counter, which several threads would
    # share. The owners count meanwhile, so that the last wait is mostly over when it begins.
    for each in left:
        if each.fork is not None and registry.when_settled(each.fork, go_on):
            return
    failures = (registry.failure(each) for each in references)
    failure = next((error for error in failures if error is not None), None)
    if failure is None:
        waited.try_set_result(None)
    else:
        waited.try_set_exception(failure)
