"""Builds the documentation site: a folder of pages that a browser opens from the disk, and that ask no network for anything.

    docs/build [--out FOLDER]    the same as: python -m scripts.site, in an environment with attnjax[docs]

Zensical renders README.md, docs/, the READMEs of experiments/, a page for each encoding, the reference and the explorer. The
code of tutorials runs while the site is built. A link that leads nowhere, and code that fails, are errors.

A site takes the place of an earlier one, and of nothing else: any other folder that is not empty is refused.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

from scripts.site import encodings, pages, reference

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHIM = "https://unpkg.com/iframe-worker/shim"
WORKER = "docs/assets/worker.js"
"""The script that pages ask the network for, so that a search works from the disk, and our own that does the same."""
MARKER = ".attnjax-site"
"""A file of every site that was built here, which may be built anew."""
FAILED = "exited with errors"
"""What is printed where the code of a page fails; Zensical goes on."""


def main(arguments: list[str] | None = None) -> None:
    """Build the site into a folder, and print the path of its first page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "site", help="default: build/site")
    out = parser.parse_args(arguments).out.resolve()
    if out.exists() and not (out / MARKER).is_file() and not (out.is_dir() and not any(out.iterdir())):
        parser.error(f"--out: {out} holds something else than a site: choose a folder that is empty or does not exist")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        stage(work)
        site = render(work)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(site, out)
    print(out / "index.html")


def stage(work: pathlib.Path) -> None:
    """Lay out the pages in `work/pages`, and the options of the site."""
    staged = work / "pages"
    pages.copy(ROOT, staged)
    names = encodings.write(ROOT, staged)
    parts = reference.write(staged)
    # The page of `attnjax explore`, which the page on the explorer shows in a frame.
    command = [sys.executable, "-m", "attnjax", "explore", "--out", str(staged / "docs" / "explore.html")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    options = (ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8")
    for mark, folder, listed in (("# ENCODINGS", "encodings", names), ("# REFERENCE", "reference", parts)):
        options = options.replace(mark, navigation(folder, listed))
    (work / "zensical.toml").write_text(options, encoding="utf-8")


def navigation(folder: str, names: dict[str, str]) -> str:
    """Lines of the navigation: a title and a page each.

    Example:
      >>> navigation("encodings", {"rope": "RoPE"})
      '{ "RoPE" = "encodings/rope.md" },'
    """
    return "\n".join(f'{{ "{title}" = "{folder}/{name}.md" }},' for name, title in names.items())


def render(work: pathlib.Path) -> pathlib.Path:
    """Make the site of the pages in `work`, and return its folder.

    Raises SystemExit where a link leads nowhere, code fails, or a page asks the network for anything.
    """
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(work / "zensical.toml")]
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, file=sys.stderr)
    if done.returncode or FAILED in done.stdout:
        sys.exit("the site could not be built: see above")
    site = work / "site"
    (site / "404.html").unlink()  # for a server, and its links begin at the top of it
    for page in site.rglob("*.html"):
        depth = len(page.relative_to(site).parts) - 1
        text = page.read_text(encoding="utf-8").replace(SHIM, "../" * depth + WORKER)
        page.write_text(text, encoding="utf-8")
        if found := pages.requests(text):
            sys.exit(f"{page.relative_to(site)} asks the network for {found[0]}")
    (site / MARKER).touch()
    return site


if __name__ == "__main__":
    main()
