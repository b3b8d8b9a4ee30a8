"""What the workers of a pass say to each other: as it is read again, and where it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad import dist_autograd, rpc, tensor
from telegrad.dist_autograd.ids import make_context_id
from telegrad.dist_autograd.messages import (
    PASS,
    PassId,
    PassMessage,
    PassMode,
    ReleaseMessage,
)
from telegrad.dist_autograd.pass_protocol import Drop, End, Feed, PassProtocol
from telegrad.dist_autograd.seams import Container
from telegrad.errors import DecodeError, EncodeError
from telegrad.rpc.seams import Messages, current_agent
from telegrad.testing import Cluster
from telegrad.types import WorkerInfo
from telegrad.wire import read_body, write_body

CLUSTER_SIZE = 2

CONTEXT, PASS_ID = make_context_id(2**61, 7), PassId("a", 0, 2**61, 3)
HEAD = PassMessage(CONTEXT, PASS_ID).to_wire("")["pass"]

numbers = st.lists(st.integers(0, 2**40), max_size=3)
slots = st.lists(st.one_of(st.none(), st.floats(-1, 1)), max_size=3).map(tuple)
modes = st.one_of(st.none(), st.builds(PassMode, st.booleans(), st.booleans(), st.booleans()))


def travelled(message: Any) -> Any:
    return type(message).from_wire(
        read_body(write_body("autograd.pass", message.to_wire("sender")))
    )


@given(modes, numbers, st.lists(st.tuples(st.integers(0, 9), slots), max_size=3), numbers)
def test_what_is_said_is_heard(
    mode: PassMode | None, claims: list[int], gradients: list[tuple[int, Any]], nones: list[int]
) -> None:
    some = [answer for answer in gradients if answer[1]]  # each function has a slot at least
    begins = {} if mode is None else {"mode": mode, "claims": claims}
    heard = travelled(
        PassMessage(CONTEXT, PASS_ID, gradients=some, nones=nones, **begins)  # type: ignore[arg-type]
    )
    assert (heard.context_id, heard.pass_id) == (CONTEXT, PASS_ID)
    assert heard.pass_id.starter == WorkerInfo("a", 0, 2**61)
    assert (heard.mode, list(heard.claims)) == (mode, claims if mode is not None else [])
    assert (heard.gradients, heard.nones) == (some, nones)
    assert not heard.begun


def test_a_reply_says_why() -> None:
    assert travelled(PassMessage(CONTEXT, PASS_ID, begun=True)).cause is None
    heard = travelled(PassMessage(CONTEXT, PASS_ID, begun=True, cause=ValueError("why")))
    assert heard.begun
    assert repr(heard.cause) == "ValueError('why')"
    assert repr(travelled(PassMessage(CONTEXT, PASS_ID, begun=True, cause=ValueError("x"))).cause)
    release = ReleaseMessage(CONTEXT, 9)
    assert ReleaseMessage.from_wire(release.to_wire()) == release


@pytest.mark.parametrize(
    "fields",
    [{"pass": None}, {"pass": [1, 2]}, {"pass": [-1, 1, "a", 0, 1, 1]},
     {"pass": [1, 2**40, "a", 0, 1, 1]}, {"pass": [True, 1, "a", 0, 1, 1]}, {"begin": 3},
     {"begin": [True, 1, True]}, {"begin": [True, True, True, "x"]}, {"nones": [None]},
     {"gradients": [1.0]}, {"gradients": [1.0], "answers": [1]}, {"gradients": 3, "answers": [1, 1]},
     {"gradients": [1.0], "answers": [1, 2]}, {"gradients": [1.0], "answers": [1, 2, 3, -1]},
     {"gradients": None}, {"sent": None}, {"sent": ["x"]}],
)  # fmt: skip
def test_garbage(fields: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        PassMessage.from_wire({"pass": HEAD, **fields})


class Mute(Exception):
    """Cannot be put in words."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def test_a_cause_travels_whatever_its_class_does() -> None:
    assert type(travelled(PassMessage(CONTEXT, PASS_ID, begun=True, cause=Mute())).cause) is Mute
    noted = ValueError("why")
    noted.__notes__ = ["a note", Mute()]  # type: ignore[list-item]
    heard = travelled(PassMessage(CONTEXT, PASS_ID, begun=True, cause=noted)).cause
    assert "why" in str(heard)
    assert any("'sender'" in note for note in heard.__notes__)


# -- in the middle of a pass -------------------------------------------------------------------


def doubled(x: Any) -> Any:
    return x + x


def backward(calls: int = 1) -> None:
    y = tensor(np.ones(3), requires_grad=True)
    with dist_autograd.context() as context_id:
        for _ in range(calls):
            y = rpc.rpc_sync("worker1", doubled, (y,))
        try:
            dist_autograd.backward(context_id, [y.sum()], timeout=30.0)
        finally:
            assert dist_autograd.get_gradients(context_id) == {}
            assert not rpc.rpc_sync("worker1", is_running, (context_id,))


def is_running(context_id: int) -> bool:
    container = current_agent().attachments[Container]
    return any(runner.running for runner in container.passes(container.find(context_id)))


def test_a_message_that_cannot_be_read_ends_its_pass(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, lambda message: message.mode is not None)
    with pytest.raises(DecodeError, match="message ids"):
        cluster.call(0, backward)


def spoil(monkeypatch: pytest.MonkeyPatch, which: Callable[[PassMessage], bool]) -> None:
    """Has some messages of passes leave as what nobody can read."""
    genuine = PassMessage.to_wire

    def to_wire(message: PassMessage, worker: str) -> dict[str, object]:
        body = genuine(message, worker)
        return {**body, "nones": "garbage"} if which(message) else body

    monkeypatch.setattr(PassMessage, "to_wire", to_wire)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("sender", ["worker0", "worker1"])
def test_a_last_message_that_cannot_be_read_ends_its_pass(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, sender: str
) -> None:
    """Its sender is done and has no more to say: the reader waits for its reply no more."""
    spoil(monkeypatch, lambda message: message.begun and current_agent().info.name == sender)
    with pytest.raises(DecodeError, match="message ids"):
        cluster.call(0, backward, 2)  # after one call, worker1 has nothing to be replied to


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reader", ["worker0", "worker1"])
def test_gradients_that_cannot_be_had_end_the_pass(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """As memory of a GPU that this worker cannot open: then the whole message cannot be read."""
    genuine = read_body

    def read(envelope: Any, **options: Any) -> object:
        if envelope.kind == PASS and envelope.externals and current_agent().info.name == reader:
            raise DecodeError("external 0: the memory is not to be had")
        return genuine(envelope, **options)

    monkeypatch.setattr(Messages, "read", staticmethod(read))
    with pytest.raises(DecodeError, match="not to be had"):
        cluster.call(0, backward)


def fed_after_it_was_dropped() -> None:
    container = current_agent().attachments[Container]
    with dist_autograd.context() as context_id:
        runner = container.new_pass(container.find(context_id))
        cause, info = ValueError("why"), rpc.get_worker_info()
        actions = [Drop(cause), Feed((info.incarnation, 1), None), End(cause)]
        with mock.patch.object(PassProtocol, "abort", return_value=actions):
            runner.abort(cause)
        with pytest.raises(ValueError, match="why"):
            runner.ended.wait(5.0)


def test_what_is_to_be_fed_after_an_abort_stops_nothing(cluster: Cluster) -> None:
    cluster.call(0, fed_after_it_was_dropped)


@pytest.mark.parametrize("sender", ["worker0", "worker1"])
def test_gradients_that_cannot_travel_end_the_pass(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, sender: str
) -> None:
    genuine = PassMessage.to_wire

    def to_wire(message: PassMessage, worker: str) -> dict[str, object]:
        if message.gradients and current_agent().info.name == sender:
            raise EncodeError("they cannot travel", path="gradients")
        return genuine(message, worker)

    monkeypatch.setattr(PassMessage, "to_wire", to_wire)
    with pytest.raises(EncodeError, match="they cannot travel"):
        cluster.call(0, backward)
