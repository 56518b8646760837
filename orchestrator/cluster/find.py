"""Which Ray cluster to join: one whose head answers, and that asks for a token or is permitted without one."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from orchestrator.cluster.address import ADDRESS_VARIABLE, LOCAL, Say, asked_for, left_here
from orchestrator.cluster.head import wants_token
from orchestrator.cluster.listeners import check_listener
from orchestrator.cluster.token import token_here
from specgate.errors import ServiceUnavailable

GIVE_UP_S = 10.0
"""How long a head may take to answer."""
_CANNOT = "cannot be joined"


class Head(NamedTuple):
    """A Ray head that answers at ``address``."""

    address: str
    wants_token: bool


def find_head(say: Say) -> Head | None:
    """Return the head to join: the one that RAY_ADDRESS names, else the first one that Ray left here and that answers.

    None if there is none, or RAY_ADDRESS wants none; ``say`` gets the ones that were given up.

    Raises:
        ServiceUnavailable: one was asked for and cannot be joined.
        InvalidArgument: RAY_ADDRESS is no address.
    """
    named = asked_for()
    if named == LOCAL:
        return None
    if named is None:
        return first_that_answers(left_here(say), say)
    try:
        return _look(named)
    except ServiceUnavailable as error:
        raise ServiceUnavailable(f"the Ray cluster at {named} ({ADDRESS_VARIABLE}) {_CANNOT}: {error}") from None


def first_that_answers(addresses: Sequence[str], say: Say, give_up_s: float = GIVE_UP_S) -> Head | None:
    """Return the first of the heads that answers within ``give_up_s``, None if none does.

    All are asked at once, except where another user's process listens at an address of this machine.
    """

    def look(address: str) -> Head | ServiceUnavailable:
        try:
            # The address may outlive its head; then any process may listen there and would get the token.
            check_listener(address)
            return _look(address, give_up_s)
        except ServiceUnavailable as error:
            return error

    askers = ThreadPoolExecutor(max_workers=max(1, len(addresses)))
    try:
        for address, found in zip(addresses, askers.map(look, addresses), strict=True):
            if isinstance(found, Head):
                return found
            say(f"Ray has left the address of a cluster here, {address}, that {_CANNOT}: {found}")
    finally:
        # The heads after the first one that answers are not awaited.
        askers.shutdown(wait=False)
    return None


def _look(address: str, give_up_s: float = GIVE_UP_S) -> Head:
    return Head(address, wants_token(address, token_here(), give_up_s))
