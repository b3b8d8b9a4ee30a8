"""Which script a program has, as its local workers import it."""

from __future__ import annotations

import importlib.machinery
import socket
import sys
import sysconfig
import types
from pathlib import Path

import pytest

from telegrad.launch import local_workers as script
from telegrad.launch.log_relay import LineChannel


def main_module(path: str | None, name: str = "") -> types.ModuleType:
    module = types.ModuleType("__main__")
    if path is not None:
        module.__file__ = path
    module.__spec__ = importlib.machinery.ModuleSpec(name, None) if name else None
    return module


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        ("train.py", "", "init_main_from_path"),
        ("train.py", "app.train", "init_main_from_name"),
        ("train.py", "app.__main__", ""),
        ("gone.py", "", ""),
        (None, "", ""),
    ],
)
def test_what_the_script_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None, name: str, expected: str
) -> None:
    (tmp_path / "train.py").touch()
    path = None if file is None else str(tmp_path / file)
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    monkeypatch.setitem(sys.modules, "__main__", main_module(path, name))
    what = path if expected == "init_main_from_path" else name
    assert script.own_script() == ({expected: what} if expected else {})


def test_an_installed_program_is_no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = next(Path(sysconfig.get_path("scripts")).glob("pytest"))
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    monkeypatch.setitem(sys.modules, "__main__", main_module(str(tool)))
    assert script.own_script() == {}
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    monkeypatch.setitem(sys.modules, "__main__", main_module(pytest.__file__))
    assert script.own_script() == {}


def test_a_channel_ends_when_either_end_closes() -> None:
    for closer in (0, 1):
        ends = [LineChannel(each) for each in socket.socketpair()]
        assert ends[0].send("hello", n=1, text="a\nb")
        assert next(iter(ends[1].messages())) == {"verb": "hello", "n": 1, "text": "a\nb"}
        ends[closer].close()
        assert list(ends[0].messages()) == []
        assert not ends[closer].send("too late")
        ends[1 - closer].close()
