"""The caller's end of one RRef without workers: when its fork is kept, and ticks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest

from telegrad.errors import (
    CallTimeoutError,
    OwnerLostError,
    ValueNotFoundError,
    WorkerLostError,
)
from telegrad.rpc import Future, seams
from telegrad.rpc.agent.options import RpcOptions
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.future.future import new_future
from telegrad.rpc.future.unread import UnreadErrors
from telegrad.rpc.rref.calls import RRefCalls
from telegrad.rpc.rref.table import USER_DELETE, Reference, RRefRegistry
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.rpc.seams import AgentCore

OWNER = WorkerInfo("w1", 1, 2)
LOST = WorkerLostError("gone", worker="w1", incarnation=2, last_seen=0.0, reason="gone")


class Alone:
    """What an agent is for RRefs, with nobody who answers; and what sends their messages."""

    info = WorkerInfo("w0", 0, 1)
    options = RpcOptions()

    def __init__(self) -> None:
        self.replies: list[Future[Any]] = []
        self.calling = self.deadlines = self.members = self.messages = self.pool = self
        self.life, self.attachments = seams.Life("w0"), seams.Attachments("w0")
        self.posted: list[str] = []
        self.on_post: Callable[[], object] = int
        self.waiting: list[Callable[[], None]] = []  # what is to be called later
        self.attachments.attach(UnreadErrors(self.after, self.submit))
        self.registry = RRefRegistry(cast("AgentCore", self))
        self.calls = RRefCalls(self.registry)

    def send(self, *_: object, record: CallRecord, **__: object) -> Future[Any]:
        self.record = record
        self.replies.append(new_future(None, "a reply"))
        return self.replies[-1]

    def post(self, to: WorkerInfo, kind: str, body: object, *, rides: bool) -> None:
        self.posted.append(kind)
        self.on_post()

    def flush(self) -> None:
        pass

    def after(self, delay: float, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def submit(self, func: Callable[..., Any], *args: Any) -> None:
        func(*args)

    def eviction(self) -> None:
        return None

    def create(self) -> Reference:
        return self.calls.create(OWNER, len, ("",), None, None)

    def created(self) -> Reference:
        reference = self.create()
        self.replies[0].set_result("a.Class")
        return reference

    def deleted(self) -> list[str]:
        self.registry.drain()
        return [each for each in self.posted if each == USER_DELETE]


def interrupt(future: Future[Any], timeout: float | None = None) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("answer", [7, KeyError("x")])
def test_what_ctrl_c_ended_keeps_the_fork_until_its_reply(
    monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    alone = Alone()
    reference = alone.created()
    with monkeypatch.context() as patch:
        patch.setattr(Future, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            alone.calls.fetch(reference, None).wait()
    reference.release()
    assert alone.deleted() == []
    if isinstance(answer, Exception):
        alone.replies[1].set_exception(answer)
    else:
        alone.replies[1].set_result(answer)
    assert len(alone.deleted()) == 1


def test_a_lost_owner_is_called_so() -> None:
    alone = Alone()
    reference = alone.created()
    alone.calls.fetch(reference, None)
    explain = alone.record.explain
    assert explain is not None
    explained = explain(LOST)
    assert type(explained) is OwnerLostError
    assert explained.__cause__ is LOST
    other = WorkerLostError("gone", worker="w2", incarnation=3, last_seen=0.0, reason="gone")
    assert explain(other) is other


def test_a_value_that_was_never_made_is_explained_by_its_creation() -> None:
    """The reply of the call may be read after the reference has forgotten its creation."""
    alone = Alone()
    reference = alone.create()
    alone.calls.fetch(reference, None)
    alone.replies[0].set_exception(ZeroDivisionError("x"))
    explain = alone.record.explain
    assert explain is not None
    assert type(explain(ValueNotFoundError("gone"))) is ZeroDivisionError
    own = KeyError("of the method")
    assert explain(own) is own


@pytest.mark.parametrize(
    ("events", "error"),
    [
        (("fail", "lose"), CallTimeoutError),
        (("fail", "late", "lose"), OwnerLostError),
        (("late", "fail", "lose"), OwnerLostError),
    ],
)
def test_a_creation_that_was_late_and_whose_owner_is_lost(
    events: tuple[str, ...], error: type[Exception]
) -> None:
    """If the value was there after all, it is lost, and not too late."""
    alone = Alone()
    reference, registry = alone.create(), alone.registry
    for event in events:
        if event == "fail":
            alone.replies[0].set_exception(CallTimeoutError("its time was over"))
        elif event == "late":  # the reply that comes after its deadline
            registry.event(registry.users.created, reference.fork)
        else:
            registry.lose(OWNER, LOST)
    for _ in range(2):
        with pytest.raises(error):
            alone.calls.fetch(reference, None).wait()


def test_who_begins_while_a_tick_drains_starts_no_second_one() -> None:
    """Never are two ticks under way, and none where there is nothing to count."""
    alone = Alone()
    own: list[object] = []
    registry = alone.registry
    alone.on_post = lambda: own.append(registry.own("value"))
    reference = registry.create(OWNER)
    assert reference.fork is not None
    registry.event(registry.users.created, reference.fork)
    tick = alone.waiting.pop()
    del reference
    tick()
    assert len(own) == 1
    tick = alone.waiting.pop()
    assert not alone.waiting
    own.clear()
    tick()
    assert not alone.waiting
