"""A fresh exception like another, since raising one writes into it."""

from __future__ import annotations

__all__ = ["fresh_copy"]


def fresh_copy(error: BaseException) -> BaseException:
    """Returns an exception equal to `error` with no traceback, without running its `__init__`.

    Where its class does not allow that, returns `error` itself.

    Example:
        >>> first = KeyError("lr")
        >>> second = fresh_copy(first)
        >>> type(second), second.args, second is first
        (<class 'KeyError'>, ('lr',), False)
    """
    cls = type(error)
    builtin = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    try:
        copy: BaseException = cls.__new__(cls, *error.args)
        builtin.__init__(copy, *error.args)  # type: ignore[misc]
        copy.args = error.args
        copy.__dict__.update(vars(error))
        same = type(copy) is cls and str(copy) == str(error)
    except Exception:  # a class with a __new__ or __str__ of its own
        return error
    if not same:
        return error
    copy.__cause__ = error.__cause__
    copy.__context__ = error.__context__
    copy.__suppress_context__ = error.__suppress_context__
    return copy
