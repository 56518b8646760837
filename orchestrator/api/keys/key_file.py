"""The file of keys: YAML with hashes only. A key is 32 random bytes, so one SHA-256 hides it."""

import fcntl
import hashlib
import os
import secrets
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from enum import StrEnum
from pathlib import Path

import yaml
from pydantic import Field, ValidationError, model_validator
from yaml.events import CollectionEndEvent, CollectionStartEvent

from orchestrator.api.settings.listen import StrictSettings
from specgate.errors import InvalidArgument

PREFIX = "sg-"
KEY_BYTES = 32
MAX_KEYS = 2_000
"""A gateway answers no request while it reads the file, which takes half a second for so many."""
MAX_DEPTH = 16
"""A file of keys has four levels."""


class Role(StrEnum):
    """What a key is for: to generate, or to read metrics, never both."""

    CLIENT = "client"
    METRICS = "metrics"


class KeyLimits(StrictSettings):
    """What one key may ask of one gateway replica; None is no limit. Tokens are of prompts and answers."""

    max_running: int | None = Field(None, ge=1)
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)


class KeyEntry(StrictSettings):
    """One key. With any day in ``revoked`` it is refused."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    role: Role = Role.CLIENT
    created: date | None = None
    revoked: date | None = None
    limits: KeyLimits = KeyLimits()


class KeyFile(StrictSettings):
    """All keys. At most one key of a name is not revoked."""

    keys: tuple[KeyEntry, ...] = Field((), max_length=MAX_KEYS)

    @model_validator(mode="after")
    def _check_names(self) -> "KeyFile":
        names = [entry.name for entry in self.keys if entry.revoked is None]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ValueError(f"the name {min(twice)!r} has several keys; revoke all but one")
        return self

    def active(self, name: str) -> KeyEntry | None:
        """Return the key of that name that is not revoked."""
        return next((entry for entry in self.keys if entry.name == name and entry.revoked is None), None)


def new_key() -> str:
    """Return a key that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_of(key: str) -> str:
    """Return the hash of a key that the file holds."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_keys(file: Path, *, may_be_empty: bool = True) -> KeyFile:
    """Return the keys of a file.

    Args:
        may_be_empty: whether an empty file counts as one without keys; ``keys: []`` always does.

    Raises:
        InvalidArgument: it cannot be read, or is not a file of keys.
    """
    try:
        if file.exists() and not file.is_file():
            raise InvalidArgument("keys_file", f"{file} is no file")
        text = file.read_text(encoding="utf-8")
        if not may_be_empty and not text.strip():
            raise InvalidArgument("keys_file", f"{file} is empty; `keys: []` is no keys")
        values = _parsed(text)
        return KeyFile.model_validate({} if values is None else values)
    except OSError as error:
        raise InvalidArgument("keys_file", f"{file} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidArgument("keys_file", f"{file}: {place}: {first['msg']}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidArgument("keys_file", f"{file} is not YAML: {' '.join(str(error).split())}") from None


def _parsed(text: str) -> object:
    """Return what ``yaml.safe_load`` returns, by the parser in C, which takes a seventh of the time.

    Raises:
        ValueError: it is nested deeper than a file of keys; that parser would end the process.
    """
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    loader = yaml.CSafeLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Keep other processes from changing the file while the block reads it and writes it again.

    The folder is locked, because the file is replaced. On a network file system without locks the last one wins.

    Raises:
        InvalidArgument: there is no such folder.
    """
    try:
        folder = os.open(file.resolve().parent, os.O_RDONLY)
    except OSError as error:
        raise InvalidArgument("keys_file", f"{file} cannot be written: {error.strerror}") from None
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def write_keys(file: Path, keys: Sequence[KeyEntry]) -> None:
    """Replace the file at once: a gateway reads the old one or the new one.

    A new file is readable for its owner only. An existing one keeps its owner, group and mode where we may set them, so
    that the gateway can still read it. If it is a link, the file that it points to is replaced.

    Raises:
        InvalidArgument: it cannot be written, or the keys do not go together.
    """
    try:
        content = KeyFile(keys=tuple(keys)).model_dump(mode="json", exclude_none=True)
    except ValidationError as error:
        raise InvalidArgument("keys_file", error.errors(include_url=False)[0]["msg"]) from None
    try:
        place = file.resolve()
        with tempfile.NamedTemporaryFile("w", dir=place.parent, prefix=f".{place.name}.", delete=False) as new:
            yaml.safe_dump(content, new, sort_keys=False)
        if place.exists():
            _take_over(Path(new.name), place.stat())
        Path(new.name).replace(place)
    except OSError as error:
        raise InvalidArgument("keys_file", f"{file} cannot be written: {error.strerror}") from None


def _take_over(file: Path, state: os.stat_result) -> None:
    with suppress(PermissionError):
        os.chown(file, state.st_uid, state.st_gid)
    file.chmod(stat.S_IMODE(state.st_mode))
