"""The pages stay short and their sentences too; what the script counts."""

from collections.abc import Callable
from typing import Any

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
