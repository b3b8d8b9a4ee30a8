"""Functions of the main program can be called, however that was started."""

from __future__ import annotations

import zipapp
from pathlib import Path

import pytest

from tests.conftest import Programs

SOURCE = """
from dataclasses import dataclass
from telegrad import rpc

@dataclass
class Item:
    x: int

class Mistake(Exception):
    pass

def work(item):
    if item.x < 0:
        raise Mistake("negative")
    return Item(item.x + 1)

def run():  # cProfile has a function of this name, too
    return "own"

def main():
    with rpc.init_rpc() as agent:
        if agent.rank == 0:
            print(rpc.rpc_sync("worker1", work, (Item(1),)), rpc.rpc_sync("worker1", run))
            try:
                rpc.rpc_sync("worker1", work, (Item(-1),))
            except Mistake as error:
                print("Mistake", error)

if __name__ == "__main__":
    main()
"""
CONSOLE_SCRIPT = """
import sys
from app.__main__ import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the program as a script, a module, a package and two archives."""
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "console-script").write_text(CONSOLE_SCRIPT)
    for folder in (tmp_path, tmp_path / "flat", tmp_path / "deep"):
        package = folder / "app" if folder.name != "flat" else folder
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(SOURCE)
    zipapp.create_archive(tmp_path / "flat", tmp_path / "flat.pyz")
    zipapp.create_archive(tmp_path / "deep", tmp_path / "deep.pyz", main="app.__main__:main")
    return tmp_path


FORMS = {
    "profiled": "-m cProfile -o {}/prof {}/train.py",
    "debugged": "-m pdb -c continue -c quit {}/train.py",
    "by a console script": "{}/console-script",
    "of an archive with a function to start": "{}/deep.pyz",
}
MORE = {
    "a profiled module": "-m cProfile -o {}/prof -m train",
    "profiled in Python": "-m profile -o {}/prof {}/train.py",
    "traced": "-m trace --count -C {}/coverage {}/train.py",
    "a debugged module": "-m pdb -c continue -c quit -m train",
    "a package": "-m app",
    "an archive": "{}/flat.pyz",
    "a directory": "{}/flat",
}


def check(programs: Programs, place: Path, form: str) -> None:
    words = form.replace("{}", str(place)).split()
    output = programs.run(
        ["telegrad", "run", "--nproc-per-node", "2", *words],
        env={"PYTHONPATH": f"{Path.cwd()}:{place}"},
        executed=True,
    )
    assert "[0] Item(x=2) own" in output
    assert "[0] Mistake negative" in output


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.long
def test_its_functions_can_be_called(programs: Programs, place: Path, form: str) -> None:
    check(programs, place, form)


@pytest.mark.long
@pytest.mark.parametrize("form", MORE.values(), ids=MORE)
def test_its_functions_can_be_called_in_more_forms(
    programs: Programs, place: Path, form: str
) -> None:
    check(programs, place, form)


STARTS = """
from telegrad import launch, parallel, rpc

def work(*_):
    return 1

if __name__ == "__main__":
    with rpc.init_rpc("me"), launch.LocalWorkers(1):
        for start in (lambda: rpc.rpc_sync(1, work), lambda: parallel.spawn(work)):
            try:
                print(start())
            except TypeError as error:
                print(error)
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [(["-m", "cProfile", "-o", "{}/prof", "{}/starts.py"], "1"),
     (["-m", "starts"], "work is defined in a __main__.py, which local workers cannot import")],
)  # fmt: skip
@pytest.mark.few(1)
def test_processes_that_it_starts(
    programs: Programs, tmp_path: Path, words: list[str], told: str
) -> None:
    (tmp_path / "starts.py").write_text(STARTS)
    if told != "1":
        (tmp_path / "starts.py").rename(tmp_path / "__main__.py")
        (tmp_path / "starts").mkdir()
        (tmp_path / "__main__.py").rename(tmp_path / "starts" / "__main__.py")
    output = programs.run(
        ["python", *(word.replace("{}", str(tmp_path)) for word in words)],
        env={"PYTHONPATH": f"{Path.cwd()}:{tmp_path}", "TELEGRAD_TOKEN": "a token of the tests"},
        executed=True,
        limit=120.0,  # four interpreters, one after the other
    )
    assert output.count(told) == (2 if told != "1" else 1), output
    if told == "1":
        assert "None" in output  # of spawn
