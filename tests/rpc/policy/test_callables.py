"""Who may call what, over the wire: nothing of a refused call is built, and it is recorded."""

from __future__ import annotations

import math
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from telegrad import rpc
from telegrad.errors import CallRefusedError, DecodeError, FunctionNotFoundError
from telegrad.rpc.call.user_call import UserCall, admit_call
from telegrad.rpc.rref.protocol import RRefId
from telegrad.rpc.rref.serving import AdmittedMethod
from telegrad.rpc.seams import CallRecord, ServedCall, current_agent, reference_of
from telegrad.transport.security.audit import CALL_REFUSED, Audit
from telegrad.types import WorkerInfo
from telegrad.wire import encode, read_head
from telegrad.wire import names as lookup
from telegrad.wire.values import class_types
from tests.audit_log import AuditLog, audit_log_of_all
from tests.rpc import remote_code
from tests.rpc.conftest import Job, MakeJob
from tests.rpc.policy import callable_code as code

SECONDS = 20.0
CALL = ServedCall("w1", WorkerInfo("w0", 0, 1), 1, CallRecord("rpc.call"), math.inf, 0)


@pytest.fixture
def log() -> Iterator[AuditLog]:
    with audit_log_of_all() as handler:
        yield handler


@pytest.fixture(autouse=True)
def nothing_built() -> None:
    code.built.clear()


@pytest.fixture
def exposed(make_job: MakeJob) -> Job:
    return make_job(2, callables="exposed")


def refused(job: Job, verb: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(CallRefusedError) as caught:
        job.on(0, verb, *args)
    return str(caught.value)


# -- before anything is built -------------------------------------------------------------------


def test_the_arguments_of_a_refused_call_are_not_decoded(exposed: Job) -> None:
    parcel = (code.Parcel("x"),)

    def created() -> None:
        rpc.remote("w1", code.take, parcel).to_here()

    refused(exposed, rpc.rpc_sync, "w1", code.take, parcel)
    refused(exposed, created)
    refused(exposed, lambda: list(rpc.stream("w1", code.lines, parcel)))
    assert code.built == []
    exposed.on(0, rpc.rpc_sync, "w1", code.status)


def test_nor_are_those_of_a_call_of_nothing(job: Job) -> None:
    named = {"func": f"{code.__name__}:forgotten", "args": [code.Parcel("x")], "kwargs": {}}
    with pytest.raises(FunctionNotFoundError, match="forgotten"):
        job.on(0, lambda: by_hand(job.agents[1].info, "rpc.call", **named))
    assert code.built == []


def by_hand(to: rpc.WorkerInfo, kind: str, **payload: Any) -> Any:
    """Sends what the caller's end of the library would not."""
    return current_agent().calling.send(to, kind, payload, function="by hand").wait()


def test_the_arguments_of_a_refused_method_are_not_decoded(exposed: Job) -> None:
    def body() -> None:
        hidden: Any = rpc.remote("w1", code.make_hidden)
        counter: Any = rpc.remote("w1", code.Counter)
        assert counter.rpc_sync().add(1) == 1  # both are there
        parcel = code.Parcel("x")
        for call in (
            lambda: hidden.rpc_sync().take(parcel),
            lambda: hidden.remote().take(parcel).to_here(),
            lambda: list(hidden.rpc_stream().take(parcel)),
            lambda: hidden.rpc_sync().inherited(parcel),
        ):
            with pytest.raises(CallRefusedError, match=r"rpc\.expose"):
                call()
        assert code.built == []
        assert counter.rpc_sync().take(parcel) == "x"
        assert list(counter.rpc_stream().lines(parcel)) == ["x"]
        assert counter.remote().take(parcel).to_here() == "x"
        assert counter.rpc_sync().inherited(parcel) == 1
        assert code.built == ["x"] * 4

    exposed.on(0, body)


def reset_by_hand(counter: Any) -> None:
    rref, owner = list(reference_of(counter).rref), reference_of(counter).owner
    with pytest.raises(CallRefusedError, match="underscore"):
        by_hand(owner, "rref.call", rref=rref, method="_reset", args=[], kwargs={})


def test_an_rref_in_a_refused_call_is_given_back(exposed: Job) -> None:
    """It was never taken in: its owner must not count it for good."""

    def body() -> None:
        rref = rpc.remote("w1", code.Counter)
        with pytest.raises(CallRefusedError):
            rpc.rpc_sync("w1", code.apply, (rref,))
        assert rref.rpc_sync().add(1) == 1
        rref.release()

    exposed.on(0, body)


def test_what_is_called_stands_before_its_arguments() -> None:
    def admitted(payload: Mapping[str, object]) -> str:
        found = admit_call(resolve, CALL, encode(payload).document)
        if not isinstance(found, UserCall):  # it has arguments
            found = found(WorkerInfo("w0", 0, 1), payload)
        return found.name

    def resolve(function: str, *, script: str = "", caller: WorkerInfo | None = None) -> Any:
        assert caller is not None
        return code.status

    good = {"func": "m:status", "script": "s.py", "args": [], "kwargs": {}}
    assert admitted(good) == "m:status"
    assert admitted({**good, "args": [1]}) == "m:status"
    late = {"args": [], "kwargs": {}, "func": "m:status"}
    wrongs: list[Mapping[str, object]] = [late, {**good, "func": 3}, {"args": []}]
    for wrong in (*wrongs, {**good, "script": None}):
        with pytest.raises(DecodeError, match="func"):
            admitted(wrong)
    bomb = b"\x82\xa1a" + b"\xdd\x00\x00\x27\x10" * 2000  # lists of 10,000, in each other
    for garbage in (
        b"",
        bomb,
        b"\x93",
        b"\xff" * 20,
        encode([1]).document,
        encode({"a": 1}).document,
    ):
        tracemalloc.start()
        try:
            with pytest.raises(DecodeError):
                read_head(garbage, "args")
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
    with pytest.raises(DecodeError):
        read_head(encode({"func": "x" * 20_000, "args": []}).document, "args")


def test_a_call_does_not_name_two_functions() -> None:
    """The first is admitted, and the last would be the one that msgpack keeps."""
    asked: list[str] = []

    def resolve(function: str, *, script: str = "", caller: WorkerInfo | None = None) -> Any:
        asked.append(function)
        return code.status

    one = encode({"func": "m:ok", "args": [], "kwargs": {}}).document
    two = encode({"func": "os:system"}).document
    document = bytes([one[0] + 1]) + one[1:] + two[1:]
    prepare = admit_call(resolve, CALL, document)
    assert asked == ["m:ok"]
    assert not isinstance(prepare, UserCall)
    with pytest.raises(DecodeError, match="in this order"):
        prepare(WorkerInfo("w0", 0, 1), {"func": "os:system", "args": [], "kwargs": {}})


def test_the_method_that_was_admitted_is_the_one_that_runs() -> None:
    rref = RRefId(1, 2, 3)
    admitted = AdmittedMethod(rref, "add")
    payload = {"rref": list(rref), "method": "add", "args": [1], "kwargs": {"b": 2}}
    assert admitted.arguments(payload) == ([1], {"b": 2})
    other: list[dict[str, object]] = [{"method": "reset"}, {"rref": [1, 2, 4]}, {"args": None}]
    for wrong in other:
        with pytest.raises(DecodeError, match="rref, method, args"):
            admitted.arguments({**payload, **wrong})


def test_a_method_stands_before_its_arguments(exposed: Job) -> None:
    def body() -> None:
        mine: Any = rpc.remote("w1", code.Counter)
        mine.rpc_sync().add(1)
        agent, reference = current_agent(), reference_of(mine)
        payload = {"rref": list(reference.rref), "args": [1], "kwargs": {}, "method": "add"}
        future = agent.calling.send(reference.owner, "rref.call", payload, function="add")
        with pytest.raises(DecodeError, match="rref, method, args"):
            future.wait()
        assert mine.rpc_sync().add(1) == 2

    exposed.on(0, body)


# -- a policy of one's own ------------------------------------------------------------------------


class Rules:
    """A policy by caller; keeps who asked in which thread."""

    def __init__(self, allowed: dict[str, set[str]]) -> None:
        self.allowed = allowed
        self.asked: list[tuple[WorkerInfo, str, str, str]] = []

    def __call__(self, caller: WorkerInfo, module: str, qualname: str) -> bool:
        self.asked.append((caller, module, qualname, threading.current_thread().name))
        return qualname in self.allowed.get(caller.name, ())


def test_a_policy_decides_by_caller(make_job: MakeJob) -> None:
    rules = Rules({"w0": {"status"}, "w2": {"status", "unexposed"}})
    job = make_job(3, callables=rules)
    for rank, func, allowed in (
        (0, code.status, True),
        (0, code.unexposed, False),
        (2, code.unexposed, True),
        (1, code.status, False),  # it calls itself
    ):
        if allowed:
            assert job.on(rank, rpc.rpc_sync, "w1", func) == func()
        else:
            with pytest.raises(CallRefusedError, match="policy of that worker says no"):
                job.on(rank, rpc.rpc_sync, "w1", func)
    assert [caller for caller, *_ in rules.asked] == [job.agents[i].info for i in (0, 0, 2, 1)]
    assert {module for _, module, *_ in rules.asked} == {code.__name__}


def test_a_policy_is_asked_of_methods_and_values(make_job: MakeJob) -> None:
    names = {"Counter", "Counter.add", "Counter.value", "apply", "status"}
    rules = Rules({"w0": names})
    job = make_job(2, callables=rules)

    def body() -> None:
        counter: Any = rpc.remote("w1", code.Counter)
        assert counter.rpc_sync().add(1) == 1
        assert counter.rpc_sync().value == 1
        with pytest.raises(CallRefusedError, match=r"Counter\.inherited.*says no"):
            counter.rpc_sync().inherited()
        assert rpc.rpc_sync("w1", code.apply, (code.status,)) == "well"
        with pytest.raises(DecodeError, match="says no"):
            rpc.rpc_sync("w1", code.apply, (os.getpid,))
        assert code.built == []

    job.on(0, body)
    asked = [qualname for _, _, qualname, _ in rules.asked]
    assert asked.count("Counter.add") == 1, "once for each call"


def test_a_slow_policy_holds_up_nobody_else(make_job: MakeJob) -> None:
    may_decide, asked = threading.Event(), threading.Event()
    threads: set[str] = set()

    def slow(caller: WorkerInfo, module: str, qualname: str) -> bool:
        threads.add(threading.current_thread().name)
        if qualname == "take":
            asked.set()
            return may_decide.wait(SECONDS)
        return True

    job = make_job(2, callables=slow)
    slowly = job.on(0, rpc.rpc_async, "w1", code.take, (code.Parcel("x"),))
    assert asked.wait(SECONDS)
    assert job.on(0, rpc.rpc_sync, "w1", code.status) == "well"
    assert not slowly.done()
    assert code.built == [], "decoded before it was decided"
    may_decide.set()
    assert slowly.wait() == "x"
    assert not [name for name in threads if "loop" in name]


# -- the audit log --------------------------------------------------------------------------------


def take_late(counter: Any) -> object:
    return counter.rpc_sync().take(code.Late(1))


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (
            lambda: rpc.rpc_sync("w1", remote_code.echo, ({"x": code.Late(1)},)),
            r"^worker 'w1' cannot read the arguments of tests\.rpc\.remote_code:echo from the caller "
            r"'w0': class '\S+:Late' is not imported here; import \S+ first "
            r"\(at args\[0\]\['x'\]\)",
        ),
        (
            lambda: rpc.rpc_sync("w1", code.gives_late),
            r"^worker 'w0' cannot read the value of \S+:gives_late from 'w1': class '\S+Late' is not "
            r"imported here; import \S+ first \(at value\['x'\]\)",
        ),
        (
            lambda: take_late(rpc.remote("w1", code.Counter)),
            r"^worker 'w1' cannot read the arguments of take from the caller 'w0': .*at args\[0\]\)",
        ),
        (
            lambda: list(rpc.stream("w1", code.streams_late)),
            r"^worker 'w0' cannot read the value of \S+:streams_late from 'w1': .*import ",
        ),
    ],
    ids=["argument", "value", "method", "item"],
)
def test_what_cannot_be_read_is_said_with_who_cannot(
    job: Job, monkeypatch: pytest.MonkeyPatch, read: Callable[[], object], words: str
) -> None:
    """All workers of the test are one process, in which nobody finds the class."""

    def find_class(name: object) -> type:
        if str(name).endswith(":Late"):
            raise DecodeError(f"class {name!r} is not imported here; import {str(name)[:-5]} first")
        return lookup.find_class(name)

    monkeypatch.setattr(class_types, "find_class", find_class)
    with pytest.raises(DecodeError, match=words):
        job.on(0, read)


def test_refused_calls_are_recorded(exposed: Job, log: AuditLog) -> None:
    def body() -> None:
        counter: Any = rpc.remote("w1", code.Counter)
        child: Any = rpc.remote("w1", code.make_child)
        hidden: Any = rpc.remote("w1", code.make_hidden)
        assert counter.rpc_sync().add(1) == child.rpc_sync().add(1)
        assert hidden
        with pytest.raises(CallRefusedError):
            rpc.rpc_sync("w1", os.system, ("true",))
        with pytest.raises(CallRefusedError):
            rpc.remote("w1", code.unexposed).to_here()
        with pytest.raises(CallRefusedError):
            list(rpc.stream("w1", code.lines, (1,)))  # type: ignore[arg-type]
        with pytest.raises(CallRefusedError):
            child.rpc_sync().reset()
        reset_by_hand(counter)
        # The default policy, which lets everybody have this function, judged values once.
        with pytest.raises(DecodeError, match=r"rpc\.expose.*args\[0\]\[1\]"):
            counter.rpc_sync().take([float, code.unexposed])

    exposed.on(0, body)
    told = log.wait(CALL_REFUSED, 6)
    found = [(each["kind"], each["function"], each["reason"]) for each in told]
    name = code.__name__
    assert found == [
        ("rpc.call", f"{os.system.__module__}:system", "NOT_ALLOWED"),
        ("rpc.remote", f"{name}:unexposed", "NOT_ALLOWED"),
        ("rpc.stream", f"{name}:lines", "NOT_ALLOWED"),
        ("rref.call", f"{name}:CounterChild.reset", "NOT_ALLOWED"),
        ("rref.call", "_reset", "PRIVATE_NAME"),
        ("rref.call", f"{name}:unexposed", "NOT_ALLOWED_AS_VALUE"),
    ]
    info = exposed.agents[0].info
    for each in told:
        assert (each["worker"], each["caller"], each["incarnation"]) == (
            "w1",
            "w0",
            info.incarnation,
        )
    assert "rpc.expose" in told[0]["words"]


def test_nothing_is_recorded_of_an_admitted_call(
    exposed: Job, log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    exposed.on(0, rpc.rpc_sync, "w1", code.status)
    asked: list[str] = []
    monkeypatch.setattr(Audit, "record", lambda audit, event, **fields: asked.append(event))
    for _ in range(3):
        exposed.on(0, rpc.rpc_sync, "w1", code.status)
    assert asked == []
    assert not log.found(CALL_REFUSED)


@pytest.mark.parametrize("callables", ["project", "exposed"])
def test_the_numbers_of_another_worker_can_be_asked_for(make_job: MakeJob, callables: str) -> None:
    job = make_job(2, callables=callables)
    assert job.on(0, rpc.rpc_sync, "w1", rpc.statistics).calls_sent == 0
    assert job.on(0, rpc.rpc_sync, "w1", rpc.get_worker_info).name == "w1"
    assert [each.name for each in job.on(0, rpc.rpc_sync, 1, rpc.get_worker_infos)] == ["w0", "w1"]
