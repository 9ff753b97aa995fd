"""The documentation site: its links, that it is built, and that it needs no network."""

import re
from pathlib import Path

import pytest

from attnjax.registry import ENCODINGS
from scripts.site import pages, reference
from scripts.site.__main__ import main
from scripts.site.encodings import facts

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def repository(tmp_path):
    """A page in a folder, beside a study with a README and a folder without."""
    for name in ("docs", "experiments/study/records", "configs"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "experiments/study/README.md").write_text("# Study")
    (tmp_path / "configs/study.py").write_text("1")
    return tmp_path


def test_links_to_folders_lead_to_their_pages_and_code_is_shown_as_text(repository):
    page = repository / "docs/page.md"
    page.write_text(
        "[a](../experiments/study/) [b](../experiments/study/records) [c](../configs/study.py#x) [d](https://a.org) [e](#f)"
    )
    text, files = pages.relinked(repository, page)
    assert text == "[a](../experiments/study/README.md) b [c](../configs/study.py.txt#x) [d](https://a.org) [e](#f)"
    assert files == [repository / "configs/study.py"]


@pytest.mark.parametrize("target", ["missing.md", "../missing/figure.png", "../../outside.md"])
def test_a_link_that_leads_nowhere_is_an_error(repository, target):
    page = repository / "docs/page.md"
    page.write_text(f"![picture]({target})")
    with pytest.raises(ValueError, match=re.escape(f"docs/page.md links to {target}, which does not exist")):
        pages.relinked(repository, page)


def test_every_study_and_page_is_in_the_navigation():
    listed = set(re.findall(r'= "([\w/]+\.md)"', (ROOT / "docs/zensical.toml").read_text(encoding="utf-8")))
    there = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").glob("*/README.md")]
    assert {path.relative_to(ROOT).as_posix() for path in there} <= listed


def test_every_encoding_has_its_facts_and_every_link_a_file(tmp_path):
    """What fails a build before a page is rendered."""
    pages.copy(ROOT, tmp_path)
    known = facts((ROOT / "docs/encodings.md").read_text(encoding="utf-8"))
    assert known["rope"]["acts on"] == "queries, keys"
    assert "arXiv:2307.09288" in known["rope"]["published models"]


@pytest.mark.slow
def test_the_site_is_built_and_asks_the_network_for_nothing(tmp_path):
    site = tmp_path / "site"
    main(["--out", str(site)])
    assert {f"{name}.html" for name in ENCODINGS} == {path.name for path in (site / "encodings").glob("*.html")}
    for part in reference.PARTS:
        text = (site / "reference" / f"{part}.html").read_text(encoding="utf-8")
        assert [name for name in reference.names(part) if f'.{name}"' not in text] == []
    cluster = (site / "docs" / "tutorials" / "cluster.html").read_text(encoding="utf-8")
    assert "exit status 130" in cluster  # the worker that was warned
    assert "exit statuses [0, 0]" in cluster
    assert [found for page in site.rglob("*.html") for found in pages.requests(page.read_text(encoding="utf-8"))] == []


def test_a_folder_that_holds_no_site_is_left_alone(tmp_path, monkeypatch, capsys):
    def never(*_):
        raise AssertionError("the site would be put into this folder")

    monkeypatch.setattr("scripts.site.__main__.stage", never)
    (tmp_path / "mine").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine", ROOT, ROOT / "docs"):
        with pytest.raises(SystemExit):
            main(["--out", str(folder)])
        assert f"--out: {folder.resolve()} holds something else than a site" in capsys.readouterr().err
