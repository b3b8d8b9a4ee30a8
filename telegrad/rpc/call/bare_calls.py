"""Calls without arguments: of one function they are the same bytes, made and read once."""

from __future__ import annotations

import sys
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Final

from telegrad.wire import Encoded, FunctionRef, encode, read_head

ARGUMENTS: Final = "args"  # the arguments' key in a payload; earlier keys name the function

KEPT_CALLS = 1000  # of so many functions; making one takes 1.2 us, reading it 3, finding either 0.1
KEPT_BYTES = 512  # of each; longer documents are read in the usual way

BARE_END: Final = encode({ARGUMENTS: [], "kwargs": {}}).document[1:]  # of such a call's document

# Of functions that go by the name of their own module, and of no package that shows them: that
# module, and the name and payload of the call.
KNOWN: Final[dict[FunctionType, tuple[ModuleType, tuple[str, Encoded]]]] = {}


@lru_cache(KEPT_CALLS)
def bare_call(ref: FunctionRef) -> Encoded:
    """Returns the payload of a call without arguments; shared, and not to be changed.

    Example:
        >>> called_by(bare_call(FunctionRef("math:sqrt")).document)
        FunctionRef(name='math:sqrt', script='')
    """
    script = {"script": ref.script} if ref.script else {}
    return encode({"func": ref.name, **script, ARGUMENTS: [], "kwargs": {}}, name=None)


def know(func: FunctionType, message: tuple[str, Encoded]) -> None:
    """Puts a function into `KNOWN`, if it goes by its place in its own module."""
    home, path = sys.modules.get(func.__module__), func.__qualname__
    if not isinstance(home, ModuleType) or vars(home).get(path) is not func:
        return
    if message[0] == f"{func.__module__}:{path}":
        if len(KNOWN) >= KEPT_CALLS:
            KNOWN.clear()
        KNOWN[func] = home, message


@lru_cache(KEPT_CALLS)
def called_by(document: bytes) -> FunctionRef | None:
    """Returns the function of a document that is one of `bare_call`; None for any other.

    Only for documents of at most `KEPT_BYTES` that end with `BARE_END`: those are kept.

    Raises:
        DecodeError: The document cannot be read as far as its arguments.
    """
    head = read_head(document, ARGUMENTS)
    name, script = head.get("func"), head.get("script", "")
    if type(name) is not str or type(script) is not str or not name.isprintable():
        return None
    ref = FunctionRef(name, script)
    return ref if document == bare_call(ref).document else None  # no other call has these bytes
