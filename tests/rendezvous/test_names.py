"""What workers and jobs may be called."""

from __future__ import annotations

import pytest

from telegrad.rendezvous import check_job, check_name


@pytest.mark.parametrize("name", ["w", "worker0", "a.b-c_D", "x" * 63])
def test_good_names(name: str) -> None:
    assert check_name(name) == name
    assert check_job(name) == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "worker name is empty"),
        ("a b", r"worker name 'a b' has ' '; use letters, digits"),
        ("é/", "has '/', 'é'"),
        ("x" * 64, "has 64 characters; .* up to 63"),
        ("a\n", r"has '\\n'"),
        (3, r"must be a str \(got int\)"),
    ],
)
def test_bad_names_are_refused_with_words(name: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_name(name)


def test_job_names_are_called_so() -> None:
    with pytest.raises(ValueError, match=r"^job name"):
        check_job("a job")
