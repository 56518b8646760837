"""The pages of the repository, and the code in them: which blocks are run, and which commands a page names."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "clients/*.md", "clients/*/*.md", "examples/*.md")
    for path in ROOT.glob(pattern)
    if "node_modules" not in path.parts
)
SHELLS = frozenset({"", "sh", "bash", "shell", "console"})
_FENCED = re.compile(
    r"(?:^<!-- (?P<mark>run(?: in background)?) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```\s*?$",
    re.DOTALL | re.MULTILINE,
)
_INDENTED = re.compile(r"(?:^\n|\A)(?P<code>(?:^    \S.*\n(?:^ {4}.*\n|^\n(?=    ))*))", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`(?P<code>[^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_CUTS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "2>", "2>&1", "<", "...", "…"})


@dataclass(frozen=True)
class Block:
    """Code of one page. ``mark`` is ``run``, ``run in background``, or empty where it is not run."""

    language: str
    code: str
    mark: str = ""


def blocks(text: str) -> list[Block]:
    """Return the fenced and the indented blocks of a page, in this order."""
    fenced = [
        Block(
            found["language"],
            re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE),
            found["mark"] or "",
        )
        for found in _FENCED.finditer(text)
    ]
    indented = [Block("", found["code"]) for found in _INDENTED.finditer(_FENCED.sub("", text))]
    return fenced + indented


def shell_lines(text: str) -> Iterator[str]:
    """Yield the lines of a page's shell blocks, joined at backslashes, and what stands in backticks within prose."""
    for block in blocks(text):
        if block.language in SHELLS:
            yield from (line.strip().removeprefix("$ ") for line in _joined(block.code).splitlines())
    for found in _INLINE.finditer(_FENCED.sub("", text)):
        yield " ".join(found["code"].split())


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every command line in a page, without redirections, pipes and leading variables."""
    for line in shell_lines(text):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        lexer.commenters = "#" if " # " in line or line.startswith("#") else ""
        try:
            words = list(lexer)
        except ValueError:  # prose, or a quotation that another line ends
            continue
        yield from (one for one in _cut(words) if one)


def _cut(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in words:
        if word in _CUTS:
            yield command
            command = []
        elif command or not re.fullmatch(r"[A-Z_]+=.*", word):
            command.append(word)
    yield command


def _joined(code: str) -> str:
    return re.sub(r"\\\n\s*", "", code)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as forges and the site make them, and those that it writes itself."""
    found: set[str] = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", _FENCED.sub("", text), re.MULTILINE):
        shown = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")
        number = next(n for n in range(100) if (f"{slug}-{n}" if n else slug) not in found)
        found.add(f"{slug}-{number}" if number else slug)
    return found


def links(text: str) -> list[str]:
    """Return where the links and the pictures of a page lead to, those of its code left out."""
    prose = _INLINE.sub("code", _FENCED.sub("", text))
    return re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", prose) + re.findall(r'<img[^>]* src="([^"]+)"', prose)
