"""The parts that all verbs share: checked arguments, and the signatures of their calls."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, wraps
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from telegrad.arrays import joined_flat, views_of
from telegrad.collectives.api.branch import current_branch
from telegrad.collectives.groups.groups import Groups
from telegrad.collectives.groups.process_group import ProcessGroup, refuse
from telegrad.collectives.link import Backend, Link, Steps
from telegrad.collectives.messages import Signature, dtype_label
from telegrad.collectives.on_device import CallOf, DeviceBackend, OnDevice
from telegrad.collectives.operation import Call, CallsOf, Join
from telegrad.collectives.reduction import PremulSum, Staged, check_array
from telegrad.errors import NotInitializedError, TelegradError
from telegrad.rpc.seams import current_agent
from telegrad.types import Array, Shape

P = ParamSpec("P")
T = TypeVar("T")

MOST_TAG: Final = 2**63 - 1  # messages have eight bytes for it


def group_of(group: object) -> ProcessGroup:
    """Returns the group that an argument means.

    Raises:
        TypeError: It is neither a group nor None.
        NotInitializedError: It is None, and there is no group of all workers.
    """
    if group is None:
        return current_agent().attachments[Groups].current_world()
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            f"group must be a ProcessGroup or None, not {group!r}; new_group(ranks) makes one"
        )
    return group


def ordered(group: ProcessGroup) -> ProcessGroup:
    """Returns the group in whose order a call here takes part: this one, or a branch of it."""
    branch = current_branch()
    if branch is None:
        return group
    return current_agent().attachments[Groups].branch(group, branch.key, branch.name)


# Tells the ranks that wait for a verb of its error; the mapping has the arguments of the call.
Tell: TypeAlias = Callable[[str, Exception, Mapping[str, Any]], None]


def told_by(tell: Tell) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes a verb tell the other ranks, which wait for this one, of wrong arguments."""

    def telling(verb: Callable[P, T]) -> Callable[P, T]:
        @wraps(verb)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return verb(*args, **kwargs)
            except (TypeError, ValueError) as error:
                if not isinstance(error, TelegradError):
                    with suppress(TypeError, NotInitializedError):  # there is no group to tell
                        given = inspect.signature(verb).bind_partial(*args, **kwargs).arguments
                        tell(verb.__name__, error, given)
                raise

        return called

    return telling


def _tell_group(verb: str, error: Exception, given: Mapping[str, Any]) -> None:
    refuse(ordered(group_of(given.get("group"))), verb, error)


def tell_partner(verb: str, error: Exception, given: Mapping[str, Any]) -> None:
    """Tells the other end of a message, or all ranks that may be it if the call names none.

    Each of them gets the error in its next message with this rank under the tag of the call, or
    under 0 if that is wrong.
    """
    group, tag = group_of(given.get("group")), 0
    with suppress(TypeError, ValueError):
        tag = check_tag(given.get("tag", 0))
    ends = [r for r in range(group.size) if r != group.rank]
    with suppress(TypeError, ValueError):
        ends = [partner_of(verb, "rank", given.get("dst", given.get("src")), group)]
    for r in ends:
        refuse(group, verb, error, (group.rank, r, tag) if "send" in verb else (r, group.rank, tag))


told_to_group = told_by(_tell_group)
told_to_partner = told_by(tell_partner)


def place_of(what: str, rank: object, group: ProcessGroup) -> int:
    """Returns the rank in the group of a rank in the job.

    Raises:
        TypeError: The rank is no integer.
        ValueError: The rank is not a member of the group.
    """
    if type(rank) is not int and (isinstance(rank, bool) or not isinstance(rank, numbers.Integral)):
        raise TypeError(f"{what} must be a rank of the job, not {rank!r}")
    try:
        return group.ranks.index(int(rank))
    except ValueError:
        raise ValueError(
            f"{what} {rank} is no member of group {group.name!r} (ranks: {list(group.ranks)}); "
            f"{what} is a rank of the job"
        ) from None


def partner_of(verb: str, what: str, rank: object, group: ProcessGroup) -> int:
    """Returns the rank in the group of the other end of a message; raises as `place_of`."""
    place = place_of(what, rank, group)
    if place == group.rank:
        raise ValueError(f"{verb} needs another rank, and {what} {rank} is this one")
    return place


def check_tag(tag: object) -> int:
    """Returns a tag.

    Raises:
        TypeError: The tag is no integer.
        ValueError: The tag is negative, or above `MOST_TAG`.
    """
    checked = check_integer("tag", tag)
    if checked < 0:
        raise ValueError(f"tag must not be negative (got {tag})")
    if checked > MOST_TAG:
        raise ValueError(f"tag must be at most {MOST_TAG} (got {tag})")
    return checked


def check_integer(what: str, value: object) -> int:
    """Returns an integer of Python for any integer; raises TypeError for all else, bools too."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{what} must be an integer, not {value!r}")
    return int(value)


def check_parts(verb: str, arrays: object, group: ProcessGroup) -> list[Array]:
    """Returns the arrays for all ranks, by rank in the group.

    Raises:
        TypeError: They are no list of arrays, or `check_array` refuses one of them.
        ValueError: Their number is not that of the ranks, or their dtypes differ.
    """
    if not isinstance(arrays, list | tuple):
        raise TypeError(
            f"{verb} takes a list of arrays, one for each rank, not {type(arrays).__name__}"
        )
    if len(arrays) != group.size:
        raise ValueError(
            f"{verb} needs one array for each of the {group.size} ranks of group {group.name!r} "
            f"(got {len(arrays)})"
        )
    parts = [check_array(verb, each, written=False) for each in arrays]
    labels = sorted({dtype_label(part.dtype) for part in parts})
    if len(labels) > 1:
        raise ValueError(f"{verb} takes arrays of one dtype, not {' and '.join(labels)}")
    return parts


def check_splits(what: str, splits: object, array: Array, group: ProcessGroup) -> list[int]:
    """Returns the lengths of the parts into which the first axis of an array is cut.

    Args:
        what: The argument, for errors.
        splits: The lengths, by rank in the group; None for equal ones.
        array: The array.
        group: The group.

    Raises:
        TypeError: The lengths are no list of integers.
        ValueError: They do not add up to the length of the first axis.
    """
    if not array.shape:
        raise ValueError("an array without axes cannot be split between ranks; reshape it to (1,)")
    rows, n = array.shape[0], group.size
    if splits is not None:
        lengths = check_lengths(what, splits, group)
        if sum(lengths) != rows:
            raise ValueError(
                f"{what} {lengths} must add up to {rows}, the length of the first axis"
            )
        return lengths
    if rows % n:
        raise ValueError(
            f"the first axis, of length {rows}, cannot be cut into {n} equal parts; state {what}"
        )
    return [rows // n] * n


def check_lengths(what: str, lengths: object, group: ProcessGroup) -> list[int]:
    """Returns one length for each rank of a group.

    Raises:
        TypeError: The lengths are no list of integers.
        ValueError: There is not one for each rank, or one is negative.
    """
    if not isinstance(lengths, list | tuple):
        raise TypeError(f"{what} must be a list of integers, not {lengths!r}")
    checked = [check_integer(f"each length in {what}", each) for each in lengths]
    if len(checked) != group.size or min(checked) < 0:
        raise ValueError(
            f"{what} needs one length from 0 for each of the {group.size} ranks (got {lengths!r})"
        )
    return checked


def cut_shapes(array: Array, lengths: Sequence[int]) -> list[Shape]:
    """Returns the shapes of the parts into which `cut_rows` cuts an array."""
    return [(length, *array.shape[1:]) for length in lengths]


# Runs a verb by a backend, on arrays that are on the host or that a GPU keeps.
RunOn: TypeAlias = Callable[[Any, Sequence[Array], CallOf], Steps[Any]]


def array_call(
    group: ProcessGroup,
    signature: Signature,
    arrays: Sequence[Array],
    run: RunOn,
    *,
    flat: bool = False,
    written: bool = False,
    join: Join | None = None,
    by_gpu: RunOn | None = None,
    by_nccl: bool = True,
    heard: bool = False,
    factor: PremulSum | None = None,
) -> Call[Any]:
    """Returns the call of a verb that a backend runs.

    Args:
        group: The group.
        signature: The call, for the other ranks.
        arrays: The user's arrays: one, or one for each rank, or with `scatter` both.
        run: Runs the verb on contiguous copies of the arrays on the host, or on the arrays
            themselves where these are contiguous. Its result goes to their device.
        flat: True if `run` takes them with one axis.
        written: As for `Call`.
        join: As for `Call`.
        by_gpu: Runs the verb on the arrays where they are, if a GPU has all of them; None if no
            backend of GPUs can do so.
        by_nccl: As for `OnDevice`.
        heard: As for `OnDevice`.
        factor: As for `Staged`.
    """
    staged = [Staged(each, factor) for each in arrays]

    async def run_on_host(link: Link) -> Any:
        backend = await link.backend()
        hosted = [each.flat if flat else each.shaped for each in staged]
        value = await run(backend, hosted, link.call_of)
        if written:
            staged[0].write_back()
        if value is None:
            return None
        own = staged[link.rank % len(staged)]
        return list(map(own.to_user, value)) if isinstance(value, list) else own.to_user(value)

    on_device: OnDevice[Any] | None = None
    if by_gpu is not None and group.nccl is not None:

        async def run_on_device(backend: DeviceBackend, call_of: CallOf) -> Any:
            value = await by_gpu(backend, arrays, call_of)
            return [*value] if isinstance(value, list) else value

        on_device = OnDevice(arrays=arrays, run=run_on_device, heard=heard, by_nccl=by_nccl)
    return Call(
        signature=signature,
        run=run_on_host,
        staged=staged,
        written=written,
        join=join,
        on_device=on_device,
    )


async def join_in_place(
    run: RunOn, backend: Backend, pieces: Sequence[Call[Any]], calls_of: CallsOf
) -> list[None]:
    """Runs calls that replace their arrays as one on the joined array."""
    staged = [each.staged[0] for each in pieces]
    flat = joined_flat([each.flat for each in staged])
    await run(backend, [flat], lambda r: calls_of(r)[0])
    for each, values in zip(
        staged, views_of(flat, [each.flat.shape for each in staged]), strict=True
    ):
        if len(staged) > 1:
            each.flat[...] = values
        each.write_back()
    return [None] * len(staged)


def signature_of(
    operation: str,
    array: Array,
    label: object,
    *,
    op: str = "",
    root: int = -1,
    shape: Shape | None = None,
    parts: Sequence[Shape] = (),
    wanted: Sequence[Shape] = (),
) -> Signature:
    """Returns the signature of a call with arrays.

    Args:
        operation: The name of the verb.
        array: An array of the dtype of all.
        label: The caller's name for the operation.
        op: The name of the reduction.
        root: The rank in the job that the data comes from or goes to.
        shape: The shape of the array that all ranks pass.
        parts: The shapes of the arrays for each rank.
        wanted: The shapes that are expected from each rank.

    Raises:
        TypeError: The label is no text.
    """
    if not isinstance(label, str):
        raise TypeError(f"label must be a str, not {label!r}")
    labelled = dtype_label(array.dtype)
    said = operation, op, root, labelled, shape, tuple(parts), tuple(wanted), label
    return _known_signature(*said)


# A program does the same again and again.
_known_signature = lru_cache(1024)(Signature)
