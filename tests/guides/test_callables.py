"""Holds docs/callables.md to the code: its program prints what it shows, its tables say all."""

from __future__ import annotations

import json
import re
from pathlib import Path

from telegrad import rpc
from telegrad.rpc.seams import CallablePolicy
from telegrad.transport.security import audit
from tests.conftest import Programs

GUIDE = (Path(__file__).parents[2] / "docs" / "callables.md").read_text()


def test_the_program_of_the_guide_prints_what_it_shows(programs: Programs) -> None:
    found = re.search(r"```python\n(.*?)```\n+    \$ [^\n]*\n((?:    [^\n]*\n)+)", GUIDE, re.DOTALL)
    assert found
    shown = [line.strip() for line in found[2].splitlines()]
    script = programs.script(found[1], "guarded.py")
    output = programs.run(["telegrad", "run", "--nproc-per-node", "2", script])
    lines = output.splitlines()
    assert [line for line in lines if line.startswith("[0]")] == shown
    told = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("[1]")]
    assert [each["function"] for each in told] == ["__main__:reset_everything", "os:getenv"]
    sample = re.search(r"    (\{\"event\".*?\})\n\n", GUIDE, re.DOTALL)
    assert sample
    assert list(json.loads(sample[1])) == list(told[1])
    assert json.loads(sample[1])["words"].partition(": ")[0] == told[1]["words"].partition(": ")[0]


def test_the_policy_of_the_guide_decides() -> None:
    found = re.search(r"```python\n(def policy.*?\n\n)\nrpc\.init_rpc", GUIDE, re.DOTALL)
    assert found
    names: dict[str, object] = {"rpc": rpc}
    exec(compile(found[1], "docs/callables.md", "exec"), names)
    policy = names["policy"]
    assert callable(policy)
    assert policy(rpc.WorkerInfo("trainer0", 0, 1), "mymodule", "Model.step") is True
    assert policy(rpc.WorkerInfo("other", 1, 2), "mymodule", "Model.step") is False
    CallablePolicy(policy)


def test_the_guide_names_every_event() -> None:
    constants = {value for name, value in vars(audit).items() if name.isupper()}
    events = {value for value in constants if isinstance(value, str)}
    assert events == set(re.findall(r"^\| `(\w+\.\w+)` \|", GUIDE, re.MULTILINE))
    for number in (audit.BURST, f"{audit.MOST_WAITING:,}"):
        assert f" {number} " in GUIDE
