"""What to write instead of a value of a class that the codec does not know."""

from __future__ import annotations

from telegrad.wire.lookup import bases
from telegrad.wire.project import Project

__all__ = ["advice_for"]

# By the module's first part and the class' name: what many send first.
_KNOWN = {
    ("builtins", "memoryview"): "send bytes(view)",
    ("pandas", "DataFrame"): "send df.to_dict('list')",
    ("pandas", "Series"): "send series.to_numpy()",
    ("pandas", "Index"): "send index.to_numpy()",
    ("pandas", "Timestamp"): "send timestamp.to_pydatetime()",
    ("PIL", "Image"): "send numpy.asarray(image)",
}


def advice_for(kind: type) -> str:
    """Returns what to do with a value of this class, which cannot travel as it is.

    Args:
        kind: The class; one that is not the user's own cannot be made a dataclass by them.

    Returns:
        Words that follow the name of the class.
    """
    name = kind.__qualname__
    known = _KNOWN.get((kind.__module__.partition(".")[0], name))
    register = f"rpc.register_type({name}, encode=..., decode=...)"
    if known is not None:
        return known if kind.__module__ == "builtins" else f"{known}, or register it: {register}"
    if kind.__module__ == "builtins":
        return "send what it holds as lists, dicts, numbers, text or arrays"
    if _is_derived_from_builtin(kind) or not Project().has(kind.__module__):
        return f"register it, in a module that both ends import: {register}"
    return f"make it a dataclass, or register it: {register}"


def _is_derived_from_builtin(kind: type) -> bool:
    return any(base.__module__ == "builtins" for base in bases(kind) if base is not object)
