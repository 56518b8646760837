"""Whether a Ray demands a token, and the token of a Ray that is started here."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from ray._raylet import Config  # type: ignore[attr-defined]

from specgate.errors import ServiceUnavailable

MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
"""Ray's own: whether there is a token, and where Ray looks for it, in order: the token itself, or its file."""
TOKEN_MODE = "token"
OPEN_MODE = "disabled"
TOKEN_BYTES = 32


def mode_of_environment() -> str:
    """Return the mode in the environment, by default token. With any other word Ray demands no token."""
    return os.environ.get(MODE_VARIABLE, TOKEN_MODE)


def use_mode(mode: str) -> None:
    """Set the mode of this process's Ray, and of its children."""
    os.environ[MODE_VARIABLE] = mode
    # Ray reads its environment at its import, and here.
    Config.initialize("")


def token_here() -> str | None:
    """Return the token that Ray finds on this machine, None where there is none.

    Raises:
        ServiceUnavailable: the file that RAY_AUTH_TOKEN_PATH names is not there or is empty, or the token is no
            visible ASCII.
    """
    # Ray's own loader is not used: it keeps the token, and then its process demands it in every mode.
    given = os.environ.get(TOKEN_VARIABLE, "").strip()
    token = given or _read()
    if token and token.isascii() and token.isprintable():
        return token
    if not token and not os.environ.get(TOKEN_PATH_VARIABLE):
        return None
    where, variable = (TOKEN_VARIABLE, TOKEN_VARIABLE) if given else (_path(), TOKEN_PATH_VARIABLE)
    out = f"copy the head's ~/.ray/auth_token there, or unset {variable}"
    raise ServiceUnavailable(f"no token can be read from {where}: {out}")


def _read() -> str:
    try:
        with open(_path(), encoding="ascii", errors="replace") as file:
            return file.readline().strip()
    # A process without a home folder is a RuntimeError.
    except (OSError, RuntimeError):
        return ""


def make_token() -> None:
    """Write a token where Ray looks for one, readable by its owner alone; an existing one is kept.

    Raises:
        OSError: it cannot be written.
        ServiceUnavailable: there is something else: an empty file, a folder, a broken link.
    """
    if os.environ.get(TOKEN_VARIABLE, "").strip():
        return
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file holds a whole token or does not exist, even after a crash.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(TOKEN_BYTES))
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    if token_here() is None:
        raise ServiceUnavailable(f"{path} is there and holds no token: remove it")


def _path() -> Path:
    named = os.environ.get(TOKEN_PATH_VARIABLE)
    return Path(named) if named else Path.home() / ".ray" / "auth_token"
