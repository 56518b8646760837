"""Whose key it is. A changed file is read again, so keys come and go without a restart."""

import hmac
import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from orchestrator.api.keys.key_file import KeyEntry, Role, hash_of, read_keys
from orchestrator.api.keys.limits import KeyUse
from specgate.errors import InvalidArgument, PermissionDenied, SpecgateError, Unauthenticated
from specgate.file_stamp import stamp_of

LOOK_S = 1.0
"""The file is checked for changes at most this often."""
MAX_KEY_CHARACTERS = 256
BEARER = "bearer "

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a key, and what the key has used."""

    name: str
    use: KeyUse


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Of the request that the running task works on; None where no keys are needed."""
ADDRESS: ContextVar[str] = ContextVar("address", default="")
"""The IP address that the running task's request came from. Clients behind one proxy have one."""


def client_name() -> str:
    """Return the name of the running task's key, or its address where no keys are needed.

    Both APIs share fairly among clients of different names.
    """
    caller = CALLER.get()
    return ADDRESS.get() if caller is None else caller.name


class Keyring:
    """The keys of one gateway replica.

    Args:
        on_refused: is called with the error of each request whose key is not accepted.
        clock: returns seconds.

    Raises:
        InvalidArgument: the file cannot be used.
    """

    def __init__(
        self,
        file: Path,
        on_refused: Callable[[SpecgateError], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._on_refused = on_refused
        self._clock = clock
        self._looked_at_s = clock()
        self._stamp = stamp_of(file)
        self._callers: dict[tuple[str, str], Caller] = {}
        self._by_hash: dict[str, KeyEntry] = {}
        self._read()

    def caller_of(self, authorization: str | None, role: Role = Role.CLIENT) -> Caller:
        """Return the owner of the key that a client sends.

        Args:
            authorization: the header or metadata of that name, ``Bearer KEY``.
            role: what the key must be for.

        Raises:
            Unauthenticated: it sends none, or an unknown one.
            PermissionDenied: the key was revoked, or has another role.
        """
        self._look()
        try:
            return self._caller_of(authorization, role)
        except (Unauthenticated, PermissionDenied) as error:
            self._on_refused(error)
            raise

    def _caller_of(self, authorization: str | None, role: Role) -> Caller:
        if not authorization or authorization[: len(BEARER)].lower() != BEARER:
            raise Unauthenticated("a key is needed: Authorization: Bearer KEY")
        key = authorization[len(BEARER) :].strip()
        found = self._find(hash_of(key)) if len(key) <= MAX_KEY_CHARACTERS else None
        if found is None:
            raise Unauthenticated("this key is not known here")
        if found.revoked is not None:
            raise PermissionDenied(f"the key {found.name} was revoked on {found.revoked}")
        if found.role is not role:
            raise PermissionDenied(f"the key {found.name} has the role {found.role}; this needs the role {role}")
        return self._callers[found.name, found.sha256]

    def _find(self, hashed: str) -> KeyEntry | None:
        """Look up a hash, at the same cost for any number of keys.

        The time it takes reveals something of the key's SHA-256 only, which a client cannot choose.
        """
        found = self._by_hash.get(hashed)
        return found if found is not None and hmac.compare_digest(found.sha256, hashed) else None

    def _look(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_at_s < LOOK_S:
            return
        self._looked_at_s = now_s
        stamp = stamp_of(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            # A program that writes it in place empties it first.
            self._read(may_be_empty=False)
        except InvalidArgument as error:
            # The known keys stay valid: a file that is being edited locks no client out.
            _log.error("the keys stay as they were: %s", error)

    def _read(self, *, may_be_empty: bool = True) -> None:
        keys = read_keys(self._file, may_be_empty=may_be_empty)
        # A key that has used up its minute does not get a new one because another key has changed.
        self._callers = {(entry.name, entry.sha256): self._known_or_new(entry) for entry in keys.keys}
        # Revoked ones last: a key under two names is refused if one of them is revoked.
        entries = sorted(keys.keys, key=lambda entry: entry.revoked is not None)
        self._by_hash = {entry.sha256: entry for entry in entries}

    def _known_or_new(self, entry: KeyEntry) -> Caller:
        known = self._callers.get((entry.name, entry.sha256))
        if known is None:
            return Caller(entry.name, KeyUse(entry.name, entry.limits, self._clock))
        if known.use.limits != entry.limits:
            known.use.change(entry.limits)
        return known
