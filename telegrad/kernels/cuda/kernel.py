"""`Kernel`: one function of a CUDA C++ source in this folder, compiled and launched through CuPy.

CuPy compiles for the GPU at hand with NVRTC, keeps the result in its cache on disk, and launches on
the current stream of the caller. The code that is compiled consists of `common.cuh`, one `#define`
for each definition of the launch, and the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from telegrad.arrays import is_cupy, namespace
from telegrad.errors import KernelError
from telegrad.kernels.cuda.table import Table

Parameters = tuple[tuple[str, bool], ...]  # their names, and whether they are pointers

_FOLDER: Final = Path(__file__).parent
_TYPES: Final = {
    "float64": "double", "float32": "float", "float16": "Half", "bfloat16": "Bfloat",
    "int64": "long long", "int32": "int", "int16": "short", "int8": "signed char",
    "uint64": "unsigned long long", "uint32": "unsigned", "uint16": "unsigned short",
    "uint8": "unsigned char", "bool": "bool",
}  # fmt: skip
_OPTIONS: Final = ("-std=c++17",)
_NULL: Final = np.uintp(0)
MOST_BLOCKS: Final = 1 << 16
"""Blocks of a launch at most; a kernel's loops take steps of the whole grid."""


def blocks_for(items: int, per_block: int) -> int:
    """Returns the number of blocks that `items` need, at most MOST_BLOCKS.

    >>> blocks_for(0, 256), blocks_for(1, 256), blocks_for(10**12, 256)
    (0, 1, 65536)
    """
    return min(MOST_BLOCKS, -(-items // per_block))


def contiguous(x: Any) -> Any:
    """Returns `x` if its items lie in C order without gaps, else such a copy."""
    return x if x.flags.c_contiguous else x.copy(order="C")


def all_contiguous(arrays: Iterable[Any]) -> list[Any]:
    """Returns `contiguous(x)` of many arrays, without a call for each."""
    return [x if x.flags.c_contiguous else x.copy(order="C") for x in arrays]


@final
class Kernel:
    """A function of a `.cu` source.

    Args:
        source: The name of the file in this folder, without `.cu`.
        name: The function, which is declared there as `KERNEL void name(...)`.
    """

    def __init__(self, source: str, name: str) -> None:
        self._source = source
        self._name = name

    def launch(self, *args: Any, **how: Any) -> None:
        """Launches the function on the caller's current stream and returns at once.

        Args:
            args: The arguments, as for `prepare`.
            how: The blocks, threads, shared memory and macros, as for `prepare`.

        Raises:
            KernelError: As for `prepare`.
            TypeError: As for `prepare`.
            ValueError: As for `prepare`.
        """
        run, given = self.prepare(*args, **how)
        run(given)

    def prepare(
        self,
        *args: Any,
        blocks: int | tuple[int, ...],
        threads: int = 256,
        shared: int = 0,
        **define: Any,
    ) -> tuple[Callable[[tuple[Any, ...]], None], tuple[Any, ...]]:
        """Does all of `launch` but the launch, for one that comes later or for each of many steps.

        Args:
            args: The arguments in the order of the source; of a sequence, the arrays of all steps,
                or of one. An array stands for a pointer, None for a null pointer, a `Table` for
                `const Table*`, an int for `Index` and a float for `double`. A NumPy scalar stands
                for its own type.
            blocks: The number of blocks, or up to three numbers; with 0 nothing is launched.
            threads: The number of threads in a block.
            shared: The bytes of a block's dynamic shared memory.
            define: The values of the source's macros: a dtype becomes its C++ type.

        Returns:
            A function that launches with a tuple of arguments, which it does not check, and these
            arguments in that form. There the address of a step stands for a pointer, and 0 for a
            null pointer. The caller keeps the arrays.

        Raises:
            KernelError: The source does not compile, or takes no such dtype.
            TypeError: The arguments are not those that the source declares.
            ValueError: An array is in host memory, on another device, misaligned, or not
                contiguous.
        """
        grid = blocks if isinstance(blocks, tuple) else (blocks,)
        if 0 in grid:
            return _launch_nothing, ()
        leading = args[0]
        xp = namespace(leading.words if type(leading) is Table else leading, *args)
        ndarray = xp.ndarray
        function, parameters = _compiled(
            xp.RawModule, self._source, self._name, tuple(define.items())
        )
        if len(args) != len(parameters):
            raise TypeError(f"{self._name} takes {len(parameters)} arguments, not {len(args)}")
        # Small steps of training are as fast as this loop, so it calls nothing for a good argument.
        given = []
        first, place = "", -1
        for (parameter, pointer), each in zip(parameters, args, strict=True):
            value = each.words if type(each) is Table else each
            if not isinstance(value, ndarray):
                if pointer is not (value is None) or isinstance(value, np.ndarray):
                    raise _misfit(self._name, parameter, value)
                given.append(_NULL if pointer else value)
                continue
            if not pointer or not value.flags.c_contiguous:
                raise _misfit(self._name, parameter, value, pointer=pointer)
            memory = value.data
            if memory.ptr % value.itemsize:
                raise _misfit(self._name, parameter, value, pointer=True)
            number = memory.device_id
            if number != place and place >= 0:
                raise _apart(self._name, first, place, parameter, number)
            first, place = parameter, number
            given.append(value)
        return partial(function, grid, (threads,), shared_mem=shared), tuple(given)


def check_operands(name: str, **operands: Any) -> None:
    """Checks arrays whose addresses go to the GPU without `Kernel`, such as those of products.

    An address that a GPU cannot read ends all work of the process there.

    Args:
        name: The function that takes the arrays, for the message.
        operands: Arrays by the names of their parameters; None stands for no array. NumPy arrays
            alone are as good as CuPy arrays alone.

    Raises:
        ValueError: An array is in host memory, misaligned, or on another device than the others.
    """
    if not any(map(is_cupy, operands.values())):
        return
    first, place = "", -1
    for parameter, array in operands.items():
        if array is None:
            continue
        if isinstance(array, np.ndarray) or array.data.ptr % array.itemsize:
            raise _misfit(name, parameter, array, pointer=True)
        number = array.data.device_id
        if number != place and place >= 0:
            raise _apart(name, first, place, parameter, number)
        first, place = parameter, number


def code_of(source: str, **define: Any) -> str:
    """Returns the code that is compiled for a source.

    Args:
        source: The name of the file, without `.cu`.
        define: The values of its macros: a dtype becomes its C++ type, all else stays.

    Raises:
        KernelError: No kernel takes such a dtype.
    """
    lines = [f"#define {name} {_written(source, value)}" for name, value in define.items()]
    for file in ("common.cuh", f"{source}.cu"):
        lines += [f'#line 1 "{file}"', (_FOLDER / file).read_text()]
    return "\n".join(lines)


def _written(source: str, value: Any) -> str:
    if isinstance(value, (int, str)):
        return str(value)
    found = _TYPES.get(np.dtype(value).name)
    if found is None:
        raise KernelError(f"the kernels of {source}.cu take no arrays of {np.dtype(value).name}")
    return found


@cache
def _compiled(
    raw_module: Any, source: str, name: str, define: tuple[tuple[str, Any], ...]
) -> tuple[Any, Parameters]:
    code = code_of(source, **dict(define))
    try:
        function = raw_module(code=code, options=_OPTIONS).get_function(name)
    except Exception as error:  # CuPy's and those of NVRTC and the driver
        words = f"the kernel {name} of {source}.cu was not compiled: {error}"
        raise KernelError(words) from error
    found = re.search(rf"KERNEL void (?:__\w+\(.*?\) )?{name}\((.*?)\)\s*{{", code, re.DOTALL)
    if found is None:
        raise KernelError(f"{source}.cu declares no `KERNEL void {name}(...)`")
    each = [text.strip() for text in found[1].split(",")]
    return function, tuple((re.split(r"\W+", text)[-1], "*" in text) for text in each)


def _misfit(name: str, parameter: str, value: Any, *, pointer: bool = False) -> Exception:
    """Returns the error of an argument that is not what the source declares."""
    if isinstance(value, np.ndarray):
        return ValueError(
            f"{parameter} of {name} is in host memory; move it, for instance with tensor.to(device)"
        )
    if pointer and value.data.ptr % value.itemsize:
        return ValueError(
            f"{parameter} of {name} is misaligned: its address {value.data.ptr:#x} is no multiple "
            f"of {value.itemsize} bytes"
        )
    if pointer:
        return ValueError(f"{parameter} of {name} is not contiguous; copy it first")
    if is_cupy(value):
        return TypeError(f"{parameter} of {name} is a number, not an array")
    return TypeError(f"{parameter} of {name} cannot be {value!r}")


def _apart(name: str, first: str, place: int, second: str, other: int) -> ValueError:
    return ValueError(
        f"{first} and {second} of {name} are on different devices (cuda:{place}, cuda:{other}); "
        "move one, and call inside `with cupy.cuda.Device(number)`"
    )


def _launch_nothing(args: tuple[Any, ...]) -> None:
    """Stands for a launch without blocks."""
