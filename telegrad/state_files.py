"""State in files of the safetensors format, which hold arrays and no code.

Other libraries read and write them, PyTorch's users too: https://huggingface.co/docs/safetensors.
A file is whole or not there: it is written beside its place and then given its name.

Needs the extra `telegrad[safetensors]`. Outside of `telegrad.nn`, whose functions other workers may
call: none of them writes a file.
"""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from telegrad.arrays import as_array, host_copy
from telegrad.autograd import Tensor
from telegrad.nn import Module
from telegrad.types import Array

__all__ = ["load_metadata", "load_state_dict", "save_state_dict"]


def save_state_dict(
    state: Module | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes arrays into a file, in place of one that is there.

    Arrays of a GPU come to the host first.

    Args:
        state: A module, or arrays and Tensors by name.
        path: Of the file.
        metadata: What else it is to say; words alone.

    Raises:
        ImportError: safetensors is not installed.
        OSError: The file cannot be written; one that was there is still there.
        TypeError: A key or a value of `metadata` is no str, or the format has no such dtype
            (complex128, extended precision).
    """
    library, numpy_library = _library("safetensors"), _library("safetensors.numpy")
    words: Mapping[Any, Any] = metadata or {}
    for key, word in words.items():
        if not isinstance(key, str) or not isinstance(word, str):
            raise TypeError(f"metadata is of words alone, not {key!r}: {word!r}")
    given = state.state_dict() if isinstance(state, Module) else state
    arrays = {name: _on_host(x) for name, x in given.items()}
    target = Path(path).resolve()  # a link stays one
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    beside.touch(exist_ok=False)
    mode = beside.stat().st_mode  # what others may do with new files here
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
        ValueError: It is no file of this format.
    """
    library = _library("safetensors")
    try:
        with library.safe_open(os.fspath(path), framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except library.SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is no safetensors file: {error}") from error


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Returns what else a file says; reads no arrays.

    Raises:
        ImportError: safetensors is not installed.
        OSError: There is no such file.
        ValueError: It is no file of this format.
    """
    library = _library("safetensors")
    try:
        with library.safe_open(os.fspath(path), framework="np") as file:
            return dict(file.metadata() or {})
    except library.SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is no safetensors file: {error}") from error


def _on_host(x: Any) -> Array:
    array = host_copy(x.data if isinstance(x, Tensor) else as_array(x))
    return np.array(array, order="C")  # the format knows no strides


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
