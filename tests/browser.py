"""A browser for tests of pages, where one is installed, and a parser of what it shows."""

import html.parser
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Parsed(html.parser.HTMLParser):
    """Every start tag with its attributes, and the text between tags."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(attrs)))
        self.inside = tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self.inside in ("script", "style") else self.text).append(data)

    @property
    def skeleton(self) -> Counter[tuple[str, tuple[str, ...]]]:
        """How often each tag stands there with which attributes, whatever their values."""
        return Counter((tag, tuple(name for name, _ in attrs)) for tag, attrs in self.tags)


def visit(folder: Path) -> tuple[str, str]:
    """The document after its scripts have run, and the browser's log of everything it asked the network for."""
    log = folder / "net.json"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}", "--no-first-run"]
    command += [f"--log-net-log={log}", "--virtual-time-budget=2000", "--dump-dom", f"file://{folder / 'report.html'}"]
    environment = os.environ | {"HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, timeout=120, check=True, env=environment)
    return done.stdout.decode("utf-8"), log.read_text(encoding="utf-8", errors="replace")
