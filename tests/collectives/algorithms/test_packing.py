"""Objects as buffers, and their exchanges over links without a network; messages are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.collectives.algorithms import objects as algorithms
from telegrad.collectives.algorithms.packing import failed, pack, pack_error, unpack
from telegrad.errors import DecodeError, EncodeError
from tests.collectives.fake_link import FakeJob, rounds_of


def objects_of(n: int) -> list[Any]:
    """Objects of 0, 1, 2, ... arrays."""
    return [{"rank": r, "arrays": [np.full(q, r) for q in range(r)]} for r in range(n)]


def is_same(mine: Any, theirs: Any) -> bool:
    arrays = zip(mine["arrays"], theirs["arrays"], strict=True)
    return mine["rank"] == theirs["rank"] and all(np.array_equal(a, b) for a, b in arrays)


def error_in(packed: Any) -> str:
    with pytest.raises(EncodeError) as raised:
        unpack(packed)
    return str(raised.value)


@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 2**16))
def test_exchanges(n: int, root: int, seed: int) -> None:
    root %= n
    objects = objects_of(n)
    packed = [pack(each, "obj") for each in objects]
    sizes = [sum(memoryview(buffer).nbytes for buffer in each) for each in packed]
    nothing: Any = [np.zeros(0)] * n

    def ran(algorithm: Callable[..., Any]) -> tuple[FakeJob, list[Any]]:
        job = FakeJob(nothing, seed)
        return job, job.run(lambda link, _: algorithm(link))

    job, found = ran(lambda link: algorithms.all_gather(link, packed[link.rank]))
    for gathered in found:
        assert all(map(is_same, map(unpack, gathered), objects))
    assert job.steps == min(n - 1, 1)
    for r, link in enumerate(job.links):
        assert (link.messages, link.nbytes) == ((n - 1) * (1 + r), (n - 1) * sizes[r])

    job, found = ran(lambda link: algorithms.gather(link, packed[link.rank], root))
    assert [gathered is None for gathered in found] == [r != root for r in range(n)]
    assert all(map(is_same, map(unpack, found[root]), objects))
    assert job.steps == rounds_of(n)
    for r, link in enumerate(job.links):
        words = rounds_of(n)  # they are empty
        own = (0, 0) if r == root else (1 + r, sizes[r])
        assert (link.messages - words, link.nbytes) == own

    of_root = packed[root]
    job, found = ran(
        lambda link: algorithms.broadcast(link, of_root if link.rank == root else None, root)
    )
    assert found[root] is None
    assert all(is_same(unpack(found[r]), objects[root]) for r in range(n) if r != root)
    assert job.steps <= max(2 * rounds_of(n) - 1, 0)
    assert sum(link.messages for link in job.links) == (n - 1) * (1 + root)
    assert job.links[root].messages == rounds_of(n) * (1 + root)

    job, found = ran(
        lambda link: algorithms.scatter(link, packed if link.rank == root else [], root)
    )
    assert all(map(is_same, map(unpack, found), objects))
    assert job.steps == rounds_of(n)
    assert job.links[root].nbytes == sum(sizes) - sizes[root]


@pytest.mark.long
@given(
    st.lists(st.booleans(), min_size=1, max_size=6).filter(any),
    st.integers(0, 5),
    st.integers(0, 2**16),
)
def test_an_error_in_the_place_of_an_object_comes_to_every_rank(
    errors: list[bool], root: int, seed: int
) -> None:
    n = len(errors)
    root %= n
    packed = [
        pack_error(EncodeError(f"of {r}")) if error else pack([np.ones(2)], "obj")
        for r, error in enumerate(errors)
    ]
    nothing: Any = [np.zeros(0)] * n

    def ran(algorithm: Callable[..., Any]) -> list[Any]:
        return FakeJob(nothing, seed).run(lambda link, _: algorithm(link))

    for gathered in ran(lambda link: algorithms.all_gather(link, packed[link.rank])):
        assert [failed(each) for each in gathered] == errors
    told = ran(lambda link: algorithms.gather(link, packed[link.rank], root))
    assert {error_in(each[0]) for each in told} <= {f"of {r}" for r in range(n)}
    assert len({bytes(each[0][0]) for each in told}) == 1, "all ranks raise the same one"
    error = pack_error(EncodeError("of the root"))
    for each in ran(
        lambda link: algorithms.broadcast(link, error if link.rank == root else None, root)
    ):
        assert each is None or error_in(each) == "of the root"


@pytest.mark.parametrize("head", [b"", b"abc", bytes(12), b"\1\0\0\0" + bytes(9)])
def test_bytes_that_are_no_object(head: bytes) -> None:
    with pytest.raises(DecodeError):
        unpack([head])
