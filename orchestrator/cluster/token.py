"""The token that a Ray of our own asks for."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
"""Ray's own variables, in the order in which Ray looks at them: the token itself, or the file that holds it."""
TOKEN_BYTES = 32


def make_token() -> None:
    """Make a token where Ray will look for one, readable by its owner alone; one that is there is kept.

    Raises:
        OSError: it cannot be written there.
    """
    if os.environ.get(TOKEN_VARIABLE):
        return
    named = os.environ.get(TOKEN_PATH_VARIABLE)
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whoever looks, and also after a crash half-way, finds a whole token there or none.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(TOKEN_BYTES))
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
