"""Hooks of mkdocs: pages of the repository's root become pages of the site, and links to other files stay true.

README.md is the home page. A link to a file outside docs/ leads to ``repo_url`` if mkdocs.yml has one; without it the
site shows the link's text alone.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = {"README.md": "index.md"} | {name: name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")}
MERMAID = ROOT / "node_modules" / "@mermaid-js" / "tiny" / "dist" / "mermaid.tiny.js"
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^]]*)\]\((?P<to>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
FENCED = re.compile(r"(^```.*?^```\s*?$)", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root, and the script that draws diagrams."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text("utf-8")))
    files.append(File.generated(config, MERMAID.name, content=MERMAID.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the page with each link to the repository as the site has it. Code stays as it is."""
    source = page.file.src_uri
    folder = "" if source in ROOT_PAGES.values() else str(PurePosixPath("docs", source).parent)
    parts = FENCED.split(markdown)
    return "".join(part if i % 2 else LINK.sub(_Links(folder, source, config), part) for i, part in enumerate(parts))


class _Links:
    """Writes one page's links anew.

    Args:
        folder: of the page, in the repository.
        source: its name in the site.
    """

    def __init__(self, folder: str, source: str, config: Any) -> None:
        self._folder = folder
        self._site_folder = str(PurePosixPath(source).parent)
        self._repository = config.repo_url

    def __call__(self, link: re.Match[str]) -> str:
        if ":" in link["to"]:
            return link[0]
        path = os.path.normpath(os.path.join(self._folder, link["to"]))
        if not (ROOT / path).exists():
            return link[0]  # mkdocs reports it
        page = self._page(path)
        if page is None:
            return f"[{link['text']}]({self._repository}/blob/main/{path})" if self._repository else link["text"]
        to = os.path.relpath(page, self._site_folder)
        return f"{link['image']}[{link['text']}]({to}{link['anchor'] or ''})"

    @staticmethod
    def _page(path: str) -> str | None:
        """Return the file of the site that a file of the repository is, None where it is none."""
        if path in ROOT_PAGES:
            return ROOT_PAGES[path]
        is_file = path.startswith("docs/") and (ROOT / path).is_file()
        return path.removeprefix("docs/") if is_file else None
