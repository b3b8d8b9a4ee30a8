"""Checks that every floor of the house looks down only, by the exact table of docs/architecture.md."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "telegrad"

COMPUTE = {"arrays", "autograd", "errors", "kernels", "types"}
NETWORK = {"errors", "rendezvous", "rpc", "transport", "types", "wire"}
BELOW_PARALLEL = COMPUTE | NETWORK | {"collectives", "dist_autograd", "nn", "numpy", "optim"}
EVERYTHING = BELOW_PARALLEL | {"observe", "parallel", "pb"}

# Who may import whom. A name is a package or a module directly under telegrad.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "types": set(),
    "pb": set(),
    "arrays": {"errors", "types"},
    "kernels": {"arrays", "errors", "types"},
    "wire": {"arrays", "errors", "pb", "types"},
    "transport": {"arrays", "errors", "pb", "types", "wire"},
    "rendezvous": {"arrays", "errors", "pb", "transport", "types", "wire"},
    "rpc": {"errors", "rendezvous", "transport", "types", "wire"},
    "collectives": {"arrays", "errors", "kernels", "rpc", "types", "wire"},
    "autograd": {"arrays", "errors", "kernels", "types"},
    "numpy": COMPUTE,
    "scipy": COMPUTE,
    "nn": COMPUTE,
    "optim": COMPUTE | {"nn"},
    "state_files": COMPUTE | {"nn"},
    "dist_autograd": {"arrays", "autograd", "errors", "rpc", "types", "wire"},
    "parallel": BELOW_PARALLEL,
    "observe": {"errors", "rpc", "types"},
    "launch": {"distributed", "errors", "rendezvous", "transport", "types"},
    "distributed": EVERYTHING,
    "testing": EVERYTHING | {"distributed", "launch"},
    "__init__": COMPUTE | {"nn", "numpy", "optim", "scipy"},
    "__main__": {"launch"},
}

# Doors: functions that import upwards, when they are called and not before.
DOORS = {
    ("rpc/agent.py", "__init__"),
    ("rpc/api.py", "init_rpc"),
    ("rpc/api.py", "shutdown"),
    ("rpc/rref.py", "backward"),
    ("collectives/api.py", "init_process_group"),
    ("collectives/api.py", "destroy_process_group"),
}

# Third parties that have a home.
HOMES = {"grpc": {"transport"}, "cupy": {"arrays", "kernels"}, "cupyx": {"arrays", "kernels"}}

# Protocols are values in, values out.
PURE = [
    "collectives/forming.py",
    "collectives/mailbox.py",
    "dist_autograd/pass_protocol.py",
    "parallel/bucket.py",
    "parallel/trainer_rounds.py",
    "rendezvous/membership.py",
    "rpc/admission.py",
    "rpc/early_cancels.py",
    "rpc/rref_owner.py",
    "rpc/rref_protocol.py",
    "rpc/rref_user.py",
    "rpc/stream_protocol.py",
    "rpc/wait_cycle.py",
    "testing/fault_plan.py",
    "transport/bulk_standstill.py",
    "transport/liveness.py",
    "transport/session.py",
    "transport/slab_ledger.py",
]
IMPURE = {"asyncio", "threading", "time", "grpc", "socket", "queue", "concurrent", "contextvars"}

LONGEST_FILE = 500


class Import(NamedTuple):
    """One import statement's module, and the function that it stands in, if any."""

    file: str
    line: int
    module: str
    function: str
    typing: bool  # stands under `if TYPE_CHECKING`
    names: tuple[str, ...] = ()

    def targets(self, modules: dict[str, Path]) -> set[str]:
        """The modules that it loads: submodules that it names, else the module itself."""
        below = {f"{self.module}.{name}" for name in self.names} & set(modules)
        if below:
            return below
        return {self.module if self.module in modules else self.module.rpartition(".")[0]}


def sources() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if not p.name.endswith("_pb2.py"))


def floor(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def walk(node: ast.AST, file: str, function: str = "", typing: bool = False) -> Iterator[Import]:
    """Yields every import below a node; `from telegrad import x` counts as telegrad.x."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from walk(child, file, child.name, typing)
        elif isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, function, typing)
        elif isinstance(child, ast.ImportFrom):
            module = "." * child.level + (child.module or "")
            names = tuple(alias.name for alias in child.names)
            whole = [f"{module}.{name}" for name in names] if module == "telegrad" else [module]
            for name in whole:
                yield Import(file, child.lineno, name, function, typing, names)
        else:
            only = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            yield from walk(child, file, function, typing or only)


@functools.cache
def imports(path: Path) -> tuple[Import, ...]:
    return tuple(walk(ast.parse(path.read_text()), str(path.relative_to(PACKAGE))))


def inner_imports(path: Path) -> list[Import]:
    """Imports of telegrad by telegrad, doors left out."""
    return [
        found
        for found in imports(path)
        if found.module.split(".")[0] == "telegrad" and (found.file, found.function) not in DOORS
    ]


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_floor_imports_what_its_row_of_the_table_says(path: Path) -> None:
    mine = floor(path)
    assert mine in MAY_IMPORT, f"{mine} stands on no floor: give it a row in MAY_IMPORT"
    for found in inner_imports(path):
        _, _, theirs = found.module.partition(".")
        target = theirs.split(".")[0]
        if target == mine:
            continue
        where = f"{found.file}:{found.line} imports {found.module}"
        assert target in MAY_IMPORT[mine], f"{where}; {mine} may import {sorted(MAY_IMPORT[mine])}"
        by_face = theirs == target or target == "pb"
        assert by_face, f"{where}; another package is imported by its face, telegrad.{target}"


def test_the_launcher_plugs_nothing_together_itself() -> None:
    for path in sources():
        if floor(path) == "launch" and not path.name.startswith("local_"):
            assert all(found.module != "telegrad.distributed" for found in inner_imports(path)), (
                path
            )


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_third_parties_stay_at_home(path: Path) -> None:
    for found in imports(path):
        home = HOMES.get(found.module.split(".")[0])
        assert home is None or floor(path) in home, f"{found.file}:{found.line}: {found.module}"
        assert not found.module.startswith("."), f"{found.file}:{found.line}: relative import"


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_is_no_longer_than_it_may_be(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= LONGEST_FILE, "split it by noun"


@pytest.mark.parametrize("name", PURE)
def test_a_protocol_is_pure_with_all_that_it_builds_on(name: str) -> None:
    package = f"telegrad.{name.split('/')[0]}"
    modules = {module_name(path): path for path in sources()}
    waiting, seen = [module_name(PACKAGE / name)], set[str]()
    while waiting:
        current = waiting.pop()
        seen.add(current)
        for found in imports(modules[current]):
            where = f"{found.file}:{found.line} imports {found.module}"
            head, _, rest = found.module.partition(".")
            assert head not in IMPURE, where
            if found.module.startswith(package):
                waiting += found.targets(modules) - seen
            elif head == "telegrad":
                assert rest.split(".")[0] in {"errors", "types", "wire"}, where


def test_doors_are_functions_that_exist() -> None:
    for file, function in DOORS:
        tree = ast.parse((PACKAGE / file).read_text())
        assert function in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types alone may: within a package, for the table forbids it between packages."""
    modules = {module_name(path): path for path in sources()}
    graph: dict[str, list[str]] = {}
    for name, path in modules.items():
        real = [found for found in inner_imports(path) if not found.typing]
        graph[name] = sorted(set[str]().union(*(found.targets(modules) for found in real)) - {name})
    finished: set[str] = set()

    def visit(name: str, chain: tuple[str, ...]) -> None:
        assert name not in chain, " -> ".join((*chain[chain.index(name) :], name))
        if name in finished:
            return
        for other in graph.get(name, []):
            visit(other, (*chain, name))
        finished.add(name)

    for name in graph:
        visit(name, ())


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_importing_telegrad_loads_no_grpc_and_starts_no_thread() -> None:
    program = (
        "import sys, threading; import telegrad; "
        "bad = {'grpc', 'google.protobuf', 'asyncio', 'cupy'} & set(sys.modules); "
        "assert not bad, bad; "
        "assert threading.active_count() == 1, threading.enumerate()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr


def test_importing_every_module_starts_no_thread() -> None:
    program = (
        "import importlib, sys, threading; "
        "[importlib.import_module(name) for name in sys.argv[1:]]; "
        "assert threading.active_count() == 1, threading.enumerate()"
    )
    names = [module_name(path) for path in sources() if path.name != "__main__.py"]
    done = subprocess.run(
        [sys.executable, "-c", program, *names],
        cwd=ROOT, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
