"""Flags: lists of numbers and of names, and a folder that is made before anything is measured."""

from pathlib import Path

import pytest

from specgate.errors import InvalidArgument
from specgate_lab.options import make_folder, names_of, numbers_of


def test_lists_are_read_in_order() -> None:
    assert numbers_of("rate", "0,0.5,20", float, 0.0, 100.0) == (0, 0.5, 20)
    assert numbers_of("rate", None, float, 0.0, 100.0) == ()
    assert names_of("sets", None, ["a"]) == ()
    assert names_of("sets", "b,a", ["a", "b", "c"]) == ("b", "a")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("1,x", "'1,x' is no list of numbers"),
        ("-1", "is outside"),
        ("1,1", "1,1 names a value twice"),
        ("nan", "outside"),
    ],
)
def test_what_is_no_list_of_numbers_is_refused_by_name(given: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"rate: .*{problem}"):
        numbers_of("rate", given, float, 0.0, 100.0)


@pytest.mark.parametrize(
    ("given", "problem"), [("a,x", "'x' is not one of a, b"), ("a,a", "a,a names one twice"), ("", "'' is not one")]
)
def test_unknown_names_are_refused_by_name(given: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"sets: {problem}"):
        names_of("sets", given, ["a", "b"])


def test_a_folder_is_made_or_refused(tmp_path: Path) -> None:
    make_folder("out", tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "file").write_text("")
    with pytest.raises(InvalidArgument, match=r"out: .* cannot be made"):
        make_folder("out", tmp_path / "a" / "b" / "file" / "plots")
