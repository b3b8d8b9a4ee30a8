"""Programs and tables of pages that have no test file of their own: they do what the pages show."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.conftest import Programs, unused_port

DOCS = Path(__file__).parents[2] / "docs"


def programs_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.mark.long
def test_training_goes_on_from_a_checkpoint(programs: Programs) -> None:
    (program,) = programs_of("checkpoints.md")
    script = programs.script(program, "resume.py")
    launch: list[str | Path] = ["telegrad", "run", "--nproc-per-node", "2", script]
    parts = [programs.run([*launch, epochs]) for epochs in ("3", "5")]
    script.with_name("resume.safetensors").unlink()
    whole = programs.run([*launch, "5"])
    shown = re.findall(r"^    (\[0\] .*)$", (DOCS / "checkpoints.md").read_text(), re.MULTILINE)
    for output in ("".join(parts), whole):
        assert [line for line in output.splitlines() if line.startswith("[0]")] == shown


@pytest.mark.long
def test_processes_take_tasks_from_a_store(programs: Programs) -> None:
    (program,) = programs_of("stores.md")
    output = programs.run(["python", programs.script(program, "tasks.py")])
    assert output == "sum: 6\n"
    assert f"    {output}" in (DOCS / "stores.md").read_text()


@pytest.mark.long
def test_a_web_service_has_its_workers_compute(programs: Programs) -> None:
    scoring, service = programs_of("web-service.md")
    programs.script(scoring, "scoring.py")
    folder = programs.script(service, "service.py").parent
    server = programs.start(
        ["python", "-m", "uvicorn", "service:app", "--app-dir", folder, "--port", "0"],
        preload=["numpy"],
    )
    output = server.wait_for("Uvicorn running on ")
    (url,) = re.findall(r"running on (http://[\d.:]+)", output)
    request = urllib.request.Request(
        f"{url}/score", b"[1, 2, 3]", {"content-type": "application/json"}
    )
    before = children_of(server.process.pid)
    for lost in ([], before[-1:]):  # a lost worker is replaced, and no client hears of it
        for pid in lost:
            os.kill(pid, signal.SIGKILL)
        for _ in range(3):  # each worker is asked
            with urllib.request.urlopen(request, timeout=40.0) as answer:
                assert answer.read().decode() in (DOCS / "web-service.md").read_text()
    assert len(children_of(server.process.pid)) == len(before)
    server.process.send_signal(signal.SIGINT)
    assert "Application shutdown complete" in server.wait(code=None)


def children_of(process: int) -> list[int]:
    """Returns the processes that a process has started and that still run, the newest last.

    Args:
        process: A process id.
    """
    threads = Path(f"/proc/{process}/task").iterdir()
    children = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
    return [
        pid for pid in sorted(children) if "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    ]


# -- other launchers -----------------------------------------------------------------------------


def commands_of(page: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.mark.long
def test_a_launcher_of_ones_own_starts_workers(programs: Programs) -> None:
    hello, *_ = programs_of("launchers.md")
    *_, loop = commands_of("launchers.md")
    output = run_in_shell(programs, hello, loop)
    # Two processes print: the end of one's line may come after the other's line.
    greetings = re.findall(r"worker\d greets worker\d", output)
    assert sorted(greetings) == ["worker0 greets worker1", "worker1 greets worker0"]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_mpirun_starts_workers(programs: Programs) -> None:
    hello, *_ = programs_of("launchers.md")
    mpirun, _ = commands_of("launchers.md")
    options = "--allow-run-as-root --oversubscribe"
    line = mpirun.replace("mpirun", f"mpirun {options}").replace("=HOST", "=127.0.0.1")
    assert sorted(run_in_shell(programs, hello, line).split()[::3]) == [
        "worker0",
        "worker1",
        "worker2",
    ]


def run_in_shell(programs: Programs, program: str, line: str) -> str:
    """Runs a line that starts `hello.py`; its port is replaced by a free one."""
    script = programs.script(program, "hello.py")
    line = line.replace("python hello.py", f"{sys.executable} {script}")
    line = line.replace("29500", str(unused_port()))
    env = {"TELEGRAD_TOKEN": "a token only of the tests", "PYTHONPATH": str(Path.cwd())}
    return programs.run(["sh", "-c", line], env=env, executed=True)


@pytest.mark.long
@pytest.mark.timeout(300)  # Ray starts a dozen processes
@pytest.mark.parametrize(("package", "which"), [("ray", 1), ("distributed", 2)])
def test_workers_live_in_other_clusters(programs: Programs, package: str, which: int) -> None:
    pytest.importorskip(package)
    pages = programs_of("ray-and-dask.md")
    programs.script(pages[0], "work.py")
    script = programs.script(pages[which].replace("29500", str(unused_port())), "cluster.py")
    line = f"cd {script.parent} && {sys.executable} cluster.py"
    env = {"PYTHONPATH": str(Path.cwd())}
    output = programs.run(["sh", "-c", line], env=env, executed=True, limit=300.0)
    assert output.endswith("[3.0, 6.0]\n")


def test_the_work_of_a_cluster_runs_in_any_two_processes(programs: Programs) -> None:
    """Without Ray and Dask, which the tests do not install."""
    programs.script(programs_of("ray-and-dask.md")[0], "work.py")
    address = f"127.0.0.1:{unused_port()}"
    script = programs.script(
        f"import os, work\nprint(work.run(int(os.environ['RANK']), 2, {address!r}))\n"
    )
    found = [program.wait() for program in programs.ranks(script, 2)]
    assert found == ["3.0\n", "6.0\n"]


# -- operations ----------------------------------------------------------------------------------

VARIABLE = re.compile(
    r"(TELEGRAD|GRPC|SLURM|XDG|MASTER|OMPI|MV2|PMIX?|PALS|FLUX|JSM|HOROVOD|PBS|AWS|LWS|JOB)_[A-Z_]+"
    r"|TORCHELASTIC_[A-Z_]+|[A-Z]+_NUM_THREADS|(LOCAL_)?(RANK|WORLD_SIZE)"
)


@pytest.mark.long
def test_the_page_of_operations_lists_every_variable_that_the_code_names() -> None:
    words = set()
    for path in (DOCS.parent / "telegrad").rglob("*.py"):
        if "testing" not in path.parts:
            constants = (each for each in ast.walk(ast.parse(path.read_text())))
            words |= {each.value for each in constants if isinstance(each, ast.Constant)}
    named = {word for word in words if isinstance(word, str) and VARIABLE.fullmatch(word)}
    written = re.findall(r"`(\w+)`", (DOCS / "operations.md").read_text())
    assert {word for word in written if VARIABLE.fullmatch(word)} == named
