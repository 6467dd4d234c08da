"""What MkDocs does for the site besides rendering docs/: see `hooks` in mkdocs.yml."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

HOMES = {"README.md": "index.md", "README.zh-CN.md": "zh-CN.md"}
"""Pages of the site that are files at the root of the repository."""

_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the READMEs as the site's first pages."""
    from mkdocs.structure.files import File

    root = Path(config.config_file_path).parent
    for name, page in HOMES.items():
        files.append(File.generated(config, page, content=(root / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Point links at the site's own pages, and at the repository where they lead out of docs/."""
    is_home = page.file.src_uri in HOMES.values()
    return _LINK.sub(lambda link: target(link[1], "" if is_home else "docs", config.repo_url or ""), markdown)


def target(link: str, folder: str, repository: str) -> str:
    """Where a relative link from a file in ``folder`` of the repository leads on the site."""
    path = normpath(str(PurePosixPath(folder) / link))
    if path in HOMES:
        return HOMES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{repository}/blob/main/{path}"
