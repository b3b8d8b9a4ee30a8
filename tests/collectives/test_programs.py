"""Random programs of operations between ranks of one process, or of several, against NumPy."""

from __future__ import annotations

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
from telegrad.testing import Cluster
from telegrad.types import Array
from tests.collectives import remote_code
from tests.collectives.test_algorithms import UFUNCS, meaningful

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

# verb, op, dtype, root, layout, async_op, lengths of first axes, seed
Step = tuple[str, str, str, int, str, bool, list[int], int]


@st.composite
def steps(draw: st.DrawFn, n: int) -> Step:
    verb = draw(st.sampled_from(REDUCTIONS + EXCHANGES))
    dtype = draw(st.sampled_from(list(DTYPES)))
    ops = [op.name for op in ReduceOp if meaningful(op, DTYPES[dtype])]
    layout = draw(st.sampled_from(LAYOUTS))
    lengths = draw(st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n))
    seed = draw(st.integers(0, 2**16))
    root = draw(st.integers(0, n - 1))
    return verb, draw(st.sampled_from(ops)), dtype, root, layout, draw(st.booleans()), lengths, seed


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
    return rng.integers(0, 3, tuple(shape)).astype(dtype)


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
        np.testing.assert_allclose(
            found.astype(complex), wanted.astype(complex), rtol=2e-2 if verb in REDUCTIONS else 0
        )

    tail = () if layout == "0-d" else (2,)
    head = () if layout == "0-d" else (lengths[0],)
    each = [values_of(rng, (*head, *tail), dtype) for _ in range(n)]
    rows = [values_of(rng, (lengths[q], *tail), dtype) for q in range(n)]
    grid = [
        [values_of(rng, (lengths[q * n + p], *tail), dtype) for p in range(n)] for q in range(n)
    ]
    own = lay(each[r])
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
        parts = [[values_of(rng, part.shape, dtype) for part in grid[0]] for _ in range(n)]
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


@pytest.mark.parametrize(
    ("n", "processes"), [(2, False), (3, False), (4, False), (2, True), (3, True)]
)
def test_programs(n: int, processes: bool) -> None:
    """Ranks in processes of their own use shared memory where an operation can."""
    with Cluster(n, processes=processes) as cluster:

        @settings(max_examples=40)
        @given(st.lists(steps(n), min_size=1, max_size=6))
        def check(program: list[Step]) -> None:
            cluster.run(run_program, program)

        check()
