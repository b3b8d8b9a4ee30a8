"""`RawModule` of the stand-in for CuPy: kernels compiled by the C++ compiler and run on the CPU.

`cuda_emulation.h` says how threads run and which errors are found. A test that launches a kernel on a
machine without a C++ compiler is skipped.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu.stand_in.stand_in_memory import rest_of

__all__ = ["CompileException", "RawModule", "kept", "launched", "note", "warnings"]

HEADER = Path(__file__).with_name("cuda_emulation.h")
# In the environment of the tests, which outlives the files that a `git clean` removes.
MADE = Path(sys.prefix) / "kernel_cache"
FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-fno-strict-aliasing", "-ffp-contract=off")
_LAUNCH = threading.Lock()  # the emulation runs one kernel at a time
_SEEN: list[list[str]] = []


class CompileException(Exception):
    """As CuPy's: the compiler's words."""


class Span(ctypes.Structure):
    """`emulation::Span`."""

    _fields_ = [
        ("place", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("item", ctypes.c_size_t),
        ("copy", ctypes.c_void_p),
        ("before", ctypes.c_void_p),
        ("pages", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
    ]


@contextmanager
def launched() -> Iterator[list[str]]:
    """Notes the names of the kernels that any thread launches in its block."""
    names: list[str] = []
    _SEEN.append(names)
    try:
        yield names
    finally:
        _SEEN.remove(names)


def note(name: str) -> None:
    """Notes a launch."""
    for names in _SEEN:
        names.append(name)


@cache
def _compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if found is None:
        pytest.skip("there is no C++ compiler here (g++, clang++ or $CXX) to run GPU kernels with")
    return found


@cache
def _version() -> str:
    """Returns the compiler's words about itself: another one makes other files."""
    return subprocess.check_output([_compiler(), "--version"], text=True)


def kept(suffix: str, contents: Sequence[str], make: Callable[[Path], object]) -> Path:
    """Returns the file that was made of these contents once, by any process of any run."""
    key = hashlib.sha256("\0".join(contents).encode()).hexdigest()[:32]
    path = MADE / f"{key}{suffix}"
    if not path.exists():
        MADE.mkdir(exist_ok=True)
        part = MADE / f"{key}.{os.getpid()}.{threading.get_ident()}{suffix}"
        make(part)
        part.rename(path)
    return path


def _compile(source: Path, made: Path, *flags: str) -> None:
    command = [_compiler(), *flags, "-o", str(made), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileException(done.stderr)


def warnings(code: str, *flags: str) -> str:
    """Returns the compiler's words on a kernel's code with these flags."""
    text = f'#include "{HEADER}"\n{code}'

    def make(part: Path) -> None:
        command = [_compiler(), "-std=c++17", "-fsyntax-only", *flags, "-x", "c++", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        part.write_text(done.stderr)

    return kept(".txt", [text, HEADER.read_text(), _version(), *flags], make).read_text()


@cache
def _header() -> Path:
    """Returns a copy of the header, beside what g++ compiled of it: a fifth less for each kernel."""
    text = HEADER.read_text()
    flags = [flag for flag in FLAGS if flag != "-shared"] + ["-x", "c++-header"]
    header = kept(".h", [text, _version(), *flags], lambda part: part.write_text(text))
    kept(".h.gch", [text, _version(), *flags], lambda part: _compile(header, part, *flags))
    return header


@cache
def _library(code: str) -> ctypes.CDLL:
    names = re.findall(r"^KERNEL void (?:__\w+\(.*?\) )?(\w+)\(", code, re.MULTILINE)
    entries = [f"EMULATION_ENTRY({name})" for name in dict.fromkeys(names)]
    text = "\n".join([code, '#line 1 "entries"', *entries, ""])

    def make(part: Path) -> None:
        source = part.with_suffix(".cpp")
        source.write_text(f'#include "{_header()}"\n{text}')
        try:
            _compile(source, part, *FLAGS)
        finally:
            source.unlink()

    return ctypes.CDLL(str(kept(".so", [text, HEADER.read_text(), _version(), *FLAGS], make)))


class RawModule:
    """Compiles when a function is asked for, as CuPy's."""

    def __init__(self, *, code: str, options: tuple[str, ...] = ()) -> None:
        assert all(re.match(r"-std=c\+\+17$", option) for option in options), options
        self._code = code

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(_library(self._code), name)


def _numbered(words: Any, spans: dict[tuple[int, int, int], int]) -> Any:
    """Returns a copy of a `Table` with numbers of spans, from 1 on, in place of addresses."""
    arrays, chunks, lists = map(int, words[:3])
    bytes_of = words[3 : 3 + lists]
    sizes = words[3 + lists + 2 * chunks :][:arrays]
    numbered = words.copy()
    addresses = numbered[len(words) - lists * arrays :].reshape(lists, arrays)
    for k, item in enumerate(bytes_of.tolist()):
        for i, size in enumerate(sizes.tolist()):
            key = int(addresses[k, i]), item * size, item
            addresses[k, i] = spans.setdefault(key, len(spans) + 1) if size else 0
    return numbered


class RawKernel:
    """A kernel; a call runs it to its end.

    Raises:
        AssertionError: The kernel did what a GPU forbids, or was given what it does not take.
    """

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._name = name
        self._launch = getattr(library, f"launch_{name}")
        self._launch.restype = ctypes.c_char_p
        codes = getattr(library, f"codes_{name}")
        codes.restype = ctypes.c_char_p
        self._codes: str = codes().decode()

    def __call__(
        self, grid: Any, block: Any, args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        grid, block = ((*shape, 1, 1)[:3] for shape in (grid, block))
        assert 1 <= np.prod(block) <= 1024, block
        assert np.prod(block) % 32 == 0, f"{block}: kernels here use whole warps"
        assert 1 <= grid[0] < 2**31, grid
        assert all(1 <= n < 2**16 for n in grid[1:]), grid
        assert 0 <= shared_mem <= 48 << 10, "more shared memory has to be asked for"
        assert len(args) == len(self._codes), (self._name, len(args), self._codes)
        spans: dict[tuple[int, int, int], int] = {}  # address, bytes and bytes of an item
        places: list[Any] = []
        tables: list[Any] = []
        for code, value in zip(self._codes, args, strict=True):
            given = value
            if code == "T":
                tables.append(_numbered(value.of_host, spans))
                given = tables[-1]
            places.append(self._place(code, given, spans))
        made = (Span * max(1, len(spans)))(*(Span(*key) for key in spans))
        shape = (ctypes.c_uint * 7)(*grid, *block, shared_mem)
        pointers = (ctypes.c_void_p * len(args))(*map(ctypes.addressof, places))
        with _LAUNCH:
            words = self._launch(shape, pointers, made, len(spans))
        note(self._name)
        assert words is None, f"{self._name}: {words.decode()}"

    def _place(self, code: str, value: Any, spans: dict[tuple[int, int, int], int]) -> Any:
        """Returns memory that holds one argument; for an array, the number of its span."""
        if code in "PT":
            if type(value) is int and code == "P" and value:  # as CuPy, an address
                return ctypes.c_long(spans.setdefault((value, *rest_of(value)), len(spans) + 1))
            host = value if code == "T" else getattr(value, "of_host", None)
            if host is None:
                assert repr(value) in ("0", repr(np.uintp(0))), (self._name, value)
                return ctypes.c_long(0)
            key = host.__array_interface__["data"][0], host.nbytes, host.itemsize
            return ctypes.c_long(spans.setdefault(key, len(spans) + 1))
        exact = np.asarray(
            value, {int: np.int64, float: np.float64, bool: np.bool_}.get(type(value))
        )
        assert exact.dtype == np.dtype(code), (
            f"{self._name} takes {np.dtype(code)}, not {exact.dtype}"
        )
        return (ctypes.c_char * exact.itemsize).from_buffer_copy(exact.tobytes())
