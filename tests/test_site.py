"""The documentation site: its links, what it says of encodings and public names, and that it needs no network."""

import importlib
import inspect
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnjax
from attnjax import long
from attnjax.explore.page import script
from attnjax.registry import ENCODINGS
from scripts.site import encodings, pages, reference, results
from scripts.site.__main__ import explorer, main, navigation
from tests.browser import BROWSER, Parsed

ROOT = Path(__file__).resolve().parent.parent

SEARCH = """<script>setTimeout(() => {
  document.querySelector(".md-search__button").click();
  setTimeout(() => {
    const deepest = (node) => (node.shadowRoot?.activeElement ? deepest(node.shadowRoot.activeElement) : node);
    const field = deepest(document.activeElement);
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, "forget gates");
    field.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
    setTimeout(() => console.log("FOUND " + field.getRootNode().textContent), 2000);
  }, 2000);
}, 2000);</script></body>"""


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


def test_a_folder_of_records_has_a_page_that_leads_to_each(repository, tmp_path):
    run = repository / "experiments/study/records/0123"
    run.mkdir()
    (run / "results.jsonl").write_text("{}")
    (run / "examples.npz").write_bytes(b"arrays")
    (run.parent / "sweep.json").write_text("[]")
    page = repository / "docs/page.md"
    page.write_text("[b](../experiments/study/records/)")
    text, files = pages.relinked(repository, page)
    assert text == "[b](../experiments/study/records/list.md)"
    staged = tmp_path / "staged"
    pages.write_list(repository, files[0].parent, staged)
    told = (staged / "experiments/study/records/list.md").read_text()
    assert "| all | [sweep.json](sweep.json.txt) |" in told
    assert '| <span id="0123">`0123`</span> | [results.jsonl](0123/results.jsonl.txt) |' in told
    assert (staged / "experiments/study/records/0123/results.jsonl.txt").read_text() == "{}"


def test_a_report_leads_to_the_records_of_a_run_in_their_list(repository, tmp_path):
    run, report = "0123456789abcdef", repository / "experiments/study/report.html"
    (repository / "experiments/study/records" / run).mkdir()
    (repository / "experiments/study/records" / run / "status.json").write_text("{}")
    report.write_text(f'<a href="../records/{run}/">{run}</a> <a href="../records/other/">other</a>')
    (repository / "docs/assets").mkdir()
    for name in pages.SINGLE:
        (repository / name).write_text(
            "[the report](experiments/study/report.html), [records](experiments/study/records/)"
        )
    pages.copy(repository, tmp_path / "staged")
    copied = (tmp_path / "staged/experiments/study/report.html").read_text()
    assert copied == f'<a href="../records/list.html#{run}">{run}</a> <a href="../records/other/">other</a>'
    assert f'<span id="{run}">' in (tmp_path / "staged/experiments/study/records/list.md").read_text()


@pytest.mark.parametrize("target", ["missing.md", "../missing/figure.png", "../../outside.md"])
def test_a_link_that_leads_nowhere_is_an_error(repository, target):
    page = repository / "docs/page.md"
    page.write_text(f"![picture]({target})")
    with pytest.raises(ValueError, match=re.escape(f"docs/page.md links to {target}, which does not exist")):
        pages.relinked(repository, page)


@pytest.mark.parametrize(
    "text",
    [
        '<script async src="https://a.org/x">',
        '<link rel="stylesheet" href="https://a.org/x">',
        "<img alt='' src='https://a.org/x'>",
        "<style>@import 'https://a.org/x'; </style>",
        "<style>p {background: url(https://a.org/x)}</style>",
    ],
)
def test_what_a_browser_would_ask_for_is_found(text):
    assert pages.requests(text) == ["https://a.org/x"]


def test_where_a_page_will_be_shown_is_not_asked_for():
    assert pages.requests('<link rel="canonical" href="https://a.org/x">') == []


def public(module):
    """The names that a package lists, or the classes and functions of a module that lists none, with what they are."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return {name: getattr(module, name) for name in listed}
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    return {name: value for name, value in own.items() if not name.startswith("_")}


def absent(module, shown, pages):
    """The public names of a module that no page of the reference shows, and no page of an encoding."""
    missing = []
    for name, value in public(module).items():
        if inspect.ismodule(value):
            there = value.__name__ in pages or hasattr(
                value, "__path__"
            )  # the names of packages are looked for themselves
        elif inspect.isclass(value) or inspect.isfunction(value):
            there = f"{value.__module__}.{value.__qualname__}" in shown or not value.__module__.startswith("attnjax")
        else:
            there = any(path.endswith(f".{name}") for path in shown)
        missing += [] if there else [f"{module.__name__}.{name}"]
    return missing


def test_every_public_name_is_in_the_reference_or_has_a_page_of_its_own():
    shown = {path for part in reference.PARTS for path in reference.names(part).values()}
    own = {row.path.replace(":", ".") for row in ENCODINGS.values()}
    packages = [found.name for found in pkgutil.walk_packages(attnjax.__path__, "attnjax.") if found.ispkg]
    listing = [module for module in map(importlib.import_module, ["attnjax", *packages]) if hasattr(module, "__all__")]
    assert len(listing) == 13
    parts = [importlib.import_module(f"attnjax.long.{found.name}") for found in pkgutil.iter_modules(long.__path__)]
    assert sum(len(public(module)) for module in parts) > 40
    modules = [*listing, *parts]
    assert [name for module in modules for name in absent(module, shown | own, reference.PARTS)] == []
    assert "attnjax.positions.Compose" in absent(attnjax.positions, own, {})


def test_no_name_stands_on_two_pages_of_the_reference():
    """Or links to it would be ambiguous; and those that are put beside the names of a part are there."""
    paths = [path for part in reference.PARTS for path in reference.names(part).values()]
    assert sorted(path for path in paths if paths.count(path) > 1) == []
    for part, beside in reference.BESIDE.items():
        for module, name in (path.split(".") for path in beside):
            assert getattr(importlib.import_module(f"{part}.{module}"), name).__module__ == f"{part}.{module}"


def test_every_encoding_has_facts_and_every_part_has_names():
    facts = encodings.table(ROOT)
    assert set(facts) == set(ENCODINGS)
    assert dict(facts["rope"])["acts on"] == "queries, keys"
    assert set(encodings.USED_BY) == set(ENCODINGS)
    found = {part: reference.names(part) for part in reference.PARTS}
    assert all(found.values())
    assert found["attnjax.modules"]["generate"] == "attnjax.modules.generate.generate"


@pytest.mark.parametrize("name", ENCODINGS)
def test_who_uses_an_encoding_is_said_with_a_source(name):
    """A paper by its number, or a repository whose code or configuration shows it; or that nobody is known."""
    told = encodings.USED_BY[name]
    assert told.startswith(encodings.NOBODY) or re.search(r"arXiv:\d{4}\.\d{5}|\w+/[\w.-]+", told)


def test_the_page_of_an_encoding_says_who_uses_it():
    facts = encodings.table(ROOT)
    assert "| used by | T5 (arXiv:1910.10683) |" in encodings.page(ROOT, "t5", facts["t5"])
    assert "| used by | no published model that we know of |" in encodings.page(ROOT, "cope", facts["cope"])


def test_arguments_described_together_have_a_line_each():
    from scripts.site.examples import apart

    text = "Line.\n\nArgs:\n  q, k, v: raw\n    projections.\n  mask: which.\n\nRaises:\n  ValueError: a, b: c.\n"
    assert apart(text) == (
        "Line.\n\nArgs:\n  q: raw\n    projections.\n  k: see `q`.\n  v: see `q`.\n  mask: which.\n\nRaises:\n"
        "  ValueError: a, b: c.\n"
    )
    assert apart("Args:\n  gate, params: as there.") == "Args:\n  gate: as there.\n  params: see `gate`.\n"
    assert apart("  q, k: not arguments\n") == "  q, k: not arguments\n"


def test_a_page_of_an_encoding_has_the_rows_of_the_tables(tmp_path):
    """RoPE has runs in the first study; FoX in none, and its page says that the length table was not run."""
    committed = "| [rope_vs_sinusoidal](../experiments/rope_vs_sinusoidal/README.md) | copy | up to 16 | 1 | 3 of 3 |"
    assert committed in results.studies(ROOT, "rope")
    assert "theta" not in results.studies(ROOT, "rope")  # its runs have other bases than the default
    assert results.studies(ROOT, "fox") == ""
    assert "has not been run yet" in results.section(tmp_path, "fox")
    (tmp_path / "experiments" / "length_table").mkdir(parents=True)
    (tmp_path / results.TABLE).write_text(
        "task,encoding,runs,fitted,length_factor,length_factor_low,length_factor_high,length_factor_interval,rank\n"
        "copy,fox,10,9,2,1.5,3,interval,4\n"
    )
    assert "| copy | 2 (interval 1.5 to 3) | 9 of 10 | 4 |" in results.section(tmp_path, "fox")
    assert "has no runs of this encoding" in results.section(tmp_path, "cope")


def test_every_study_and_page_is_in_the_navigation():
    listed = set(re.findall(r'= "([\w/]+\.md)"', (ROOT / "docs/zensical.toml").read_text(encoding="utf-8")))
    there = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").glob("*/README.md")]
    assert {path.relative_to(ROOT).as_posix() for path in there} <= listed
    assert navigation("reference", reference.PARTS).count("\n") == len(reference.PARTS) - 1


@pytest.mark.slow
def test_the_explorer_is_written_where_its_page_shows_it(tmp_path):
    page = (ROOT / "docs" / "explorer.md").read_text(encoding="utf-8")
    (source,) = re.findall(r'<iframe src="([^"]+)"', page)
    (tmp_path / "docs").mkdir()
    explorer(tmp_path)
    check_explorer(tmp_path / "docs" / source)


def check_explorer(path):
    """That the page has what it draws with and no run, and asks the network for nothing."""
    text = path.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data)["runs"] == []
    assert script() in text
    assert pages.requests(text) == []


@pytest.mark.slow
def test_the_site_is_built_and_searched_from_the_disk(tmp_path):
    main(["--out", str(tmp_path / "site")])
    site = tmp_path / "site"
    assert {f"{name}.html" for name in ENCODINGS} == {path.name for path in (site / "encodings").glob("*.html")}
    for part in reference.PARTS:
        text = (site / "reference" / f"{part}.html").read_text(encoding="utf-8")
        assert [name for name in reference.names(part) if f'.{name}"' not in text] == []
    start = (site / "docs" / "start.html").read_text(encoding="utf-8")
    assert "exit status 0" in start
    assert "report.html" in start
    cluster = (site / "docs" / "tutorials" / "cluster.html").read_text(encoding="utf-8")
    assert "exit status 75" in cluster  # the worker that was warned
    assert "exit statuses [0, 0]" in cluster
    fox = (site / "encodings" / "fox.html").read_text(encoding="utf-8")
    assert "What our tables say" in fox
    assert '<iframe src="explore.html"' in (site / "docs" / "explorer.html").read_text(encoding="utf-8")
    check_explorer(site / "docs" / "explore.html")
    assert [found for page in site.rglob("*.html") for found in pages.requests(page.read_text(encoding="utf-8"))] == []
    if BROWSER is None:
        pytest.skip("NOT RUN: a search in a browser, because none is installed")
    (site / "docs" / "search.html").write_text(start.replace("</body>", SEARCH), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--v=0"]
    command += ["--virtual-time-budget=15000", "--dump-dom", f"file://{site}/docs/search.html"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True, text=True)
    assert re.search(r"FOUND .*results.*FoX", done.stderr), done.stderr[-2000:]


@pytest.fixture
def only(monkeypatch):
    """Lets the site have one page, of this text, and what pages are drawn with."""
    from scripts.site import __main__ as command

    def having(text):
        def copy(root, staged):
            shutil.copytree(root / "docs" / "assets", staged / "docs" / "assets")
            (staged / "README.md").write_text(text)

        for name in ("encodings", "reference"):
            monkeypatch.setattr(getattr(command, name), "write", lambda *_: {})
        monkeypatch.setattr(command.pages, "copy", copy)
        monkeypatch.setattr(command, "explorer", lambda staged: None)

    return having


@pytest.mark.slow
def test_a_site_with_an_address_has_a_page_for_what_does_not_exist(tmp_path, only):
    """Below any folder: its links begin at the top of the server."""
    only("# Page\n")
    main(["--out", str(tmp_path / "disk")])
    assert not (tmp_path / "disk" / "404.html").exists()
    (tmp_path / "disk" / "old.html").touch()
    main(["--out", str(tmp_path / "disk")])
    assert not (tmp_path / "disk" / "old.html").exists(), "a site takes the place of an earlier one"
    main(["--out", str(tmp_path / "server"), "--address", "https://example.org/attnjax/"])
    tags = Parsed((tmp_path / "server" / "404.html").read_text()).tags
    needed = [dict(attributes) for tag, attributes in tags if tag in ("link", "script")]
    links = [link for one in needed if (link := one.get("href") or one.get("src")) and one.get("rel") != "canonical"]
    assert "/attnjax/docs/assets/site.css" in links
    for link in links:
        assert (tmp_path / "server" / link.removeprefix("/attnjax/")).is_file(), link


def test_an_address_that_is_none_is_refused(tmp_path, capsys):
    for address in ("example.org", "https://example.org/attnjax", "file:///site/"):
        with pytest.raises(SystemExit):
            main(["--out", str(tmp_path / "site"), "--address", address])
        assert (
            f"must be like https://example.org/attnjax/, with a / at its end, got '{address}'"
            in capsys.readouterr().err
        )


def test_a_folder_that_holds_no_site_is_left_alone(tmp_path, monkeypatch, capsys):
    def never(*_):
        raise AssertionError("the site would be put into this folder")

    monkeypatch.setattr("scripts.site.__main__.build", never)
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(ROOT)
    foreign = "is not empty, and no site was built there before: choose a folder that is empty or does not exist"
    refused = [(tmp_path, foreign), (ROOT / "docs", foreign), (tmp_path / "mine", "is no folder")]
    refused += [
        (one, "holds this checkout") for one in (ROOT, ROOT.parent, Path("/"), ROOT / "docs" / "..", tmp_path / "link")
    ]
    for folder, why in refused:
        with pytest.raises(SystemExit):
            main(["--out", str(folder)])
        assert f"--out: {folder.resolve()} {why}" in capsys.readouterr().err


@pytest.mark.slow
def test_code_that_fails_is_an_error(tmp_path, only, capsys):
    only('# Page\n\n```python exec="on"\nprint(1 / 0)\n```\n')
    with pytest.raises(SystemExit, match="the site could not be built"):
        main(["--out", str(tmp_path / "site")])
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
def test_a_visit_in_a_browser_finds_what_is_wrong_with_a_page(tmp_path):
    site, record = tmp_path / "site", tmp_path / "site.json"
    (site / "sub").mkdir(parents=True)
    head = (
        '<!DOCTYPE html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><h2 id="here">A</h2>'
    )
    (site / "good.html").write_text(f'{head}<a href="sub/bad.html#here">a</a> <a href="https://a.org/">b</a>')
    scheme = 'if (matchMedia("(prefers-color-scheme: dark)").matches) console.error("dark");'
    wide = f'{head}<p style="width: 700px">wide</p><script>{scheme}</script>'
    (site / "sub" / "bad.html").write_text(f'{wide}<a href="no.html">a</a><a href="../good.html#there">b</a>')
    command = [sys.executable, "-m", "scripts.site.visit", str(site), "--record", str(record)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(record.read_text())
    assert found["pages"] == ["good.html", "sub/bad.html"]
    assert set(found["faults"]) == {"sub/bad.html"}
    first, second, dark, phone = found["faults"]["sub/bad.html"]
    assert (first, second) == ("light: leads nowhere: sub/no.html", "light: leads nowhere: good.html#there")
    assert dark.startswith("dark: error: ")
    assert re.fullmatch(r"phone: is 7\d\d pixels wide", phone)
    assert "2 pages in 3 modes, 1 with faults" in done.stdout
