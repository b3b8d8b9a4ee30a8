"""Checks what mypy finds in a user's program, and that the stubs of `telegrad.numpy` are complete."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import Tensor, no_grad
from telegrad.autograd import extend
from tests.autograd.samples.tables import SAMPLES

ROOT = Path(__file__).parents[2]
PROGRAM = "tests/types/program.py"
STUBS = ["telegrad.numpy", "telegrad.numpy.linalg", "telegrad.numpy.fft", "telegrad.scipy.special"]
# What the stubs call a kind of result, and its class; NumPy's own where it is a named tuple.
RESULTS = {
    "_bool": bool,
    "_int": int,
    "_list": list,
    "_pair": tuple,
    "_shape": tuple,
    "_str": str,
    "_tensor": Tensor,
    "_tuple": tuple,
}


@pytest.mark.timeout(
    300
)  # without the cache of `make types` it checks all that the program imports
def test_mypy_refuses_the_lines_of_a_program_that_are_wrong() -> None:
    """The program stands in a folder of its own, which `make types` leaves out."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-pretty", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(rf"^{PROGRAM}:(\d+): error: .*(\[[\w-]+\])$", done.stdout, re.MULTILINE)
    lines = enumerate((ROOT / PROGRAM).read_text().splitlines(), 1)
    marked = [(str(i), line.partition("# error: ")[2]) for i, line in lines if "# error: " in line]
    assert found == marked, done.stdout


def declared(module: str) -> Iterator[tuple[str, str]]:
    """The functions of a stub, each with what it is declared as."""
    stub = ROOT.joinpath(*module.split("."))
    path = stub / "__init__.pyi" if stub.is_dir() else stub.with_suffix(".pyi")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                yield ast.unparse(target), node.value.id
        elif isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
            yield ast.unparse(node.target), ast.unparse(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.name != "__getattr__":
            yield node.name, ""


@pytest.mark.parametrize("module", STUBS)
def test_a_stub_declares_the_functions_that_have_rules(module: str) -> None:
    here = importlib.import_module(module)
    theirs = importlib.import_module(module.removeprefix("telegrad."))
    assert set(dict(declared(module))) == {
        name
        for name in here.__all__
        if callable(value := getattr(theirs, name)) and extend.find(value) is not None
    }


def with_tensors(arguments: Any) -> Any:
    if isinstance(arguments, list | tuple):
        return type(arguments)(map(with_tensors, arguments))
    return Tensor(arguments) if isinstance(arguments, np.ndarray) else arguments


@pytest.mark.parametrize("module", STUBS)
def test_functions_of_tensors_give_what_their_stub_declares(module: str) -> None:
    theirs = importlib.import_module(module.removeprefix("telegrad."))
    for name, kind in declared(module):
        function: Any = getattr(theirs, name)
        samples = SAMPLES.get(function, [])
        for sample in [each for each in samples if not each.options]:
            entry: Any = extend.find(function)
            with no_grad():
                found = entry(*with_tensors(sample.arguments))
            assert isinstance(found, RESULTS.get(kind, object)), (name, found)
