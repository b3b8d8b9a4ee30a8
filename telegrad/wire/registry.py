"""The registry of the codec: external types, registered types and refusals.

Upper floors and users fill its tables while modules are imported, as a class statement fills a
namespace. Every thread reads them, and they hold nothing of any agent.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, NoneType
from typing import Any, Final, TypeAlias, TypeVar, final

import numpy as np

from telegrad.arrays import CPU, Mappings, copy_to_device, device_of, to_device, to_host
from telegrad.errors import DecodeError, DuplicateNameError
from telegrad.wire.envelope import Buffer
from telegrad.wire.memory import Memory, Mode, Shadow

# -- the GPU of the receiver to which an array of a GPU goes, as the tag of its line states ------
#
# describe_lines ──▶ a `Gpu` as the tag ──pack_lines, `Place`──▶ "cupy", "cuda:1", "array", "cpu"
# rebuild        ◀── an array of NumPy or CuPy    ◀──`Land`──────────────

MOST_GPUS: Final = 1000  # of one worker; a longer number is a typing error, or garbage

HOST: Final = -1  # in place of a GPU's number: host memory

ARRAY: Final = "array"
FIRST_GPU: Final = "cupy"
_NUMBERED = re.compile(r"cuda:(0|[1-9][0-9]{0,2})")

DeviceMap: TypeAlias = Mapping[int, int | str]
"""The receiver's GPU for arrays of each of this worker's GPUs; "cpu": its host memory."""

Place: TypeAlias = Callable[[object], str]
"""Returns the tag of an array of a GPU for one receiver; called with the array's `Gpu`."""

Land: TypeAlias = Callable[[np.ndarray[Any, Any] | Shadow, int], Any]
"""Moves an array that arrived to a GPU; if it cannot, reports why and leaves it elsewhere."""


@final
@dataclass(frozen=True, slots=True)
class Gpu:
    """Stands for the tag of an array, until the receiver of its description is known.

    Attributes:
        device: The array's device at the sender: `cuda:0`, `cuda:1`, ...
        shared: True if a shadow stands for the array.
    """

    device: str
    shared: bool = False

    @staticmethod
    def of(array: Any, *, shared: bool = False) -> Gpu:
        """Returns the device of an array of CuPy."""
        return Gpu(device_of(array), shared)


def place_by(devices: DeviceMap) -> Place:
    """Returns a function for the tags of arrays of this worker's GPUs, for one receiver.

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
    """Returns the tag that sends arrays of any GPU to the receiver's first one."""
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
    """Moves an array to that GPU if the receiver has it and CuPy is loaded, else to its first one.

    Args:
        array: The array as it arrived, in host memory; or its shadow.
        number: The number of the GPU, or HOST.
        missed: Called with the number of a GPU that is not available, unless it is the first, and
            the reason. Also called with HOST, if memory of a GPU that the sender shares cannot be
            opened here.
        mappings: The opened memory of other workers, in which the array may be.

    Returns:
        The array on that GPU; otherwise on the first GPU, or in host memory if there is none.

    Raises:
        DecodeError: The array is nowhere that this worker could find it.
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
        except MemoryError:
            raise
        except Exception as error:  # no such GPU, whatever error CuPy or its driver raises
            missed(number, f"{type(error).__name__}: {error}")
    try:
        return move(array, "cuda")
    except MemoryError:  # an array in host memory would be a surprise to a function that takes it
        raise
    except Exception:
        return to_host(array)


def _landed_from_gpu(
    shadow: Shadow, number: int, missed: Callable[[int, str], None], mappings: Mappings
) -> Any:
    """Copies from the sender's GPU memory; nothing refers to that memory afterwards."""
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
    """Checks that the sender's GPU memory has the same bytes that came; records the result."""
    room = shadow.room
    try:
        with mappings.array(shadow.place, room.shape, room.dtype, room.nbytes) as there:
            right = to_host(there).tobytes() == room.tobytes()
        reason = "other bytes are found there than came"
    except Exception as error:  # any CUDA error: another container, a MIG partition, no support
        right, reason = False, f"{type(error).__name__}: {error}"
    if not right:
        missed(HOST, reason)
    return Mode.OPENED if right else Mode.REFUSED


# -- external and registered types, and refusals -------------------------------------------------

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class ExternalType:
    """A type whose objects are lifted out of documents and travel beside them.

    Attributes:
        tag: The type's name on the wire.
        cls: The class; objects of it and of its subclasses are externals.
        describe: Turns an object into plain msgpack data and buffers. It runs in the thread that
            calls or returns, once per destination, and copies data that may change afterwards, into
            the given memory if there is any.
        rebuild: The reverse; its last argument moves arrays to a GPU, for `rebuild_held`. The
            buffers are writable and belong to it. It must not change the description, which other
            messages may share.
    """

    tag: str
    cls: type
    describe: Callable[[Any, Memory], tuple[object, Sequence[Buffer]]]
    rebuild: Callable[[Any, Sequence[Buffer], Land], object]


@final
@dataclass(frozen=True, slots=True)
class RegisteredType:
    """A type that a user added to the codec.

    Attributes:
        name: `module:qualname`, its name on the wire.
        encode: Turns an object into a value that the codec knows.
        decode: The reverse; decoding runs a user's code nowhere else.
    """

    name: str
    encode: Callable[[Any], object]
    decode: Callable[[Any], object]


PLAIN: Final = frozenset({NoneType, bool, int, float, str})  # written by a packer as they are
# Types that a packer writes directly; external types, of exactly these classes, as references.
AT_ONCE: Final[set[type]] = set(PLAIN)

_EXTERNALS: dict[type, ExternalType] = {}
_EXTERNALS_BY_TAG: dict[str, ExternalType] = {}
_REFUSALS: dict[type, tuple[str, str]] = {}  # the messages for a value and for an argument
_REGISTERED: dict[type, RegisteredType] = {}
_REGISTERED_BY_NAME: dict[str, RegisteredType] = {}


def register_external(external: ExternalType) -> None:
    """Adds an external type; call it at import.

    Raises:
        ValueError: The tag belongs to another type.
    """
    known = _EXTERNALS_BY_TAG.get(external.tag)
    if known is not None and known.cls is not external.cls:
        raise ValueError(f"the external tag {external.tag!r} belongs to {known.cls.__qualname__}")
    _EXTERNALS[external.cls] = external
    AT_ONCE.add(external.cls)
    _EXTERNALS_BY_TAG[external.tag] = external


def register_refusal(cls: type, message: str, *, as_argument: str = "") -> None:
    """Refuses objects of a class and its subclasses as values; call it at import.

    Args:
        cls: The class.
        message: The reason, and an alternative; follows the path in the EncodeError.
        as_argument: The message for an argument, if the advice differs there.
    """
    _REFUSALS[cls] = message, as_argument or message


def register_type(
    cls: type[T], *, encode: Callable[[T], object], decode: Callable[[Any], T]
) -> None:
    """Adds a type to the codec; call it at import, in a module that both ends import.

    It applies to objects of exactly this class. Repeating the same registration changes nothing. If
    a module defines its class anew, as a notebook does when a cell is run again, the new class
    replaces the old one. In `__main__` a function replaces any earlier one of its name; a lambda
    replaces the one of a cell that was changed and run again.

    Args:
        cls: The class.
        encode: Turns an object into a value that the codec knows, for instance a tuple.
        decode: Turns such a value into an object again.

    Raises:
        TypeError: `cls` is not a class, or one that the codec itself handles.
        DuplicateNameError: The class, or another one of its name, has another codec.

    Example:
        >>> class Interval:
        ...     def __init__(self, low, high):
        ...         self.low, self.high = low, high
        >>> register_type(
        ...     Interval, encode=lambda v: (v.low, v.high), decode=lambda v: Interval(*v)
        ... )
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_type takes a class, not {cls!r}")
    if cls.__module__ == "builtins":
        raise TypeError(f"the codec handles {cls.__qualname__} itself; register a subclass")
    name = f"{cls.__module__}:{cls.__qualname__}".replace("__mp_main__", "__main__")
    registered = RegisteredType(name, encode, decode)
    mine = _REGISTERED.get(cls)
    known = mine if mine or _is_defined_now(cls) else _REGISTERED_BY_NAME.get(name)
    if known is not None and not _are_same(known, registered, of_one_class=mine is not None):
        raise DuplicateNameError(
            f"the type {name} has another codec already, of "
            f"{getattr(known.encode, '__module__', None)}; register it once, in the module that "
            "defines the class"
        )
    _REGISTERED[cls] = registered
    _REGISTERED_BY_NAME[name] = registered


def _is_defined_now(cls: type) -> bool:
    """Returns True if a class is the one that its module now has under its name."""
    found: object = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = inspect.getattr_static(found, part, None)
    return found is cls


def _are_same(old: RegisteredType, new: RegisteredType, *, of_one_class: bool) -> bool:
    pairs = ((old.encode, new.encode), (old.decode, new.decode))
    return all(_is_same(first, second, closed=of_one_class) for first, second in pairs)


def _is_same(old: object, new: object, *, closed: bool) -> bool:
    """Returns True if two functions are the same, or were made by the same code, run again.

    Args:
        old: One function.
        new: Another one.
        closed: True if their closures must be the same, too. Functions of a class that is made anew
            in a function have that class in their closures.
    """
    if old == new:
        return True
    if not (isinstance(old, FunctionType) and isinstance(new, FunctionType)):
        return False
    if old.__module__ != new.__module__ or old.__qualname__ != new.__qualname__:
        return False
    if old.__module__ == "__main__" and not _is_of_one_text(old, new):
        return True
    cells = [[cell.cell_contents for cell in each.__closure__ or ()] for each in (old, new)]
    return old.__code__ == new.__code__ and (not closed or cells[0] == cells[1])


def _is_of_one_text(old: FunctionType, new: FunctionType) -> bool:
    """Returns True if two functions of one name stand in one file, so that the name proves nothing.

    This is so for lambdas and functions in functions. A notebook cell that was changed counts as
    another file.
    """
    return "<" in new.__qualname__ and old.__code__.co_filename == new.__code__.co_filename


def is_external(cls: type) -> bool:
    """Returns True if exactly this class is an external type; subclasses may be of another kind."""
    return cls in _EXTERNALS


def external_type(cls: type) -> ExternalType | None:
    """Returns the external type of a class, nearest base first; None if there is none."""
    exact = _EXTERNALS.get(cls)
    if exact is not None:
        return exact
    return next((_EXTERNALS[base] for base in cls.__mro__ if base in _EXTERNALS), None)


def external_type_by_tag(tag: str) -> ExternalType | None:
    """Returns the external type with this name on the wire."""
    return _EXTERNALS_BY_TAG.get(tag)


def refusal_of(cls: type, *, as_argument: bool = False) -> str | None:
    """Returns the reason for refusing objects of a class, nearest base first; None if allowed."""
    words = next((_REFUSALS[base] for base in cls.__mro__ if base in _REFUSALS), None)
    return None if words is None else words[as_argument]


def registered_type(cls: type) -> RegisteredType | None:
    """Returns the registered type for exactly this class; None if there is none."""
    return _REGISTERED.get(cls)


def registered_type_by_name(name: str) -> RegisteredType | None:
    """Returns the registered type of this name on the wire; None if there is none."""
    return _REGISTERED_BY_NAME.get(name)
