"""Finalisers, handlers of signals and of log records that call from inside telegrad's own code."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from telegrad import dist_autograd, rpc
from telegrad.critical import critical
from telegrad.errors import BlockingCallError, InvalidUseError, UnknownWorkerError
from telegrad.transport import get_logger, shared_loop_thread
from tests.conftest import Programs
from tests.rpc import remote_code
from tests.rpc.conftest import Job
from tests.rpc.promises import interrupt_code
from tests.rpc.promises.interrupt_code import numbers

SCRIPT = Path(interrupt_code.__file__)
SECONDS = 20.0


def run_interrupted(programs: Programs, *arguments: str, limit: float) -> None:
    for program in programs.ranks(SCRIPT, 2, arguments=arguments, limit=limit):
        program.wait()


@pytest.mark.parametrize("direct", ["True", "False"])
@pytest.mark.parametrize("kind", ["collection", "signal", "log"])
@pytest.mark.few(2)
def test_code_of_others_may_call_at_any_line(programs: Programs, kind: str, direct: str) -> None:
    run_interrupted(programs, kind, "line", direct, limit=50.0)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("direct", ["True", "tcp", "False"])
@pytest.mark.parametrize("kind", ["collection", "signal", "log"])
def test_code_of_others_may_call_at_any_opcode(programs: Programs, kind: str, direct: str) -> None:
    run_interrupted(programs, kind, "opcode", direct, limit=840.0)


# -- each verb, in a section of this thread ----------------------------------------------------------


def test_verbs_that_return_at_once_are_put_off(job: Job) -> None:
    def interrupt() -> None:
        items = [1]
        there = rpc.remote("w1", remote_code.echo, (items,))
        with critical.section:
            called = rpc.rpc_async("w1", remote_code.echo, (items,))
            gathered = rpc.gather([("w1", remote_code.echo, (2,))])
            rref = rpc.remote("w1", remote_code.echo, (items,))
            own = rpc.RRef(items)
            method = there.rpc_async().copy()
            made = there.remote().copy()
            items.append(2)
            assert not called.done()
        assert called.wait(SECONDS) == [1]
        assert gathered.wait(SECONDS) == [2]
        assert rref.to_here(SECONDS) == [1]
        assert own.to_here() == [1, 2]
        assert method.wait(SECONDS) == [1]
        assert made.to_here(SECONDS) == [1]

    job.on(0, interrupt)


def test_they_happen_in_the_order_of_the_calls(job: Job) -> None:
    def interrupt() -> None:
        order: list[int] = []
        futures = []
        with critical.section:
            for n in range(50):
                future = rpc.Future[int]()
                futures.append(future.then(lambda done: order.append(done.value())))
                future.set_result(n)
        rpc.wait_all(futures, timeout=SECONDS)
        assert order == [*range(50)]

    job.on(0, interrupt)


def test_a_call_that_is_put_off_can_be_cancelled(job: Job) -> None:
    def interrupt() -> None:
        with critical.section:
            future = rpc.rpc_async("w1", remote_code.echo, (1,))
            assert future.cancel()
        assert future.cancelled()

    job.on(0, interrupt)


def test_its_errors_are_in_its_future(job: Job) -> None:
    def interrupt() -> None:
        rref = rpc.remote("w1", remote_code.echo, (1,))
        rref.to_here()
        rref.release()
        with critical.section:
            with pytest.raises(UnknownWorkerError):
                rpc.rpc_async("nobody", remote_code.echo, (1,))
            made = rref.remote().bit_length()
            called = rref.rpc_async().bit_length()
        with pytest.raises(InvalidUseError):
            made.to_here()
        with pytest.raises(InvalidUseError):
            called.wait()

    job.on(0, interrupt)


BLOCKING: dict[str, Callable[[rpc.RRef[int]], object]] = {
    "rpc_sync": lambda _: rpc.rpc_sync("w1", remote_code.echo, (1,)),
    "to_here": lambda rref: rref.to_here(),
    "a method": lambda rref: rref.rpc_sync().bit_length(),
    "lookup": lambda _: rpc.lookup("w1", "a name"),
    "a stream": lambda _: list(rpc.stream("w1", remote_code.echo, (1,))),
    "wait": lambda _: rpc.Future[int]().wait(),
    "wait_all": lambda _: rpc.wait_all([rpc.Future[int]()]),
    "as_completed": lambda _: next(iter(rpc.as_completed([rpc.Future[int]()]))),
    "publish": lambda rref: rpc.publish("a name", rref),
    "statistics": lambda _: rpc.statistics(),
    "gradients": lambda _: dist_autograd.get_gradients(0),
    "shutdown": lambda _: rpc.shutdown(),
}


@pytest.mark.parametrize("verb", BLOCKING)
def test_verbs_that_cannot_be_put_off_are_refused(job: Job, verb: str) -> None:
    def interrupt() -> None:
        rref = rpc.remote("w1", remote_code.echo, (1,))
        rref.to_here()
        before = job.agents[1].statistics().calls_served
        with critical.section, pytest.raises(BlockingCallError, match="let another thread call"):
            BLOCKING[verb](rref)
        assert job.agents[1].statistics().calls_served == before

    job.on(0, interrupt)


def test_the_next_item_of_a_stream_is_refused_too(job: Job) -> None:
    def interrupt() -> None:
        with rpc.stream("w1", numbers, (3,)) as stream:
            assert next(stream) == 0
            with critical.section, pytest.raises(BlockingCallError):
                next(stream)
            assert list(stream) == [1, 2]

    job.on(0, interrupt)


def test_a_callback_that_waits_holds_up_no_other_verb(job: Job) -> None:
    def interrupt() -> None:
        waits, goes_on = rpc.Future[int](), threading.Event()
        began = waits.then(lambda _: goes_on.wait(SECONDS))
        with critical.section:
            waits.set_result(1)
            called = rpc.rpc_async("w1", remote_code.echo, (1,))
        assert called.wait(SECONDS) == 1
        goes_on.set()
        assert began.wait(SECONDS)

    job.on(0, interrupt)


def test_a_thread_that_moves_messages_for_all_must_not_block(job: Job) -> None:
    def interrupt() -> None:
        with critical.role:
            with pytest.raises(BlockingCallError):
                rpc.rpc_sync("w1", remote_code.echo, (1,))
            future = rpc.rpc_async("w1", remote_code.echo, (1,))
        assert future.wait(SECONDS) == 1

    job.on(0, interrupt)


# -- log records -------------------------------------------------------------------------------------


class Keeps(logging.Handler):
    """Keeps the records, and in which threads they came; may log itself."""

    def __init__(self, log: logging.Logger | None = None) -> None:
        super().__init__()
        self.came: list[tuple[str, str]] = []
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self.came.append((record.getMessage(), threading.current_thread().name))
        if self._log is not None:
            self._log.warning("caused by %s", record.getMessage())


@pytest.fixture
def log(job: Job) -> logging.Logger:
    del job  # its loop runs
    made = get_logger(__name__)
    made.setLevel(logging.INFO)
    return made


def flush() -> None:
    done = threading.Event()
    shared_loop_thread().log(done.set)
    assert done.wait(SECONDS)


def handled(log: logging.Logger, *handlers: Keeps, act: Callable[[], None]) -> None:
    for handler in handlers:
        log.addHandler(handler)
    try:
        act()
        flush()
    finally:
        for handler in handlers:
            log.removeHandler(handler)


def test_records_of_threads_that_must_not_wait_leave_by_another_in_order(
    log: logging.Logger,
) -> None:
    keeps = Keeps()

    def act() -> None:
        log.info("here")
        with critical.section:
            for n in range(10):
                log.info("a section %d", n)
        ran = threading.Event()
        shared_loop_thread().call_soon(log.info, "the loop")
        shared_loop_thread().call_soon(ran.set)
        assert ran.wait(SECONDS)

    handled(log, keeps, act=act)
    here, *others = keeps.came
    assert here == ("here", threading.current_thread().name)
    assert [text for text, _ in others] == [*(f"a section {n}" for n in range(10)), "the loop"]
    assert {name for _, name in others} == {"telegrad-loop-log"}


def test_a_record_that_a_handler_causes_comes_to_the_others_alone(log: logging.Logger) -> None:
    causes, keeps = Keeps(log), Keeps()
    handled(log, causes, keeps, act=lambda: log.info("one"))
    assert [text for text, _ in causes.came] == ["one"]
    assert sorted(text for text, _ in keeps.came) == ["caused by one", "one"]


def test_a_handler_that_fails_stops_no_other(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    class Fails(Keeps):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("the handler's")

    keeps = Keeps()

    def act() -> None:
        with critical.section:
            log.info("one")

    handled(log, Fails(), keeps, act=act)
    assert [text for text, _ in keeps.came] == ["one"]
    assert "the handler's" in capsys.readouterr().err
