"""On which GPU of the receiver an array of a GPU arrives; it is said in the tag of its line.

describe_lines ──▶ a `Gpu` where the tag stands ──pack_lines, `Place`──▶ "cupy", "cuda:1" or "array"
rebuild        ◀── an array of NumPy or CuPy    ◀──`Land`──────────────
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np

from telegrad.arrays import CPU, device_of, to_device

__all__ = [
    "MOST_GPUS",
    "DeviceMap",
    "Gpu",
    "Land",
    "Place",
    "first_gpu",
    "gpu_number",
    "land",
    "place_by",
]

MOST_GPUS: Final = 1000  # of one worker; a longer number is a typing error, or garbage

ARRAY: Final = "array"
FIRST_GPU: Final = "cupy"
_NUMBERED = re.compile(r"cuda:(0|[1-9][0-9]{0,2})")

DeviceMap: TypeAlias = Mapping[int, int | str]
"""To which GPU of the receiver arrays of this worker's GPUs go; "cpu": to its host memory."""

Place: TypeAlias = Callable[[object], str]
"""Says the tag of an array of a GPU for one receiver; asked with its `Gpu`."""

Land: TypeAlias = Callable[[np.ndarray[Any, Any], int], Any]
"""Moves an array that arrived to the GPU of a number, or says why not and leaves it elsewhere."""


@final
@dataclass(frozen=True, slots=True)
class Gpu:
    """Stands for the tag of an array, until it is known for whom it is described.

    Attributes:
        device: Where the array is at the sender: `cuda:0`, `cuda:1`, ...
    """

    device: str

    @staticmethod
    def of(array: Any) -> Gpu:
        """Returns where an array of CuPy is."""
        return Gpu(device_of(array))


def place_by(devices: DeviceMap) -> Place:
    """Returns what says where arrays of this worker's GPUs are to arrive at one receiver.

    >>> place_by({0: 1, 2: "cpu"})(Gpu("cuda:0"))
    'cuda:1'
    """
    tags = {f"cuda:{number}": _tag_of(wanted) for number, wanted in devices.items()}

    return lambda tag: tags.get(_gpu(tag).device, FIRST_GPU)


def first_gpu(tag: object) -> str:
    """Says that arrays of any GPU are to arrive on the receiver's first one."""
    _gpu(tag)
    return FIRST_GPU


def _gpu(tag: object) -> Gpu:
    if type(tag) is not Gpu:
        raise TypeError(f"a {type(tag).__qualname__} in the description of an external")
    return tag


def _tag_of(wanted: int | str) -> str:
    if wanted == CPU:
        return ARRAY
    return f"cuda:{wanted}" if wanted else FIRST_GPU


def gpu_number(tag: str) -> int | None:
    """Returns the number of the GPU that a tag names; None for a tag of another external.

    >>> gpu_number("cupy"), gpu_number("cuda:1"), gpu_number("array")
    (0, 1, None)
    """
    if tag == FIRST_GPU:
        return 0
    found = _NUMBERED.fullmatch(tag)
    return None if found is None else int(found[1])


def land(
    array: np.ndarray[Any, Any],
    number: int,
    missed: Callable[[int, str], None] = lambda number, reason: None,
) -> Any:
    """Moves an array where the receiver has CuPy loaded and that GPU, or else to its first one.

    Args:
        array: As it arrived, in host memory.
        number: Of the GPU.
        missed: Called with the number of a GPU that cannot be had, unless it is the first, and why.

    Returns:
        The array there; on the first GPU, or as it was where there is none, if it cannot be.
    """
    if "cupy" not in sys.modules:
        if number:
            missed(number, "CuPy is not imported")
        return array
    if number:
        try:
            return to_device(array, f"cuda:{number}")
        except Exception as error:  # no such GPU, whatever CuPy or its driver says about that
            missed(number, f"{type(error).__name__}: {error}")
    try:
        return to_device(array, "cuda")
    except Exception:
        return array
