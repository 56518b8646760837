"""Figures in README and docs: each is rendered from the JSON of its run, by a comment before it that names its place.

    <!--=.2f bundled-greedy::rows::spec::ratio_to_target-->0.94<!--/-->

The format is Python's. The place is a file of docs/results and the steps into it. In a list a step is the ``name`` of
an element, its number, or ``field=value`` or ``field!=value`` of elements, several with commas between; ``*`` is all,
of a mapping too. Where several fit, ``min``, ``max`` or ``mean`` comes last.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/*.md", "docs/internals/*.md", "docs/api/*.md", "docs/results/README.md")
FIGURE = re.compile(r"<!--=(\S+) ([^>]+)-->(.*?)<!--/-->", re.DOTALL)
TYPED = re.compile(
    r"(?<![\w.:,])(?<!\w-)"
    r"(?:\d+\.\d+|\d{1,3}(?:,\d{3})+|(?!20\d\d\))\d{3,}|\d+(?:x|×|µs|ms|k)\b|(?!95 )\d+ ?%|\d+ of \d+)(?!\.?\d)"
)
"""What looks like a result: a decimal point, three digits, a unit, a share. Years in brackets and 95 % are none."""
NO_FIGURES = re.compile(
    r"```.*?```|`[^`\n]*`|^    .*?$|\]\([^)]*\)|<!--=.*?<!--/-->|(?:Python|torch) \d\S*", re.DOTALL | re.MULTILINE
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
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise LookupError(f"{place}: {error}") from None


def quoted_files(text: str) -> set[str]:
    """Return the results that a page quotes."""
    return {found[2].split("::")[0] for found in FIGURE.finditer(text)}


def typed_figures(text: str) -> list[str]:
    """Return what looks like a result, outside of code and links, and is not rendered."""
    return TYPED.findall(NO_FIGURES.sub(" ", text))


def _follow(value: Any, steps: list[str]) -> Any:
    if not steps or (steps[0] in SUMMARIES and isinstance(value, int | float)):
        return value
    first, *rest = steps
    if isinstance(value, Mapping) and first != "*":
        return _follow(value[first], rest)
    if first.isdecimal():
        return _follow(value[int(first)], rest)
    fitting = list(_fitting(value.values() if isinstance(value, Mapping) else value, first))
    if len(fitting) != 1 and rest and rest[-1] in SUMMARIES:
        return SUMMARIES[rest[-1]]([_follow(one, rest[:-1]) for one in fitting])
    if len(fitting) != 1:
        raise LookupError(f"{len(fitting)} elements fit {first!r}")
    return _follow(fitting[0], rest)


def _fitting(elements: Iterable[Any], step: str) -> Iterator[Any]:
    """Yield the elements that a step means."""
    parts = [part.partition("=") for part in step.split(",")] if "=" in step else [("name", "=", step)]
    tests = [(key.removesuffix("!"), key.endswith("!"), value) for key, _, value in parts]
    for one in elements:
        if step == "*" or all((str(one.get(key)) == value) != is_other for key, is_other, value in tests):
            yield one
