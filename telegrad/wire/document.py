"""The tags of a document (msgpack extension codes), its limits, and the reading of its head.

A *leaf* is one extension whose payload is the value. A *compound* is an array whose first item is
an extension with an empty payload, the marker; the other items are documents of their own, in
place. Nothing else produces extensions (a user's `msgpack.ExtType` travels as the named tuple that
it is), so no value of a user's can be mistaken for a tagged one.

    leaf        c7 len code payload           complex(1, 2)   ->  ext(COMPLEX, 16 bytes)
    compound    9n c7 00 code item item ...   (1, "a")        ->  [ext(TUPLE), 1, "a"]

The codes are part of the protocol: never renumbered, never reused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import Any, Final, Protocol, final

import msgpack
import numpy as np

from telegrad.errors import DecodeError


@unique
class Tag(IntEnum):
    """The meanings of extension codes."""

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
    STRUCT = 59


# -- limits on the resources that a message may use at its reader --------------------------------

# More than any array of one host's memory. Pages are taken as bytes arrive, not when announced.
MAX_ENVELOPE_BYTES: Final = 64 * 2**30
# An empty list takes 64 bytes for one on the wire. So a document that may have 256 MiB becomes 660
# MB at most, and holds ten million floats.
BYTES_PER_ELEMENT: Final = 26
# Bytes. In smaller documents false lengths can reserve too little to matter, and no nesting can
# exceed the default limit.
UNCHECKED_SIZE: Final = 256


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """Bounds of one message; a message that exceeds them is refused before memory is taken for it.

    Attributes:
        document_bytes: The most bytes of a document. Array bytes are never inside one.
        depth: The most levels of nested lists and dicts.
        elements: The most items of all lists and dicts of a document together; 0 for one for each
            26 bytes that a document may have.
        message_bytes: The most bytes of a whole message, with its arrays.
        unchecked_bytes: The bytes of the largest document that no content takes beyond the limits;
            follows from the others.
    """

    # Ten million floats with room to spare; more should be an array, which travels beside a
    # document.
    document_bytes: int = 256 * 2**20
    # Twice the 128 levels that the encoder writes at most; msgpack itself reads 1024.
    depth: int = 256
    elements: int = 0
    message_bytes: int = MAX_ENVELOPE_BYTES
    unchecked_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        if not self.elements:
            object.__setattr__(self, "elements", self.document_bytes // BYTES_PER_ELEMENT)
        least = min(UNCHECKED_SIZE, self.document_bytes, self.depth, self.elements)
        object.__setattr__(self, "unchecked_bytes", least)


DEFAULT_LIMITS: Final = DecodeLimits()
# For telegrad's own messages that are read on the loop.
SMALL_LIMITS: Final = DecodeLimits(document_bytes=2**10, depth=8, elements=100)


# -- msgpack with bounds on lengths, depth and the number of items -------------------------------
#
# At every level msgpack reserves the length that an array's header announces before it reads the
# items. So a document is first walked through without building it. Once it is known to be complete,
# the reservations of all its headers together are bounded by its size.

MSGPACK_DEPTH: Final = 1024  # levels that msgpack's own reader takes
_AS_DATETIMES: Final = 3  # telegrad has timestamps of its own; other languages use msgpack's


def _check(document: bytes, limits: DecodeLimits) -> None:
    """Checks a document by walking through it without building it."""
    size = len(document)
    if size > limits.document_bytes:
        raise DecodeError(
            f"a document of {size} bytes (at most: {limits.document_bytes}); send arrays in place "
            "of long lists, or raise Limits.document_bytes"
        )
    levels = max(0, MSGPACK_DEPTH - limits.depth)
    unpacker = msgpack.Unpacker(
        max_buffer_size=size + levels,
        max_str_len=size,
        max_bin_len=size,
        max_array_len=min(size, limits.elements),
        max_map_len=min(size, limits.elements),
        max_ext_len=size,
    )
    unpacker.feed(b"\x91" * levels)  # a list around a list, to use up the levels beyond the limit
    unpacker.feed(document)
    try:
        unpacker.skip()
    except msgpack.StackError as error:
        raise DecodeError(f"a document nested deeper than {limits.depth} levels") from error


def unpack(
    document: bytes,
    limits: DecodeLimits,
    *,
    extension: Callable[[int, bytes], object] = msgpack.ExtType,
    array: Callable[[list[Any]], object] | None = None,
    mapping: Callable[[dict[Any, Any]], object] | None = None,
) -> Any:
    """Builds a document after checking it against the limits.

    Args:
        document: The bytes to read.
        limits: The limits of the document.
        extension: Builds a value from an extension's code and payload.
        array: Replaces each array, innermost first.
        mapping: Replaces each map.

    Raises:
        DecodeError: The document is larger or deeper than the limits allow.
        Exception: Any error of msgpack for garbage, and any error of the functions above.
    """
    if len(document) > limits.unchecked_bytes:
        _check(document, limits)
    bounded = len(document) <= limits.elements  # by its bytes
    items = -1 if bounded else limits.elements
    try:
        return msgpack.unpackb(
            document,
            ext_hook=extension,
            list_hook=array,
            object_hook=mapping,
            unicode_errors="surrogatepass",
            timestamp=_AS_DATETIMES,
            max_array_len=items,
            max_map_len=items,
        )
    except ValueError as error:
        long = "max_array_len" in str(error) or "max_map_len" in str(error)
        if long and not bounded:
            raise too_many_elements(limits) from error
        raise


def too_many_elements(limits: DecodeLimits) -> DecodeError:
    """Returns the error of a document whose containers hold too much."""
    return DecodeError(
        f"a document of more than {limits.elements} elements; send arrays in place of long lists, "
        "or raise Limits.document_bytes"
    )


# -- the cost of a document beyond its own size: items, colliding keys, copied bytes -------------

# Colliding keys take quadratic time, and a sender of numbers can choose where they fall. Honest
# keys take 0.1 us each, or 1 us if a user's class hashes them: a hundred and ten times less.
SECONDS_PER_KEY: Final = 10e-6
SECONDS_AT_LEAST: Final = 0.25  # of the processor, for one document
FEW_KEYS: Final = 256  # at once; if all of them collide, that is half a millisecond

# Multiples of the bytes of all arrays beside the document. Big `bytes` values are copied once out
# of their arrays. Sparse arrays read their parts and copy some, and many of them may share one
# array of indices.
COPIES: Final = 8
LOOKS: Final = 100
# Of named tuples without a class here; making a class takes 0.1 ms, a thousand times its bytes.
KINDS: Final = 100
BYTES_AT_LEAST: Final = 2**20


@final
class Allowance:
    """Counts the cost of one document, including documents inside its exceptions.

    Args:
        limits: The limits of the message.
        clock: The processor time of this thread, in seconds.
    """

    __slots__ = ("_array_bytes", "_clock", "_copied", "_elements", "_keys", "_kinds", "_limits",
                 "_looked", "_seconds")  # fmt: skip

    def __init__(self, limits: DecodeLimits, clock: Callable[[], float] = time.thread_time) -> None:
        self._limits = limits
        self._clock = clock
        self._elements = self._array_bytes = self._copied = self._looked = self._keys = 0
        self._seconds = 0.0
        self._kinds: set[object] = set()

    def beside(self, externals: Sequence[object]) -> None:
        """Adds the arrays beside a document that is about to be read."""
        arrays = (each for each in externals if type(each) is np.ndarray)
        self._array_bytes += sum(array.nbytes for array in arrays)

    def count(self, items: list[Any] | dict[Any, Any]) -> None:
        """Counts the items of a container that is complete.

        Raises:
            DecodeError: There are too many items.
        """
        self._elements += len(items)
        if self._elements > self._limits.elements:
            raise too_many_elements(self._limits)

    def fill(self, add: Callable[[Iterable[Any]], object], keys: Sequence[Any]) -> None:
        """Adds keys to a set or dict, a few at a time.

        Args:
            add: Adds some of the keys.
            keys: All keys, or pairs that begin with them.

        Raises:
            DecodeError: The keys collide.
        """
        for start in range(0, len(keys), FEW_KEYS):
            began = self._clock()
            some = keys[start : start + FEW_KEYS]
            add(some)
            self._keys += len(some)
            self._seconds += self._clock() - began
            if self._seconds > SECONDS_AT_LEAST + self._keys * SECONDS_PER_KEY:
                raise DecodeError(
                    f"keys that collide: {self._keys} of a set or dict took {self._seconds:.2f} s"
                )

    def copies(self, array: np.ndarray[Any, Any]) -> None:
        """Counts the bytes of an array beside the document that are copied into a value.

        Raises:
            DecodeError: Too many bytes are copied.
        """
        self._copied += array.nbytes
        if self._copied > COPIES * self._array_bytes + BYTES_AT_LEAST:
            raise DecodeError("an array whose bytes are copied into too many values")

    def looks(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        """Counts the bytes of arrays beside the document that are read from end to end.

        Raises:
            DecodeError: Too many bytes are read.
        """
        self._looked += sum(array.nbytes for array in arrays)
        if self._looked > LOOKS * self._array_bytes + BYTES_AT_LEAST:
            raise DecodeError("an array that is part of too many sparse arrays")

    def kind(self, names: object) -> None:
        """Counts the kinds of named tuples for which a class is made here.

        Raises:
            DecodeError: There are too many.
        """
        self._kinds.add(names)
        if len(self._kinds) > KINDS:
            raise DecodeError(f"more than {KINDS} kinds of named tuples without a class")


# -- the interface between the codec and the types: a document in the making, or being read ------

MARKERS = {tag: msgpack.ExtType(tag, b"") for tag in Tag}  # the first item of a compound


class Refused(Exception):
    """Says that a value cannot travel; becomes an EncodeError once its whole path is known.

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
        """Converts several values; `step` returns the path's step for an index."""

    def lift(self, value: object) -> object:
        """Puts an object beside the document and returns the reference to it."""


class Reading(Protocol):
    """A document being read, as the decoders of single types see it."""

    @property
    def allowance(self) -> Allowance:
        """The budget for costs of the document beyond its own size."""

    def external(self, index: int) -> object:
        """Returns an external of the document."""

    def function(self, name: str) -> object:
        """Returns a function that was sent by reference, if the policy allows it here."""

    def exception(self, items: list[Any]) -> BaseException:
        """Returns an exception that was sent as a value."""


# -- the head of a document, read without the rest: nothing is built and no code runs ------------

# The most bytes that are read: twice the longest name, in UTF-8, and the path of a script.
HEAD_BYTES = 12 * 1024
HEAD_ITEMS = 64  # of a list or dict in it; msgpack reserves the length that a header announces


def read_head(document: bytes, end: str) -> dict[str, Any]:
    """Returns the entries of a dict up to one key, without decoding tags.

    Args:
        document: A document from `encode`, or from anyone.
        end: The key before which reading stops.

    Returns:
        The entries as msgpack reads them; tagged values stay tagged.

    Raises:
        DecodeError: The document is no dict, or has no such key, or too much stands before it.

    Example:
        >>> from telegrad.wire import encode
        >>> read_head(encode({"func": "math:sqrt", "args": [2.0]}).document, "args")
        {'func': 'math:sqrt'}
    """
    unpacker = msgpack.Unpacker(
        max_buffer_size=HEAD_BYTES,
        max_array_len=HEAD_ITEMS,
        max_map_len=HEAD_ITEMS,
        unicode_errors="surrogatepass",
    )
    head: dict[str, Any] = {}
    try:
        unpacker.feed(document[:HEAD_BYTES])
        for _ in range(unpacker.read_map_header()):
            key = unpacker.unpack()
            if key == end:
                return head
            if type(key) is not str:
                break
            head[key] = unpacker.unpack()
    except Exception as error:  # msgpack raises various errors for garbage
        raise DecodeError(f"a document that cannot be read as far as {end!r}: {error}") from error
    raise DecodeError(f"a document without {end!r}")
