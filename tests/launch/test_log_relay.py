"""Lines of many workers, each whole and with its rank in front."""

from __future__ import annotations

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.launch.log_relay import LineSplitter, LogPiece, LogRelay, Screen

TEXT = b"one\ntwo\r\nthree\rfour\r\rfive\n\nsix\r\r\nlast"


def _relay(*, terminal: bool = False) -> tuple[LogRelay, io.BytesIO, io.BytesIO]:
    out, err = io.BytesIO(), io.BytesIO()
    relay = LogRelay(Screen(out, terminal=terminal, columns=20), Screen(err, terminal=terminal))
    return relay, out, err


def _lines(pieces: list[LogPiece]) -> list[bytes]:
    return [piece.text for piece in pieces if not piece.in_place]


@given(st.lists(st.integers(0, len(TEXT)), max_size=6))
def test_lines_do_not_depend_on_how_they_arrive(cuts: list[int]) -> None:
    splitter = LineSplitter()
    pieces: list[LogPiece] = []
    bounds = [0, *sorted(cuts), len(TEXT)]
    for start, end in itertools.pairwise(bounds):
        pieces += splitter.feed(TEXT[start:end])
    pieces += splitter.finish()
    assert _lines(pieces) == [b"one", b"two", b"five", b"", b"six", b"last"]
    in_place = [piece.text for piece in pieces if piece.in_place]
    assert [text for text in in_place if text not in (b"two", b"six")] == [b"three", b"four"]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"x" * 2**21) == [LogPiece(b"x" * 2**21)]


def test_prefixes_and_streams() -> None:
    relay, out, err = _relay()
    relay.feed(0, "stdout", b"a\nb")
    relay.feed(1, "stdout", b"c\n")
    relay.feed(1, "stderr", b"d\n")
    relay.feed(0, "stdout", b"")
    assert out.getvalue() == b"[0] a\n[1] c\n[0] b\n"
    assert err.getvalue() == b"[1] d\n"


def test_in_place_lines_are_dropped_where_there_is_no_terminal() -> None:
    relay, out, _ = _relay()
    relay.feed(0, "stdout", b"10 %\r20 %\rdone\n")
    assert out.getvalue() == b"[0] done\n"


def test_in_place_lines_are_overwritten_on_a_terminal() -> None:
    relay, out, err = _relay(terminal=True)
    relay.feed(0, "stdout", b"10 %\r")
    relay.feed(1, "stdout", b"x" * 40 + b"\r")
    relay.feed(0, "stderr", b"oops\n")
    assert out.getvalue() == b"\r\x1b[K[0] 10 %\r\x1b[K[1] " + b"x" * 15 + b"\r\x1b[K"
    assert err.getvalue() == b"[0] oops\n"


@pytest.mark.parametrize("chatter", [False, True])
def test_traceback_is_shown_last_and_once_where_it_is_last_already(chatter: bool) -> None:
    relay, _, err = _relay()
    relay.feed(1, "stderr", b"before\nTraceback (most recent call last):\n  x\nValueError: no\n")
    if chatter:
        relay.feed(0, "stderr", b"noise\n")
    relay.show_traceback_last(1)
    lines = err.getvalue().decode().splitlines()
    assert lines[-3:] == [
        "[1] Traceback (most recent call last):",
        "[1]   x",
        "[1] ValueError: no",
    ]
    assert lines.count("[1] ValueError: no") == (2 if chatter else 1)


def test_traceback_comes_with_its_causes() -> None:
    relay, _, err = _relay()
    relay.feed(
        0,
        "stderr",
        b"Traceback (most recent call last):\nKeyError: 1\n\nThe above exception was the direct"
        b" cause of the following exception:\n\nTraceback (most recent call last):\nV: 2\n",
    )
    relay.feed(0, "stdout", b"noise\n")
    relay.show_traceback_last(0)
    assert err.getvalue().count(b"[0] KeyError: 1") == 2


def test_traceback_of_a_remote_exception_keeps_the_callers_own_line() -> None:
    """The user's line was lost: the remote traceback in the note was taken for a new one."""
    relay, _, err = _relay()
    relay.feed(
        0,
        "stderr",
        b"Traceback (most recent call last):\n  rpc_sync(...)\nZeroDivisionError: no\n"
        b"remote traceback, from worker 'worker1' (process 7):\n"
        b"Traceback (most recent call last):\n  1 / 0\nZeroDivisionError: no\n",
    )
    relay.feed(1, "stderr", b"noise\n")
    relay.show_traceback_last(0)
    assert err.getvalue().count(b"[0]   rpc_sync(...)") == 2


def test_own_words_between_do_not_make_it_repeat_a_traceback() -> None:
    relay, _, err = _relay()
    relay.feed(0, "stderr", b"Traceback (most recent call last):\nValueError: no\n")
    relay.say("rank 0 failed")
    relay.show_traceback_last(0)
    assert err.getvalue().count(b"ValueError: no") == 1
