"""State in files of the safetensors format, which hold arrays and no code.

Other libraries, PyTorch's users among them, read and write the same format:
<https://huggingface.co/docs/safetensors>. A file appears whole or not at all: it is written under
another name in the same directory and then renamed.

    save_state_dict, load_state_dict    arrays by name: the state of a module
    save_checkpoint, load_checkpoint    all that training needs to go on: several states, numbers
                                        and strings. Arrays have dotted names; the file's metadata
                                        says in JSON where they and everything else belong:

        {7: x, "a": (True, None)}       [[7, {"array": "7"}], ["a", {"tuple": [true, null]}]]

Needs the extra `telegrad[safetensors]`. These functions are not in `telegrad.nn`, because other
workers may call the functions of `telegrad.nn`, and no remote call may write a file.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from telegrad.arrays import as_array, host_copy, is_array
from telegrad.autograd import Tensor
from telegrad.nn import Module
from telegrad.types import Array

__all__ = [
    "load_checkpoint",
    "load_metadata",
    "load_state_dict",
    "save_checkpoint",
    "save_state_dict",
]

_TREE: Final = "telegrad.checkpoint"
"""The metadata key under which a checkpoint stores its tree: which value belongs where."""

_DEEPEST: Final = 64
"""The most levels of a tree, so that whatever was saved can be loaded in any thread. The states of
a model and its optimizer have six."""

_HEADER: Final = "__metadata__"  # no array can have this name


@runtime_checkable
class HasState(Protocol):
    """A module, an optimizer or a scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the object's state by name."""


def _check_form(form: str, given: object, path: object) -> None:
    """Checks that a dict stands before a path.

    Raises:
        TypeError: It does not; the message has the line to write.
    """
    if not isinstance(given, Mapping) or not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"write {form}: a dict and then the path, not a {type(given).__name__} and a "
            f"{type(path).__name__}"
        )


def save_state_dict(
    state: Module | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes arrays into a file and replaces a file that is there.

    Arrays on a GPU are copied to the host first.

    Args:
        state: A module, or arrays and Tensors by name.
        path: The path of the file.
        metadata: Further strings by name, stored in the file.

    Raises:
        ImportError: safetensors is not installed.
        OSError: The file cannot be written; an existing file stays as it was.
        TypeError: A name is not a str, a key or a value of `metadata` is not, or the format does
            not support a dtype (complex128, extended precision).
        ValueError: An array has the name `__metadata__`, or a name that is not Unicode.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/weights.safetensors"
    >>> save_state_dict({"weight": np.ones(2)}, path, metadata={"epoch": "3"})
    >>> load_state_dict(path), load_metadata(path)
    ({'weight': array([1., 1.])}, {'epoch': '3'})
    """
    given = state.state_dict() if isinstance(state, Module) else state
    _check_form("save_state_dict(state, path)", given, path)
    library, numpy_library = _library("safetensors"), _library("safetensors.numpy")
    words: Mapping[Any, Any] = metadata or {}
    for key, word in words.items():
        if not isinstance(key, str) or not isinstance(word, str):
            raise TypeError(f"metadata holds strings only, not {key!r}: {word!r}")
    if _HEADER in given:
        raise ValueError(f"an array cannot have the name {_HEADER!r}, which the format uses itself")
    arrays = {name: _on_host(x) for name, x in given.items()}
    target = Path(path).resolve()  # a symbolic link stays a link
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    beside.touch(exist_ok=False)
    mode = beside.stat().st_mode  # the permissions that the umask gives to new files
    try:
        numpy_library.save_file(arrays, beside, metadata=dict(words))
        beside.chmod(mode)
        _reach_disk(beside)
        beside.replace(target)
    except library.SafetensorError as error:
        refused = TypeError(f"{target} cannot hold this state: {error}")
        raise _system_error(error, target) or refused from error
    finally:
        beside.unlink(missing_ok=True)


def load_state_dict(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Returns the arrays in a file by name, for `Module.load_state_dict`.

    Raises:
        ImportError: safetensors is not installed.
        OSError: There is no such file, or it cannot be read.
        ValueError: The file is not of this format, or has a dtype that NumPy lacks.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/weights.safetensors"
    >>> save_state_dict({"weight": np.ones(2)}, path)
    >>> load_state_dict(path)
    {'weight': array([1., 1.])}
    """
    with _opened(path) as file:
        names = file.keys()
        return {name: _read(file, name, path) for name in names}


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the metadata of a file without reading its arrays.

    Raises:
        ImportError: safetensors is not installed.
        OSError: There is no such file, or it cannot be read.
        ValueError: The file is not of this format.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/weights.safetensors"
    >>> save_state_dict({"weight": np.ones(2)}, path, metadata={"epoch": "3"})
    >>> load_metadata(path)
    {'epoch': '3'}
    """
    with _opened(path) as file:
        return dict(file.metadata() or {})


def save_checkpoint(parts: Mapping[Any, Any], path: str | os.PathLike[str]) -> None:
    """Writes all that training needs to go on into a file and replaces a file that is there.

    Args:
        parts: The parts of the state by name. A part is a module, an optimizer or a scheduler,
            whose `state_dict()` is saved; or an array, a Tensor, a number, a str or None; or a
            dict, list or tuple of parts. Keys are numbers, strs or None, and stay what they are.
        path: The path of the file.

    Raises:
        ImportError: safetensors is not installed.
        OSError: The file cannot be written; an existing file stays as it was.
        TypeError: A part or a key is of another type; the message names it.
        ValueError: The parts are more than 64 levels deep, or hold themselves.

    >>> import tempfile
    >>> from telegrad import nn, optim
    >>> model = nn.Linear(2, 1)
    >>> optimizer = optim.Adam(model.parameters())
    >>> path = Path(tempfile.mkdtemp()) / "checkpoint.safetensors"
    >>> save_checkpoint({"model": model, "optimizer": optimizer, "epoch": 3}, path)
    >>> found = load_checkpoint(path)
    >>> optimizer.load_state_dict(found["optimizer"])
    >>> found["epoch"], sorted(found["model"])
    (3, ['bias', 'weight'])
    """
    _check_form("save_checkpoint(parts, path)", parts, path)
    arrays: dict[str, Any] = {}
    tree = _pairs(parts, (), arrays)
    save_state_dict(arrays, path, metadata={_TREE: json.dumps(tree)})


def load_checkpoint(path: str | os.PathLike[str]) -> dict[Any, Any]:
    """Returns the parts that `save_checkpoint` was given: states as dicts, Tensors as arrays.

    Raises:
        ImportError: safetensors is not installed.
        OSError: There is no such file, or it cannot be read.
        ValueError: `save_checkpoint` did not write the file, or somebody has changed it.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/checkpoint.safetensors"
    >>> save_checkpoint({"epoch": 3, "rates": [0.1, 0.01]}, path)
    >>> load_checkpoint(path)
    {'epoch': 3, 'rates': [0.1, 0.01]}
    """
    words = load_metadata(path)
    if _TREE not in words:
        raise ValueError(f"{os.fspath(path)} is not a checkpoint; read it with load_state_dict")
    arrays = load_state_dict(path)
    try:
        tree = json.loads(words[_TREE])
        if isinstance(tree, dict):  # of an earlier telegrad: all keys are strs
            tree = [[name, x] for name, x in tree.items()]
        return _from_pairs(tree, arrays)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{os.fspath(path)} is not a checkpoint as save_checkpoint writes it "
            f"({type(error).__name__}: {error}); load_state_dict reads its arrays"
        ) from error


def _apart(x: Any, place: tuple[str, ...], arrays: dict[str, Any]) -> Any:
    """Returns `x` as JSON can hold it, and moves its arrays into `arrays`."""
    if isinstance(x, HasState):
        x = x.state_dict()
    if isinstance(x, np.generic):
        x = x.item()
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if len(place) > _DEEPEST:
        raise ValueError(
            f"a checkpoint holds at most {_DEEPEST} levels, and {'.'.join(place[:3])}... has more "
            "(does it hold itself?)"
        )
    if isinstance(x, list):
        return [_apart(each, (*place, f"{i}"), arrays) for i, each in enumerate(x)]
    if isinstance(x, tuple):
        return {"tuple": _apart(list(x), place, arrays)}
    if isinstance(x, Mapping):
        return {"dict": _pairs(x, place, arrays)}
    if not isinstance(x, Tensor) and not is_array(x):
        raise TypeError(f"a checkpoint cannot hold {'.'.join(place)}, which is a {_kind(x)}")
    name = _free_name(".".join(place), arrays)
    arrays[name] = x
    return {"array": name}


def _pairs(x: Mapping[Any, Any], place: tuple[str, ...], arrays: dict[str, Any]) -> list[Any]:
    """Returns the pairs of a dict, as JSON turns all keys of an object into strings."""
    found = []
    for given, each in x.items():
        key = given.item() if isinstance(given, np.generic) else given
        if key is not None and not isinstance(key, (bool, int, float, str)):
            where = ".".join(place) or "the parts"
            raise TypeError(f"a checkpoint cannot hold {where}, with the key {key!r}: {_kind(key)}")
        found.append([key, _apart(each, (*place, f"{key}"), arrays)])
    return found


def _kind(x: object) -> str:
    return type(x).__name__


def _free_name(name: str, arrays: Mapping[str, Any]) -> str:
    """Returns a name that no array has yet: `a.1`, and `a.1#2` for another key of that text."""
    text = name.encode("utf-8", "backslashreplace").decode()
    number = 1
    while (free := text if number == 1 else f"{text}#{number}") in arrays or free == _HEADER:
        number += 1
    return free


def _joined(x: Any, arrays: Mapping[str, Array]) -> Any:
    """Returns what `_apart` was given; a changed tree raises one of the errors of `_from_pairs`."""
    if isinstance(x, list):
        return [_joined(each, arrays) for each in x]
    if not isinstance(x, dict):
        return x
    ((kind, inside),) = x.items()
    if kind == "array":
        return arrays[inside]
    if kind == "tuple":
        return tuple(_joined(_list(inside), arrays))
    if kind == "dict":
        return _from_pairs(inside, arrays)
    raise ValueError(f"{kind!r} is none of array, tuple and dict")


def _from_pairs(pairs: Any, arrays: Mapping[str, Array]) -> dict[Any, Any]:
    """Returns the dict of some pairs.

    Raises:
        KeyError: An array is missing.
        TypeError: A list was expected, or a key is a list or a dict.
        ValueError: A pair is none, or a key is there twice.
    """
    found: dict[Any, Any] = {}
    for pair in _list(pairs):
        key, each = _list(pair)
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = _joined(each, arrays)
    return found


def _list(x: Any) -> list[Any]:
    if not isinstance(x, list):
        raise TypeError(f"a list was expected, not {_kind(x)}")
    return x


# -- files ---------------------------------------------------------------------------------------


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Opens a file of the format; its errors are OSError and ValueError."""
    library = _library("safetensors")
    try:
        with library.safe_open(os.fspath(path), framework="np") as file:
            yield file
    except library.SafetensorError as error:
        refused = ValueError(f"{os.fspath(path)} is not a safetensors file: {error}")
        raise _system_error(error, path) or refused from error


def _read(file: Any, name: str, path: str | os.PathLike[str]) -> Array:
    try:
        array: Array = file.get_tensor(name)
    except (AttributeError, TypeError, KeyError) as error:  # numpy.float8_e4m3fn
        dtype = file.get_slice(name).get_dtype()
        words = f"array {name!r} of {os.fspath(path)} has the dtype {dtype}, which NumPy lacks"
        raise ValueError(words) from error
    return array


def _system_error(error: Exception, path: str | os.PathLike[str]) -> OSError | None:
    """Returns the OSError that an error of the library stands for; it raises the text alone."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    if found is None:
        return OSError(f"{os.fspath(path)}: {error}") if "I/O error" in str(error) else None
    number = int(found[1])
    return OSError(number, os.strerror(number), os.fspath(path))


def _on_host(x: Any) -> Array:
    array = host_copy(x.data if isinstance(x, Tensor) else as_array(x))
    return np.array(array, order="C")  # the format stores no strides


def _reach_disk(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            "files of this format need safetensors: pip install 'telegrad[safetensors]'"
        ) from error
