"""Documents to values. Runs no code of users' (but registered decoders), imports nothing.

msgpack builds the containers; its hooks replace each tagged value in place as soon as it is
complete, so a document without tags costs nothing more than msgpack itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import msgpack

from telegrad.errors import CallRefusedError, DecodeError, FunctionNotFoundError
from telegrad.wire import array_types, builtin_types, class_types, sparse_types
from telegrad.wire.callable_policy import CallablePolicy
from telegrad.wire.conversion import Reading
from telegrad.wire.exceptions import unpack_exception
from telegrad.wire.external import rebuild
from telegrad.wire.registry import registered_type_by_name
from telegrad.wire.tags import Tag

__all__ = ["decode", "decode_exception"]

Functions: TypeAlias = Callable[[str], object]

MAX_NESTING = 8  # documents inside the exceptions of documents
_MARKER_BYTES = b"\xc7\x00"  # an extension of no payload; a marker has no other form
_CHECKED_SIZE = 4096  # bytes; below, what a lying length can reserve is too little to matter


def decode(
    document: bytes, externals: Sequence[object] = (), *, functions: Functions | None = None
) -> Any:
    """Decodes a document.

    Args:
        document: From `encode`, or from anyone.
        externals: What stands beside it, in order.
        functions: Returns the function of a name, or raises CallRefusedError or
            FunctionNotFoundError; by default what a `CallablePolicy("project")` allows.

    Returns:
        The value; nothing else refers to its containers.

    Raises:
        DecodeError: The bytes are no document, or name what may not be built here; says what and
            where.

    Example:
        >>> from telegrad.wire import encode
        >>> decode(encode((1, {2: {3}})).document)
        (1, {2: {3}})
    """
    return _decode(document, externals, functions, 0)


def decode_exception(plain: object, *, functions: Functions | None = None) -> BaseException:
    """Rebuilds an exception from what `encode_exception` made of it.

    It is of its own class where that is imported here and derives from Exception, else a
    RemoteError.

    Raises:
        DecodeError: It is no description of an exception.
    """
    return unpack_exception(plain, _Document((), functions, 0).part)


def _decode(
    document: bytes, externals: Sequence[object], functions: Functions | None, nesting: int
) -> Any:
    if nesting > MAX_NESTING:
        raise DecodeError(f"exceptions inside exceptions, deeper than {MAX_NESTING}")
    reader = _Document(externals, functions, nesting)
    try:
        _check_lengths(document)
        # without the bytes of a marker there is no compound, and no array needs to be looked at
        array = reader.array if _MARKER_BYTES in document else None
        value = _unpack(document, reader.extension, array)
    except Exception as error:  # whatever garbage makes msgpack or a constructor raise
        raise _located(error, document, reader) from error
    if reader.open_markers:
        raise DecodeError("a document with a tag that stands for no value")
    return value


def _check_lengths(document: bytes) -> None:
    """Walks a big document once without building it.

    msgpack reserves what an array's header announces before it reads the items, at every level;
    once the whole document is known to be there, that is bounded by its size.
    """
    if len(document) > _CHECKED_SIZE:
        unpacker = msgpack.Unpacker(max_buffer_size=len(document), **_limits(document))
        unpacker.feed(document)
        unpacker.skip()


def _limits(document: bytes) -> dict[str, int]:
    size = len(document)
    return {
        "max_str_len": size,
        "max_bin_len": size,
        "max_array_len": size,
        "max_map_len": size,
        "max_ext_len": size,
    }


def _unpack(document: bytes, extension: Any, array: Any) -> Any:
    return msgpack.unpackb(
        document,
        ext_hook=extension,
        list_hook=array,
        strict_map_key=True,
        unicode_errors="surrogatepass",
        timestamp=0,
        **_limits(document),
    )


@final
class _Marker:
    """The first item of a compound, while it is being read."""

    __slots__ = ("tag",)

    def __init__(self, tag: Tag) -> None:
        self.tag = tag


_COMPOUNDS: dict[Tag, Callable[[Reading, list[Any]], object]] = {
    **builtin_types.COMPOUND_DECODERS,
    **array_types.COMPOUND_DECODERS,
    **class_types.COMPOUND_DECODERS,
    **sparse_types.COMPOUND_DECODERS,
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

    __slots__ = ("_externals", "_functions", "_nesting", "open_markers")

    def __init__(
        self, externals: Sequence[object], functions: Functions | None, nesting: int
    ) -> None:
        self._externals = externals
        self._functions = functions
        self._nesting = nesting
        self.open_markers = 0

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
        """Replaces a complete array by the compound that it is, if it is one."""
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
        """Returns a function that is sent by reference, if it may be had here."""
        try:
            return (self._functions or CallablePolicy().resolve)(name)
        except (CallRefusedError, FunctionNotFoundError) as error:
            raise DecodeError(str(error)) from error

    def exception(self, items: list[Any]) -> BaseException:
        """Returns an exception that is sent as a value."""
        (plain,) = items
        return unpack_exception(plain, self.part)

    def part(self, part: object) -> object:
        """Reads a document inside an exception: `[document, externals, buffers]`."""
        if type(part) is not list or [type(each) for each in part] != [bytes, bytes, list]:
            raise DecodeError("not a part of an exception")
        document, metadata, buffers = part
        if any(type(each) is not bytes for each in buffers):
            raise DecodeError("a part of an exception whose buffers are no bytes")
        externals = rebuild(metadata, buffers)
        return _decode(document, externals, self._functions, self._nesting + 1)


def _decode_registered(items: list[Any]) -> object:
    name, plain = items
    registered = registered_type_by_name(name) if type(name) is str else None
    if registered is None:
        raise DecodeError(
            f"no type {str(name)[:200]!r} is registered here; rpc.register_type adds it"
        )
    try:
        return registered.decode(plain)
    except Exception as error:  # the user's function
        raise DecodeError(f"the registered decode of {name} failed: {error!r}") from error


# -- where it went wrong -----------------------------------------------------------------------


@final
class _Tagged(list[Any]):
    """A leaf or a compound as it stands in the document."""


def _located(error: Exception, document: bytes, reader: _Document) -> DecodeError:
    """Says where; reads the document again, slowly, as paths are not kept while all is well."""
    words = str(error) if isinstance(error, DecodeError) else f"{type(error).__name__}: {error}"
    try:
        tree = _unpack(document, lambda code, payload: msgpack.ExtType(code, payload), None)
    except Exception:  # not even msgpack
        return DecodeError(f"not a document ({len(document)} bytes): {words}")
    path: list[str] = []
    try:
        _rebuild(tree, reader, path)
    except Exception:  # the same error once more, with the path to it
        where = "".join(reversed(path))
        return DecodeError(f"{words} (at value{where})" if where else words)
    return DecodeError(words)


def _rebuild(tree: Any, reader: _Document, path: list[str]) -> object:
    if type(tree) is msgpack.ExtType:
        return reader.extension(tree.code, tree.data)
    if type(tree) is dict:
        return {key: _step(each, reader, path, f"[{key!r}]") for key, each in tree.items()}
    if type(tree) is not list:
        return tree
    tag = tree[0].code if tree and type(tree[0]) is msgpack.ExtType else 0
    items = [_step(each, reader, path, _name(tree, i, tag)) for i, each in enumerate(tree)]
    return reader.array(items)


def _step(tree: Any, reader: _Document, path: list[str], step: str) -> object:
    try:
        return _rebuild(tree, reader, path)
    except Exception:
        path.append(step)
        raise


def _name(tree: list[Any], i: int, tag: int) -> str:
    if tag == Tag.DATACLASS:
        return f".{tree[i - 1]}" if i > 1 else ""
    if tag in (Tag.DICT, Tag.ORDERED_DICT):
        return f"[{tree[i - 1]!r}]" if i and i % 2 == 0 else ".keys()"
    if tag == Tag.NAMED_TUPLE:
        return f"[{i - 2}]" if i > 1 else ""
    return f"[{i - 1}]" if tag in _MARKERS else f"[{i}]"
