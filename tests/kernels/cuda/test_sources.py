"""The CUDA sources: NVRTC compiles each for all GPUs, with few registers and no spills."""

from __future__ import annotations

import re

import pytest

from telegrad.kernels.cuda import code_of
from tests.gpu.stand_in.stand_in_kernels import warnings
from tests.kernels.cuda.nvrtc import FOLDER, SOURCES, compiled, usage, variants

# A100, H100, B200, and V100, which CUDA 13 has dropped.
ARCHITECTURES = ["sm_80", "sm_90", "sm_100", "sm_70"]
MOST_REGISTERS = 80  # of 65,536 for a multiprocessor's 2,048 threads: 3 blocks of 256 at once
MOST_REGISTERS_OF_DOUBLES = 96  # 2 blocks: few train in float64
TILED = {"attention_tiles", "attention_tile_gradients"}  # two blocks: tiles are in registers

NARROWED = r".*long long.* to \W(?:unsigned|int|short)\b.*"  # of g++ and of clang


def check(source: str, define: dict[str, str], arch: str) -> None:
    text = (FOLDER / f"{source}.cu").read_text()
    names = set(re.findall(r"^KERNEL void (?:__\w+\(.*?\) )?(\w+)\(", text, re.MULTILINE))
    done, log = compiled(code_of(source, **define), arch)
    assert done, log
    used = usage(log)
    assert names <= used.keys()
    for name, (registers, spilled) in used.items():
        most = MOST_REGISTERS_OF_DOUBLES if define.get("ITEM") == "double" else MOST_REGISTERS
        most = 128 if name in TILED else most
        assert registers <= most, (name, define, registers)
        assert spilled == 0, (name, define, spilled)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES)
def test_sources_compile_and_spill_nothing(source: str, arch: str) -> None:
    every = list(variants(source))  # each architecture has another one, of another dtype
    check(source, every[ARCHITECTURES.index(arch) * len(every) // len(ARCHITECTURES)], arch)


@pytest.mark.long
@pytest.mark.parametrize("arch", ARCHITECTURES[:3])
@pytest.mark.parametrize("source", SOURCES)
def test_all_variants_compile_and_spill_nothing(source: str, arch: str) -> None:
    for define in variants(source):
        check(source, define, arch)


@pytest.mark.parametrize("source", SOURCES)
def test_no_index_is_narrowed(source: str) -> None:
    """An array may have more than 2**31 items: their numbers are never made an int unnamed."""
    words = warnings(code_of(source, **next(variants(source))), "-Wconversion")
    assert not re.findall(NARROWED, words)


def test_a_narrowed_index_is_found() -> None:
    code = code_of("dropout", ITEM="float").replace("const Index step", "const int step")
    assert re.search(NARROWED, warnings(code, "-Wconversion"))


def test_errors_name_the_file_and_the_line() -> None:
    broken = (
        code_of("gelu", ITEM="float", FORM=0).replace("return erfc", "").replace("value(x)", "x.y")
    )
    done, log = compiled(broken, "sm_90")
    assert not done
    assert re.search(r"gelu\.cu\(\d+\): error", log)
