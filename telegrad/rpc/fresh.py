"""A fresh exception like another, since raising one writes into it."""

from __future__ import annotations

from types import MemberDescriptorType

__all__ = ["fresh_copy", "without_frames"]


def fresh_copy(error: BaseException) -> BaseException:
    """For the library: returns an exception equal to `error`, without a traceback.

    Its `__init__` is not run; its attributes are the same objects, those in slots and in fields of
    C as well. Notes added to one are not seen on the other. Where its class does not allow a copy,
    returns `error` itself.

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
        _copy_members(error, copy)
        copy.__dict__.update(vars(error))
        if "__notes__" in vars(error):
            copy.__notes__ = list(error.__notes__)
        same = type(copy) is cls and str(copy) == str(error)
    except Exception:  # a class with a __new__ or __str__ of its own
        return error
    if not same:
        return error
    copy.__cause__ = error.__cause__
    copy.__context__ = error.__context__
    copy.__suppress_context__ = error.__suppress_context__
    return copy


def _copy_members(error: BaseException, copy: BaseException) -> None:
    """Copies what stands in slots, and in the C fields of a builtin: `ImportError.name`."""
    for base in type(error).__mro__:
        for name, member in vars(base).items():
            if type(member) is not MemberDescriptorType or name.startswith("__"):
                continue
            try:
                value = member.__get__(error)
                if value is not None or base.__module__ != "builtins":
                    member.__set__(copy, value)  # None is how an unset field of a builtin reads
            except (AttributeError, TypeError):  # never set, or read-only: `__new__` has set it
                continue


def without_frames(error: BaseException) -> BaseException:
    """Takes the tracebacks off an exception and off what it came from, and returns it.

    For one that is kept: its frames keep the locals of every caller alive, RRefs among them, and
    make a cycle where one of them refers to whoever keeps the exception.

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
