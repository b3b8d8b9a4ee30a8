"""The terms of a group from the arguments of the verb that makes it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Final

from telegrad.collectives.backends import NCCL, GroupTerms
from telegrad.collectives.link import MakeBackend
from telegrad.collectives.select import Thresholds
from telegrad.errors import InvalidUseError

__all__ = ["ENTRY_POINTS", "HOST", "VARIABLE", "backend_of", "terms_of"]

ENTRY_POINTS: Final = "telegrad.backends"
VARIABLE: Final = "TELEGRAD_THRESHOLDS"
HOST: Final = "host"  # the name of telegrad's own backend


def terms_of(
    thresholds: object, backend: object, inherited: GroupTerms | None, environ: Mapping[str, str]
) -> GroupTerms:
    """Returns the terms of a new group.

    Args:
        thresholds: Thresholds, or None for those of the group from which this one is made.
        backend: A name, a function that makes a backend, or None for the same.
        inherited: The terms of that group; None if there is none.
        environ: The environment, which may name a table of thresholds.

    Raises:
        TypeError: An argument is something else.
        OSError: The table that the environment names cannot be read.
        ValueError: It is no table of thresholds.
        InvalidUseError: No package adds a backend of this name, or several do.
    """
    base = GroupTerms() if inherited is None else inherited
    if thresholds is None and inherited is None and environ.get(VARIABLE):
        thresholds = Thresholds.load(environ[VARIABLE])
    if thresholds is not None and not isinstance(thresholds, Thresholds):
        raise TypeError(
            f"thresholds must be collectives.Thresholds, not {thresholds!r}; Thresholds.load(path) "
            "reads a table"
        )
    name, maker = (base.backend, base.maker) if backend is None else backend_of(backend)
    return GroupTerms(thresholds, name, maker)


def backend_of(backend: object) -> tuple[str, MakeBackend | None]:
    """Returns the name of a backend, and what makes it; raises as `terms_of`."""
    if backend == HOST:
        return "", None
    if backend == NCCL:
        return NCCL, None
    if callable(backend):
        name = f"{backend.__module__}:{getattr(backend, '__qualname__', repr(backend))}"
        return name, backend
    if not isinstance(backend, str):
        raise TypeError(
            f"backend must be a name, or a function that makes a backend, not {backend!r}"
        )
    found = list({p.value: p for p in entry_points(group=ENTRY_POINTS, name=backend)}.values())
    if len(found) != 1:
        known = sorted({HOST, NCCL, *(point.name for point in entry_points(group=ENTRY_POINTS))})
        raise InvalidUseError(
            f"{len(found) or 'no'} packages add a backend {backend!r} (known here: {known}); "
            f"install one with an entry point in the group {ENTRY_POINTS!r}, or pass the function "
            "itself"
        )
    try:
        made: MakeBackend = found[0].load()
    except Exception as error:
        raise InvalidUseError(
            f"the backend {backend!r} ({found[0].value}) cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    return backend, made
