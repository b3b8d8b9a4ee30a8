"""What every backend of a group has to do, against NumPy: messages, memory, and both over hosts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad.collectives import ReduceOp
from telegrad.collectives.backends import HostsBackend, MemoryBackend, MessageBackend, Sharing
from telegrad.collectives.link import Link
from telegrad.types import Array
from tests.collectives.fake_link import FakeJob, arrays_for
from tests.collectives.test_algorithms import CASES, expected
from tests.collectives.test_shared_memory import CALL, CopyingMeeting, enter

KINDS: dict[str, tuple[type, list[list[int]]]] = {
    "messages": (MessageBackend, [[0], [1], [2], [3], [4]]),
    "memory": (MemoryBackend, [[0, 1, 2, 3, 4]]),
    "two hosts": (HostsBackend, [[0, 1, 2], [3, 4]]),
    "one alone": (HostsBackend, [[0, 2, 3, 4], [1]]),
    "mixed up": (HostsBackend, [[0, 3], [1, 4], [2]]),
}
N = 5
SMALL = [0, 1, 5, 700]
LONG = 2**18 // 4 + 3  # items of four bytes that are more than what is combined in rank order


class Job:
    """Ranks on hosts that run one operation after the other."""

    def __init__(self, hosts: list[list[int]], seed: int) -> None:
        self.fake = FakeJob([np.zeros(1)] * N, seed)
        self.links = [CopyingMeeting(self.fake, r, CALL) for r in range(N)]
        self.fake.links = list(self.links)
        shared = hosts if max(map(len, hosts)) > 1 else []
        self.sharings = [Sharing(shared, 0.0) for _ in range(N)]
        host_of = {r: h for h, ranks in enumerate(hosts) for r in ranks}
        copies = {(a, b) for a in range(N) for b in range(N) if host_of[a] != host_of[b]}
        for link in self.links:
            link.copies = frozenset(copies)

    def run(self, verb: str, arrays: list[Array], *args: Any) -> set[type]:
        async def one(link: Link, _: Array) -> type:
            backend = await enter(link, self.sharings[link.rank])
            own = (arrays[link.rank],) if verb != "barrier" else ()
            await getattr(backend, verb)(*own, *args)
            return type(backend)

        return set(self.fake.run(one))


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["barrier", "broadcast", "all_reduce", "reduce"]),
            st.sampled_from(CASES),
            st.sampled_from(SMALL),
            st.integers(0, N - 1),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 2**16),
)
@settings(max_examples=25)
def test_a_backend(
    kind: str, steps: list[tuple[str, tuple[ReduceOp, str], int, int]], seed: int
) -> None:
    wanted_type, hosts = KINDS[kind]
    job = Job(hosts, seed)
    for verb, (op, dtype), size, root in steps:
        check(job, verb, op, arrays_for(N, size, dtype, seed), root, wanted_type)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN])
def test_long_arrays(kind: str, op: ReduceOp) -> None:
    wanted_type, hosts = KINDS[kind]
    job = Job(hosts, 0)
    for verb in ("all_reduce", "reduce", "broadcast", "all_reduce"):
        check(job, verb, op, arrays_for(N, LONG, "float32", 3), 2, wanted_type)


def test_only_leaders_send_long_arrays_between_hosts() -> None:
    job = Job([[0, 1, 2], [3, 4]], 0)
    job.run("barrier", [])
    before = [link.nbytes for link in job.links]
    arrays = arrays_for(N, LONG, "float32", 3)
    job.run("all_reduce", arrays, ReduceOp.SUM)
    sent = [link.nbytes - then for link, then in zip(job.links, before, strict=True)]
    assert sent[1] == sent[2] == sent[4] == sum(sent) - sent[0] - sent[3]
    assert sent[0] + sent[3] < 2.01 * arrays[0].nbytes


def check(
    job: Job, verb: str, op: ReduceOp, arrays: list[Array], root: int, wanted_type: type
) -> None:
    before = [array.copy() for array in arrays]
    if verb == "barrier":
        assert job.run(verb, arrays) == {wanted_type}
        return
    if verb == "broadcast":
        assert job.run(verb, arrays, root) == {wanted_type}
        wanted = [before[root]] * N
    else:
        args = (op, root) if verb == "reduce" else (op,)
        assert job.run(verb, arrays, *args) == {wanted_type}
        total = expected(op, before)
        wanted = [total if verb == "all_reduce" or r == root else before[r] for r in range(N)]
        if verb == "all_reduce":
            assert len({array.tobytes() for array in arrays}) == 1
    for found, each in zip(arrays, wanted, strict=True):
        assert found.dtype == each.dtype
        np.testing.assert_allclose(found.astype(complex), each.astype(complex), rtol=2e-2)
