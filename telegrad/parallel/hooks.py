"""Communication hooks: functions that average a bucket of gradients in another way.

    backward ─ bucket is filled ─▶ hook(state, bucket) ─▶ future ─▶ gradients, when all are there

`DistributedDataParallel.register_comm_hook(state, hook)` replaces the `all_reduce` of a bucket.

Numbers in float16 and bfloat16 are added up on the way. Bytes with scales, and numbers with places,
cannot be: each rank gets those of all and adds them up in the order of the ranks. So the mean has
the same bits everywhere, and a rank sends (n - 1) times what it packs, where an `all_reduce` of n
ranks sends 2 (n - 1) / n times the bucket.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np

from telegrad.arrays import (
    computing_dtype,
    copy_into,
    current_place,
    is_floating,
    namespace,
    to_host,
    views_of,
    working_in,
)
from telegrad.autograd import Tensor
from telegrad.collectives import ProcessGroup, ReduceOp, Work, all_gather_single, all_reduce
from telegrad.kernels import flatten, mean_largest, mean_quantized, pack_largest, quantize
from telegrad.rpc import Future
from telegrad.types import Array


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
        absent: The places in `parameters` of those without a gradient on this rank, whose part of
            the buffer is zero. Other ranks may have one.

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
    absent: tuple[int, ...] = ()

    def gradients(self) -> list[Array]:
        """Returns the gradient of each parameter, as a view of `buffer`."""
        return views_of(self.buffer, [parameter.shape for parameter in self.parameters])


CommHook: TypeAlias = Callable[[Any, GradientBucket], Future[Array] | Work[Array]]
"""A hook: takes its state and a bucket, returns the future of the average, in the shape and dtype
of `bucket.buffer` and the same on every rank. Callbacks that it adds to futures may start further
operations: those of each bucket have an order of their own."""


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


# -- hooks that send a part, and keep the rest for the next backward -----------------------------


@final
class ErrorFeedback:
    """The state of a hook that sends a part of each gradient: the rest, which goes with the next.

    It takes memory of the size of the gradients, in float32, or float64 for those of float64. It
    belongs to one module and is no part of `state_dict()`: without it, training goes on as if the
    rest had been zero. The rest of the first backward is dropped, as the buckets change after it.
    The rest of a parameter waits for a backward in which this rank has a gradient for it. Under a
    loss scale, the rest keeps the scale that its gradients had.

    Args:
        group: The group to average over; None for the group of the module.

    Attributes:
        group: The group, or None.

    Example:
        >>> from telegrad.parallel import ErrorFeedback
        >>> ErrorFeedback().group is None  # one for each module: register_comm_hook(state, hook)
        True
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group
        self._rests: dict[int, tuple[tuple[Tensor, ...], Array]] = {}

    def rest_of(self, bucket: GradientBucket) -> Array:
        """Returns what was not sent of a bucket, to be written; zeros if it is a new one."""
        parameters, rest = self._rests.get(bucket.index, ((), None))
        if rest is None or [*map(id, parameters)] != [*map(id, bucket.parameters)]:
            buffer = bucket.buffer
            rest = namespace(buffer).zeros(buffer.shape, dtype=computing_dtype(buffer.dtype))
            # This and all later ones are of buckets that are no more.
            self._rests = {b: kept for b, kept in self._rests.items() if b < bucket.index}
            self._rests[bucket.index] = bucket.parameters, rest
        return rest


def int8_compress_hook(state: ErrorFeedback, bucket: GradientBucket) -> Future[Array]:
    """Averages a bucket in 8 bits for each gradient, a quarter of the bytes of float32.

    Each block of 256 gradients is rounded to 255 steps between minus and plus its largest
    (`kernels.quantize`), and what rounding leaves is added to the next backward's. The ranks
    exchange bytes by `all_gather`, so it sends less than `all_reduce` in groups of up to 7 ranks.
    A gradient that is not finite makes the mean of its block NaN. Buckets of complex numbers are
    averaged as they are.

    Args:
        state: What was left out, of this module's backwards alone.
        bucket: The bucket.

    Returns:
        The future of the average, in `bucket.buffer`.

    Raises:
        TypeError: The state is no ErrorFeedback.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives, nn, parallel
        >>> from telegrad.testing import Cluster
        >>> def step() -> float:  # runs on every worker
        ...     collectives.init_process_group()
        ...     model = parallel.DistributedDataParallel(nn.Linear(2, 1))
        ...     model.register_comm_hook(parallel.ErrorFeedback(), parallel.int8_compress_hook)
        ...     model(np.array([[0.1, 1.0]], np.float32)).sum().backward()
        ...     return round(model.module.weight.grad.data[0, 0].item(), 4)  # 13 / 127
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [0.1024, 0.1024]
    """
    return _gathered(state, bucket, "int8_compress_hook", quantize, mean_quantized)


def top_k_compress_hook(
    state: ErrorFeedback, bucket: GradientBucket, *, share: float = 0.01
) -> Future[Array]:
    """Averages the largest gradients of a bucket on each rank; others are zero there.

    What a rank does not send is added to its gradients of the next backward, so that it grows until
    it is among the largest. A gradient takes 8 bytes, those of its place included. The ranks
    exchange them by `all_gather`. Buckets of complex numbers are averaged as they are.

        hook = functools.partial(parallel.top_k_compress_hook, share=0.001)
        model.register_comm_hook(parallel.ErrorFeedback(), hook)

    Args:
        state: What was left out, of this module's backwards alone.
        bucket: The bucket.
        share: The part of the gradients that is sent, above 0 and at most 1, the same on all ranks;
            at least one is sent.

    Returns:
        The future of the average, in `bucket.buffer`.

    Raises:
        TypeError: The state is no ErrorFeedback.
        ValueError: `share` is no such number.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives, nn, parallel
        >>> from telegrad.testing import Cluster
        >>> def step() -> list[float]:  # runs on every worker
        ...     collectives.init_process_group()
        ...     model = parallel.DistributedDataParallel(nn.Linear(2, 1, bias=False))
        ...     model.register_comm_hook(parallel.ErrorFeedback(), parallel.top_k_compress_hook)
        ...     model(np.array([[0.5, 2.0]], np.float32)).sum().backward()
        ...     return model.module.weight.grad.data[0].tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[0.0, 2.0], [0.0, 2.0]]
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is a number above 0 and at most 1, not {share!r}")
    pack = partial(pack_largest, k=math.ceil(share * bucket.buffer.size))
    return _gathered(state, bucket, "top_k_compress_hook", pack, mean_largest)


def _gathered(
    state: ErrorFeedback,
    bucket: GradientBucket,
    name: str,
    pack: Callable[[Array, Array], Array],
    mean: Callable[[Array, Array], None],
) -> Future[Array]:
    """Averages what `pack` makes of a bucket and its rest, by an exchange of all ranks."""
    if not isinstance(state, ErrorFeedback):
        raise TypeError(
            f"{name} keeps what it does not send in its state: write register_comm_hook("
            f"ErrorFeedback(), {name}), not a state of {type(state).__name__}"
        )
    buffer = bucket.buffer
    if not is_floating(buffer.dtype):
        return allreduce_hook(state.group, bucket)
    group = bucket.process_group if state.group is None else state.group
    packed = _pack_present(pack, bucket, state.rest_of(bucket))
    place = current_place(buffer)
    # An axis for the ranks: then ranks that pack different numbers of bytes get an error in words.
    row = packed.reshape(1, -1)
    work = all_gather_single(row, group=group, async_op=True, label=bucket.label)

    def average(done: Future[Array]) -> Array:
        rows = done.value()  # raises the error of the operation
        with working_in(place):
            mean(rows, buffer)
        return buffer

    return work.then(average)


def _pack_present(
    pack: Callable[[Array, Array], Array], bucket: GradientBucket, rest: Array
) -> Array:
    """Packs a bucket, with zeros for absent gradients, whose rests stay as they are.

    A rest that travelled would be lost if no rank has a gradient for its parameter: then the
    average for it is dropped.
    """
    if not bucket.absent:
        return pack(bucket.buffer, rest)
    parts = views_of(rest, [parameter.shape for parameter in bucket.parameters])
    kept = [(parts[i], parts[i].copy()) for i in bucket.absent]
    for part, _ in kept:
        part[...] = 0
    packed = pack(bucket.buffer, rest)
    for part, before in kept:
        part[...] = before
    return packed
