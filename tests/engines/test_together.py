"""One folder whose runs are claimed by workers of a real SLURM and of a real Ray at the same time: each run is trained once."""

import psutil
import pytest
from checks import check_complete

from attnjax.sweep import load
from tests.engines import cluster, ray_nodes, together
from tests.engines.interruptions import leases
from tests.engines.test_slurm import PATHS, written

MISSING = ", ".join(filter(None, (cluster.missing(), ray_nodes.missing())))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"NOT RUN: needs {MISSING}: {cluster.INSTALL}, pip install 'attnjax[ray]'"
    ),
    pytest.mark.filterwarnings("default"),  # those of Ray
]


def test_workers_of_slurm_and_of_ray_on_one_folder_train_each_run_once(tmp_path):
    """Two workers each, runs that are slow until all four hold one; then one of each engine is killed, and runs are quick."""
    root, go, killed = tmp_path / "out", tmp_path / "go", {}
    config = written(tmp_path, runs=16, work=200_000, slow_until=str(go))

    def disturb(store, event, engines):
        if not killed and sorted(engines.values()) == ["ray", "ray", "slurm", "slurm"]:
            for pid, engine in engines.items():
                if engine not in killed:
                    psutil.Process(pid).kill()
                    killed[engine] = pid
            go.touch()

    engines, _ = together.train(config, root, tmp_path, {"PYTHONPATH": PATHS}, disturb, "fake_training:train")
    assert sorted(killed) == ["ray", "slurm"]
    store = load(root)
    check_complete(store)
    assert sorted(len(leases(store.directory(entry.run))) for entry in store.runs) == [1] * 14 + [2] * 2
    told = together.shares(store, engines)["ended_by"]
    assert sorted(told) == ["ray", "slurm"], told
    assert sum(told.values()) == 16
