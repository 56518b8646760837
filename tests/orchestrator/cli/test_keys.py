"""``orchestrator keys``: a key is shown once, the file holds its hash."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.api.keys.key_file import Role, read_keys
from orchestrator.api.keys.keyring import Keyring
from orchestrator.cli.keys import add, revoke
from orchestrator.cli.main import run
from specgate.errors import PermissionDenied


def test_a_key_is_added_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--file", str(tmp_path / "keys.yaml")]
    assert run(["keys", "add", "ann", *file, "--requests-per-minute", "30"]) == 0
    key = capsys.readouterr().out.strip()
    assert key.startswith("sg-")
    assert key not in (tmp_path / "keys.yaml").read_text()
    assert Keyring(tmp_path / "keys.yaml").caller_of(f"Bearer {key}").name == "ann"
    assert run(["keys", "add", "ann", *file]) == 2
    assert "NAME: 'ann' already has a key; revoke it first" in capsys.readouterr().err
    assert run(["keys", "list", *file]) == 0
    listed = capsys.readouterr().out
    assert "ann" in listed
    assert "30" in listed
    assert key not in listed
    assert run(["keys", "revoke", "ann", *file]) == 0
    with pytest.raises(PermissionDenied):
        Keyring(tmp_path / "keys.yaml").caller_of(f"Bearer {key}")
    assert run(["keys", "revoke", "ann", *file]) == 2
    # The name is free again.
    assert run(["keys", "add", "ann", *file]) == 0


def test_a_key_for_metrics_is_listed_as_one_and_a_file_without_roles_holds_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys: [{{name: old, sha256: {'a' * 64}}}]")
    assert run(["keys", "add", "prometheus", "--file", str(path), "--role", "metrics"]) == 0
    assert [entry.role for entry in read_keys(path).keys] == [Role.CLIENT, Role.METRICS]
    capsys.readouterr()
    assert run(["keys", "list", "--file", str(path)]) == 0
    rows = [set(line.split()) for line in capsys.readouterr().out.splitlines()]
    for row in ({"old", "client"}, {"prometheus", "metrics"}):
        assert any(row <= words for words in rows)


def test_keys_that_are_added_and_revoked_at_once_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    names = [f"key-{number}" for number in range(16)]

    def add_and_revoke(name: str) -> None:
        add(name, file)
        revoke(name, file)

    with ThreadPoolExecutor(max_workers=4) as threads:
        list(threads.map(add_and_revoke, names))
    assert sorted(entry.name for entry in read_keys(file).keys if entry.revoked) == sorted(names)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add", "a b"], "NAME: 'a b'"),
        (["add", "ann", "--max-running", "0"], "--max-running"),
        (["list"], "cannot be read"),
    ],
)
def test_a_wrong_word_is_named(words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", *words, "--file", str(tmp_path / "none" / "keys.yaml")]) == 2
    assert told in capsys.readouterr().err
