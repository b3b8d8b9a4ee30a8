"""What is not had through an RRef, and the words that say what to write instead."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["NoSpecialMethods", "not_here"]


class NoSpecialMethods:
    """The base of the stand-ins: `proxy["a"]`, `len(proxy)` and the like are refused in words.

    Python looks such methods up in the class of the stand-in, which never hears of most of them.
    """

    __slots__ = ()

    def __getitem__(self, key: object) -> NoReturn:
        raise _special("[...]", "a .get(...) that the value has")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise _special("[...] = ...")

    def __delitem__(self, key: object) -> NoReturn:
        raise _special("del [...]")

    def __contains__(self, key: object) -> NoReturn:
        raise _special("`in`")

    def __len__(self) -> NoReturn:
        raise _special("len()", "an attribute such as .size or .shape")

    def __iter__(self) -> NoReturn:
        raise _special("iteration", "rref.rpc_stream() with a generator method")

    def __bool__(self) -> bool:
        """True, as for any object: it stands for the value, and says nothing of it."""
        return True

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise AttributeError(
                f"{name!r} is not set through an RRef; call a method of your own that sets it"
            )
        object.__setattr__(self, name, value)


def not_here(name: str) -> str:
    """Says that an RRef has no such attribute, and how the value's is had.

    >>> not_here("append")
    "an RRef has no attribute 'append'; of its value: write rref.rpc_sync().append(...)"
    """
    words = f"an RRef has no attribute {name!r}"
    if name.startswith("_"):
        return words
    return f"{words}; of its value: write rref.rpc_sync().{name}(...)"


def _special(what: str, instead: str = "") -> TypeError:
    return TypeError(
        f"special methods are not had through an RRef ({what}); use "
        f"{f'{instead}, ' if instead else ''}a method of your own, a function that is called at the "
        "owner with the RRef and takes its local_value(), or to_here() for a copy"
    )
