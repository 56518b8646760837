"""Figures in README and docs: each is rendered from the JSON of its run, by a comment before it that names its place.

    <!--=.2f bundled-greedy::rows::spec::ratio_to_target-->0.94<!--/-->

The format is Python's. The place is a file of docs/results and the steps into it. In a list a step is the ``name`` of
an element, its number, ``field=value`` of elements, several with commas between, or ``*`` for all; where several
elements fit, ``min``, ``max`` or ``mean`` comes last.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/*.md", "docs/internals/*.md", "docs/api/*.md", "docs/results/README.md")
FIGURE = re.compile(r"<!--=(\S+) ([^>]+)-->(.*?)<!--/-->", re.DOTALL)
TYPED = re.compile(r"(?<![\w.:,-])(?:\d+\.\d+|(?!20\d\d\b)\d{3,}|(?!95 )\d+ ?%)(?!\w|\.\d| [MG]B)")
"""What looks like a result: a decimal point, three digits, a share. Years, sizes and our intervals' 95 % are none."""
NO_FIGURES = re.compile(
    r"```.*?```|`[^`\n]*`|^    .*?$|\]\([^)]*\)|<!--=.*?<!--/-->|torch \d\S*", re.DOTALL | re.MULTILINE
)
SUMMARIES: Mapping[str, Callable[[list[float]], float]] = {"min": min, "max": max, "mean": mean}


def pages() -> list[Path]:
    """Return the pages that people write and that may quote figures."""
    found = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    return sorted(path for path in found if "made by a script" not in path.read_text("utf-8")[:100])


def render(text: str, results: Mapping[str, Any]) -> str:
    """Return a page with all figures as the results have them. Raises LookupError, see ``figure``."""
    return FIGURE.sub(lambda found: f"<!--={found[1]} {found[2]}-->{figure(found[1], found[2], results)}<!--/-->", text)


def figure(form: str, place: str, results: Mapping[str, Any]) -> str:
    """Return one figure. Raises LookupError: the place leads nowhere, or to several values."""
    try:
        value = _follow(results, place.split("::"))
        return format(value, form)
    except (LookupError, TypeError, ValueError) as error:
        raise LookupError(f"{place}: {error}") from None


def quoted_files(text: str) -> set[str]:
    """Return the results that a page quotes."""
    return {found[2].split("::")[0] for found in FIGURE.finditer(text)}


def typed_figures(text: str) -> list[str]:
    """Return what looks like a result, outside of code and links, and is not rendered."""
    return TYPED.findall(NO_FIGURES.sub(" ", text))


def _follow(value: Any, steps: list[str]) -> Any:
    if not steps:
        return value
    first, *rest = steps
    if isinstance(value, Mapping):
        return _follow(value[first], rest)
    if first.isdecimal():
        return _follow(value[int(first)], rest)
    fitting = list(_fitting(value, first))
    if len(fitting) > 1 and rest and rest[-1] in SUMMARIES:
        return SUMMARIES[rest[-1]]([_follow(one, rest[:-1]) for one in fitting])
    if len(fitting) != 1:
        raise LookupError(f"{len(fitting)} elements fit {first!r}")
    return _follow(fitting[0], rest)


def _fitting(elements: list[Any], step: str) -> Iterator[Any]:
    wanted = dict(part.split("=", 1) for part in step.split(",")) if "=" in step else {"name": step}
    return (one for one in elements if step == "*" or all(str(one.get(key)) == value for key, value in wanted.items()))
