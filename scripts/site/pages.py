"""The pages that stand in the repository: which are on the site, what they link to, and the copies that it is made from.

The folder from which the site is built mirrors the repository, so that links between files hold. A link to a folder leads to
its README, and is plain text where there is none. A file of another kind that a page links to is copied beside it, as text
where a browser would not show it.
"""

import os
import pathlib
import re
import shutil

SINGLE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FOLDERS = ("docs", "experiments")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
REQUEST = re.compile(
    r"""(?:<(?:script|img|iframe|link(?! rel="canonical"))\b[^>]*?\b(?:src|href)=|url\(|@import\s+)["']?(https?://[^"')\s>]+)"""
)
SHOWN = (".md", ".png", ".svg", ".html", ".css", ".js")
"""Kinds of files that a browser shows, and those that belong to a page; others are shown as text."""


def copy(root: pathlib.Path, staged: pathlib.Path) -> None:
    """Copy every page, and every file that one of them links to. Raises ValueError for a link to a file that does not exist."""
    found = [root / name for name in SINGLE]
    for folder in FOLDERS:
        found += sorted((root / folder).rglob("*.md"))
    for page in found:
        text, files = relinked(root, page)
        place = staged / page.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        for file in files:
            target = staged / shown(file.relative_to(root))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    shutil.copytree(root / "docs" / "assets", staged / "docs" / "assets", dirs_exist_ok=True)


def relinked(root: pathlib.Path, page: pathlib.Path) -> tuple[str, list[pathlib.Path]]:
    """The text of a page with links that the site can follow, and the files that they lead to."""
    files: list[pathlib.Path] = []

    def link(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if "://" in target or not path:
            return match.group()
        file = pathlib.Path(os.path.normpath(page.parent / path))
        if file.is_dir():
            file = file / "README.md"
            if file.parent.is_relative_to(root) and not file.exists():
                return label
        if not file.is_relative_to(root) or not file.exists():
            raise ValueError(f"{page.relative_to(root)} links to {path}, which does not exist")
        if file.suffix != ".md":
            files.append(file)
        place = pathlib.PurePath(os.path.relpath(shown(file), page.parent)).as_posix()
        return f"{image}[{label}]({place}{hash_}{anchor})"

    return LINK.sub(link, page.read_text(encoding="utf-8")), files


def shown(file: pathlib.Path) -> pathlib.Path:
    """The name of a file on the site: code and records become text, which browsers show instead of saving it.

    Example:
      >>> shown(pathlib.Path("configs/theta.py")).name, shown(pathlib.Path("figure.png")).name
      ('theta.py.txt', 'figure.png')
    """
    return file if file.suffix in SHOWN else file.with_name(file.name + ".txt")


def requests(text: str) -> list[str]:
    """Addresses that a browser asks for when it opens this page; links that a reader may follow are not among them.

    Example:
      >>> requests('<a href="https://a.org">a</a> <script src="https://b.org/x.js"></script>')
      ['https://b.org/x.js']
    """
    return REQUEST.findall(text)
