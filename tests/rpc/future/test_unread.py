"""A failed future that is dropped unread is told in the log, once, with where it was made."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from telegrad import rpc
from telegrad.critical import critical
from telegrad.rpc import seams
from telegrad.rpc.future.future import Future
from telegrad.rpc.future.unread import Origin, Report, UnreadErrors
from telegrad.rpc.verbs.combine import as_completed, collect_all, first_n, wait_all
from telegrad.testing.leaks import wait_until_gone
from tests.rpc import remote_code
from tests.rpc.conftest import Job

LOGGER = "telegrad.rpc.future.unread"


class Log:
    """What was told of errors that nobody read."""

    def __init__(self, job: Job, caplog: pytest.LogCaptureFixture) -> None:
        self.job = job
        self._caplog = caplog
        self.unread = job.agents[0].attachments[UnreadErrors]

    def settle(self) -> None:
        """Returns when no call is pending and no report waits to be told."""
        agent = self.job.agents[0]
        wait_until_gone("call", lambda: ["one"] * agent.statistics().pending_calls, within=20.0)
        gc.collect()

    def wait(self) -> str:
        """Waits for the next report and returns what is told of it."""
        wait_until_gone("silence", self._silence, within=20.0)
        return self.told()

    def _silence(self) -> list[str]:
        gc.collect()  # the frames of a callback that raised refer to the future that it fails
        return ["it"] * self.unread.reports.empty()

    def told(self) -> str:
        """Returns what is told now, and forgets it."""
        self.settle()
        self._caplog.clear()
        self.unread.tell()
        found = [r for r in self._caplog.records if r.name == LOGGER]
        return "\n".join(f"{r.getMessage()} [{r.exc_info[1]!r}]" for r in found if r.exc_info)


@pytest.fixture
def log(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Log]:
    """The test runs on w0; looks into the queue are its alone."""
    monkeypatch.setattr(UnreadErrors, "_look", lambda self: None)
    with caplog.at_level(logging.WARNING, LOGGER), seams.use_agent(job.agents[0]):
        yield Log(job, caplog)


def fail() -> None:
    raise KeyError("in the pool")


def explode(_: object) -> None:
    raise KeyError("in then")


def failing() -> Future[None]:
    return rpc.rpc_async("w1", remote_code.fail, ("unread",))


def until_done(future: Future[Any]) -> None:
    """Waits without reading it."""
    wait_until_gone("call", lambda: [] if future.done() else [future], within=20.0)


def until_failed(it: rpc.RRef[Any] | rpc.Stream[Any]) -> None:
    """Waits without using it."""
    wait_until_gone("hope", lambda: ["it"] * (" failed" not in repr(it)), within=20.0)


def made_here(offset: int = 0) -> str:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"made at {__file__}:{frame.f_back.f_lineno + offset}"


def test_a_call(log: Log) -> None:
    rpc.rpc_async("w1", remote_code.fail, ("unread",))
    here = made_here(-1)
    text = log.wait()
    assert re.search(r"the call of \S+:fail on 'w1' failed, and nobody read its error", text)
    assert here in text
    assert "CustomError('unread')" in text
    assert text.count("\n") == 0
    assert log.told() == ""  # once


@pytest.mark.parametrize(
    ("make", "label"),
    [
        (lambda: rpc.RRef(remote_code.CustomError("x", code=1)).rpc_async().missing(), "missing"),
        (lambda: rpc.to_thread(fail), "to_thread of fail"),
        (lambda: rpc.gather([("w1", remote_code.fail, ("x",))]), "gather of 1"),
        (lambda: first_n([failing()], 1), "first_n of 1"),
        (lambda: failing().then(lambda done: done.value()), "then() of the call of"),
        (lambda: rpc.rpc_async("w1", remote_code.echo, (1,)).then(explode), "then() of the call"),
    ],
    ids=["proxy", "to_thread", "gather", "first_n", "then", "callback"],
)
def test_what_else_gives_a_future(log: Log, make: Callable[[], object], label: str) -> None:
    make()
    text = log.wait()
    assert label in text
    assert re.search(rf"made at {re.escape(__file__)}:\d+:", text)
    assert text.count("\n") == 0


@pytest.mark.parametrize("to", ["w1", "w0"])
def test_an_rref_whose_value_could_not_be_made(log: Log, to: str) -> None:
    rpc.remote(to, remote_code.fail, ("unread",))
    here = made_here(-1)
    text = log.wait()
    assert re.search(rf"rpc.remote of \S+:fail on '{to}' failed, and nobody read", text)
    assert here in text
    assert "CustomError('unread')" in text
    assert text.count("\n") == 0
    rref = rpc.remote(to, remote_code.fail, ("unread",))
    until_failed(rref)
    assert log.told() == ""
    rref.remote().method()  # it hears of the failure, and is not heard in turn
    del rref
    text = log.wait()
    assert "method" in text
    assert text.count("\n") == 0


RREF_READERS: dict[str, Callable[[rpc.RRef[Any]], object]] = {
    "to_here": lambda rref: raises(rref.to_here),
    "a method": lambda rref: raises(rref.rpc_async().method().wait),
    "a stream": lambda rref: raises(lambda: next(rref.rpc_stream().method())),
    "an argument": lambda rref: raises(lambda: rpc.rpc_sync("w2", remote_code.fetch_sum, (rref,))),
    "published": lambda rref: raises(lambda: give_to_others(rref)),
}


def give_to_others(rref: rpc.RRef[Any]) -> None:
    rpc.publish("failed", rref)
    try:
        rpc.lookup("w0", "failed").to_here()
    finally:
        rpc.unpublish("failed")


@pytest.mark.few(2)
@pytest.mark.parametrize("to", ["w1", "w0"])
@pytest.mark.parametrize("read", RREF_READERS.values(), ids=RREF_READERS)
def test_the_failure_of_an_rref_that_somebody_used_is_not_told(
    log: Log, read: Callable[[rpc.RRef[Any]], object], to: str
) -> None:
    read(rpc.remote(to, remote_code.fail, ("read",)))
    assert log.told() == ""


def test_a_stream_that_failed_and_was_dropped(log: Log) -> None:
    for begun in (False, True):
        dropped = rpc.stream("w1", remote_code.one_then_fail, ("unread",))
        here = made_here(-1)
        if begun:
            assert next(dropped) == 1
        until_failed(dropped)  # its end is here, and unread
        assert log.told() == ""
        del dropped
        gc.collect()
        text = log.wait()
        assert re.search(r"the stream of \S+:one_then_fail on 'w1' failed, and nobody", text)
        assert here in text
        assert "CustomError('unread')" in text
    rref = rpc.remote("w1", remote_code.fail, ("unread",))
    until_failed(rref)
    dropped = rref.rpc_stream().method()  # known to fail before it is asked for
    until_failed(dropped)
    del dropped
    assert "the stream of" in log.wait()


STREAM_READERS: dict[str, Callable[[rpc.Stream[Any]], object]] = {
    "read": lambda stream: raises(lambda: list(stream)),
    "closed": lambda stream: stream.close(),
    "cancelled": lambda stream: stream.cancel(),
}


@pytest.mark.parametrize("read", STREAM_READERS.values(), ids=STREAM_READERS)
def test_the_failure_of_a_stream_that_was_read_or_closed_is_not_told(
    log: Log, read: Callable[[rpc.Stream[Any]], object]
) -> None:
    read(rpc.stream("w1", remote_code.one_then_fail, ("read",)))
    gc.collect()
    assert log.told() == ""


def test_a_plain_future_and_its_children(log: Log) -> None:
    future: Future[int] = Future()
    here = made_here(-1)
    future.set_exception(ValueError("mine"))
    del future
    text = log.wait()
    assert here in text
    assert "a future failed" in text

    parent: Future[int] = Future()
    child = parent.then(lambda done: done.value())
    here = made_here(-1)
    parent.set_exception(ValueError("mine"))
    del parent
    assert log.told() == ""
    del child
    assert here in log.wait()


def test_a_method_of_the_agent_is_not_where_it_was_made(log: Log) -> None:
    seams.agent_of(log.job.agents[0]).rpc_async("w1", remote_code.fail, ("unread",))
    here = made_here(-1)
    assert here in log.wait()


def raises(read: Callable[[], object]) -> None:
    with pytest.raises((remote_code.CustomError, LookupError)):
        read()


READERS: dict[str, Callable[[Future[Any]], object]] = {
    "wait": lambda future: raises(future.wait),
    "value": lambda future: raises(next(as_completed([future])).value),
    "exception": lambda future: next(as_completed([future])).exception(),
    "await": lambda future: raises(lambda: asyncio.run(awaiting(future))),
    "then": lambda future: future.then(lambda done: done.exception()).wait(),
    "then, which looks away": lambda future: future.then(lambda done: None).wait(),
    "done callback": lambda future: future.add_done_callback(lambda done: done.exception()),
    "collect_all": lambda future: collect_all([future]).wait(),
    "wait_all": lambda future: raises(lambda: wait_all([future, future])),
    "first_n": lambda future: first_n([future], 0).wait(),
    "gather": lambda future: raises(rpc.gather([future]).wait),
    "cancel": lambda future: future.cancel(),
}


async def awaiting(future: Future[int]) -> int:
    return await future


@pytest.mark.few(3)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_an_error_that_was_read_or_handed_on_is_not_told(
    log: Log, read: Callable[[Future[Any]], object]
) -> None:
    read(failing())
    plain: Future[int] = Future()
    plain.set_exception(remote_code.CustomError("plain", code=1))
    read(plain)
    del plain
    assert log.told() == ""


def test_what_wait_all_left_unread_when_it_timed_out_is_told(log: Log) -> None:
    futures: list[Future[int]] = [Future(), Future()]
    with pytest.raises(TimeoutError):
        wait_all(futures, timeout=0.001)
    futures[1].set_exception(KeyError("late"))
    del futures
    assert "KeyError('late')" in log.wait()


def test_values_and_what_the_library_makes_for_itself_are_not_told(log: Log) -> None:
    rpc.rpc_async("w1", remote_code.add, (1, 2))
    rpc.remote("w1", remote_code.add, (1, 2))
    with pytest.raises(remote_code.CustomError):
        rpc.rpc_sync("w1", remote_code.fail_later)
    Future()
    assert log.told() == ""


def test_a_future_refused_by_its_constructor_says_nothing_else() -> None:
    with pytest.raises(TypeError):
        Future(3)  # type: ignore[call-arg]
    gc.collect()


def test_without_an_agent_there_is_nobody_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    future: Future[int] = Future()
    future.set_exception(ValueError("mine"))
    del future
    gc.collect()
    assert not caplog.records


# -- the queue ---------------------------------------------------------------------------------


def test_the_queue_is_looked_through_off_the_loop_and_only_when_something_may_come() -> None:
    looks: list[Callable[[], None]] = []
    pool: list[Callable[[], None]] = []
    unread = UnreadErrors(lambda _, look: looks.append(look), pool.append)
    assert not looks
    reports = unread.expect()
    assert unread.expect() is reports
    assert len(looks) == 1
    looks.pop()()
    assert len(looks) == 1
    assert not pool
    reports.put(Report("a future", Origin(fail.__code__, 0), KeyError("x")))
    looks.pop()()
    assert len(pool) == len(looks) == 1


def test_a_finaliser_takes_no_lock_and_decodes_nothing(log: Log) -> None:
    """It runs wherever the garbage collector does: inside any lock of telegrad's, say."""
    future: Future[Any] = failing()
    until_done(future)
    rpc.rpc_sync("w1", remote_code.who)  # its reply done with, the loop holds the first no more
    reply = next(iter(future._thunk))
    with critical.section:
        del future
    report = log.unread.reports.get(timeout=20)
    assert isinstance(report, Report)
    assert report.error is reply
    assert isinstance(report.read(), remote_code.CustomError)


def test_what_is_in_the_queue_at_the_end_is_told_too(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnreadErrors, "_look", lambda self: None)
    agent = job.agents[2]
    with seams.use_agent(agent):
        future: Future[int] = Future()
        future.set_exception(ValueError("at the end"))
        del future
    with caplog.at_level(logging.WARNING, LOGGER):
        agent.shutdown(graceful=False)
    assert [r.exc_info[1] for r in caplog.records if r.name == LOGGER and r.exc_info]
