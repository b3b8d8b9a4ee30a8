"""Calls without arguments: of one function they are the same bytes, made and read once."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from telegrad.wire import Encoded, FunctionRef, encode, read_head

ARGUMENTS: Final = "args"  # the arguments' key in a payload; earlier keys name the function

KEPT_CALLS = 1000  # of so many functions; making one takes 1.2 us, reading it 3, finding either 0.1
KEPT_BYTES = 512  # of each; longer documents are read in the usual way

_END = encode({ARGUMENTS: [], "kwargs": {}}).document[1:]


@lru_cache(KEPT_CALLS)
def bare_call(ref: FunctionRef) -> Encoded:
    """Returns the payload of a call without arguments; shared, and not to be changed.

    Example:
        >>> called_by(bare_call(FunctionRef("math:sqrt")).document)
        FunctionRef(name='math:sqrt', script='')
    """
    script = {"script": ref.script} if ref.script else {}
    return encode({"func": ref.name, **script, ARGUMENTS: [], "kwargs": {}}, name=None)


def called_by(document: bytes) -> FunctionRef | None:
    """Returns the function of a document that is one of `bare_call`; None for any other.

    Raises:
        DecodeError: The document cannot be read as far as its arguments.
    """
    if len(document) > KEPT_BYTES or not document.endswith(_END):
        return None
    return _called_by(document)


@lru_cache(KEPT_CALLS)
def _called_by(document: bytes) -> FunctionRef | None:
    head = read_head(document, ARGUMENTS)
    name, script = head.get("func"), head.get("script", "")
    if type(name) is not str or type(script) is not str or not name.isprintable():
        return None
    ref = FunctionRef(name, script)
    return ref if document == bare_call(ref).document else None  # no other call has these bytes
