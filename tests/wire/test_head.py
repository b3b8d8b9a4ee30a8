"""What a document says first: the same whether its head was read before or not."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.errors import DecodeError
from telegrad.wire import document as head
from telegrad.wire import encode, read_head

END = "args"
KEY = msgpack.packb(END)

texts = st.sampled_from(["func", "args", "x", "a\x04args", "é"]) | st.text(max_size=8)
values = st.recursive(
    st.none() | st.integers(-9, 2**40) | st.binary(max_size=8) | texts | st.just(KEY),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(texts, inside, max_size=3),
    max_leaves=6,
)


def read_anew(document: bytes) -> dict[str, Any] | None:
    with patch.object(head, "KEPT_BYTES", 0):  # nothing is so short
        return read_kept(document)


def read_kept(document: bytes) -> dict[str, Any] | None:
    try:
        return read_head(document, END)
    except DecodeError:
        return None


@given(st.dictionaries(texts, values, max_size=5), st.binary(max_size=6), st.data())
def test_a_head_is_the_same_when_it_was_read_before(
    entries: dict[str, Any], tail: bytes, data: st.DataObject
) -> None:
    """The key may stand inside a value, or be cut, or followed by anything."""
    document = bytearray(msgpack.packb(entries))
    for _ in range(data.draw(st.integers(0, 2))):
        document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.integers(0, 255))
    for each in (bytes(document), bytes(document) + tail, bytes(document[: len(document) // 2])):
        for _ in range(2):
            assert read_kept(each) == read_anew(each)


def test_a_head_that_was_read_before_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [encode({"func": "m:kept", "args": [i], "kwargs": {}}).document for i in range(3)]
    first = read_head(calls[0], END)
    first["func"] = "m:another"  # belongs to who asked
    monkeypatch.setattr(head, "_read", None)
    assert [read_head(each, END) for each in calls[1:]] == [{"func": "m:kept"}] * 2
    with pytest.raises(TypeError, match="not callable"):
        read_head(encode({"func": "m:new", "args": []}).document, END)


def test_long_heads_are_read_but_not_kept_nor_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(name: str) -> None:
        assert read_head(encode({"func": name, "args": []}).document, END) == {"func": name}

    read("m:first")
    for i in range(head.KEPT_HEADS):
        read(f"m:{i}")
    long = "m:" + "x" * 2 * head.KEPT_BYTES
    read(long)
    monkeypatch.setattr(head, "_read", None)
    read(f"m:{head.KEPT_HEADS - 1}")
    for name in (long, "m:first"):
        with pytest.raises(TypeError, match="not callable"):
            read(name)
