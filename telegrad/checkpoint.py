"""State in files of the safetensors format, which hold arrays and no code.

Other libraries, PyTorch's users among them, read and write the same format:
<https://huggingface.co/docs/safetensors>. A file appears whole or not at all: it is written under
another name in the same directory and then renamed.

    save_state_dict, load_state_dict    arrays by name: the state of a module
    save_checkpoint, load_checkpoint    all that training needs to go on: several states, numbers
                                        and strings. Arrays have dotted names; the file's metadata
                                        says in JSON where they and everything else belong

Needs the extra `telegrad[safetensors]`. These functions are not in `telegrad.nn`, because other
workers may call the functions of `telegrad.nn`, and no remote call may write a file.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
from collections.abc import Mapping
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


@runtime_checkable
class HasState(Protocol):
    """A module, an optimizer or a scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the object's state by name."""


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
        TypeError: A key or a value of `metadata` is not a str, or the format does not support a
            dtype (complex128, extended precision).

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/weights.safetensors"
    >>> save_state_dict({"weight": np.ones(2)}, path, metadata={"epoch": "3"})
    >>> load_state_dict(path), load_metadata(path)
    ({'weight': array([1., 1.])}, {'epoch': '3'})
    """
    library, numpy_library = _library("safetensors"), _library("safetensors.numpy")
    words: Mapping[Any, Any] = metadata or {}
    for key, word in words.items():
        if not isinstance(key, str) or not isinstance(word, str):
            raise TypeError(f"metadata holds strings only, not {key!r}: {word!r}")
    given = state.state_dict() if isinstance(state, Module) else state
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
        raise TypeError(f"{target} cannot hold this state: {error}") from error
    finally:
        beside.unlink(missing_ok=True)


def load_state_dict(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Returns the arrays in a file by name, for `Module.load_state_dict`.

    Raises:
        ImportError: safetensors is not installed.
        OSError: There is no such file.
        ValueError: The file is not of this format.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/weights.safetensors"
    >>> save_state_dict({"weight": np.ones(2)}, path)
    >>> load_state_dict(path)
    {'weight': array([1., 1.])}
    """
    library = _library("safetensors")
    try:
        with library.safe_open(os.fspath(path), framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except library.SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is not a safetensors file: {error}") from error


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the metadata of a file without reading its arrays.

    Raises:
        ImportError: safetensors is not installed.
        OSError: There is no such file.
        ValueError: The file is not of this format.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/weights.safetensors"
    >>> save_state_dict({"weight": np.ones(2)}, path, metadata={"epoch": "3"})
    >>> load_metadata(path)
    {'epoch': '3'}
    """
    library = _library("safetensors")
    try:
        with library.safe_open(os.fspath(path), framework="np") as file:
            return dict(file.metadata() or {})
    except library.SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is not a safetensors file: {error}") from error


def save_checkpoint(parts: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes all that training needs to go on into a file and replaces a file that is there.

    Args:
        parts: The parts of the state by name. A part is a module, an optimizer or a scheduler,
            whose `state_dict()` is saved; or an array, a Tensor, a number, a str or None; or a
            dict, list or tuple of parts.
        path: The path of the file.

    Raises:
        ImportError: safetensors is not installed.
        OSError: The file cannot be written; an existing file stays as it was.
        TypeError: A part is of another type; the message names it.
        ValueError: Two arrays would have the same dotted name.

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
    arrays: dict[str, Any] = {}
    tree = {name: _apart(x, name, arrays) for name, x in parts.items()}
    save_state_dict(arrays, path, metadata={_TREE: json.dumps(tree)})


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the parts that `save_checkpoint` was given: states as dicts, Tensors as arrays.

    Raises:
        ImportError: safetensors is not installed.
        OSError: There is no such file.
        ValueError: `save_checkpoint` did not write the file.

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
    return {name: _joined(x, arrays) for name, x in json.loads(words[_TREE]).items()}


def _apart(x: Any, name: str, arrays: dict[str, Any]) -> Any:
    """Returns `x` as JSON can hold it, and moves its arrays into `arrays`."""
    if isinstance(x, HasState):
        x = x.state_dict()
    if isinstance(x, np.generic):
        x = x.item()
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if isinstance(x, list):
        return [_apart(each, f"{name}.{i}", arrays) for i, each in enumerate(x)]
    if isinstance(x, tuple):
        return {"tuple": _apart(list(x), name, arrays)}
    if isinstance(x, Mapping) and all(isinstance(key, (str, int)) for key in x):
        return {"dict": [[key, _apart(each, f"{name}.{key}", arrays)] for key, each in x.items()]}
    if not isinstance(x, Tensor) and not is_array(x):
        raise TypeError(f"a checkpoint cannot hold {name}, which is a {type(x).__name__}")
    if name in arrays:
        raise ValueError(f"two arrays of a checkpoint would have the name {name}")
    arrays[name] = x
    return {"array": name}


def _joined(x: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(x, list):
        return [_joined(each, arrays) for each in x]
    if not isinstance(x, dict):
        return x
    ((kind, inside),) = x.items()
    if kind == "array":
        return arrays[inside]
    if kind == "tuple":
        return tuple(_joined(inside, arrays))
    return {key: _joined(each, arrays) for key, each in inside}


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
