"""What goes wrong on the way: exceptions, deadlines, losses, blocking verbs."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import (
    BlockingCallError,
    CallTimeoutError,
    EncodeError,
    PoolExhaustedError,
)
from telegrad.rpc import seams
from telegrad.rpc.base.interceptor import Message
from telegrad.rpc.call import calling
from telegrad.rpc.pool import user_loop
from telegrad.rpc.seams import fresh_copy
from telegrad.testing import leaks
from telegrad.wire import Envelope
from tests.rpc import remote_code
from tests.rpc.base.interceptors import Idle, Undone
from tests.rpc.conftest import Job, MakeJob
from tests.wire.samples import EXCEPTIONS, OddError, is_like

OVER_FAULTS_TOO = True


def test_an_exception_keeps_its_type_and_tells_where_it_was_raised(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.fail, ("no such thing: é\\n",))
        with pytest.raises(remote_code.CustomError) as info:
            future.wait()
    error = info.value
    assert str(error) == "no such thing: é\\n"
    assert error.code == 7
    assert "a note of the callee" in error.__notes__
    text = rpc.remote_traceback(error)
    assert text is not None
    assert "remote_code.py" in text
    assert "in fail" in text
    assert "rpc/call/serving.py" not in text
    assert any("worker 'w1'" in note for note in error.__notes__)
    assert rpc.remote_traceback(ValueError()) is None


def test_an_exception_over_two_hops(job: Job) -> None:
    with seams.use_agent(job.agents[0]), pytest.raises(remote_code.CustomError) as info:
        rpc.rpc_sync("w1", remote_code.relay_failure, ("w2",))
    notes = [note for note in info.value.__notes__ if "remote traceback" in note.split("\n")[0]]
    assert len(notes) == 1
    assert "'w1'" in notes[0]
    assert "'w2'" in notes[0]


def test_a_long_remote_traceback_keeps_its_ends(job: Job) -> None:
    """A recursion over workers would send the square of its depth."""
    with seams.use_agent(job.agents[0]), pytest.raises(remote_code.CustomError) as info:
        rpc.rpc_sync("w1", remote_code.fail, ("x" * 10**6,))
    text = rpc.remote_traceback(info.value) or ""
    assert len(text) < 40_000
    assert text.startswith("Traceback (most recent call last)")
    assert "characters are left out" in text
    assert str(info.value) == "x" * 10**6


FAIL = ("w1", remote_code.fail, ("no such thing",))


def created(to: str = "w1") -> rpc.RRef[Any]:
    return rpc.remote(to, remote_code.fail, ("no such thing",))


def failing(to: str = "w1") -> Any:
    return rpc.remote(to, remote_code.Failing)


async def await_it() -> None:
    await rpc.rpc_async(*FAIL)


async def await_rref() -> None:
    await created()


async def await_method() -> None:
    await failing().rpc_async().method()


async def gather_on_a_loop() -> None:
    await asyncio.gather(rpc.rpc_async(*FAIL))


async def read_on_a_loop() -> None:
    async for _ in rpc.stream("w1", remote_code.one_then_fail, ("no such thing",)):
        pass


def value_of_completed() -> None:
    next(rpc.as_completed([rpc.rpc_async(*FAIL)])).value()


def wait_in_vain() -> None:
    rpc.Future[int]().wait(0.01)


# Each public verb that raises what another worker, or a future, raised.
FAILING_VERBS: dict[str, Callable[[], object]] = {
    "rpc_sync": lambda: rpc.rpc_sync(*FAIL),
    "rpc_sync to itself": lambda: rpc.rpc_sync("w0", *FAIL[1:]),
    "wait": lambda: rpc.rpc_async(*FAIL).wait(),
    "wait with a timeout": wait_in_vain,
    "value": value_of_completed,
    "wait_all": lambda: rpc.wait_all([rpc.rpc_async(*FAIL)]),
    "gather": lambda: rpc.gather([FAIL]).wait(),
    "then": lambda: rpc.rpc_async(*FAIL).then(lambda done: done.value()).wait(),
    "await": lambda: asyncio.run(await_it()),
    "asyncio.gather": lambda: asyncio.run(gather_on_a_loop()),
    "to_here": lambda: created().to_here(),
    "to_here at the owner": lambda: created("w0").to_here(),
    "local_value": lambda: created("w0").local_value(),
    "await rref": lambda: asyncio.run(await_rref()),
    "method": lambda: failing().rpc_sync().method(),
    "method at the owner": lambda: failing("w0").rpc_sync().method(),
    "property": lambda: failing().rpc_sync().attribute,
    "call": lambda: failing().rpc_sync()(),
    "rpc_async().method": lambda: failing().rpc_async().method().wait(),
    "remote().method": lambda: failing().remote().method().to_here(),
    "await rpc_async().method": lambda: asyncio.run(await_method()),
    "for": lambda: list(rpc.stream("w1", remote_code.one_then_fail, ("no such thing",))),
    "for of a method": lambda: list(failing().rpc_stream().items()),
    "async for": lambda: asyncio.run(read_on_a_loop()),
}


def files_of_telegrad(text: str) -> list[str]:
    package = Path(rpc.__file__).parents[1]
    files = [Path(name) for name in re.findall(r'File "([^"]*)", line', text)]
    return [str(file) for file in files if file.is_relative_to(package)]


@pytest.mark.few(4)
@pytest.mark.parametrize("verb", FAILING_VERBS)
def test_the_traceback_of_a_verb_has_one_frame_of_telegrads(job: Job, verb: str) -> None:
    """There were up to six, and the serving code of an owner that reads its own value."""
    with (
        seams.use_agent(job.agents[0]),
        pytest.raises((remote_code.CustomError, CallTimeoutError)) as info,
    ):
        FAILING_VERBS[verb]()
    text = "".join(traceback.format_exception(info.value))
    assert len(files_of_telegrad(text)) <= 1, text
    assert "in fail" in text or isinstance(info.value, CallTimeoutError), text


@pytest.mark.parametrize("verb", ["to_here", "local_value", "method", "for", "wait_all"])
def test_the_traceback_of_a_verb_has_all_frames_on_request(
    job: Job, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("TELEGRAD_TRACEBACKS", "full")
    with seams.use_agent(job.agents[0]), pytest.raises(remote_code.CustomError) as info:
        FAILING_VERBS[verb]()
    local = "".join(traceback.format_tb(info.value.__traceback__))
    assert len(files_of_telegrad(local)) > 1


def test_an_error_of_code_without_lines_is_raised_as_it_is() -> None:
    """A signal handler may raise at an instruction that belongs to no line."""

    def fail(done: rpc.Future[int]) -> int:
        raise KeyError(done)

    future = rpc.Future[int]()
    child = future.then(FunctionType(fail.__code__.replace(co_linetable=b""), {}))
    future.set_result(1)
    with pytest.raises(KeyError):
        child.wait()


@pytest.mark.parametrize("full", [False, True])
def test_a_remote_traceback_has_the_users_frames_and_all_frames_on_request(
    job: Job, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    monkeypatch.setenv("TELEGRAD_TRACEBACKS", "full" if full else "")
    with seams.use_agent(job.agents[0]), pytest.raises(remote_code.CustomError) as info:
        rpc.rpc_sync("w1", remote_code.relay_failure, ("w2",))
    text = rpc.remote_traceback(info.value) or ""
    files = [Path(name) for name in re.findall(r'File "([^"]*)", line', text)]
    users = [file for file in files if file.name == "remote_code.py"]
    assert len(users) == 2  # the function that calls on, and the one that fails
    assert (files != users) == full


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: type(error).__name__)
def test_a_fresh_copy_has_all_that_the_first_has(error: BaseException) -> None:
    copy = fresh_copy(error)
    assert copy is not error
    assert is_like(copy, error)


def test_attributes_arrive_wherever_the_exception_keeps_them(job: Job) -> None:
    """`ImportError.name` and slots were lost on the way to the codec, which keeps them."""
    for i, error in enumerate(EXCEPTIONS):
        with seams.use_agent(job.agents[0]), pytest.raises(type(error)) as caught:
            rpc.rpc_sync("w1", remote_code.raise_sample, (i,))
        error.__traceback__ = None  # of the thread that raised it, if that was in this process
        assert is_like(caught.value, error)
        assert "raise_sample" in (rpc.remote_traceback(caught.value) or "")


def test_a_note_names_the_attributes_that_cannot_travel(job: Job) -> None:
    """An RRef would have to be counted apart from the reply that it came in."""
    with seams.use_agent(job.agents[0]), pytest.raises(OddError) as caught:
        rpc.rpc_sync("w1", remote_code.raise_with_a_reference)
    assert caught.value.code == 3
    assert not hasattr(caught.value, "rref")
    assert "do not travel in an exception: .rref (RRef), .lock (lock)" in caught.value.__notes__[0]


def test_a_value_that_cannot_travel(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        with pytest.raises(EncodeError, match="give_unsendable") as info:
            rpc.rpc_sync("w1", remote_code.give_unsendable)
        assert info.value.path == "value['models'][0]"
        assert rpc.rpc_sync("w1", remote_code.who) == "w1"


def test_timeout(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.hold, ("timeout",), timeout=0.05)
        with pytest.raises(CallTimeoutError, match="hold on 'w1' took longer") as info:
            future.wait()
        error = info.value
        assert (error.worker, error.phase) == ("w1", "waiting")
        assert error.function.endswith(":hold")
        assert 0.05 <= error.elapsed < 20
        assert job.agents[0].statistics().pending_calls == 0
        remote_code.release("timeout")
        assert rpc.rpc_sync("w1", remote_code.who) == "w1"


def test_nested_calls_inherit_what_is_left(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        arguments = ("w2", 500.0)
        left, depth = rpc.rpc_sync("w1", remote_code.time_left_of_nested, arguments, timeout=10.0)
        assert left < 10.0
        assert depth == 2
        left, depth = rpc.rpc_sync("w1", remote_code.time_left, (), timeout=math.inf)
        assert left == math.inf
        assert depth == 1


def test_what_a_call_leaves_behind_inherits_nothing(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        rpc.rpc_sync("w1", remote_code.leaves_a_thread_behind, ("left",), timeout=10.0)
    remote_code.release("left")
    saw = remote_code.gates("left-saw")
    assert saw.wait(20)
    assert saw.payload == (math.inf, 0)  # type: ignore[attr-defined]


class Recorder(Idle):
    """Adds a header to every message and writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bool, object]] = []

    def outgoing(self, message: Message) -> None:
        message.headers[self.name] = message.call.function
        self._write("outgoing", message)

    def incoming(self, message: Message) -> None:
        self._write("incoming", message)

    def undelivered(self, message: Message) -> None:
        self._write("undelivered", message)

    def _write(self, what: str, message: Message) -> None:
        self.heard.append((what, message.reply, message.headers.get(self.name)))


def test_interceptors_see_requests_and_replies(job: Job) -> None:
    recorders = [Recorder() for _ in job.agents]
    for agent, recorder in zip(job.agents, recorders, strict=True):
        agent.codec.add(recorder)
    with seams.use_agent(job.agents[0]):
        assert rpc.rpc_sync("w1", remote_code.who) == "w1"
    name = "tests.rpc.remote_code:who"
    assert recorders[0].heard == [("outgoing", False, name), ("incoming", True, name)]
    assert recorders[1].heard == [("incoming", False, name), ("outgoing", True, name)]


def test_expiry_cancels_a_coroutine(expire: Callable[[rpc.Future[Any]], None], job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.hold_async, ("cancel",))
        assert remote_code.entered("cancel")
        expire(future)
        with pytest.raises(CallTimeoutError):
            future.wait()
    assert remote_code.gates("cancel-cancelled").wait(20)


def test_a_late_reply_is_given_back(expire: Callable[[rpc.Future[Any]], None], job: Job) -> None:
    recorders = [Recorder() for _ in job.agents]
    for agent, recorder in zip(job.agents, recorders, strict=True):
        agent.codec.add(recorder)
    with seams.use_agent(job.agents[0]):
        future = rpc.rpc_async("w1", remote_code.hold, ("late",))
        assert remote_code.entered("late")
        expire(future)
        with pytest.raises(CallTimeoutError):
            future.wait()
        remote_code.release("late")
        assert job.agents[0].drain(math.inf)
        assert job.agents[1].drain(math.inf)
        rpc.rpc_sync("w1", remote_code.who)
    kinds = [(what, reply) for what, reply, _ in recorders[0].heard]
    assert kinds == [
        ("outgoing", False),
        ("outgoing", False),
        ("undelivered", True),
        ("incoming", True),
    ] or kinds == [
        ("outgoing", False),
        ("undelivered", True),
        ("outgoing", False),
        ("incoming", True),
    ]


def test_a_reply_that_nobody_reads_is_given_back(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "HOUSEKEEPING_SECONDS", 0.01)
    job = make_job(2)
    recorder = Recorder()
    agent = job.agents[0]
    agent.codec.add(recorder)
    job.agents[1].codec.add(Recorder())
    with seams.use_agent(agent):
        future = rpc.rpc_async("w1", remote_code.who)
        assert agent.drain(math.inf)
        del future

        def unheard() -> list[str]:
            return [] if ("undelivered", True) in [each[:2] for each in recorder.heard] else ["it"]

        leaks.wait_until_gone("replies", unheard)
    assert ("incoming", True) not in [each[:2] for each in recorder.heard]


def test_a_coroutine_that_holds_the_user_loop_is_named_once(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_loop, "SLOW_SECONDS", 0.25)

    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == user_loop.__name__]

    with seams.use_agent(job.agents[0]):
        held = rpc.rpc_async("w1", remote_code.holds_the_user_loop, ("held-loop",))
        leaks.wait_until_gone("silence", lambda: [] if told() else ["it"])
        assert rpc.rpc_sync("w1", remote_code.who) == "w1"  # plain functions are not delayed
        remote_code.gates("held-loop").set()
        assert held.wait()
    (words,) = told()
    assert "holds_the_user_loop has held the user loop of worker 'w1'" in words


def test_blocking_verbs_on_our_loops_send_nothing(job: Job) -> None:
    with seams.use_agent(job.agents[0]):
        with pytest.raises(BlockingCallError, match="await rpc.rpc_async"):
            rpc.rpc_sync("w1", remote_code.blocks_the_user_loop, ("w2",))
        assert job.agents[2].statistics().calls_served == 0
        with pytest.raises(BlockingCallError, match="await future"):
            rpc.rpc_sync("w1", remote_code.waits_on_the_user_loop, ("w2",))


def test_an_exhausted_pool_takes_no_root_call(
    make_job: MakeJob, most_threads: Callable[[int], None]
) -> None:
    most_threads(1)
    job = make_job(2, num_threads=1)
    with seams.use_agent(job.agents[0]):
        held = rpc.rpc_async("w1", remote_code.hold, ("pool",))
        assert remote_code.entered("pool")
        with pytest.raises(PoolExhaustedError, match="w1"):
            rpc.rpc_sync("w1", remote_code.who)
        remote_code.release("pool")
        assert held.wait() == "pool"


def test_garbage_inside_a_well_formed_stream(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    first = job.agents[0]
    peer = first.members.find("w1")
    with caplog.at_level(logging.CRITICAL), seams.use_agent(first):
        for kind in ("rpc.call", "rpc.remote", "rref.fetch", "rpc.cancel", "no.such.kind"):
            first.messages.post_envelope(
                peer, Envelope(kind, call=1 << 40, document=b"\xc1garbage")
            )
            first.messages.post(peer, kind, {"func": 3})
        first.messages.post_envelope(
            peer, Envelope("rpc.reply", call=5, reply=True, document=b"\xc1")
        )
        with pytest.raises(Exception, match="no handler"):
            first.messages.request(peer, "no.such.kind", {}).wait(20)
        assert rpc.rpc_sync("w1", remote_code.who) == "w1"


def test_protocol_messages(job: Job) -> None:
    first, second = job.agents[:2]
    heard: rpc.Future[object] = rpc.Future()
    second.inbox.register("test.one_way", lambda _, e: heard.set_result(second.messages.read(e)))
    second.inbox.register(
        "test.ask",
        lambda peer, e: second.messages.reply(peer, e, [peer.name, second.messages.read(e)]),
    )
    second.inbox.register(
        "test.fail", lambda peer, e: second.messages.reply_error(peer, e, KeyError("k"))
    )
    second.inbox.register("test.broken", lambda *_: 1 / 0)  # type: ignore[arg-type]
    second.inbox.register("test.silent", lambda *_: None)
    with pytest.raises(ValueError, match="have a handler"):
        second.inbox.register("test.ask", lambda *_: None)
    peer = first.members.find("w1")
    first.messages.post(peer, "test.one_way", {"a": 1})
    assert heard.wait(20) == {"a": 1}
    assert first.messages.request(peer, "test.ask", 5).wait(20) == ["w0", 5]
    with pytest.raises(KeyError):
        first.messages.request(peer, "test.fail").wait(20)
    with pytest.raises(ZeroDivisionError):
        first.messages.request(peer, "test.broken").wait(20)
    with pytest.raises(CallTimeoutError, match="test.silent"):
        first.messages.request(peer, "test.silent", timeout=0.02).wait(20)


@pytest.mark.parametrize("function", [remote_code.fail_wordless, remote_code.fail_with_odd_notes])
def test_an_exception_that_cannot_be_put_in_words_is_a_reply(
    job: Job, function: Callable[[], None]
) -> None:
    """Its own __str__ failed in the callee's handler, and the caller waited for ever."""
    future = job.on(0, rpc.rpc_async, "w1", function)
    error = _error_of(future)
    assert type(error) in (remote_code.Wordless, remote_code.CustomError)
    assert job.agents[1].drain(time.monotonic() + 20.0)


def test_a_frozen_exception_keeps_its_type(job: Job) -> None:
    error = _error_of(job.on(0, rpc.rpc_async, "w1", remote_code.fail_frozen))
    assert isinstance(error, remote_code.Frozen)
    assert error.code == 3
    assert "in fail_frozen" in (rpc.remote_traceback(error) or "")


def test_a_request_that_fits_no_envelope_leaves_nothing_behind(job: Job) -> None:
    caller, bulky = job.agents[0], Undone(bulky=False)
    caller.codec.add(bulky)
    with pytest.raises(EncodeError, match="too big"):
        seams.call(caller, "w1", remote_code.who, timeout=math.inf)
    assert caller.statistics().pending_calls == 0
    assert bulky.count == 1


def test_a_reply_that_fits_no_envelope_is_an_error(job: Job) -> None:
    """The callee could not post it and said nothing."""
    bulky = Undone(bulky=True)
    job.agents[1].codec.add(bulky)
    error = _error_of(seams.call(job.agents[0], "w1", remote_code.who))
    assert isinstance(error, EncodeError)
    assert bulky.count == 1
    assert job.agents[1].drain(time.monotonic() + 20.0)


def _error_of(future: rpc.Future[Any]) -> BaseException | None:
    """Waits without raising: contextlib cannot carry a frozen exception out of a block."""
    rpc.collect_all([future]).wait(15.0)
    return future.exception()
