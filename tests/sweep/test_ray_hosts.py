"""Workers of several processes as tasks of Ray, without a cluster: who gets what, what an end means, errors in sentences."""

import os
import socket
import sys
import types

import pytest
from test_ray_tasks import CANCELLED, LOST, Ray, task

from attnjax.cli import argument_types, main
from attnjax.config.mesh import MeshShape
from attnjax.sweep import ray_tasks, seeds
from attnjax.sweep.profiles import Profile, profile
from attnjax.sweep.ray_hosts import check_mesh, free_address, lacking
from attnjax.sweep.ray_tasks import RayTasks, work

NODE = {"Alive": True, "Resources": {"CPU": 2.0}}


class SeveralNodes(Ray):
    """Ray with placement groups, whose tasks end as `ends` says by their numbers: 1 is the address of process 0."""

    def __init__(self):
        super().__init__()
        self.ends, self.groups, self.removed, self.functions = {}, [], [], []
        strategies = types.SimpleNamespace(PlacementGroupSchedulingStrategy=self._where)
        self.util = types.SimpleNamespace(
            placement_group=self._group, remove_placement_group=self.removed.append, scheduling_strategies=strategies
        )

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2.0, "fast": 1.0}}] * 3

    def _group(self, bundles, *, strategy):
        self.groups.append((bundles, strategy))
        return len(self.groups)

    def _where(self, group, *, placement_group_bundle_index):
        return group, placement_group_bundle_index

    def _begin(self, function, given):
        self.functions.append(function)
        self.given.append(given)
        return len(self.given)

    def wait(self, references, num_returns, timeout):
        return [one for one in references if one in self.ends], []

    def get(self, reference):
        end = self.ends.pop(reference)
        if isinstance(end, Exception):
            raise end
        return end


@pytest.fixture
def started(make, monkeypatch):
    """Starts a worker of two processes, and returns its executor, Ray and what is told."""

    def begin(**fields):
        ray, told = SeveralNodes(), []
        monkeypatch.setattr(ray_tasks, "library", lambda: ray)
        store = make(seeds(1))
        fields = {"processes": 2, "restarts": 3, **fields}
        executor = RayTasks(store, ["python", "-m", "attnjax", "work", "out"], 1, Profile(**fields), told.append)
        assert executor.submit() == "07"
        return executor, ray, told

    return begin


@pytest.mark.parametrize("placement", ["STRICT_SPREAD", "STRICT_PACK"])
def test_each_process_has_a_bundle_a_number_and_the_address_of_the_first(started, placement):
    executor, ray, _ = started(placement=placement, cpus=1, resources={"fast": 0.5})
    assert ray.groups == [([{"CPU": 1, "fast": 0.5}] * 2, placement)]
    assert ray.functions == [free_address, work, work]
    where = [options.pop("scheduling_strategy") for options in ray.options]
    assert where == [(1, 0), (1, 0), (1, 1)]
    assert ray.options == [{"num_cpus": 1, "num_gpus": 0, "resources": {"fast": 0.5}, "max_retries": 0}] * 3
    logs = []
    for number, (words, environment, folder, log, coordinator) in enumerate(ray.given[1:]):
        shared = ["-m", "attnjax", "work", "out", "--attached"]
        assert words == [*shared, "--processes", "2", "--process-id", str(number)]
        assert (folder, coordinator) == (os.getcwd(), 1)
        assert "NPROC=1" in environment
        logs.append(log)
    assert len(set(logs)) == 2
    assert executor.poll("07") == {"waiting": 1}


AGAIN, WAIT = ["--attached"], ["--attached", "--wait"]


@pytest.mark.parametrize(
    ("ends", "more", "words"),
    [
        ((0, 0), None, ""),
        ((3, 3), None, ""),
        ((0, -6), None, ""),
        ((75, 75), AGAIN, "ended: process 0 ended with exit status 75, process 1 ended with exit status 75, and is"),
        ((75, -9), WAIT, "ended: process 0 ended with exit status 75, process 1 ended with exit status -9, and is"),
        ((-6, LOST), WAIT, "ended: process 0 ended with exit status -6, process 1 was lost (the node died), and is"),
        ((LOST, LOST), WAIT, "ended: process 0 was lost (the node died), process 1 was lost (the node died), and is"),
        ((1, 75), WAIT, "ended: process 0 ended with exit status 1, process 1 ended with exit status 75, and is"),
        ((1, 1), None, "ended: process 0 ended with exit status 1, process 1 ended with exit status 1; the last line"),
        ((CANCELLED, 75), None, ""),
    ],
)
def test_what_the_ends_of_two_processes_mean(started, ends, more, words):
    executor, ray, told = started()
    ray.ends = {2: ends[0], 3: ends[1]}
    assert executor.poll("07") == ({} if more is None else {"waiting": 1})
    assert ray.removed == [1]
    assert [one.startswith(f"worker 1 {words}") for one in told] == [True] * bool(words)
    assert len(ray.groups) == (1 if more is None else 2)
    for words, *_ in ray.given[4:]:
        assert words[4:-4] == more


def test_where_one_has_ended_the_others_have_time_to_end_and_are_cancelled_then(started, monkeypatch):
    executor, ray, told = started()
    ray.ends = {3: -9}
    assert executor.poll("07") == {"waiting": 1}
    assert ray.cancelled == []
    monkeypatch.setattr(ray_tasks, "GRACE", -1.0)
    assert executor.poll("07") == executor.poll("07") == {"waiting": 1}
    assert (ray.cancelled, ray.removed) == ([2], [])
    ray.ends = {2: CANCELLED}
    assert executor.poll("07") == {"waiting": 1}
    assert told == [
        "worker 1 ended: process 0 was cancelled, process 1 ended with exit status -9, and is started again"
    ]
    assert len(ray.groups) == 2


def test_a_process_that_somebody_else_cancels_ends_the_others_and_is_not_started_again(started, monkeypatch):
    executor, ray, told = started()
    monkeypatch.setattr(ray_tasks, "GRACE", -1.0)
    ray.ends = {3: CANCELLED}
    assert executor.poll("07") == executor.poll("07") == {"waiting": 1}
    assert 2 in ray.cancelled
    ray.ends = {2: CANCELLED}
    assert executor.poll("07") == {}
    assert (told, ray.removed, len(ray.groups)) == ([], [1], 1)


def test_stopping_cancels_all_processes_and_starts_none_again(started):
    executor, ray, told = started()
    executor.stop("07")
    assert ray.cancelled == [2, 3]
    ray.ends = {2: 75, 3: LOST}
    assert executor.poll("07") == {}
    assert (told, ray.removed, len(ray.groups)) == ([], [1], 1)


def test_a_port_that_was_taken_meanwhile_is_another_one_and_other_mistakes_end_the_driver(started):
    executor, ray, told = started()
    taken = "attnjax: error: --coordinator: port 4711 of this host cannot be used: Address already in use"
    with open(ray.given[1][3], "w") as log:
        log.write(f"{taken}\n")
    ray.ends = {2: 2, 3: 75}
    assert executor.poll("07") == {"waiting": 1}
    assert len(ray.groups) == 2
    assert "process 0 ended with exit status 2, " in told[0]
    with open(ray.given[5][3], "w") as log:
        log.write("attnjax: error: process 1 has another jax than process 0\n")
    with open(ray.given[4][3], "w") as log:
        log.write("attnjax: error: process 1 has another jax than process 0\n")
    ray.ends = {5: 2, 6: 2}
    with pytest.raises(ValueError, match=r"exit status 2; the last line of its log is: .* process 1 has another jax"):
        executor.poll("07")


def test_the_task_gives_its_process_the_address(tmp_path):
    words = ["-c", "import sys; print(sys.argv[1:])", "--process-id", "1"]
    assert task(tmp_path, words, "10.0.0.1:80").communicate(timeout=60)[0] == "0\n"
    assert (tmp_path / "log.txt").read_text() == "['--process-id', '1', '--coordinator', '10.0.0.1:80']\n"


@pytest.mark.parametrize(("host", "written"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_address_is_of_this_node_with_a_port_that_is_free(monkeypatch, host, written):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
    ray = types.SimpleNamespace(util=types.SimpleNamespace(get_node_ip_address=lambda: host))
    monkeypatch.setitem(sys.modules, "ray", ray)
    address = argument_types.coordinator(free_address())
    assert address.rpartition(":")[0] == written
    with socket.socket(family) as probe:
        probe.bind((host, int(address.rpartition(":")[2])))


def test_nodes_that_are_too_few():
    spread, packed = Profile(processes=3), Profile(processes=3, placement="STRICT_PACK")
    assert lacking([NODE] * 3, {"CPU": 1}, spread) == ""
    nodes = [NODE, NODE, {**NODE, "Alive": False}]
    assert lacking(nodes, {"CPU": 1}, spread) == "each takes 3 nodes with CPU 1 on each of them; nodes that have it: 2"
    assert lacking(nodes, {"CPU": 1}, packed) == "no node has what each takes (CPU 3)"
    assert lacking([{"Alive": True, "Resources": {"CPU": 3}}], {"CPU": 1}, packed) == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("processes = 0", "processes must be a number of at least 1, got 0$"),
        ("processes = -1", "processes must be a number of at least 1, got -1$"),
        ("processes = true", "processes must be a number of at least 1, got True$"),
        ('processes = 2\nplacement = "SPREAD"', "placement must be STRICT_SPREAD or STRICT_PACK, got 'SPREAD'$"),
        ("processes = 2\nplacement = []", r"placement must be STRICT_SPREAD or STRICT_PACK, got \[\]$"),
        ('placement = "STRICT_PACK"', "placement needs processes of 2 or more: it says on which nodes those of a"),
    ],
)
def test_profiles_of_several_processes_that_are_none(tmp_path, text, sentence):
    path = tmp_path / "cluster.toml"
    path.write_text(f"[ray]\n{text}\n")
    with pytest.raises(ValueError, match=sentence):
        profile(path, "ray")
    path.write_text("[slurm]\nprocesses = 2\n")
    with pytest.raises(ValueError, match="unknown field 'processes'"):
        profile(path, "slurm")


def test_a_profile_of_several_processes(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text('[ray]\nprocesses = 2\nplacement = "STRICT_PACK"\n')
    assert profile(path, "ray") == Profile(processes=2, placement="STRICT_PACK")


def test_the_devices_of_a_mesh_are_those_of_all_processes(tmp_path, capsys):
    (tmp_path / "cluster.toml").write_text("[ray]\nprocesses = 2\n")
    options = ["--executor", "ray", "--profile", str(tmp_path / "cluster.toml"), "--out", str(tmp_path / "out")]
    sentence = (
        "attnjax: error: --mesh must name a multiple of 2 devices, as many of each of the 2 processes of the profile"
    )
    for mesh, got in ([], "one device"), (["--mesh", "data=3"], "data=3"):
        assert main(["sweep", "rope_vs_sinusoidal", *options, *mesh]) == 2
        assert capsys.readouterr().err == f"{sentence}; got {got}\n"
    assert not (tmp_path / "out").exists()
    check_mesh(Profile(processes=2), MeshShape(data=4))
    check_mesh(Profile(), MeshShape(data=3))
