"""Process groups: made, left, and asked for ranks.

Rank arguments of all verbs are ranks of the job; `get_rank(group)` returns the rank within a group.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Final

from telegrad.collectives.api.calls import check_integer, group_of, place_of
from telegrad.collectives.backends import NCCL, GroupTerms
from telegrad.collectives.groups.groups import TIMEOUT, Groups
from telegrad.collectives.groups.process_group import ProcessGroup
from telegrad.collectives.link import MakeBackend
from telegrad.collectives.select import DEFAULT, Thresholds
from telegrad.errors import InvalidUseError
from telegrad.rpc import RpcOptions
from telegrad.rpc.seams import current_agent, find_agent, fresh_copy, seconds
from telegrad.types import Rank, WorkerInfo

ENTRY_POINTS: Final = "telegrad.backends"
VARIABLE: Final = "TELEGRAD_THRESHOLDS"
HOST: Final = "host"  # the name of telegrad's own backend


# These two import the composition root when they are called.


def init_process_group(
    backend: str | MakeBackend | None = None,
    *,
    name: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    timeout: float | None = TIMEOUT,
    options: RpcOptions | None = None,
    thresholds: Thresholds | None = None,
) -> ProcessGroup:
    """Joins the job, unless `init_rpc` has done so, and makes the group of all its workers.

    `init_rpc` may be called before or after; both mean the same job and the same agent.

    Args:
        backend: The name of a backend that an installed package adds, or a function that makes one
            (`docs/extend.md`), the same on every rank; by default `"host"`: messages, and shared
            memory. `"nccl"` is the same, but leaves CuPy arrays on the GPUs if each rank has one
            (`docs/collectives.md`).
        name: This worker's name; by default `TELEGRAD_NAME`, else `worker{rank}`.
        rank: This worker's rank, from 0; by default from the environment.
        world_size: The number of ranks; by default from the environment. If this worker has already
            joined, it is the size of the group, whose ranks start at 0; by default all ranks known
            so far. State it if workers join a job that has already started (`LocalWorkers`, late
            workers), so that all ranks mean the same group.
        init_method: As for `init_rpc`.
        timeout: The default timeout of an operation, in seconds above 0; None for 30 minutes;
            `math.inf` for no limit.
        options: As for `init_rpc`.
        thresholds: The sizes at which the group changes its algorithms, the same on every rank; by
            default those of the table that `TELEGRAD_THRESHOLDS` names, else the built-in ones.

    Returns:
        The default group, which operations use if no group is given.

    Raises:
        AlreadyInitializedError: There is a process group, or `init_rpc` got other arguments.
        WorkerLostError: A worker of the job is lost.
        ValueError: `TELEGRAD_THRESHOLDS` names no table of thresholds.
        InvalidUseError: No package adds the backend.
        Exception: Any error of `init_rpc`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     return group.rank, group.size
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [(0, 2), (1, 2)]
    """
    from telegrad import _distributed  # noqa: PLC0415 - a door

    terms = _terms_of(thresholds, backend, None)
    return _distributed.init_process_group(
        name=name,
        rank=rank,
        world_size=world_size,
        init_method=init_method,
        timeout=seconds(timeout, TIMEOUT),
        options=options,
        terms=terms,
    )


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Leaves one group, or all groups of this worker; idempotent, allowed in any state.

    Ranks that wait for an operation in which this one took no part get an error. If `init_rpc` was
    never called, leaving all groups also shuts the agent down gracefully.

    Args:
        group: The group to leave; None, or the group of all workers, for all groups.

    Raises:
        BlockingCallError: On an event loop that telegrad runs, if it has to shut the agent down.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     collectives.destroy_process_group()
        ...     collectives.init_process_group()  # may be made anew
        ...     return collectives.get_world_size()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [2, 2]
    """
    from telegrad import _distributed  # noqa: PLC0415 - a door

    agent = find_agent()
    if group is not None and agent is not None:
        groups = agent.attachments[Groups]
        if group_of(group) is not groups.world:
            groups.leave_alone(group)
            return
    _distributed.destroy_process_group()


def is_initialized() -> bool:
    """Returns True between `init_process_group` and `destroy_process_group`.

    Example:
        >>> from telegrad import collectives
        >>> collectives.is_initialized()
        False
    """
    agent = find_agent()
    return agent is not None and agent.attachments[Groups].world is not None


# Groups.


def world_group() -> ProcessGroup:
    """Returns the group of all workers of the job.

    Raises:
        NotInitializedError: `init_process_group` was not called.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     return collectives.world_group().rank
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [0, 1]
    """
    return group_of(None)


def new_group(
    ranks: Sequence[Rank],
    *,
    timeout: float | None = None,
    thresholds: Thresholds | None = None,
    backend: str | MakeBackend | None = None,
) -> ProcessGroup:
    """Makes a group of some workers; returns once each of them has called this.

    All members pass the same ranks in the same order. Two workers that are in several groups
    together must make these groups in the same order. Other workers may call it too, without any
    effect. After a failure, call it with the living workers to go on, whatever happened to other
    groups.

    Args:
        ranks: Ranks of the job, each once; a member's rank in the group is its position here.
        timeout: Seconds for this call, and the default timeout of the group's operations; None for
            that of `init_process_group`, which need not have been called.
        thresholds: The thresholds of the group. The first member hands its own to all, by default
            those of the group of all workers; another member that states some must state the same.
        backend: As for `init_process_group`, the same on every member; None for the backend of the
            group of all workers.

    Returns:
        The group. On a worker that is no member, a group of rank -1, which refuses all operations.

    Raises:
        TypeError: `ranks` is no sequence of integers.
        ValueError: `ranks` is empty, has a rank twice, or has a rank that the job does not have.
        CollectiveMismatchError: A member passed other ranks, thresholds or another backend, or
            waits in an operation for this one; raised on all members of both groups.
        WorkerLostError: A member is lost.
        CallTimeoutError: A member did not call it in time.
        NotInitializedError: No agent runs here.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     first = collectives.new_group([0])
        ...     return first.rank, collectives.get_rank()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [(0, 0), (-1, 1)]
    """
    groups = current_agent().attachments[Groups]
    parent = None if groups.world is None else groups.world.terms
    return _new_group(ranks, timeout, parent, thresholds, backend)


@contextmanager
def _told(verb: str, members: Sequence[WorkerInfo]) -> Iterator[None]:
    """Tells workers, which may wait for this one, if its block refuses the arguments of a verb."""
    try:
        yield
    except Exception as error:
        agent, told = current_agent(), fresh_copy(error)
        place = f"rank {agent.info.rank} ({agent.info.name!r})"
        told.add_note(f"raised by the arguments of {verb}() on {place}")
        others = [each for each in members if each != agent.info]
        agent.attachments[Groups].formations.refuse(others, told)
        raise


def _new_group(
    ranks: object,
    timeout: float | None,
    parent: GroupTerms | None,
    thresholds: Thresholds | None = None,
    backend: str | MakeBackend | None = None,
) -> ProcessGroup:
    agent = current_agent()
    with _told("new_group", agent.members.living()):
        checked = _check_ranks(ranks, agent.members.world_size)
    members = [agent.members.find(r) for r in checked]
    with _told("new_group", members if agent.info in members else ()):
        terms = _terms_of(thresholds, backend, parent)
        seconds(timeout, TIMEOUT)
    if terms.thresholds is None and checked[0] == agent.info.rank:  # hands its own to all
        terms = replace(terms, thresholds=(parent and parent.thresholds) or DEFAULT)
    return agent.attachments[Groups].form(checked, timeout, terms)


def new_subgroups(
    group_size: int, group: ProcessGroup | None = None, *, timeout: float | None = None
) -> tuple[ProcessGroup, list[ProcessGroup]]:
    """Cuts a group into groups of one size, of neighbours; all its members call this.

    Args:
        group_size: The size of each group; a divisor of that of the group.
        group: The group to cut; None for all workers.
        timeout: As for `new_group`.

    Returns:
        This worker's group, and all of them; in those of others this worker has rank -1.

    Raises:
        TypeError: `group_size` is no integer.
        ValueError: It does not divide the size of the group, or this worker is no member.
        Exception: Any error of `new_group`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     mine, every = collectives.new_subgroups(1)
        ...     return list(mine.ranks), len(every)
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [([0], 2), ([1], 2)]
    """
    parent = group_of(group)
    _check_member(parent)
    with _told("new_subgroups", parent.members):
        size = check_integer("group_size", group_size)
        if size < 1 or parent.size % size:
            raise ValueError(
                f"groups of {group_size} do not divide group {parent.name!r} of {parent.size} ranks"
            )
        seconds(timeout, TIMEOUT)
    slices = [parent.ranks[i : i + size] for i in range(0, parent.size, size)]
    groups = [_new_group(ranks, timeout, parent.terms) for ranks in slices]
    return next(each for each in groups if each.rank >= 0), groups


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[Rank]], *, timeout: float | None = None
) -> tuple[ProcessGroup | None, list[ProcessGroup]]:
    """Makes several groups without common members; all their members call this.

    Args:
        ranks_per_subgroup_list: The ranks of the job in each group.
        timeout: As for `new_group`.

    Returns:
        This worker's group, None if it is in no group; and all of them.

    Raises:
        ValueError: A rank is in two groups; no group was made.
        Exception: Any error of `new_group`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     mine, every = collectives.new_subgroups_by_enumeration([[1, 2], [0]])
        ...     return mine and list(mine.ranks)
        >>> with Cluster(3) as cluster:
        ...     cluster.run(step)
        [[0], [1, 2], [1, 2]]
    """
    members = current_agent().members
    with _told("new_subgroups_by_enumeration", members.living()):
        checked = [_check_ranks(ranks, members.world_size) for ranks in ranks_per_subgroup_list]
        _check_apart(checked)
        seconds(timeout, TIMEOUT)
    groups = [new_group(ranks, timeout=timeout) for ranks in checked]
    return next((each for each in groups if each.rank >= 0), None), groups


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] = (),
    *,
    timeout: float | None = None,
) -> ProcessGroup | None:
    """Makes groups of some members of a group, and returns that of this worker.

    Only the members of the new groups need call it.

    Args:
        parent_pg: The group; None for all workers.
        split_ranks: The members of each new group, as ranks inside `parent_pg`.
        timeout: As for `new_group`.

    Returns:
        This worker's new group; None if it is in none.

    Raises:
        ValueError: A rank is in two groups or not inside `parent_pg`, a group is empty, or this
            worker is no member of `parent_pg`.
        Exception: Any error of `new_group`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     mine = collectives.split_group(None, [[0], [1, 2]])
        ...     return list(mine.ranks)
        >>> with Cluster(3) as cluster:
        ...     cluster.run(step)
        [[0], [1, 2], [1, 2]]
    """
    parent = group_of(parent_pg)
    _check_member(parent)
    with _told("split_group", parent.members):
        checked = [_check_ranks(ranks, parent.size) for ranks in split_ranks]
        _check_apart(checked)
        seconds(timeout, TIMEOUT)
    for ranks in checked:
        if parent.rank in ranks:
            return _new_group([parent.ranks[r] for r in ranks], timeout, parent.terms)
    return None


def shrink_group(
    group: ProcessGroup | None = None,
    *,
    ranks_to_exclude: Sequence[Rank] = (),
    timeout: float | None = None,
) -> ProcessGroup:
    """Makes a group of the living members of a group, after a loss; all of them call this.

    The members keep their order. Ranks may know of different losses: they tell each other, and all
    make the same group. If a rank is lost meanwhile, it is left out too. The old group stays as it
    is: over after a loss, usable after a planned departure. After a loss of the new group, call
    this with the new group.

    Args:
        group: The old group; None for all workers.
        ranks_to_exclude: Ranks of the job that live and are left out, the same on every rank. They
            need not call it.
        timeout: Seconds for this call, and the default timeout of the new group's operations; None
            for that of the old group.

    Returns:
        The new group. It has this worker alone if that has lost all others, as one that is cut off.

    Raises:
        ValueError: This worker is no member or is excluded, or an excluded rank is no member.
        CollectiveMismatchError: A member excluded other ranks or makes another group; raised on
            all of them.
        EvictedError: The job goes on without this worker, which is lost for the others.
        WorkerLostError: Another member has given up this worker, and makes its group without it.
        CallTimeoutError: A member did not call it in time.
        NotInitializedError: No agent runs here.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker; rank 1 is lost
        ...     smaller = collectives.shrink_group()
        ...     return smaller.rank, smaller.ranks
        >>> with Cluster(3) as cluster:
        ...     _ = cluster.run(collectives.init_process_group)
        ...     cluster.kill(1)
        ...     cluster.run(step)
        [(0, (0, 2)), (1, (0, 2))]
    """
    chosen = group_of(group)
    _check_member(chosen)
    with _told("shrink_group", chosen.members):
        places = [place_of("ranks_to_exclude", rank, chosen) for rank in ranks_to_exclude]
        if chosen.rank in places:
            raise ValueError(
                f"rank {chosen.ranks[chosen.rank]} is among ranks_to_exclude: it is this worker, "
                "and only those that stay call shrink_group"
            )
        seconds(timeout, TIMEOUT)
    excluded = [chosen.members[place] for place in places]
    return current_agent().attachments[Groups].shrink(chosen, excluded, timeout)


def get_group_rank(group: ProcessGroup | None, global_rank: Rank) -> Rank:
    """Returns the rank inside a group of a rank of the job.

    Args:
        group: The group; None for all workers.
        global_rank: The rank of the job.

    Raises:
        ValueError: The rank is no member of the group.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     turned = collectives.new_group([1, 0])
        ...     return collectives.get_group_rank(turned, 0)
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [1, 1]
    """
    return place_of("global_rank", global_rank, group_of(group))


def get_global_rank(group: ProcessGroup | None, group_rank: Rank) -> Rank:
    """Returns the rank of the job of a rank inside a group.

    Args:
        group: The group; None for all workers.
        group_rank: The rank inside the group.

    Raises:
        TypeError: The rank is no integer.
        ValueError: The group has no such rank.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     turned = collectives.new_group([1, 0])
        ...     return collectives.get_global_rank(turned, 0)
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [1, 1]
    """
    chosen = group_of(group)
    rank = check_integer("group_rank", group_rank)
    if not 0 <= rank < chosen.size:
        raise ValueError(
            f"group {chosen.name!r} has the ranks 0 to {chosen.size - 1}, not {group_rank}"
        )
    return chosen.ranks[rank]


def get_process_group_ranks(group: ProcessGroup | None = None) -> list[Rank]:
    """Returns the ranks of the job of a group's members, in the order of their ranks inside it.

    Args:
        group: The group; None for all workers.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     return collectives.get_process_group_ranks(collectives.new_group([1, 0]))
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[1, 0], [1, 0]]
    """
    return list(group_of(group).ranks)


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Returns the number of this worker on its host, as the launcher states it in `LOCAL_RANK`.

    Args:
        fallback_rank: The value if no launcher has started this worker.

    Raises:
        InvalidUseError: No launcher has started this worker, and there is no fallback.

    Example:
        >>> from telegrad import collectives
        >>> collectives.get_node_local_rank(fallback_rank=0)
        0
    """
    stated = os.environ.get("LOCAL_RANK")
    if stated is not None:
        return int(stated)
    if fallback_rank is None:
        raise InvalidUseError(
            "LOCAL_RANK is not set, as no launcher has started this worker; use `telegrad run`, or "
            "pass fallback_rank="
        )
    return int(fallback_rank)


def get_rank(group: ProcessGroup | None = None) -> Rank:
    """Returns this worker's rank in a group; -1 if it is no member.

    Raises:
        NotInitializedError: `init_process_group` was not called.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     return collectives.get_rank()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [0, 1]
    """
    return group_of(group).rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Returns the number of members of a group.

    Raises:
        NotInitializedError: `init_process_group` was not called.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     return collectives.get_world_size()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [2, 2]
    """
    return group_of(group).size


def _check_ranks(ranks: object, world_size: int) -> tuple[int, ...]:
    if isinstance(ranks, str | bytes) or not isinstance(ranks, Sequence):
        raise TypeError(f"ranks must be a list of ranks, not {ranks!r}")
    found = tuple(check_integer("each rank of a group", rank) for rank in ranks)
    if not found:
        raise ValueError("a group needs at least one rank")
    if len(set(found)) < len(found):
        raise ValueError(f"each rank may be in a group once (got {list(found)})")
    outside = [rank for rank in found if not 0 <= rank < world_size]
    if outside:
        raise ValueError(
            f"ranks {outside} are not in this job, whose ranks go from 0 to {world_size - 1}"
        )
    return found


def _check_member(group: ProcessGroup) -> None:
    if group.rank < 0:
        raise ValueError(f"this worker is no member of group {group.name!r}")


def _check_apart(groups: Sequence[Sequence[int]]) -> None:
    counts = Counter(rank for ranks in groups for rank in ranks)
    twice = sorted(rank for rank, count in counts.items() if count > 1)
    if twice:
        raise ValueError(f"a rank may be in one group, but {twice} are in several")


# -- the terms of a group --------------------------------------------------------------------------


def _terms_of(thresholds: object, backend: object, inherited: GroupTerms | None) -> GroupTerms:
    """Returns the terms of a new group; the environment may name a table of thresholds.

    Args:
        thresholds: Thresholds, or None for those of the group from which this one is made.
        backend: A name, a function that makes a backend, or None for the same.
        inherited: The terms of that group; None if there is none.

    Raises:
        TypeError: An argument is something else.
        OSError: The table that the environment names cannot be read.
        ValueError: It is no table of thresholds.
        InvalidUseError: No package adds a backend of this name, or several do.
    """
    base = GroupTerms() if inherited is None else inherited
    if thresholds is None and inherited is None and os.environ.get(VARIABLE):
        thresholds = Thresholds.load(os.environ[VARIABLE])
    if thresholds is not None and not isinstance(thresholds, Thresholds):
        raise TypeError(
            f"thresholds must be collectives.Thresholds, not {thresholds!r}; Thresholds.load(path) "
            "reads a table"
        )
    name, maker = (base.backend, base.maker) if backend is None else _backend_of(backend)
    return GroupTerms(thresholds, name, maker)


_ON_HOST = 'backend="host", or leave it out: messages, and shared memory'
_ON_GPU = 'backend="nccl": NCCL for arrays on GPUs, messages or shared memory for others'
# Backends of torch and of other libraries, and what stands for them here.
_OF_TORCH = dict.fromkeys(("gloo", "mpi", "ucc", "cpu:gloo"), _ON_HOST) | dict.fromkeys(
    ("cuda:nccl", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo"), _ON_GPU
)


def _backend_of(backend: object) -> tuple[str, MakeBackend | None]:
    """Returns the name of a backend, and what makes it; raises as `_terms_of`."""
    if backend == HOST:
        return "", None
    if backend == NCCL:
        return NCCL, None
    if callable(backend):
        name = f"{backend.__module__}:{getattr(backend, '__qualname__', repr(backend))}"
        return name, backend
    if not isinstance(backend, str):
        raise TypeError(
            f"backend must be a name, or a function that makes a backend, not {backend!r}"
        )
    found = list({p.value: p for p in entry_points(group=ENTRY_POINTS, name=backend)}.values())
    if not found and (instead := _OF_TORCH.get(backend.lower())):
        raise InvalidUseError(
            f"no package adds a backend {backend!r}, which is torch's; write {instead}"
        )
    if len(found) != 1:
        known = sorted({HOST, NCCL, *(point.name for point in entry_points(group=ENTRY_POINTS))})
        raise InvalidUseError(
            f"{len(found) or 'no'} packages add a backend {backend!r} (known here: {known}); "
            f"install one with an entry point in the group {ENTRY_POINTS!r}, or pass the function "
            "itself"
        )
    try:
        made: MakeBackend = found[0].load()
    except Exception as error:
        raise InvalidUseError(
            f"the backend {backend!r} ({found[0].value}) cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    return backend, made
