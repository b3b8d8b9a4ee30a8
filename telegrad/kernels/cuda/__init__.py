"""Kernels written in CUDA C++, compiled by CuPy when they are first used.

`docs/extend.md` says how to add one.
"""

from telegrad.kernels.cuda.kernel import Kernel, blocks_for, code_of, contiguous

__all__ = ["Kernel", "blocks_for", "code_of", "contiguous"]
