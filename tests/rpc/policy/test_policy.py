"""Who may call what: every way around it, and the user's own policy."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from telegrad import nn, tensor
from telegrad.autograd import RowSparse
from telegrad.errors import CallRefusedError, FunctionNotFoundError
from telegrad.rpc import expose
from telegrad.rpc.policy.allowed import ALLOWED_NAMES, ALLOWED_PACKAGES, REFUSED_METHODS
from telegrad.rpc.policy.policy import CallableRequest
from telegrad.rpc.seams import CallablePolicy
from telegrad.types import WorkerInfo
from tests.rpc.policy import policy_samples as mine

P = "tests.rpc.policy.policy_samples"
PROJECT, EXPOSED = CallablePolicy(worker="ps"), CallablePolicy("exposed", worker="ps")
W0 = WorkerInfo("w0", 0, 17)
PATHLIB = Path.__module__  # pathlib, or a module in it
NO = (CallRefusedError, FunctionNotFoundError)


def allows(policy: CallablePolicy, name: str) -> bool:
    try:
        policy.resolve(name, caller=W0)
    except NO as error:
        return "'ps'" not in str(error)
    return True


def allows_method(policy: CallablePolicy, value: object, method: str) -> bool:
    """As the owner of an RRef asks: of the name, then of what it gives."""
    try:
        policy.check_method(value, method, caller=W0)
        found = value if method == "__call__" else getattr(value, method)
        if callable(found):
            policy.check_found(value, method, found, caller=W0)
    except CallRefusedError as error:
        return "'ps'" not in str(error)
    return True


# -- by name ------------------------------------------------------------------------------------

#  name                           "project"  "exposed"
TABLE = """
   plain                               yes         no
   alias                               yes         no
   decorated                           yes         no
   cached                              yes         no
   Model                               yes         no
   Model.forward                       yes         no
   Model.build                         yes         no
   Model.default                       yes         no
   Model.Inner                         yes         no
   Model.Inner.deep                    yes         no
   Small                               yes         no
   Small.default                       yes         no
   model                               yes         no
   bound                               yes         no
   double                              yes         no
   shown                               yes        yes
   run                                  no         no
   system                               no         no
   os                                   no         no
   os.system                            no         no
   path                                 no         no
   path.join                            no         no
   np                                   no         no
   np.load                              no         no
   np.add                               no         no
   Path                                 no         no
   Path.home                            no         no
   Path.cwd                             no         no
   halved                               no         no
   shell                                no         no
   cached_system                        no         no
   get_environ                          no         no
   call_system                          no         no
   vectorized                           no         no
   ufunc                                no         no
   append                               no         no
   write                                no         no
   results                              no         no
   namespace                            no         no
   namespace.system                     no         no
   wrapping_system                      no         no
   model.forward                        no         no
   Model.limit                          no         no
   Model.mro                            no         no
   Model._step                          no         no
   Model.__init__                       no         no
   Model.__init__.__globals__           no         no
   Model.forward.__globals__            no         no
   Model.__subclasses__                 no         no
   plain.__globals__                    no         no
   plain.__code__                       no         no
   decorated.__wrapped__                no         no
   __builtins__                         no         no
   Toolbox.run                          no         no
   Toolbox.system                       no         no
   Toolbox.path_class                   no         no
   Toolbox.path_class.home              no         no
   Toolbox.module                       no         no
   Toolbox.module.system                no         no
   Toolbox.made                         no         no
   Toolbox.made.fget                    no         no
   LogFile.home                         no         no
   LogFile.unlink                       no         no
   Opener.write                         no         no
   open_function                       yes        yes
   alias_of_open                       yes        yes
   under_a_decorator                   yes        yes
   above_a_decorator                   yes        yes
   under_a_rude_one                    yes         no
   admin                               yes         no
   Open                                yes        yes
   Open.score                          yes        yes
   Open.scored                         yes        yes
   Open.rudely_scored                  yes        yes
   Open.make                           yes        yes
   Open.made                           yes        yes
   Open.forward                        yes        yes
   Open.default                        yes        yes
   Open.Part                           yes        yes
   Open.Part.piece                     yes        yes
   Open.own                            yes        yes
   Open.item_class                     yes         no
   Open.item_class.build               yes         no
   Open.run                             no         no
   Open.path_class                      no         no
   Open.path_class.home                 no         no
   Open._secret                         no         no
   Open.__init__                        no         no
   OpenChild                           yes         no
   OpenChild.make                      yes         no
   OpenChild.more                      yes         no
   OpenNet                             yes        yes
   OpenNet.forward                     yes        yes
   OpenNet.parameters                  yes        yes
   Half                                yes         no
   Half.shown                          yes        yes
   Half.static                         yes        yes
   Half.of_class                       yes        yes
   Half.hidden                         yes         no
   HalfChild.static                    yes        yes
   HalfChild.shown                     yes         no
"""
ROWS = [tuple(line.split()) for line in TABLE.split("\n") if line.strip()]


@pytest.mark.few(25)
@pytest.mark.parametrize(("path", "project", "exposed"), ROWS, ids=[row[0] for row in ROWS])
def test_what_a_name_in_a_project_leads_to(path: str, project: str, exposed: str) -> None:
    before = set(sys.modules)
    found = [allows(policy, f"{P}:{path}") for policy in (PROJECT, EXPOSED)]
    assert found == [project == "yes", exposed == "yes"]
    assert set(sys.modules) == before


def test_exposed_leaves_out_the_list() -> None:
    assert allows(PROJECT, "numpy:add")
    assert not allows(EXPOSED, "numpy:add")


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "posix:system",
        "subprocess:run",
        "builtins:eval",
        "builtins:getattr",
        "builtins:object.__subclasses__",
        "builtins:type",
        "builtins:bytes.fromhex",
        "builtins:str.format",
        "io:open",
        "_io:open",
        "operator:attrgetter",
        "operator:methodcaller",
        "operator:itemgetter",
        "operator:call",
        "_operator:methodcaller",
        "functools:partial",
        "functools:reduce",
        "types:FunctionType",
        "ctypes:string_at",
        "importlib:import_module",
        "runpy:run_path",
        "code:interact",
        "numpy:fromregex",
        "numpy:vectorize",
        "numpy:apply_along_axis",
        "numpy:apply_over_axes",
        "numpy:piecewise",
        "numpy:ndarray",
        "numpy:ndarray.tofile",
        "numpy:recarray",
        "numpy:test",
        "numpy:show_config",
        "numpy.lib.stride_tricks:as_strided",
        "numpy.lib.npyio:DataSource",
        "numpy.ctypeslib:load_library",
        "numpy.f2py:compile",
        "numpy.testing:measure",
        "__main__:os.system",
        "__main__:sys.exit",
        "__main__:__spec__.loader",
        "__mp_main__:os.system",
        "telegrad.rpc:init_rpc",
        "telegrad.rpc:rpc_sync",
        "telegrad.wire:CallablePolicy",
        "telegrad.wire.names:import_missing_with",
        "telegrad.nnx:run",
        "telegrad.nn.module:np.load",
        # a small number keeps them busy, or they show what is inside
        *(
            f"builtins:{name}"
            for name in ["pow", "round", "repr", "format", "hash", "id", "vars", "dir"]
        ),
        *(
            f"builtins:{name}"
            for name in ["map", "filter", "print", "open", "input", "super", "iter", "next"]
        ),
        *(f"builtins:{name}" for name in ["max", "min", "sorted", "sum"]),
        *("builtins:range", "math:factorial", "math:comb", "math:perm", "math:prod", "math:lcm"),
        *(f"operator:{name}" for name in ["mul", "pow", "mod", "lshift"]),
        *(f"operator:{name}" for name in ["imul", "ipow", "imod", "ilshift"]),
    ],
)
def test_what_nobody_calls_by_name(name: str) -> None:
    before = set(sys.modules)
    assert not allows(PROJECT, name)
    assert not allows(EXPOSED, name)
    for policy in (PROJECT, EXPOSED):
        with pytest.raises(NO):
            policy.resolve_value(name)
    assert set(sys.modules) == before


def test_the_listed_functions_do_no_io_and_are_not_made_to_call_others() -> None:
    """No function is listed that looks at an argument's attributes, files or memory, or calls it.

    Some call what may be given beside (`mode=` of `np.pad`): that is judged alone.
    """
    words = "file text txt load save map call getter iter func dlpack ctypes void object format"
    listed = {name.partition(":")[2].lower() for name in ALLOWED_NAMES}
    assert not [name for name in listed for word in words.split() if word in name]
    for name in ALLOWED_NAMES:
        module, _, path = name.partition(":")
        if module.partition(".")[0] == "cupy":
            continue
        found = getattr(importlib.import_module(module), path)
        assert not isinstance(found, types.ModuleType)
        assert getattr(found, "__module__", module).partition(".")[0].lstrip("_") in (
            "numpy",
            "operator",
            "builtins",
            "math",
        )


def test_the_packages_that_are_open_hold_nothing_else() -> None:
    """A name is judged by where its object was defined, not by the package that it is had from."""
    for package in ALLOWED_PACKAGES:
        module = sys.modules.get(package)
        for name in vars(module) if module is not None else ():
            if name.startswith("_") or not allows(PROJECT, f"{package}:{name}"):
                continue
            home = getattr(vars(module)[name], "__module__", package)
            assert home.startswith(ALLOWED_PACKAGES)


def test_a_package_of_another_name_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("telegrad.nnx")

    def run() -> None: ...

    run.__module__, run.__qualname__ = "telegrad.nnx", "run"
    monkeypatch.setattr(module, "run", run, raising=False)
    monkeypatch.setitem(sys.modules, "telegrad.nnx", module)
    assert not allows(PROJECT, "telegrad.nnx:run")


# -- through references -------------------------------------------------------------------------

OPEN, CHILD, HALF = mine.Open(), mine.OpenChild(), mine.Half()
BOX, FACTORY = mine.Toolbox(), mine.Factory(cast("Any", subprocess.run))


@pytest.mark.parametrize(
    ("value", "method", "project", "exposed"),
    [
        (mine.model, "forward", True, False),
        (mine.model, "__call__", True, False),
        (mine.Model, "__call__", True, False),
        (mine.Model, "build", True, False),
        (OPEN, "score", True, True),
        (OPEN, "scored", True, True),
        (OPEN, "rudely_scored", True, True),
        (OPEN, "make", True, True),
        (OPEN, "made", True, True),
        (OPEN, "forward", True, True),  # inherited from what is not exposed
        (OPEN, "__call__", True, True),
        (OPEN, "width", True, True),
        (OPEN, "Part", True, True),
        (OPEN, "own", True, True),
        (OPEN, "item_class", True, False),
        (OPEN, "run", False, False),  # only put there
        (OPEN, "path_class", False, False),
        (OPEN, "system", False, False),
        (mine.Open, "__call__", True, True),
        (mine.Open, "make", True, True),
        (mine.Open, "default", True, True),
        (mine.Open, "run", False, False),
        (CHILD, "scored", True, True),  # defined in the exposed class
        (CHILD, "score", True, False),  # overridden in one that is not
        (CHILD, "more", True, False),
        (CHILD, "forward", True, False),
        (mine.OpenChild, "__call__", True, False),
        (mine.OpenNet(), "parameters", True, True),
        (mine.OpenNet(), "__call__", True, True),
        (HALF, "shown", True, True),
        (HALF, "static", True, True),
        (HALF, "of_class", True, True),
        (HALF, "hidden", True, False),
        (mine.HalfChild(), "static", True, True),
        (mine.HalfChild(), "shown", True, False),
        (BOX, "run", False, False),
        (BOX, "system", False, False),
        (BOX, "path_class", False, False),
        (BOX, "made", False, False),
        (Path("x"), "write_text", False, False),  # whoever held the token once wrote files so
        (mine.LogFile("x"), "unlink", False, False),
        (mine.LogFile("x"), "exists", False, False),
        (FACTORY, "get", True, False),
        (FACTORY, "default_factory", False, False),
        (mine.namespace, "system", False, False),
        (mine.halved, "__call__", True, False),
        (mine.halved, "func", False, False),
        (mine.shell, "__call__", False, False),
        (mine.cached_system, "__call__", False, False),
        (mine.get_environ, "__call__", False, False),
        (mine.call_system, "__call__", False, False),
        (mine.vectorized, "__call__", False, False),
        (mine.vectorized, "pyfunc", False, False),
        (mine.bound, "__call__", True, False),
        (mine.append, "__call__", False, False),
        (mine.write, "__call__", False, False),
        (mine.decorated, "__call__", True, False),
        (mine.admin, "__call__", True, False),
        (mine.under_a_decorator, "__call__", True, True),
        (mine.open_function, "__call__", True, True),
        (mine, "plain", False, False),
        (np, "load", False, False),
        (np.zeros(2), "tofile", False, False),
        (np.zeros(2), "ctypes", True, False),
        (np.zeros(2).ctypes, "data_as", False, False),
        (np.lib.npyio.DataSource(), "open", False, False),
    ],
)
def test_what_a_method_leads_to(value: object, method: str, project: bool, exposed: bool) -> None:
    assert allows_method(PROJECT, value, method) is project
    assert allows_method(EXPOSED, value, method) is exposed


def test_all_public_names_of_tensors_may_be_used() -> None:
    """Those of the classes that Tensor is made of, too; nothing of a Tensor does I/O."""
    rows = RowSparse(np.array([0]), np.ones((1, 2)), (3, 2))
    for value in (tensor([[1.0, 2.0]]), nn.Parameter(np.ones((1, 2))), rows):
        own = {name for name in dir(value) if not name.startswith("_")}
        names = sorted(own - REFUSED_METHODS)
        assert {"shape", "dtype", "ndim"} <= set(names)
        assert [name for name in names if not allows_method(PROJECT, value, name)] == []
        assert [name for name in names if allows_method(EXPOSED, value, name)] == []


def test_memory_is_never_taken_for_objects() -> None:
    """NumPy's own promise, on which it rests that the methods of arrays are harmless."""
    for method, args in (("view", ("O",)), ("getfield", ("O",)), ("setfield", (1, "O"))):
        with pytest.raises(TypeError):
            getattr(np.arange(3), method)(*args)
    with pytest.raises(ValueError, match="OBJECT"):
        np.frombuffer(bytes(8), dtype="O")


def test_what_expose_cannot_mark() -> None:
    for thing in (mine.bound, os.system, 3, mine.namespace):
        with pytest.raises(TypeError, match="mark"):
            expose(thing)  # type: ignore[type-var]


# -- a policy of one's own ------------------------------------------------------------------------


class Asked:
    """A policy that keeps what it is asked, and says what it was told to."""

    def __init__(self, answer: Callable[[str, str], Any] = lambda module, path: True) -> None:
        self.answer = answer
        self.questions: list[tuple[str, str]] = []
        self.callers: list[WorkerInfo] = []
        self.policy = CallablePolicy(self, worker="ps")

    def __call__(self, caller: WorkerInfo, module: str, path: str) -> bool:
        self.callers.append(caller)
        self.questions.append((module, path))
        answer: bool = self.answer(module, path)
        return answer


def test_a_policy_is_asked_each_time_and_alone() -> None:
    asked = Asked()
    for _ in range(2):
        assert asked.policy.resolve(f"{P}:plain", caller=W0) is mine.plain
    assert asked.questions == [(P, "plain")] * 2
    assert asked.callers == [W0] * 2
    for _ in range(2):
        asked.questions.clear()
        assert allows_method(asked.policy, mine.model, "forward")
        assert (P, "Model.forward") in asked.questions
    closed = Asked(lambda module, path: False)
    for name in (f"{P}:plain", f"{P}:open_function", f"{P}:Open", "numpy:add", "os:system"):
        with pytest.raises(CallRefusedError, match="'ps' does not let the caller 'w0'.*says no"):
            closed.policy.resolve(name, caller=W0)


def test_a_policy_may_allow_anything_that_is_public() -> None:
    asked = Asked()
    assert asked.policy.resolve("math:sqrt", caller=W0)(4.0) == 2.0
    assert asked.policy.resolve("numpy:add") is np.add
    for name in (f"{P}:_hidden", f"{P}:Model._step", f"{P}:plain.__globals__", "os:", "nonsense"):
        with pytest.raises(NO):
            asked.policy.resolve(name, caller=W0)
    assert all("_step" not in path for _, path in asked.questions)


def test_it_is_asked_before_anything_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "imported_when_allowed"
    (tmp_path / f"{name}.py").write_text("def f(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    here: list[bool] = []

    def answer(module: str, path: str) -> bool:
        here.append(name in sys.modules)
        return path == "f"

    asked = Asked(answer)
    with pytest.raises(CallRefusedError):
        asked.policy.resolve(f"{name}:g")
    assert name not in sys.modules
    assert asked.policy.resolve(f"{name}:f")() == 1
    assert here == [False, False]
    with pytest.raises(FunctionNotFoundError):
        Asked().policy.resolve("no_such_module:f")
    monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("path", "elsewhere"),
    [
        ("system", ("posix", "system")),
        ("run", ("posix", "system")),
        ("alias", (P, "plain")),
        ("Path", (PATHLIB, "Path")),
        ("LogFile.home", (PATHLIB, "Path.home")),
        ("Toolbox.run", ("subprocess", "run")),
        ("Small.default", (P, "Model.default")),
        ("shell", ("subprocess", "run")),
        ("bound", (P, "Model.forward")),
        ("append", ("builtins", "list.append")),
        ("model", (P, "Model.__call__")),
        ("get_environ", ("operator", "attrgetter.__call__")),
        ("double", ("tests.wire.samples", "double")),
    ],
)
def test_it_is_asked_of_where_something_is_defined_too(
    path: str, elsewhere: tuple[str, str]
) -> None:
    """A policy that trusts a module does not trust what that module has imported."""
    asked = Asked()
    asked.policy.resolve(f"{P}:{path}")
    assert asked.questions == [(P, path), elsewhere]
    only = Asked(lambda module, name: (module, name) != elsewhere)
    with pytest.raises(CallRefusedError, match=f"asked of {elsewhere[0]}:{elsewhere[1]}"):
        only.policy.resolve(f"{P}:{path}")


def test_a_package_answers_for_what_it_shows_of_its_own_modules() -> None:
    asked = Asked()
    asked.policy.resolve("scipy.linalg:inv")
    assert asked.questions == [("scipy.linalg", "inv")]


@pytest.mark.parametrize(
    ("value", "method", "questions"),
    [
        (mine.model, "forward", [(P, "Model.forward")]),
        (mine.Small(), "forward", [(P, "Small.forward")]),
        (mine.model, "__call__", [(P, "Model.__call__")]),
        (mine.Model, "__call__", [(P, "Model")]),
        (mine.Model, "build", [(P, "Model.build")]),
        (mine.plain, "__call__", [(P, "plain")]),
        (mine.bound, "__call__", [(P, "Model.forward")]),
        (mine.shell, "__call__", [("subprocess", "run")]),
        ([1], "append", [("builtins", "list.append")]),
        (np.zeros(2), "sum", [("numpy", "ndarray.sum")]),
        (mine.LogFile("x"), "unlink", [(P, "LogFile.unlink"), (PATHLIB, "Path.unlink")]),
        (OPEN, "width", [(P, "Open.width")]),
        (OPEN, "run", [(P, "Open.run"), ("subprocess", "run")]),
        (OPEN, "system", [(P, "Open.system"), ("posix", "system")]),
        (OPEN, "path_class", [(P, "Open.path_class"), (PATHLIB, "Path")]),
        (BOX, "made", [(P, "Toolbox.made"), ("subprocess", "run")]),
    ],
)
def test_it_is_asked_of_methods_by_their_class(
    value: object, method: str, questions: list[tuple[str, str]]
) -> None:
    asked = Asked()
    assert allows_method(asked.policy, value, method)
    assert list(dict.fromkeys(asked.questions)) == questions
    for question in questions:
        no = Asked(functools.partial(_is_not, question))
        assert not allows_method(no.policy, value, method)


def _is_not(question: tuple[str, str], module: str, path: str) -> bool:
    return (module, path) != question


def test_nothing_is_called_on_a_module_whatever_a_policy_says() -> None:
    for value in (os, inspect.currentframe(), mine.plain.__code__):
        assert not allows_method(Asked().policy, value, "anything")


def failing(caller: WorkerInfo, module: str, path: str) -> bool:
    raise LookupError(f"no rule for {path}")


def leaving(caller: WorkerInfo, module: str, path: str) -> bool:
    raise SystemExit(3)


async def later(caller: WorkerInfo, module: str, path: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("decide", "words"),
    [
        (failing, "raised LookupError: no rule for plain"),
        (leaving, "raised SystemExit: 3"),
        (lambda *asked: later(*asked), "returned a coroutine, and not True or False"),
        (lambda *_: None, "returned a NoneType"),
        (lambda *_: 1, "returned a int"),
        (lambda *_: "yes", "returned a str"),
        (lambda: True, "raised TypeError"),
    ],
)
def test_what_is_no_answer_refuses(decide: Any, words: str) -> None:
    policy = CallablePolicy(decide, worker="ps")
    with pytest.raises(CallRefusedError, match=words):
        policy.resolve(f"{P}:plain", caller=W0)
    assert not allows_method(policy, mine.model, "forward")


def test_values_are_asked_for_but_for_the_listed_ones() -> None:
    asked = Asked(lambda module, path: False)
    for name in ("builtins:float", "numpy:float32", "numpy:add", "telegrad.nn:Linear"):
        assert asked.policy.resolve_value(name, caller=W0) is not None
    assert not asked.questions
    with pytest.raises(CallRefusedError):
        asked.policy.resolve_value(f"{P}:plain", caller=W0)
    assert asked.callers == [W0]


@pytest.mark.parametrize("sent", [int, dict, set, frozenset])
def test_some_types_may_be_sent_but_not_called(sent: type) -> None:
    name = f"builtins:{sent.__name__}"
    asked = Asked(lambda module, path: False)
    for policy in (PROJECT, EXPOSED, asked.policy):
        assert policy.resolve_value(name) is sent
        with pytest.raises(NO):
            policy.resolve(name)
    with pytest.raises(NO):
        PROJECT.check_method(sent, "__call__")
    assert asked.questions == [("builtins", sent.__name__)]


def test_the_modes_remember_what_they_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[str] = []

    def request(policy: CallablePolicy, name: str, *others: Any) -> CallableRequest:
        decided.append(name)
        return CallableRequest(policy, name, *others)

    monkeypatch.setattr("telegrad.rpc.policy.policy.CallableRequest", request)
    for policy, times in ((CallablePolicy(worker="ps"), 1), (Asked().policy, 2)):
        first = policy.resolve(f"{P}:plain", caller=W0)
        assert policy.resolve(f"{P}:plain", caller=W0) is first
        assert decided == [f"{P}:plain"] * times
        decided.clear()


def test_a_partial_says_what_it_calls() -> None:
    nested = functools.partial(functools.partial(os.system), "true")
    assert not allows_method(PROJECT, nested, "__call__")
