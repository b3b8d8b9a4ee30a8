"""Collective operations on Tensors, through which gradients flow from rank to rank.

The gradient of a collective is the matching collective on the gradients of its results:

    all_reduce      ◀─▶ all_reduce             all_gather         ◀─▶ reduce_scatter
    reduce          ◀─▶ broadcast              all_gather_single  ◀─▶ reduce_scatter_single
    gather          ◀─▶ scatter                all_to_all         ◀─▶ all_to_all

Together the ranks differentiate the sum of their losses. So every rank runs the backward of every
collective, in one order: the one of the graph, which is the same wherever the programs are. Two
agreements are checked by labels, and a rank that differs raises `CollectiveMismatchError`
everywhere: a forward's label tells whether a gradient will flow, a backward's label holds the
number of its forward in the group.

Each backward is made of these functions, so `create_graph` records it, and it can be differentiated
to any order. A further backward goes through the forward again on the ranks whose first gradients
depend on its result: on all of them, or on none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, TypeAlias, final

import numpy as np

from telegrad import collectives
from telegrad.arrays import namespace
from telegrad.autograd import Function, FunctionContext, Tensor, as_tensor, is_grad_enabled
from telegrad.autograd.seams import array_of
from telegrad.collectives import ProcessGroup, ReduceOp
from telegrad.collectives.seams import check_outside
from telegrad.types import Array, Rank

__all__ = [
    "all_gather",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "scatter",
]

Value: TypeAlias = Tensor | Array


def all_reduce(
    tensor: Value,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    *,
    timeout: float | None = None,
    label: str = "",
) -> Tensor:
    """Returns the reduction of the Tensors of all ranks; its gradient is reduced alike.

    SUM and AVG cost what `collectives.all_reduce` costs, in the backward, too. With a gradient,
    MIN, MAX and PRODUCT copy the Tensors of all ranks to each rank, since the gradient depends on
    them. Equal extremes share the gradient, as in `numpy.max`.

    Args:
        tensor: A Tensor or an array, of the same shape and dtype on every rank, of any strides. It
            is not written. It requires a gradient on every rank or on none.
        op: The operation that combines items. With a gradient: SUM, AVG, MIN, MAX or PRODUCT.
        group: The group; None for all workers.
        timeout: Seconds above 0 for the forward and for each backward; None for the group's
            default; `math.inf` for no limit.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new Tensor on the device of `tensor`, which requires a gradient if `tensor` does.

    Raises:
        TypeError: `tensor` is no array, or `op` is no ReduceOp.
        ValueError: `op` has no meaning for the dtype, or is a PREMUL_SUM.
        CollectiveMismatchError: The ranks called different operations, or only some of them need a
            gradient; raised on all of them, and by `backward` if the backwards differ.
        CallTimeoutError: A rank, named in the message, did not come in time: in a backward, its
            loss may not depend on the result, or it has not called `backward`.
        Exception: Any other error of `collectives.all_reduce`.

    Example:
        >>> import telegrad as tg
        >>> from telegrad import collectives
        >>> from telegrad.parallel import functional
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = tg.tensor([1.0, group.rank], requires_grad=True)
        ...     total = functional.all_reduce(x)
        ...     ((group.rank + 1) * total).sum().backward()
        ...     return total.data.tolist(), x.grad.data.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)[0]
        ([2.0, 1.0], [3.0, 3.0])
    """
    call = _CollectiveCall("all_reduce", group, timeout, label, [tensor], op)
    if call.picks:
        return _pick(op, all_gather(tensor, **call.at))

    def forward(array: Array) -> list[Array]:
        result = array.copy()
        collectives.all_reduce(result, op, **call.at)
        return [result]

    return call.run(forward, lambda gradient: [all_reduce(gradient, op, **call.back)])[0]


def reduce(
    tensor: Value,
    dst: Rank = 0,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    *,
    timeout: float | None = None,
    label: str = "",
) -> Tensor:
    """Returns the reduction of the Tensors of all ranks at one rank, zeros at the others.

    The gradient of the result at `dst` goes to every rank. The zeros are constant, but the other
    ranks need them: a loss that depends on them, `zeros.sum()`, lets their backward take part.

    Args:
        tensor: As for `all_reduce`.
        dst: The rank in the job that gets the result.
        op: As for `all_reduce`.
        group: The group; None for all workers.
        timeout: As for `all_reduce`.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new Tensor in the shape of `tensor`, which requires a gradient if `tensor` does.

    Raises:
        ValueError: `dst` is no member.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import telegrad as tg
        >>> from telegrad import collectives
        >>> from telegrad.parallel import functional
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = tg.tensor([2.0 + group.rank], requires_grad=True)
        ...     total = functional.reduce(x)
        ...     (total * total).sum().backward()
        ...     return total.item(), x.grad.item()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [(5.0, 10.0), (0.0, 10.0)]
    """
    call = _CollectiveCall("reduce", group, timeout, label, [tensor], op)
    if call.picks:
        return _pick(op, gather(tensor, dst, **call.at))

    def forward(array: Array) -> list[Array]:
        result = array.copy()
        collectives.reduce(result, dst, op, **call.at)
        return [result if call.is_at(dst) else namespace(result).zeros_like(result)]

    return call.run(forward, lambda g: [call.averaged(broadcast(g, dst, **call.back))])[0]


def broadcast(
    tensor: Value,
    src: Rank = 0,
    group: ProcessGroup | None = None,
    *,
    timeout: float | None = None,
    label: str = "",
) -> Tensor:
    """Returns the Tensor of one rank; the gradients of all ranks add up there.

    Args:
        tensor: As for `all_reduce`. At ranks other than `src` it gives the shape and the dtype, and
            its gradient is zero.
        src: The rank in the job whose Tensor is sent.
        group: The group; None for all workers.
        timeout: As for `all_reduce`.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new Tensor in the shape of `tensor`, which requires a gradient if `tensor` does.

    Raises:
        ValueError: `src` is no member.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import telegrad as tg
        >>> from telegrad import collectives
        >>> from telegrad.parallel import functional
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = tg.tensor([2.0 + group.rank], requires_grad=True)
        ...     y = functional.broadcast(x, src=1)
        ...     (10.0**group.rank * y).sum().backward()
        ...     return y.item(), x.grad.item()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [(3.0, 0.0), (3.0, 11.0)]
    """
    call = _CollectiveCall("broadcast", group, timeout, label, [tensor])

    def forward(array: Array) -> list[Array]:
        result = array.copy()
        collectives.broadcast(result, src, **call.at)
        return [result]

    return call.run(forward, lambda gradient: [reduce(gradient, src, **call.back)])[0]


def all_gather(
    tensor: Value,
    group: ProcessGroup | None = None,
    *,
    timeout: float | None = None,
    label: str = "",
) -> list[Tensor]:
    """Returns the Tensors of all ranks; the gradients of each one add up at the rank it is from.

    Args:
        tensor: A Tensor or an array of the same dtype on every rank; shapes may differ. It is not
            written. It requires a gradient on every rank or on none.
        group: The group; None for all workers.
        timeout: As for `all_reduce`.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        New Tensors by rank in the group, which require a gradient if `tensor` does. A result that
        the loss does not depend on counts as one with gradient zero.

    Raises:
        Exception: Any error of `all_reduce`.

    Example:
        >>> import telegrad as tg
        >>> from telegrad import collectives
        >>> from telegrad.parallel import functional
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = tg.tensor(group.rank + 1.0, requires_grad=True)
        ...     first, second = functional.all_gather(x)
        ...     (first * second).backward()
        ...     return x.grad.item()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [4.0, 2.0]
    """
    call = _CollectiveCall("all_gather", group, timeout, label, [tensor])

    forward = partial(collectives.all_gather, **call.at)
    return call.run(forward, lambda *gradients: [reduce_scatter(gradients, **call.back)])


def all_gather_single(
    tensor: Value,
    group: ProcessGroup | None = None,
    *,
    timeout: float | None = None,
    label: str = "",
) -> Tensor:
    """Returns the Tensors of all ranks, joined along the first axis.

    Args:
        tensor: A Tensor or an array whose dtype and lengths of all axes but the first are the same
            on every rank; one without axes counts as one item. It is not written. It requires a
            gradient on every rank or on none.
        group: The group; None for all workers.
        timeout: As for `all_reduce`.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new Tensor, joined in the order of the ranks, which requires a gradient if `tensor` does.

    Raises:
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> import telegrad as tg
        >>> from telegrad import collectives
        >>> from telegrad.parallel import functional
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = tg.tensor(np.ones(group.rank + 1), requires_grad=True)
        ...     y = functional.all_gather_single(x)
        ...     (y * np.arange(3.0)).sum().backward()
        ...     return x.grad.data.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[0.0], [2.0, 4.0]]
    """
    call = _CollectiveCall("all_gather_single", group, timeout, label, [tensor])
    shape = call.tensors[0].shape

    def adjoint(gradient: Value) -> list[Tensor]:
        rows = np.array(shape[:1] or [1])
        lengths = collectives.all_gather_single(rows, **call.back).tolist()
        part = reduce_scatter_single(gradient, split_sizes=lengths, **call.back)
        return [part.reshape(shape)]

    return call.run(lambda array: [collectives.all_gather_single(array, **call.at)], adjoint)[0]


def gather(
    tensor: Value,
    dst: Rank = 0,
    group: ProcessGroup | None = None,
    *,
    timeout: float | None = None,
    label: str = "",
) -> list[Tensor]:
    """Returns the Tensors of all ranks at one rank, zeros at the others.

    Each rank gets the gradient that its Tensor has at `dst`. The other ranks need the zeros as
    those of `reduce`.

    Args:
        tensor: A Tensor or an array of the same dtype on every rank; shapes may differ. It is not
            written. It requires a gradient on every rank or on none.
        dst: The rank in the job that gets the Tensors.
        group: The group; None for all workers.
        timeout: As for `all_reduce`.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        At `dst` new Tensors by rank in the group; elsewhere as many zeros in the shape of `tensor`.
        They require a gradient if `tensor` does.

    Raises:
        ValueError: `dst` is no member.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import telegrad as tg
        >>> from telegrad import collectives
        >>> from telegrad.parallel import functional
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = tg.tensor(group.rank + 1.0, requires_grad=True)
        ...     first, second = functional.gather(x)
        ...     (first * second).backward()
        ...     return x.grad.item()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [2.0, 1.0]
    """
    call = _CollectiveCall("gather", group, timeout, label, [tensor])

    def forward(array: Array) -> Any:
        parts = collectives.gather(array, dst, **call.at)
        if parts is None:
            return [namespace(array).zeros_like(array) for _ in range(call.group.size)]
        return parts

    def adjoint(*gradients: Value) -> list[Tensor]:
        if call.is_at(dst):
            return [scatter(gradients[call.group.rank], gradients, dst, **call.back)]
        whole: Any = sum(gradients)  # of zeros in one shape: a backward of this needs their graphs
        return [scatter(whole, None, dst, **call.back)]

    return call.run(forward, adjoint)


def scatter(
    tensor: Value,
    scatter_list: Sequence[Value] | None = None,
    src: Rank = 0,
    group: ProcessGroup | None = None,
    *,
    timeout: float | None = None,
    label: str = "",
) -> Tensor:
    """Returns the part that one rank has for this one; the gradients of the parts go back there.

    Args:
        tensor: A Tensor or an array in the shape of this rank's part and of one dtype on every
            rank. It is not written; its gradient is zero. It requires a gradient if a part does.
        scatter_list: At `src` a Tensor or an array for each rank, by rank in the group; None at
            other ranks.
        src: The rank in the job that has the parts.
        group: The group; None for all workers.
        timeout: As for `all_reduce`.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new Tensor, which requires a gradient if `tensor` or a part does.

    Raises:
        ValueError: `src` is no member. Or `scatter_list` is missing at `src`, is given at another
            rank, or holds arrays of another number, dtype or shape.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import telegrad as tg
        >>> from telegrad import collectives
        >>> from telegrad.parallel import functional
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     parts = [tg.tensor(x, requires_grad=True) for x in (3.0, 5.0)]
        ...     y = functional.scatter(parts[0], parts if group.rank == 0 else None)
        ...     (y * y).backward()
        ...     return y.item(), [part.grad.item() for part in parts if part.grad is not None]
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [(3.0, [6.0, 10.0]), (5.0, [0.0])]
    """
    given = [] if scatter_list is None else list(scatter_list)
    call = _CollectiveCall("scatter", group, timeout, label, [tensor, *given])
    has_parts = bool(given)

    def forward(array: Array, *parts: Array) -> list[Array]:
        result, sent = array.copy(), None if scatter_list is None else parts
        collectives.scatter(result, sent, src, **call.at)
        return [result]

    def adjoint(gradient: Value) -> list[Tensor | None]:
        parts = gather(gradient, src, **call.back)
        return [None, *parts] if has_parts else [parts[call.group.rank]]

    return call.run(forward, adjoint)[0]


def reduce_scatter(
    tensors: Sequence[Value],
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    *,
    timeout: float | None = None,
    label: str = "",
) -> Tensor:
    """Returns the reduction of the Tensors that all ranks have for this rank.

    Args:
        tensors: A Tensor or an array for each rank, by rank in the group, all of one dtype. The
            r-th ones have the same shape on every rank. They are not written. One of them requires
            a gradient on every rank, or none does on any.
        op: As for `all_reduce`.
        group: The group; None for all workers.
        timeout: As for `all_reduce`.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new Tensor, which requires a gradient if one of `tensors` does.

    Raises:
        TypeError: `tensors` is no list of Tensors or arrays.
        ValueError: There is not one for each rank, or their dtypes differ.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import telegrad as tg
        >>> from telegrad import collectives
        >>> from telegrad.parallel import functional
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     parts = [tg.tensor(x, requires_grad=True) for x in (3.0, 5.0)]
        ...     y = functional.reduce_scatter(parts)
        ...     (y * y).backward()
        ...     return y.item(), [part.grad.item() for part in parts]
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [(6.0, [12.0, 20.0]), (10.0, [12.0, 20.0])]
    """
    call = _CollectiveCall("reduce_scatter", group, timeout, label, tensors, op)
    if call.picks:
        return _pick(op, all_to_all(tensors, **call.at))

    def adjoint(gradient: Value) -> list[Tensor]:
        return [call.averaged(part) for part in all_gather(gradient, **call.back)]

    return call.run(lambda *arrays: [collectives.reduce_scatter(arrays, op, **call.at)], adjoint)[0]


def reduce_scatter_single(
    tensor: Value,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    *,
    timeout: float | None = None,
    split_sizes: Sequence[int] | None = None,
    label: str = "",
) -> Tensor:
    """Returns this rank's part of the reduction of the Tensors of all ranks.

    Args:
        tensor: As for `all_reduce`, with at least one axis.
        op: As for `all_reduce`.
        group: The group; None for all workers.
        timeout: As for `all_reduce`.
        split_sizes: The length of each rank's part of the first axis, by rank in the group, the
            same on every rank; None for equal parts.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new Tensor, which requires a gradient if `tensor` does.

    Raises:
        ValueError: The first axis has no equal parts, or `split_sizes` does not add up to it.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> import telegrad as tg
        >>> from telegrad import collectives
        >>> from telegrad.parallel import functional
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     x = tg.tensor(np.arange(3.0), requires_grad=True)
        ...     y = functional.reduce_scatter_single(x, split_sizes=[1, 2])
        ...     (y * y).sum().backward()
        ...     return y.data.tolist(), x.grad.data.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [([0.0], [0.0, 4.0, 8.0]), ([2.0, 4.0], [0.0, 4.0, 8.0])]
    """
    call = _CollectiveCall("reduce_scatter_single", group, timeout, label, [tensor], op)
    if call.picks:
        rows, n = all_to_all_single(tensor, None, split_sizes, **call.at), call.group.size
        return _pick(op, rows.reshape(n, rows.shape[0] // n, *rows.shape[1:]))

    def forward(array: Array) -> list[Array]:
        return [collectives.reduce_scatter_single(array, op, split_sizes=split_sizes, **call.at)]

    return call.run(forward, lambda g: [call.averaged(all_gather_single(g, **call.back))])[0]


def all_to_all(
    tensors: Sequence[Value],
    group: ProcessGroup | None = None,
    *,
    timeout: float | None = None,
    label: str = "",
) -> list[Tensor]:
    """Sends a Tensor to each rank, and returns the Tensors that the ranks have sent to this one.

    Args:
        tensors: A Tensor or an array for each rank, by rank in the group, of one dtype on all
            ranks; shapes may differ. They are not written. One of them requires a gradient on every
            rank, or none does on any.
        group: The group; None for all workers.
        timeout: As for `all_reduce`.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        New Tensors by rank in the group, which require a gradient if one of `tensors` does. A
        result that the loss does not depend on counts as one with gradient zero.

    Raises:
        TypeError: `tensors` is no list of Tensors or arrays.
        ValueError: There is not one for each rank, or their dtypes differ.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import telegrad as tg
        >>> from telegrad import collectives
        >>> from telegrad.parallel import functional
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     parts = [tg.tensor(x, requires_grad=True) for x in (3.0, 5.0)]
        ...     received = functional.all_to_all(parts)
        ...     (10.0**group.rank * sum(received)).backward()
        ...     return [part.grad.item() for part in parts]
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[1.0, 10.0], [1.0, 10.0]]
    """
    call = _CollectiveCall("all_to_all", group, timeout, label, tensors)

    return call.run(
        lambda *arrays: collectives.all_to_all(arrays, **call.at),
        lambda *gradients: all_to_all(gradients, **call.back),
    )


def all_to_all_single(
    tensor: Value,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    *,
    timeout: float | None = None,
    label: str = "",
) -> Tensor:
    """Sends a part of the Tensor to each rank, and joins the parts that come for this one.

    Args:
        tensor: A Tensor or an array with at least one axis. Its dtype and the lengths of its other
            axes are the same on every rank. It is not written. It requires a gradient on every rank
            or on none.
        output_split_sizes: The length of the part that each rank has for this one, by rank in the
            group, which is compared with the length that arrives; None for any lengths.
        input_split_sizes: The length of the part for each rank, by rank in the group; None for
            equal parts.
        group: The group; None for all workers.
        timeout: As for `all_reduce`.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new Tensor, joined in the order of the ranks, which requires a gradient if `tensor` does.

    Raises:
        ValueError: The first axis has no equal parts, or the lengths do not add up to it.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> import telegrad as tg
        >>> from telegrad import collectives
        >>> from telegrad.parallel import functional
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = tg.tensor(np.arange(3.0), requires_grad=True)
        ...     y = functional.all_to_all_single(x, input_split_sizes=[1, 2])
        ...     (10.0**group.rank * y).sum().backward()
        ...     return y.data.tolist(), x.grad.data.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [([0.0, 0.0], [1.0, 10.0, 10.0]), ([1.0, 2.0, 1.0, 2.0], [1.0, 10.0, 10.0])]
    """
    call = _CollectiveCall("all_to_all_single", group, timeout, label, [tensor])
    shape, sent = call.tensors[0].shape, copy(input_split_sizes)

    def forward(array: Array) -> list[Array]:
        splits = output_split_sizes, input_split_sizes
        return [collectives.all_to_all_single(array, *splits, **call.at)]

    def adjoint(gradient: Value) -> list[Tensor]:
        n = call.group.size
        lengths = [shape[0] // n] * n if sent is None else [*sent]
        came = collectives.all_to_all_single(np.array(lengths), **call.back).tolist()
        return [all_to_all_single(gradient, lengths, came, **call.back)]

    return call.run(forward, adjoint)[0]


# -- one call, and its place in the graph --------------------------------------------------------
#
#     forward(arrays) ──▶ results ─ ... ─▶ loss          adjoint, made of the functions above:
#     gradients of arrays ◀── adjoint(gradients of results)    so it can be differentiated again

# The reductions whose gradient depends on the Tensors of all ranks.
_PICKS: Final[dict[ReduceOp, Callable[..., Any]]] = {
    ReduceOp.MIN: np.min,
    ReduceOp.MAX: np.max,
    ReduceOp.PRODUCT: np.prod,
}


def _pick(op: ReduceOp, parts: Any) -> Tensor:
    reduced: Tensor = _PICKS[op](np.stack(parts) if isinstance(parts, list) else parts, axis=0)
    return reduced


@final
class _CollectiveCall:
    """One call of a collective.

    Args:
        verb: The name of the function.
        group: The group; None for all workers.
        timeout: The caller's limit.
        label: The caller's name for it.
        values: The Tensors or arrays.
        op: The reduction, if it is one.

    Attributes:
        group: The group.
        tensors: The Tensors.
        records: True if a gradient will flow.
        picks: True if the reduction has to be made of another collective, for its gradient.
        at: The group, the limit and the label of the forward, as arguments.
        back: The same of the backward.
    """

    def __init__(
        self,
        verb: str,
        group: ProcessGroup | None,
        timeout: float | None,
        label: str,
        values: Sequence[Value],
        op: ReduceOp | None = None,
    ) -> None:
        if not isinstance(values, list | tuple):
            raise TypeError(f"{verb} takes a list of Tensors, not {type(values).__name__}")
        if not isinstance(label, str):
            raise TypeError(f"label must be a str, not {label!r}")
        self.group = collectives.world_group() if group is None else group
        collectives.get_world_size(self.group)  # raises where it is no group
        check_outside(self.group, f"functional.{verb}")  # its backward, too
        self.tensors = [as_tensor(value) for value in values]
        self.records = is_grad_enabled() and any(each.requires_grad for each in self.tensors)
        self._op = op
        if isinstance(op, type(ReduceOp.PREMUL_SUM(1))):
            raise ValueError(
                f"functional.{verb} takes no PREMUL_SUM; multiply the Tensor by the factor, and "
                "use ReduceOp.SUM"
            )
        self.picks = self.records and op in _PICKS
        if self.picks and op is not ReduceOp.PRODUCT and self.tensors[0].dtype.kind == "c":
            raise ValueError(f"{op} has no meaning for the dtype {self.tensors[0].dtype}")
        named = f"{label}, " if label else ""
        of = "" if op is None or not self.picks else f" of {op.name}"
        note = f"{named}functional.{verb}{of}, requires_grad={self.records}"
        self.at: dict[str, Any] = {"group": self.group, "timeout": timeout, "label": note}
        number = self.group.statistics().operations + 1
        note = f"{named}backward of functional.{verb} (operation {number})"
        self.back = self.at | {"label": note}

    def is_at(self, rank: Rank) -> bool:
        """Returns True if this worker has that rank in the job."""
        return self.group.ranks[self.group.rank] == rank

    def averaged(self, gradient: Tensor) -> Tensor:
        """Returns the share of one rank in the gradient of a mean."""
        if self._op is not ReduceOp.AVG:
            return gradient
        return gradient / self.group.size

    def run(
        self, forward: Callable[..., Sequence[Array]], adjoint: Callable[..., Sequence[Any]]
    ) -> list[Tensor]:
        """Returns the results of `forward` as Tensors, whose gradients go through `adjoint`."""
        tensors, self.tensors = self.tensors, []  # `adjoint` lives as long as the graph
        return list(_Exchange.apply(forward, adjoint, *tensors))


@final
class _Exchange(Function):
    """A linear function of the Tensors of all ranks."""

    @staticmethod
    def forward(ctx: FunctionContext, *args: Any) -> Any:
        """Runs the collective."""
        forward, adjoint, *arrays = args
        results = tuple(forward(*arrays))
        ctx.__dict__.update(adjoint=adjoint, like=[(each.shape, each.dtype) for each in results])
        return results

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Any) -> Any:
        """Runs the collective on the gradients, with zeros for those that no loss depends on.

        If it is recorded, each of them requires a gradient, as other ranks' may.
        """
        adjoint, like = ctx.__dict__["adjoint"], ctx.__dict__["like"]
        recorded, first = is_grad_enabled(), next(g for g in gradients if g is not None)
        xp = namespace(array_of(first))
        filled = []
        for gradient, (shape, dtype) in zip(gradients, like, strict=True):
            whole = xp.zeros(shape, dtype) if gradient is None else gradient
            if recorded and not (isinstance(whole, Tensor) and whole.requires_grad):
                whole = Tensor(array_of(whole), requires_grad=True)
            filled.append(whole)
        return None, None, *adjoint(*filled)
