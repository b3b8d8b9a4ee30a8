"""Calls without arguments are what the general way makes and reads, only sooner."""

from __future__ import annotations

import math
from typing import Any

import pytest

from telegrad.errors import CallRefusedError, DecodeError
from telegrad.rpc.call.bare_calls import ARGUMENTS, bare_call, called_by
from telegrad.rpc.call.user_call import (
    CallMode,
    UserCall,
    admit_call,
    call_message,
    call_payload,
    read_arguments,
)
from telegrad.rpc.seams import CallRecord, ServedCall
from telegrad.types import WorkerInfo
from telegrad.wire import Encoded, FunctionRef, decode, encode, read_head
from tests.rpc import remote_code

CALLER = WorkerInfo("w0", 0, 1)
REFS = [FunctionRef("m:f"), FunctionRef("__main__:f", "s.py"), FunctionRef("m:" + "f" * 600)]


@pytest.mark.parametrize("ref", REFS)
def test_it_is_what_the_general_way_makes(ref: FunctionRef) -> None:
    script = {"script": ref.script} if ref.script else {}
    payload = {"func": ref.name, **script, "args": [], "kwargs": {}}
    document = bare_call(ref).document
    assert document == encode(payload, name=None).document
    assert read_arguments(decode(document), ref.name) == ([], {})
    assert called_by(document) == (ref if len(document) <= 512 else None)


@pytest.mark.parametrize("nothing", [None, ()])
def test_only_calls_without_arguments_are_bare(nothing: Any) -> None:
    name, message = call_message(remote_code.who, nothing, None)
    assert isinstance(message, Encoded)
    assert (name, decode(message.document)) == call_payload(remote_code.who, nothing, None)
    for args, kwargs in (((1,), None), ([], None), ((), {}), ((), {"a": 1})):
        made = call_message(remote_code.who, args, kwargs)
        assert made == call_payload(remote_code.who, args, kwargs)
    with pytest.raises(TypeError, match="callable"):
        call_message("who", nothing, None)  # type: ignore[arg-type]


def test_what_only_looks_like_one_is_read_the_general_way() -> None:
    document = bare_call(FunctionRef("m:f")).document
    second = encode({"func": "os:system"}).document[1:]
    others = [
        bytes([document[0] + 1]) + document[1:],  # one entry is missing
        bytes([document[0] - 1]) + document[1:],  # one is too many
        document + document,
        bytes([document[0] + 1]) + second + document[1:],  # the name that counts comes second
        encode({"func": 3, "args": [], "kwargs": {}}).document,
        encode({"func": "m:f", "more": 1, "args": [], "kwargs": {}}).document,
    ]
    for other in others:
        assert called_by(other) is None or called_by(other) == FunctionRef("m:f")
        if called_by(other) is not None:
            assert other == document
    with pytest.raises(DecodeError):
        called_by(b"\x93" + encode({"args": [], "kwargs": {}}).document[1:])


def test_each_call_is_judged_anew() -> None:
    asked: list[tuple[str, str]] = []

    def resolve(function: str, *, script: str = "", caller: WorkerInfo | None = None) -> Any:
        assert caller is CALLER
        asked.append((function, script))
        if len(asked) > 2:
            raise CallRefusedError("no more")
        return remote_code.who

    document = bare_call(FunctionRef("__main__:f", "s.py")).document
    call = ServedCall("w1", CALLER, 1, CallRecord("rpc.call"), math.inf, 0)
    for _ in range(2):
        found = admit_call(resolve, call, document)
        assert isinstance(found, UserCall)
        assert (found.func, found.mode, found.name) == (
            remote_code.who,
            CallMode.PLAIN,
            "__main__:f",
        )
        assert (*found.args, *found.kwargs) == ()
    with pytest.raises(CallRefusedError):
        admit_call(resolve, call, document)
    assert asked == [("__main__:f", "s.py")] * 3
    assert read_head(document, ARGUMENTS)["func"] == "__main__:f"
