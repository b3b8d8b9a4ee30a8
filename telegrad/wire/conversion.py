"""What the files of the codec share: the two views of a document in the making or reading."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgpack

from telegrad.wire.allowance import Allowance
from telegrad.wire.tags import Tag

__all__ = ["MARKERS", "Conversion", "Reading", "Refused"]

MARKERS = {tag: msgpack.ExtType(tag, b"") for tag in Tag}  # the first item of a compound


class Refused(Exception):
    """A value cannot travel; becomes an EncodeError once its whole path is known.

    Attributes:
        steps: The path to the value, innermost step first.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.steps: list[str] = []


class Conversion(Protocol):
    """A document in the making, as the encoders of single types see it."""

    def convert(self, value: Any) -> object:
        """Returns the packable form of a value."""

    def items(
        self, values: Iterable[Any], step: Callable[[int], str] = "[{}]".format
    ) -> list[object]:
        """Converts several values; `step` says how the path reaches the one at an index."""

    def entries(self, values: dict[str, Any]) -> dict[str, object]:
        """Converts the values of a dict whose keys are strings."""

    def lift(self, value: object) -> object:
        """Puts an object beside the document and returns the reference to it."""


class Reading(Protocol):
    """A document being read, as the decoders of single types see it."""

    @property
    def allowance(self) -> Allowance:
        """What the document may cost beyond its own size."""

    def external(self, index: int) -> object:
        """Returns an external of the document."""

    def function(self, name: str) -> object:
        """Returns a function that is sent by reference, if it may be had here."""

    def exception(self, items: list[Any]) -> BaseException:
        """Returns an exception that is sent as a value."""
