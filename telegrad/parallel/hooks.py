"""Communication hooks: functions that average a bucket of gradients in another way.

    backward ─ bucket is filled ─▶ hook(state, bucket) ─▶ future ─▶ gradients, when all are there

`DistributedDataParallel.register_comm_hook(state, hook)` replaces the `all_reduce` of a bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from telegrad.arrays import copy_into, current_place, namespace, to_host, views_of, working_in
from telegrad.autograd import Tensor
from telegrad.collectives import ProcessGroup, ReduceOp, Work, all_reduce
from telegrad.kernels import flatten
from telegrad.rpc import Future
from telegrad.types import Array

__all__ = [
    "CommHook",
    "GradientBucket",
    "allreduce_hook",
    "bfloat16_compress_hook",
    "float16_compress_hook",
]


@final
@dataclass(frozen=True, slots=True, eq=False)
class GradientBucket:
    """This rank's gradients of some parameters, in one array; the argument of a hook.

    Attributes:
        index: The number of the bucket, from 0. The buckets of the second backward differ from
            those of the first one, and are the same from then on.
        buffer: The gradients, one after the other, of shape (items,). They are not divided by the
            number of ranks. The hook may write into it.
        parameters: The parameters, in the order of their gradients.
        is_last: True for the last bucket of a backward.
        process_group: The group of the module.
        label: A name for operations on this bucket in errors, the same on every rank.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives, nn, parallel
        >>> from telegrad.testing import Cluster
        >>> def step() -> list[tuple[int, ...]]:  # runs on every worker
        ...     collectives.init_process_group()
        ...     seen = []
        ...     def hook(state, bucket):
        ...         seen.extend(gradient.shape for gradient in bucket.gradients())
        ...         return parallel.allreduce_hook(state, bucket)
        ...     model = parallel.DistributedDataParallel(nn.Linear(2, 1))
        ...     model.register_comm_hook(None, hook)
        ...     model(np.ones((4, 2), np.float32)).mean().backward()
        ...     return seen
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)[0]
        [(1,), (1, 2)]
    """

    index: int
    buffer: Array
    parameters: tuple[Tensor, ...]
    is_last: bool
    process_group: ProcessGroup
    label: str

    def gradients(self) -> list[Array]:
        """Returns the gradient of each parameter, as a view of `buffer`."""
        return views_of(self.buffer, [parameter.shape for parameter in self.parameters])


CommHook: TypeAlias = Callable[[Any, GradientBucket], Future[Array] | Work[Array]]
"""A hook: takes its state and a bucket, returns the future of the average, in the shape and dtype
of `bucket.buffer` and the same on every rank."""


def allreduce_hook(state: ProcessGroup | None, bucket: GradientBucket) -> Future[Array]:
    """Averages a bucket with one `all_reduce`, as is done without a hook.

    Args:
        state: The group to average over; None for the group of the module.
        bucket: The bucket.

    Returns:
        The future of the average, in `bucket.buffer`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives, nn, parallel
        >>> from telegrad.testing import Cluster
        >>> def step() -> float:  # runs on every worker
        ...     rank = collectives.init_process_group().rank
        ...     model = parallel.DistributedDataParallel(nn.Linear(1, 1))
        ...     model.register_comm_hook(None, parallel.allreduce_hook)
        ...     model(np.full((4, 1), float(rank), np.float32)).mean().backward()
        ...     return model.module.weight.grad.item()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [0.5, 0.5]
    """
    group = bucket.process_group if state is None else state
    work = all_reduce(bucket.buffer, ReduceOp.AVG, group, async_op=True, label=bucket.label)

    def average(done: Future[None]) -> Array:
        done.value()  # raises the error of the operation
        return bucket.buffer

    return work.then(average)


def float16_compress_hook(state: ProcessGroup | None, bucket: GradientBucket) -> Future[Array]:
    """Averages a bucket in float16, which halves the bytes of float32.

    Gradients are divided by the number of ranks before they are rounded and added up. Gradients
    above 65504 become infinite, and those below 6e-8 zero; `bfloat16_compress_hook` keeps the
    range. Buckets of complex numbers, or of items of two bytes, are averaged as they are.

    Args:
        state: The group to average over; None for the group of the module.
        bucket: The bucket.

    Returns:
        The future of the average, in `bucket.buffer` and its dtype.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives, nn, parallel
        >>> from telegrad.testing import Cluster
        >>> def step() -> float:  # runs on every worker
        ...     collectives.init_process_group()
        ...     model = parallel.DistributedDataParallel(nn.Linear(1, 1))
        ...     model.register_comm_hook(None, parallel.float16_compress_hook)
        ...     model(np.full((4, 1), 0.1, np.float32)).mean().backward()
        ...     return model.module.weight.grad.item()  # 0.1 in float16
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [0.0999755859375, 0.0999755859375]
    """
    return _averaged_in(np.dtype(np.float16), state, bucket)


def bfloat16_compress_hook(state: ProcessGroup | None, bucket: GradientBucket) -> Future[Array]:
    """Averages a bucket in bfloat16, which halves the bytes of float32 and keeps its range.

    A gradient keeps 8 significant bits. Otherwise it works as `float16_compress_hook`.

    Args:
        state: The group to average over; None for the group of the module.
        bucket: The bucket.

    Returns:
        The future of the average, in `bucket.buffer` and its dtype.

    Raises:
        ImportError: The package ml_dtypes is not installed.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives, nn, parallel
        >>> from telegrad.testing import Cluster
        >>> def step() -> float:  # runs on every worker
        ...     collectives.init_process_group()
        ...     model = parallel.DistributedDataParallel(nn.Linear(1, 1))
        ...     model.register_comm_hook(None, parallel.bfloat16_compress_hook)
        ...     model(np.full((4, 1), 0.1, np.float32)).mean().backward()
        ...     return model.module.weight.grad.item()  # 0.1 in bfloat16
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [0.10009765625, 0.10009765625]
    """
    try:
        import ml_dtypes  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise ImportError(
            "bfloat16_compress_hook needs the package ml_dtypes: pip install ml_dtypes, or use "
            "float16_compress_hook"
        ) from error
    return _averaged_in(np.dtype(ml_dtypes.bfloat16), state, bucket)


def _averaged_in(
    dtype: np.dtype[Any], state: ProcessGroup | None, bucket: GradientBucket
) -> Future[Array]:
    """Averages in `dtype`, on the bucket's device where arrays of `dtype` can be there."""
    full = bucket.buffer.dtype
    if full.kind != "f" or full.itemsize <= dtype.itemsize:
        return allreduce_hook(state, bucket)
    group = bucket.process_group if state is None else state
    with np.errstate(over="ignore", under="ignore"):
        small = flatten([_source(bucket.buffer, dtype)], scale=1 / group.size, dtype=dtype)
    place = current_place(bucket.buffer)
    work = all_reduce(small, ReduceOp.SUM, group, async_op=True, label=bucket.label)

    def average(done: Future[None]) -> Array:
        done.value()  # raises the error of the operation
        with working_in(place):
            if namespace(small) is namespace(bucket.buffer):
                flatten([small], dtype=full, out=bucket.buffer)
            else:
                copy_into(bucket.buffer, small.astype(full))
        return bucket.buffer

    return work.then(average)


def _source(buffer: Array, dtype: np.dtype[Any]) -> Array:
    """Returns the buffer; a copy on the host if its CuPy has no arrays of `dtype`."""
    try:
        namespace(buffer).empty(0, dtype=dtype)
    except (TypeError, ValueError):  # bfloat16 before CuPy 14
        return to_host(buffer)
    return buffer
