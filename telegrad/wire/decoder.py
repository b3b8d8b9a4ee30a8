"""Documents to values. Imports nothing, and runs no user code except registered decoders.

msgpack builds the containers. Its hooks replace each tagged value in place as soon as it is
complete, so a document without tags costs no more than msgpack itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, final

import msgpack

from telegrad.errors import CallRefusedError, DecodeError, FunctionNotFoundError
from telegrad.wire.document import DEFAULT_LIMITS, Allowance, DecodeLimits, Reading, Tag, unpack
from telegrad.wire.exceptions import unpack_exception
from telegrad.wire.external import rebuild
from telegrad.wire.registry import registered_type_by_name
from telegrad.wire.values import array_types, builtin_types, class_types, named_tuples

Functions: TypeAlias = Callable[[str], object]


MAX_NESTING = 8  # documents inside the exceptions of documents
_MARKER_BYTES = b"\xc7\x00"  # an extension of no payload; a marker has no other form
_NOTHING = msgpack.packb(None)  # the value of many calls
_LOCATED_BYTES = 2**20  # the largest document that is read again to locate an error
_LONGEST_PATH = 1000  # characters; keys may be as long as the document


def decode(
    document: bytes,
    externals: Sequence[object] = (),
    *,
    functions: Functions | None = None,
    limits: DecodeLimits = DEFAULT_LIMITS,
    nesting: int = 0,
    allowance: Allowance | None = None,
) -> Any:
    """Decodes a document.

    Args:
        document: A document from `encode`, or from anyone.
        externals: The externals beside it, in order.
        functions: Returns the function of a name, or raises CallRefusedError or
            FunctionNotFoundError; None refuses all functions.
        limits: The limits on the resources that the document may use here.
        nesting: The number of exceptions that it is inside of.
        allowance: The allowance of the document that it is a part of.

    Returns:
        The value; nothing else refers to its containers.

    Raises:
        DecodeError: The bytes are no document, or name something that may not be built here; the
            message states the error and its place.

    Example:
        >>> from telegrad.wire import encode
        >>> decode(encode((1, {2: {3}})).document)
        (1, {2: {3}})
    """
    if document == _NOTHING:
        return None
    if nesting > MAX_NESTING:
        raise DecodeError(f"exceptions inside exceptions, deeper than {MAX_NESTING}")
    reader = _Document(externals, functions, nesting, limits, allowance)
    try:
        # without the bytes of a marker there is no compound, and no array has to be checked
        marked = (
            _MARKER_BYTES[0] in document and _MARKER_BYTES in document
        )  # the search for a single byte is quick
        array = reader.array if marked else None
        if len(document) > limits.elements or allowance is not None:
            value = _unpack_counted(document, reader, array)
        else:
            value = unpack(document, limits, extension=reader.extension, array=array)
    except Exception as error:  # msgpack or a constructor, because of garbage
        if nesting:  # the exception around it has words in its place; nobody reads these
            raise DecodeError(_words(error)) from error
        raise _located(error, document, reader) from error
    if reader.open_markers:
        raise DecodeError("a document with a tag that stands for no value")
    return value


def decode_exception(plain: object, *, functions: Functions | None = None) -> BaseException:
    """Rebuilds an exception from the output of `encode_exception`.

    It gets its own class if that is imported here and derives from Exception; else it becomes a
    RemoteError.

    Raises:
        DecodeError: `plain` is not a description of an exception.
    """
    return unpack_exception(plain, _Document((), functions, 0, DEFAULT_LIMITS, None).part)


def _unpack_counted(
    document: bytes, reader: _Document, array: Callable[[list[Any]], object] | None
) -> Any:
    """Reads a document that may have too many elements, as it has more bytes than the limit."""
    count = reader.allowance.count

    def counted_array(items: list[Any]) -> object:
        count(items)
        return items if array is None else array(items)

    def counted_map(items: dict[Any, Any]) -> object:
        count(items)
        return items

    return unpack(
        document,
        reader.limits,
        extension=reader.extension,
        array=counted_array,
        mapping=counted_map,
    )


@final
class _Marker:
    """Stands for the first item of a compound while it is read."""

    __slots__ = ("tag",)

    def __init__(self, tag: Tag) -> None:
        self.tag = tag


_COMPOUNDS: dict[Tag, Callable[[Reading, list[Any]], object]] = {
    **builtin_types.COMPOUND_DECODERS,
    **array_types.COMPOUND_DECODERS,
    **class_types.COMPOUND_DECODERS,
    **named_tuples.COMPOUND_DECODERS,
    Tag.EXCEPTION: lambda reading, items: reading.exception(items),
    Tag.REGISTERED: lambda reading, items: _decode_registered(items),
}
_LEAVES: dict[int, Callable[[Reading, bytes], object]] = {
    int(tag): decoder for tag, decoder in builtin_types.LEAF_DECODERS.items()
}
_MARKERS: dict[int, _Marker] = {tag: _Marker(tag) for tag in _COMPOUNDS}


@final
class _Document:
    """One document being read."""

    __slots__ = (
        "_allowance", "_externals", "_functions", "_functions_found", "_nesting", "limits",
        "open_markers",
    )  # fmt: skip

    def __init__(
        self,
        externals: Sequence[object],
        functions: Functions | None,
        nesting: int,
        limits: DecodeLimits,
        allowance: Allowance | None,
    ) -> None:
        self.limits = limits
        self.open_markers = 0
        self._externals = externals
        self._functions = functions
        self._functions_found: dict[str, object] = {}  # functions or errors; each is asked for once
        self._nesting = nesting
        self._allowance = allowance
        if allowance is not None:
            allowance.beside(externals)

    @property
    def allowance(self) -> Allowance:
        """The budget for costs of the document beyond its own size; made on first use."""
        if self._allowance is None:
            self._allowance = Allowance(self.limits)
            self._allowance.beside(self._externals)
        return self._allowance

    def extension(self, code: int, payload: bytes) -> object:
        """Reads a leaf, or the marker that begins a compound."""
        if (leaf := _LEAVES.get(code)) is not None:
            return leaf(self, payload)
        marker = _MARKERS.get(code)
        if marker is None or payload:
            raise DecodeError(f"an unknown tag {code}")
        self.open_markers += 1
        return marker

    def array(self, items: list[Any]) -> object:
        """Replaces a complete array by the value of the compound that it is, if it is one."""
        if items and type(items[0]) is _Marker:
            self.open_markers -= 1
            return _COMPOUNDS[items[0].tag](self, items[1:])
        return items

    def external(self, index: int) -> object:
        """Returns an external of the document."""
        if index >= len(self._externals):
            raise DecodeError(f"external {index} of {len(self._externals)}")
        return self._externals[index]

    def function(self, name: str) -> object:
        """Returns a function that was sent by reference, if the policy allows it here."""
        found = self._functions_found.get(name)
        if found is None:
            found = self._functions_found[name] = self._find(name)
        if type(found) is DecodeError:
            raise found
        return found

    def _find(self, name: str) -> object:
        if self._functions is None:
            return DecodeError(f"{name[:200]!r}: no function may stand in this message")
        try:
            return self._functions(name)
        except (CallRefusedError, FunctionNotFoundError) as error:
            refused = DecodeError(str(error))
            refused.__cause__ = error
            return refused

    def exception(self, items: list[Any]) -> BaseException:
        """Returns an exception that was sent as a value."""
        (plain,) = items
        return unpack_exception(plain, self.part)

    def part(self, part: object) -> object:
        """Reads a document inside an exception: `[document, externals, buffers]`."""
        if type(part) is not list or len(part) != 3:
            raise DecodeError("not a part of an exception")
        document, metadata, buffers = part
        if not (type(document) is type(metadata) is bytes and type(buffers) is list):
            raise DecodeError("not a part of an exception")
        if any(type(each) is not bytes for each in buffers):
            raise DecodeError("a part of an exception whose buffers are no bytes")
        externals = rebuild(metadata, buffers, limits=self.limits)
        return decode(
            document,
            externals,
            functions=self._functions,
            limits=self.limits,
            nesting=self._nesting + 1,
            allowance=self.allowance,
        )


def _decode_registered(items: list[Any]) -> object:
    name, plain = items
    if type(name) is not str:
        raise DecodeError("a registered type that is not named by a string")
    registered = registered_type_by_name(name)
    if registered is None:
        raise DecodeError(f"no type {name[:200]!r} is registered here; rpc.register_type adds it")
    try:
        return registered.decode(plain)
    except Exception as error:  # the user's function
        raise DecodeError(f"the registered decode of {name} failed: {error!r}") from error


# -- the place of an error -----------------------------------------------------------------------


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, DecodeError) else f"{type(error).__name__}: {error}"


def _located(error: Exception, document: bytes, reader: _Document) -> DecodeError:
    """Returns the error with its place; for that it reads the document again, keeping paths."""
    words = _words(error)
    if len(document) > _LOCATED_BYTES:
        return DecodeError(words)
    try:
        tree = unpack(document, reader.limits)
    except DecodeError:  # too large, or too deep
        return DecodeError(words)
    except Exception:  # not even msgpack
        return DecodeError(f"not a document ({len(document)} bytes): {words}")
    path: list[str] = []
    try:
        _rebuild(tree, reader, path)
    except Exception:  # the same error again, now with the path to it
        where = "".join(reversed(path))[:_LONGEST_PATH]
        return DecodeError(f"{words} (at value{where})" if where else words)
    return DecodeError(words)


def _rebuild(tree: Any, reader: _Document, path: list[str]) -> object:
    if type(tree) is msgpack.ExtType:
        return reader.extension(tree.code, tree.data)
    if type(tree) is dict:
        return {
            key: _step(each, reader, path, partial("[{!r}]".format, key))
            for key, each in tree.items()
        }
    if type(tree) is not list:
        return tree
    tag = tree[0].code if tree and type(tree[0]) is msgpack.ExtType else 0
    items = [_step(each, reader, path, partial(_name, tree, i, tag)) for i, each in enumerate(tree)]
    return reader.array(items)


def _step(tree: Any, reader: _Document, path: list[str], step: Callable[[], str]) -> object:
    try:
        return _rebuild(tree, reader, path)
    except Exception:
        with contextlib.suppress(Exception):  # a number may be too long to be written
            path.append(step())
        raise


def _name(tree: list[Any], i: int, tag: int) -> str:
    if tag == Tag.DATACLASS:
        return f".{tree[i - 1]}" if i > 1 else ""
    if tag == Tag.DEFAULT_DICT:
        if i == 1:
            return ".default_factory"
        return f"[{tree[i - 1]!r}]" if i % 2 else ".keys()"
    if tag in (Tag.DICT, Tag.ORDERED_DICT, Tag.COUNTER):
        return f"[{tree[i - 1]!r}]" if i and i % 2 == 0 else ".keys()"
    if tag == Tag.NAMED_TUPLE:
        return f"[{i - 2}]" if i > 1 else ""
    if tag == Tag.STRUCT:
        return f".{tree[3][i - 4]}" if i > 3 else ""
    return f"[{i - 1}]" if tag in _MARKERS else f"[{i}]"
