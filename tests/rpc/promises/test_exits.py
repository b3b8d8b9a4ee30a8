"""Whatever code of users raises ends the call that it belongs to, and nothing else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from telegrad import rpc
from telegrad.errors import RemoteError, WorkerLostError
from telegrad.rpc import seams
from telegrad.rpc.agent.events import MembershipEvents, _Kind
from telegrad.rpc.base.interceptor import Message
from telegrad.types import WorkerInfo
from tests.rpc import remote_code
from tests.rpc.base.interceptors import Idle
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.promises import exit_code

KINDS = pytest.mark.parametrize("kind", range(3), ids=[e.__name__ for e in exit_code.ERRORS])


def goes_on(job: Job) -> None:
    """The pool and the user loop of everyone still serve."""
    for to in ("w0", "w1", "w2"):
        assert job.on(0, rpc.rpc_sync, to, exit_code.who_async, timeout=20) == to
        assert job.on(0, rpc.rpc_sync, to, remote_code.who, timeout=20) == to


def says(kind: int) -> str:
    return f"{exit_code.ERRORS[kind].__name__}: out"


@pytest.mark.few(1)
@KINDS
def test_it_ends_the_call(job: Job, kind: int) -> None:
    for func in exit_code.CALLS:
        with pytest.raises(RemoteError, match=says(kind)):
            job.on(0, rpc.rpc_sync, "w1", func, (kind,), timeout=20)
        goes_on(job)


def test_a_coroutine_that_leaves_says_so_to_its_caller_alone(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in range(3):
        with pytest.raises(RemoteError, match=says(kind)):
            job.on(0, rpc.rpc_sync, "w1", exit_code.after_an_await, (kind,), timeout=20)
    assert caplog.messages == []


@KINDS
def test_it_ends_the_use_of_a_value(job: Job, kind: int) -> None:
    with seams.use_agent(job.agents[0]):
        never = rpc.remote("w1", exit_code.MadeNever, (kind,))
        with pytest.raises(RemoteError, match=says(kind)):
            never.to_here(timeout=20)
        made: rpc.RRef[exit_code.Made] = rpc.remote("w1", exit_code.Made)
        for name in ("method", "coroutine", "__call__"):
            with pytest.raises(RemoteError, match=says(kind)):
                getattr(made.rpc_sync(timeout=20), name)(kind)
        goes_on(job)


@KINDS
def test_it_ends_the_stream(job: Job, kind: int) -> None:
    for func in exit_code.STREAMS:
        with (
            seams.use_agent(job.agents[0]),
            rpc.stream("w1", func, (kind,), timeout=20) as stream,
        ):
            assert next(stream) == 1
            with pytest.raises(RemoteError, match=says(kind)):
                list(stream)
        goes_on(job)


@KINDS
def test_a_generator_that_leaves_when_it_is_closed(job: Job, kind: int) -> None:
    with seams.use_agent(job.agents[0]):
        with rpc.stream("w1", exit_code.leaves_when_closed, (kind,), timeout=20) as stream:
            assert next(stream) == 1
        goes_on(job)


@KINDS
def test_it_ends_what_could_not_be_decoded(job: Job, kind: int) -> None:
    with seams.use_agent(job.agents[0]), pytest.raises(RemoteError, match=says(kind)):
        rpc.rpc_sync("w1", exit_code.takes, (exit_code.Unsendable(kind, "decode"),), timeout=20)
    goes_on(job)


def test_an_exit_without_words(job: Job) -> None:
    with seams.use_agent(job.agents[0]), pytest.raises(RemoteError) as caught:
        rpc.rpc_sync("w1", remote_code.interrupt, timeout=20)
    assert str(caught.value) == "KeyboardInterrupt (on worker 'w1')"
    assert caught.value.type_name == "builtins:KeyboardInterrupt"


def test_an_error_that_cannot_be_put_in_words(job: Job) -> None:
    with seams.use_agent(job.agents[0]), pytest.raises(RemoteError, match="Wordless"):
        rpc.rpc_sync("w1", exit_code.raises_wordless, (0,), timeout=20)
    goes_on(job)


def test_what_nobody_waits_for_is_logged(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "telegrad.transport.loop"):
        found = job.on(0, rpc.rpc_sync, "w1", exit_code.leaves_something_behind, ("me",))
        job.on(0, rpc.rpc_sync, "w1", exit_code.who_async)
    assert found == "me"
    said = "\n".join(caplog.messages)
    assert "callback on w1-user-loop raised SystemExit" in said
    assert "callback on w1-user-loop raised KeyboardInterrupt" in said


class Leaving(Idle):
    """Leaves at one of its places, while it is told to."""

    def __init__(self) -> None:
        self.where: tuple[str, bool] | None = None

    def _pass(self, where: str, message: Message) -> None:
        if self.where == (where, message.reply):
            exit_code.leaves()

    def outgoing(self, message: Message) -> None:
        self._pass("outgoing", message)

    def incoming(self, message: Message) -> None:
        self._pass("incoming", message)

    def undelivered(self, message: Message) -> None:
        self._pass("undelivered", message)


def test_an_interceptor(job: Job) -> None:
    leaving = Leaving()
    job.agents[1].codec.add(leaving)
    for where in (("incoming", False), ("outgoing", True)):
        leaving.where = where
        with pytest.raises(RemoteError, match="SystemExit"):
            job.on(0, rpc.rpc_sync, "w1", remote_code.who, timeout=20)
        leaving.where = None
        goes_on(job)
    leaving.where = ("undelivered", True)
    with pytest.raises(RemoteError, match="SystemExit"):  # it was sealed in vain
        job.on(0, rpc.rpc_sync, "w1", exit_code.returns_unsendable, (0,), timeout=20)
    goes_on(job)


def test_calls_that_run_beside_it_go_on(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        beside = rpc.rpc_async("w1", remote_code.hold_async, ("beside",), timeout=20)
        assert remote_code.entered("beside")
        for kind in range(3):
            with pytest.raises(RemoteError):
                rpc.rpc_sync("w1", exit_code.in_a_task, (kind,), timeout=20)
        assert not beside.done()
        beside.cancel()
    assert remote_code.gates("beside-cancelled").wait(20)


def test_a_shutdown_outlives_what_exits_when_cancelled(make_job: MakeJob) -> None:
    job = make_job(2)
    future = job.on(0, rpc.rpc_async, "w1", exit_code.never_ends, ("end",), timeout=60)
    assert remote_code.gates("end-began").wait(20)
    names = {thread.name for thread in threading.enumerate()}
    assert "w1-user-loop" in names
    for agent in job.agents:
        agent.shutdown(graceful=False)
    assert future.exception() is not None
    assert "w1-user-loop" not in {thread.name for thread in threading.enumerate()}


# -- callbacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0, 2])
@pytest.mark.parametrize("fails", [False, True])
def test_a_done_callback_does_not_stop_the_others(kind: int, fails: bool) -> None:
    future: rpc.Future[int] = rpc.Future()
    heard: list[object] = []
    future.add_done_callback(lambda _: exit_code.leaves(kind))
    future.add_done_callback(heard.append)
    child = future.then(lambda _: 5)
    if fails:
        future.set_exception(KeyError("k"))
    else:
        future.set_result(3)
    assert heard == [future]
    assert child.wait(20) == 5


def test_an_interrupt_of_the_main_thread_is_the_programs() -> None:
    assert threading.current_thread() is threading.main_thread()
    future: rpc.Future[int] = rpc.Future()
    heard: list[object] = []
    future.add_done_callback(lambda _: exit_code.leaves(1))
    future.add_done_callback(heard.append)
    with pytest.raises(KeyboardInterrupt):
        future.set_result(3)
    assert heard == [future]
    assert future.wait() == 3


@KINDS
def test_a_membership_callback_does_not_stop_the_others(kind: int) -> None:
    me, *others = (WorkerInfo(f"w{r}", r, 100 + r) for r in range(3))
    work: list[Callable[[], None]] = []
    events = MembershipEvents(me, work.append)
    events.begin(others)
    heard: list[str] = []
    events.add(_Kind.LOSS, lambda *_: exit_code.leaves(kind))
    events.add(_Kind.LOSS, lambda worker, _: heard.append(worker.name))
    for other in others:
        events.lost(other, WorkerLostError(f"{other.name} is lost", worker=other.name))
        thread = threading.Thread(target=work.pop())  # as in the pool: the main one hears of Ctrl-C
        thread.start()
        thread.join()
    assert heard == ["w1", "w2"]
