"""One model over two nodes of a real SLURM, whose tasks know how many they are; the job is requeued on its way."""

import pathlib
import re
import sys

import pytest
from checks import until

from attnjax.records.runs import read_manifest
from tests import hosts
from tests.engines.cluster import INSTALL, Cluster, missing
from tests.train import killing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}: {INSTALL}"),
]
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "clusters.md"
WAYS = {"requeue": ("scontrol", "requeue"), "warn": ("scancel", "--signal=USR1")}


def job(port: int) -> str:
    """The job script of docs/clusters.md, for a small model and two nodes that are this machine: no GPUs, no names of hosts."""
    [script] = re.findall(r"```bash\n(#!/bin/bash\n# SLURM\..*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    ours = {
        "#SBATCH --nodes=2": "#SBATCH --output=job.txt --nodes=2",
        " --gpus-per-node=8": "",
        "srun attnjax run heads_lm": f"srun {sys.executable} -m attnjax run tiny.json --patience 5",
        "data=16": "data=2",
        "shared/heads": "out",
        '"$(scontrol show hostnames | head -n 1):8476"': f"127.0.0.1:{port}",
    }
    for theirs, own in ours.items():
        assert script.count(theirs) == 1, theirs
        script = script.replace(theirs, own)
    return script


@pytest.mark.parametrize("way", ["requeue", "warn"])
@pytest.mark.slow
def test_a_model_over_two_nodes_that_is_requeued_has_the_bits_of_one_process(tmp_path, way):
    """By SLURM, or by the last line of the script, after a warning has ended both processes with 75."""
    alone = hosts.attnjax(tmp_path, "run", "tiny.json", "--mesh", "data=2", "--out", "alone", devices=2)
    assert hosts.ends([alone])[0][0] == 0
    (tmp_path / "job.sh").write_text(job(hosts.free_port()))
    (tmp_path / "slurm").mkdir()
    with Cluster(tmp_path / "slurm") as slurm:
        slurm.environment |= hosts.environment(tmp_path, devices=1) | {"SLURM_CONF": slurm.environment["SLURM_CONF"]}
        number = slurm.run("sbatch", "--parsable", f"--chdir={tmp_path}", str(tmp_path / "job.sh")).strip()
        until(lambda: len(hosts.checkpoints(tmp_path / "out")) > 1, 180)
        slurm.run(*WAYS[way], number)
        until(lambda: hosts.state(tmp_path / "out").state == "done", 300)
        until(lambda: not slurm.run("squeue", "--noheader"), 60)
    table = read_manifest(killing.the_run(tmp_path / "out"))
    assert (table["state"], table["process_count"], table["changed_on_resume"]) == ("done", 2, [])
    assert table["resumed_from"] > 0
    assert hosts.digest(tmp_path / "out") == hosts.digest(tmp_path / "alone")
