"""Judges messages as values: by chance, by rule, the same for the same seed."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.testing.fault_plan import (
    Fault,
    FaultPlan,
    FaultRule,
    Judge,
    Passing,
    Verdict,
    draw,
)

CARRIER = "a>b control 1, from a"
MANY = 4000


def call(number: int, *, kind: str = "rpc.call", carrier: str = CARRIER) -> Passing:
    return Passing("a", "b", carrier, number, (kind,))


def struck(plan: FaultPlan, passing: list[Passing]) -> list[int]:
    """Returns the places of the messages that a plan strikes."""
    judge = Judge(plan)
    return [place for place, each in enumerate(passing) if judge.judge(each) is not None]


# -- chance ------------------------------------------------------------------------------------


def test_no_plan_does_nothing() -> None:
    assert struck(FaultPlan(), [call(n) for n in range(MANY)]) == []


def test_every_chance_comes_as_often_as_it_says() -> None:
    plan = FaultPlan(seed=3, drop=0.1, delay=0.2, duplicate=0.05, reorder=0.1, kill=0.2)
    judge = Judge(plan)
    verdicts = [judge.judge(call(n)) for n in range(MANY)]
    counts = Counter(verdict.fault for verdict in verdicts if verdict is not None)
    expected = {
        Fault.DROP: 0.1,
        Fault.DELAY: 0.2,
        Fault.DUPLICATE: 0.05,
        Fault.REORDER: 0.1,
        Fault.KILL: 0.1,  # half of the carriers break before the message has arrived
        Fault.KILL_AFTER: 0.1,
    }
    for fault, chance in expected.items():
        assert counts[fault] == pytest.approx(chance * MANY, rel=0.2)
    delays = [v.seconds for v in verdicts if v is not None and v.fault is Fault.DELAY]
    assert 0.0 <= min(delays) < 0.001
    assert 0.009 < max(delays) < plan.longest_delay


def test_a_seed_is_known_by_its_faults() -> None:
    """Written down: on another machine, in another process and version it must be the same."""
    plan = FaultPlan(seed=7, drop=0.1, kill=0.1)
    assert [(n, v.fault) for n in range(30) if (v := draw(plan, CARRIER, n))] == [
        (0, Fault.DROP),
        (1, Fault.DROP),
        (4, Fault.DROP),
        (8, Fault.DROP),
        (11, Fault.KILL_AFTER),
        (13, Fault.KILL_AFTER),
        (16, Fault.DROP),
        (21, Fault.KILL),
    ]


@given(seed=st.integers(), numbers=st.permutations(range(1, 40)))
def test_what_chance_does_depends_on_nothing_that_happens_elsewhere(
    seed: int, numbers: list[int]
) -> None:
    plan = FaultPlan(seed=seed, drop=0.2, kill=0.2)
    alone = {n: draw(plan, CARRIER, n) for n in numbers}
    judge = Judge(plan)
    for n in numbers:
        judge.judge(call(n, carrier="another"))
        assert judge.judge(call(n)) == alone[n]


def test_carriers_and_seeds_differ() -> None:
    messages = [call(n) for n in range(100)]
    others = [call(n, carrier="b>a control 1, from b") for n in range(100)]
    found = [struck(FaultPlan(seed=s, drop=0.2), m) for s in (1, 2) for m in (messages, others)]
    assert len(set(map(tuple, found))) == 4


def test_after_so_many_faults_the_network_is_sound() -> None:
    plan = FaultPlan(seed=1, drop=0.3, most=5)
    messages = [call(n) for n in range(MANY)]
    assert struck(plan, messages) == struck(FaultPlan(seed=1, drop=0.3), messages)[:5]


@pytest.mark.parametrize("handshakes", [False, True])
def test_handshakes_are_spared_unless_asked(handshakes: bool) -> None:
    plan = FaultPlan(drop=1.0, handshakes=handshakes)
    assert struck(plan, [call(1, kind="handshake.hello"), call(3)]) == [0, 1][not handshakes :]


# -- rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (FaultRule(Fault.KILL), [0]),
        (FaultRule(Fault.KILL, at=3), [2]),
        (FaultRule(Fault.KILL, at=2, times=3), [1, 2, 3]),
        (FaultRule(Fault.KILL, at=6, times=None), [5, 6]),
        (FaultRule(Fault.KILL, "rpc.call"), [1]),
        (FaultRule(Fault.KILL, "rpc.*", times=2), [1, 2]),
        (FaultRule(Fault.KILL, "heartbeat", at=2), [5]),
        (FaultRule(Fault.KILL, sender="b"), [4]),
        (FaultRule(Fault.KILL, receiver="b", at=4), [3]),
        (FaultRule(Fault.KILL, "handshake.hello"), [7]),
        (FaultRule(Fault.KILL, at=2, each_carrier=True), [1, 5]),
    ],
    ids=repr,
)
def test_a_rule_strikes_by_kind_and_count(rule: FaultRule, expected: list[int]) -> None:
    back = "a>b control 1, from b"
    messages = [
        call(3, kind="heartbeat"),
        call(4),
        Passing("a", "b", CARRIER, 5, ("autograd.begin", "rpc.fetch")),
        call(6, kind="store.set"),
        Passing("b", "a", back, 3, ("rpc.call",)),
        Passing("b", "a", back, 4, ("heartbeat",)),
        Passing("b", "a", back, 5, ("goodbye",)),
        Passing("a", "b", CARRIER, 1, ("handshake.hello",)),
    ]
    assert struck(FaultPlan(rules=[rule]), messages) == expected


def test_rules_go_before_chance_and_the_first_that_strikes_decides() -> None:
    rules = [
        FaultRule(Fault.DELAY, "rpc.call", at=2, seconds=0.5),
        FaultRule(Fault.DUPLICATE, times=2),
    ]
    judge = Judge(FaultPlan(drop=1.0, rules=rules))
    assert [judge.judge(call(n)) for n in (3, 4, 5)] == [
        Verdict(Fault.DUPLICATE),
        Verdict(Fault.DELAY, 0.5),  # the other counted it all the same
        Verdict(Fault.DROP),
    ]


# -- values ------------------------------------------------------------------------------------


def test_a_plan_shows_its_seed_and_what_is_not_the_default() -> None:
    assert repr(FaultPlan()) == "FaultPlan(seed=0)"
    assert repr(FaultPlan(drop=0.5, seed=9)) == "FaultPlan(seed=9, drop=0.5)"
    assert "FaultRule(fault=<Fault.KILL: 'kill'>" in repr(FaultPlan(rules=[FaultRule(Fault.KILL)]))


def test_a_plan_travels_to_a_process() -> None:
    plan = FaultPlan(seed=9, drop=0.5, rules=[FaultRule(Fault.KILL, "rpc.call", at=2)])
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"drop": 1.5}, "drop is a chance between 0 and 1 \\(got 1.5\\)"),
        ({"kill": -0.1}, "kill is a chance"),
        ({"drop": 0.6, "kill": 0.6}, "at most 1 \\(got 1.2\\)"),
        ({"longest_delay": -1.0}, "longest_delay is a time in seconds"),
    ],
)
def test_what_is_no_plan_is_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FaultPlan(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"at": 0}, {"times": 0}])
def test_what_is_no_rule_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        FaultRule(Fault.DROP, **wrong)  # type: ignore[arg-type]
