"""The programs of docs/checkpoints.md, docs/stores.md and docs/web-service.md print what the pages show."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from pathlib import Path

from tests.conftest import Programs

DOCS = Path(__file__).parents[1] / "docs"


def programs_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


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


def test_processes_take_tasks_from_a_store(programs: Programs) -> None:
    (program,) = programs_of("stores.md")
    output = programs.run(["python", programs.script(program, "tasks.py")])
    assert output == "sum: 6\n"
    assert f"    {output}" in (DOCS / "stores.md").read_text()


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
