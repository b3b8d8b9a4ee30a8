"""The pass protocol as values: random programs against the local program, any order, any loss."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from telegrad.dist_autograd import pass_protocol as protocol
from telegrad.dist_autograd.pass_protocol import Cut, PassProtocol, Peer, Phase
from telegrad.errors import AutogradError, WorkerLostError
from tests.dist_autograd.programs.simulated_programs import ProgramMaker, SimNode, local_gradients
from tests.dist_autograd.programs.simulation import Faults, Simulation, Slots

FAST_PROGRAMS = 2_500
A, B, C = 1, 2, 3
LOST = WorkerLostError("b is lost", worker="b")


def machine(me: Peer, starter: Peer = A) -> PassProtocol[Slots]:
    return PassProtocol(me, starter)


def simulate(seed: int, kind: str) -> BaseException | None:
    rng = random.Random(seed)
    maker = ProgramMaker(rng, rng.randint(2, 4))
    program = maker.make()
    faults = Faults()
    if kind == "loss":
        faults = Faults(lost=frozenset(rng.sample(range(program.workers), rng.randint(1, 2))))
    elif kind == "deadline":
        faults = Faults(deadline=True)
    elif kind == "error":
        nodes: list[SimNode] = [node for nodes in program.recorded for node in nodes]
        rng.choice(nodes).fails = True
    simulation = Simulation(program, rng, faults)
    cause = simulation.run()
    if cause is None and kind == "none" and program.creates:
        # The functions that a recorded pass has left are in the cuts of the next one.
        again = replace(program, recorded=[w.recorded for w in simulation.workers], late=[])
        return Simulation(again, rng).run()
    return cause


def run_programs(count: int, kind: str, first: int = 0) -> int:
    """Returns how many passes ended with success."""
    successes = 0
    for seed in range(first, first + count):
        try:
            successes += simulate(seed, kind) is None
        except Exception as error:
            error.add_note(f"program {seed}, {kind}")
            raise
    return successes


def test_random_programs_have_the_local_gradients() -> None:
    assert run_programs(FAST_PROGRAMS, "none") == FAST_PROGRAMS


@pytest.mark.parametrize("kind", ["loss", "error", "deadline"])
def test_random_programs_end_under_faults(kind: str) -> None:
    successes = run_programs(FAST_PROGRAMS // 3, kind, first=10_000_000)
    assert 0 < successes < FAST_PROGRAMS // 3


def test_the_programs_are_not_trivial() -> None:
    reached = nested = asked = several = spared = 0
    for seed in range(200):
        rng = random.Random(seed)
        program = ProgramMaker(rng, rng.randint(2, 4)).make()
        workers = {node.worker for node in local_gradients(program)}
        reached += len(workers) > 1
        nested += len(workers) > 2
        asked += bool(program.remote_roots)
        several += len({node.worker for node, _ in program.remote_roots}) > 1
        simulation = Simulation(program, rng)
        simulation.run()
        spared += simulation.spared
    assert reached > 100
    assert nested > 20
    assert asked > 80
    assert several > 20
    assert spared > 20


# The worked example of docs/dist-autograd.md: A calls B, B calls C, C calls A back.


def test_begin_and_the_first_gradient_leave_together() -> None:
    starter = machine(A)
    key = (B, 1)
    begin = starter.enter(Cut({B: (7,)}, frozenset({key}), frozenset({key})))
    assert begin == [protocol.Begin(B, (7,))]
    assert starter.resolve(key, (1,)) == [protocol.Answer(B, ((1, (1,)),), ())]


def test_a_peer_that_began_and_has_answered_gets_no_begin() -> None:
    callee, key = machine(B), (A, 5)
    cut = Cut({A: (1, 2), C: (3,)}, frozenset({key}), frozenset({key}))
    assert callee.enter(cut, A, frozenset({1, 2})) == [protocol.Begin(C, (3,))]
    callee.begin(A, (5,))
    fed = [protocol.Feed((A, 1), (7,)), protocol.Feed((A, 2), (8,))]
    assert callee.answer(A, [(1, (7,)), (2, (8,))], []) == fed
    assert callee.lost(A, LOST)[0] == protocol.Drop(LOST)  # though it waits for nothing of A


@pytest.mark.parametrize(("begun_by", "answered"), [(A, {1}), (C, {1, 2}), (None, {1, 2})])
def test_a_begin_claims_what_is_not_answered_or_tells_of_the_pass(
    begun_by: Peer | None, answered: set[int]
) -> None:
    callee = machine(B)
    cut = Cut({A: (1, 2)}, frozenset(), frozenset())
    assert callee.enter(cut, begun_by, frozenset(answered)) == [protocol.Begin(A, (1, 2))]


def test_a_none_that_is_known_waits_for_its_claim() -> None:
    starter = machine(A)
    key = (B, 1)
    starter.enter(Cut({}, frozenset({key}), frozenset({key})))
    assert starter.resolve(key, None) == []
    assert starter.begin(B, (1,)) == [
        protocol.Reply(B, None),
        protocol.Answer(B, (), (1,)),
    ]


def test_only_the_first_begin_waits() -> None:
    callee = machine(B)
    callee.enter(Cut({A: (1,)}, frozenset(), frozenset()))
    assert callee.begin(A, ()) == []
    assert callee.begin(C, ()) == [protocol.Reply(C, None)]
    assert callee.begun(A) == []
    assert callee.answer(A, [], [1]) == [protocol.Feed((A, 1), None)]
    assert callee.finished() == [protocol.Reply(A, None)]


def test_a_loss_in_the_middle_aborts_everywhere_with_the_first_cause() -> None:
    starter = machine(A)
    starter.enter(Cut({B: (1,), C: (2,)}, frozenset(), frozenset()))
    out = starter.lost(B, LOST)
    assert out == [protocol.Drop(LOST), protocol.Abort(C, LOST)]
    assert starter.begun(C, AutogradError("another")) == []
    assert starter.confirmed(C) == [protocol.End(LOST)]


def test_who_has_ended_reports_a_loss_and_the_starter_decides() -> None:
    callee = machine(C)
    callee.enter(Cut({B: (1,)}, frozenset(), frozenset()))
    callee.begin(B, ())
    callee.begun(B)
    callee.answer(B, [], [1])
    assert callee.finished() == [protocol.Reply(B, None)]
    assert callee.lost(B, LOST) == [protocol.Abort(A, LOST)]
    assert callee.phase is Phase.DONE
    assert callee.abort(LOST, (A, "abort")) == [protocol.Drop(LOST)]
    assert callee.confirmed(A) == [protocol.Confirm(A, "abort")]


def test_a_gradient_that_nobody_claimed_is_an_error() -> None:
    starter = machine(A)
    starter.enter(Cut({B: (1,)}, frozenset(), frozenset()))
    drop = starter.answer(B, [(9, (1,))], [])[0]
    assert isinstance(drop, protocol.Drop)
    assert "message 9" in str(drop.cause)
