"""The whole table of hostile cases, and what its test runs on the workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.errors import EvictedError, WorkerLostError
from telegrad.rendezvous import JoinedJob
from telegrad.rpc.seams import current_agent
from telegrad.testing import leaks
from tests.faults.hostile.hostile_remote import nested_failure
from tests.faults.hostile.hostile_row import ROLES, Row, prepare
from tests.faults.hostile.hostile_training import TRAINING
from tests.faults.hostile.hostile_verbs import VERBS
from tests.faults.outcome import Failure, failure_of
from tests.faults.remote_code import LIMIT, found, gate, in_background, who

ROWS: dict[str, Row] = {**VERBS, **TRAINING}

_losses: list[tuple[str, str]] = []


def own_rows(*, of: str = "at") -> list[Row]:
    """Returns the rows in which this worker calls the verb, or has another part."""
    me = rpc.get_worker_info().name
    return [row for row in ROWS.values() if me in getattr(row, of)]


def meet() -> list[str]:
    """Calls everybody, so that all have sessions."""
    return [rpc.rpc_sync(info, who, timeout=LIMIT) for info in rpc.get_worker_infos()]


def get_ready() -> None:
    """Meets all, and makes what the rows need."""
    rpc.on_loss(note_loss)
    meet()
    for each in own_rows(of="members"):
        prepare(each)


def note_loss(worker: rpc.WorkerInfo, error: WorkerLostError) -> None:
    _losses.append((worker.name, type(error).__name__))
    if isinstance(error, EvictedError):
        gate("evicted").set()


def begin() -> None:
    """Calls every verb of this worker, each in a thread."""
    for row in own_rows():
        in_background(row.name, failing, row.name)


def failing(name: str) -> Failure:
    row = ROWS[name.partition(" ")[0]]
    return failure_of(lambda: row.wait(name))


def in_the_middle() -> None:
    """Returns when every verb of this worker waits, and every function that stops here has."""
    me = rpc.get_worker_info().name
    for row in ROWS.values():
        if me in row.held:
            assert gate(f"{row.name} entered").wait(LIMIT), f"nobody is held in {row.name}"
    for row in own_rows():
        if row.middle is not None:
            wait_until(row.name, row.middle)


def wait_until(name: str, true: Callable[[str], bool]) -> None:
    pause, ends = threading.Event(), time.monotonic() + LIMIT
    while not true(name):
        assert time.monotonic() < ends, f"{name} does not wait"
        pause.wait(0.01)


def failures(victim: str) -> dict[str, Failure]:
    """Waits for the verbs of this worker that the loss ends; the others are to go on."""
    return {row.name: found(row.name) for row in own_rows() if victim in row.ends}


def dropped(victim: str) -> None:
    """Waits until the coordinator, too, has given the victim up, and this worker has heard so."""
    membership = current_agent().attachments[JoinedJob]
    leaks.wait_until_gone(
        "members", lambda: [each for each in membership.living() if each.info.name == victim]
    )


def told_that_nobody_waits(victim: str) -> None:
    """Waits until what is held here for the victim, directly or not, is told so."""
    me = rpc.get_worker_info().name
    for row in ROWS.values():
        if me in row.cancels.get(victim, ()):
            assert gate(f"{row.name} cancelled").wait(LIMIT), f"{row.name} is not told"


def release_all() -> None:
    """Lets go whatever is held here, and publishes and sets what is waited for."""
    for name in ROWS:
        gate(name).set()
    if rpc.get_worker_info().name == "callee":
        rpc.publish("lookup", 1)
        in_background("shrink_group", failing, "shrink_group")
    if rpc.get_worker_info().name == "witness":
        store = current_agent().attachments[JoinedJob].store
        for name in ("store_get", "store_wait"):
            store.set(f"row/{name}", b"here")


def outcomes() -> dict[str, Failure]:
    """Waits for every verb of this worker."""
    return {row.name: found(row.name) for row in own_rows()}


def told_that_it_was_given_up() -> tuple[dict[str, Failure], dict[str, Failure]]:
    """Returns, where this worker was given up, how its verbs ended, and its waits in served calls."""
    assert gate("evicted").wait(LIMIT), "nobody told this worker that it was given up"
    gate("stream_producer").set()  # its consumer is busy with something else
    return outcomes(), {row.name: nested_failure(row.name) for row in own_rows(of="via")}


def calls_again() -> tuple[dict[str, Failure], dict[str, Failure]]:
    """Calls the verbs of this worker once more, all at once; then each other worker."""
    rows = own_rows()
    for row in rows:
        in_background(f"{row.name} again", failing, f"{row.name} again")
    others = [name for name in ROLES if name != rpc.get_worker_info().name]
    called = {to: failure_of(lambda to=to: rpc.rpc_sync(to, who)) for to in others}  # type: ignore[misc]
    return {row.name: found(f"{row.name} again") for row in rows}, called


def losses() -> list[tuple[str, str]]:
    """Returns what `on_loss` has told here."""
    return list(_losses)


def go_on(survivors: Sequence[str]) -> list[str]:
    """Calls each of them, and adds up something with all of them."""
    infos = [rpc.get_worker_info(name) for name in survivors]
    called = [rpc.rpc_sync(info, who, timeout=LIMIT) for info in infos]
    group = dist.new_group([info.rank for info in infos], timeout=LIMIT)
    array = np.ones(3)
    dist.all_reduce(array, group=group, timeout=LIMIT)
    assert array.tolist() == [float(len(infos))] * 3
    return called


def begin_to_leave() -> None:
    """Calls `shutdown`, together with the others, in a thread."""
    in_background("shutdown", failure_of, lambda: rpc.shutdown(timeout=LIMIT))


def wait_in_shutdown(count: int) -> None:
    """Returns when so many workers do, as the coordinator sees it, which runs here."""
    coordinator = current_agent().attachments[JoinedJob].coordinator
    assert coordinator is not None
    leaks.wait_until_gone(
        "shutdowns", lambda: [""] if coordinator.statistics().leaving < count else []
    )


def has_left() -> Failure:
    return found("shutdown")
