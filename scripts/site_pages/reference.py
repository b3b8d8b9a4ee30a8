"""The pages of the Reference, made from the names that each public package lists in `__all__`."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

__all__ = [
    "FACES",
    "Face",
    "anchors",
    "data_of",
    "find_undocumented",
    "is_class",
    "is_module",
    "lacks_example",
    "names_of",
    "page_of",
    "page_path",
    "public_name",
    "undocumented",
]


@dataclass(frozen=True, slots=True)
class Face:
    """A public package and its page.

    Attributes:
        module: Where the names are imported from.
        only: The names for users, if the package shows more than those to its own packages.
        numpy: The prefix under which NumPy or SciPy documents the same names; empty for telegrad's.
    """

    module: str
    only: frozenset[str] = field(default=frozenset())
    numpy: str = ""


STORES = frozenset(
    {"FileStore", "InitMethod", "JobAddress", "MemoryStore", "PrefixStore", "Store", "TCPStore"}
)

FACES = (
    Face("telegrad"),
    Face("telegrad.rpc"),
    Face("telegrad.rpc.functions"),
    Face("telegrad.dist_autograd"),
    Face("telegrad.collectives"),
    Face("telegrad.parallel"),
    Face("telegrad.parallel.functional"),
    Face("telegrad.parallel.pipeline"),
    Face("telegrad.nn"),
    Face("telegrad.nn.functional"),
    Face("telegrad.nn.init"),
    Face("telegrad.nn.utils"),
    Face("telegrad.optim"),
    Face("telegrad.data"),
    Face("telegrad.autograd.extend"),
    Face("telegrad.numpy", numpy="numpy"),
    Face("telegrad.numpy.linalg", numpy="numpy.linalg"),
    Face("telegrad.numpy.fft", numpy="numpy.fft"),
    Face("telegrad.scipy", only=frozenset({"special"})),
    Face("telegrad.scipy.special", numpy="scipy.special"),
    Face("telegrad.checkpoint"),
    Face("telegrad.launch"),
    Face("telegrad.testing"),
    Face("telegrad.rendezvous", only=STORES),
    Face("telegrad.doctor"),
    Face("telegrad.arrays", only=frozenset({"shared_empty"})),
    Face("telegrad.errors"),
    Face("telegrad.types"),
)


def page_path(face: Face) -> str:
    """Returns the path of a face's page, below docs/."""
    name = face.module.removeprefix("telegrad.")
    return f"reference/{'index' if name == 'telegrad' else name}.md"


def names_of(face: Face) -> list[str]:
    """Returns the public names of a face for users, in the order of `__all__`."""
    names = importlib.import_module(face.module).__all__
    return [name for name in names if not face.only or name in face.only]


def public_name(face: Face, name: str) -> str:
    """Returns the full name under which a user finds it, which is its anchor on the page."""
    return f"{face.module}.{name}"


def anchors() -> dict[str, str]:
    """Returns full names by those that texts use (`rpc.gather`, `RemoteModule`), pages for packages.

    A bare name is taken where it has a capital inside and one face has it. Names of NumPy's are left
    out: texts mention NumPy's own.
    """
    found: dict[str, str] = {}
    bare: dict[str, list[str]] = {}
    pages = {face.module: page_path(face) for face in FACES}
    for face in FACES:
        for name in [] if face.numpy else names_of(face):
            full = public_name(face, name)
            target = pages.get(full, full)
            below = face.module.removeprefix("telegrad.")
            for module in ("tg" if below == "telegrad" else below, below.rpartition(".")[2]):
                found[f"{module}.{name}"] = target
            found[full] = target
            if any(letter.isupper() for letter in name[1:]):
                bare.setdefault(name, []).append(full)
    found |= {name: full for name, (full, *more) in bare.items() if not more}
    return found | pages


def undocumented(face: Face) -> list[str]:
    """Returns the functions, classes and public methods of a face that have no docstring."""
    if face.numpy:
        return []
    return list(find_undocumented(face, importlib.import_module(face.module), names_of(face)))


def find_undocumented(face: Face, module: types.ModuleType, names: Sequence[str]) -> Iterator[str]:
    """Yields the full names of those without a docstring.

    Args:
        face: Where users find the names.
        module: What defines them.
        names: Which names.
    """
    for name in names:
        value, full = getattr(module, name), public_name(face, name)
        if not isinstance(value, type | types.FunctionType | types.ModuleType):
            continue
        if not (value.__doc__ or "").strip():
            yield full
        if isinstance(value, type):
            methods = (method for method in vars(value) if not method.startswith("_"))
            yield from (f"{full}.{method}" for method in methods if _lacks(value, method))


def _lacks(owner: type, name: str) -> bool:
    told = isinstance(vars(owner)[name], (types.FunctionType, property, classmethod, staticmethod))
    return told and not inspect.getdoc(getattr(owner, name))


def page_of(face: Face) -> str:
    """Returns a face's page as Markdown, with one entry for every public name.

    The entries of telegrad's own names are directives of mkdocstrings; a name of NumPy's gets a row.
    """
    lines = [f"# {face.module}", ""]
    lines += [
        f"::: {face.module}",
        "    options:",
        "      members: false",
        "      heading_level: 1",
    ]
    lines += ["      show_root_heading: false", "      show_root_toc_entry: false", ""]
    lines += _rows(face) if face.numpy else _entries(face)
    return "\n".join([*lines, ""])


def _entries(face: Face) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for name in names_of(face):
        groups.setdefault(_group(face, name), []).append(name)
    for title in GROUPS:
        if title not in groups:
            continue
        yield from (f"## {title}", "")
        for name in groups[title]:
            yield from _entry(face, name)


GROUPS = ("Functions", "Classes", "Packages", "Data")


def _group(face: Face, name: str) -> str:
    value = getattr(importlib.import_module(face.module), name)
    if isinstance(value, types.ModuleType):
        return "Packages"
    if is_class(value, name):
        return "Classes"
    return "Functions" if isinstance(value, types.FunctionType) else "Data"


def is_module(face: Face, name: str) -> bool:
    """Tells whether a public name is that of a package of its own."""
    return isinstance(getattr(importlib.import_module(face.module), name), types.ModuleType)


def is_class(value: object, name: str) -> bool:
    """Tells whether a name is that of a class; an alias of one counts as data."""
    return isinstance(value, type) and value.__name__ == name


def lacks_example(face: Face, name: str) -> bool:
    """Tells whether a function or class for users has no example in its docstring."""
    value = getattr(importlib.import_module(face.module), name)
    told = isinstance(value, types.FunctionType) or is_class(value, name)
    return told and ">>> " not in _docstring(value)


def data_of(face: Face) -> list[str]:
    """Returns the public names of a face that are neither functions, classes nor packages."""
    names = [] if face.numpy else names_of(face)
    return [name for name in names if _group(face, name) == "Data"]


def _docstring(value: object) -> str:
    return (value.__doc__ or "") if isinstance(value, type | types.FunctionType) else ""


def _entry(face: Face, name: str) -> Iterator[str]:
    value = getattr(importlib.import_module(face.module), name)
    full = public_name(face, name)
    if isinstance(value, types.ModuleType):
        page = page_path(Face(full)).removeprefix("reference/")
        summary = (value.__doc__ or "").strip().partition("\n")[0]
        yield from (f"### [`{full}`]({page})", "", summary, "")
    else:
        yield from (f"::: {full}", "    options:", "      heading_level: 3", "")


def _rows(face: Face) -> Iterator[str]:
    module = importlib.import_module(face.module)
    yield from ("| name | summary |", "|---|---|")
    for name in names_of(face):
        value, full = getattr(module, name), public_name(face, name)
        anchor = f'<a id="{full}"></a>'
        if isinstance(value, types.ModuleType):
            page = page_path(Face(full)).removeprefix("reference/")
            yield f"| {anchor}[`{name}`]({page}) | a package of its own |"
            continue
        there = f"{DOCUMENTED_AT[face.numpy.partition('.')[0]]}/{face.numpy}.{name}.html"
        shown = f"[`{name}`]({there})" if callable(value) else f"`{name}`"
        yield f"| {anchor}{shown} | {_summary(value)} |"


DOCUMENTED_AT = {
    "numpy": "https://numpy.org/doc/stable/reference/generated",
    "scipy": "https://docs.scipy.org/doc/scipy/reference/generated",
}


def _summary(value: object) -> str:
    if not callable(value):
        return f"a constant, of `{type(value).__name__}`"
    paragraphs = (inspect.getdoc(value) or "").split("\n\n")
    told = (" ".join(text.split()) for text in paragraphs if not _is_signature(text))
    first = next(told, "").partition(". ")[0].rstrip(".")
    return first.replace("|", "\\|").replace("`", "").replace("*", "\\*").replace("<", "&lt;")


def _is_signature(text: str) -> bool:
    return "(" in text.partition("\n")[0] and text.rstrip().endswith(")")
