"""Which interceptors hear that a message will not be read."""

from __future__ import annotations

from typing import Any

import pytest

from telegrad.errors import EncodeError
from telegrad.rpc.codec import MessageCodec, Sealed
from telegrad.rpc.interceptor import CallRecord, Interceptor, Message
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
