"""KV page accounting: which pages a sequence owns or shares, how long it is, how it is cut back. No torch here."""

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from specgate.errors import InvalidArgument, KVCacheFull
from specgate.runtime.prefixes import PrefixIndex, Shared


class KVSequence:
    """One sequence's tokens, its pages and how many of its tokens have keys and values in them.

    ``token_ids[:num_cached]`` are in the pages. Rollback is a length: the next forward overwrites what lies after
    ``num_cached``.

    Attributes:
        num_stable: tokens that are never rolled back, so that other sequences may share them.
        is_branch: it is a guess, see ``scheduler``.
        num_computed: rows that were run for it, again where their pages were lost.
    """

    __slots__ = (
        "block_table", "is_branch", "last_plan", "num_cached", "num_computed", "num_stable", "remembered",
        "salt", "serial", "token_ids",
    )  # fmt: skip

    def __init__(self, token_ids: Sequence[int], *, salt: str = "", serial: int = 0) -> None:
        self.token_ids = list(token_ids)
        self.block_table: list[int] = []
        self.num_cached = 0
        self.num_computed = 0
        self.num_stable = len(self.token_ids)
        self.salt = salt
        self.serial = serial
        self.remembered = False
        self.is_branch = False
        self.last_plan = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        self.token_ids.extend(token_ids)

    def mark_stable(self, length: int) -> None:
        """Promise that the first ``length`` tokens stay."""
        self.num_stable = length

    def truncate(self, length: int) -> None:
        """Forget every token from ``length`` on."""
        del self.token_ids[length:]
        self.num_cached = min(self.num_cached, length)


class Copy(NamedTuple):
    """Rows ``first`` to ``end`` of a page, to be copied to the same rows of another one before anything is written."""

    source: int
    target: int
    first: int
    end: int


class PagePool:
    """All pages of one model, and the sequences that are open on them.

    A sequence takes pages as it grows. Equal prefixes are shared: full pages by reference, the rest by copied rows. A
    page that is given back keeps its contents until it is taken again. Pages without a known prefix are taken first,
    then those that were used longest ago. ``open`` may be called on any thread, all else belongs to the engine's.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.sequences: dict[int, KVSequence] = {}
        """Open ones by serial number, the oldest first."""
        self._prefixes = PrefixIndex(page_size)
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_pages))
        self._num_users = [0] * num_pages
        self._copies: list[Copy] = []
        self._serials = itertools.count(1)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def free_tokens(self) -> int:
        """How many a new sequence may have: branches lose their pages to it. For any thread."""
        # Pages that several branches share are not counted.
        of_branches = [page for one in self.snapshot() if one.is_branch for page in one.block_table]
        return (self.num_free + sum(self._num_users[page] == 1 for page in of_branches)) * self.page_size

    def open(self, token_ids: Sequence[int], max_length: int, salt: str = "") -> KVSequence:
        """Return a new sequence that may grow to ``max_length`` tokens; it has no pages yet.

        Args:
            salt: only sequences of the same salt share pages.

        Raises:
            InvalidArgument: longer than all pages together.
            KVCacheFull: not even its present tokens fit now.
        """
        limit = self.num_pages * self.page_size
        if max_length > limit:
            raise InvalidArgument("max_tokens", f"the session needs {max_length} KV tokens, the limit is {limit}")
        spare = self.free_tokens
        if len(token_ids) > spare:
            raise KVCacheFull(f"{len(token_ids)} KV tokens are needed and {spare} are free")
        return self._admit(KVSequence(token_ids, salt=salt))

    def _admit(self, sequence: KVSequence) -> KVSequence:
        sequence.serial = next(self._serials)
        self.sequences[sequence.serial] = sequence
        return sequence

    def is_open(self, sequence: KVSequence) -> bool:
        return sequence.serial in self.sequences

    def snapshot(self) -> list[KVSequence]:
        """Return the open sequences, the oldest first; another thread may open one meanwhile."""
        return list(self.sequences.values())

    def attach(self, sequence: KVSequence, limit: int) -> None:
        """Let a sequence without pages begin with the longest known prefix of its first ``limit`` tokens."""
        if sequence.block_table:
            return
        shared = self._prefixes.find(sequence.salt, sequence.token_ids, min(limit, sequence.num_stable))
        whole = 0
        while whole < len(shared) and shared[whole].end - shared[whole].first == self.page_size:
            whole += 1
        for page, _, end in shared[:whole]:
            self._use(page)
            sequence.block_table.append(page)
            sequence.num_cached = end
        for page, _, _ in shared[whole:]:
            self._touch(page)
        if shared[whole:] and self._free:
            self._copy_rows(sequence, shared[whole:])

    def _copy_rows(self, sequence: KVSequence, shared: list[Shared]) -> None:
        """Begin a page of the sequence's own with rows of other pages, which are one page's worth of tokens."""
        start = len(sequence.block_table) * self.page_size
        target = self._take()
        sequence.block_table.append(target)
        for page, first, end in shared:
            if first >= start + self.page_size:
                break
            self._copies.append(Copy(page, target, first - start, end - start))
            sequence.num_cached = end

    def extend(self, sequence: KVSequence, length: int) -> bool:
        """Make room for ``length`` tokens, writable from ``num_cached`` on. False: no room, and nothing has changed."""
        lent, missing = self._lacking(sequence, length, self._num_users.__getitem__)
        if len(lent) + missing > self.num_free:
            return False
        for index in lent:
            self._replace(sequence, index)
        sequence.block_table.extend(self._take() for _ in range(missing))
        return True

    def could_extend(self, sequence: KVSequence, length: int, others: list[KVSequence]) -> bool:
        """Return whether ``extend`` would find room if ``others`` gave all their pages back."""
        given_back = Counter(page for one in others for page in one.block_table)
        num_freed = sum(count == self._num_users[page] for page, count in given_back.items())
        lent, missing = self._lacking(sequence, length, lambda page: self._num_users[page] - given_back[page])
        return len(lent) + missing <= self.num_free + num_freed

    def _lacking(self, sequence: KVSequence, length: int, num_users_of: Callable[[int], int]) -> tuple[list[int], int]:
        """Return the block table's shared entries, which must be replaced, and how many more pages it takes."""
        table, first = sequence.block_table, sequence.num_cached // self.page_size
        lent = [index for index in range(first, len(table)) if num_users_of(table[index]) > 1]
        return lent, max(0, -(-length // self.page_size) - len(table))

    def _replace(self, sequence: KVSequence, index: int) -> None:
        """Replace a shared page by a copy of the sequence's own."""
        lent = sequence.block_table[index]
        own = sequence.block_table[index] = self._take()
        if (num_rows := sequence.num_cached - index * self.page_size) > 0:
            self._copies.append(Copy(lent, own, 0, num_rows))
        self._give_back(lent)

    def fork(self, sequence: KVSequence, length: int | None = None) -> KVSequence:
        """Return a branch of ``sequence``: its first ``length`` tokens, by default all, in the same pages.

        The first of the two that writes to a shared page gets a copy.
        """
        branch = self._admit(KVSequence(sequence.token_ids[:length], salt=sequence.salt))
        branch.is_branch = True
        branch.num_stable = 0
        branch.num_cached = min(sequence.num_cached, len(branch))
        branch.block_table = sequence.block_table[: -(-branch.num_cached // self.page_size)]
        for page in branch.block_table:
            self._use(page)
        return branch

    def adopt(self, sequence: KVSequence, branch: KVSequence) -> None:
        """Close ``branch``, and let ``sequence`` go on with its tokens and pages. Its age stays its own."""
        del self.sequences[branch.serial]
        given_up, sequence.block_table = sequence.block_table, branch.block_table
        sequence.token_ids, sequence.num_cached = branch.token_ids, branch.num_cached
        branch.block_table = []
        self._give_back_all(given_up)

    def discard(self, branch: KVSequence) -> None:
        """Close a branch; what it holds is not shared. Safe to call twice."""
        if self.sequences.pop(branch.serial, None) is not None:
            self._give_back_all(branch.block_table)
            branch.block_table = []
            branch.num_cached = 0

    def remember(self, sequence: KVSequence) -> None:
        """Let others share the sequence's stable tokens, once they are cached."""
        if not sequence.remembered and sequence.num_cached >= sequence.num_stable > 0:
            sequence.remembered = True
            self._prefixes.add(sequence.salt, sequence.token_ids[: sequence.num_stable], sequence.block_table)

    def release(self, sequence: KVSequence, *, poisoned: bool = False) -> None:
        """Take a sequence's pages, which it must fill again to go on; what they hold can still be shared.

        Args:
            poisoned: neither the contents nor what they may have been copied from can be trusted.
        """
        if poisoned:
            self._prefixes.forget_prefix(sequence.salt, sequence.token_ids)
            for page in sequence.block_table:
                self._prefixes.forget(page)
        else:
            self._prefixes.add(sequence.salt, sequence.token_ids[: sequence.num_cached], sequence.block_table)
        self._give_back_all(sequence.block_table)
        sequence.block_table = []
        sequence.num_cached = 0
        sequence.remembered = False

    def free(self, sequence: KVSequence) -> None:
        """Close a sequence. Safe to call twice."""
        if self.sequences.pop(sequence.serial, None) is not None:
            self.release(sequence)

    def take_copies(self) -> list[Copy]:
        """Return the copies that are due before the next forward writes anything, in order."""
        copies, self._copies = self._copies, []
        return copies

    def _take(self) -> int:
        page, _ = self._free.popitem(last=False)
        self._prefixes.forget(page)
        self._num_users[page] = 1
        return page

    def _use(self, page: int) -> None:
        self._free.pop(page, None)
        self._num_users[page] += 1

    def _touch(self, page: int) -> None:
        if page in self._free:
            self._free.move_to_end(page)

    def _give_back_all(self, pages: Sequence[int]) -> None:
        for page in reversed(pages):
            self._give_back(page)

    def _give_back(self, page: int) -> None:
        self._num_users[page] -= 1
        if self._num_users[page] == 0:
            self._free[page] = None
            self._free.move_to_end(page, last=page in self._prefixes)

    def check_integrity(self) -> None:
        """Raise RuntimeError if a page is lost, or both free and in use: two sessions' keys would mix."""
        users = [0] * self.num_pages
        for sequence in self.snapshot():
            for page in sequence.block_table:
                users[page] += 1
        if users != self._num_users:
            wrong = next(page for page in range(self.num_pages) if users[page] != self._num_users[page])
            raise RuntimeError(f"page {wrong} has {users[wrong]} users and counts {self._num_users[wrong]}")
        free = {page for page in range(self.num_pages) if not users[page]}
        if free != set(self._free):
            raise RuntimeError(f"pages {sorted(free ^ set(self._free))} are free and in use, or neither")
