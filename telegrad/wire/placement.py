"""On which GPU of the receiver an array of a GPU arrives; it is said in the tag of its line.

describe_lines ──▶ a `Gpu` where the tag stands ──pack_lines, `Place`──▶ "cupy", "cuda:1", "array", "cpu"
rebuild        ◀── an array of NumPy or CuPy    ◀──`Land`──────────────
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np

from telegrad.arrays import CPU, Mappings, copy_to_device, device_of, to_device, to_host
from telegrad.errors import DecodeError
from telegrad.wire.shadow import Mode, Shadow

__all__ = [
    "HOST",
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

HOST: Final = -1  # in the place of a GPU's number: host memory

ARRAY: Final = "array"
FIRST_GPU: Final = "cupy"
_NUMBERED = re.compile(r"cuda:(0|[1-9][0-9]{0,2})")

DeviceMap: TypeAlias = Mapping[int, int | str]
"""To which GPU of the receiver arrays of this worker's GPUs go; "cpu": to its host memory."""

Place: TypeAlias = Callable[[object], str]
"""Says the tag of an array of a GPU for one receiver; asked with its `Gpu`."""

Land: TypeAlias = Callable[[np.ndarray[Any, Any] | Shadow, int], Any]
"""Moves an array that arrived to the GPU of a number, or says why not and leaves it elsewhere."""


@final
@dataclass(frozen=True, slots=True)
class Gpu:
    """Stands for the tag of an array, until it is known for whom it is described.

    Attributes:
        device: Where the array is at the sender: `cuda:0`, `cuda:1`, ...
        shared: Whether a shadow stands for it.
    """

    device: str
    shared: bool = False

    @staticmethod
    def of(array: Any, *, shared: bool = False) -> Gpu:
        """Returns where an array of CuPy is."""
        return Gpu(device_of(array), shared)


def place_by(devices: DeviceMap) -> Place:
    """Returns what says where arrays of this worker's GPUs are to arrive at one receiver.

    >>> place_by({0: 1, 2: "cpu"})(Gpu("cuda:0"))
    'cuda:1'
    """
    tags = {f"cuda:{number}": _tag_of(wanted) for number, wanted in devices.items()}

    def tag_of(tag: object) -> str:
        gpu = _gpu(tag)
        wanted = tags.get(gpu.device, FIRST_GPU)
        return CPU if gpu.shared and wanted == ARRAY else wanted

    return tag_of


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
    """Returns the number of the GPU that a tag names, or HOST; None for a tag of another external.

    >>> gpu_number("cupy"), gpu_number("cuda:1"), gpu_number("cpu"), gpu_number("array")
    (0, 1, -1, None)
    """
    if tag == FIRST_GPU:
        return 0
    if tag == CPU:
        return HOST
    found = _NUMBERED.fullmatch(tag)
    return None if found is None else int(found[1])


def land(
    array: np.ndarray[Any, Any] | Shadow,
    number: int,
    missed: Callable[[int, str], None] = lambda number, reason: None,
    mappings: Mappings | None = None,
) -> Any:
    """Moves an array where the receiver has CuPy loaded and that GPU, or else to its first one.

    Args:
        array: As it arrived, in host memory, or its shadow.
        number: Of the GPU, or HOST.
        missed: Called with the number of a GPU that cannot be had, unless it is the first, and why.
            Also with HOST, where memory of a GPU that the sender shares cannot be opened here.
        mappings: What is open of the memory of others, where any of it may be.

    Returns:
        The array there; on the first GPU, or in host memory where there is none, if it cannot be.

    Raises:
        DecodeError: It is nowhere where this worker could find it.
    """
    if type(array) is not Shadow:
        return _landed(array, number, missed, to_device)
    mode = array.mode
    if mode is Mode.THERE and mappings is not None:
        return _landed_from_gpu(array, number, missed, mappings)
    if mode is Mode.BOTH and mappings is not None:
        array.answer(_tried(array, missed, mappings))
    return _landed(array.at_home(), number, missed, to_device)


def _landed(
    array: Any, number: int, missed: Callable[[int, str], None], move: Callable[[Any, str], Any]
) -> Any:
    if number == HOST or "cupy" not in sys.modules:
        if number > 0:
            missed(number, "CuPy is not imported")
        return to_host(array)
    if number:
        try:
            return move(array, f"cuda:{number}")
        except Exception as error:  # no such GPU, whatever CuPy or its driver says about that
            missed(number, f"{type(error).__name__}: {error}")
    try:
        return move(array, "cuda")
    except Exception:
        return to_host(array)


def _landed_from_gpu(
    shadow: Shadow, number: int, missed: Callable[[int, str], None], mappings: Mappings
) -> Any:
    """Copies from memory of the sender's, to which nothing refers afterwards."""
    room = shadow.room
    try:
        with mappings.array(shadow.place, room.shape, room.dtype, room.nbytes) as there:
            return _landed(there, number, missed, copy_to_device)
    except Exception as error:
        if shadow.mode is Mode.HERE:  # its sender took it back meanwhile, as the stream broke
            return _landed(shadow.at_home(), number, missed, to_device)
        raise DecodeError(
            f"an array that its sender shares on a GPU is not to be had: {error}"
        ) from error


def _tried(shadow: Shadow, missed: Callable[[int, str], None], mappings: Mappings) -> Mode:
    """Looks whether memory of the sender's has the bytes that came."""
    room = shadow.room
    try:
        with mappings.array(shadow.place, room.shape, room.dtype, room.nbytes) as there:
            right = to_host(there).tobytes() == room.tobytes()
        reason = "other bytes are found there than came"
    except Exception as error:  # whatever CUDA says: another container, a part of MIG's, no support
        right, reason = False, f"{type(error).__name__}: {error}"
    if not right:
        missed(HOST, reason)
    return Mode.OPENED if right else Mode.REFUSED
