"""Which interceptors hear that a message will not be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import telegrad.dist_autograd  # noqa: F401 - teaches the codec Tensors
from telegrad.autograd import Tensor
from telegrad.errors import DecodeError, EncodeError
from telegrad.rpc.base.call_record import CallRecord
from telegrad.rpc.base.interceptor import Interceptor, Message
from telegrad.rpc.call.codec import MessageCodec, Sealed
from telegrad.types import WorkerInfo

PEER = WorkerInfo("w1", 1, 2)


class Heard(Interceptor):
    """Writes down what it hears; fails, or says what cannot be written, if it is to."""

    def __init__(self, name: str, heard: list[str], outcome: object = None) -> None:
        self._name = name
        self._heard = heard
        self._outcome = outcome

    @property
    def name(self) -> str:
        return self._name

    def outgoing(self, message: Message) -> None:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        self._heard.append(f"{self._name} out")
        if self._outcome is not None:
            message.headers[self._name] = self._outcome

    def incoming(self, message: Message) -> None:
        raise AssertionError

    def undelivered(self, message: Message) -> None:
        self._heard.append(f"{self._name} back")


def seal(value: Any, heard: list[str], second: object = None) -> Sealed:
    codec = MessageCodec(lambda peer, kind, name: None)
    for name, outcome in (("a", None), ("b", second), ("c", None)):
        codec.add(Heard(name, heard, outcome))
    return codec.seal(PEER, "kind", CallRecord("f"), value, reply=True)


class Quiet(Heard):
    """Has nothing to do with messages that carry arrays alone."""

    hears_all = False

    def speaks(self, call: CallRecord, *, reply: bool) -> bool:
        return False

    def incoming(self, message: Message) -> None:
        self._heard.append(f"{self._name} in")
        if isinstance(self._outcome, Exception):
            raise self._outcome


ARRAY = np.arange(3.0)
MANY = np.arange(30_000.0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(ARRAY, False), ([ARRAY, MANY, ARRAY], False), (1, False), ([ARRAY, Tensor(ARRAY)], True)],
    ids=["array", "arrays", "number", "tensor"],
)
def test_arrays_are_nothing_to_who_says_so(value: Any, shown: bool) -> None:
    heard: list[str] = []
    codec = MessageCodec(lambda peer, kind, name: None)
    codec.add(Quiet("a", heard))
    sealed = codec.seal(PEER, "kind", CallRecord("f"), value, reply=True)
    arrived = codec.open(PEER, CallRecord("f"), sealed.envelope)
    sealed.take_back()
    assert heard == (["a out", "a in", "a back"] if shown else [])
    assert repr(arrived) == repr(value)


def test_who_speaks_sees_arrays_and_so_do_all() -> None:
    heard: list[str] = []
    here, there = (MessageCodec(lambda peer, kind, name: None) for _ in range(2))
    for each in (Quiet("a", heard), Heard("b", heard, "said")):
        here.add(each)
    there.add(Quiet("c", heard))
    sealed = here.seal(PEER, "kind", CallRecord("f"), ARRAY, reply=True)
    there.open(PEER, CallRecord("f"), sealed.envelope)
    sealed.take_back()
    assert heard == ["a out", "b out", "c in", "a back", "b back"]


@pytest.mark.parametrize("built", [False, True])
def test_who_is_shown_no_arrays_hears_of_those_that_nobody_reads(built: bool) -> None:
    heard: list[str] = []
    codec = MessageCodec(lambda peer, kind, name: None)
    envelope = codec.seal(PEER, "kind", CallRecord("f"), Tensor(ARRAY), reply=True).envelope
    codec.add(Quiet("a", heard, ValueError("in vain")))
    if not built:
        envelope.buffers = []
    with pytest.raises(ValueError if built else DecodeError):
        codec.open(PEER, CallRecord("f"), envelope)
    assert heard == (["a in", "a back"] if built else ["a back"])


def test_who_has_not_seen_a_message_does_not_hear_that_it_failed() -> None:
    heard: list[str] = []
    with pytest.raises(KeyError):
        seal(1, heard, KeyError("b"))
    assert heard == ["a out", "a back"]


def test_all_hear_of_a_header_that_cannot_be_written() -> None:
    heard: list[str] = []
    with pytest.raises(EncodeError):
        seal(1, heard, iter([]))
    assert heard == ["a out", "b out", "c out", "a back", "b back", "c back"]


def test_nobody_sees_what_cannot_travel() -> None:
    heard: list[str] = []
    with pytest.raises(EncodeError, match="the value of f is refused: value.0. cannot travel"):
        seal([lambda: None], heard)
    assert heard == []


def test_all_hear_of_what_is_taken_back() -> None:
    heard: list[str] = []
    sealed = seal(1, heard, "said")
    assert heard == ["a out", "b out", "c out"]
    sealed.take_back()
    assert heard[3:] == ["a back", "b back", "c back"]
