"""Random programs of operations between ranks of one process, or of several, against NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telegrad import collectives as dist
from telegrad.collectives import ReduceOp
from telegrad.rpc import RpcOptions
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.collectives import remote_code
from tests.collectives.algorithms.test_algorithms import UFUNCS, meaningful

DTYPES: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
    ">f4": ">f4",
    "int8": np.int8,
    "uint64": np.uint64,
    "bool": np.bool_,
    "complex64": np.complex64,
}
REDUCTIONS = ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single"]
EXCHANGES = ["broadcast", "all_gather", "all_gather_single", "gather", "scatter", "all_to_all"]
EXCHANGES += ["all_to_all_single"]
LAYOUTS = ["contiguous", "transposed", "strided", "fortran", "read-only", "0-d"]
IN_PLACE = ["all_reduce", "broadcast", "reduce", "scatter"]
VERBS = REDUCTIONS + EXCHANGES
ROOTED = ["all_reduce", "reduce", "broadcast"]  # whose arrays have one shape on all ranks

# verb, op, dtype, root, layout, async_op, lengths of first axes, seed
Step = tuple[str, str, str, int, str, bool, list[int], int]


@st.composite
def steps(draw: st.DrawFn, n: int, long: bool = False) -> Step:
    """Draws a step. Long ones pass the 256 KiB from which reductions take a ring or blocks.

    The largest arrays of a broadcast also pass the n MiB from which it takes a chain.
    """
    verb = draw(st.sampled_from(VERBS + 3 * ROOTED if long else VERBS))
    dtype = draw(st.sampled_from(list(DTYPES)))
    ops = [op.name for op in ReduceOp if meaningful(op, DTYPES[dtype])]
    layout = draw(st.sampled_from(LAYOUTS[:-1] if long else LAYOUTS))
    firsts = st.lists(st.integers(2 if long else 0, 3), min_size=n * n, max_size=n * n)
    scale = scale_of(verb, n) if long else 1
    lengths = [scale * first for first in draw(firsts)]
    seed = draw(st.integers(0, 2**16))
    root = draw(st.integers(0, n - 1))
    return verb, draw(st.sampled_from(ops)), dtype, root, layout, draw(st.booleans()), lengths, seed


def scale_of(verb: str, n: int) -> int:
    """Returns what the lengths of long arrays are multiplied by."""
    if verb == "broadcast":
        return 40_000 * n
    return 80_000 if verb in ROOTED else 60_000 // n


def laid_out(values: Array, layout: str, verb: str) -> Array:
    """Returns an array of these values, laid out in memory in some way."""
    array = np.array(values)
    if layout == "transposed":
        array = np.array(values.T, order="C").T
    elif layout == "fortran":
        array = np.array(values, order="F")
    elif layout == "strided" and values.ndim:
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        array = wide[..., ::2]
        array[...] = values
    elif layout == "read-only" and verb not in IN_PLACE:
        array.flags.writeable = False
    return array


def values_of(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> Array:
    """Draws values, up to a prime number of them, which long arrays repeat."""
    drawn = rng.integers(0, 3, min(math.prod(shape), 1009))
    return np.resize(drawn, tuple(shape)).astype(dtype)


def run_step(step: Step) -> None:
    """Makes the arrays of all ranks, runs the operation for this one, and compares the result."""
    verb, op_name, dtype_name, root, layout, async_op, lengths, seed = step
    r, n, dtype, op = dist.get_rank(), dist.get_world_size(), DTYPES[dtype_name], ReduceOp[op_name]
    rng = np.random.default_rng(seed)
    verbs: Any = dist

    def called(*args: Any, **kwargs: Any) -> Any:
        value = getattr(verbs, verb)(*args, async_op=async_op, **kwargs)
        return value.wait() if async_op else value

    def lay(values: Array) -> Array:
        return laid_out(values, layout, verb)

    def combined(arrays: Sequence[Array]) -> Array:
        total: Any = reduce(UFUNCS[op], arrays)
        return (total / len(arrays)).astype(dtype) if op is ReduceOp.AVG else np.asarray(total)

    def compare(found: Array, wanted: Array) -> None:
        assert found.dtype == dtype
        assert found.shape == wanted.shape
        assert found.flags.writeable
        if verb in REDUCTIONS:
            np.testing.assert_allclose(found.astype(complex), wanted.astype(complex), rtol=2e-2)
        else:
            np.testing.assert_array_equal(found, wanted)

    tail = () if layout == "0-d" else (2,)
    head = () if layout == "0-d" else (lengths[0],)
    if verb in ROOTED:
        each = [values_of(rng, (*head, *tail), dtype) for _ in range(n)]
        own = lay(each[r])
    elif verb in ("all_to_all", "all_to_all_single"):
        grid = [
            [values_of(rng, (lengths[q * n + p], *tail), dtype) for p in range(n)] for q in range(n)
        ]
    else:
        rows = [values_of(rng, (lengths[q], *tail), dtype) for q in range(n)]
    if verb == "all_reduce":
        called(own, op)
        compare(own, combined(each))
    elif verb == "reduce":
        called(own, root, op)
        compare(own, combined(each) if r == root else each[r])
    elif verb == "broadcast":
        called(own, root)
        compare(own, each[root])
    elif verb == "reduce_scatter":
        parts = [[values_of(rng, part.shape, dtype) for part in rows] for _ in range(n)]
        compare(called([lay(part) for part in parts[r]], op), combined([mine[r] for mine in parts]))
    elif verb == "reduce_scatter_single":
        sizes = lengths[:n]
        whole = [values_of(rng, (sum(sizes), *tail), dtype) for _ in range(n)]
        ends = np.cumsum(sizes)[:-1]
        wanted = np.split(combined(whole), ends)[r]
        compare(called(lay(whole[r]), op, split_sizes=sizes), wanted)
    elif verb in ("all_gather", "gather"):
        found = called(lay(rows[r])) if verb == "all_gather" else called(lay(rows[r]), root)
        if verb == "gather" and r != root:
            assert found is None
            return
        assert len(found) == n
        for mine, theirs in zip(found, rows, strict=True):
            compare(mine, theirs)
    elif verb == "all_gather_single":
        compare(called(lay(rows[r])), np.concatenate(rows))
    elif verb == "scatter":
        target = lay(np.zeros_like(rows[r]))
        called(target, [lay(part) for part in rows] if r == root else None, root)
        compare(target, rows[r])
    elif verb == "all_to_all":
        for q, part in enumerate(called([lay(part) for part in grid[r]])):
            compare(part, grid[q][r])
    else:
        ours = [len(part) for part in grid[r]]
        from_each = [len(grid[q][r]) for q in range(n)]
        wanted = np.concatenate([grid[q][r] for q in range(n)])
        found = called(
            lay(np.concatenate(grid[r]).astype(dtype)),
            from_each if seed % 2 else None,
            input_split_sizes=ours,
        )
        compare(found, wanted)


def run_program(program: list[Step]) -> None:
    remote_code.begin()
    try:
        for step in program:
            run_step(step)
    except BaseException:  # the other ranks must not wait, and the next program begins anew
        dist.destroy_process_group()
        raise


def every_verb(n: int, sizes: Sequence[int]) -> list[Step]:
    """Returns every verb on arrays of so many items, and `all_reduce` with other operations."""
    calls = [(verb, "SUM") for verb in VERBS]
    calls += [("all_reduce", op) for op in ("AVG", "PRODUCT", "MIN", "MAX")]
    return [
        (verb, op, "float64", n - 1, "contiguous", False, [length] * n**2, size)
        for size in sizes
        for verb, op in calls
        for length in [-(-size // (2 if verb in ROOTED else 2 * n))]
    ]


@pytest.mark.parametrize(
    "n", [1, 2, 5, 9, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 4, 7, 16))]
)
@pytest.mark.long
def test_every_verb(n: int) -> None:
    with Cluster(n) as cluster:
        cluster.run(run_program, every_verb(n, (0, 1, 7, remote_code.LARGE)))


# Ranks, how they reach each other, and numbers of programs: of short arrays, and of long ones.
JOBS: dict[str, tuple[int, dict[str, Any], int, int]] = {
    "2 here": (2, {}, 12, 4),
    "3 here": (3, {}, 12, 4),
    "5 here": (5, {}, 5, 2),
    "9 here": (9, {}, 3, 2),
    "2 processes": (2, {"processes": True}, 12, 4),
    "3 processes": (3, {"processes": True}, 12, 4),
    "2 over TCP": (2, {"processes": True, "options": RpcOptions(direct="tcp")}, 8, 3),
    "2 over gRPC": (2, {"processes": True, "options": RpcOptions(direct=False)}, 8, 3),
}
MANY = [pytest.mark.long, pytest.mark.timeout(600)]
OTHER = pytest.mark.long  # the same messages by another transport


@pytest.mark.parametrize("times", [1, pytest.param(9, marks=MANY)], ids=["some", "many"])
@pytest.mark.parametrize(
    "job", [pytest.param(job, marks=OTHER if "over" in job else ()) for job in JOBS]
)
@pytest.mark.few(1)
def test_programs(job: str, times: int) -> None:
    """Ranks in processes of their own use shared memory where an operation can."""
    n, arguments, examples, long_examples = JOBS[job]
    with Cluster(n, **arguments) as cluster:

        @settings(max_examples=times * examples)
        @given(st.lists(steps(n), min_size=1, max_size=6))
        def check(program: list[Step]) -> None:
            cluster.run(run_program, program)

        @settings(max_examples=times * long_examples)
        @given(steps(n, long=True))
        def check_long(step: Step) -> None:
            cluster.run(run_program, [step])

        check()
        check_long()
