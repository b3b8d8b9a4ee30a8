"""Messages between two ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

from telegrad.collectives.algorithms.ring import AT_ONCE, cut_blocks, segments
from telegrad.collectives.api.calls import (
    check_tag,
    group_of,
    partner_of,
    signature_of,
    tell_partner,
    told_by,
    told_to_partner,
)
from telegrad.collectives.api.coalescing import check_outside
from telegrad.collectives.groups.process_group import ProcessGroup
from telegrad.collectives.link import EAGER_BYTES, Link, Steps
from telegrad.collectives.messages import ANY
from telegrad.collectives.on_device import CallOf, DeviceBackend, OnDevice
from telegrad.collectives.operation import Call
from telegrad.collectives.reduction import Staged, as_bytes, check_array, from_bytes
from telegrad.collectives.work import Work
from telegrad.rpc.seams import seconds
from telegrad.types import Array, Rank

T = TypeVar("T")


@told_to_partner
def send(
    array: Array,
    dst: Rank,
    *,
    tag: int = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> None:
    """Sends an array to one rank, which calls `recv`.

    The n-th `send` to a rank with a tag meets that rank's n-th `recv` from this one with the same
    tag. A small array is sent at once, up to an allowance; a larger one waits for its `recv`. When
    this returns, the array may be changed.

    Args:
        array: A NumPy or CuPy array, of the same shape and dtype as the receiver's.
        dst: The rank in the job to send to; not this one.
        tag: A number from 0.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Raises:
        ValueError: `dst` is no member or is this rank, or the tag is negative.
        CollectiveMismatchError: The receiver expects another shape or dtype, or has left.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.zeros(2)
        ...     if group.rank == 0:
        ...         collectives.send(np.array([1.0, 2.0]), dst=1)
        ...     else:
        ...         collectives.recv(x, src=0)
        ...     return x.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[0.0, 0.0], [1.0, 2.0]]
    """
    chosen = group_of(group)
    chosen.call(_send_call(array, dst, tag, chosen), timeout)


@told_to_partner
def recv(
    array: Array,
    src: Rank | None = None,
    *,
    tag: int = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> Rank:
    """Receives an array, in place, from one rank or from any; see `send`.

    Receives from any rank take messages in the order in which these come. A receive that names
    its source takes the messages of that source before them.

    Args:
        array: A NumPy or CuPy array, of the same shape and dtype as the sender's; it is written.
        src: The rank in the job to receive from, not this one; None for any rank.
        tag: A number from 0.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Returns:
        The rank in the job that has sent the array.

    Raises:
        ValueError: `src` is no member or is this rank, or the tag is negative.
        CollectiveMismatchError: The sender sent another shape or dtype, or all ranks that could
            send have left.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.zeros(2)
        ...     if group.rank == 0:
        ...         collectives.send(np.array([1.0, 2.0]), dst=1)
        ...     else:
        ...         collectives.recv(x, src=0)
        ...     return x.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[0.0, 0.0], [1.0, 2.0]]
    """
    chosen = group_of(group)
    return chosen.call(_recv_call(array, src, tag, chosen), timeout)


@told_to_partner
def isend(
    array: Array,
    dst: Rank,
    *,
    tag: int = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> Work[None]:
    """Starts a `send` and returns its Work; the array must not change until the Work is done.

    Args:
        array: As for `send`.
        dst: The rank in the job to send to; not this one.
        tag: A number from 0.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Raises:
        Exception: Any error of `send`, those of the message itself from the Work.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.zeros(2)
        ...     if group.rank == 0:
        ...         work = collectives.isend(np.array([1.0, 2.0]), dst=1)
        ...     else:
        ...         work = collectives.irecv(x, src=0)
        ...     work.wait()
        ...     return x.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[0.0, 0.0], [1.0, 2.0]]
    """
    chosen = group_of(group)
    return chosen.start(_send_call(array, dst, tag, chosen), timeout)


@told_to_partner
def irecv(
    array: Array,
    src: Rank | None = None,
    *,
    tag: int = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> Work[Rank]:
    """Starts a `recv` and returns its Work; the array belongs to the Work until it is done.

    Args:
        array: As for `recv`.
        src: The rank in the job to receive from, not this one; None for any rank.
        tag: A number from 0.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Returns:
        The Work, whose value is the rank in the job that has sent the array.

    Raises:
        Exception: Any error of `recv`, those of the message itself from the Work.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.zeros(2)
        ...     if group.rank == 0:
        ...         return collectives.irecv(x).wait(), x.tolist()  # from any rank
        ...     collectives.send(np.array([1.0, 2.0]), dst=0)
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [(1, [1.0, 2.0]), None]
    """
    chosen = group_of(group)
    return chosen.start(_recv_call(array, src, tag, chosen), timeout)


@final
@dataclass(frozen=True, slots=True, eq=False)
class P2POp:
    """One message of a `batch_isend_irecv`.

    Attributes:
        op: `isend` or `irecv`.
        array: The array to send, or to receive into.
        peer: The rank in the job at the other end; None for an `irecv` from any rank.
        group: The group; None for all workers.
        tag: A number from 0.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> collectives.P2POp(collectives.isend, np.zeros(2), 1).tag
        0

    Raises:
        ValueError: `op` is neither `isend` nor `irecv`.
    """

    op: Callable[..., Work[None] | Work[Rank]]
    array: Array
    peer: Rank | None = None
    group: ProcessGroup | None = None
    tag: int = 0

    def __post_init__(self) -> None:
        """Checks `op`."""
        if self.op not in (isend, irecv):
            raise ValueError(f"op must be isend or irecv, not {self.op!r}")


def _tell_partners(_: str, error: Exception, given: Mapping[str, Any]) -> None:
    for each in given.get("p2p_op_list", ()):
        if isinstance(each, P2POp):
            end = "dst" if each.op is isend else "src"
            named = {end: each.peer, "group": each.group, "tag": each.tag}
            tell_partner(each.op.__name__, error, named)


@told_by(_tell_partners)
def batch_isend_irecv(
    p2p_op_list: Sequence[P2POp], *, timeout: float | None = None
) -> list[Work[None] | Work[Rank]]:
    """Starts several messages; checks the arguments of all before it starts the first.

    The order of sends and receives does not matter. Messages from one rank to another with the
    same tag keep their order.

    Args:
        p2p_op_list: The messages.
        timeout: Seconds above 0 for each; None for the group's default; `math.inf` for no limit.

    Returns:
        A Work for each message, in their order.

    Raises:
        TypeError: `p2p_op_list` is no list of P2POp.
        Exception: Any error of `isend` and `irecv`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.zeros(2)
        ...     other, mine = 1 - group.rank, np.full(2, float(group.rank))
        ...     sending = collectives.P2POp(collectives.isend, mine, other)
        ...     receiving = collectives.P2POp(collectives.irecv, x, other)
        ...     for work in collectives.batch_isend_irecv([sending, receiving]):
        ...         work.wait()
        ...     return x.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[1.0, 1.0], [0.0, 0.0]]
    """
    if not isinstance(p2p_op_list, list | tuple) or not all(
        isinstance(each, P2POp) for each in p2p_op_list
    ):
        raise TypeError(f"batch_isend_irecv takes a list of P2POp, not {p2p_op_list!r}")
    calls: list[tuple[ProcessGroup, Call[Any]]] = []
    for each in p2p_op_list:
        group = group_of(each.group)
        make = _send_call if each.op is isend else _recv_call
        calls.append((group, make(each.array, each.peer, each.tag, group)))
    seconds(timeout, math.inf)  # else the first would raise it, and tell its partner alone
    return [group.start(call, timeout) for group, call in calls]


# -- the calls -----------------------------------------------------------------------------------


def _send_call(array: object, dst: object, tag: object, group: ProcessGroup) -> Call[None]:
    check_outside(group, "send")
    checked = check_array("send", array, written=False)
    to = partner_of("send", "dst", dst, group)
    staged = Staged(checked)

    async def run(link: Link) -> None:
        flat = staged.flat
        for s, part in enumerate(cut_blocks(flat, segments(flat.nbytes))):
            if s >= AT_ONCE:
                await link.signalled(to)  # an earlier one has come
            link.send(to, as_bytes(part), copy=True)

    return Call(
        signature=signature_of("send", checked, "", shape=checked.shape),
        run=run,
        in_turn=False,
        staged=[staged],
        channel=(group.rank, to, check_tag(tag)),
        on_device=_on_device(group, checked, lambda backend, _: backend.send(checked)),
    )


def _recv_call(array: object, src: object, tag: object, group: ProcessGroup) -> Call[Rank]:
    check_outside(group, "recv")
    checked = check_array("recv", array, written=True)
    source = ANY if src is None else partner_of("recv", "src", src, group)
    staged = Staged(checked)

    async def run(link: Link) -> Rank:
        sender = await link.sender() if source == ANY else source
        flat = staged.flat
        m = segments(flat.nbytes)
        for s, part in enumerate(cut_blocks(flat, m)):
            data = from_bytes(await link.receive(sender), checked.dtype, part.shape)
            if s + AT_ONCE < m:
                link.signal(sender)
            part[...] = data
        staged.write_back()
        return group.ranks[sender]

    async def receive(backend: DeviceBackend, _: CallOf) -> Rank:
        return group.ranks[await backend.receive(checked)]

    return Call(
        signature=signature_of("recv", checked, "", shape=checked.shape),
        run=run,
        in_turn=False,
        expected_bytes=checked.nbytes,
        channel=(source, group.rank, check_tag(tag)),
        on_device=_on_device(group, checked, receive),
    )


def _on_device(
    group: ProcessGroup, array: Array, run: Callable[[DeviceBackend, CallOf], Steps[T]]
) -> OnDevice[T] | None:
    """Returns the way by NCCL for an array that waits for its receiver; others leave at once."""
    if group.nccl is None or array.nbytes <= EAGER_BYTES:
        return None
    return OnDevice(arrays=[array], run=run)
