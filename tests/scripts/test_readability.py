"""The pages stay short and their sentences too; what the script counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MAX_MEDIAN = 18
"""Words of the median sentence of a page."""
PAGE = """# A heading of five words

One sentence has five words. Another one, in [two words](https://x.y/z), is
spread over `two lines of` code! A fragment
- An item of five words:
- no sentence

| a table | is left out. |

    so is code.

```sh
and this.
```
<!-- and a comment. -->
"""


def test_pages_are_readable(script: Callable[[str], Any]) -> None:
    readability = script("readability")
    pages = readability.pages()
    assert {page.name: page.median_length for page in pages if page.median_length > MAX_MEDIAN} == {}


def test_prose_is_counted(script: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readability = script("readability")
    monkeypatch.setattr(readability, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "made.md").write_text(f"<!-- Made by a script: x -->\n{PAGE}")
    (page,) = readability.pages()
    assert (page.name, page.sentence_lengths, page.median_length) == ("README.md", (5, 10, 5), 5)
    assert (page.words, page.table_words) == (24, 5)
