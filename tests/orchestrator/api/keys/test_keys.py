"""Keys: their file, who they are, what they may ask for."""

import stat
import time
from datetime import date
from os import mkfifo
from pathlib import Path

import pytest

from orchestrator.api.keys.key_file import MAX_KEYS, KeyEntry, KeyLimits, hash_of, new_key, read_keys, write_keys
from orchestrator.api.keys.keyring import LOOK_S, Keyring
from orchestrator.api.keys.limits import KeyUse
from specgate.errors import InvalidArgument, PermissionDenied, RateLimited, Unauthenticated

HASH = "a" * 64


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def entry(name: str, key: str, revoked: date | None = None, **limits: int) -> KeyEntry:
    return KeyEntry(name=name, sha256=hash_of(key), revoked=revoked, limits=KeyLimits(**limits))


def test_a_file_holds_no_key_and_is_its_owners_alone(tmp_path: Path) -> None:
    file, key = tmp_path / "keys.yaml", new_key()
    write_keys(file, [entry("ann", key, requests_per_minute=3)])
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_keys(file).keys == (entry("ann", key, requests_per_minute=3),)
    assert [path.name for path in tmp_path.iterdir()] == ["keys.yaml"]


def test_a_file_that_is_written_again_stays_readable_for_who_read_it(tmp_path: Path) -> None:
    """A gateway of another user would else go on with keys that were revoked since."""
    file, link = tmp_path / "keys.yaml", tmp_path / "link.yaml"
    write_keys(file, [entry("ann", "key")])
    file.chmod(0o640)
    link.symlink_to(file)
    write_keys(link, [entry("bob", "key")])
    assert link.is_symlink()
    assert read_keys(file).active("bob") is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_as_many_keys_as_may_be_are_read_and_found_in_a_moment(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    write_keys(file, [entry(f"key{i}", f"{i}") for i in range(MAX_KEYS)])
    start_s = time.process_time()
    keyring = Keyring(file)
    assert time.process_time() - start_s < 2.0
    start_s = time.process_time()
    assert {keyring.caller_of(f"Bearer {i}").name for i in range(MAX_KEYS)} == {f"key{i}" for i in range(MAX_KEYS)}
    assert time.process_time() - start_s < 0.1e-3 * MAX_KEYS
    with pytest.raises(InvalidArgument, match="keys"):
        write_keys(file, [entry(f"key{i}", f"{i}") for i in range(MAX_KEYS + 1)])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("keys: [{name: a}]", r"keys.0.sha256: Field required"),
        (f"keys: [{{name: a b, sha256: {HASH}}}]", r"keys.0.name: .*pattern"),
        ("such: 1", "such: Extra inputs"),
        ("[", "is not YAML"),
        (f"keys: [{{name: a, sha256: {HASH}}}, {{name: a, sha256: {HASH}}}]", "'a' has several keys"),
        # libyaml's own recursion would end the process.
        ("keys: " + "[" * 100_000, "nested deeper"),
    ],
)
def test_a_wrong_file_is_told_by_its_place(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(InvalidArgument, match=told):
        read_keys(tmp_path / "keys.yaml")


def test_who_a_key_is(tmp_path: Path) -> None:
    file, keys = tmp_path / "keys.yaml", [new_key() for _ in range(2)]
    write_keys(file, [entry("ann", keys[0]), entry("bob", keys[1], revoked=date(2026, 1, 2))])
    keyring = Keyring(file)
    assert keyring.caller_of(f"Bearer {keys[0]}").name == "ann"
    assert keyring.caller_of(f"bearer  {keys[0]}").name == "ann"
    with pytest.raises(PermissionDenied, match="bob was revoked on 2026-01-02"):
        keyring.caller_of(f"Bearer {keys[1]}")
    wrong = (
        None,
        "",
        keys[0],
        "Bearer ",
        f"Basic {keys[0]}",
        f"Bearer {keys[0]}x",
        "Bearer " + "x" * 10_000,
        "Bearer é",
    )
    for shown in wrong:
        with pytest.raises(Unauthenticated) as refused:
            keyring.caller_of(shown)
        assert keys[0] not in str(refused.value)


def test_keys_come_and_go_without_a_restart_and_keep_what_they_have_used(tmp_path: Path) -> None:
    file, clock, first, second = tmp_path / "keys.yaml", Clock(), new_key(), new_key()
    write_keys(file, [entry("ann", first, requests_per_minute=1)])
    keyring = Keyring(file, clock=clock)
    with keyring.caller_of(f"Bearer {first}").use.admitted(1, 0):
        pass
    write_keys(file, [entry("ann", first, requests_per_minute=1), entry("bob", second)])
    with pytest.raises(Unauthenticated):
        keyring.caller_of(f"Bearer {second}")
    clock.now_s += LOOK_S
    assert keyring.caller_of(f"Bearer {second}").name == "bob"
    with pytest.raises(RateLimited), keyring.caller_of(f"Bearer {first}").use.admitted(1, 0):
        pass
    # A file that is broken for a while locks nobody out, nor does one that is gone.
    # A pipe is not waited for: everybody else would wait, too.
    for break_it in (lambda: file.write_text("keys: ["), file.unlink, file.touch, file.unlink, lambda: mkfifo(file)):
        break_it()
        clock.now_s += LOOK_S
        assert keyring.caller_of(f"Bearer {second}").name == "bob"
    write_keys(file, [entry("bob", second, revoked=date(2026, 1, 2))])
    clock.now_s += LOOK_S
    with pytest.raises(PermissionDenied):
        keyring.caller_of(f"Bearer {second}")
    with pytest.raises(Unauthenticated):
        keyring.caller_of(f"Bearer {first}")


@pytest.mark.parametrize("order", [1, -1])
def test_a_revoked_key_is_refused_under_another_name_too(tmp_path: Path, order: int) -> None:
    file, key = tmp_path / "keys.yaml", new_key()
    write_keys(file, [entry("ann", key, revoked=date(2026, 1, 2)), entry("bob", key)][::order])
    with pytest.raises(PermissionDenied):
        Keyring(file).caller_of(f"Bearer {key}")


def test_a_key_whose_limits_change_keeps_what_it_has_used(tmp_path: Path) -> None:
    file, clock, key = tmp_path / "keys.yaml", Clock(), new_key()
    write_keys(file, [entry("ann", key, max_running=2, tokens_per_minute=600)])
    keyring = Keyring(file, clock=clock)
    with keyring.caller_of(f"Bearer {key}").use.admitted(2, 1_000):
        write_keys(file, [entry("ann", key, max_running=1, tokens_per_minute=60)])
        clock.now_s += 10.0
        use = keyring.caller_of(f"Bearer {key}").use
        with pytest.raises(RateLimited, match="2 of 1 requests running"), use.admitted(1, 1):
            pass
    # Of the 1,000 tokens 100 had come back before the limit changed; now it is 1 a second.
    with pytest.raises(RateLimited) as refused, use.admitted(1, 1):
        pass
    assert refused.value.retry_after_s == 900 - 60 + 1
    clock.now_s += 841.0
    with use.admitted(1, 1):
        assert use.num_running == 1
    assert use.num_running == 0


def test_requests_that_run_are_limited_and_given_back() -> None:
    use = KeyUse("ann", KeyLimits(max_running=2))
    with use.admitted(2, 10), pytest.raises(RateLimited, match="2 of 2 requests running"), use.admitted(1, 10):
        pass
    with use.admitted(1, 10):
        assert use.num_running == 1
    assert use.num_running == 0
    # No retry helps who asks for more than may ever run.
    with pytest.raises(InvalidArgument, match=r"^n: .*3 choices"), use.admitted(3, 10):
        pass


def test_a_minutes_requests_come_back_evenly() -> None:
    clock = Clock()
    use = KeyUse("ann", KeyLimits(requests_per_minute=6), clock)
    with use.admitted(6, 0):
        pass
    with pytest.raises(RateLimited, match="requests of this minute") as refused, use.admitted(1, 0):
        pass
    assert refused.value.retry_after_s == 10
    clock.now_s += 10
    with use.admitted(1, 0):
        pass
    with pytest.raises(RateLimited), use.admitted(1, 0):
        pass
    # However long nobody asks, there is never more than a minute's worth.
    clock.now_s += 3600
    with use.admitted(6, 0):
        pass
    with pytest.raises(RateLimited), use.admitted(1, 0):
        pass


def test_tokens_are_charged_at_the_end_and_an_overdrawn_minute_is_waited_for() -> None:
    clock = Clock()
    use = KeyUse("ann", KeyLimits(tokens_per_minute=60), clock)
    with use.admitted(1, 20):
        use.add_tokens(100)
    with pytest.raises(RateLimited, match="tokens of this minute") as refused, use.admitted(1, 20):
        pass
    assert refused.value.retry_after_s == 80
    clock.now_s += 80
    # A prompt that is longer than a minute's worth asks for a full bucket.
    with pytest.raises(RateLimited), use.admitted(1, 1000):
        pass
    clock.now_s += 40
    with use.admitted(1, 1000):
        pass
