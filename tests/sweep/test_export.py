"""Records in the formats of other programs: the numbers of the records, and nothing about the machine."""

import getpass
import json
import math
import os
import pathlib
import platform
import shutil
import socket
import struct
import sys
import types

import pytest

from attnjax.cli import main
from attnjax.folder import LinkError
from attnjax.sweep import export as module, scan

FROZEN = pathlib.Path(__file__).parents[1] / "frozen" / "format_1"
PLANTED = "s3cr3t-0f-the-env1r0nment"


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Two runs that were trained, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_TOKEN", PLANTED)
    return shutil.copytree(FROZEN, tmp_path / "runs" / "tiny")


def recorded(directory):
    """(step, name, value) of every line of the logs, read by themselves."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    found = {(row["step"], f"training/{name}", row[name]) for row in rows for name in ("loss", "accuracy")}
    rows = [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]
    return found | {(row["step"], f"{row['split']}/{row['metric']}/{row['length']}", row["value"]) for row in rows}


def crc32c(data):
    """CRC-32C (Castagnoli), bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def framed(data):
    """The records of a file as TensorFlow writes them: length, CRC of it, bytes, CRC of them."""
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12]) == (masked(data[:8]),)
        record, data = data[12 : 12 + size], data[12 + size :]
        assert struct.unpack("<I", data[:4]) == (masked(record),)
        yield record
        data = data[4:]


def varint(data, i):
    value = shift = 0
    while True:
        value |= (data[i] & 127) << shift
        i, shift = i + 1, shift + 7
        if data[i - 1] < 128:
            return value, i


def fields(data):
    """The fields of a protocol buffer: {number: [value, ...]}."""
    found, i = {}, 0
    while i < len(data):
        key, i = varint(data, i)
        if key & 7 == 0:
            value, i = varint(data, i)
        else:
            size, i = varint(data, i) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], i)
            value, i = data[i : i + size], i + size
        found.setdefault(key >> 3, []).append(value)
    return found


def private():
    return [
        socket.gethostname(),
        PLANTED,
        str(pathlib.Path.cwd()),
        os.path.expanduser("~") + "/",
        platform.release(),
        "pytest",
    ]


def check_private(data):
    assert not [word for word in private() if word.encode() in data]


def test_an_event_file_has_the_numbers_of_the_records(sweep, capsys):
    pytest.importorskip("tensorboardX", reason="needs the extra attnjax[tensorboard]")
    assert main(["export", "runs/tiny", "--to", "tensorboard"]) == 0
    paths = [pathlib.Path(line) for line in capsys.readouterr().out.splitlines()]
    assert len(paths) == 2
    for path in paths:
        run = path.name.rpartition(".")[2]
        assert path.parent.parent == pathlib.Path("exported/tensorboard")
        assert path.name == f"events.out.tfevents.{run}"
        first, config, *events = [fields(record) for record in framed(path.read_bytes())]
        assert first[3] == [b"brain.Event:2"]
        assert b'"learning_rate"' in config[5][0]
        found = set()
        for event in events:
            value = fields(fields(event[5][0])[1][0])
            found.add((event.get(2, [0])[0], value[1][0].decode(), struct.unpack("<f", value[2][0])[0]))
        expected = {
            (step, name, struct.unpack("<f", struct.pack("<f", value))[0])
            for step, name, value in recorded(sweep / run)
        }
        assert expected <= found
        assert {name for _, name, _ in found - expected} <= {"training/gradient_norm"}
        seconds = [struct.unpack("<d", event[1][0])[0] for event in events if 1 in event]
        assert seconds == sorted(seconds)
        assert max(seconds) < 1000, "seconds of training, not the time of day"
        check_private(path.read_bytes())


def test_the_same_again_is_the_same_file(sweep):
    pytest.importorskip("tensorboardX", reason="needs the extra attnjax[tensorboard]")
    run = scan(sweep).runs[0]
    path = module.export(run, "tensorboard", pathlib.Path("out"))
    before = path.read_bytes()
    with (sweep / run.run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 70, "lo')
    assert module.export(scan(sweep).runs[0], "tensorboard", pathlib.Path("out")) == path
    assert path.read_bytes() == before, "a torn line is none"
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_links_where_files_go_are_not_followed(sweep):
    pytest.importorskip("tensorboardX", reason="needs the extra attnjax[tensorboard]")
    for name in ("victim", "out"):
        pathlib.Path(name).mkdir()
    pathlib.Path("out/tensorboard").symlink_to("../victim")
    with pytest.raises(LinkError, match="tensorboard is a link"):
        module.export(scan(sweep).runs[0], "tensorboard", pathlib.Path("out"))
    assert not list(pathlib.Path("victim").iterdir())


def test_wandb_gets_the_numbers_offline_and_nothing_about_the_machine(sweep, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra attnjax[wandb]")
    for name, value in {
        "MODE": "online",
        "API_KEY": PLANTED * 2,
        "NOTES": PLANTED,
        "TAGS": PLANTED,
        "USERNAME": PLANTED,
    }.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    run = scan(sweep).runs[0]
    path = module.export(run, "wandb", pathlib.Path("exported"))
    assert path.name == f"run-{run.run}.wandb"
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    data = path.read_bytes()
    check_private(data)
    assert getpass.getuser().encode() not in data
    for word in ("training/loss", "learning_rate", run.run, *(name for _, name, _ in recorded(sweep / run.run))):
        assert word.encode() in data, word


class FakeWandb:
    """Remembers what it was given, and leaves a file as the real one does."""

    def __init__(self):
        self.given, self.logged, self.down = {}, [], False
        self.Settings = lambda **fields: fields

    def init(self, **fields):
        self.given, self.folder = fields, pathlib.Path(fields["dir"], "wandb", "offline-run-1-x")
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.mkdir(parents=True)

    def log(self, values, step):
        self.logged += [(step, name, value) for name, value in values.items()]

    def teardown(self):
        (self.folder / f"run-{self.given['id']}.wandb").write_bytes(b"complete")


def test_what_wandb_is_given(sweep, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = scan(sweep).runs[0]
    assert module.export(run, "wandb", pathlib.Path("exported")).read_bytes() == b"complete"
    assert recorded(sweep / run.run) <= set(fake.logged)
    steps = [step for step, _, _ in fake.logged]
    assert steps == sorted(steps), "wandb drops steps that come late"
    assert (fake.given["mode"], fake.given["project"], fake.given["id"]) == ("offline", "tiny", run.run)
    assert fake.given["config"]["task"]["name"] == run.config.task.name
    settings = fake.given["settings"]
    assert (settings["console"], settings["save_code"], settings["x_disable_meta"]) == ("off", False, True)
    assert not pathlib.Path(fake.given["dir"]).exists()


@pytest.mark.parametrize(("kind", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_package_that_is_missing_is_told_with_its_extra(sweep, monkeypatch, capsys, kind, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["export", "runs/tiny", "--to", kind]) == 2
    assert (
        f"attnjax: error: {kind} needs the package {package}: pip install 'attnjax[{kind}]'" in capsys.readouterr().err
    )
    assert not pathlib.Path("exported").exists()


def test_a_damaged_run_is_left_out_and_said(sweep, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb())
    first, second = sorted(path.parent for path in sweep.glob("*/config.json"))
    (first / "config.json").write_text("{}")
    assert main(["export", "runs/tiny", "--to", "wandb"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("left out: ")
    assert first.name in printed.err
    assert second.name in printed.out
    assert first.name not in printed.out
    assert main(["export", str(second), "--to", "wandb", "--out", "elsewhere"]) == 0
    assert main(["export", "nowhere", "--to", "wandb"]) == 2


def test_only_finite_numbers_of_steps_count():
    rows = [
        {"schema": 2, "step": 1, "loss": 0.5, "accuracy": None, "seconds": 2.5, "crc32": "00000000"},
        {"step": 2, "loss": math.inf, "accuracy": True, "other": "text"},
        {"step": -1, "loss": 1.0},
        {"step": 10**400, "loss": 1.0},
        {"loss": 1.0},
        {"step": 3, "loss": 10**400, "a\ud800b": 7, "seconds": math.nan},
    ]
    records = lambda tables: lambda: types.SimpleNamespace(tables=tables)
    results = [{"step": 2, "split": "test", "metric": "loss", "length": 64, "value": 0.25, "count": 3}]
    run = types.SimpleNamespace(metrics=records(rows), results=records(results))
    assert module.scalars(run) == [
        (1, "training/loss", 0.5, 2.5),
        (2, "test/loss/64", 0.25, 2.5),
        (3, "training/a\ufffdb", 7.0, 2.5),
    ]
