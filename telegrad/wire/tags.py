"""The tags of a document: msgpack extension codes, and how each is laid out.

A *leaf* is one extension whose payload is the value. A *compound* is an array whose first item is
an extension with an empty payload, the marker; the other items are documents of their own, in
place. Nothing else produces extensions (a user's `msgpack.ExtType` travels as the named tuple that it is),
so no value of a user's can be mistaken for a tagged one.

    leaf        c7 len code payload           complex(1, 2)   ->  ext(COMPLEX, 16 bytes)
    compound    9n c7 00 code item item ...   (1, "a")        ->  [ext(TUPLE), 1, "a"]

The codes are part of the protocol: never renumbered, never reused.
"""

from __future__ import annotations

from enum import IntEnum, unique

__all__ = ["Tag"]


@unique
class Tag(IntEnum):
    """What an extension code means."""

    # leaves
    EXTERNAL = 1
    BIG_INT = 2
    COMPLEX = 3
    ELLIPSIS = 4
    DECIMAL = 5
    UUID = 6
    PATH = 7
    FUNCTION = 8
    ZONE = 9
    BYTEARRAY = 10

    # compounds
    TUPLE = 32
    SET = 33
    FROZENSET = 34
    DICT = 35
    SLICE = 36
    RANGE = 37
    DATE = 38
    TIME = 39
    DATETIME = 40
    TIMEDELTA = 41
    TIMEZONE = 42
    ORDERED_DICT = 43
    DEQUE = 44
    BIG_BYTES = 45
    BIG_BYTEARRAY = 46
    COUNTER = 47
    ENUM = 48
    FLAG = 49
    DATACLASS = 50
    NAMED_TUPLE = 51
    EXCEPTION = 52
    REGISTERED = 53
    DEFAULT_DICT = 54
    DTYPE = 56
    SCALAR = 57
    SPARSE = 58
