"""Exceptions arrive as their own type where that is imported, and always arrive."""

from __future__ import annotations

import asyncio
import builtins
import itertools
from typing import Any

import numpy as np
import pytest

from telegrad.errors import RemoteError
from telegrad.rpc.seams import fresh_copy
from telegrad.wire import decode_exception, encode_exception
from tests.wire.samples import EXCEPTIONS, OddError, Plain, SilentError, is_like, round_trip


def sent(error: BaseException) -> BaseException:
    return decode_exception(round_trip(encode_exception(error)))


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: type(error).__name__)
def test_an_exception_arrives_as_itself(error: BaseException) -> None:
    assert is_like(sent(error), error)


BUILTIN = list(
    dict.fromkeys(
        each
        for each in vars(builtins).values()
        if isinstance(each, type)
        and issubclass(each, Exception)
        and not issubclass(each, BaseExceptionGroup | UnicodeError)  # they take other arguments
    )
)


def test_every_pair_of_builtin_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the base with fields in C can make the object, whichever of them stands first."""
    tried = 0
    for bases in itertools.permutations(BUILTIN, 2):
        try:
            cls: Any = type("Mixed", bases, {"__module__": __name__})
            error = cls("why", 3)
        except TypeError:  # Python allows no such class, or a SyntaxError no such arguments
            continue
        monkeypatch.setitem(globals(), "Mixed", cls)
        error.detail = [1]
        arrived: Any
        for arrived in (sent(error), fresh_copy(error)):
            assert type(arrived) is cls, bases
            assert arrived is not error
            assert (arrived.args, str(arrived)) == (error.args, str(error))
            assert vars(arrived) == {"detail": [1]}
        tried += 1
    assert tried > 1000


class Absent(KeyError, FileNotFoundError):
    def __init__(self, number: int, text: str, path: str) -> None:
        FileNotFoundError.__init__(self, number, text, path)


def test_fields_in_c_of_the_second_base_arrive() -> None:
    arrived: Any = sent(Absent(2, "no such file", "x.txt"))
    assert type(arrived) is Absent
    assert (arrived.errno, arrived.filename) == (2, "x.txt")


def test_a_remote_error_says_why_it_is_one() -> None:
    def note_of(name: str, args: list[object]) -> str:
        arrived = decode_exception({**encode_exception(ValueError()), "type": name, "args": args})
        assert type(arrived) is RemoteError
        return arrived.__notes__[0]

    assert note_of("far.away:Mistake", []) == (
        "it is a RemoteError here: class 'far.away:Mistake' is not imported here; import far.away "
        "first"
    )
    assert "'_Mistake' is not a public name" in note_of("_Mistake", [])
    assert "no Exception" in note_of("builtins:SystemExit", [])
    assert "did not arrive whole" in note_of("builtins:ExceptionGroup", [["'x'", None]])


def test_cause_and_notes_are_kept() -> None:
    error = ValueError("top")
    error.__cause__ = KeyError("below")
    error.__cause__.__cause__ = OddError(1, detail="deep")
    error.add_note("remember")
    arrived = sent(error)
    assert arrived.__notes__ == ["remember"]
    assert type(arrived.__cause__) is KeyError
    assert arrived.__cause__ is not None
    assert isinstance(arrived.__cause__.__cause__, OddError)


def test_a_chain_of_causes_is_bounded() -> None:
    error = ValueError("loop")
    error.__cause__ = error
    arrived: BaseException | None = sent(error)
    depth = 0
    while arrived is not None:
        arrived, depth = arrived.__cause__, depth + 1
    assert depth == 9


def test_what_cannot_travel_goes_in_words() -> None:
    error = ValueError("bad", Plain(), lambda: 0)
    error.detail = Plain()  # type: ignore[attr-defined]
    error.size = 3  # type: ignore[attr-defined]
    arrived = sent(error)
    assert arrived.args[0] == "bad"
    assert "Plain object at" in arrived.args[1]
    assert "lambda" in arrived.args[2]
    assert vars(arrived) == {
        "size": 3,
        "__notes__": ["attributes that do not travel in an exception: .detail (Plain)"],
    }
    assert sent(arrived).__notes__ == arrived.__notes__  # once, however far it goes


def test_an_attribute_that_cannot_be_read_here_is_named() -> None:
    plain = encode_exception(OddError(1, detail="x"))
    attributes = plain["attributes"]
    assert isinstance(attributes, dict)
    attributes["detail"] = attributes["odd"] = b"garbage"
    arrived = decode_exception(plain)
    assert vars(arrived) == {
        "code": 1,
        "__notes__": ["attributes that this worker could not read: .detail, .odd"],
    }


def test_an_exception_inside_itself_arrives() -> None:
    error = ValueError("self")
    error.args = ("self", error)
    assert sent(error).args[0] == "self"


def test_an_exception_without_words_arrives() -> None:
    arrived = sent(SilentError("x"))
    assert type(arrived) is SilentError
    assert "raised RuntimeError" in encode_exception(SilentError("x"))["message"]  # type: ignore[operator]


def test_a_class_that_is_not_here_arrives_as_a_remote_error() -> None:
    class LocalError(Exception):
        pass

    arrived = sent(LocalError("gone wrong"))
    assert type(arrived) is RemoteError
    assert str(arrived) == "LocalError: gone wrong"
    assert arrived.type_name.endswith("<locals>.LocalError")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_would_end_the_program_arrives_as_a_remote_error(error: BaseException) -> None:
    arrived = sent(error)
    assert type(arrived) is RemoteError
    assert arrived.type_name.endswith(type(error).__name__)


def test_arrays_in_arguments_travel() -> None:
    arrived = sent(ValueError(np.arange(3)))
    assert list(arrived.args[0]) == [0, 1, 2]


def test_an_attribute_never_stands_in_the_place_of_a_method() -> None:
    """`add_note` among the attributes was called while the exception was rebuilt."""
    plain = encode_exception(OddError(1, detail="x"))
    attributes = plain["attributes"]
    assert isinstance(attributes, dict)
    attributes["add_note"] = attributes["detail"]
    plain["notes"] = ["a note"]
    error = decode_exception(plain)
    assert "add_note" not in vars(error)
    assert error.__notes__ == ["a note"]
