"""Counts how many small changes of the code its tests notice: seeded mutants, by room.

    scripts/mutate.py                            all rows; prints survivors and shares
    scripts/mutate.py --row session --count 5    a quick try of one row
    scripts/mutate.py --json FILE --at-least 0.9

A mutant is the code with one small change. The tests of its row kill it if one of them fails or
takes too long. Mutants run in temporary copies of the checkout; the checkout never changes.

mutmut and cosmic-ray number the mutants of whole files and run one test command over them, so they
cannot draw 200 over rows with tests of their own, and the same ones again after files have moved.

Here a draw knows no file names. Each possible mutant gets a random number that is seeded by its
function's qualified name, its source line and its change; a row takes those with the lowest
numbers. A commit that moves files edits the paths in `ROWS`: the mutants of a row stay nearly the
same, so that shares can be compared. For the same reason a new row comes into `LATER_ROWS`, and the
200 mutants of the first rows have a total of their own.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import queue
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SEED = 20
TEST_SECONDS = 60  # of one test; the slowest of these takes 20 s on a busy machine
SLOWER = 3.0  # a mutant may take this many times as long as the unmutated code, and
SPARE_SECONDS = 20.0  # so much longer
MOST_MEMORY = 8 << 30  # bytes of one process: a mutant may allocate without end
SURVIVED, KILLED, TIMED_OUT = "survived", "killed", "timed out"
# A plugin of pytest: Hypothesis would look for the smallest failing example, for minutes.
NO_SHRINKING = """
import hypothesis as h

def pytest_sessionstart():
    phases = [h.Phase.explicit, h.Phase.generate]
    once = h.settings(h.settings.default, phases=phases, report_multiple_bugs=False)
    h.settings.register_profile("once", once)
    h.settings.load_profile("once")
"""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Row(NamedTuple):
    """The code of one noun, and its tests.

    Attributes:
        name: The value of `--row`.
        mutants: Their number. It stays the same, or shares cannot be compared.
        sources: Files or globs below telegrad/. `file.py::Name,other` takes classes and functions
            of a file that holds more than the noun; `!glob` leaves files out.
        tests: Files or folders below tests/. Those that kill most come first; together they take
            25 s at most.
    """

    name: str
    mutants: int
    sources: str
    tests: str


# fmt: off
FIRST_ROWS = (  # 200 mutants
    Row("rref", 14, "rpc/rref/protocol.py::OwnerTable,UserTable",
        "rpc/rref/test_protocol.py rpc/rref/promises/test_machine.py"),
    Row("stream", 5, "rpc/stream/protocol.py::Sender,StreamReceiver", "rpc/stream/test_protocol.py"),
    Row("admission", 12, "rpc/call/admission.py::Window,Budget", "rpc/call/test_admission.py"),
    Row("deadlock", 6, "rpc/deadlock/protocol.py", "rpc/deadlock/test_protocol.py"),
    Row("pass", 10, "dist_autograd/pass_protocol.py",
        "dist_autograd/test_pass_protocol.py dist_autograd/programs/test_random_programs_pure.py"),
    Row("membership", 10, "rendezvous/membership.py::Membership,_duplicate,_numbers_problem,place_problem",
        "rendezvous/membership/test_membership.py rendezvous/membership/test_start_when.py "
        "rendezvous/membership/test_abandoned.py"),
    Row("collectives", 8, "collectives/groups/forming.py collectives/mailbox.py",
        "collectives/groups/test_forming.py collectives/test_mailbox.py"),
    Row("training", 5, "parallel/bucket.py parallel/optimizer/rounds.py::Rounds,StepCounts",
        "parallel/test_bucket.py parallel/optimizer/test_rounds.py"),
    Row("faults", 4, "testing/fault_plan.py", "testing/test_fault_plan.py"),
    Row("liveness", 3, "transport/session/liveness.py::Liveness transport/channels/pace.py::Pace",
        "transport/channels/test_pace.py transport/session/test_liveness.py "
        "transport/session/test_pulse.py"),
    Row("slabs", 5, "transport/channels/ledger.py", "transport/channels/test_ledger.py"),
    Row("session", 18, "transport/session/session.py", "transport/session/test_session.py"),
    Row("wire", 36, "wire/*.py wire/values/*.py !wire/memory.py wire/memory.py::bytes_of,copy_of,_octets",
        "wire/promises/test_round_trips.py wire/test_frame.py wire/test_head.py "
        "wire/test_vectors.py wire/promises/test_limits.py wire/values/test_values.py "
        "wire/promises/test_hostile.py wire/test_exceptions.py "
        "wire/test_function_ref.py wire/test_registry.py gpu/test_wire.py wire/values/test_arrays.py "
        "wire/test_memory.py fuzz/test_fuzz.py wire/promises/test_runs_no_code.py "
        "transport/channels/test_shared_memory.py gpu/transport/test_device_slabs.py"),
    Row("policy", 14, "rpc/policy/*.py", "rpc/policy/test_policy.py rpc/policy/test_known_methods.py "
        "wire/promises/test_runs_no_code.py wire/test_function_ref.py rpc/policy/test_bounds.py"),
    Row("engine", 24, "autograd/graph/graph_task.py autograd/graph/engine.py",
        "autograd/graph/test_graph_task.py autograd/graph/test_backward.py "
        "autograd/graph/test_hooks.py autograd/graph/test_handed_over.py "
        "autograd/graph/test_anomaly.py autograd/test_recomputation.py "
        "autograd/tensor/test_row_sparse.py autograd/test_costs.py autograd/graph/test_halves.py"),
    Row("reducer", 14, "parallel/reducer.py", "parallel/test_reducer.py parallel/test_join.py"),
    Row("algorithms", 12, "collectives/algorithms/*.py",
        "collectives/algorithms/test_algorithms.py collectives/algorithms/test_costs.py "
        "collectives/algorithms/test_packing.py"),
)
LATER_ROWS = (  # 52 mutants
    Row("call life", 24, "rpc/call/call_life.py::CallLife", "rpc/call/test_call_life.py"),
    Row("reader", 7, "transport/io/reader.py",
        "transport/io/test_reader.py transport/io/test_socket_reader.py"),
    Row("roster", 14, "rpc/pool/roster.py", "rpc/pool/test_roster.py rpc/pool/test_pool.py"),
    Row("pulse", 7, "transport/session/liveness.py::Pulse", "transport/session/test_pulse.py"),
)
ROWS = FIRST_ROWS + LATER_ROWS
# fmt: on


# -- changes ----------------------------------------------------------------------------------

OPPOSITE: dict[type[ast.AST], Callable[[], Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip
UNTOUCHED_FIELDS = {"annotation", "returns", "decorator_list"}

Place = ast.expr | ast.stmt


def changes(node: ast.AST, scope: str) -> Iterator[tuple[Place, Place]]:
    """Yields every change of one node, as an old node and a new one."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=right):
            for i, op in enumerate(ops):
                yield (
                    node,
                    ast.Compare(left, [*ops[:i], OPPOSITE[type(op)](), *ops[i + 1 :]], right),
                )
        case ast.BoolOp(op=op, values=values):
            yield node, ast.BoolOp(OPPOSITE[type(op)](), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, operand
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            if not is_text(left) and not is_text(right):
                yield node, ast.BinOp(left, OPPOSITE[type(op)](), right)
        case ast.Constant(value=bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield node, ast.Constant(value + 1)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, ast.Constant(True)
            yield test, ast.Constant(False)
        case ast.Return(value=ast.expr() as result):
            if not (isinstance(result, ast.Constant) and not result.value):  # None is false, too
                yield node, ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
            yield node, ast.Pass()
        case ast.Assign(targets=[ast.Attribute()]) if not scope.endswith("__init__"):
            yield node, ast.Pass()
        case ast.AugAssign(target=target, op=ast.Add() | ast.Sub() as op, value=value):
            yield node, ast.AugAssign(target, OPPOSITE[type(op)](), value)
            yield node, ast.Pass()
        case ast.Break() | ast.Continue():
            yield node, OPPOSITE[type(node)]()


def is_text(node: ast.expr) -> bool:
    """Tells whether a node is a string."""
    literal = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return literal or isinstance(node, ast.JoinedStr)


def is_untouched(node: ast.AST) -> bool:
    """Tells whether a node is left alone with all that it holds: types, text, logs, asserts."""
    match node:
        case (
            ast.If(test=ast.Name("TYPE_CHECKING")) | ast.AnnAssign(annotation=ast.Name("TypeAlias"))
        ):
            return True
        case ast.FunctionDef(name=name):
            return name in {"__repr__", "__str__"}
        case ast.keyword(arg=name):
            return name in {"strict", "daemon"}
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(name)))):
            return name in {"logger", "_logger", "warnings"}
    return isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert)


def walk(
    node: ast.AST, scope: str = "", inside: bool = False
) -> Iterator[tuple[str, Place, Place]]:
    """Yields the qualified name, the old node and the new one of each change in a tree.

    Constants outside of functions are left alone. They are sizes and times that were chosen by
    measurement, and no test holds them to the last digit.
    """
    if is_untouched(node):
        return
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        scope = f"{scope}.{node.name}".lstrip(".")
        inside = inside or not isinstance(node, ast.ClassDef)
    if inside or not isinstance(node, ast.Constant):
        yield from ((scope, old, new) for old, new in changes(node, scope))
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in UNTOUCHED_FIELDS:
                yield from walk(child, scope, inside)


# -- mutants ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file, in which `start` and `end` count bytes."""

    row: str
    file: str
    line: int
    function: str
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        before = " ".join(self.before.split())
        return f"{self.file}:{self.line} {self.function}: {before}  ->  {self.after}"


def files_of(row: Row) -> dict[Path, set[str]]:
    """Returns the files of a row, each with the top-level names that count, none for all."""
    found: dict[Path, set[str]] = {}
    for source in row.sources.split():
        pattern, _, names = source.partition("::")
        paths = set((ROOT / "telegrad").glob(pattern.removeprefix("!")))
        if not paths:
            sys.exit(f"error: row {row.name}: no file is called {pattern}; edit ROWS in {__file__}")
        if pattern.startswith("!"):
            found = {path: names for path, names in found.items() if path not in paths}
        else:
            for path in paths - set((ROOT / "telegrad").rglob("__init__.py")):
                found.setdefault(path, set()).update(filter(None, names.split(",")))
    return found


def draw(row: Row, seed: int, count: int) -> list[Mutant]:
    """Returns the mutants of a row that the seed chooses."""
    drawn: list[tuple[float, Mutant]] = []
    times = Counter[str]()
    for file, names in sorted(files_of(row).items()):
        lines = file.read_bytes().splitlines(keepends=True)
        source = b"".join(lines)
        tree = ast.parse(source)
        if missing := names - {getattr(node, "name", "") for node in tree.body}:
            sys.exit(f"error: row {row.name}: {file} has no {', '.join(missing)}; edit ROWS")
        for scope, old, new in walk(tree):
            if names and scope.split(".")[0] not in names:
                continue
            start = sum(map(len, lines[: old.lineno - 1])) + old.col_offset
            end = sum(map(len, lines[: (old.end_lineno or 0) - 1])) + (old.end_col_offset or 0)
            before, after = source[start:end].decode(), ast.unparse(new)
            if not isinstance(new, ast.stmt | ast.Constant | ast.Name):
                after = f"({after})"
            line = lines[old.lineno - 1].decode().strip()
            identity = "\n".join((scope, line, ast.unparse(old), after))
            times[identity] += 1
            number = random.Random(f"{seed} {times[identity]} {identity}").random()
            name = str(file.relative_to(ROOT))
            mutant = Mutant(row.name, name, old.lineno, scope, start, end, before, after)
            drawn.append((number, mutant))
    drawn.sort(key=lambda pair: pair[0])
    return [mutant for _, mutant in drawn[:count]]


# -- runs -------------------------------------------------------------------------------------


class Run(NamedTuple):
    """One run of a row's tests; `by` is the test that failed, else the end of the output."""

    outcome: str
    seconds: float
    by: str


class Copy:
    """A copy of the checkout, in which one mutant at a time is tested."""

    def __init__(self, place: Path) -> None:
        self._root = place / "tree"
        (place / "tmp").mkdir(parents=True)
        own = {"PYTHONPATH": str(self._root), "TMPDIR": str(place / "tmp"), "PYTHONHASHSEED": "0"}
        self._environment = {**os.environ, **ONE_THREAD, **own}
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():  # else deleted, and not yet committed
                (self._root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self._root / name)
        (self._root / "no_shrinking.py").write_text(NO_SHRINKING)
        program = "import telegrad; print(telegrad.__file__)"
        found = self._start([sys.executable, "-c", program]).communicate()[0].strip()
        if not found.startswith(str(self._root)):
            sys.exit(f"error: tests of the copy in {self._root} would import {found}")

    def test(self, row: Row, *, limit: float | None = None) -> Run:
        """Runs the tests of a row until the first fails, for `limit` seconds at most."""
        options = [
            "-x",
            "-q",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            "-p",
            "no_shrinking",
            "-m",
            "not long",
        ]
        paths = [f"tests/{path}" for path in row.tests.split()]
        command = [sys.executable, "-m", "pytest", *options, f"--timeout={TEST_SECONDS}", *paths]
        began = time.monotonic()
        process = self._start(command)
        try:
            output = process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Run(TIMED_OUT, time.monotonic() - began, "")
        seconds = time.monotonic() - began
        if process.returncode == 0:
            return Run(SURVIVED, seconds, "")
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        outcome = TIMED_OUT if "+ Timeout +" in output else KILLED
        return Run(outcome, seconds, failed[1] if failed else output[-2000:])

    @contextmanager
    def holding(self, mutant: Mutant, number: int) -> Iterator[None]:
        """Has the mutant in the copy for a while.

        Every mutant gets a time of change of its own: Python takes compiled code for that of any
        source with the same size and second.
        """
        file = self._root / mutant.file
        source, changed = file.read_bytes(), file.stat().st_mtime
        file.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
        os.utime(file, (changed, changed + number))
        try:
            yield
        finally:
            file.write_bytes(source)
            os.utime(file, (changed, changed))

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=self._root, env=self._environment, start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


def run_all(plan: list[tuple[Row, Mutant]], jobs: int, place: Path) -> dict[Mutant, Run]:
    """Runs every mutant, `jobs` at once, after the unmutated tests of each row."""
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for i in range(jobs):
        copies.put(Copy(place / str(i)))
    limits: dict[Row, float] = {}

    def test(row: Row, mutant: Mutant | None = None, number: int = 0) -> Run:
        copy = copies.get()
        try:
            with copy.holding(mutant, number) if mutant else nullcontext():
                found = copy.test(row, limit=limits.get(row))
        finally:
            copies.put(copy)
        say(f"{found.outcome:9} {found.seconds:5.1f} s  {mutant or f'{row.name}, unmutated'}")
        return found

    pool = ThreadPoolExecutor(jobs)
    try:
        rows = list(dict.fromkeys(row for row, _ in plan))
        for row, found in zip(rows, pool.map(test, rows), strict=True):
            if found.outcome != SURVIVED:
                sys.exit(f"error: row {row.name}: tests fail without a mutant: {found.by}")
            limits[row] = SLOWER * found.seconds + SPARE_SECONDS
        runs = pool.map(test, *zip(*plan, strict=True), range(1, len(plan) + 1))
        return {mutant: run for (_, mutant), run in zip(plan, runs, strict=True)}
    finally:
        pool.shutdown(cancel_futures=True)


# -- reports ----------------------------------------------------------------------------------


def say(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def count(runs: dict[Mutant, Run]) -> dict[str, dict[str, float]]:
    """Counts outcomes of each row and in total; what timed out is killed, too."""
    found: dict[str, dict[str, float]] = {}
    rows = [*dict.fromkeys(mutant.row for mutant in runs)]
    groups = {name: {name} for name in rows}
    groups["first rows"] = {row.name for row in FIRST_ROWS if row.name in rows}
    groups["total"] = {*rows}
    for name, members in groups.items():
        outcomes = Counter(run.outcome for mutant, run in runs.items() if mutant.row in members)
        if not (total := outcomes.total()):
            continue  # none of the first rows was asked for
        counts = {"mutants": total, TIMED_OUT: outcomes[TIMED_OUT], SURVIVED: outcomes[SURVIVED]}
        found[name] = counts | {"share": 1 - outcomes[SURVIVED] / total}
    return found


def report(runs: dict[Mutant, Run], rows: dict[str, dict[str, float]]) -> None:
    """Prints the mutants that no failing test killed, then the table of rows."""
    for outcome in (TIMED_OUT, SURVIVED):
        found = [f"  {mutant}" for mutant, run in runs.items() if run.outcome == outcome]
        say("\n".join([f"\n{outcome}: {len(found)}", *found]))
    say(f"\n{'row':12}  mutants  timed out  survived  killed")
    for name, row in rows.items():
        numbers = f"{row['mutants']:8} {row[TIMED_OUT]:10} {row[SURVIVED]:9} {row['share']:7.1%}"
        say(f"{name:12} {numbers}")


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(description="tests mutants and prints the share killed")
    add = parser.add_argument
    add("--row", nargs="+", choices=names, default=names, help="only these")
    add("--count", type=int, help="mutants of each row, instead of the table's number")
    add("--seed", type=int, default=SEED, help="draws other mutants")
    add("--jobs", type=int, default=2, help="mutants tested at once")
    add("--json", type=Path, help="writes all results to this file")
    add("--at-least", type=float, metavar="SHARE", help="exit code 1 if fewer are killed")
    add("--list", action="store_true", help="prints the mutants and tests none")
    return parser.parse_args()


def main() -> int:
    """Runs the command; returns its exit code."""
    given = arguments()
    rows = [row for row in ROWS if row.name in given.row]
    plan = [(r, mutant) for r in rows for mutant in draw(r, given.seed, given.count or r.mutants)]
    if given.list:
        say("\n".join(f"{row.name:12} {mutant}" for row, mutant in plan))
        return 0
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, resource.RLIM_INFINITY))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as place:
        runs = run_all(plan, given.jobs, Path(place))
    found, seconds = count(runs), round(time.monotonic() - began)
    report(runs, found)
    say(f"\n{seconds} s with {given.jobs} jobs, seed {given.seed}")
    if given.json is not None:
        each = [asdict(mutant) | run._asdict() for mutant, run in runs.items()]
        whole = {"seed": given.seed, "seconds": seconds, "rows": found, "mutants": each}
        given.json.write_text(json.dumps(whole, indent=1) + "\n")
    return int(given.at_least is not None and found["total"]["share"] < given.at_least)


if __name__ == "__main__":
    sys.exit(main())
