"""What `make bench` and `make profile` write, from reports that are made up; nothing is measured."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"

Load = Callable[[str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Imports a module of the benchmarks, which are programs and no package."""
    monkeypatch.syspath_prepend(BENCHMARKS / "peers")
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def report(**figures: Any) -> dict[str, Any]:
    return {"version": "1.0", "figures": figures}


def call(p50: float) -> dict[str, Any]:
    return report(idle={"call": {"p50": p50, "p99": 2 * p50}})


# -- what is measured --------------------------------------------------------------------------------


def test_every_row_has_a_program_for_each_of_its_peers(load: Load) -> None:
    parts, bench, measure = load("parts"), load("bench"), load("measure")
    for row in parts.ROWS:
        assert bench.parse(["--only", row.part]).only == [row.part]
        part = parts.PARTS[row.part]
        arguments = dict(part.plans)[row.plan]
        named = [row.gate.peer, row.gate.ours] if row.gate else []
        assert {"telegrad", *named} <= part.programs.keys()
        if row.where[0] == "idle":
            assert row.where[1] in arguments[arguments.index("--idle") :]
            assert row.where[1] in measure.FIGURES
        if "--figures" in arguments:
            assert row.where[0] in arguments[arguments.index("--figures") :]
    shown = [name for names in load("report").TABLES for name in names]
    assert sorted(shown) == sorted({row.part for row in parts.ROWS})
    for part in parts.PARTS.values():
        for program in part.programs.values():
            assert (BENCHMARKS / "peers" / program).exists()


def test_the_programs_take_the_arguments_of_their_plans(load: Load) -> None:
    parts, plans = load("parts"), {name: load(name).plan for name in ("measure", "passes")}
    for name, reader in (
        ("calls", "measure"),
        ("grpc", "measure"),
        ("hosts", "measure"),
        ("step", "passes"),
    ):
        for _, arguments in parts.PARTS[name].plans:
            told = plans[reader]([*arguments, "--seconds", "0.5"])
            assert told.workers == 2
            assert told.seconds == 0.5
    assert plans["measure"](parts.PARTS["calls"].plans[0][1]).busy == ["call"]
    assert plans["measure"](parts.PARTS["hosts"].plans[0][1]).busy == []
    over_grpc = [plans["measure"](parts.PARTS[name].plans[0][1]).grpc for name in ("calls", "grpc")]
    assert over_grpc == [False, True]
    collectives, ddp = load("collectives"), load("ddp")
    for name in ("collectives", "ddp", "collectives-hosts"):
        figures = ddp.FIGURES if name == "ddp" else collectives.FIGURES
        for plan, arguments in parts.PARTS[name].plans:
            told = collectives.plan([*arguments, "--seconds", "0.5"], figures)
            assert told.ranks == (4 if plan == "4 ranks" else 2)
            assert told.rank is None
    place = ["--rank", "1", "--meet", "tcp://10.0.0.1:29500", "--insecure"]  # as hosts.py adds them
    assert collectives.plan(place).insecure


def test_each_tree_runs_its_own_programs_on_its_own_package(load: Load, tmp_path: Path) -> None:
    quick, run = load("quick"), load("programs").run
    trees = {quick.BASE: tmp_path / "base", quick.NOW: tmp_path / "now"}
    for place in trees.values():
        (place / "telegrad").mkdir(parents=True)
        (place / "telegrad" / "__init__.py").touch()
        (place / "benchmarks" / "peers").mkdir(parents=True)
        program = place / "benchmarks" / "peers" / "where.py"
        program.write_text("import json, telegrad\nprint(json.dumps({'at': telegrad.__file__}))\n")
    ran = [quick.run_one(trees, run, name, "where.py", []) for name in trees]
    assert ran == [{"at": str(place / "telegrad" / "__init__.py")} for place in trees.values()]


def test_make_bench_installs_every_peer_at_a_pinned_version(load: Load) -> None:
    line = next(
        line
        for line in (ROOT / "Makefile").read_text().splitlines()
        if "peers.sh" in line and "plots" in line
    )
    peers = {peer for part in load("parts").PARTS.values() for peer in part.programs}
    for peer in (peers - {*load("machine").HERE, *load("hosts").VARIANTS}) | {"plots"}:
        assert f" {peer}" in line
        wanted = (BENCHMARKS / "peers" / f"{peer}.txt").read_text().splitlines()
        assert all("==" in each for each in wanted if not each.startswith("#"))


def test_rounds_begin_with_another_peer_each_and_end_when_the_time_is_over(load: Load) -> None:
    ran: list[tuple[str, tuple[str, ...]]] = []

    def start(peer: str, program: str, arguments: Sequence[str]) -> dict[str, Any]:
        ran.append((peer, tuple(arguments)))
        return {"error": "broke"} if peer == "b" else call(1.0)

    rounds = load("rounds")
    plans = [("plan", ["--workers", "2"])]
    found = rounds.measure({"a": "x", "b": "y"}, plans, rounds=2, seconds=0.5, start=start)
    assert [peer for peer, _ in ran] == ["a", "b", "b", "a"]
    assert ran[0][1] == ("--workers", "2", "--seconds", "0.5")
    assert list(rounds.errors(found)) == ["b, plan: broke"]
    ran.clear()
    rounds.measure({"a": "x"}, plans * 2, rounds=5, seconds=0.5, start=start, until=0.0)
    assert len(ran) == 2


@pytest.mark.parametrize(
    ("status", "output", "errors", "found"),
    [
        (0, 'noise\n{"version": "1"}\n', "", {"version": "1"}),
        (0, "no report\n", "", {"error": "it ended without a report"}),
        (0, "", "", {"error": "it ended without a report"}),
        (1, "", "Traceback\nValueError: no\n", {"error": "ValueError: no"}),
        (-9, "", "", {"error": "it ended with status -9"}),
    ],
)
def test_what_a_program_that_has_ended_comes_to(
    load: Load, status: int, output: str, errors: str, found: dict[str, Any]
) -> None:
    assert load("programs").outcome(status, output, errors) == found


class Ranks:
    """Two ranks, of which the other one takes a second for everything; see collectives.Library."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def zeros(self, n: int) -> Any:
        return np.zeros(n, np.float32)

    def resident(self, n: int) -> Any:
        del n

    def all_reduce(self, array: Any) -> None:
        self.ran.append("all_reduce")
        if np.all(array == 1):  # what the first rank begins with
            array += 2
        else:
            array[len(array) // 2 :] += 1  # the times of the other one

    def barrier(self) -> None:
        self.ran.append("barrier")


def test_a_figure_of_ranks_is_that_of_the_slowest(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    collectives, ranks = load("collectives"), Ranks()
    monkeypatch.setattr(collectives, "SIZES", {"4 B": 1, "1 MiB": 2, "64 MiB": 4})
    told = collectives.plan(["--rank", "0", "--figures", "resident 64 MiB", "all_reduce 64 MiB"])
    found = collectives.measure(ranks, told)
    assert list(found) == ["all_reduce 64 MiB", "resident 64 MiB"]
    assert found["resident 64 MiB"] == found["all_reduce 64 MiB"]  # it has none
    assert found["all_reduce 64 MiB"] == {"p50": 1e6, "samples": collectives.SAMPLES}
    assert ranks.ran.count("barrier") == collectives.SAMPLES + 2  # and two warm-ups
    assert collectives.slowest(ranks, told, [3.0, 0.5]) == [3.0, 1.0]


def test_ranks_that_find_a_wrong_sum_report_nothing(load: Load) -> None:
    collectives = load("collectives")
    told = collectives.plan(["--rank", "0", "--ranks", "3", "--figures", "all_reduce 4 B"])
    with pytest.raises(RuntimeError, match="all_reduce 4 B: an array does not hold 6 everywhere"):
        collectives.measure(Ranks(), told)


@pytest.mark.parametrize(("least", "kept", "worst"), [(False, 1.0, 1.32), (True, 1.3, 1.08)])
def test_a_gate_that_is_missed_may_get_a_tenth_worse(
    load: Load, least: bool, kept: float, worst: float
) -> None:
    gate = load("parts").Gate("torch", kept, least=least)
    assert gate.met(kept)
    assert not gate.met(1.2)
    assert gate.bound(1.2) == pytest.approx(worst)


# -- the tables ----------------------------------------------------------------------------------------


def test_lines_are_written_between_the_marks_and_nothing_else_changes(
    load: Load, tmp_path: Path
) -> None:
    writer, document = load("report"), tmp_path / "a.md"
    begin, end = writer.marked("figures")
    document.write_text(f"before\n\n{begin}\n\nold\n\n{end}\n\nbehind\n")
    for lines in (["| a |", "| b |"], ["new"]):
        writer.replace(document, "figures", lines)
        written = "\n".join(lines)
        assert document.read_text() == f"before\n\n{begin}\n\n{written}\n\n{end}\n\nbehind\n"
    for broken in (f"{begin} alone", f"{end}{begin}", f"{begin}{begin}{end}"):
        document.write_text(broken)
        with pytest.raises(ValueError, match="once each"):
            writer.replace(document, "figures", ["new"])
        assert document.read_text() == broken


# -- beside a commit --------------------------------------------------------------------------------------


def test_a_row_that_is_more_than_a_tenth_slower_is_marked(load: Load) -> None:
    quick, parts = load("quick"), load("parts")
    plan, jobs = "2 workers", "3 workers"
    found = {
        "calls": {
            quick.BASE: {plan: [call(100.0), call(80.0), call(100.0)]},
            quick.NOW: {plan: [call(90.0), call(96.0), call(130.0)]},
        },
        "jobs": {
            quick.BASE: {jobs: [report(batch={"per_second": 1000.0})]},
            quick.NOW: {jobs: [report(batch={"per_second": 950.0})]},
        },
    }
    lines = list(quick.lines(found, "abc1234"))
    assert lines[0] == "|  | abc1234 | now | ratio | lowest to highest |  |"
    assert "| empty `rpc_sync`, p50, us | 100 | 96.0 | 1.20 | 0.90 to 1.30 | slower |" in lines
    assert "| batched updates, images/s | 1,000 | 950 | 0.95 | 0.95 to 0.95 |  |" in lines
    assert "| echo 1 MiB, ms | – | – | – | – | not measured |" in lines
    rows = {row.label: row for row in parts.ROWS}
    assert quick.slower(rows["batched updates, images/s"], 0.89)
    assert not quick.slower(rows["batched updates, images/s"], 1.5)
    assert not quick.slower(rows["echo 1 MiB, ms"], 1.09)


# -- the whole run ---------------------------------------------------------------------------------------


def test_the_json_holds_machine_versions_rounds_and_who_is_missing(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = load("bench")

    def present(peers: Sequence[str], target: str) -> tuple[list[str], dict[str, str]]:
        return [peer for peer in peers if peer != "ray"], {"ray": "it is not installed"}

    def measure(programs: dict[str, str], plans: Any, **_: Any) -> Any:
        return {peer: {plans[0][0]: [call(10.0)]} for peer in programs}

    def no_hosts() -> Any:
        raise bench.CannotError("there is no `ip` command")

    monkeypatch.setattr(bench, "present", present)
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "two_hosts", no_hosts)
    result = json.loads(json.dumps(bench.run_all(bench.parse(["--only", "calls", "hosts"]))))
    keys = ["machine", "missing", "parts", "settings", "skipped", "versions", "words"]
    assert sorted(result) == keys
    assert {"cpu", "cores", "kernel", "python", "date"} <= result["machine"].keys()
    assert result["settings"] == {"rounds": 3, "seconds": 1.0, "cores": 2}
    assert result["versions"]["telegrad"] == "1.0"
    assert list(result["parts"]) == ["calls"]
    assert "ray" not in result["parts"]["calls"]
    lines = bench.summary(result)
    assert "Ray is not measured: it is not installed." in lines
    assert "Not run, hosts: there is no `ip` command." in lines
    assert any(line.startswith("| empty `rpc_sync`, p50, us | 10.0 |") for line in lines)


def test_tables_are_rendered_from_the_json_alone(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, docs = load("bench"), tmp_path / "docs"
    docs.mkdir()
    for document in (README, PERFORMANCE):
        (tmp_path / document.relative_to(ROOT)).write_text(document.read_text())
    for _, plot, _ in bench.PLOTS:
        if f"({plot})" in PERFORMANCE.read_text():
            (docs / plot).touch()
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "DOCS", docs)
    monkeypatch.setattr("sys.argv", ["bench.py", "--render", str(ROOT / "docs" / "bench.json")])
    bench.main()
    assert (tmp_path / "README.md").read_text() == README.read_text()
    assert (docs / "performance.md").read_text() == PERFORMANCE.read_text()


def test_the_readme_shows_five_rows_and_performance_has_all_gates(load: Load) -> None:
    writer, parts = load("report"), load("parts")
    begin, end = writer.marked("figures")
    shown, gates = (
        document.read_text().partition(begin)[2].partition(end)[0]
        for document in (README, PERFORMANCE)
    )
    rows = [line for line in shown.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows[1:]] == [*writer.README_LABELS]
    assert len(rows[1:]) == 5
    assert "gate" not in README.read_text()
    for row in parts.ROWS:
        (line,) = (line for line in gates.splitlines() if line.startswith(f"| {row.label} |"))
        assert row.gate is None or str(row.gate) in line


def test_other_numbers_than_telegrads_are_told(load: Load) -> None:
    step = {"values": [1.0, 2.0]}
    other = {"values": [1.0, 2.1]}
    found = {"telegrad": {"p": [report(step=step)]}, "torch": {"p": [report(step=step)]}}
    assert not list(load("bench").differing({"step": found}))
    found["torch"]["p"].append(report(step=other))
    (told,) = load("bench").differing({"step": found})
    assert told == "step, p, step: [1.0, 2.0] and, torch, [1.0, 2.1]"


# -- the profile -----------------------------------------------------------------------------------------


def test_every_function_of_the_path_is_there(load: Load) -> None:
    for point in load("call_points").PATH:
        module, _, qualname = point.function.partition(":")
        owner, _, name = qualname.rpartition(".")
        assert callable(
            getattr(getattr(importlib.import_module(f"telegrad.{module}"), owner), name)
        )


def test_a_call_is_followed_from_point_to_point_past_what_others_left_behind(load: Load) -> None:
    points = load("call_points")
    path = [
        points.Point(points.CALLER, "encode", "a:A.f", "end"),
        points.Point(points.CALLEE, "read", "a:A.g", "begin"),
        points.Point(points.CALLEE, "never", "a:A.h", "begin"),
        points.Point(points.CALLER, "decode", "a:A.f", "end"),
    ]
    events = {
        points.CALLER: [(5, "a:A.f end"), (12, "a:A.f end"), (40, "a:A.f end"), (70, "a:A.f end")],
        points.CALLEE: [(11, "a:A.g begin"), (30, "a:A.g begin"), (31, "a:A.g begin")],
    }
    assert points.walk(10, 50, events, path) == [12, 30, None, 40]


def test_what_overlaps_ends_where_the_other_side_goes_on(load: Load) -> None:
    points = load("call_points")
    path = [
        points.Point(points.CALLER, "reach", "a:A.put", "begin"),
        points.Point(points.CALLER, "write", "a:A.put", "end", overlaps=True),
        points.Point(points.CALLEE, "wake-up", "a:A.read", "begin"),
    ]
    events = {
        points.CALLER: [(10, "a:A.put begin"), (60, "a:A.put end")],
        points.CALLEE: [(40, "a:A.read begin")],
    }
    assert points.walk(0, 90, events, path) == [10, 40, 40]
    events[points.CALLEE] = [(70, "a:A.read begin")]
    assert points.walk(0, 90, events, path) == [10, 60, 70]


def test_the_phases_of_a_profile_add_up_to_the_call(load: Load) -> None:
    profile, points = load("call_profile"), load("call_points")
    first, last = points.PATH[0], points.PATH[-1]
    skipped = " + ".join(p.phase for p in points.PATH[1:] if p.over in ("", "local"))
    events: dict[str, list[tuple[int, str]]] = {points.CALLER: [], points.CALLEE: []}
    spans = []
    for began in (1_000_000, 2_000_000, 3_000_000):
        spans.append((began, began + 90_000))
        events[points.CALLER] += [(began + 20_000, first.event), (began + 70_000, last.event)]
    before, after = [profile.Thread("loop", 1_000, 2)], [profile.Thread("loop", 31_000, 8)]
    run = profile.Run("local", spans, events, {points.CALLER: (before, after)}, [])
    assert profile.phases(run, 1_000.0) == [
        (points.CALLER, first.phase, 19.0),
        (points.CALLER, skipped, 49.0),
        (points.CALLER, points.LAST, 19.0),
    ]
    lines = list(profile.lines_of(run, run, 0.0))
    assert lines[0] == "An empty call over `local`: 90 us, median of "
    assert f"| caller | {first.phase} | 20.0 | 22% |" in lines
    assert "| caller | all of these | 90.0 | 100% |" in lines
    assert "| caller | loop | 10.0 | 2.00 |" in lines
