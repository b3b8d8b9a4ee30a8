"""A worker that nobody can dial: it dials all others, and is called over what it opened."""

from __future__ import annotations

import pytest

from telegrad.errors import UnreachableWorkerError, WorkerLostError
from telegrad.transport import CarrierClosedError, shared_loop_thread
from telegrad.transport.tasks import Tasks
from tests.transport.workers import (
    SECONDS,
    Floor,
    ManualClock,
    Worker,
    let_pass,
    over_one_transport,
    wait_until,
)

LOST_AFTER = 10.0
pytestmark = over_one_transport


def connections(worker: Worker) -> int:
    return worker.exchange.statistics().connections


def outbound(floor: Floor, name: str = "outbound", **options: object) -> Worker:
    worker = floor.worker(name, listens=False, **options)  # type: ignore[arg-type]
    assert worker.endpoints == ()
    return worker


def test_it_dials_whom_it_hears_of_and_is_called(floor: Floor) -> None:
    host, worker = floor.worker("host"), outbound(floor)
    host.knows(worker)
    host.post(worker, 1)
    assert connections(host) == 0
    worker.knows(host)
    worker.recorder.wait_envelopes(1)
    worker.send(host, 2)
    assert connections(host) == 1


def test_who_waits_for_one_that_never_dials_hears_so_after_the_bound(floor: Floor) -> None:
    clock = ManualClock()
    host = floor.worker("host", clock=clock, lost_after=LOST_AFTER)
    worker = outbound(floor)
    host.knows(worker)
    host.post(worker, 1)
    let_pass(clock, 2 * LOST_AFTER, host)
    error = host.recorder.wait_lost()
    assert error.reason.startswith("silent for 1")
    assert error.reason.endswith("(it does not listen here, and dialled no more)")


def test_one_that_is_gone_is_lost_by_silence(floor: Floor) -> None:
    clock = ManualClock()
    host = floor.worker("host", clock=clock, lost_after=LOST_AFTER)
    worker = outbound(floor)
    host.knows(worker)
    worker.knows(host)
    worker.send(host, 1)
    floor.kill(worker)
    wait_until("the break", lambda: host.connection(worker.info).stream is None)
    assert not host.recorder.lost
    let_pass(clock, 2 * LOST_AFTER, host)
    assert host.recorder.wait_lost().worker == "outbound"


def test_two_of_them_cannot_call_each_other_and_hear_so_at_once(floor: Floor) -> None:
    first, second = outbound(floor, "first"), outbound(floor, "second")
    first.knows(second)
    second.knows(first)
    for sender, receiver in ((first, second), (second, first)):
        with pytest.raises(UnreachableWorkerError, match="cannot be reached") as raised:
            sender.post(receiver, 1)
        assert raised.value.worker == receiver.info.name
        assert f"nor does this worker, '{sender.info.name}' (port=None)" in str(raised.value)
        assert "have one of them listen, or call through a worker that does" in str(raised.value)
        assert not sender.recorder.lost


def test_the_loss_of_an_unreachable_one_is_told(floor: Floor) -> None:
    first, second = outbound(floor, "first"), outbound(floor, "second")
    first.knows(second)
    first.exchange.fence(second.info, "its process is gone")
    assert first.recorder.wait_lost().reason == "its process is gone"
    with pytest.raises(WorkerLostError) as raised:
        first.post(second, 1)
    assert not isinstance(raised.value, UnreachableWorkerError)


def test_closing_does_not_wait_for_one_out_of_reach(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = outbound(floor, "first"), outbound(floor, "second")
    first.knows(second)
    waited: list[bool] = []
    close = Tasks.end

    async def end_tasks(self: Tasks, timeout: float) -> None:
        waited.append(timeout < SECONDS / 2)
        await close(self, timeout)

    monkeypatch.setattr(Tasks, "end", end_tasks)
    first.exchange.close(SECONDS)
    assert waited == [False]  # all of the time was left


def test_a_goodbye_to_one_that_has_ended_meanwhile_waits_for_nobody(floor: Floor) -> None:
    """Its stream breaks behind the goodbye, and there is nowhere to dial it."""
    host, worker = floor.worker("host"), outbound(floor)
    host.knows(worker)
    worker.knows(host)
    worker.send(host, 1)
    connection = host.connection(worker.info)
    wait_until("receipts", lambda: connection.connection.statistics().unacknowledged == 0)

    async def leave_and_break() -> None:
        stream = connection.stream
        assert stream is not None
        connection.leave("shutdown")
        assert not connection.ended.is_set()
        connection.failed(stream, CarrierClosedError("broken by the test"))
        assert connection.ended.is_set()

    shared_loop_thread().run(leave_and_break(), SECONDS)


def test_why_no_connection_is_up(floor: Floor) -> None:
    host, worker = floor.worker("host"), outbound(floor)
    assert host.exchange.unconnected(worker.info) == ""  # it was never heard of
    host.knows(worker)
    words = "no connection to 'outbound' is up (it does not listen here, and dialled no more)"
    assert host.exchange.unconnected(worker.info) == words
    worker.knows(host)
    wait_until("the dial", lambda: host.exchange.unconnected(worker.info) == "")
