"""`--limit NAME=NUMBER`: what others may take of the coordinator that a command hosts."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from telegrad.transport import ConnectionLimits

__all__ = ["LEAST", "limits_of", "parse_limit"]

# The names and least values of `rpc.Limits`, which workers take for themselves; the rest of those
# bounds calls, of which a coordinator serves none.
LEAST: Final[Mapping[str, float]] = {
    "connections": 1,
    "unproved_streams": 4,
    "handshake_seconds": 0.1,
    "document_bytes": 2**16,
    "message_bytes": 2**20,
}
MOST: Final = 2**32 - 1

# Those which are called otherwise in the transport.
_FIELDS: Final[Mapping[str, str]] = {"unproved_streams": "unproved"}
_OF_MESSAGES: Final = frozenset({"document_bytes", "message_bytes"})


def parse_limit(text: str) -> tuple[str, float]:
    """Returns the name and number of one `--limit`.

    Raises:
        argparse.ArgumentTypeError: It is none.

    >>> parse_limit("connections=200")
    ('connections', 200)
    """
    name, separator, value = text.partition("=")
    if name not in LEAST or not separator:
        known = ", ".join(LEAST)
        raise argparse.ArgumentTypeError(
            f"write NAME=NUMBER, with a name of {known} (got {text!r})"
        )
    try:
        number = float(value) if name == "handshake_seconds" else int(value)
    except ValueError:
        number = math.nan
    if not LEAST[name] <= number <= MOST:
        raise argparse.ArgumentTypeError(
            f"{name} must be a number from {LEAST[name]:g} to {MOST} (got {value!r})"
        )
    return name, number


def limits_of(pairs: Iterable[tuple[str, float]]) -> ConnectionLimits:
    """Returns the limits that these numbers make; what is not named has its default.

    >>> limits_of([("connections", 200)]).connections
    200
    """
    limits = ConnectionLimits()
    for name, number in pairs:
        if name in _OF_MESSAGES:
            received = dataclasses.replace(limits.received, **{name: int(number)})
            limits = dataclasses.replace(limits, received=received)
        else:
            field: dict[str, Any] = {_FIELDS.get(name, name): number}
            limits = dataclasses.replace(limits, **field)
    return limits
