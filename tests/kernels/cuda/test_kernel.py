"""The loader of CUDA kernels, and the emulation that runs them without a GPU."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telegrad import kernels
from telegrad.errors import KernelError
from telegrad.kernels.cuda import Kernel, kernel
from tests.gpu.launches import calls_of
from tests.gpu.stand_in.stand_in import stand_in

HOME = Path(kernel.__file__).parent
NUMBERS = itertools.count()


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes a kernel `run(float* x, Index n)` of a body, in a folder of the test."""
    shutil.copy(HOME / "common.cuh", tmp_path)
    monkeypatch.setattr(kernel, "_FOLDER", tmp_path)

    def make(body: str) -> Kernel:
        name = f"made{next(NUMBERS)}"  # each once, as compiled kernels are kept by their names
        text = f"KERNEL void run(float* x, Index n) {{\n{body}\n}}\n"
        (tmp_path / f"{name}.cu").write_text(text)
        return Kernel(name, "run")

    return make


def floats(cupy: Any, size: int) -> Any:
    return cupy.asarray(np.arange(size, dtype=np.float32))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("int i = threadIdx.x; x[i] = warp_sum(x[i]);", np.repeat([496.0, 1520.0], 32)),
        ("int i = threadIdx.x; x[i] = block_sum(x[i]);", np.full(64, 2016.0)),
        ("int i = threadIdx.x; x[i] = __shfl_down_sync(WARP, x[i], 31);", None),
        ("int i = threadIdx.x; x[i] = __shfl_up_sync(WARP, x[i], 1, 2);", np.arange(64) // 2 * 2),
        ("int i = threadIdx.x; x[i] = __shfl_sync(WARP, x[i], 3, 8);", np.arange(64) // 8 * 8 + 3),
        ("int i = threadIdx.x; x[i] = __ballot_sync(WARP, i % 32 < 3);", np.full(64, 7.0)),
        ("int i = threadIdx.x; x[i] = __syncthreads_count(i < 5);", np.full(64, 5.0)),
        ("if (threadIdx.x % 32 < 16) x[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, 1);", None),
        ("atomicAdd(x + threadIdx.x % 2, 1.0f);", np.r_[32.0, 33.0, np.arange(2, 64)]),
        ("atomicMax((int*)x, 7); atomicCAS((int*)x + 1, 0x3f800000, 0);", None),
        (
            "DYNAMIC_SHARED(own); float* s = (float*)own; s[threadIdx.x] = x[threadIdx.x];\n"
            "__syncthreads(); x[threadIdx.x] = s[63 - threadIdx.x];",
            np.arange(64)[::-1],
        ),
    ],
)
@pytest.mark.few(4)
def test_threads_exchange(cupy: Any, source: Any, body: str, expected: Any) -> None:
    x = floats(cupy, 64)
    source(body).launch(x, 64, blocks=1, threads=64, shared=256)
    if expected is not None:
        np.testing.assert_array_equal(x.get(), expected)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "if (threadIdx.x < 5) __syncthreads();",
            "59 of 64 threads have ended, the others wait at",
        ),
        (
            "if (threadIdx.x < 5)\n__syncthreads();\nelse\n__syncthreads();",
            r"different barriers, made\d+.cu:3 and made\d+.cu:5",
        ),
        ("if (threadIdx.x % 2) warp_sum(x[0]);", "for lanes .mask ffffffff. that are elsewhere"),
        (
            "if (threadIdx.x == 0) __shfl_sync(1u, 1, 5);",
            "reads lane 5 .* not in its mask 00000001",
        ),
        ("x[n] = 1;", "in no array"),
        ("x[-2000] = n;", "in no array"),
        ("x[-1] = n;", "a write -4 bytes from the begin of an array of 256 bytes"),
        ("if (threadIdx.x == 0) { int zero = n - 64; x[0] = 5 / zero; }", "signal 8"),
    ],
)
def test_what_a_gpu_would_not_report(
    stand_in_cupy: Any, source: Any, body: str, words: str
) -> None:
    x = floats(stand_in_cupy, 64)
    with pytest.raises(AssertionError, match=f"run: block .*{words}"):
        source(body).launch(x, 64, blocks=1, threads=64)
    np.testing.assert_array_equal(x.get(), np.arange(64))


def test_arrays_that_overlap_keep_what_is_written(stand_in_cupy: Any, source: Any) -> None:
    both = floats(stand_in_cupy, 8)
    run = source("x[0] = -1;")
    for part in (both[:4], both[2:], both):
        run.launch(part, 4, blocks=1, threads=32)
    np.testing.assert_array_equal(both.get(), [-1, 1, -1, 3, 4, 5, 6, 7])


def test_errors_of_the_compiler_are_telegrads(cupy: Any, source: Any) -> None:
    with pytest.raises(
        KernelError, match=r"kernel run of made\d+.cu was not compiled:[^$]*made\d+.cu.3"
    ):
        source("int y = 1;\nx[0] = z;").launch(floats(cupy, 1), 1, blocks=1)


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        (lambda x: (x,), TypeError, "run takes 2 arguments, not 1"),
        (lambda x: (x, x), TypeError, "n of run is a number, not an array"),
        (lambda x: (x[:, 0], 1), ValueError, "x of run is not contiguous"),
        (lambda x: (x, None), TypeError, "n of run cannot be None"),
    ],
)
@pytest.mark.few(2)
def test_what_does_not_fit(cupy: Any, source: Any, args: Any, error: Any, words: str) -> None:
    x = cupy.ones((2, 2), dtype=np.float32)
    for launch in (source("").launch, source("").prepare):
        with pytest.raises(error, match=words):
            launch(*args(x), blocks=1)


def test_arrays_on_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = stand_in(2)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    here = floats(cupy, 3)
    with cupy.cuda.Device(1):
        there = floats(cupy, 3)
    with pytest.raises(ValueError, match=r"x and gradient of .* \(cuda:0, cuda:1\)"):
        kernels.gelu_slope(here, there)


def test_no_kernel_takes_complex_numbers(cupy: Any) -> None:
    with pytest.raises(KernelError, match="gelu.cu take no arrays of complex64"):
        x = cupy.zeros(3, dtype=np.complex64)
        Kernel("gelu", "gelu_forward").launch(x, x, 3, blocks=1, ITEM=x.dtype, FORM=0)


def test_without_blocks_nothing_is_launched(cupy: Any) -> None:
    Kernel("none", "none").launch(cupy.zeros(0), blocks=0)
    run, given = Kernel("none", "none").prepare(cupy.zeros(0), blocks=0)
    run(given)


def test_steps_are_launched_by_their_addresses(cupy: Any, source: Any) -> None:
    x = floats(cupy, 8)
    run, _ = source("if (x) x[threadIdx.x] += n;").prepare(x, 0, blocks=1, threads=32)
    run((0, 5))
    times = source("if (threadIdx.x < 2) x[threadIdx.x] *= n;")
    steps, _ = times.prepare(x, 0, blocks=1, threads=32)
    for t in range(1, 4):
        steps((x.data.ptr + 2 * t * x.itemsize, 10 * t))
    np.testing.assert_array_equal(x.get(), [0, 1, 20, 30, 80, 100, 180, 210])


def test_without_a_compiler_it_is_skipped_in_words() -> None:
    """In a process of its own, as this one may have found a compiler before."""
    program = (
        "from tests.gpu.stand_in.stand_in_kernels import RawModule\n"
        f"RawModule(code='KERNEL void run() {{ /* {os.getpid()} */ }}').get_function('run')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PATH": "", "CXX": "no-compiler"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Skipped: there is no C++ compiler here" in done.stderr


def test_a_launch_makes_few_calls(stand_in_cupy: Any) -> None:
    x = floats(stand_in_cupy, 64)
    y, run = stand_in_cupy.empty_like(x), Kernel("gelu", "gelu_forward").launch
    assert calls_of(lambda: run(x, y, 64, blocks=1, ITEM=x.dtype, FORM=0)) == 3
