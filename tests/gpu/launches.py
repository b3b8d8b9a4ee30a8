"""Counts what a program launches on the GPU, and telegrad's own calls on the way there.

Launches are those of kernels, and functions of CuPy that compute. A GPU waits for the host if a launch
takes many calls of Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import telegrad
from tests.gpu.stand_in import stand_in
from tests.gpu.stand_in.stand_in_kernels import launched

__all__ = ["calls_of", "launches"]

HOME = str(Path(telegrad.__file__).parent)

# They make arrays without a launch, or views, or look at shapes alone.
FREE = [
    "asarray",
    "broadcast_arrays",
    "broadcast_to",
    "diagonal",
    "empty",
    "empty_like",
    "expand_dims",
    "may_share_memory",
    "moveaxis",
    "ndim",
    "real_if_close",
    "result_type",
    "shape",
    "size",
    "split",
    "array_split",
    "ravel",
]
METHODS = ["sum", "mean", "max", "min", "prod", "any", "all", "copy", "conj", "fill", "__setitem__"]


@contextmanager
def launches() -> Iterator[list[str]]:
    """Notes the names of all that is launched in its block on the stand-in for CuPy.

    A function of CuPy counts as one launch, though it may be several on a GPU.
    """
    module = sys.modules["cupy"]
    with launched() as names, ExitStack() as stack:

        def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                names.append(name)
                return function(*args, **kwargs)

            return run

        def counted_astype(array: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
            made = astype(array, dtype, *args, **kwargs)
            if made is not array:
                names.append("astype")
            return made

        for name, function in vars(module).items():
            plain = callable(function) and not isinstance(function, (type, stand_in.Ufunc))
            if plain and name not in FREE:
                stack.enter_context(mock.patch.object(module, name, counted(name, function)))
        astype = stand_in.ndarray.astype
        stack.enter_context(mock.patch.object(stand_in.ndarray, "astype", counted_astype))
        for name in METHODS:
            method = counted(name, getattr(stand_in.ndarray, name))
            stack.enter_context(mock.patch.object(stand_in.ndarray, name, method))
        ufunc = stand_in.Ufunc.__call__

        def counted_ufunc(self: Any, *args: Any, **kwargs: Any) -> Any:
            names.append(self.__name__)
            return ufunc(self, *args, **kwargs)

        stack.enter_context(mock.patch.object(stand_in.Ufunc, "__call__", counted_ufunc))
        yield names


def calls_of(function: Callable[[], object]) -> int:
    """Returns the calls of telegrad's functions during the second call of `function`."""
    found = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal found
        found += event == "call" and frame.f_code.co_filename.startswith(HOME)

    function()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found
