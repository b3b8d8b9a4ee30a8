"""NVRTC by ctypes: compiles CUDA C++ for GPUs that need not be there, and reports what it uses."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from telegrad.kernels import cuda
from tests.gpu.stand_in.stand_in_kernels import kept

__all__ = ["SOURCES", "compiled", "usage", "variants"]

FOLDER = Path(cuda.__file__).parent
SOURCES = sorted(path.stem for path in FOLDER.glob("*.cu"))
# Those of the loader and of CuPy 14.
OPTIONS = ("-std=c++17", "--device-as-default-execution-space", "-ftz=true", "--ptxas-options=-v")


def variants(source: str) -> Iterator[dict[str, str]]:
    """Reads from a source with which macros it is compiled: `// compile: NAME=value|value ...`."""
    lines = re.findall(r"^// compile: (.*)$", (FOLDER / f"{source}.cu").read_text(), re.MULTILINE)
    assert lines, f"{source}.cu says nowhere `// compile: NAME=value|value ...`"
    for line in lines:
        names, values = zip(*(each.split("=") for each in line.split()), strict=True)
        for chosen in itertools.product(*(each.split("|") for each in values)):
            yield dict(zip(names, chosen, strict=True))


@cache
def _library() -> ctypes.CDLL:
    found = importlib.util.find_spec("nvidia")
    for place in (found.submodule_search_locations or []) if found else []:
        for path in Path(place).glob("cuda_nvrtc/lib/libnvrtc.so.*"):
            return ctypes.CDLL(str(path))
    pytest.skip("NVRTC is not installed here: pip install nvidia-cuda-nvrtc-cu12")


def compiled(code: str, arch: str) -> tuple[bool, str]:
    """Compiles code for an architecture such as `sm_90`; returns success and the compiler's words."""
    library, major, minor = _library(), ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    options = [*OPTIONS, f"-arch={arch}"]

    def make(part: Path) -> None:
        part.write_text(json.dumps(_compile(library, code, options)))

    contents = [code, *options, f"{major.value}.{minor.value}"]
    done, words = json.loads(kept(".json", contents, make).read_text())
    return done, words


def _compile(library: ctypes.CDLL, code: str, options: list[str]) -> tuple[bool, str]:
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"code", 0, None, None)
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = library.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return status == 0, log.value.decode()


def usage(log: str) -> dict[str, tuple[int, int]]:
    """Reads registers and bytes of spills of each kernel from the compiler's words."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        registers = re.search(r"Used (\d+) registers", part)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        assert registers is not None, part
        assert spills is not None, part
        name = part.partition("'")[0]
        found[name] = int(registers[1]), int(spills[1]) + int(spills[2])
    return found
