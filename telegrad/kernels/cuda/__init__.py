"""Kernels written in CUDA C++, which CuPy compiles when they are first used.

How to add a kernel, by the example of `gelu.cu` and `telegrad/kernels/gaussian.py`:

1. **Source.** `name.cu` in this folder declares `KERNEL void name_forward(const ITEM* x, ITEM* y,
   Index n)`. Types and choices are macros; a line `// compile: ITEM=float|Half TANH=0|1` says with
   which values the tests compile it, and there may be several such lines. It includes nothing:
   `common.cuh` has the number types, `widen`, `load` and `store` of 16 bytes at a time, `map` for
   functions of single items, `warp_sum` and `block_sum`.
2. **Rules of a source.** Sizes and places are `Index`, of 64 bits. Loops over items or rows take
   steps of the whole grid, as a launch has at most 65,536 blocks. A block has whole warps. 16-bit
   floats are computed in float. Dynamic shared memory is `DYNAMIC_SHARED(name)`, 48 KiB at most.
   Packs of items are read only where `aligned` says so. Lambdas may be generic.
3. **Launch.** The public function keeps its name for both libraries, and for CuPy arrays calls
   `Kernel("name", "name_forward").launch(x, y, n, blocks=blocks_for(n, 1024), ITEM=x.dtype)`. It
   passes `contiguous(x)`, checks all sizes first, and makes the results with `empty`. A launch
   checks the number and kinds of arguments and the devices, and never waits. A `Table` has the
   addresses of any number of arrays, which one launch works on. `check_operands` checks those of
   products, as cuBLAS takes addresses. A loop over steps checks once, by `prepare`, and launches
   with addresses: a view takes CuPy longer than a small kernel runs.
4. **Twin.** The same function computes NumPy arrays by NumPy alone. What only CuPy arrays needed
   there goes away.
5. **Tests.** `tests/kernels/test_name.py` compares both for random shapes, layouts, dtypes and edge
   sizes (`strided.py`), counts launches (`tests/gpu/launches.py`) and tries what does not fit. On a
   machine without a GPU it runs the source by `tests/gpu/stand_in/cuda_emulation.h`; words of CUDA
   that are missing there are added there. `test_sources.py` finds the source by itself.
6. **Times.** `scripts/gpu_fused.py` has a row for each direction, beside CuPy's functions and
   torch; `docs/gpu.md` names the kernel.
"""

from telegrad.kernels.cuda.kernel import (
    Kernel,
    all_contiguous,
    blocks_for,
    check_operands,
    code_of,
    contiguous,
)
from telegrad.kernels.cuda.table import Table

__all__ = [
    "Kernel",
    "Table",
    "all_contiguous",
    "blocks_for",
    "check_operands",
    "code_of",
    "contiguous",
]
