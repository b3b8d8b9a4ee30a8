"""What every backend of a group has to do, against NumPy: messages, memory, both, and a user's."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad import rpc
from telegrad.collectives import Backend, Link, MessageBackend, ReduceOp
from telegrad.collectives.algorithms.shared_memory import MemoryBackend
from telegrad.collectives.backends import GroupTerms, HostsBackend, Sharing
from telegrad.collectives.link import OpenBackend
from telegrad.collectives.messages import Signature
from telegrad.collectives.reduction import combine, finish
from telegrad.errors import InvalidUseError
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.collectives import remote_code, toy_backend
from tests.collectives.algorithms.test_algorithms import CASES, expected
from tests.collectives.fake_link import FakeJob, arrays_for
from tests.collectives.shared_memory.test_shared_memory import CALL, CopyingMeeting, enter
from tests.collectives.toy_backend import Star, make_star
from tests.parts import needs_memory

KINDS: dict[str, tuple[type, list[list[int]]]] = {
    "messages": (MessageBackend, [[0], [1], [2], [3], [4]]),
    "memory": (MemoryBackend, [[0, 1, 2, 3, 4]]),
    "two hosts": (HostsBackend, [[0, 1, 2], [3, 4]]),
    "one alone": (HostsBackend, [[0, 2, 3, 4], [1]]),
    "mixed up": (HostsBackend, [[0, 3], [1, 4], [2]]),
    "a user's": (Star, [[0, 1, 2, 3, 4]]),
}
KIND = [
    pytest.param(kind, marks=needs_memory if type_ in (MemoryBackend, HostsBackend) else ())
    for kind, (type_, _) in KINDS.items()
]
TERMS = {"a user's": GroupTerms(backend="star", maker=make_star)}
EXTEND = Path(__file__).parents[2] / "docs" / "extend.md"
N = 5
SMALL = [0, 1, 5, 700]
LONG = 2**18 // 4 + 3  # items of four bytes that are more than what is combined in rank order


class Job:
    """Ranks on hosts that run one operation after the other."""

    def __init__(self, hosts: list[list[int]], seed: int, terms: GroupTerms | None = None) -> None:
        self.fake = FakeJob([np.zeros(1)] * N, seed)
        self.links = [CopyingMeeting(self.fake, r, CALL) for r in range(N)]
        self.fake.links = list(self.links)
        shared = hosts if max(map(len, hosts)) > 1 else []
        self.sharings = [Sharing(shared, 0.0, terms) for _ in range(N)]
        host_of = {r: h for h, ranks in enumerate(hosts) for r in ranks}
        copies = {(a, b) for a in range(N) for b in range(N) if host_of[a] != host_of[b]}
        for link in self.links:
            link.copies = frozenset(copies)

    def run(self, verb: str, own: list[Any], *args: Any, wanted_type: type) -> list[Any]:
        """Runs a verb with an own first argument of each rank; returns what each rank got."""

        async def one(link: Link, _: Array) -> Any:
            backend = await enter(link, self.sharings[link.rank])
            assert type(backend) is wanted_type
            return await getattr(backend, verb)(*own[link.rank : link.rank + 1], *args)

        return self.fake.run(one)

    def scatter(self, into: list[Array], parts: list[Array], root: int, wanted_type: type) -> None:
        """Runs the verb of which one rank alone has the parts."""

        async def one(link: Link, _: Array) -> None:
            backend = await enter(link, self.sharings[link.rank])
            assert type(backend) is wanted_type
            mine = parts if link.rank == root else []
            await backend.scatter(into[link.rank], mine, root)

        self.fake.run(one)


IN_PLACE = ["barrier", "broadcast", "all_reduce", "reduce"]
EXCHANGES = [
    "all_gather",
    "gather",
    "scatter",
    "all_to_all",
    "reduce_scatter",
]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KIND)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(IN_PLACE + EXCHANGES),
            st.sampled_from(CASES),
            st.sampled_from(SMALL),
            st.integers(0, N - 1),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 2**16),
)
@settings(max_examples=25)
def test_a_backend(
    kind: str, steps: list[tuple[str, tuple[ReduceOp, str], int, int]], seed: int
) -> None:
    wanted_type, hosts = KINDS[kind]
    job = Job(hosts, seed, TERMS.get(kind))
    for verb, (op, dtype), size, root in steps:
        check(job, verb, op, arrays_for(N, size, dtype, seed), root, wanted_type)


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KIND)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN])
def test_long_arrays(kind: str, op: ReduceOp) -> None:
    wanted_type, hosts = KINDS[kind]
    job = Job(hosts, 0, TERMS.get(kind))
    for verb in ("all_reduce", "reduce", "broadcast", *EXCHANGES, "all_reduce"):
        check(job, verb, op, arrays_for(N, LONG, "float32", 3), 2, wanted_type)


@needs_memory
def test_only_leaders_send_long_arrays_between_hosts() -> None:
    job = Job([[0, 1, 2], [3, 4]], 0)
    job.run("barrier", [], wanted_type=HostsBackend)
    before = [link.nbytes for link in job.links]
    arrays = arrays_for(N, LONG, "float32", 3)
    job.run("all_reduce", arrays, ReduceOp.SUM, wanted_type=HostsBackend)
    sent = [link.nbytes - then for link, then in zip(job.links, before, strict=True)]
    assert sent[1] == sent[2] == sent[4] == sum(sent) - sent[0] - sent[3]
    assert sent[0] + sent[3] < 2.01 * arrays[0].nbytes


@needs_memory
@pytest.mark.parametrize("root", range(N))
def test_a_broadcast_goes_once_to_each_other_host(root: int) -> None:
    job = Job([[0, 1, 2], [3, 4]], root)
    job.run("barrier", [], wanted_type=HostsBackend)
    before = [link.nbytes for link in job.links]
    arrays = arrays_for(N, LONG, "float32", 3)
    job.run("broadcast", arrays, root, wanted_type=HostsBackend)
    sent = [link.nbytes - then for link, then in zip(job.links, before, strict=True)]
    assert sent == [arrays[0].nbytes if r == (0 if root < 3 else 3) else 0 for r in range(N)]


def arguments(r: int, arrays: list[Array], parts: list[list[Array]]) -> dict[str, tuple[Any, ...]]:
    """Returns the arguments of each verb at a rank; rank 2 is the root."""
    return {
        "barrier": (),
        "broadcast": (arrays[r], 2),
        "all_reduce": (arrays[r], ReduceOp.SUM),
        "reduce": (arrays[r], ReduceOp.SUM, 2),
        "all_gather": (arrays[r],),
        "gather": (arrays[r], 2),
        "scatter": (parts[r][0], parts[2] if r == 2 else [], 2),
        "all_to_all": (parts[r],),
        "reduce_scatter": (parts[r], ReduceOp.SUM),
    }


@pytest.mark.few(13)
@pytest.mark.parametrize("kind", KIND)
@pytest.mark.parametrize("verb", [*IN_PLACE, *EXCHANGES])
def test_no_rank_returns_before_all_have_come(kind: str, verb: str) -> None:
    for absent in range(N):
        job = Job(KINDS[kind][1], absent, TERMS.get(kind))
        job.run("barrier", [], wanted_type=KINDS[kind][0])
        arrays = arrays_for(N, 5 * N, "float32", 3)
        parts = [np.split(array, N) for array in arrays]
        shapes = tuple(part.shape for part in parts[0])
        for r, link in enumerate(job.links):
            link.patience = 300
            if verb in EXCHANGES:
                stated = shapes if verb != "scatter" or r == 2 else ()
                shape = shapes[0] if verb == "scatter" else arrays[0].shape
                link.own_call = Signature(operation=verb, shape=shape, parts=stated)

        async def one(link: Link, _: Array) -> None:
            backend = await enter(link, job.sharings[link.rank])  # noqa: B023
            args = arguments(link.rank, arrays, parts)  # noqa: B023
            await getattr(backend, verb)(*args[verb])

        assert job.fake.run_without(absent, one) == set()


def check(
    job: Job, verb: str, op: ReduceOp, arrays: list[Array], root: int, wanted_type: type
) -> None:
    if verb in EXCHANGES:
        check_exchange(job, verb, op, arrays, root, wanted_type)
        return
    before = [array.copy() for array in arrays]
    if verb == "barrier":
        job.run(verb, [], wanted_type=wanted_type)
        return
    if verb == "broadcast":
        job.run(verb, arrays, root, wanted_type=wanted_type)
        wanted = [before[root]] * N
    else:
        args = (op, root) if verb == "reduce" else (op,)
        job.run(verb, arrays, *args, wanted_type=wanted_type)
        total = expected(op, before)
        wanted = [total if verb == "all_reduce" or r == root else before[r] for r in range(N)]
        if verb == "all_reduce":
            assert len({array.tobytes() for array in arrays}) == 1
    for found, each in zip(arrays, wanted, strict=True):
        assert found.dtype == each.dtype
        np.testing.assert_allclose(found.astype(complex), each.astype(complex), rtol=2e-2)


def cut(array: Array, place: int) -> Array:
    """Returns a part of an array, of a shape that tells the place."""
    part = array[: 7 * (place + 1) % (array.size + 1)]
    return part.reshape(1, -1) if place % 2 else part


def check_exchange(
    job: Job, verb: str, op: ReduceOp, arrays: list[Array], root: int, wanted_type: type
) -> None:
    """Each rank has an array, or a part for each rank; all have different shapes."""
    own = [cut(array, r) for r, array in enumerate(arrays)]
    parts = [
        [cut(array, q + (r if "all_to_all" in verb else 0)) for q in range(N)]
        for r, array in enumerate(arrays)
    ]
    state_calls(job, verb, own, parts, root)
    if verb in ("all_gather", "gather"):
        args = (root,) if verb == "gather" else ()
        for r, found in enumerate(job.run(verb, own, *args, wanted_type=wanted_type)):
            if verb == "all_gather" or r == root:
                assert_same(found, own)
            else:
                assert found is None
    elif verb == "scatter":
        got = [np.zeros(part.size, part.dtype) for part in parts[root]]
        flat = [part.reshape(-1) for part in parts[root]]
        job.scatter(got, flat, root, wanted_type)
        assert_same(got, flat)
    elif verb == "all_to_all":
        for r, found in enumerate(job.run(verb, parts, wanted_type=wanted_type)):
            assert_same(found, [parts[q][r] for q in range(N)])
    else:
        for r, found in enumerate(job.run(verb, parts, op, wanted_type=wanted_type)):
            wanted = in_order(op, [parts[q][r] for q in range(N)])
            if op is ReduceOp.PRODUCT and wanted.dtype.kind == "c":  # bits depend on the place
                np.testing.assert_allclose(found, wanted, rtol=1e-4)
            else:
                assert_same([found], [wanted])


def state_calls(job: Job, verb: str, own: list[Array], parts: list[list[Array]], root: int) -> None:
    """Gives the links the calls that a verb of users makes."""
    for r, link in enumerate(job.links):
        shapes = tuple(part.shape for part in parts[r])
        if "gather" in verb:
            link.own_call = Signature(operation=verb, shape=own[r].shape)
        elif verb == "scatter":
            stated = shapes if r == root else ()
            shape = parts[root][r].shape
            link.own_call = Signature(operation=verb, shape=shape, parts=stated)
        else:
            link.own_call = Signature(operation=verb, parts=shapes)


def in_order(op: ReduceOp, arrays: list[Array]) -> Array:
    """Returns the reduction of arrays in their order, whose bits are promised."""
    total = arrays[0].copy()
    for each in arrays[1:]:
        combine(op, total, each)
    finish(op, total, len(arrays))
    return total


def assert_same(found: list[Array], wanted: list[Array]) -> None:
    for mine, each in zip(found, wanted, strict=True):
        assert mine.dtype == each.dtype
        assert mine.shape == each.shape
        assert mine.flags.writeable
        assert mine.tobytes() == each.tobytes()


# -- backends of users, in real groups -----------------------------------------------------------


def test_the_backend_of_the_document_is_the_one_that_is_tested() -> None:
    (block,) = [
        each
        for each in re.findall(r"```python\n(.*?)```", EXTEND.read_text(), re.DOTALL)
        if "class Star" in each
    ]
    assert Path(toy_backend.__file__).read_text().endswith(block)


def uses(backend: Any) -> tuple[str, list[float]]:
    """Makes a group of all with a backend; returns the first error, and the results."""
    remote_code.begin()
    array = np.arange(4.0)
    said = remote_code.refusal(
        lambda: dist.all_reduce(array, group=dist.new_group([0, 1, 2], backend=backend))
    )
    dist.all_reduce(np.ones(1))  # other groups go on
    return said, array.tolist()


def test_a_backend_of_the_users() -> None:
    with Cluster(3) as cluster:
        results = cluster.run(uses, make_star)
    assert results == [("nothing", [0.0, 3.0, 6.0, 9.0])] * 3


def begins_with(backend: Any) -> tuple[float, bool]:
    """The groups made of one with a backend have it too, unless another one is named."""
    dist.init_process_group(backend=backend)
    inherits, own = dist.split_group(None, [[0, 1], [2]]), dist.new_group([0, 1], backend="host")
    array = np.ones(3)
    dist.all_reduce(array, group=inherits)
    dist.all_reduce(array)
    assert inherits is not None
    assert inherits.terms.backend == dist.world_group().terms.backend != own.terms.backend
    return float(array[0]), own.terms.maker is None


def test_the_backend_of_the_world_is_that_of_its_groups() -> None:
    with Cluster(3) as cluster:
        assert cluster.run(begins_with, make_star) == [(5.0, True)] * 3


def make_failing() -> OpenBackend:
    raise OSError("no such card")


class Failing(Star):
    async def all_reduce(self, flat: Array, op: ReduceOp) -> None:
        if self.link.rank == 1:
            raise OSError("the card is gone")
        await super().all_reduce(flat, op)


async def open_failing(link: Link) -> Backend:
    return Failing(link, {"sums": 0})


def make_failing_later() -> OpenBackend:
    return open_failing


@pytest.mark.parametrize(
    ("make", "words"),
    [(make_failing, "no such card"), (make_failing_later, "the card is gone")],
)
def test_an_error_of_a_backend_is_raised_on_every_rank(make: Any, words: str) -> None:
    with Cluster(3) as cluster:
        for said, _ in cluster.run(uses, make):
            assert said.startswith("OSError: "), said
            assert words in said


def disagrees_in_the_world() -> str:
    r = rpc.get_worker_info().rank
    dist.init_process_group(backend=make_star if r == 1 else None, timeout=20.0)
    return remote_code.refusal(dist.barrier)


def test_a_world_with_different_backends() -> None:
    with Cluster(2) as cluster:
        for said in cluster.run(disagrees_in_the_world):
            assert said.startswith("CollectiveMismatchError: operation 1 of group 'world'"), said
            assert "rank 1 ('worker1') called barrier() by backend 'tests.collectives.toy" in said
            assert "the same backend" in said


def test_a_backend_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    info = tmp_path / "stars-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stars\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[telegrad.backends]\n"
        "star = tests.collectives.toy_backend:make_star\n"
        "broken = tests.collectives.no_such_file:make\n"
    )
    importlib.invalidate_caches()
    with Cluster(3) as cluster:
        assert cluster.run(uses, "star") == [("nothing", [0.0, 3.0, 6.0, 9.0])] * 3
        for said, _ in cluster.run(uses, "nope"):
            assert said.startswith(f"{InvalidUseError.__name__}: no packages add a backend 'nope'")
            assert "['broken', 'host', 'nccl', 'star']" in said
        for said, _ in cluster.run(uses, "broken"):
            assert "'broken' (tests.collectives.no_such_file:make) cannot be imported" in said
        for said, _ in cluster.run(uses, 3):
            assert said.startswith("TypeError: backend must be a name, or a function"), said
