"""How big chunks are, by how fast they are taken, and when none is taken for too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.transport.channels.pace import FIRST_BYTES, Pace
from telegrad.wire import BLOCK_BYTES, PIECE_BYTES

MIB = 2**20


def flow(
    pace: Pace, rate: float, seconds: float, *, start: float = 0.0, beat: float = 1.0
) -> tuple[int, int]:
    """Has much more sent than a link takes, of so many bytes a second; a beat tells of it.

    Returns:
        How many chunks were sent, and how many of them taken.
    """
    sizes: list[int] = []
    taken = 0
    now, left = start, 0.0
    while now < start + seconds:
        for _ in range(int(2 * rate * beat) // pace.stride + 4):
            sizes.append(pace.stride)
            pace.sent(pace.stride)
        now, left = now + beat, left + rate * beat
        while left >= sizes[taken]:
            left -= sizes[taken]
            taken += 1
        pace.heard(taken, now)
    return len(sizes), taken


def test_the_first_chunks_are_small_whatever_the_system_takes_at_once() -> None:
    pace = Pace(0.0, 10.0)
    sizes: list[int] = []
    while sum(sizes) < 64 * MIB:
        sizes.append(pace.stride)
        pace.sent(pace.stride)
    assert sizes[:5] == [FIRST_BYTES] * 5
    assert max(size for k, size in enumerate(sizes) if sum(sizes[:k]) <= 4 * MIB) == FIRST_BYTES
    assert sizes[-1] >= 0.9 * PIECE_BYTES
    assert len(sizes) < 260


@pytest.mark.parametrize(
    ("rate", "stride"),
    [(100 * MIB, PIECE_BYTES), (16 * MIB, MIB // 2), (2 * MIB, 64 * 1024), (1000, BLOCK_BYTES)],
)
def test_a_second_has_about_thirty_chunks(rate: int, stride: int) -> None:
    pace = Pace(0.0, 10.0)
    flow(pace, rate, 60.0)
    assert stride / 1.5 <= pace.stride <= stride


def test_a_link_that_becomes_slow_has_small_chunks_after_a_few_beats() -> None:
    pace = Pace(0.0, 10.0)
    flow(pace, 100 * MIB, 10.0)
    assert pace.stride == PIECE_BYTES
    for beat in range(1, 5):
        pace.sent(pace.stride)
        pace.heard(0, 10.0 + beat)  # nothing new came
    assert pace.stride == BLOCK_BYTES


def test_what_arrives_whole_between_two_beats_makes_the_next_bigger() -> None:
    pace = Pace(0.0, 10.0)
    sent, _ = flow(pace, 1000.0, 10.0)
    assert pace.stride == BLOCK_BYTES
    pace.heard(sent, 20.0)
    for k in range(1, 8):
        pace.sent(pace.stride)
        pace.heard(sent + k, 20.0 + k)
    assert pace.stride == PIECE_BYTES


def test_beats_that_come_in_pairs_are_measured_as_one() -> None:
    pace = Pace(0.0, 10.0)
    _, taken = flow(pace, 100 * MIB, 10.0)
    pace.heard(taken, 10.001)
    assert pace.stride == PIECE_BYTES


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 100), st.floats(0.0, 10.0)), max_size=50))
def test_a_stride_is_always_on_the_grid(events: list[tuple[bool, int, float]]) -> None:
    pace, now = Pace(0.0, 10.0), 0.0
    for sends, n, seconds in events:
        now += seconds
        if sends:
            pace.sent(pace.stride)
        else:
            pace.heard(n, now)
        assert pace.stride % BLOCK_BYTES == 0
        assert BLOCK_BYTES <= pace.stride <= PIECE_BYTES


def stalls(
    pace: Pace, seconds: int, *, sent: int = 0, waiting: bool = False, start: int = 0
) -> int:
    """Sends so many chunks, and ticks every second; returns when the lanes were stalled, or 0."""
    for _ in range(sent):
        pace.sent(pace.stride)
    for second in range(start + 1, start + seconds + 1):
        if pace.is_stalled(float(second), waiting=waiting):
            return second
    return 0


def test_a_sender_that_owes_nothing_never_stalls() -> None:
    pace = Pace(0.0, 10.0)
    assert stalls(pace, 100) == 0
    for _ in range(5):
        pace.sent(pace.stride)
    pace.heard(5, 100.0)
    assert stalls(pace, 100, start=100) == 0


def test_chunks_that_nobody_takes_stall() -> None:
    assert stalls(Pace(0.0, 10.0), 100, sent=1) == 11


def test_pieces_that_no_lane_takes_stall() -> None:
    assert stalls(Pace(0.0, 10.0), 100, waiting=True) == 11


def test_progress_counts_and_repetition_does_not() -> None:
    pace = Pace(0.0, 10.0)
    for taken in range(1, 10):
        pace.heard(taken, 9.0 * taken)
        assert stalls(pace, 9, sent=2, waiting=True, start=9 * taken) == 0
    for second in range(91, 101):
        pace.heard(9, float(second))
        if pace.is_stalled(float(second), waiting=True):
            return
    raise AssertionError("it heard nothing new, and called it progress")


def test_the_time_counts_from_the_first_chunk_that_is_owed() -> None:
    pace = Pace(0.0, 10.0)
    assert stalls(pace, 50) == 0
    assert stalls(pace, 50, sent=1, start=50) == 61


def test_a_sender_that_slept_itself_reads_first() -> None:
    pace = Pace(0.0, 10.0)
    pace.sent(pace.stride)
    assert not pace.is_stalled(1000.0, waiting=False)
    assert not pace.is_stalled(1001.0, waiting=False)
