"""What a release checks before anything is published, and that its workflow can change nothing unseen."""

import re
from pathlib import Path

import pytest
import yaml

import attnjax
from scripts import release

ROOT = Path(__file__).resolve().parent.parent
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-01\n"


def test_the_version_is_read_without_importing_anything():
    assert release.version() == attnjax.__version__


@pytest.mark.parametrize(
    ("tag", "version", "wrong"),
    [
        ("v0.2.0", "0.2.0", ""),
        ("0.2.0", "0.2.0", "the tag is 0.2.0, but the version of the package is 0.2.0"),
        ("v0.2.1", "0.2.0", "the tag is v0.2.1, but the version of the package is 0.2.0"),
        ("v0.3.0", "0.3.0", "CHANGELOG.md has no heading '## [0.3.0] - YYYY-MM-DD'"),
    ],
)
def test_tag_version_and_changelog_must_agree(tag, version, wrong):
    assert release.problem(tag, version, CHANGELOG) == wrong


def test_version_changelog_and_citation_agree():
    """What the changelog calls the newest version, apart from what is not released, is the version of the package."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)
    assert headings[:2] == ["Unreleased", attnjax.__version__]
    assert release.problem(f"v{attnjax.__version__}", attnjax.__version__, changelog) == ""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == attnjax.__version__
    (date,) = re.findall(rf"^## \[{re.escape(attnjax.__version__)}\] - (\S+)$", changelog, re.MULTILINE)
    assert str(citation["date-released"]) == date


def test_a_tag_that_is_not_the_version_ends_the_release():
    with pytest.raises(SystemExit, match=r"the tag is v9.9.9, but the version of the package is"):
        release.main(["check", "v9.9.9"])


def test_actions_are_pinned_and_only_publishing_may_identify_itself():
    found = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    jobs = found["jobs"]
    uses = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert len(uses) == 4
    assert [one for one in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one)] == []
    assert found["permissions"] == {}
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
    }
    assert all("run" not in step for step in jobs["publish"]["steps"])
