"""`telegrad.numpy` beside NumPy: names, signatures, what has no rule, and the page that says so."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telegrad.numpy as tnp
from telegrad.autograd import extend, no_grad, tensor
from telegrad.autograd.extend import Operation, Tier
from telegrad.errors import AutogradError
from tests.autograd.samples.tables import SAMPLES

ROOT = Path(__file__).parent.parent.parent
MODULES = [(np, tnp), (np.linalg, tnp.linalg), (np.fft, tnp.fft)]
NO_VALUE = inspect.signature(np.sum).parameters["keepdims"].default
RULED = sorted(SAMPLES, key=lambda function: function.__name__)


@pytest.mark.parametrize(("theirs", "ours"), MODULES, ids=["numpy", "linalg", "fft"])
def test_every_public_name_is_there(theirs: Any, ours: Any) -> None:
    assert set(theirs.__all__) - set(dir(ours)) <= {"char", "core", "ctypeslib", "dtypes", "emath",
        "exceptions", "f2py", "lib", "ma", "matlib", "polynomial", "random", "rec", "strings",
        "testing", "typing"}  # fmt: skip
    for name in ours.__all__:
        assert getattr(ours, name) is not None or name == "newaxis"


@pytest.mark.parametrize(("theirs", "ours"), MODULES, ids=["numpy", "linalg", "fft"])
def test_names_and_signatures_are_numpys(theirs: Any, ours: Any) -> None:
    for name in ours.__all__:
        original, here = getattr(theirs, name), getattr(ours, name)
        if not callable(original) or isinstance(original, type):
            continue
        if name == "test":
            continue  # runs NumPy's tests
        assert here.__name__ == original.__name__
        try:
            expected = inspect.signature(original)
        except ValueError:
            continue  # written in C, before NumPy 2.4
        assert inspect.signature(here) == expected, name


@pytest.mark.few(58)
@pytest.mark.parametrize("function", RULED, ids=lambda f: f.__name__)
def test_what_a_rule_knows_is_numpys(function: Any) -> None:
    """Its arguments and options have NumPy's names, and NumPy's defaults unless those say nothing."""
    entry: Any = extend.find(function)
    try:
        theirs = inspect.signature(function).parameters
    except ValueError:
        pytest.skip("this NumPy does not tell the signature")
    if isinstance(entry, Operation):
        known = dict.fromkeys(entry.array_names, inspect.Parameter.empty)
        given = {**known, **entry.options}
    else:
        all_others = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} - {
            parameter.kind for parameter in theirs.values()
        }
        own = {
            name: parameter
            for name, parameter in inspect.signature(entry.body).parameters.items()
            if parameter.kind not in all_others  # handed on to another function of NumPy's
        }
        given = {name: x.default for name, x in own.items()}
        order = [name for name in theirs if name in given]
        assert list(given) == order
        for name, parameter in own.items():
            assert parameter.kind is theirs[name].kind, name
    assert given.keys() <= theirs.keys()
    for name, default in given.items():
        numpys = theirs[name].default
        # Of what must be given, a rule never sees the default.
        nothing = inspect.Parameter.empty in (default, numpys) or numpys is NO_VALUE
        assert nothing or default == numpys, name


@pytest.mark.parametrize("function", [np.histogram_bin_edges, np.roots, np.nextafter])
def test_what_has_no_rule_raises_and_says_so(function: Any) -> None:
    assert extend.tier_of(function) is Tier.NONE
    x = tensor([1.0, 2.0], requires_grad=True)
    arguments = (x, x) if function is np.nextafter else (x,)
    with pytest.raises(AutogradError, match=rf"np\.{function.__name__} .*docs/extend.md"):
        function(*arguments)
    with pytest.raises(AutogradError, match="no gradient rule"):
        getattr(tnp, function.__name__)(*arguments)
    with no_grad():
        function(*arguments)


def test_a_message_does_not_look_for_a_function_on_a_page_without_it() -> None:
    """The page lists NumPy's functions, so it has what to use instead; it has not all functions."""
    x: Any = tensor([1.0, 2.0], requires_grad=True)
    for call in (lambda: np.add.reduceat(x, [0]), lambda: np.frompyfunc(abs, 1, 1)(x)):
        with pytest.raises(AutogradError, match=r"functions that have one \(docs/numpy\.md lists"):
            call()


def test_the_page_is_current() -> None:
    place = ROOT / "scripts" / "make_numpy_page.py"
    spec = importlib.util.spec_from_file_location("make_numpy_page", place)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (ROOT / "docs" / "numpy.md").read_text()
    version = ".".join(np.__version__.split(".")[:2])
    if f"of NumPy {version}," not in text:
        pytest.skip(f"docs/numpy.md is of another NumPy than {version}")
    assert text == script.page(), "run scripts/make_numpy_page.py"


def test_the_page_lists_every_function_once() -> None:
    text = (ROOT / "docs" / "numpy.md").read_text()
    for name in ("sin", "sum", "floor", "i0", "arange"):
        assert text.count(f"`{name}`") == 1


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (tnp.sin, "telegrad.numpy:sin"),
        (tnp.sum, "telegrad.numpy:sum"),
        (tnp.ptp, "telegrad.numpy:ptp"),
        (tnp.floor, "telegrad.numpy:floor"),
        (tnp.arange, "numpy:arange"),
    ],
)
def test_a_call_to_another_worker_may_name_it(function: Any, name: str) -> None:
    assert f"{function.__module__}:{function.__qualname__}" == name
    module, _, rest = name.partition(":")
    assert getattr(importlib.import_module(module), rest) is function
