"""A token is made once, whole, for its owner alone, and where Ray looks for it."""

import os
from pathlib import Path

import pytest

pytest.importorskip("ray")

from orchestrator.cluster.token import make_token


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
