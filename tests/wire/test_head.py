"""What a document says first: read without the rest, whatever follows."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.errors import DecodeError
from telegrad.wire import read_head

END = "args"
KEY = msgpack.packb(END)

texts = st.sampled_from(["func", "x", "a\x04args", "é"]) | st.text(max_size=8)
values = st.recursive(
    st.none() | st.integers(-9, 2**40) | st.binary(max_size=8) | texts | st.just(KEY),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(texts, inside, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(texts, values, max_size=5), values, st.binary(max_size=6))
def test_a_head_is_what_stands_before_the_key(
    entries: dict[str, Any], rest: Any, tail: bytes
) -> None:
    """The key may stand inside a value, and be followed by anything."""
    entries.pop(END, None)
    document = msgpack.packb({**entries, END: rest})
    assert read_head(document + tail, END) == entries
    cut = msgpack.packb({**entries, END: None})[: -len(KEY) - 1]
    for broken in (msgpack.packb(entries), cut, b""):
        with pytest.raises(DecodeError):
            read_head(broken, END)
