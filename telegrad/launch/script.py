"""The script of a program, as its local workers import it: what multiprocessing's spawn does."""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
import types

__all__ = ["LOADING", "load_script", "own_script"]

LOADING = "TELEGRAD_LOADING_SCRIPT"  # in a worker's environment while it imports the script
SPAWNED = "__mp_main__"  # multiprocessing's name for the script in a process that it spawned


def own_script() -> tuple[str, str]:
    """Returns how this process' `__main__` is imported elsewhere.

    Returns:
        ("path", its file), ("module", its name after `python -m`), or ("", "") where there is
        none: in a notebook, at a prompt, and where somebody else's program runs the user's code,
        as pytest does.
    """
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", "")
    path = getattr(main, "__file__", None)
    if not isinstance(path, str) or not os.path.isfile(path) or _is_a_tool(path):
        return "", ""
    if name and name != "__main__" and not name.endswith(".__main__"):
        return "module", name
    return ("", "") if name else ("path", os.path.abspath(path))


def load_script(kind: str, what: str, arguments: list[str]) -> None:
    """Runs the script as `__mp_main__`, so that its functions are there and its main part is not.

    Args:
        kind: As `own_script` says it; "" leaves an empty `__main__`.
        what: Likewise.
        arguments: What the script finds in `sys.argv`.

    Raises:
        BaseException: Whatever the script raises.
    """
    module = types.ModuleType(SPAWNED if kind else "__main__")
    sys.argv = arguments
    if kind:
        os.environ[LOADING] = "1"
        try:
            if kind == "path":
                names = runpy.run_path(what, run_name=SPAWNED)
            else:
                names = runpy.run_module(what, run_name=SPAWNED, alter_sys=True)
        finally:
            del os.environ[LOADING]
        vars(module).update(names)
        sys.modules[SPAWNED] = module
    sys.modules["__main__"] = module


def _is_a_tool(path: str) -> bool:
    """Whether a program was installed, and is not the user's own."""
    parts = os.path.abspath(path).split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    places = [sysconfig.get_path(name) for name in ("scripts", "stdlib")]
    return os.path.dirname(os.path.abspath(path)) in places or path.startswith(places[1] + os.sep)
