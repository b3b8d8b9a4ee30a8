from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import strategies as st

from telegrad.rpc.rref.numbers import NumberSet
from telegrad.rpc.rref.protocol import (
    ChildAccept,
    CreationAbandon,
    ForkConfirm,
    ForkId,
    ForkRequest,
    ForkState,
    Freed,
    Orphaned,
    OwnerTable,
    RRefId,
    Send,
    Settled,
    UserDelete,
    UserTable,
)
from telegrad.types import WorkerInfo
from tests.repeated import on_examples
from tests.rpc.rref.world import N, World

OWNER, PARENT, CHILD = (WorkerInfo(name, r, 100 + r) for r, name in enumerate("OPC"))


def run_program(seed: int, steps: int, *, losses: bool) -> World:
    """Plays one random fork tree under one random schedule."""
    rng, world = random.Random(seed), World()
    for _ in range(steps):
        living, handles = world.living(), world.handles()
        draw = rng.random()
        if draw < 0.06:
            world.make(rng.choice(living))
        elif draw < 0.14:
            r, to = rng.sample(range(N), 2)
            if r in living:
                world.remote(r, to)
        elif draw < 0.40 and handles:
            world.send(*rng.choice(handles), rng.randrange(N))
        elif draw < 0.55 and handles:
            world.release(*rng.choice(handles))
        elif draw < 0.58 and handles:
            r, handle = rng.choice(handles)
            if isinstance(handle, ForkId):
                world.time_out(r, handle)
        elif draw < 0.63 and world.running:
            world.finish(rng.randrange(len(world.running)), good=rng.random() < 0.8)
        elif draw < 0.95 and world.flights:
            index, how = rng.randrange(len(world.flights)), rng.random()
            if how < 0.1:
                world.undeliver(index)
            else:
                world.deliver(index, keep=how < 0.25, refuse=how > 0.9)
        elif losses and draw < 0.965:
            world.lose(*rng.sample(range(N), 2))
        elif losses and draw < 0.97 and len(living) > 2:
            world.crash(rng.choice(living))
        elif losses:
            world.expire(*rng.sample(range(N), 2))
        world.check()
    world.drain()
    return world


@pytest.mark.parametrize("losses", [False, True])
def test_random_fork_trees_under_random_schedules(losses: bool) -> None:
    for seed in range(100):
        run_program(seed, 150, losses=losses)


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_many_random_fork_trees(block: int) -> None:
    for seed in range(1000 * block, 1000 * (block + 1)):
        run_program(seed, 200, losses=seed % 3 > 0)


def size_of(*tables: OwnerTable | UserTable) -> int:
    """Returns about how many bytes tables hold."""
    return len(pickle.dumps(tables))


def test_what_is_remembered_stays_small() -> None:
    """A tombstone per fork would grow for ever at a parameter server; runs do not."""
    owner, user = OwnerTable(OWNER), UserTable(CHILD)
    rref = owner.new()
    sizes: list[int] = []
    for _ in range(1000):
        fork = owner.make_fork(rref, CHILD)
        assert user.arrived(rref, fork, OWNER, OWNER) == (True, [])
        (delete,) = user.release(fork)
        assert delete == Send(OWNER, UserDelete(rref, fork))
        assert owner.user_delete(rref, fork) == []
        sizes.append(size_of(owner, user))
    assert max(sizes[10:]) < sizes[10] + 20  # larger numbers are written with more digits
    assert owner.drop(rref) == [Freed(rref)]


def test_a_parent_outlives_the_confirmation_of_its_child() -> None:
    """G2, drawn: the parent lets go first, the owner hears of its end last.

    owner          parent             child
      ├──── fork ────▶│                 │
      │               ├───── fork ─────▶│      the parent's handle goes
      │◀──────── ForkRequest ───────────┤
      ├───────── ForkConfirm ──────────▶│
      │               │◀── ChildAccept ─┤
      │◀─ UserDelete ─┤                 │
    """
    owner, parent, child = OwnerTable(OWNER), UserTable(PARENT), UserTable(CHILD)
    rref = owner.new()
    first = owner.make_fork(rref, PARENT)
    assert owner.drop(rref) == []
    assert parent.arrived(rref, first, OWNER, OWNER) == (True, [])
    second = parent.make_fork(first, CHILD)
    assert parent.release(first) == []
    assert child.arrived(rref, second, OWNER, PARENT) == (
        True,
        [Send(OWNER, ForkRequest(rref, second))],
    )
    assert child.state(second) is ForkState.PENDING
    assert owner.fork_request(rref, second, CHILD) == [Send(CHILD, ForkConfirm(second, True))]
    assert child.fork_confirm(second, known=True) == [
        Send(PARENT, ChildAccept(second)),
        Settled(second),
    ]
    assert parent.child_accept(second) == [Send(OWNER, UserDelete(rref, first))]
    assert owner.user_delete(rref, first) == []
    assert child.release(second) == [Send(OWNER, UserDelete(rref, second))]
    assert owner.user_delete(rref, second) == [Freed(rref)]


def test_a_lost_user_keeps_its_forks_for_one_bound() -> None:
    """G4: what the lost user forked before it died is still on its way to the owner."""
    owner = OwnerTable(OWNER)
    rref = owner.new()
    owner.make_fork(rref, PARENT)
    owner.drop(rref)
    assert owner.lost(PARENT) == []
    late = ForkId(OWNER.incarnation, PARENT.incarnation, CHILD.incarnation, 0)
    assert owner.fork_request(rref, late, CHILD) == [Send(CHILD, ForkConfirm(late, True))]
    assert owner.expire(PARENT) == []
    assert owner.user_delete(rref, late) == [Freed(rref)]


def test_a_pin_for_a_lost_child_stays_for_one_bound() -> None:
    parent = UserTable(PARENT)
    rref, fork = RRefId(100, 100, 0), ForkId(100, 100, 101, 0)
    parent.arrived(rref, fork, OWNER, OWNER)
    parent.make_fork(fork, CHILD)
    assert parent.release(fork) == []
    assert parent.lost(CHILD) == []
    assert parent.expire(CHILD) == [Send(OWNER, UserDelete(rref, fork))]


def test_forks_of_a_lost_owner_are_lost_for_good() -> None:
    user = UserTable(CHILD)
    rref, fork = RRefId(100, 100, 0), ForkId(100, 101, 102, 0)
    user.arrived(rref, fork, OWNER, PARENT)
    assert user.lost(OWNER) == [Send(PARENT, ChildAccept(fork)), Settled(fork)]
    assert user.fork_confirm(fork, known=True) == []
    assert user.state(fork) is ForkState.LOST
    assert user.release(fork) == []
    later = ForkId(100, 101, 102, 1)
    assert user.arrived(rref, later, OWNER, PARENT) == (True, [Send(PARENT, ChildAccept(later))])
    assert user.state(later) is ForkState.LOST


def test_every_user_hears_that_the_creation_failed() -> None:
    """By the answer to its request, with what the owner sends, or by one more message.

    owner            creator          parent           child
      │◀─── creation ───┤                │               │
      ├────── fork ──────────────────────▶│──── fork ───▶│     before it failed
      │◀────── ForkRequest ──────────────────────────────┤
      ├─────── ForkConfirm ──────────────────────────────▶│
      ├─ ForkConfirm, failed ────────────▶│─────────────▶│     but not to the creator
      ├─────── fork, failed ─────────────▶│               │    and what comes after
    """
    creator_info = WorkerInfo("creator", 3, 103)
    owner, creator = OwnerTable(OWNER), UserTable(creator_info)
    parent, child = UserTable(PARENT), UserTable(CHILD)
    rref, asked = creator.create(OWNER)
    assert owner.create(rref, asked, creator_info)
    first = owner.make_fork(rref, PARENT)
    parent.arrived(rref, first, OWNER, OWNER)
    second = parent.make_fork(first, CHILD)
    child.arrived(rref, second, OWNER, PARENT)
    assert owner.fork_request(rref, second, CHILD) == [Send(CHILD, ForkConfirm(second, True))]
    child.fork_confirm(second, known=True)
    assert {parent.state(first), child.state(second)} == {ForkState.CONFIRMED}
    told = owner.settle(rref, failed=True)
    assert told == [
        Send(PARENT, ForkConfirm(first, True, failed=True)),
        Send(CHILD, ForkConfirm(second, True, failed=True)),
    ]
    assert parent.fork_confirm(first, known=True, failed=True) == []
    assert child.fork_confirm(second, known=True, failed=True) == []
    assert {parent.state(first), child.state(second)} == {ForkState.FAILED}
    assert child.fork_confirm(second, known=True) == []  # repeated, or late
    assert child.state(second) is ForkState.FAILED
    third = child.make_fork(second, PARENT)
    parent.arrived(rref, third, OWNER, CHILD, failed=True)  # which only the owner may say
    assert parent.state(third) is ForkState.PENDING
    answer = ForkConfirm(third, True, failed=True)
    assert owner.fork_request(rref, third, PARENT) == [Send(PARENT, answer)]
    assert parent.fork_confirm(third, known=True, failed=True) == [
        Send(CHILD, ChildAccept(third)),
        Settled(third),
    ]
    assert parent.state(third) is ForkState.FAILED
    fourth = owner.make_fork(rref, CHILD)
    assert owner.failed(rref)
    assert child.arrived(rref, fourth, OWNER, OWNER, failed=True) == (True, [])
    assert child.state(fourth) is ForkState.FAILED
    assert child.release(fourth) == [Send(OWNER, UserDelete(rref, fourth))]


def test_a_user_that_was_told_too_early_is_told_again() -> None:
    """The word overtook the message with the fork; the answer to a fetch comes after the fork."""
    owner, user = OwnerTable(OWNER), UserTable(CHILD)
    rref = owner.new(creating=True)
    fork = owner.make_fork(rref, CHILD)
    again = [Send(CHILD, ForkConfirm(fork, True, failed=True))]
    assert owner.tell(rref, CHILD) == []
    assert owner.settle(rref, failed=True) == again
    assert user.fork_confirm(fork, known=True, failed=True) == []  # not known yet
    user.arrived(rref, fork, OWNER, OWNER)
    assert owner.tell(rref, PARENT) == []
    assert owner.tell(rref, CHILD) == again
    user.fork_confirm(fork, known=True, failed=True)
    assert user.state(fork) is ForkState.FAILED


def test_a_creation_that_was_never_sent_fails_whoever_waits_for_it() -> None:
    owner, creator = OwnerTable(OWNER), UserTable(CHILD)
    rref, fork = creator.create(OWNER)
    assert owner.hold(rref)  # it came home before its creation arrived
    assert creator.creation_failed(fork, delivered=False) == [
        Send(OWNER, CreationAbandon(rref)),
        Settled(fork),
    ]
    assert owner.abandon(rref) == [Orphaned(rref)]
    assert creator.release(fork) == []
    assert owner.drop(rref) == [Freed(rref)]
    assert not owner.hold(rref)


def test_a_creation_expected_from_a_lost_creator_fails() -> None:
    owner = OwnerTable(OWNER)
    rref = RRefId(OWNER.incarnation, CHILD.incarnation, 0)
    assert owner.hold(rref)
    assert owner.lost(CHILD) == [Orphaned(rref)]
    assert owner.drop(rref) == [Freed(rref)]
    assert not owner.hold(rref)


def test_a_call_in_flight_keeps_the_fork() -> None:
    user = UserTable(CHILD)
    rref, fork = RRefId(100, 100, 0), ForkId(100, 100, 102, 0)
    user.arrived(rref, fork, OWNER, OWNER)
    assert user.use(fork)
    assert user.release(fork) == []
    assert user.unuse(fork) == [Send(OWNER, UserDelete(rref, fork))]
    assert not user.use(fork)
    with pytest.raises(KeyError):
        user.make_fork(fork, PARENT)


@on_examples(st.randoms(use_true_random=True), st.integers(0, 80), st.integers(1, 10))
def test_numbers_are_joined_to_runs_and_closing_gaps_only_adds(
    chance: random.Random, count: int, most: int
) -> None:
    numbers = NumberSet()
    added = chance.sample(range(200), count)
    for number in added:
        before = numbers.runs
        assert numbers.add(number) == (numbers.runs > before)
        assert not numbers.add(number)
    assert [number for number in range(201) if number in numbers] == sorted(added)
    runs = sum(number - 1 not in added for number in added)
    assert numbers.runs == runs
    numbers.close_gaps(most)
    assert numbers.runs == min(runs, most)
    assert all(number in numbers for number in added)
    found = [number for number in range(201) if number in numbers]
    assert not found or (found[0], found[-1]) == (min(added), max(added))
    before = numbers.runs
    for number in found:
        numbers.add(number)
    assert numbers.runs == before


def test_losses_take_no_more_room_with_time() -> None:
    """A job counts incarnations: those that are lost lie side by side, but for who still lives."""
    owner, user = OwnerTable(OWNER), UserTable(OWNER)
    living = {1_500: CHILD, 9_000: PARENT}
    sizes = dict[int, int]()
    for incarnation in range(1_000, 11_000):
        if incarnation not in living:
            gone = WorkerInfo(f"w{incarnation % 7}", incarnation % 7, incarnation)
            for table in (owner, user):
                assert table.lost(gone) == table.expire(gone) == []
        if incarnation % 1000 == 999:
            sizes[incarnation] = size_of(owner, user)
    assert max(sizes.values()) < sizes[1_999] + 50  # for the other one that still lives
    assert not owner.hold(RRefId(OWNER.incarnation, 1_000, 0))
    for incarnation in living:
        assert owner.hold(RRefId(OWNER.incarnation, incarnation, 0))
        made = user.create(WorkerInfo("x", 1, incarnation))[1]
        assert user.state(made) is ForkState.PENDING
    assert user.state(user.create(WorkerInfo("x", 1, 1_000))[1]) is ForkState.LOST


def test_values_are_numbered_upwards() -> None:
    """Numbers travel as unsigned integers, and those that were taken are kept as runs."""
    owner = OwnerTable(OWNER)
    assert [owner.new().number for _ in range(3)] == [0, 1, 2]


def test_a_creation_that_failed_here_and_succeeded_late_is_confirmed() -> None:
    creator = UserTable(CHILD)
    _, fork = creator.create(OWNER)
    creator.creation_failed(fork, delivered=True)
    assert creator.state(fork) is ForkState.FAILED
    creator.created(fork)
    assert creator.state(fork) is ForkState.CONFIRMED
    assert creator.created(ForkId(100, 102, 102, 99)) == []  # of a fork that has ended


def test_forks_of_values_that_exist_count_towards_no_bound() -> None:
    """A bound is on values whose creation has not come: they may be a hostile worker's inventions."""
    owner = OwnerTable(OWNER, most_unseen=2)
    made = owner.new()
    for number in range(5):
        fork = ForkId(OWNER.incarnation, PARENT.incarnation, CHILD.incarnation, number)
        assert owner.fork_request(made, fork, CHILD) == [Send(CHILD, ForkConfirm(fork, True))]
    for number in range(4):
        unseen = RRefId(OWNER.incarnation, PARENT.incarnation, number)
        fork = ForkId(OWNER.incarnation, PARENT.incarnation, CHILD.incarnation, 10 + number)
        known = number < 2
        assert owner.fork_request(unseen, fork, CHILD) == [Send(CHILD, ForkConfirm(fork, known))]
