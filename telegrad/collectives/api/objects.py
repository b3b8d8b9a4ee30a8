"""Collectives of Python objects: everything that an argument of a call may be, but RRefs.

Receivers get copies, as from a call. No gradient flows through them. An object that cannot travel
is an error on every rank, and the group goes on: the error travels in the place of the object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from telegrad.collectives.algorithms import objects as algorithms
from telegrad.collectives.algorithms.packing import (
    Packed,
    failed,
    pack,
    pack_error,
    receive_packed,
    send_packed,
    unpack,
)
from telegrad.collectives.api.calls import (
    check_tag,
    group_of,
    ordered,
    partner_of,
    place_of,
    told_to_group,
    told_to_partner,
)
from telegrad.collectives.api.coalescing import check_outside
from telegrad.collectives.groups.process_group import ProcessGroup
from telegrad.collectives.link import Link, Steps
from telegrad.collectives.messages import ANY, Channel, Signature
from telegrad.collectives.operation import Call
from telegrad.errors import DecodeError
from telegrad.types import Rank

T = TypeVar("T")


@told_to_group
def all_gather_object(
    obj: object, *, group: ProcessGroup | None = None, timeout: float | None = None
) -> list[Any]:
    """Returns copies of the objects of all ranks.

    Args:
        obj: An object that can be an argument of a call, but no RRef.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Returns:
        The objects by rank in the group.

    Raises:
        EncodeError: The object of a rank cannot travel; raised on all ranks, and the group
            goes on.
        Exception: Any error of `all_reduce`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     return collectives.all_gather_object({"rank": group.rank})
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[{'rank': 0}, {'rank': 1}], [{'rank': 0}, {'rank': 1}]]
    """
    chosen = group_of(group)
    own = _pack(chosen, obj, "obj")
    signature = Signature(operation="all_gather_object")
    gathered = _call(chosen, lambda link: algorithms.all_gather(link, own), timeout, signature)
    return [unpack(each) for each in gathered]


@told_to_group
def gather_object(
    obj: object,
    dst: Rank = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> list[Any] | None:
    """Returns copies of the objects of all ranks at one rank, None at the others.

    Args:
        obj: As for `all_gather_object`.
        dst: The rank in the job that gets the objects.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Returns:
        At `dst` the objects by rank in the group.

    Raises:
        EncodeError: The object of a rank cannot travel; raised on all ranks, and the group
            goes on.
        ValueError: `dst` is no member.
        Exception: Any error of `all_reduce`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     return collectives.gather_object("ab"[group.rank])
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [['a', 'b'], None]
    """
    chosen = group_of(group)
    root = place_of("dst", dst, chosen)
    own = _pack(chosen, obj, "obj")
    signature = Signature(operation="gather_object", root=chosen.ranks[root])
    gathered = _call(chosen, lambda link: algorithms.gather(link, own, root), timeout, signature)
    return None if gathered is None else [unpack(each) for each in gathered]


@told_to_group
def broadcast_object_list(
    object_list: list[Any],
    src: Rank = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> None:
    """Replaces the items of a list, in place, by copies of those of one rank.

    Args:
        object_list: A list of the same length on every rank; that of `src` keeps its items.
        src: The rank in the job whose objects are sent.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Raises:
        EncodeError: An object cannot travel; raised on all ranks, and the group
            goes on.
        TypeError: `object_list` is no list.
        ValueError: `src` is no member.
        CollectiveMismatchError: The lists have different lengths; raised on all ranks.
        Exception: Any error of `all_reduce`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     settings = [{"lr": 0.1}, None] if group.rank == 0 else [None, None]
        ...     collectives.broadcast_object_list(settings)
        ...     return settings
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[{'lr': 0.1}, None], [{'lr': 0.1}, None]]
    """
    chosen = group_of(group)
    root = place_of("src", src, chosen)
    length = _length_of("broadcast_object_list", object_list)

    own = _pack(chosen, object_list, "object_list") if chosen.rank == root else None
    signature = Signature(
        operation="broadcast_object_list", root=chosen.ranks[root], shape=(length,)
    )
    found = _call(chosen, lambda link: algorithms.broadcast(link, own, root), timeout, signature)
    if found is not None:
        object_list[:] = _as_list(unpack(found))
    elif own is not None and failed(own):
        unpack(own)  # raises the error


@told_to_group
def scatter_object_list(
    object_list: Sequence[object] | None = None,
    src: Rank = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> Any:
    """Returns a copy of the object that one rank has for this one.

    Args:
        object_list: At `src` an object for each rank, by rank in the group; None at other ranks.
        src: The rank in the job that has the objects.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Raises:
        EncodeError: An object cannot travel; raised on all ranks, and the group
            goes on.
        ValueError: `src` is no member. Or `object_list` is missing at `src`, has another length
            than the group, or is given at another rank.
        Exception: Any error of `all_reduce`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     shards = ["first", "second"] if group.rank == 0 else None
        ...     return collectives.scatter_object_list(shards)
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        ['first', 'second']
    """
    chosen = group_of(group)
    root = place_of("src", src, chosen)
    if chosen.rank != root and object_list is not None:
        raise ValueError(
            f"object_list is for rank {chosen.ranks[root]}, the source, alone; pass None here"
        )
    if chosen.rank == root and _length_of("scatter_object_list", object_list) != chosen.size:
        raise ValueError(
            f"scatter_object_list needs one object for each of the {chosen.size} ranks of group "
            f"{chosen.name!r} (got {len(object_list or ())})"
        )

    own = [_pack(chosen, each, f"object_list[{r}]") for r, each in enumerate(object_list or ())]
    own = [next(filter(failed, own), each) for each in own]  # one error goes to all

    signature = Signature(operation="scatter_object_list", root=chosen.ranks[root])
    return unpack(
        _call(chosen, lambda link: algorithms.scatter(link, own, root), timeout, signature)
    )


@told_to_partner
def send_object_list(
    object_list: list[Any],
    dst: Rank,
    *,
    tag: int = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> None:
    """Sends copies of objects to one rank, which calls `recv_object_list`; see `send`.

    Args:
        object_list: A list of the same length as the receiver's.
        dst: The rank in the job to send to; not this one.
        tag: A number from 0; arrays and objects of one tag are counted together.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Raises:
        EncodeError: An object cannot travel; the receiver raises it too, and the group goes on.
        CollectiveMismatchError: The receiver expects an array or a list of another length.
        Exception: Any error of `send`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     objects = [None, None]
        ...     if group.rank == 0:
        ...         collectives.send_object_list(["a", {"b": 1}], dst=1)
        ...     else:
        ...         collectives.recv_object_list(objects, src=0)
        ...     return objects
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[None, None], ['a', {'b': 1}]]
    """
    chosen = group_of(group)
    to = partner_of("send_object_list", "dst", dst, chosen)
    length = _length_of("send_object_list", object_list)

    own = _pack(chosen, object_list, "object_list")

    async def run(link: Link) -> None:
        send_packed(link, to, own)

    signature = Signature(operation="send_object_list", shape=(length,))
    _call(chosen, run, timeout, signature, (chosen.rank, to, check_tag(tag)))
    if failed(own):
        unpack(own)  # raises the error


@told_to_partner
def recv_object_list(
    object_list: list[Any],
    src: Rank | None = None,
    *,
    tag: int = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> Rank:
    """Replaces the items of a list, in place, by objects that one rank sends, or any.

    Args:
        object_list: A list of the same length as the sender's.
        src: The rank in the job to receive from, not this one; None for any rank.
        tag: A number from 0; arrays and objects of one tag are counted together.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Returns:
        The rank in the job that has sent the objects.

    Raises:
        EncodeError: An object of the sender cannot travel.
        CollectiveMismatchError: The sender sent an array or a list of another length.
        Exception: Any error of `recv`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     objects = [None]
        ...     if group.rank == 0:
        ...         collectives.send_object_list(["a"], dst=1)
        ...     else:
        ...         collectives.recv_object_list(objects)  # from any rank
        ...     return objects
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[None], ['a']]
    """
    chosen = group_of(group)
    source = ANY if src is None else partner_of("recv_object_list", "src", src, chosen)
    length = _length_of("recv_object_list", object_list)

    async def run(link: Link) -> tuple[int, Packed]:
        sender = await link.sender() if source == ANY else source
        return sender, await receive_packed(link, sender)

    signature = Signature(operation="recv_object_list", shape=(length,))
    channel = source, chosen.rank, check_tag(tag)
    sender, packed = _call(chosen, run, timeout, signature, channel)
    object_list[:] = _as_list(unpack(packed))
    return chosen.ranks[sender]


def _call(
    group: ProcessGroup,
    run: Callable[[Link], Steps[T]],
    timeout: float | None,
    signature: Signature,
    channel: Channel = None,
) -> T:
    check_outside(group, signature.operation)
    call = Call(signature=signature, run=run, in_turn=False, channel=channel)
    return (ordered(group) if channel is None else group).call(call, timeout)


def _pack(group: ProcessGroup, value: object, name: str) -> Packed:
    """Packs a value, or the error with which that fails; it names this rank, as all raise it."""
    try:
        return pack(value, f"{group.describe(group.rank)}: {name}")
    except Exception as error:  # of an encoder of the user's
        return pack_error(error)


def _length_of(verb: str, object_list: object) -> int:
    if not isinstance(object_list, list):
        raise TypeError(f"{verb} takes a list of objects, not {type(object_list).__name__}")
    return len(object_list)


def _as_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise DecodeError(f"a list of objects was expected, not {type(value).__name__}")
    return value
