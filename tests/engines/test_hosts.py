"""One model over two nodes of a real SLURM, whose tasks know how many they are; the job is requeued on its way."""

import sys

import pytest
from checks import until

from attnjax.records.runs import read_manifest
from tests import hosts
from tests.engines.cluster import Cluster, missing
from tests.train import killing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}: apt-get install slurmctld slurmd slurm-client"),
]
JOB = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks=2 --ntasks-per-node=1 --requeue --open-mode=append --output=job.txt
srun {python} -m attnjax run tiny.json --out out --mesh data=2 --patience 5 --coordinator 127.0.0.1:{port}
code=$?
echo "ended with $code"
exit $code
"""


def test_a_model_over_two_nodes_that_is_requeued_has_the_bits_of_one_process(tmp_path):
    alone = hosts.attnjax(tmp_path, "run", "tiny.json", "--mesh", "data=2", "--out", "alone", devices=2)
    assert hosts.ends([alone])[0][0] == 0
    (tmp_path / "job.sh").write_text(JOB.format(python=sys.executable, port=hosts.free_port()))
    (tmp_path / "slurm").mkdir()
    with Cluster(tmp_path / "slurm") as slurm:
        slurm.environment |= hosts.environment(tmp_path, devices=1) | {"SLURM_CONF": slurm.environment["SLURM_CONF"]}
        number = slurm.run("sbatch", "--parsable", f"--chdir={tmp_path}", str(tmp_path / "job.sh")).strip()
        until(lambda: len(hosts.checkpoints(tmp_path / "out")) > 1, 180)
        slurm.run("scontrol", "requeue", number)
        told = tmp_path / "job.txt"
        until(lambda: told.exists() and "ended with 0" in told.read_text().splitlines(), 300)
    table = read_manifest(killing.the_run(tmp_path / "out"))
    assert (table["state"], table["process_count"], table["changed_on_resume"]) == ("done", 2, [])
    assert table["resumed_from"] > 0
    assert hosts.digest(tmp_path / "out") == hosts.digest(tmp_path / "alone")
