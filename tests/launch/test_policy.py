"""What the launcher does when a worker fails or a signal comes."""

from __future__ import annotations

import signal

from telegrad.launch.policy import GRACE, Policy, describe


def test_all_well() -> None:
    policy = Policy({0, 1})
    assert not policy.exited(0, 0, now=1.0, place=0)
    assert not policy.exited(1, 0, now=2.0, place=0)
    assert policy.exit_code == 0
    assert policy.next_tick is None


def test_others_get_five_seconds_then_term_then_kill() -> None:
    policy = Policy({0, 1, 2})
    assert policy.exited(1, 3, now=10.0, place=5)
    assert policy.next_tick == 10.0 + GRACE
    assert policy.tick(10.0 + GRACE - 0.1) == []
    assert policy.tick(10.0 + GRACE) == [signal.SIGTERM]
    assert policy.tick(10.0 + 2 * GRACE) == [signal.SIGKILL]
    assert not policy.exited(0, -signal.SIGTERM, now=20.0, place=0)
    assert policy.exit_code == 3


def test_the_culprit_is_who_began_to_fail_first_not_who_exited_first() -> None:
    policy = Policy({0, 1})
    policy.exited(0, 7, now=1.0, place=9)
    policy.exited(1, 8, now=2.0, place=4)
    assert policy.culprit is not None
    assert policy.culprit.rank == 1
    assert policy.exit_code == 8


def test_interrupt_once_then_kill() -> None:
    policy = Policy({0, 1})
    assert policy.signalled(signal.SIGINT, now=1.0) == [signal.SIGINT]
    assert policy.next_tick is None  # whoever cleans up after Ctrl-C has the time it needs
    assert policy.signalled(signal.SIGINT, now=2.0) == [signal.SIGKILL]
    policy.exited(0, -signal.SIGINT, now=3.0, place=0)
    policy.exited(1, -signal.SIGKILL, now=3.0, place=0)
    assert policy.exit_code == 130
    assert policy.culprit is None


def test_interrupt_that_workers_handle_well_is_no_failure() -> None:
    policy = Policy({0})
    policy.signalled(signal.SIGINT, now=1.0)
    policy.exited(0, 0, now=2.0, place=0)
    assert policy.exit_code == 0


def test_terminate_is_followed_by_kill() -> None:
    policy = Policy({0})
    assert policy.signalled(signal.SIGTERM, now=1.0) == [signal.SIGTERM]
    assert policy.tick(1.0 + GRACE) == [signal.SIGKILL]
    policy.exited(0, -signal.SIGKILL, now=7.0, place=0)
    assert policy.exit_code == 143


def test_nobody_is_left_to_be_told() -> None:
    policy = Policy({0})
    policy.exited(0, 1, now=1.0, place=0)
    assert policy.tick(1.0 + GRACE) == []


def test_description() -> None:
    assert describe(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert describe(-signal.SIGRTMIN - 1).startswith("was killed by signal")
