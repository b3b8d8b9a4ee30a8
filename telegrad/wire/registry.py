"""What upper floors and users add to the codec: external types, registered types, refusals.

The tables are filled while modules are imported, as a class statement fills a namespace; they are
read by every thread and hold nothing of any agent.
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

__all__ = [
    "AT_ONCE",
    "HOST",
    "MOST_GPUS",
    "PLAIN",
    "DeviceMap",
    "ExternalType",
    "Gpu",
    "Land",
    "Place",
    "RegisteredType",
    "external_type",
    "external_type_by_tag",
    "first_gpu",
    "gpu_number",
    "is_external",
    "land",
    "place_by",
    "refusal_of",
    "register_external",
    "register_refusal",
    "register_type",
    "registered_type",
    "registered_type_by_name",
]


# -- on which GPU of the receiver an array of a GPU arrives; it is said in the tag of its line ---
#
# describe_lines ──▶ a `Gpu` where the tag stands ──pack_lines, `Place`──▶ "cupy", "cuda:1", "array", "cpu"
# rebuild        ◀── an array of NumPy or CuPy    ◀──`Land`──────────────

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


# ------------------------------------------------------------------------------------------------

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class ExternalType:
    """A type whose objects are lifted out of documents and travel beside them.

    Attributes:
        tag: Its name on the wire.
        cls: Objects of it and of its subclasses are externals.
        describe: Turns an object into plain msgpack data and buffers; runs in the thread that
            calls or returns, once per destination, and copies what may change afterwards, into the
            memory that it is given if there is any.
        rebuild: The way back, with what moves arrays to a GPU, for `rebuild_held`. The buffers are
            writable and belong to it. The description may be other messages', too: it changes nothing there.
    """

    tag: str
    cls: type
    describe: Callable[[Any, Memory], tuple[object, Sequence[Buffer]]]
    rebuild: Callable[[Any, Sequence[Buffer], Land], object]


@final
@dataclass(frozen=True, slots=True)
class RegisteredType:
    """A type that a user taught the codec.

    Attributes:
        name: `module:qualname`, its name on the wire.
        encode: Turns an object into a value that the codec knows.
        decode: The way back; the one place where decoding runs a user's code.
    """

    name: str
    encode: Callable[[Any], object]
    decode: Callable[[Any], object]


PLAIN: Final = frozenset({NoneType, bool, int, float, str})  # what a packer writes as it is
# And what it writes as a reference, where it meets one: the external types, of exactly these classes.
AT_ONCE: Final[set[type]] = set(PLAIN)

_EXTERNALS: dict[type, ExternalType] = {}
_EXTERNALS_BY_TAG: dict[str, ExternalType] = {}
_REFUSALS: dict[type, tuple[str, str]] = {}  # of a value, of an argument
_REGISTERED: dict[type, RegisteredType] = {}
_REGISTERED_BY_NAME: dict[str, RegisteredType] = {}


def register_external(external: ExternalType) -> None:
    """Adds an external type; call it at import.

    Raises:
        ValueError: The tag is another type's.
    """
    known = _EXTERNALS_BY_TAG.get(external.tag)
    if known is not None and known.cls is not external.cls:
        raise ValueError(f"the external tag {external.tag!r} belongs to {known.cls.__qualname__}")
    _EXTERNALS[external.cls] = external
    AT_ONCE.add(external.cls)
    _EXTERNALS_BY_TAG[external.tag] = external


def register_refusal(cls: type, message: str, *, as_argument: str = "") -> None:
    """Refuses objects of a class and its subclasses by value; call it at import.

    Args:
        cls: The class.
        message: Why, and what to write instead; follows the path in the EncodeError.
        as_argument: The same of an argument, where that is another advice.
    """
    _REFUSALS[cls] = message, as_argument or message


def register_type(
    cls: type[T], *, encode: Callable[[T], object], decode: Callable[[Any], T]
) -> None:
    """Teaches the codec a type; call it at import, in a module that both ends import.

    It holds for objects of exactly this class. The same once more changes nothing; a class that its
    module has defined anew, as a notebook does whose cell is run again, takes the place of the old
    one. In `__main__` a function stands for whatever had its name there before; a lambda, for that
    of a cell that was changed and run again.

    Args:
        cls: The class.
        encode: Turns an object into a value that the codec knows, for instance a tuple.
        decode: Turns such a value into an object again.

    Raises:
        TypeError: `cls` is not a class, or one that the codec itself treats.
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
        raise TypeError(f"the codec has its own way with {cls.__qualname__}; register a subclass")
    name = f"{cls.__module__}:{cls.__qualname__}".replace("__mp_main__", "__main__")
    registered = RegisteredType(name, encode, decode)
    mine = _REGISTERED.get(cls)
    known = mine if mine or _is_defined_now(cls) else _REGISTERED_BY_NAME.get(name)
    if known is not None and not _are_same(known, registered, of_one_class=mine is not None):
        raise DuplicateNameError(
            f"the type {name} has another codec already, of {getattr(known.encode, '__module__', None)}; register it "
            "once, in the module that defines the class"
        )
    _REGISTERED[cls] = registered
    _REGISTERED_BY_NAME[name] = registered


def _is_defined_now(cls: type) -> bool:
    """Tells whether a class is what its module has under its name, and no other of that name."""
    found: object = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = inspect.getattr_static(found, part, None)
    return found is cls


def _are_same(old: RegisteredType, new: RegisteredType, *, of_one_class: bool) -> bool:
    pairs = ((old.encode, new.encode), (old.decode, new.decode))
    return all(_is_same(first, second, closed=of_one_class) for first, second in pairs)


def _is_same(old: object, new: object, *, closed: bool) -> bool:
    """Tells whether two functions are one, or were made by one line; for what is run again.

    Args:
        old: One function.
        new: Another one.
        closed: Whether they must have closed over the same, too. Those of a class that is made
            anew in a function have closed over that class.
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
    """Tells whether two functions stand beside each other under one name, which says nothing then.

    Lambdas and functions in functions do. A cell of a notebook that was changed has another file.
    """
    return "<" in new.__qualname__ and old.__code__.co_filename == new.__code__.co_filename


def is_external(cls: type) -> bool:
    """Tells whether exactly this class is an external type; subclasses may be something else, too."""
    return cls in _EXTERNALS


def external_type(cls: type) -> ExternalType | None:
    """Returns the external type that a class is of, nearest base first."""
    exact = _EXTERNALS.get(cls)
    if exact is not None:
        return exact
    return next((_EXTERNALS[base] for base in cls.__mro__ if base in _EXTERNALS), None)


def external_type_by_tag(tag: str) -> ExternalType | None:
    """Returns the external type with this name on the wire."""
    return _EXTERNALS_BY_TAG.get(tag)


def refusal_of(cls: type, *, as_argument: bool = False) -> str | None:
    """Returns why objects of a class are refused, nearest base first; None if they are not."""
    words = next((_REFUSALS[base] for base in cls.__mro__ if base in _REFUSALS), None)
    return None if words is None else words[as_argument]


def registered_type(cls: type) -> RegisteredType | None:
    """Returns what was registered for exactly this class."""
    return _REGISTERED.get(cls)


def registered_type_by_name(name: str) -> RegisteredType | None:
    """Returns what was registered under this name on the wire."""
    return _REGISTERED_BY_NAME.get(name)
