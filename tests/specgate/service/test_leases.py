"""A token opens one session, once, and soon."""

import asyncio

import pytest

from specgate.errors import LeaseRefused
from specgate.service.leases import LeaseBook

NEVER_S = 60.0


async def test_a_lease_ends_with_the_session_that_claimed_it() -> None:
    book = LeaseBook()
    with book.issued() as lease:
        end = asyncio.create_task(lease.wait_ended(NEVER_S))
        with book.claimed(lease.token):
            await asyncio.sleep(0)
            assert not end.done()
        await end


async def test_a_lease_that_nobody_claims_ends_in_time() -> None:
    with LeaseBook().issued() as lease:
        await lease.wait_ended(0.01)
        assert not lease.claimed.is_set()


async def test_a_claimed_lease_outlives_the_time_to_claim_it() -> None:
    book = LeaseBook()
    with book.issued() as lease, book.claimed(lease.token), pytest.raises(TimeoutError):
        await asyncio.wait_for(lease.wait_ended(0.001), 0.05)


async def test_a_failed_session_ends_its_lease_too() -> None:
    book = LeaseBook()
    with book.issued() as lease:
        with pytest.raises(RuntimeError), book.claimed(lease.token):
            raise RuntimeError
        await lease.wait_ended(NEVER_S)


@pytest.mark.parametrize(("token", "problem"), [("", "is missing"), ("made-up", "is unknown, void or spent")])
async def test_a_token_that_was_never_issued_is_refused(token: str, problem: str) -> None:
    with pytest.raises(LeaseRefused, match=problem), LeaseBook().claimed(token):
        pass


async def test_a_token_is_good_for_one_session() -> None:
    book = LeaseBook()
    with book.issued() as lease:
        with book.claimed(lease.token), pytest.raises(LeaseRefused), book.claimed(lease.token):
            pass
        with pytest.raises(LeaseRefused), book.claimed(lease.token):
            pass


async def test_a_token_is_void_once_its_holder_is_gone() -> None:
    book = LeaseBook()
    with book.issued() as lease:
        pass
    with pytest.raises(LeaseRefused), book.claimed(lease.token):
        pass


async def test_tokens_differ() -> None:
    book = LeaseBook()
    with book.issued() as one, book.issued() as other:
        assert one.token != other.token
        with book.claimed(other.token), book.claimed(one.token):
            pass
