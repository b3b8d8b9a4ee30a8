"""The modules of the user's own project: the script, and modules that belong to no library."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import final

from telegrad.wire.names import MAIN_NAMES, namespace_of

_OWN = Path(__file__).resolve().parents[1]


@final
class Project:
    """The modules that lie outside the standard library, site-packages and telegrad."""

    __slots__ = ("_foreign", "_verdicts")

    def __init__(self) -> None:
        self._foreign = _foreign_directories()
        self._verdicts: dict[str, bool] = {}

    def has(self, name: str) -> bool:
        """Returns True if a module is imported and belongs to the project, or is the script."""
        if name in MAIN_NAMES:
            return True
        space = namespace_of(name)
        path = space.get("__file__") if space is not None else None
        if not isinstance(path, str):
            return False
        if path not in self._verdicts:
            self._verdicts[path] = not _is_below(path, self._foreign)
        return self._verdicts[path]


def is_foreign_name(module: str) -> bool:
    """Returns True if this is a name of the standard library or telegrad, imported or not."""
    root = module.partition(".")[0]
    return root in sys.stdlib_module_names or root == "telegrad"


def _foreign_directories() -> tuple[str, ...]:
    """Returns the directories of foreign modules: standard library, packages, telegrad."""
    paths = sysconfig.get_paths()
    directories = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    directories += [*site.getsitepackages(), site.getusersitepackages(), str(_OWN)]
    directories.append(str(Path(os.__file__).parent))
    resolved = [os.path.realpath(directory) for directory in directories]
    return tuple(dict.fromkeys(f"{each}{os.sep}" for each in (*directories, *resolved)))


def _is_below(path: str, directories: tuple[str, ...]) -> bool:
    parts = path.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return path.startswith(directories) or os.path.realpath(path).startswith(directories)
