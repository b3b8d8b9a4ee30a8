"""Functions by name: what the caller may send, and what the callee lets be called."""

from __future__ import annotations

import builtins
import contextvars
import cProfile
import datetime
import functools
import importlib
import importlib.machinery
import math
import operator
import os
import profile
import subprocess
import sys
import threading
import trace
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad.errors import CallRefusedError, EncodeError, FunctionNotFoundError
from telegrad.rpc import expose
from telegrad.rpc.policy.allowed import ALLOWED_NAMES
from telegrad.rpc.seams import CallablePolicy
from telegrad.types import WorkerInfo
from telegrad.wire import FunctionRef, decode, encode, import_missing_with, name_of
from tests.wire import samples

S = "tests.wire.samples"
W0 = WorkerInfo("w0", 0, 1)
PROJECT = CallablePolicy(worker="ps")


def test_a_function_whose_module_is_no_name_is_refused() -> None:
    def strange() -> None: ...

    strange.__qualname__ = "strange"
    strange.__module__ = ["no", "name"]  # type: ignore[assignment]
    with pytest.raises(EncodeError, match="strange"):
        name_of(strange)


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (samples.double, f"{S}:double"),
        (samples.remembered, f"{S}:remembered"),
        (samples.Model, f"{S}:Model"),
        (samples.Model.forward, f"{S}:Model.forward"),
        (samples.Model.build, f"{S}:Model.build"),
        (samples.Model.default, f"{S}:Model.default"),
        (samples.SmallModel.default, f"{S}:SmallModel.default"),
        (math.sqrt, "math:sqrt"),
        (np.add, "numpy:add"),
        (np.zeros, "numpy:zeros"),
        (np.linalg.norm, "numpy.linalg:norm"),
        (np.fft.fft, "numpy.fft:fft"),
        (np.float32, "numpy:float32"),
        (operator.matmul, "operator:matmul"),
        (float, "builtins:float"),
        (os.path.join, "posixpath:join"),
    ],
)
def test_a_name_leads_there_and_back(func: Any, name: str) -> None:
    assert name_of(func) == name
    assert CallablePolicy("importable").resolve(name) == func


def check_script(main: Any, work: Any, item: type) -> None:
    policy = CallablePolicy()
    for each, name in ((main, "main"), (work, "work"), (item, "Item")):
        assert name_of(each) == f"__main__:{name}"
        assert policy.resolve(f"__main__:{name}") is each
    assert FunctionRef.of(work).script == "train.py"
    with pytest.raises(FunctionNotFoundError, match=r"in its script \(train\.py\)"):
        policy.resolve("__main__:runctx")
    assert type(decode(encode(item(1)).document)) is item


SCRIPT = """
from dataclasses import dataclass
def main(): pass
def work(): pass
@dataclass
class Item:
    x: int
check(main, work, Item)
"""


@pytest.mark.parametrize("tool", [cProfile, profile, trace])
def test_a_script_that_a_tool_runs_is_the_main_program(
    tool: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the tool, which stays `__main__`, has a function of the same name."""
    main = types.ModuleType("__main__")
    vars(main).update(vars(tool), __name__="__main__")
    assert "main" in vars(main)
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(SCRIPT, {"__name__": "__main__", "__file__": "train.py", "check": check_script})


def test_pdb_names_the_script_by_a_class_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Target(str):
        __slots__ = ()

        def __str__(self) -> str:
            raise AssertionError("ran")

    main = types.ModuleType("__main__")
    main.__file__ = Target("train.py")
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec("def work(): pass", vars(main))
    assert FunctionRef.of(vars(main)["work"]) == ("__main__:work", "train.py")
    assert type(FunctionRef.of(vars(main)["work"]).script) is str


def test_the_main_module_of_a_package_has_a_public_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console script of pip, and the `__main__.py` that zipapp writes, import it."""
    module = types.ModuleType("app.__main__")
    module.__file__ = "app/__main__.py"
    exec("def work(): pass\ndef _hidden(): pass", vars(module))
    monkeypatch.setitem(sys.modules, "app.__main__", module)
    work = vars(module)["work"]
    assert name_of(work) == "app.__main__:work"
    assert PROJECT.resolve("app.__main__:work") is work
    for name in ("app.__main__.x:work", "app.__main__:_hidden", "__main__.app:work", "a._b:c"):
        with pytest.raises(CallRefusedError, match="not a public name"):
            PROJECT.resolve(name)
    with pytest.raises(EncodeError, match=r"is private \(_hidden\)"):
        name_of(vars(module)["_hidden"])


@pytest.mark.parametrize("name", ["app.train", "app.__main__"])
def test_a_module_that_is_run_has_its_own_name_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker, which imported it, calls its functions by that name."""
    main = types.ModuleType("__main__")
    main.__file__ = "app/train.py"
    main.__spec__ = importlib.machinery.ModuleSpec(name, None)
    exec("def work(): pass", vars(main))
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert PROJECT.resolve(f"{name}:work") is vars(main)["work"]
    with pytest.raises(FunctionNotFoundError):
        PROJECT.resolve("app.other:work")


def closure() -> Any:
    def inside() -> None: ...

    return inside


class Callable:
    def __call__(self) -> None: ...

    def method(self) -> None: ...


@pytest.mark.parametrize(
    ("func", "words"),
    [
        (lambda: 0, "lambda"),
        (samples.square, "lambda"),
        (closure(), "inside a function"),
        (functools.partial(samples.double, 1), "partial"),
        (Callable().method, "rref.rpc_sync"),
        (samples.bound, "rref.rpc_sync"),
        (Callable(), "register_type"),
        (vars(samples)["_hidden"], "underscore"),
        (vars(samples.Model)["_private"], "underscore"),
        (np.random.rand, "lead back|no name|bound"),
        (np.add.reduce, "lead back|no name|bound"),
        (3, "no function"),
    ],
)
def test_what_has_no_name_is_refused_with_advice(func: Any, words: str) -> None:
    with pytest.raises(EncodeError, match=words):
        name_of(func)


def test_a_name_that_leads_elsewhere_is_refused() -> None:
    def double(x: int) -> int:
        return x

    double.__module__, double.__qualname__ = S, "double"
    with pytest.raises(EncodeError, match="lead back"):
        name_of(double)


def test_a_function_of_a_notebook_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.delattr(main, "__file__", raising=False)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setattr(main, "double", samples.double, raising=False)
    monkeypatch.setattr(samples.double, "__module__", "__main__")
    with pytest.raises(EncodeError, match="write it to a file mycode.py, run `from mycode import"):
        name_of(samples.double)
    monkeypatch.delattr(sys, "ps1")
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    with pytest.raises(
        EncodeError, match="notebook.*%%writefile mycode.py`, run `from mycode import double`, and"
    ):
        name_of(samples.double)


def test_a_missing_module_is_asked_for_in_the_context_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked_for.py").write_text("def f(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "asked_for", raising=False)
    asked: list[str] = []

    def importer(name: str) -> None:
        asked.append(name)
        if name == "asked_for":
            importlib.import_module(name)

    context = contextvars.Context()
    context.run(import_missing_with, importer)
    policy = CallablePolicy()
    with pytest.raises(FunctionNotFoundError):
        policy.resolve("asked_for:f")
    assert context.run(policy.resolve, "asked_for:f")() == 1
    with pytest.raises(FunctionNotFoundError):
        context.run(policy.resolve, "nowhere_to_be_found:f")
    assert set(asked) == {"asked_for", "nowhere_to_be_found"}
    monkeypatch.delitem(sys.modules, "asked_for")


def test_every_name_of_main_means_the_own_script(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "double", samples.double, raising=False)
    monkeypatch.setitem(sys.modules, "__mp_main__", main)
    monkeypatch.setattr(samples.double, "__module__", "__mp_main__")
    assert name_of(samples.double) == "__main__:double"
    assert PROJECT.resolve("__main__:double") is samples.double
    assert PROJECT.resolve("__mp_main__:double") is samples.double


def test_a_function_that_was_found_once_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its module may define it anew, lose it, be imported anew, or be gone."""
    home = types.ModuleType("imported_anew")
    exec("def f(): return 1", vars(home))
    monkeypatch.setitem(sys.modules, "imported_anew", home)
    policy, name = CallablePolicy(["imported_anew.*"]), "imported_anew:f"
    first = policy.resolve(name)
    assert [policy.resolve(name) is first for _ in range(2)] == [True, True]
    exec("def f(): return 2", vars(home))
    assert policy.resolve(name)() == 2
    again = types.ModuleType("imported_anew")
    exec("def f(): return 3", vars(again))
    monkeypatch.setitem(sys.modules, "imported_anew", again)
    assert policy.resolve(name)() == 3
    del again.f
    with pytest.raises(FunctionNotFoundError):
        policy.resolve(name)
    monkeypatch.delitem(sys.modules, "imported_anew")
    with pytest.raises(FunctionNotFoundError):
        policy.resolve(name)


def test_a_name_that_was_given_once_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    double = samples.double
    assert name_of(double) == f"{S}:double"
    monkeypatch.setattr(samples, "double", print)
    with pytest.raises(EncodeError, match="lead back"):
        name_of(double)


FORBIDDEN = [
    "pytest:main",
    f"{S}:Color.RED",
    "tests.wire._private:double",
    "__main__:__builtins__",
    "__main__:__loader__",
    "",
    ":",
    "os",
    "os:",
    ":system",
    "os:system:x",
    "os.:system",
    "..os:system",
    "os:system()",
    "os: system",
    "os:sys tem",
    "o" * 10_000 + ":x",
]


@pytest.mark.parametrize("name", FORBIDDEN, ids=lambda name: name[:40])
def test_what_nobody_may_call(name: str) -> None:
    before = set(sys.modules)
    with pytest.raises((CallRefusedError, FunctionNotFoundError)) as caught:
        PROJECT.resolve(name, caller=W0)
    assert "ps" in str(caught.value)
    assert len(str(caught.value)) < 2000
    with pytest.raises((CallRefusedError, FunctionNotFoundError)):
        CallablePolicy("exposed").resolve(name)
    assert set(sys.modules) == before


@pytest.mark.parametrize("name", [3, None, b"os:system", ["os:system"]])
def test_a_name_that_is_no_string_is_refused(name: Any) -> None:
    with pytest.raises(CallRefusedError):
        PROJECT.resolve(name)


def test_the_refusal_says_what_to_do() -> None:
    with pytest.raises(CallRefusedError, match=r"worker 'ps'.*'w0'.*os:getpid.*\['os.getpid'\]"):
        PROJECT.resolve("os:getpid", caller=W0)


def test_what_numpy_imports_when_it_is_first_used_is_as_good_as_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(np, "fft", np.fft)  # put back afterwards, as is the module itself
    monkeypatch.delitem(sys.modules, "numpy.fft")
    assert PROJECT.resolve("numpy.fft:fft").__name__ == "fft"
    for name in ("numpy.fft", "numpy"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(FunctionNotFoundError, match="has not imported 'numpy.fft'"):
        PROJECT.resolve("numpy.fft:fft")
    assert "numpy" not in sys.modules


def test_patterns_widen_the_project() -> None:
    policy = CallablePolicy(["math.*", "colorsys.rgb_to_hsv", "scipy.*"])
    assert policy.resolve("math:sqrt") is math.sqrt
    assert policy.resolve(f"{S}:double") is samples.double
    assert callable(policy.resolve("colorsys:rgb_to_hsv"))
    assert callable(policy.resolve("scipy.linalg:inv"))
    for name in ("colorsys:hsv_to_rgb", "os:system", "mathx:sqrt", "scipy:_lib", "scipy.linalg:np"):
        with pytest.raises((CallRefusedError, FunctionNotFoundError)):
            policy.resolve(name)


def test_a_pattern_does_not_reach_what_a_module_merely_imports() -> None:
    policy = CallablePolicy(["shutil.*"])
    assert callable(policy.resolve("shutil:disk_usage"))
    for name in ("shutil:os.system", "shutil:os", "shutil:fnmatch.filter"):
        with pytest.raises((CallRefusedError, FunctionNotFoundError)):
            policy.resolve(name)


def test_importable_imports_and_says_what_is_missing() -> None:
    policy = CallablePolicy("importable")
    assert policy.resolve("os:getpid") is os.getpid
    assert policy.resolve("subprocess:Popen.wait") is subprocess.Popen.wait
    with pytest.raises(FunctionNotFoundError, match="no_such_module"):
        policy.resolve("no_such_module:f")
    with pytest.raises(CallRefusedError):
        policy.resolve("os:_exit")


def test_a_function_that_is_not_there_is_reported_with_both_scripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/job/server.py", raising=False)
    ref = FunctionRef("__main__:train_step", "/job/trainer.py")
    with pytest.raises(FunctionNotFoundError) as caught:
        PROJECT.resolve(ref.name, script=ref.script, caller=WorkerInfo("trainer0", 1, 2))
    words = str(caught.value)
    for part in (
        "train_step",
        "'ps'",
        "trainer0",
        "/job/trainer.py",
        "/job/server.py",
    ):
        assert part in words
    with pytest.raises(FunctionNotFoundError, match="has no 'missing' in its module"):
        PROJECT.resolve(f"{S}:missing")
    with pytest.raises(FunctionNotFoundError, match="not imported 'their_module'"):
        PROJECT.resolve("their_module:f")


def test_expose_keeps_the_object() -> None:
    assert expose(samples.double) is samples.double
    del samples.double.__telegrad_exposed__  # type: ignore[attr-defined]


def test_the_names_of_the_committed_list_lead_back_and_change_no_setting() -> None:
    for name in ALLOWED_NAMES:
        module, _, path = name.partition(":")
        if not module.startswith("cupy"):
            assert name_of(PROJECT.resolve(name))
        assert not any(word in path for word in ("err", "option"))


@pytest.mark.parametrize(
    ("value", "method"),
    [
        (Path("/tmp/x"), "write_text"),
        (samples, "system"),
        (os.system, "__call__"),
        (subprocess.Popen, "__call__"),
        (np.zeros(3), "dump"),
        ("{0.__class__}", "format"),
        (sys.stdout, "write"),
    ],
)
def test_methods_that_nobody_may_call_through_a_reference(value: Any, method: str) -> None:
    """Whoever could make a Path at a worker could write files there."""
    with pytest.raises(CallRefusedError, match="ps"):
        PROJECT.check_method(value, method, caller=W0)
    with pytest.raises(CallRefusedError):
        CallablePolicy("exposed").check_method(value, method)
    CallablePolicy("importable").check_method(value, method)


@pytest.mark.parametrize(
    ("value", "method"),
    [
        (samples.Color.RED, "nothing"),
        ([1], "append"),
        ({}, "setdefault"),
        (np.zeros(3), "sum"),
        (np.float32(1), "item"),
        (np.add, "__call__"),
        (threading.Event(), "set"),
        (datetime.date(2000, 1, 1), "isoformat"),
    ],
)
def test_methods_that_may_be_called_through_a_reference(value: Any, method: str) -> None:
    PROJECT.check_method(value, method)
    with pytest.raises(CallRefusedError, match="marked"):
        CallablePolicy("exposed").check_method(value, method)


def test_methods_that_are_marked_or_named_by_a_pattern() -> None:
    CallablePolicy("exposed").check_method(samples.Shown(), "make")
    CallablePolicy(["pathlib.*"]).check_method(Path("x"), "exists")
    with pytest.raises(CallRefusedError):
        CallablePolicy(["pathlib.PurePath.*"]).check_method(Path("x"), "exists")
