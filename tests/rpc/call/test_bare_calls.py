"""Calls without arguments are what the general way makes and reads, only sooner."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import pytest

from telegrad.errors import CallRefusedError, DecodeError, EncodeError, FunctionNotFoundError
from telegrad.rpc.call.bare_calls import (
    ARGUMENTS,
    BARE_END,
    KEPT_CALLS,
    KNOWN,
    bare_call,
    called_by,
)
from telegrad.rpc.call.user_call import (
    CallMode,
    UserCall,
    admit_call,
    call_message,
    call_payload,
    read_arguments,
)
from telegrad.rpc.seams import CallablePolicy, CallRecord, ServedCall
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
    assert document.endswith(BARE_END)
    assert called_by(document) == ref


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


def module_with(name: str, source: str) -> Any:
    """Imports a module of this source, in place of any of that name."""
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


def test_what_is_kept_of_a_function_ends_with_its_place_in_the_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the caller a message, at the callee the function itself: a name leads to what it is now."""
    monkeypatch.setitem(sys.modules, "kept", ModuleType("kept"))  # and takes it out at the end
    policy = CallablePolicy(["kept.*"])
    module = module_with("kept", "def first(): ...\ndef second(): ...")
    first = module.first
    for _ in range(2):
        assert call_message(first, (), None)[0] == "kept:first"
        assert policy.resolve("kept:first") is first

    module.first = module.second  # as a notebook's cell that is run again does
    with pytest.raises(EncodeError):
        call_message(first, (), None)
    module.first = first
    assert call_message(first, (), None)[0] == "kept:first"

    again = module_with("kept", "def first(): ...")  # another module of its name
    with pytest.raises(EncodeError):
        call_message(first, (), None)
    for _ in range(2):
        assert policy.resolve("kept:first") is again.first
        assert call_message(again.first, (), None)[0] == "kept:first"

    del sys.modules["kept"]
    with pytest.raises(FunctionNotFoundError):
        policy.resolve("kept:first")


def test_a_function_that_a_package_shows_goes_by_what_the_package_has_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden = ".".join(("shown", "_inner"))
    for name in ("shown", hidden):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    inner = module_with(hidden, "def f(): ...\ndef g(): ...")
    package = module_with("shown", "")
    package.f = inner.f
    for _ in range(2):
        assert call_message(inner.f, (), None)[0] == "shown:f"
    package.f = inner.g  # another function would run under that name
    with pytest.raises(EncodeError):
        call_message(inner.f, (), None)


def test_the_names_of_many_functions_are_kept_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "many", ModuleType("many"))
    module = module_with("many", "\n".join(f"def f{k}(): ..." for k in range(KEPT_CALLS + 2)))
    for k in range(KEPT_CALLS + 2):
        assert call_message(getattr(module, f"f{k}"), (), None)[0] == f"many:f{k}"
        assert 0 < len(KNOWN) <= KEPT_CALLS
