"""Messages between two ranks."""

from __future__ import annotations

from telegrad.collectives.api.calls import check_tag, group_of, partner_of, signature_of
from telegrad.collectives.link import Link
from telegrad.collectives.operation import Call
from telegrad.collectives.process_group import ProcessGroup
from telegrad.collectives.reduction import Staged, as_bytes, check_array, from_bytes
from telegrad.types import Array, Rank

__all__ = ["recv", "send"]


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


def recv(
    array: Array,
    src: Rank,
    *,
    tag: int = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> None:
    """Receives an array from one rank, in place; see `send`.

    Args:
        array: A NumPy or CuPy array, of the same shape and dtype as the sender's; it is written.
        src: The rank in the job to receive from; not this one.
        tag: A number from 0.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Raises:
        ValueError: `src` is no member or is this rank, or the tag is negative.
        CollectiveMismatchError: The sender sent another shape or dtype, or has left.
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
    chosen.call(_recv_call(array, src, tag, chosen), timeout)


def _send_call(array: object, dst: object, tag: object, group: ProcessGroup) -> Call[None]:
    """Returns the call of `send`; raises the errors of `send` for its arguments."""
    checked = check_array("send", array, written=False)
    to = partner_of("send", "dst", dst, group)
    staged = Staged(checked)

    async def run(link: Link) -> None:
        link.send(to, as_bytes(staged.flat.copy()))

    return Call(
        signature=signature_of("send", checked, ""),
        run=run,
        channel=(group.rank, to, check_tag(tag)),
        partner=to,
    )


def _recv_call(array: object, src: object, tag: object, group: ProcessGroup) -> Call[None]:
    """Returns the call of `recv`; raises the errors of `recv` for its arguments."""
    checked = check_array("recv", array, written=True)
    source = partner_of("recv", "src", src, group)
    staged = Staged(checked)

    async def run(link: Link) -> None:
        data = await link.receive(source)
        staged.flat[...] = from_bytes(data, checked.dtype, staged.flat.shape)
        staged.write_back()

    return Call(
        signature=signature_of("recv", checked, ""),
        run=run,
        channel=(source, group.rank, check_tag(tag)),
        partner=source,
    )
