from __future__ import annotations

from telegrad.transport.channels.standstill import Standstill


def run(standstill: Standstill, seconds: int, *, sent: int, waiting: bool, start: int = 0) -> float:
    """Ticks every second; returns when the lanes stood still, or 0."""
    for second in range(start + 1, start + seconds + 1):
        if standstill.tick(float(second), sent=sent, waiting=waiting):
            return second
    return 0


def test_who_owes_nothing_may_stand() -> None:
    standstill = Standstill(0.0, patience=10.0)
    assert run(standstill, 100, sent=0, waiting=False) == 0
    standstill.heard(5)
    assert run(standstill, 100, sent=5, waiting=False, start=100) == 0


def test_chunks_that_nobody_takes() -> None:
    assert run(Standstill(0.0, patience=10.0), 100, sent=1, waiting=False) == 11


def test_pieces_that_no_lane_takes() -> None:
    assert run(Standstill(0.0, patience=10.0), 100, sent=0, waiting=True) == 11


def test_progress_counts_and_repetition_does_not() -> None:
    standstill = Standstill(0.0, patience=10.0)
    for taken in range(1, 10):
        standstill.heard(taken)
        assert run(standstill, 9, sent=20, waiting=True, start=9 * taken) == 0
    for second in range(91, 101):
        standstill.heard(9)
        stands = standstill.tick(float(second), sent=20, waiting=True)
        if stands:
            return
    raise AssertionError("it heard nothing new, and called it progress")


def test_the_time_counts_from_the_first_chunk_that_is_owed() -> None:
    standstill = Standstill(0.0, patience=10.0)
    assert run(standstill, 50, sent=0, waiting=False) == 0
    assert run(standstill, 50, sent=1, waiting=False, start=50) == 61


def test_who_slept_himself_reads_first() -> None:
    standstill = Standstill(0.0, patience=10.0)
    assert not standstill.tick(1000.0, sent=1, waiting=False)
    assert not standstill.tick(1001.0, sent=1, waiting=False)
