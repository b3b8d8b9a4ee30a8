"""What the tests of `callables` call, and arguments that tell when they are built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from telegrad import rpc

built: list[object] = []


class Parcel:
    """An argument whose decoding runs a function of the user's."""

    def __init__(self, content: object) -> None:
        self.content = content


def _unpack(content: Any) -> Parcel:
    built.append(content)
    return Parcel(content)


rpc.register_type(Parcel, encode=lambda parcel: parcel.content, decode=_unpack)


@dataclass
class Late:
    """A class that a worker may not have imported."""

    value: int


def gives_late() -> dict[str, Late]:
    return {"x": Late(1)}


def streams_late() -> Iterator[Late]:
    yield Late(1)


def take(parcel: Parcel) -> object:
    return parcel.content


def apply(func: Any, *args: Any) -> Any:
    return func(*args)


def lines(parcel: Parcel) -> Iterator[object]:
    yield parcel.content


class Base:
    def inherited(self, parcel: Parcel | None = None) -> int:
        return 1


@rpc.expose
class Counter(Base):
    """Exposed, and so is what it inherits."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def take(self, parcel: Parcel) -> object:
        return parcel.content

    def lines(self, parcel: Parcel) -> Iterator[object]:
        yield parcel.content

    def _reset(self) -> None:
        self.value = 0


class Hidden(Base):
    """Not exposed."""

    def take(self, parcel: Parcel) -> object:
        return parcel.content


class CounterChild(Counter):
    """Not exposed itself; its base is."""

    def reset(self) -> None:
        self.value = 0


@rpc.expose
def make_hidden() -> Hidden:
    return Hidden()


@rpc.expose
def make_child() -> CounterChild:
    return CounterChild()


@rpc.expose
def status() -> str:
    return "well"


def unexposed() -> str:
    return "not for others"
