"""Checks the shape of the house: who may import whom, which cycles are left, and its budgets.

The tables are in `tests/house.toml`. They only shrink: a commit that has to raise a number there says
which feature needs it. Each test ends with the list of all offenders.
"""

from __future__ import annotations

import ast
import functools
import gc
import itertools
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "telegrad"
HOUSE: dict[str, Any] = tomllib.loads((ROOT / "tests" / "house.toml").read_text())

# Functions that import upwards, when they are called and not before.
DOORS = {tuple(door.split(":")) for door in HOUSE["doors"]}

# Third parties that have a home.
HOMES = {"grpc": {"transport"}, "cupy": {"arrays", "kernels"}, "cupyx": {"arrays", "kernels"}}

# What a pure protocol may not import, and the packages that it may.
IMPURE = {"asyncio", "threading", "time", "grpc", "socket", "queue", "concurrent", "contextvars"}
PURE_GROUND = {"errors", "types", "wire"}

LONGEST_FILE = 800
MOST_METHODS = 25
MOST_ATTRIBUTES = 15
MOST_ENTRIES = 16
STEP_OF_LINES = 250  # of the budgets of code lines
# A room may be long where it is a list of things: one file each.
LISTS = {"nn", "kernels", "pb"}
# Rooms of tests that hold more than one module, below the package whose fixtures they take or at the top.
KINDS_OF_TESTS = {"guides", "programs", "promises"}
# Files that only pass names on: they import all rooms of their package.
FACES = {"__init__.py", "seams.py"}


class Import(NamedTuple):
    """One import statement's module, and the function that it stands in, if any."""

    file: str
    line: int
    module: str
    function: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"

    def targets(self, modules: dict[str, Path]) -> set[str]:
        """The modules that it loads: submodules that it names, else the module itself."""
        below = {f"{self.module}.{name}" for name in self.names} & set(modules)
        return below or {self.module} & set(modules)


# -- reading the house -------------------------------------------------------------------------


@functools.cache
def sources() -> tuple[Path, ...]:
    return tuple(sorted(p for p in PACKAGE.rglob("*.py") if not p.name.endswith("_pb2.py")))


def floor(path: Path) -> str:
    """The package of a file, or its own name directly under telegrad."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def room(path: Path) -> str:
    """The folder of a file below telegrad."""
    return path.parent.relative_to(PACKAGE).as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """All files, read out of the garbage collector's sight: it would go through half a million nodes."""
    gc.disable()
    try:
        return {path: ast.parse(path.read_text()) for path in sources()}
    finally:
        gc.freeze()
        gc.enable()


def tree_of(path: Path) -> ast.Module:
    return trees()[path]


def walk(node: ast.AST, file: str, function: str = "") -> Iterator[Import]:
    """Yields every import below a node; `from telegrad import x` counts as telegrad.x."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from walk(child, file, child.name)
        elif isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, function)
        elif isinstance(child, ast.ImportFrom):
            module = "." * child.level + (child.module or "")
            names = tuple(alias.name for alias in child.names)
            whole = [f"{module}.{name}" for name in names] if module == "telegrad" else [module]
            for name in whole:
                yield Import(file, child.lineno, name, function, names)
        else:
            yield from walk(child, file, function)


@functools.cache
def imports(path: Path) -> tuple[Import, ...]:
    return tuple(walk(tree_of(path), str(path.relative_to(PACKAGE))))


def inner_imports(path: Path) -> list[Import]:
    """Imports of telegrad by telegrad, those under TYPE_CHECKING too, without doors."""
    return [
        found
        for found in imports(path)
        if found.module.split(".")[0] == "telegrad" and (found.file, found.function) not in DOORS
    ]


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """The modules that each module imports."""
    modules = {module_name(path): path for path in sources()}
    return {
        name: set[str]().union(*(found.targets(modules) for found in inner_imports(path))) - {name}
        for name, path in modules.items()
    }


def in_cycles(graph: dict[str, set[str]]) -> list[str]:
    """The modules from which imports lead back to themselves."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        seen: set[str] = set()
        waiting = [*graph[name]]
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                waiting += graph[other]
        reached[name] = seen
    return sorted(name for name in graph if name in reached[name])


def rooms_in_circles(graph: dict[str, set[str]]) -> list[str]:
    """The rooms that reach themselves over other rooms of their package; faces do not count.

    A file directly under a package is a room of its own.
    """
    own: dict[str, str] = {}
    for path in sources():
        if path.name not in FACES and path.parent != PACKAGE:
            inner = path.parent.parent != PACKAGE
            own[module_name(path)] = room(path) if inner else f"{room(path)}/{path.stem}"
    links: dict[str, set[str]] = {mine: set() for mine in own.values()}
    for name, mine in own.items():
        theirs = {own[target] for target in graph[name] & own.keys()} - {mine}
        links[mine] |= {other for other in theirs if other.split("/")[0] == mine.split("/")[0]}
    return in_cycles(links)


def code_lines(path: Path) -> int:
    """The lines of a file without docstrings, comments and blanks."""
    docstrings, strings = set[int](), set[int]()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.update(lines_of(node))
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            strings.update(lines_of(node))
    lines = {
        number
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    return len((lines | strings) - docstrings)


def lines_of(node: ast.expr | ast.Expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def measured_code() -> dict[str, int]:
    """Code lines of each package and top file."""
    found: Counter[str] = Counter()
    for path in sources():
        found[floor(path)] += code_lines(path)
    return dict(found)


def measured_entries() -> dict[str, int]:
    """Files and rooms of each folder that has more than it should."""
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*"):
        module = path.suffix == ".py" and path.name != "__init__.py"
        found[room(path)] += module or (path.is_dir() and any(path.glob("*.py")))
    return {
        name: n
        for name, n in found.items()
        if n > MOST_ENTRIES and name.split("/")[-1] not in LISTS
    }


def measured_classes() -> tuple[dict[str, int], dict[str, int]]:
    """Methods, and attributes that `__init__` or a dataclass sets, of classes with too many."""
    methods: dict[str, int] = {}
    attributes: dict[str, int] = {}
    for path in sources():
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.ClassDef):
                continue
            name = f"{module_name(path)}.{node.name}"
            inside = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
            own = {
                target.attr
                for each in inside
                if each.name == "__init__"
                for statement in ast.walk(each)
                if isinstance(statement, ast.Assign | ast.AnnAssign)
                for target in getattr(statement, "targets", [getattr(statement, "target", None)])
                if isinstance(target, ast.Attribute)
                if isinstance(target.value, ast.Name) and target.value.id == "self"
            }
            if any("dataclass" in ast.unparse(each) for each in node.decorator_list):
                own |= {ast.unparse(n.target) for n in node.body if isinstance(n, ast.AnnAssign)}
            methods[name] = len({each.name for each in inside})
            attributes[name] = len(own)
    return (
        {name: n for name, n in methods.items() if n > MOST_METHODS},
        {name: n for name, n in attributes.items() if n > MOST_ATTRIBUTES},
    )


def rooms_used() -> dict[str, set[str]]:
    """The rooms of its own package that each room imports."""
    modules = {module_name(path): path for path in sources()}
    found: dict[str, set[str]] = defaultdict(set)
    for path in sources():
        if path.name in FACES or floor(path) == path.stem:  # a face, or a top file
            continue
        found[room(path)]
        for each in inner_imports(path):
            for target in each.targets(modules):
                there = modules[target]
                if floor(there) == floor(path) and there.name not in FACES:
                    found[room(path)] |= {room(there)} - {room(path)}
    return found


def misplaced(files: Iterable[str]) -> list[str]:
    """Returns what is wrong with the places of files below `tests`."""
    offenders: list[str] = []
    entries: dict[str, set[str]] = defaultdict(set)
    for file in files:
        *folders, name = file.split("/")
        entries["/".join(folders)].add(name)
        for depth in range(1, len(folders)):  # at the top any package may have a folder
            entries["/".join(folders[:depth])].add(folders[depth])
        code = PACKAGE.joinpath(*itertools.takewhile(lambda n: n not in KINDS_OF_TESTS, folders))
        mirrored = any(code.glob("*.py")) or code.with_suffix(".py").exists()
        if name.startswith("test_") and not mirrored and folders[0] not in HOUSE["rooms_of_tests"]:
            offenders.append(f"tests/{file} lies where telegrad has no room: {code.name}")
    return offenders + [
        f"tests/{folder} has {len(names)} entries (at most: {MOST_ENTRIES})"
        for folder, names in entries.items()
        if len(names) > MOST_ENTRIES
    ]


# -- what is checked ---------------------------------------------------------------------------


def test_imports_look_down_as_the_tables_say() -> None:
    floors, offenders = HOUSE["floors"], []
    unused = {(mine, target) for mine, targets in floors.items() for target in targets}
    for path in sources():
        mine = floor(path)
        if mine not in floors:
            offenders.append(f"{mine} stands on no floor: give it a row in house.toml")
            continue
        for found in inner_imports(path):
            theirs = found.module.partition(".")[2]
            target = theirs.split(".")[0]
            if target == mine:
                continue
            unused.discard((mine, target))
            if target not in floors[mine]:
                offenders.append(f"{found}; {mine} may import {floors[mine]}")
            if theirs not in {target, f"{target}.seams"} and target != "pb":
                offenders.append(f"{found}; import another package by its face, telegrad.{target}")
        for found in imports(path):
            home = HOMES.get(found.module.split(".")[0])
            if (home and mine not in home) or found.module.startswith("."):
                offenders.append(str(found))
    offenders += [f"{mine} does not import {target}: take it off" for mine, target in unused]
    rooms = rooms_used()
    for name in rooms.keys() | HOUSE["rooms"].keys():
        known, used = set(HOUSE["rooms"].get(name, [])), rooms.get(name, set())
        offenders += [f"room {name} may not import room {other}" for other in used - known]
        offenders += [f"room {name} does not import {other}: take it off" for other in known - used]
    assert not offenders, "\n".join(offenders)


def test_cycles_only_shrink() -> None:
    known, found = set(HOUSE["cycles"]["modules"]), set(in_cycles(import_graph()))
    offenders = [f"{name} is in an import cycle now" for name in sorted(found - known)]
    offenders += [f"{name} is in none any more: take it off" for name in sorted(known - found)]
    assert not offenders, "\n".join(offenders)


def test_no_room_reaches_itself_over_others() -> None:
    known, found = set(HOUSE["circles"]["rooms"]), set(rooms_in_circles(import_graph()))
    offenders = [f"room {name} is in a circle of rooms now" for name in sorted(found - known)]
    offenders += [f"room {name} is in none any more: take it off" for name in sorted(known - found)]
    assert not offenders, "\n".join(offenders)


def test_one_upward_import_closes_a_circle_of_rooms() -> None:
    """Of the ground floor of rpc, or of a file directly under a package."""
    graph = import_graph()
    for lower, upper, expected in (
        ("rpc.base.tick", "rpc.verbs.api", {"rpc/base", "rpc/agent", "rpc/verbs"}),
        ("wire.document", "wire.values.class_types", {"wire/document", "wire/values"}),
        ("collectives.link", "collectives.api.objects", {"collectives/link", "collectives/api"}),
    ):
        name = f"telegrad.{lower}"
        changed = {**graph, name: graph[name] | {f"telegrad.{upper}"}}
        assert expected <= set(rooms_in_circles(changed)), lower


def test_budgets_only_fall() -> None:
    methods, attributes = measured_classes()
    budgets = (
        ("entries", MOST_ENTRIES, measured_entries()),
        ("methods", MOST_METHODS, methods),
        ("attributes", MOST_ATTRIBUTES, attributes),
    )
    offenders = [
        f"{what} of {name}: {n} (at most: {HOUSE[what].get(name, least)})"
        for what, least, found in budgets
        for name, n in found.items()
        if n > HOUSE[what].get(name, least)
    ]
    offenders += [
        f"{what} of {name} needs no row any more: take it off"
        for what, _, found in budgets
        for name in HOUSE[what].keys() - found.keys()
    ]
    rows = HOUSE["code_lines"]
    steps = {name: -(-n // STEP_OF_LINES) * STEP_OF_LINES for name, n in measured_code().items()}
    offenders += [
        f"code_lines of {name}: {rows.get(name)} (the next step above its code: {steps.get(name)})"
        for name in rows.keys() | steps.keys()
        if rows.get(name) != steps.get(name)
    ]
    lengths = {path: path.read_text().count("\n") for path in sources()}
    offenders += [
        f"{path.relative_to(ROOT)} has {n} lines (at most: {LONGEST_FILE})"
        for path, n in lengths.items()
        if n > LONGEST_FILE
    ]
    assert not offenders, "\n".join(offenders)


def test_tests_lie_where_the_code_lies() -> None:
    tests = ROOT / "tests"
    offenders = misplaced(path.relative_to(tests).as_posix() for path in tests.rglob("*.py"))
    assert not offenders, "\n".join(offenders)


def test_a_test_in_no_room_and_a_full_folder_are_found() -> None:
    assert not misplaced(
        ("rpc/call/test_x.py", "rpc/pool/promises/x/test_x.py", "guides/test_x.py")
    )
    assert not misplaced(("nn/module/test_x.py", "gpu/anything/test_x.py", "rpc/anything/code.py"))
    for file in ("rpc/calls/test_x.py", "nn/modules/test_x.py", "calls/test_x.py"):
        assert len(misplaced([file])) == 1, file
    full = [f"rpc/call/test_{n}.py" for n in range(MOST_ENTRIES)]
    assert not misplaced(full)
    assert len(misplaced([*full, "rpc/call/promises/test_x.py"])) == 1


def test_protocols_are_pure_with_all_that_they_build_on() -> None:
    modules = {module_name(path): path for path in sources()}
    offenders = []
    for name in HOUSE["pure"]:
        package = f"telegrad.{name.split('/')[0]}"
        waiting, seen = [module_name(PACKAGE / name)], set[str]()
        while waiting:
            current = waiting.pop()
            seen.add(current)
            for found in imports(modules[current]):
                head, _, rest = found.module.partition(".")
                if found.module.startswith(package):
                    waiting += found.targets(modules) - seen
                elif head in IMPURE or (
                    head == "telegrad" and rest.split(".")[0] not in PURE_GROUND
                ):
                    offenders.append(f"{name}: {found}")
    assert not offenders, "\n".join(offenders)


def test_doors_are_functions_that_exist() -> None:
    for file, function in DOORS:
        tree = tree_of(PACKAGE / file)
        assert function in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


def test_rows_of_the_mutation_run_name_code_and_tests_that_exist() -> None:
    script = ROOT / "scripts" / "mutate.py"
    listed = subprocess.run([sys.executable, script, "--list"], capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    named = re.findall(r"\b[\w/]+/test_\w+\.py\b", script.read_text())
    assert named
    assert [each for each in named if not (ROOT / "tests" / each).exists()] == []


def test_the_launcher_plugs_nothing_together_itself() -> None:
    for path in sources():
        if floor(path) == "launch" and not path.name.startswith("local_"):
            assert all(
                not found.module.endswith("_distributed") for found in inner_imports(path)
            ), path


def test_every_module_can_be_imported_first_and_starts_no_thread() -> None:
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


# -- locks ---------------------------------------------------------------------------------------

LOCKS = {"Lock", "RLock", "Condition"}
# The packages whose code verbs run: a thread may be interrupted in them by code that calls verbs.
MARKED = {"collectives", "dist_autograd", "parallel", "rendezvous", "rpc", "transport", "wire"}


def lock_names() -> set[str]:
    """Returns the attributes that hold locks of `threading`, anywhere in the package."""
    return {
        target.attr
        for path in sources()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if getattr(node.value.func, "attr", "") in LOCKS
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }


def unmarked(node: ast.AST, locks: set[str], *, marked: bool = False) -> Iterator[ast.With]:
    """Yields the blocks that take a lock outside the thread's section."""
    if isinstance(node, ast.With):
        for item in node.items:
            marked = marked or ast.unparse(item.context_expr) == "critical.section"
            if not marked and getattr(item.context_expr, "attr", "") in locks:
                yield node
    elif isinstance(node, ast.FunctionDef | ast.Lambda):
        marked = False
    for child in ast.iter_child_nodes(node):
        yield from unmarked(child, locks, marked=marked)


def test_each_lock_is_taken_inside_the_threads_section() -> None:
    """Code that interrupts a thread finds out so that it must not wait there; see `critical`."""
    locks, found = lock_names(), set[str]()
    for path in sources():
        if floor(path) in MARKED:
            for block in unmarked(tree_of(path), locks):
                taken = ast.unparse(block.items[0].context_expr)
                found.add(f"{path.relative_to(PACKAGE)}:{taken}")
    assert found == set(HOUSE["held_across_waits"])
