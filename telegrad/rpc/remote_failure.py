"""Exceptions across the wire: what the callee says of one, and what the caller raises."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

from telegrad.errors import DecodeError, RemoteError
from telegrad.rpc.fresh import fresh_copy
from telegrad.wire import add_note, decode_exception, encode_exception

__all__ = ["describe_failure", "rebuild_failure", "remote_traceback"]

# Exceptions carry the remote traceback under this name; it does not travel on.
_ATTRIBUTE = "__telegrad_remote_traceback__"
_NOTE = "remote traceback, from "
_OWN_FRAMES = str(Path(__file__).parent)


def describe_failure(error: BaseException, worker: str) -> dict[str, object]:
    """Returns what a reply says of an exception: itself, where it was raised, and how.

    An exception that is none of `Exception` (SystemExit, KeyboardInterrupt, CancelledError) would
    end or confuse the caller's program instead of the call, so it arrives as a RemoteError.

    It never fails, whatever the exception's own class does: the caller waits for this reply.
    """
    type_name = f"{type(error).__module__}:{type(error).__qualname__}"
    unreadable = f"<{type_name} which cannot be put in words>"
    return {
        "error": _attempt(_encoded, error, None),
        "type": type_name,
        "message": _attempt(str, error, unreadable),
        "traceback": _attempt(_format, error, unreadable),
        "worker": worker,
        "pid": os.getpid(),
    }


def rebuild_failure(body: object) -> BaseException:
    """Returns the exception that a reply of `describe_failure` stands for.

    It is of its own type where that class is imported here, else a RemoteError. A note and
    `remote_traceback` tell where it was raised.
    """
    if not isinstance(body, dict):
        return RemoteError("the callee failed and said nothing that can be read")
    error: BaseException | None = None
    if body.get("error") is not None:
        try:
            error = decode_exception(body["error"])
        except DecodeError:
            error = None
    if error is None:
        type_name, message = str(body.get("type", "")), str(body.get("message", ""))
        words = ": ".join(filter(None, (type_name.rpartition(":")[2], message)))
        error = RemoteError(f"{words} (on worker {body.get('worker')!r})", type_name=type_name)
    text = str(body.get("traceback", ""))
    where = f"worker {body.get('worker')!r} (process {body.get('pid')})"
    add_note(error, f"{_NOTE}{where}:\n{text}")
    BaseException.__setattr__(error, _ATTRIBUTE, text)  # a frozen dataclass refuses setattr()
    return error


def remote_traceback(error: BaseException) -> str | None:
    """Returns the traceback of an exception as it was raised on another worker.

    Args:
        error: What a call raised here.

    Returns:
        The text that Python would have printed there; None for an exception of this process.

    Example:
        >>> remote_traceback(ValueError("raised here")) is None
        True
    """
    text = getattr(error, _ATTRIBUTE, None)
    return text if isinstance(text, str) else None


def _attempt(
    say: Callable[[BaseException], object], error: BaseException, instead: object
) -> object:
    try:
        return say(error)
    except BaseException:  # of the user's class: its __str__, its __notes__
        return instead


def _encoded(error: BaseException) -> object:
    return encode_exception(_bare(error)) if isinstance(error, Exception) else None


def _bare(error: BaseException) -> BaseException:
    """Takes off what an earlier hop added: the traceback of this one tells of it."""
    copy = fresh_copy(error)
    if copy is not error:
        vars(copy).pop(_ATTRIBUTE, None)
        if hasattr(copy, "__notes__"):
            copy.__notes__ = [note for note in copy.__notes__ if not str(note).startswith(_NOTE)]
    return copy


def _format(error: BaseException) -> str:
    """Formats a traceback from the user's frames on: ours above them tell nothing."""
    frames = error.__traceback__
    while frames is not None and _is_own(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if frames is None:
        frames = error.__traceback__
    return "".join(traceback.format_exception(type(error), error, frames))


def _is_own(filename: str) -> bool:
    return filename.startswith(_OWN_FRAMES)
