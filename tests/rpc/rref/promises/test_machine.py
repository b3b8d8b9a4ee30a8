"""References among living agents under random share, drop, loss and rejoin."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from telegrad.testing import FaultPlan
from tests.faults.network.network_plans import OPTIONS, a_bit_of_everything
from tests.rpc.rref.promises.living_world import Handle, LivingWorld, N

worker = st.integers(0, N - 1)
pick = st.integers(0, 1000)


class LivingMachine(RuleBasedStateMachine):
    faults: FaultPlan | None = None
    lost_after = 10.0  # a loaded machine is slow, and not lost

    def __init__(self) -> None:
        super().__init__()
        self.world = LivingWorld(faults=self.faults, lost_after=self.lost_after)

    def living(self, r: int) -> int:
        """Returns a living worker."""
        return sorted(self.world.agents)[r % len(self.world.agents)]

    def handles(self, which: int) -> list[Handle]:
        """Returns one that is held, if any is.

        No precondition asks: which of two workers was faster would then change what is drawn.
        """
        held = self.world.handles
        return held[which % len(held) :][:1] if held else []

    @initialize()
    def begin(self) -> None:
        for r in range(N):
            self.world.make(r)
            self.world.remote(r, (r + 1) % N)

    @rule(r=worker, to=worker)
    def create(self, r: int, to: int) -> None:
        self.world.make(self.living(r))
        self.world.remote(self.living(r), self.living(to))

    @rule(moves=st.lists(st.tuples(pick, worker, st.booleans(), st.booleans()), min_size=1))
    def share(self, moves: list[tuple[int, int, bool, bool]]) -> None:
        for which, to, parcel, drop in moves:
            for handle in self.handles(which):
                self.world.share(handle, self.living(to), parcel=parcel, drop=drop)

    @rule(moves=st.lists(st.tuples(pick, worker, st.booleans()), min_size=1))
    def ask(self, moves: list[tuple[int, int, bool]]) -> None:
        for which, r, read in moves:
            for handle in self.handles(which):
                self.world.ask(self.living(r), handle, read=read)

    @rule(which=pick, to=worker)
    def nest(self, which: int, to: int) -> None:
        for handle in self.handles(which):
            self.world.nest(handle, self.living(to))

    @rule(which=pick, release=st.booleans())
    def drop(self, which: int, release: bool) -> None:
        for handle in self.handles(which):
            self.world.drop(handle, release=release)

    @rule(r=worker, which=pick)
    def use(self, r: int, which: int) -> None:
        for handle in self.handles(which):
            self.world.use(self.living(r), handle)

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @rule(which=pick)
    def forget(self, which: int) -> None:
        for handle in self.handles(which):
            self.world.forget(handle.number)

    @rule()
    def expire(self) -> None:
        self.world.expire()

    @precondition(lambda self: len(self.world.agents) > 2)
    @rule(r=worker)
    def kill(self, r: int) -> None:
        self.world.kill(self.living(r))

    @precondition(lambda self: len(self.world.agents) < N)
    @rule(r=worker)
    def rejoin(self, r: int) -> None:
        gone = sorted(set(range(N)) - set(self.world.agents))
        self.world.rejoin(gone[r % len(gone)])

    @invariant()
    def nothing_is_freed_while_it_is_held(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.end()


def some(examples: int) -> settings:
    """Nothing is shrunk: that would run what fails, which may wait long, again and again."""
    return settings(
        max_examples=examples,
        deadline=None,
        stateful_step_count=40,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


class OverFaults(LivingMachine):
    faults = a_bit_of_everything(7, most=20)
    lost_after = OPTIONS.lost_after


@pytest.mark.timeout(200)  # it computes all the while, which a busy machine makes long
def test_random_schedules() -> None:
    run_state_machine_as_test(LivingMachine, settings=some(5))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_random_schedules() -> None:
    run_state_machine_as_test(LivingMachine, settings=some(80))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_random_schedules_over_faults() -> None:
    run_state_machine_as_test(OverFaults, settings=some(20))
