"""The user's frames of a traceback."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

OWN_FRAMES = f"{Path(__file__).parents[1]}{os.sep}"


def shows_all_frames() -> bool:
    """Returns True if the environment has `TELEGRAD_TRACEBACKS=full`."""
    return os.environ.get("TELEGRAD_TRACEBACKS") == "full"


def users_frames(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of `telegrad.rpc`; the given one is not changed.

    Returns it as it is if all frames are to be shown.
    """
    if shows_all_frames():
        return trace
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OWN_FRAMES):
            kept.append(trace)
        trace = trace.tb_next
    users: TracebackType | None = None
    for each in reversed(kept):
        users = _entry(each, users)
    return users


def _entry(of: TracebackType, below: TracebackType | None) -> TracebackType:
    """Returns a traceback of one entry of another and what stands below it."""
    # Without a line where a signal handler raised at an instruction that belongs to none.
    return TracebackType(below, of.tb_frame, of.tb_lasti, of.tb_lineno or -1)


def cut_own_frames(error: BaseException) -> None:
    """Cuts the traceback of an error that leaves a public verb to one frame of telegrad: the verb.

    The verb calls it in its `except` block and then re-raises with a bare `raise`, which adds no
    frame. A verb that succeeds pays nothing: entering a `try` block is free.
    """
    verb = error.__traceback__
    if verb is not None:
        users = users_frames(verb.tb_next)
        error.with_traceback(_entry(verb, users))
