"""Builds the documentation site: a folder of pages that a browser opens from the disk, and that ask no network for anything.

    docs/build [--out FOLDER] [--address URL]    the same as: python -m scripts.site, in an environment with attnjax[docs]

Zensical renders README.md, docs/, the READMEs of experiments/, a page for each encoding, the reference and the explorer. The
code of tutorials runs while the site is built. A link that leads nowhere, and code that fails, are errors.

A site that a server is to show is built with its address: only then has it a page for addresses that do not exist (404.html).

A site takes the place of an earlier one, and of nothing else: any other folder that is not empty is refused.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

from scripts.site import encodings, pages, reference

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHIM = "https://unpkg.com/iframe-worker/shim"
WORKER = "docs/assets/worker.js"
"""The script that pages ask the network for, so that a search works from the disk, and our own that does the same."""

OUT = ROOT / "build" / "site"
MARKER = ".attnjax-site"
"""A file of every site that was built here, which may be built anew."""

FAILED = "exited with errors"
"""What is printed where the code of a page fails; Zensical goes on."""


def main(arguments: list[str] | None = None) -> None:
    """Build the site into a folder, and print the path of its first page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=OUT, help="default: build/site")
    parser.add_argument("--address", default="", help="where a server will show it: https://example.org/attnjax/")
    chosen = parser.parse_args(arguments)
    out, address = chosen.out.resolve(), chosen.address
    if address and not re.fullmatch(r"https?://[^\s/]+/(\S+/)?", address):
        parser.error(f"--address must be like https://example.org/attnjax/, with a / at its end, got {address!r}")
    if why := in_the_way(out):
        parser.error(f"--out: {out} {why}: choose a folder that is empty or does not exist")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        build(work, out, address)
    print(out / "index.html")


def build(work: pathlib.Path, out: pathlib.Path, address: str = "") -> None:
    """Lay out the pages in `work`, render them, and put the site into `out`, of which nothing is kept.

    `address` is where a server will show the site, if one will.
    """
    staged = work / "pages"
    pages.copy(ROOT, staged)
    names = encodings.write(ROOT, staged)
    parts = reference.write(staged)
    explorer(staged)
    template = (ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8")
    filled = {"# ENCODINGS": navigation("encodings", names), "# REFERENCE": navigation("reference", parts)}
    filled["# ADDRESS"] = f"site_url = {json.dumps(address)}" if address else ""
    for mark, text in filled.items():
        template = template.replace(mark, text)
    (work / "zensical.toml").write_text(template, encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(work / "zensical.toml")]
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, file=sys.stderr)
    if done.returncode or FAILED in done.stdout:
        sys.exit("the site could not be built: see above")
    missing(work / "site", address)
    stay_offline(work / "site")
    (work / "site" / MARKER).touch()
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(work / "site", out)


def in_the_way(out: pathlib.Path) -> str:
    """Why a folder must not be replaced by the site, which is put there anew; "" where it may be."""
    if ROOT.is_relative_to(out):
        return "holds this checkout"
    if out.exists() and not out.is_dir():
        return "is no folder"
    if out.is_dir() and any(out.iterdir()) and out != OUT and not (out / MARKER).is_file():
        return "is not empty, and no site was built there before"
    return ""


def navigation(folder: str, names: dict[str, str]) -> str:
    """Lines of the navigation: a title and a page each.

    Example:
      >>> navigation("encodings", {"rope": "RoPE"})
      '{ "RoPE" = "encodings/rope.md" },'
    """
    return "\n".join(f'{{ "{title}" = "{folder}/{name}.md" }},' for name, title in names.items())


def explorer(staged: pathlib.Path) -> None:
    """Write the page of `attnjax explore`, which the page on the explorer shows in a frame."""
    command = [sys.executable, "-m", "attnjax", "explore", "--out", str(staged / "docs" / "explore.html")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def missing(site: pathlib.Path, address: str) -> None:
    """Finish the page for addresses that do not exist, whose links begin at the top of the server; without one, remove it."""
    page = site / "404.html"
    if address:
        path = urllib.parse.urlsplit(address).path
        text = page.read_text(encoding="utf-8").replace(SHIM, f"{path}{WORKER}")
        page.write_text(text, encoding="utf-8")
    else:
        page.unlink()


def stay_offline(site: pathlib.Path) -> None:
    """Let pages take the script for searches from the site itself.

    Raises SystemExit where a page asks the network for anything.
    """
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        depth = len(page.relative_to(site).parts) - 1
        text = text.replace(SHIM, "../" * depth + WORKER)
        page.write_text(text, encoding="utf-8")
        if found := pages.requests(text):
            sys.exit(f"{page.relative_to(site)} asks the network for {found[0]}")


if __name__ == "__main__":
    main()
