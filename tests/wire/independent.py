"""Reads documents and arrays by docs/wire-format.md alone: no line of telegrad is run here.

Of msgpack only what every language has of it is used: an extension is a code and its bytes. Values
come out in the form of the published vectors: what JSON has as it is, all else as an object with
one key that begins with `$`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack


class Ext(NamedTuple):
    code: int
    payload: bytes


def unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=Ext, unicode_errors="surrogatepass")


def document(data: bytes) -> Any:
    return value(unpack(data))


def value(tree: Any) -> Any:
    """Returns the published form of what msgpack gave."""
    if isinstance(tree, Ext):
        name, read = LEAVES[tree.code]
        return {name: read(tree.payload)}
    if isinstance(tree, bytes):
        return {"$bytes": tree.hex()}
    if isinstance(tree, int) and not isinstance(tree, bool):
        return tree if abs(tree) < 2**53 else {"$int": str(tree)}
    if isinstance(tree, float) and not math.isfinite(tree):
        return {"$float": str(tree)}
    if isinstance(tree, dict):
        return {key: value(each) for key, each in tree.items()}
    if isinstance(tree, list) and tree and isinstance(tree[0], Ext) and tree[0].code >= 32:
        name, shape = COMPOUNDS[tree[0].code]
        assert tree[0].payload == b""
        return {name: shape(tree[1:])}
    return [value(each) for each in tree] if isinstance(tree, list) else tree


def values(items: list[Any]) -> list[Any]:
    return [value(each) for each in items]


def pairs(items: list[Any]) -> list[Any]:
    return [list(pair) for pair in zip(values(items[::2]), values(items[1::2]), strict=True)]


def scalar(items: list[Any]) -> dict[str, Any]:
    dtype, data = items
    return {"dtype": dtype, "item": item_reader(dtype)[1](data)}


def exception(body: dict[str, Any]) -> dict[str, Any]:
    """Returns the description of an exception, whose parts are documents of their own."""
    return {
        **body,
        "args": [[words, part(each)] for words, each in body["args"]],
        "attributes": {name: part(each) for name, each in body["attributes"].items()},
        "cause": None if body["cause"] is None else exception(body["cause"]),
    }


def part(packed: Any) -> Any:
    if packed is None:
        return None
    inner, metadata, buffers = packed
    return {"value": document(inner), "objects": externals(metadata, buffers)}


LEAVES: dict[int, tuple[str, Callable[[bytes], Any]]] = {
    1: ("$external", lambda p: struct.unpack(">I", p)[0]),
    2: ("$int", lambda p: str(int.from_bytes(p, "little", signed=True))),
    3: ("$complex", lambda p: values(list(struct.unpack("<dd", p)))),
    4: ("$ellipsis", lambda p: None),
    5: ("$decimal", lambda p: p.decode("ascii")),
    6: ("$uuid", lambda p: p.hex()),
    7: ("$path", lambda p: [p[:1].decode(), p[1:].decode("utf-8", "surrogatepass")]),
    8: ("$function", bytes.decode),
    9: ("$zone", bytes.decode),
    10: ("$bytearray", bytes.hex),
}

COMPOUNDS: dict[int, tuple[str, Callable[[list[Any]], Any]]] = {
    32: ("$tuple", values),
    33: ("$set", values),
    34: ("$frozenset", values),
    35: ("$dict", pairs),
    36: ("$slice", values),
    37: ("$range", values),
    38: ("$date", values),
    39: ("$time", values),
    40: ("$datetime", values),
    41: ("$timedelta", values),
    42: ("$timezone", values),
    43: ("$ordered_dict", pairs),
    44: ("$deque", values),
    45: ("$big_bytes", values),
    46: ("$big_bytearray", values),
    47: ("$counter", pairs),
    48: ("$enum", values),
    49: ("$flag", values),
    50: ("$dataclass", lambda items: [items[0], dict(pairs(items[1:]))]),
    51: ("$named_tuple", lambda items: [items[0], values(items[1:])]),
    52: ("$exception", lambda items: exception(items[0])),
    53: ("$registered", values),
    54: ("$default_dict", lambda items: [value(items[0]), *pairs(items[1:])]),
    56: ("$dtype", lambda items: items[0]),
    57: ("$scalar", scalar),
    58: ("$sparse", values),
    59: ("$struct", values),
}

# -- externals ------------------------------------------------------------------------------------


def externals(metadata: bytes, buffers: list[bytes]) -> list[Any]:
    """Returns what stands beside a document: arrays, and what else is known of by name."""
    found: list[Any] = []
    left = list(buffers)
    for name, meta, count in unpack(metadata) if metadata else []:
        own, left = left[:count], left[count:]
        if name in ("array", "cupy") or name.startswith("cuda:"):
            found.append({"$array": array(meta, own[0])})
        elif name == "tensor":
            found.append({"$tensor": array(meta[1], own[0])})
        elif name == "row_sparse":
            rows, values, shape = meta
            parts = [array(rows[1], own[0]), array(values[1], own[1])]
            found.append({"$row_sparse": [*parts, shape]})
        else:
            found.append({f"${name}": value(meta)})
    assert not left
    return found


def array(meta: list[Any], data: bytes) -> dict[str, Any]:
    """Returns an array with its items in the order of C, whatever the order of its bytes."""
    dtype, order, *shape = meta
    size, read = item_reader(dtype)
    count = math.prod(shape)
    assert len(data) == count * size
    strides = [math.prod(shape[i + 1 :] if order == "C" else shape[:i]) for i in range(len(shape))]
    items = []
    for place in range(count):
        at = 0
        for n, stride in reversed(list(zip(shape, strides, strict=True))):
            place, index = divmod(place, n)
            at += index * stride
        items.append(read(data[at * size : (at + 1) * size]))
    return {"dtype": dtype, "order": order, "shape": shape, "items": items}


def item_reader(dtype: Any) -> tuple[int, Callable[[bytes], Any]]:
    """Returns the bytes of one item, and what reads them."""
    if isinstance(dtype, str):
        return simple_reader(dtype)
    kind, *rest = dtype
    if kind == "struct":
        size, _, members = rest
        readers = [(name, at, *item_reader(inner)) for name, _, at, inner in members]
        return size, lambda d: {name: read(d[at : at + n]) for name, at, n, read in readers}
    if kind == "sub":
        size, read = item_reader(rest[0])
        count = math.prod(rest[1])
        return size * count, lambda d: [read(d[i * size : (i + 1) * size]) for i in range(count)]
    if rest == ["bfloat16"]:
        return 2, lambda d: value(struct.unpack("<f", b"\0\0" + d)[0])
    return 1, lambda d: {"$bytes": d.hex()}


def simple_reader(dtype: str) -> tuple[int, Callable[[bytes], Any]]:
    byte_order, kind, size = dtype[0].replace("|", "<"), dtype[1], int(dtype[2:].partition("[")[0])
    if kind == "U":
        encoding = "utf-32-le" if byte_order == "<" else "utf-32-be"
        return size * 4, lambda d: d.decode(encoding).rstrip("\0")
    if kind in "SV":
        return size, lambda d: {"$bytes": d.hex()}
    if kind == "c":
        code = f"{byte_order}2{'f' if size == 8 else 'd'}"
        return size, lambda d: {"$complex": values(list(struct.unpack(code, d)))}
    letters = {"b": "?", "i": " bh i   q", "u": " BH I   Q", "f": "  e f   d", "m": 8 * " " + "q"}
    letters["M"] = letters["m"]
    code = byte_order + ("?" if kind == "b" else letters[kind][size])
    return size, lambda d: value(struct.unpack(code, d)[0])
