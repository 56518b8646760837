"""Which pages hold the keys and values of which token prefixes.

A trie over blocks of tokens, compared token by token: there is no hash that two prompts could share by chance or on
purpose. Prefixes of different salts are apart: a faster answer tells nothing of what other clients have asked.
"""

import math
from collections.abc import Sequence as Ids
from typing import NamedTuple

MAX_BLOCK = 16
"""Tokens that are shared at once; finer would make longer chains, coarser would share less."""
_Block = tuple[str, tuple[int, ...]]
"""A salt and the tokens of a block."""


class Shared(NamedTuple):
    """Rows ``first`` to ``end`` of a known prefix, and the page that has them, at their places in it."""

    page: int
    first: int
    end: int


class _Node:
    __slots__ = ("block", "children", "page", "parent")

    def __init__(self, parent: "_Node | None", block: _Block, page: int) -> None:
        self.parent = parent
        self.block = block
        self.page = page
        self.children: dict[_Block, _Node] = {}


class PrefixIndex:
    """Says where a prefix is cached. It owns no page: the pool calls ``forget`` before it reuses one."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.block = math.gcd(page_size, MAX_BLOCK)
        self._root = _Node(None, ("", ()), -1)
        self._nodes: dict[int, set[_Node]] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._nodes

    def add(self, salt: str, token_ids: Ids[int], block_table: Ids[int]) -> None:
        """Remember the whole blocks of ``token_ids``, which lie in the pages of ``block_table``.

        What is known already stays where it is, but for what is one page here and lies in several: full pages are
        shared, and the rest is copied. Each turn of a conversation begins a page with copies of the turn before.
        """
        node, of_page = self._root, list[_Node]()
        for first in range(0, len(token_ids) - self.block + 1, self.block):
            block, page = self._block_at(salt, token_ids, first), block_table[first // self.page_size]
            child = node.children.get(block)
            if child is None:
                child = node.children[block] = _Node(node, block, page)
                self._lay(child, page)
            node = child
            of_page.append(child)
            if len(of_page) == self.page_size // self.block:
                if len({one.page for one in of_page}) > 1:
                    for one in of_page:
                        self._lay(one, page)
                of_page.clear()

    def find(self, salt: str, token_ids: Ids[int], limit: int) -> list[Shared]:
        """Return where the longest known prefix of ``token_ids[:limit]`` lies, in order and without gaps."""
        found: list[Shared] = []
        node = self._root
        for first in range(0, min(limit, len(token_ids)) - self.block + 1, self.block):
            child = node.children.get(self._block_at(salt, token_ids, first))
            if child is None:
                break
            node = child
            end = first + self.block
            goes_on = found and found[-1].page == node.page and first % self.page_size
            found[-1:] = [found[-1]._replace(end=end)] if goes_on else [*found[-1:], Shared(node.page, first, end)]
        return found

    def forget(self, page: int) -> None:
        """Drop what ``page`` holds, and every prefix that goes on after it and cannot be reached any more."""
        while nodes := self._nodes.get(page):
            self._cut(next(iter(nodes)))

    def forget_prefix(self, salt: str, token_ids: Ids[int]) -> None:
        """Drop every prefix that begins as ``token_ids`` does, in any page."""
        if (top := self._root.children.get(self._block_at(salt, token_ids, 0))) is not None:
            self._cut(top)

    def _lay(self, node: _Node, page: int) -> None:
        self._leave(node)
        node.page = page
        self._nodes.setdefault(page, set()).add(node)

    def _leave(self, node: _Node) -> None:
        if (of_page := self._nodes.get(node.page)) is not None:
            of_page.discard(node)
            if not of_page:
                del self._nodes[node.page]

    def _block_at(self, salt: str, token_ids: Ids[int], first: int) -> _Block:
        return salt, tuple(token_ids[first : first + self.block])

    def _cut(self, top: _Node) -> None:
        if top.parent is not None:
            del top.parent.children[top.block]
        doomed = [top]
        while doomed:
            node = doomed.pop()
            doomed.extend(node.children.values())
            self._leave(node)
