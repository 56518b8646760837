"""KV page accounting: which pages a sequence owns, how long it is, how it is cut back. No torch here."""

from collections.abc import Sequence as Ids

from specgate.errors import InvalidArgument, KVCacheFull


class Sequence:
    """One sequence's tokens, its pages and how many of its tokens have keys and values in them.

    ``token_ids[:num_cached]`` are in the pages. Rollback is a length: what lies behind ``num_cached`` in the pages
    is overwritten by the next forward.
    """

    __slots__ = ("block_table", "num_cached", "token_ids")

    def __init__(self, token_ids: Ids[int], block_table: list[int]) -> None:
        self.token_ids = list(token_ids)
        self.block_table = block_table
        self.num_cached = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def uncached(self) -> list[int]:
        return self.token_ids[self.num_cached :]

    def append(self, token_ids: Ids[int]) -> None:
        self.token_ids.extend(token_ids)

    def truncate(self, length: int) -> None:
        """Forget every token from ``length`` on."""
        del self.token_ids[length:]
        self.num_cached = min(self.num_cached, length)


class PagePool:
    """All pages of one model. A session reserves the pages of its whole length when it opens.

    So a session that was accepted never runs out half-way; ``reserve`` is the only place that can refuse. One thread
    may reserve while another one frees: each does one atomic list operation at a time, and only ``reserve`` takes.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def free_tokens(self) -> int:
        return self.num_free * self.page_size

    def reserve(self, token_ids: Ids[int], max_length: int) -> Sequence:
        """Return a new sequence that may grow to ``max_length`` tokens.

        Raises:
            InvalidArgument: longer than all pages together.
            KVCacheFull: the pages are in use now.
        """
        needed = -(-max_length // self.page_size)
        if needed > self.num_pages:
            limit = self.num_pages * self.page_size
            raise InvalidArgument("max_tokens", f"the session needs {max_length} KV tokens, the limit is {limit}")
        if needed > self.num_free:
            raise KVCacheFull(f"{max_length} KV tokens are needed and {self.free_tokens} are free")
        return Sequence(token_ids, [self._free.pop() for _ in range(needed)])

    def free(self, sequence: Sequence) -> None:
        """Take a sequence's pages back. Safe to call twice."""
        self._free.extend(reversed(sequence.block_table))
        sequence.block_table = []
        sequence.num_cached = 0

    def check_integrity(self) -> None:
        """Raise if a page is free twice, which would mix two sessions' keys."""
        if len(set(self._free)) != len(self._free) or len(self._free) > self.num_pages:
            raise RuntimeError(f"free list is corrupt: {len(self._free)} entries of {self.num_pages}")
