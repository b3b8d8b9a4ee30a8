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

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, unique
from functools import lru_cache
from typing import Any, Final, Protocol, final

import msgpack
import numpy as np

from telegrad.errors import DecodeError

__all__ = [
    "DEFAULT_LIMITS",
    "FEW_KEYS",
    "MARKERS",
    "MAX_ENVELOPE_BYTES",
    "SMALL_LIMITS",
    "Allowance",
    "Conversion",
    "DecodeLimits",
    "Reading",
    "Refused",
    "Tag",
    "is_small",
    "read_head",
    "too_many_elements",
    "unpack",
]


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


# -- what a message that arrives may ask of its reader -------------------------------------------

# More than any array of one host's memory. Pages are taken as bytes arrive, not when announced.
MAX_ENVELOPE_BYTES: Final = 64 * 2**30


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """Bounds of one message; what exceeds them is refused before memory is taken for it.

    Attributes:
        document_bytes: Of a document. Array bytes are never inside one.
        depth: Levels of lists and dicts in each other.
        elements: Items of all lists and dicts of a document together.
        message_bytes: Of a message as a whole, with its arrays.
    """

    # Ten million floats with room to spare; what is larger is better an array, which goes beside.
    document_bytes: int = 256 * 2**20
    # Twice the 128 levels that the encoder writes at most; msgpack itself reads 1024.
    depth: int = 256
    # An empty list takes 64 bytes for one on the wire: 640 MB are the most that a document becomes.
    elements: int = 10_000_000
    message_bytes: int = MAX_ENVELOPE_BYTES


DEFAULT_LIMITS: Final = DecodeLimits()
# Of telegrad's own messages that are read on the loop.
SMALL_LIMITS: Final = DecodeLimits(document_bytes=2**10, depth=8, elements=100)


# -- msgpack with bounds: lengths by the bytes that are there, depth, and items in all -----------
#
# msgpack reserves what an array's header announces before it reads the items, at every level. So a
# document is first walked through without building it; once it is known to be there to the end, what
# all its headers reserve together is bounded by its size.

MSGPACK_DEPTH: Final = 1024  # levels that msgpack's own reader takes
# Bytes. Below, what lying lengths can reserve is too little to matter, and nothing is so deep that
# the default limit would tell.
UNCHECKED_SIZE: Final = 256
_AS_DATETIMES: Final = 3  # telegrad writes its own timestamps, other languages what they have


def is_small(size: int, limits: DecodeLimits) -> bool:
    """Tells whether a document of so many bytes is within the limits, whatever is in it."""
    return (
        size <= UNCHECKED_SIZE
        and size <= limits.depth
        and size <= limits.elements
        and size <= limits.document_bytes
    )


def _check(document: bytes, limits: DecodeLimits) -> None:
    """Walks through a document without building it."""
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
    unpacker.feed(b"\x91" * levels)  # a list around a list: what is left is what it may take
    unpacker.feed(document)
    try:
        unpacker.skip()
    except msgpack.StackError as error:
        raise DecodeError(
            f"a document nested deeper than {limits.depth} levels (Limits.depth)"
        ) from error


def unpack(
    document: bytes,
    limits: DecodeLimits,
    *,
    extension: Callable[[int, bytes], object] = msgpack.ExtType,
    array: Callable[[list[Any]], object] | None = None,
    mapping: Callable[[dict[Any, Any]], object] | None = None,
) -> Any:
    """Builds a document, once it is known to be one that the limits allow.

    Args:
        document: What to read.
        limits: Its bounds.
        extension: Makes something of an extension's code and payload.
        array: Takes the place of each array, innermost first.
        mapping: Takes the place of each map.

    Raises:
        DecodeError: It is larger or deeper than the limits allow.
        Exception: Whatever msgpack makes of garbage, and whatever the hooks raise.
    """
    size = len(document)
    if is_small(size, limits):
        return msgpack.unpackb(
            document,
            ext_hook=extension,
            list_hook=array,
            object_hook=mapping,
            unicode_errors="surrogatepass",
            timestamp=_AS_DATETIMES,
        )
    _check(document, limits)
    items = -1 if size <= limits.elements else limits.elements  # -1: as the bytes that are there
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
        if long and limits.elements < len(document):
            raise too_many_elements(limits) from error
        raise


def too_many_elements(limits: DecodeLimits) -> DecodeError:
    """Returns the error of a document whose containers hold too much."""
    return DecodeError(
        f"a document of more than {limits.elements} elements; send arrays in place of long lists, "
        "or raise Limits.elements"
    )


# -- what one document may cost its reader beyond its own size: items, colliding keys, copied bytes --

# Keys that collide take quadratic time, and whoever sends numbers chooses where they fall. Honest
# ones take 0.1 us each, 1 us where a class of the user's hashes them: a hundred and ten times less.
SECONDS_PER_KEY: Final = 10e-6
SECONDS_AT_LEAST: Final = 0.25  # of the processor, for one document
FEW_KEYS: Final = 256  # at once; if all of them collide, that is half a millisecond

# Times the bytes of all arrays beside the document. Big bytes are copied out of theirs once; sparse
# arrays read their parts and copy some, and many of them may share one array of indices.
COPIES: Final = 8
LOOKS: Final = 100
BYTES_AT_LEAST: Final = 2**20


@final
class Allowance:
    """Counts what is spent on one document, those inside its exceptions included.

    Args:
        limits: Of the message.
        clock: The processor time of this thread, in seconds.
    """

    __slots__ = ("_array_bytes", "_clock", "_copied", "_elements", "_keys", "_limits", "_looked",
                 "_seconds")  # fmt: skip

    def __init__(self, limits: DecodeLimits, clock: Callable[[], float] = time.thread_time) -> None:
        self._limits = limits
        self._clock = clock
        self._elements = self._array_bytes = self._copied = self._looked = self._keys = 0
        self._seconds = 0.0

    def beside(self, externals: Sequence[object]) -> None:
        """Hears of what stands beside a document that is to be read."""
        arrays = (each for each in externals if type(each) is np.ndarray)
        self._array_bytes += sum(array.nbytes for array in arrays)

    def count(self, items: list[Any] | dict[Any, Any]) -> None:
        """Hears of a container that is complete.

        Raises:
            DecodeError: Its items are too many.
        """
        self._elements += len(items)
        if self._elements > self._limits.elements:
            raise too_many_elements(self._limits)

    def fill(self, add: Callable[[Iterable[Any]], object], keys: Sequence[Any]) -> None:
        """Adds keys to a set or dict, a few at a time.

        Args:
            add: Takes some of them.
            keys: All of them, or pairs that begin with them.

        Raises:
            DecodeError: They collide.
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
        """Hears that the bytes of an array beside the document are copied into a value.

        Raises:
            DecodeError: That happens too often.
        """
        self._copied += array.nbytes
        if self._copied > COPIES * self._array_bytes + BYTES_AT_LEAST:
            raise DecodeError("an array that stands for the bytes of many values")

    def looks(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        """Hears that arrays beside the document are read from one end to the other.

        Raises:
            DecodeError: That happens too often.
        """
        self._looked += sum(array.nbytes for array in arrays)
        if self._looked > LOOKS * self._array_bytes + BYTES_AT_LEAST:
            raise DecodeError("an array that is part of too many sparse arrays")


# -- what the files of the codec share: the two views of a document in the making or reading -----

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


# -- what a document says first, read without the rest: nothing is built and no code runs --------
#
# Calls of one function begin with the same bytes, and what is read of them is the same: msgpack reads
# from the front, and nothing that follows changes it. So heads are read once, and kept.

# Of a document that is looked at: twice the longest name, in UTF-8, and the path of a script.
HEAD_BYTES = 12 * 1024
HEAD_ITEMS = 64  # of a list or dict in it; msgpack reserves what a header announces
KEPT_HEADS = 1000  # functions, scripts; reading one takes 1.5 us, finding it 0.3
KEPT_BYTES = 512  # of each; longer ones are read again


def read_head(document: bytes, end: str) -> dict[str, Any]:
    """Returns the entries of a dict up to one key, as they stand in the document.

    Args:
        document: From `encode`, or from anyone.
        end: The key before which it stops.

    Returns:
        What msgpack makes of them; what is tagged stays so.

    Raises:
        DecodeError: The document is no dict, or has no such key, or too much stands before it.

    Example:
        >>> from telegrad.wire import encode
        >>> read_head(encode({"func": "math:sqrt", "args": [2.0]}).document, "args")
        {'func': 'math:sqrt'}
    """
    key = _packed(end)
    at = document.find(key, 0, KEPT_BYTES)
    if at > 0:
        try:
            return _read_kept(document[: at + len(key)], end).copy()
        except DecodeError:
            pass  # the key stands inside something else there
    return _read(document, end)


@lru_cache
def _packed(key: str) -> bytes:
    packed: bytes = msgpack.packb(key)
    return packed


@lru_cache(KEPT_HEADS)
def _read_kept(head: bytes, end: str) -> dict[str, Any]:
    return _read(head, end)


def _read(document: bytes, end: str) -> dict[str, Any]:
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
    except Exception as error:  # whatever garbage makes msgpack raise
        raise DecodeError(f"a document that cannot be read as far as {end!r}: {error}") from error
    raise DecodeError(f"a document without {end!r}")
