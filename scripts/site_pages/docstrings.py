"""An extension of griffe that prepares docstrings for Markdown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

from scripts.site_pages import reference, text

_logger = logging.getLogger("mkdocs.telegrad")  # of the warnings that strict mode counts

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


class Docstrings(griffe.Extension):
    """Puts examples into fences and makes links of pages that are named."""

    def __init__(self) -> None:
        """Reads the titles of the pages."""
        self.titles = text.titles_of(
            {str(path.relative_to(DOCS)): path.read_text() for path in DOCS.rglob("*.md")}
        )

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes one docstring."""
        self._change(obj)

    def _change(self, obj: griffe.Object) -> None:
        if obj.docstring is not None:
            fenced = text.fence_examples(obj.docstring.value)
            obj.docstring.value = text.link_places(fenced, self.titles)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Gives a name that a package imports precedence over its module of the same name.

        Python does so: `telegrad.rpc.stream` is the function, `telegrad/rpc/stream/` a room.
        """
        if pkg.path == "telegrad":
            _warn_of_data(pkg)
        meant: dict[str, griffe.Object | griffe.Alias] = {}
        packages = list(_packages(pkg))
        for package in packages:
            for name, target in package.imports.items():
                module = package.members.get(name)
                ours = target.startswith(f"{pkg.path}.")
                if ours and isinstance(module, griffe.Module) and target != module.path:
                    for inside in _objects(module):  # griffe does not visit them any more
                        self._change(inside)
                    meant[module.path] = pkg[target.removeprefix(f"{pkg.path}.")]
                    package.members[name] = griffe.Alias(name, meant[module.path], parent=package)
        for package in packages:  # and packages that import the name from there: `telegrad.tensor`
            for name, target in package.imports.items():
                if target in meant:
                    package.members[name] = griffe.Alias(name, meant[target], parent=package)
        if pkg.path == "telegrad":
            _warn_of_modules(pkg)


def _objects(obj: griffe.Object) -> Iterator[griffe.Object]:
    yield obj
    for member in list(obj.members.values()):
        if isinstance(member, griffe.Object):
            yield from _objects(member)


def _packages(package: griffe.Module) -> Iterator[griffe.Module]:
    yield package
    for module in list(package.modules.values()):
        if not module.is_alias and module.is_init_module:
            yield from _packages(module)


def _warn_of_data(package: griffe.Module) -> None:
    """Warns of public data without a docstring below it, which fails a strict build."""
    for face in reference.FACES:
        for name in reference.data_of(face):
            place = reference.public_name(face, name).removeprefix("telegrad.")
            try:
                told = package[place].docstring
            except griffe.AliasResolutionError as error:
                told = package[error.alias.target_path.removeprefix("telegrad.")].docstring
            if told is None:
                _logger.warning("%s.%s has no docstring", face.module, name)


def _warn_of_modules(package: griffe.Module) -> None:
    """Warns of public functions and classes for which the site would show a module."""
    for face in reference.FACES:
        for name in [] if face.numpy else reference.names_of(face):
            full = reference.public_name(face, name)
            shown = package[full.removeprefix("telegrad.")]
            if shown.is_module and not reference.is_module(face, name):
                _logger.warning("%s is shown as the module %s", full, shown.canonical_path)
