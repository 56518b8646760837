"""A token opens one session, once, and soon."""

import asyncio
from contextlib import suppress

import pytest

from specgate.errors import LeaseRefused
from specgate.service.leases import LeaseBook
from tests.support.patience import PATIENCE_S

NEVER_S = 60.0


async def test_a_lease_ends_with_the_session_that_claimed_it() -> None:
    book = LeaseBook()
    with book.issued() as lease:
        end = asyncio.create_task(lease.wait_ended(NEVER_S))
        with suppress(RuntimeError), book.claimed(lease.token):
            await asyncio.sleep(0)
            assert not end.done()
            raise RuntimeError
        await asyncio.wait_for(end, PATIENCE_S)


async def test_a_lease_that_nobody_claims_ends_in_time_and_a_claimed_one_outlives_it() -> None:
    book = LeaseBook()
    with book.issued() as lease:
        await lease.wait_ended(0.01)
        assert not lease.claimed.is_set()
        with book.claimed(lease.token), pytest.raises(TimeoutError):
            await asyncio.wait_for(lease.wait_ended(0.001), 0.05)


async def test_a_token_is_good_for_one_session_while_its_holder_is_there() -> None:
    book = LeaseBook()

    def refused(token: str, problem: str = "is unknown, void or spent") -> None:
        with pytest.raises(LeaseRefused, match=problem), book.claimed(token):
            pass

    refused("", "is missing")
    refused("made-up")
    with book.issued() as spent, book.issued() as void:
        with book.claimed(spent.token):
            refused(spent.token)
        refused(spent.token)
    refused(void.token)


async def test_tokens_differ() -> None:
    book = LeaseBook()
    with book.issued() as one, book.issued() as other:
        assert one.token != other.token
        with book.claimed(other.token), book.claimed(one.token):
            pass
