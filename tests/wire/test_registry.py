"""A class has one codec: another one is told, the same once more is none."""

from __future__ import annotations

import types

import pytest

from telegrad.errors import DuplicateNameError
from telegrad.wire import register_type
from tests.wire.samples import round_trip


class Interval:
    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high


def take_apart(interval: Interval) -> tuple[float, float]:
    return interval.low, interval.high


def put_together(ends: tuple[float, float]) -> Interval:
    return Interval(*ends)


def module(name: str, source: str) -> types.ModuleType:
    """Returns a module that can be run again, as a cell of a notebook is."""
    made = types.ModuleType(name)
    exec(compile(source, name, "exec"), made.__dict__)
    return made


def test_the_same_once_more_is_none() -> None:
    for _ in range(3):
        register_type(Interval, encode=take_apart, decode=put_together)
        assert take_apart(round_trip(Interval(1, 2))) == (1, 2)

    class Local:
        pass

    for _ in range(2):  # two functions each, of one line
        register_type(Local, encode=lambda _: 1, decode=lambda _: Local())


def test_another_codec_is_told() -> None:
    register_type(Interval, encode=take_apart, decode=put_together)
    with pytest.raises(DuplicateNameError, match=r"test_registry:Interval has another codec"):
        register_type(Interval, encode=lambda v: [v.low, v.high], decode=put_together)
    with pytest.raises(DuplicateNameError, match=r"of tests\.wire\.test_registry"):
        register_type(Interval, encode=take_apart, decode=lambda ends: Interval(*ends))
    assert take_apart(round_trip(Interval(3, 4))) == (3, 4)  # the first one holds


def test_functions_that_have_closed_over_something_else_are_others() -> None:
    class Scaled:
        value = 0.0

    def register(scale: float) -> None:
        register_type(Scaled, encode=lambda v: v.value * scale, decode=lambda _: Scaled())

    register(2.0)
    register(2.0)
    with pytest.raises(DuplicateNameError, match="Scaled"):
        register(3.0)


def test_another_class_of_the_name_is_told_unless_its_code_is_the_same() -> None:
    def make(kind: str) -> type:
        class Made:
            pass

        if kind == "one":
            register_type(Made, encode=lambda _: 1, decode=lambda _: Made())
        else:
            register_type(Made, encode=lambda _: 2, decode=lambda _: Made())
        return Made

    make("one")
    again = make("one")
    assert isinstance(round_trip(again()), again)
    with pytest.raises(DuplicateNameError, match="Made"):
        make("other")
    assert isinstance(round_trip(again()), again)


def test_a_class_that_its_module_has_defined_anew_takes_the_place_of_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = """
from telegrad.wire import register_type
import sys
class Cell:
    number = {number}
sys.modules[__name__].Cell = Cell
register_type(Cell, encode=lambda v: {number}, decode=lambda n: Cell())
"""
    here = types.ModuleType("tests_wire_cells")
    monkeypatch.setitem(__import__("sys").modules, "tests_wire_cells", here)
    for number in (1, 1, 2):
        made = module("tests_wire_cells", source.format(number=number))
        assert round_trip(made.Cell()).number == number


def test_what_main_registers_may_be_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a class of somebody else's: a cell of a notebook, changed and run again."""

    class Theirs:
        def __init__(self, number: int = 0) -> None:
            self.number = number

    source = """
from telegrad.wire import register_type
register_type(Theirs, encode=lambda v: v.number + {more}, decode=lambda n: Theirs(n))
"""
    for more in (1, 2):
        cell = types.ModuleType("__main__")
        cell.__dict__["Theirs"] = Theirs
        exec(compile(source.format(more=more), f"cell {more}", "exec"), cell.__dict__)
        assert round_trip(Theirs(5)).number == 5 + more


def test_two_lambdas_of_main_are_two() -> None:
    """They have one name: the second one took the place of the first without a word."""

    class Theirs:
        pass

    source = """
from telegrad.wire import register_type

def put_together(_):
    return Theirs()

def register(encode):
    register_type(Theirs, encode=encode, decode=put_together)

def scaled(factor):
    return lambda v: factor

register(lambda v: 1)
for encode in (lambda v: 2, scaled(1)):
    try:
        register(encode)
    except DuplicateNameError:
        told += 1
"""
    script = types.ModuleType("__main__")
    script.__dict__.update(Theirs=Theirs, DuplicateNameError=DuplicateNameError, told=0)
    exec(compile(source, "script.py", "exec"), script.__dict__)
    assert script.__dict__["told"] == 2
    exec(compile(source, "script.py", "exec"), script.__dict__)  # the same once more
