"""A token is made once, whole, for its owner alone, and where Ray looks for it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ray")

from orchestrator.cluster.token import make_token, token_here
from specgate.errors import ServiceUnavailable


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_token_is_made_once(home: Path) -> None:
    make_token()
    (path,) = files(home)
    token = path.read_text()
    assert (path, len(token), path.stat().st_mode & 0o777) == (home / ".ray" / "auth_token", 64, 0o600)
    make_token()
    assert files(home) == [path]
    assert path.read_text() == token


def test_an_interrupted_write_leaves_no_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    # It has written the token, and not yet given it its name.
    monkeypatch.setattr(os, "link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_token()
    assert files(home) == []


@pytest.mark.parametrize(
    ("variable", "value", "made"),
    [("RAY_AUTH_TOKEN_PATH", "{home}/elsewhere/token", ["elsewhere/token"]), ("RAY_AUTH_TOKEN", "0" * 64, [])],
)
def test_the_environment_is_asked_first(
    variable: str, value: str, made: list[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value.format(home=home))
    make_token()
    assert files(home) == [home / name for name in made]


NO_TOKENS = {
    "an empty file": Path.touch,
    "blanks": lambda path: path.write_text(" \n"),
    "a folder": Path.mkdir,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "no text": lambda path: path.write_bytes(b"\xff"),
    "no header": lambda path: path.write_bytes(b"a\x01b"),
}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("put", NO_TOKENS.values(), ids=NO_TOKENS)
def test_what_is_there_and_is_no_token_is_told(
    put: Callable[[Path], object], named: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / ".ray" / "auth_token"
    path.parent.mkdir()
    put(path)
    if named:
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    with pytest.raises(ServiceUnavailable, match=rf"{path}[: ].*(remove it|copy the head's)"):
        make_token()
    assert list(path.parent.iterdir()) == [path]


def test_a_token_that_is_named_and_not_there_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "none"))
    with pytest.raises(ServiceUnavailable, match=rf"^no token can be read from {home / 'none'}: copy .*, or unset "):
        token_here()
