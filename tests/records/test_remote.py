"""Records in object storage are read as a copy, and names in a bucket are not trusted."""

import pytest

fsspec = pytest.importorskip("fsspec")

from attnjax.cli import main  # noqa: E402
from attnjax.records.remote import local, mirrored  # noqa: E402
from attnjax.sweep import plan, prepare, run_here, scan, seeds  # noqa: E402
from tests.sweep import fake_training  # noqa: E402

SETTINGS = {"name": "small", "train": {"steps": 4, "checkpoint_every": 2}, "evaluate": {"lengths": [10]}}


@pytest.fixture
def bucket(tmp_path):
    """A sweep of two runs, one of which is done, and its copy in a file system in memory."""
    store = prepare(tmp_path / "theta", "small", plan(SETTINGS, seeds(2)))
    run_here(store.only([store.runs[0].run]), fake_training.train)
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    memory.put(str(store.root), "/bucket/theta", recursive=True)
    yield store.root
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def test_what_is_read_there_is_what_is_here_without_checkpoints(bucket, capsys):
    with mirrored("memory://bucket/theta") as folder:
        there, here = scan(folder), scan(bucket)
        assert [(run.run, run.status, run.config) for run in there.runs] == [
            (run.run, run.status, run.config) for run in here.runs
        ]
        assert there.runs[0].results() == here.runs[0].results()
        assert not list(folder.rglob("checkpoints"))
    assert not folder.exists()
    assert main(["list", "runs", "memory://bucket/theta"]) == 0
    assert "1 done, 1 pending" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../outside", "0123456789abcdef/../../outside", "0123456789abcdef/checkpoints/2"])
def test_names_of_a_bucket_lead_nowhere(bucket, name, tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"/bucket/theta/{name}", b"x")
    with mirrored("memory://bucket/theta") as folder:
        assert len(scan(folder).runs) == 2
        assert not list(folder.parent.rglob("outside"))


@pytest.mark.parametrize("url", ["memory://bucket/nothing", "nonsense://bucket/theta"])
def test_what_cannot_be_read_is_a_sentence(bucket, capsys, url):
    assert main(["list", "runs", url]) == 2
    assert capsys.readouterr().err.startswith(f"attnjax: error: {url} cannot be read: ")


def test_nothing_is_trained_there(capsys):
    with pytest.raises(ValueError, match="gs://bucket/theta is a URL, and no"):
        local("gs://bucket/theta", "no")
    with pytest.raises(SystemExit):
        main(["run", "theta", "--out", "gs://bucket/theta"])
    assert "claims need files that exactly one process can make" in capsys.readouterr().err
    assert main(["work", "gs://bucket/theta"]) == 2
    assert "gs://bucket/theta is a URL, and runs are trained in a folder" in capsys.readouterr().err
