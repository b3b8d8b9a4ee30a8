"""Arrays of every dtype and layout travel beside the document and arrive writable, once each."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
import scipy.sparse
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from telegrad.errors import DecodeError, EncodeError
from telegrad.wire import DecodeLimits, describe, encode, rebuild
from telegrad.wire import memory as copies
from telegrad.wire.values.array_types import rebuild_array
from tests.gpu.stand_in.stand_in import stand_in
from tests.repeated import on_examples
from tests.wire.samples import Pair, round_trip

dtypes = (
    hnp.scalar_dtypes()
    | hnp.byte_string_dtypes()
    | hnp.unicode_string_dtypes()
    | hnp.array_dtypes()
    | hnp.nested_dtypes()
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def assert_same(arrived: Any, sent: Any) -> None:
    assert type(arrived) is np.ndarray
    assert arrived.dtype == sent.dtype
    assert arrived.shape == sent.shape
    assert arrived.tobytes() == np.asarray(sent).tobytes()
    assert arrived.flags.writeable


# Big arrays are copied in another way than small ones: by either, whatever their size.
@pytest.fixture(params=[1, copies.BIG_BYTES], ids=["as big ones", "as small ones"], scope="module")
def big_bytes(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "BIG_BYTES", request.param)
        yield


@pytest.mark.parametrize("shape", [[True], [1.0], ["1"], [[1]], [None], [-1], [2], [1, 1.0]])
def test_a_shape_that_equals_one_that_was_read_is_read_for_itself(shape: list[Any]) -> None:
    octets = bytearray(8)
    for _ in range(2):
        (array,) = rebuild(msgpack.packb([["array", ["<f8", "C", 1], 1]]), [octets])
        assert_same(array, np.zeros(1))
        with pytest.raises(DecodeError):
            rebuild_array(["<f8", "C", *shape], [octets])
        with pytest.raises(DecodeError, match="external 0"):
            rebuild(msgpack.packb([["array", ["<f8", "C", *shape], 1]]), [octets])


def test_a_description_that_was_read_is_read_again_for_other_buffers() -> None:
    metadata, _ = describe([np.zeros(3), np.zeros((2, 2), order="F")])
    assert_same(rebuild(metadata, [bytearray(24), bytearray(32)])[1], np.zeros((2, 2)))
    for buffers in ([], [bytearray(24)], [bytearray(24), bytearray(31)], [bytearray(24)] * 3):
        with pytest.raises(DecodeError):
            rebuild(metadata, buffers)
    first, second = (
        list(map(np.asarray, rebuild(metadata, [bytearray(24), bytes(32)]))) for _ in range(2)
    )
    assert not any(np.shares_memory(a, b) for a, b in zip(first, second, strict=True))
    assert first[1].flags.f_contiguous


def test_limits_hold_for_a_description_that_was_read() -> None:
    metadata, buffers = describe([np.zeros(3)])
    rebuild(metadata, [bytearray(each) for each in buffers])
    with pytest.raises(DecodeError, match="document_bytes"):
        rebuild(metadata, buffers, limits=DecodeLimits(document_bytes=8))
    with pytest.raises(DecodeError, match="elements"):
        rebuild(metadata, buffers, limits=DecodeLimits(elements=2))
    with pytest.raises(DecodeError, match="deeper than 2 levels"):
        rebuild(metadata, buffers, limits=DecodeLimits(depth=2))


@pytest.mark.usefixtures("big_bytes")
@on_examples(st.data())
def test_arrays_of_every_dtype_and_layout(data: st.DataObject) -> None:
    array: Any = data.draw(hnp.arrays(dtypes, shapes))
    view = np.asarray(array[data.draw(hnp.basic_indices(array.shape, allow_ellipsis=True))])
    view = view.transpose(data.draw(st.permutations(range(view.ndim))))
    if data.draw(st.booleans()):
        view = np.broadcast_to(view, (2, *view.shape))
    view.flags.writeable = data.draw(st.booleans()) and view.flags.writeable
    assert_same(round_trip(view), view)


@pytest.mark.usefixtures("big_bytes")
@pytest.mark.parametrize(
    "dtype",
    [
        np.longdouble,
        np.clongdouble,
        "m8",
        ">M8[25us]",
        np.dtype([("a", "i1"), ("b", [("x", "c8")])], align=True),
        np.dtype({"names": ["z"], "formats": ["<f4"], "offsets": [3], "itemsize": 12}),
    ],
)
def test_dtypes_that_are_rare(dtype: Any) -> None:
    array = np.zeros((2, 3), dtype)
    array.view(np.uint8)[:, :1] = 1
    for layout in (array, np.asfortranarray(array), array[::-1, ::2]):
        arrived = round_trip(layout)
        assert (arrived.dtype, arrived.shape) == (array.dtype, layout.shape)
        assert all(a == b for a, b in zip(arrived.flat, layout.flat, strict=True))
        assert round_trip(layout[1, 1]) == layout[1, 1]


@on_examples(dtypes)
def test_dtypes(dtype: np.dtype[Any]) -> None:
    assert round_trip(dtype) == dtype


@on_examples(st.data())
def test_scalars(data: st.DataObject) -> None:
    array = data.draw(hnp.arrays(hnp.scalar_dtypes() | hnp.nested_dtypes(), ()))
    scalar: Any = array[()]
    arrived = round_trip(scalar)
    assert type(arrived) is type(scalar)
    assert arrived.dtype == scalar.dtype
    assert arrived.tobytes() == scalar.tobytes()


def test_the_order_of_an_array_and_the_alignment_of_its_fields_are_kept() -> None:
    aligned = np.dtype([("a", "i1"), ("b", "f8"), ("c", "f4", (2,))], align=True)
    assert round_trip(np.asfortranarray(np.ones((2, 3)))).flags.f_contiguous
    assert round_trip(np.zeros(2, aligned)).dtype.isalignedstruct


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "int4"])
def test_dtypes_of_ml_dtypes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(5).astype(getattr(ml_dtypes, name))
    assert_same(round_trip(array), array)
    assert round_trip(array[1]) == array[1]
    encoded = encode(array)
    metadata, buffers = describe(encoded.externals)
    monkeypatch.delitem(sys.modules, "ml_dtypes")
    with pytest.raises(DecodeError, match="not imported here"):
        rebuild(metadata, buffers)


def test_one_array_twice_arrives_as_one_and_equal_ones_do_not() -> None:
    a, b = np.zeros(3), np.zeros(3)
    encoded = encode([a, (b, {"x": a}), Pair(a)])
    assert [id(each) for each in encoded.externals] == [id(a), id(b)]
    first, (second, third), fourth = round_trip([a, (b, {"x": a}), Pair(a)])
    assert first is third["x"] is fourth.left
    assert first is not second


def test_the_value_is_that_at_the_time_of_describe() -> None:
    array = np.zeros(1000)
    metadata, buffers = describe(encode(array).externals)
    array += 1
    arrived: Any = rebuild(metadata, [bytearray(each) for each in buffers])[0]
    assert not np.any(arrived)


def test_an_array_lies_in_the_received_buffer() -> None:
    metadata, buffers = describe([np.arange(10)])
    received = bytearray(buffers[0])
    (arrived,) = rebuild(metadata, [received])
    assert isinstance(arrived, np.ndarray)
    arrived[0] = 99
    assert received[0] == 99


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([None, 1]), "Python objects"),
        (np.zeros(2, [("a", "O")]), "Python objects"),
        (np.ma.masked_array([1.0], [True]), "masked"),
        (np.zeros(2).view(np.recarray), "subclass"),
        (np.array(["a"], np.dtypes.StringDType()), "Python objects|convert it"),
        (scipy.sparse.lil_array((2, 2)), "tocsr"),
        (scipy.sparse.dok_array((2, 2)), "tocsr"),
    ],
)
def test_arrays_that_cannot_travel(array: Any, words: str) -> None:
    with pytest.raises(EncodeError, match=rf"value\[0\] cannot travel.*({words})"):
        encode([array])


def test_an_array_of_cupy_travels_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", xp := stand_in())
    on_gpu = xp.arange(3)
    encoded = encode([on_gpu, on_gpu])
    metadata, buffers = describe(encoded.externals)
    arrived: Any = rebuild(metadata, [bytearray(each) for each in buffers])[0]
    assert isinstance(arrived, xp.ndarray)
    assert_same(arrived.get(), np.arange(3))
    monkeypatch.delitem(sys.modules, "cupy")
    assert_same(rebuild(metadata, [bytearray(each) for each in buffers])[0], np.arange(3))


def test_a_memory_map_travels_as_an_array(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "m", np.int32, "w+", shape=(3,))
    mapped[:] = [1, 2, 3]
    assert_same(round_trip(mapped), mapped)


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "coo", "dia"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f4", "f8", "c16"])
def test_sparse_arrays(layout: str, kind: str, dtype: str) -> None:
    dense = np.array([[0, 1, 0], [2, 0, 0]]).astype(dtype)
    sparse = getattr(scipy.sparse, f"{layout}_{kind}")(dense)
    arrived = round_trip({"x": [sparse]})["x"][0]
    assert (type(arrived), arrived.dtype) == (type(sparse), sparse.dtype)
    assert np.array_equal(arrived.toarray(), dense)


def test_a_sparse_array_with_foreign_indices_is_refused() -> None:
    sparse = scipy.sparse.csr_array(np.eye(3))
    encoded = encode(sparse)
    metadata, buffers = describe(encoded.externals)
    externals = rebuild(metadata, [bytearray(each) for each in buffers])
    externals[1][0] = 1000  # type: ignore[index]
    from telegrad.wire import decode  # noqa: PLC0415

    with pytest.raises(DecodeError):
        decode(encoded.document, externals)


def test_nothing_of_what_a_stranger_says_is_kept_that_is_long() -> None:
    """A dtype of another name, a shape or an order are short, or no description."""
    kept = []
    gc.collect()  # else finalisers of other tests' garbage would run, and allocate, in this one
    tracemalloc.start(50)  # enough frames to find this test among them
    try:
        for i in range(30):
            metas: list[list[Any]] = [
                ["<f8", f"C{i}" + 10_000 * "x", 1], ["<f8", b"C" * 1000 + bytes([i]), 1],
                [f"<f8{i}" + 10_000 * "x", "C", 1], ["<f8", "C", *[1] * 1000, i],
            ]  # fmt: skip
            for meta in metas:
                with pytest.raises(DecodeError):
                    rebuild(msgpack.packb([["array", meta, 1]]), [bytearray(8)])
            del metas, meta
            if i in (9, 29):
                gc.collect()
                kept.append(allocated_here())
    finally:
        tracemalloc.stop()
    assert kept[1] - kept[0] < 50_000  # of 400,000 bytes in names of dtypes and orders


def allocated_here() -> int:
    """Returns the bytes that code called by this file has allocated and that are still there.

    Other threads, of earlier tests or of libraries, allocate whenever they like.
    """
    here = tracemalloc.Filter(True, __file__, all_frames=True)
    found = tracemalloc.take_snapshot().filter_traces([here])
    return sum(trace.size for trace in found.traces)
