#!/usr/bin/env python3
"""Print the words and the median sentence length of every page that people write; a test limits both.

Prose is a page without its code, tables, headings and comments. A sentence ends with a full stop, a question mark or an
exclamation mark; a paragraph may end with a colon. Pages that a script generates are left out.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "clients/README.md", "deploy/README.md", "docs/**/*.md")
GENERATED = re.compile(r"<!--\s*(?:made|generated) by a script", re.IGNORECASE)
FENCE = re.compile(r"^([ ]*)(```+|~~~+).*?^\1\2\s*?$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
NO_PROSE = re.compile(r"^\s*(\||#|!\[[^]]*\]\([^)]*\)\s*$|---+\s*$|<)")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.|>|!!! \w+)\s+")
LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")
CODE = re.compile(r"`+[^`]*`+")
WORD = re.compile(r"\S*\w\S*")
ENDING = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9])")


@dataclass(frozen=True)
class Page:
    """What a page is made of."""

    name: str
    words: int
    table_words: int
    sentence_lengths: tuple[int, ...]

    @property
    def median_length(self) -> float:
        """Words of the median sentence, 0 without any."""
        return median(self.sentence_lengths) if self.sentence_lengths else 0


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page, each on one line; an inline code counts as one word."""
    lines: list[str] = []
    for line in [*COMMENT.sub("", FENCE.sub("", text)).splitlines(), ""]:
        is_code = line.startswith("    ") and not lines
        if not line.strip() or is_code or NO_PROSE.match(line) or ITEM.match(line):
            if lines:
                yield " ".join(lines)
            lines = []
        if line.strip() and not is_code and not NO_PROSE.match(line):
            lines.append(LINK.sub(r"\1", CODE.sub("code", ITEM.sub("", line))).strip())


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph; an end without punctuation is a fragment, not a sentence."""
    for sentence in ENDING.split(paragraph):
        if sentence.rstrip("\"')*_ ").endswith((".", "!", "?", ":")):
            yield sentence


def read(path: Path) -> Page:
    """Return the figures of one page."""
    text = path.read_text(encoding="utf-8")
    found = list(paragraphs(text))
    lengths = tuple(len(WORD.findall(sentence)) for paragraph in found for sentence in sentences(paragraph))
    words = sum(len(WORD.findall(paragraph)) for paragraph in found)
    table_words = sum(len(WORD.findall(line)) for line in text.splitlines() if line.startswith("|"))
    return Page(str(path.relative_to(ROOT)), words, table_words, tuple(length for length in lengths if length))


def pages() -> list[Page]:
    """Return the figures of all pages that people write."""
    paths = sorted(path for pattern in PAGES for path in ROOT.glob(pattern))
    return [read(path) for path in paths if not GENERATED.search(path.read_text(encoding="utf-8")[:300])]


def total(of: Iterable[Page]) -> Page:
    """Return the figures of several pages together."""
    of = list(of)
    words, table_words = sum(page.words for page in of), sum(page.table_words for page in of)
    return Page("all", words, table_words, tuple(n for page in of for n in page.sentence_lengths))


def main() -> None:
    print("| page | words | words in tables | sentences | median sentence, words |\n|---|---|---|---|---|")
    found = pages()
    for page in [*found, total(found)]:
        counts = f"{page.words} | {page.table_words} | {len(page.sentence_lengths)} | {page.median_length:g}"
        print(f"| {page.name} | {counts} |")


if __name__ == "__main__":
    main()
