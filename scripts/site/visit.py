"""Opens every page of a built site in Chromium, in light and dark and on a phone, and records what is wrong with it.

    docs/build && python -m scripts.site.visit build/site [--record FILE.json]

No page may scroll sideways or have an error in its console, and every link into the site must lead to a file and a heading
that exist; else the exit status is 1. Chromium is driven through a pipe: nothing listens, and no network is asked.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import select
import shutil
import sys
import tempfile
import urllib.parse
from typing import Any

from attnjax.sweep import manifest

MODES = {"light": (1280, 900, "light"), "dark": (1280, 900, "dark"), "phone": (390, 844, "light")}
"""Width and height of the window in CSS pixels, and the colours that the reader prefers."""
CHECKED = ("no horizontal scroll", "no error in the console", "links into the site lead to files and headings")
PATIENCE = 120
"""Seconds without a word from the browser after which it hangs."""
LOOK = """new Promise((done) => setTimeout(done, 300)).then(() => [document.scrollingElement.scrollWidth,
  [...new Set([...document.querySelectorAll("a[href], link[href], [src]")].map((one) => one.href || one.src))]])"""
"""What is read from a page, a moment after it has loaded."""


def chromium() -> str | None:
    """The path of a Chromium, where one is installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """Chromium with one page, spoken to in the DevTools protocol over file descriptors 3 and 4."""

    def __init__(self, program: str, profile: str):
        (theirs_in, self._out), (self._in, theirs_out) = os.pipe(), os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        flags += ["--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        actions = [(os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4)]
        actions += [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
        self._process = os.posix_spawn(program, [program, *flags], os.environ | {"HOME": profile}, file_actions=actions)
        self._buffer, self._number, self._session = b"", 0, {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command; what the browser tells before it is kept in `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while "id" not in (answer := self._read()) or answer["id"] != self._number:
            self.events.append(answer)
        return answer["result"]

    def wait(self, method: str) -> None:
        """Read until the browser has told this."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._read())

    def close(self) -> None:
        """End the browser."""
        self._session = {}
        self.call("Browser.close")
        os.waitpid(self._process, 0)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], PATIENCE)[0]:
                raise TimeoutError(f"the browser has said nothing for {PATIENCE} s")
            self._buffer += os.read(self._in, 1 << 20)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


def complaint(event: dict[str, Any]) -> str:
    """What an event says that went wrong on a page; "" where nothing did."""
    told = event.get("params", {})
    level = told.get("type") or told.get("entry", {}).get("level")
    return json.dumps(told)[:400] if level == "error" or event.get("method") == "Runtime.exceptionThrown" else ""


def leads_nowhere(link: str, site: pathlib.Path) -> bool:
    """Whether a link into the site names a file, or a heading of a page, that does not exist."""
    parts = urllib.parse.urlsplit(link)
    path = pathlib.Path(urllib.parse.unquote(parts.path))
    if parts.scheme != "file":
        return False
    if not path.is_relative_to(site) or not path.is_file():
        return True
    heading = re.escape(urllib.parse.unquote(parts.fragment))
    if path.suffix != ".html" or not heading or heading.startswith("__"):  # those are the theme's own
        return False
    return not re.search(rf'\b(?:id|name)="?{heading}["\s>]', path.read_text(encoding="utf-8"))


def visit(site: pathlib.Path, pages: list[str], browser: Browser) -> dict[str, list[str]]:
    """The pages with faults, and a line for each fault."""
    faults: dict[str, list[str]] = {}
    for mode, (width, height, scheme) in MODES.items():
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mode == "phone"}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for page in pages:
            browser.events.clear()
            browser.call("Page.navigate", url=(site / page).as_uri())
            browser.wait("Page.loadEventFired")
            seen = browser.call("Runtime.evaluate", expression=LOOK, awaitPromise=True, returnByValue=True)["result"]
            wide, links = seen["value"]
            wrong = [f"is {wide} pixels wide"] if wide > width else []
            wrong += [f"error: {text}" for text in map(complaint, browser.events) if text]
            if mode == "light":  # links are the same in all modes
                wrong += [f"leads nowhere: {link}" for link in links if leads_nowhere(link, site)]
            for text in wrong:
                faults.setdefault(page, []).append(f"{mode}: {text.replace(f'{site.as_uri()}/', '')}")
    return faults


def main() -> int:
    """Visit, print what is wrong, and write the record; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=pathlib.Path, help="the folder that docs/build has made")
    parser.add_argument("--record", type=pathlib.Path, help="a JSON file to write")
    chosen = parser.parse_args()
    program = chromium()
    pages = sorted(path.relative_to(chosen.site).as_posix() for path in chosen.site.rglob("*.html"))
    if program is None or not pages:
        parser.error("no Chromium is installed" if program is None else f"{chosen.site} holds no page")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        version = browser.call("Browser.getVersion")["product"]
        faults = visit(chosen.site.resolve(), pages, browser)
        browser.close()
    here, system = manifest.of_machine(), f"{platform.system()} {platform.machine()}"
    about = {"command": "python -m scripts.site.visit", "date": manifest.now()[:10], "browser": version}
    about |= {"system": system, "processor": here["processor"], "cores": here["cores"]}
    modes = {mode: f"{width} x {height} pixels, {scheme}" for mode, (width, height, scheme) in MODES.items()}
    record = {**about, "modes": modes, "checked": CHECKED, "faults": faults, "pages": pages}
    if chosen.record is not None:
        chosen.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    told = [f"{page}: {text}" for page, texts in faults.items() for text in texts]
    print(*told, f"{len(pages)} pages in {len(MODES)} modes, {len(faults)} with faults", sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
