"""Exceptions across the wire: their description by the callee, and the caller's exceptions."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from types import MemberDescriptorType
from typing import TypeVar

from telegrad.errors import DecodeError, RemoteError
from telegrad.rpc.base.frames import OWN_FRAMES, shows_all_frames
from telegrad.rpc.policy.policy import project_function
from telegrad.wire import add_note, builtin_base, decode_exception, encode_exception, escaped

E = TypeVar("E", bound=BaseException)

# -- a fresh exception like another, since raising one writes into it ----------------------------


def fresh_copy(error: E) -> E:
    """For the library: returns an exception equal to `error`, without a traceback.

    Its `__init__` is not run; its attributes are the same objects, also those in slots and in C
    fields. Notes added to one are not seen on the other. Where its class does not allow a copy,
    returns `error` itself.

    Example:
        >>> first = KeyError("lr")
        >>> second = fresh_copy(first)
        >>> type(second), second.args, second is first
        (<class 'KeyError'>, ('lr',), False)
    """
    cls = type(error)
    first = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    try:
        copy: E = builtin_base(cls).__new__(cls, *error.args)
        first.__init__(copy, *error.args)  # type: ignore[misc]
        copy.args = error.args
        _copy_members(error, copy)
        copy.__dict__.update(vars(error))
        if "__notes__" in vars(error):
            copy.__notes__ = list(error.__notes__)
        same = type(copy) is cls and str(copy) == str(error)
    except Exception:  # a class with a __str__ of its own
        return error
    if not same:
        return error
    copy.__cause__ = error.__cause__
    copy.__context__ = error.__context__
    copy.__suppress_context__ = error.__suppress_context__
    return copy


def _copy_members(error: BaseException, copy: BaseException) -> None:
    """Copies the values in slots, and in the C fields of a builtin: `ImportError.name`."""
    for base in type(error).__mro__:
        for name, member in vars(base).items():
            if type(member) is not MemberDescriptorType or name.startswith("__"):
                continue
            try:
                value = member.__get__(error)
                if value is not None or base.__module__ != "builtins":
                    member.__set__(copy, value)  # an unset field of a builtin reads as None
            except (AttributeError, TypeError):  # never set, or read-only: `__new__` has set it
                continue


def without_frames(error: BaseException) -> BaseException:
    """Removes the tracebacks of an exception and of its causes, and returns it.

    For an exception that is kept: its frames keep the locals of every caller alive, RRefs among
    them, and make a cycle where one of them refers to the keeper of the exception.

    Example:
        >>> try:
        ...     raise KeyError("lr")
        ... except KeyError as error:
        ...     without_frames(error).__traceback__ is None
        True
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            BaseException.__setattr__(each, "__traceback__", None)  # frozen ones too
            left += [each.__cause__, each.__context__]
    return error


# Exceptions carry the remote traceback under this name; it does not travel on.
_ATTRIBUTE = "__telegrad_remote_traceback__"
_NOTE = "remote traceback, from "
MOST_TEXT = 2**15  # characters of a traceback that travels


def describe_failure(error: BaseException, worker: str) -> dict[str, object]:
    """Returns the description of an exception for a reply: itself, its worker and its traceback.

    An exception that is none of `Exception` (SystemExit, KeyboardInterrupt, CancelledError) would
    end or confuse the caller's program instead of the call, so it arrives as a RemoteError.

    It never fails, also if the exception's own class raises: the caller waits for this reply.
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


def decode_error(plain: object) -> BaseException:
    """Returns the exception that `encode_exception` described.

    Functions among its arguments are found if the policy `"project"` lets everybody have them.

    Raises:
        DecodeError: `plain` is not a description of an exception.
    """
    return decode_exception(plain, functions=project_function)


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
            error = decode_error(body["error"])
        except DecodeError:
            error = None
    if error is None:
        type_name, message = str(body.get("type", "")), _words(body.get("message", ""))
        words = ": ".join(filter(None, (escaped(type_name.rpartition(":")[2]), message)))
        error = RemoteError(f"{words} (on worker {body.get('worker')!r})", type_name=type_name)
    text = _words(body.get("traceback", ""))
    where = f"worker {body.get('worker')!r} (process {body.get('pid')})"
    add_note(error, f"{_NOTE}{where}:\n{text}")
    BaseException.__setattr__(error, _ATTRIBUTE, text)  # a frozen dataclass refuses setattr()
    return error


def _words(told: object) -> str:
    """Returns a peer's text of several lines, of which only the message's size is the limit."""
    text = str(told)
    return escaped(text, lines=True, most=len(text))


def remote_traceback(error: BaseException) -> str | None:
    """Returns the traceback of an exception as it was raised on another worker.

    Args:
        error: An exception that a call raised here.

    Returns:
        The text that Python would have printed there, without frames of telegrad itself unless the
        environment of that worker has `TELEGRAD_TRACEBACKS=full`; None for an exception of this
        process.

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
    """Removes the additions of an earlier hop: the traceback of this one contains them."""
    copy = fresh_copy(error)
    if copy is not error:
        vars(copy).pop(_ATTRIBUTE, None)
        if hasattr(copy, "__notes__"):
            copy.__notes__ = [note for note in copy.__notes__ if not str(note).startswith(_NOTE)]
    return copy


def _format(error: BaseException) -> str:
    """Formats a traceback of the user's own frames, unless `TELEGRAD_TRACEBACKS` is `full`."""
    told = traceback.TracebackException.from_exception(error)
    if not shows_all_frames():
        left: list[traceback.TracebackException | None] = [told]
        while left:
            each = left.pop()
            if each is not None:
                users = [line for line in each.stack if not line.filename.startswith(OWN_FRAMES)]
                each.stack[:] = users or each.stack
                left += [each.__cause__, each.__context__, *(each.exceptions or ())]
    text = "".join(told.format())
    if len(text) <= MOST_TEXT:
        return text
    # Each hop adds its own text: a deep recursion over workers would send the square of its size.
    half = MOST_TEXT // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n... {left_out} characters are left out ...\n{text[-half:]}"
