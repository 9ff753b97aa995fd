"""docs/clusters.md: each of its commands is one that the program takes, and is run by a test or marked as not run."""

import ast
import pathlib
import re
import shlex
import tomllib

import pytest

from attnjax.cli.parser import parser
from attnjax.cli.planning import planned
from attnjax.sweep.profiles import profile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
RUN_BY = {
    "attnjax sweep theta --plan": "tests/sweep/test_work.py::test_a_planned_sweep_is_trained_by_a_worker",
    "attnjax work shared/theta": "tests/sweep/test_work.py::test_a_planned_sweep_is_trained_by_a_worker",
    "attnjax list runs shared/theta": "tests/test_cli_watching.py::test_ends_with_the_last_run",
    "attnjax list runs gs:": "tests/records/test_remote.py::test_the_list_is_the_same_and_names_the_url",
    "attnjax report gs:": "tests/records/test_remote.py::test_the_command_writes_it_beside_where_it_is_called",
    "attnjax sweep theta --executor slurm": "tests/engines/test_slurm.py::"
    "test_an_array_that_is_cancelled_requeued_and_warned_at_random_trains_each_run_once",
    "attnjax sweep theta --executor ray": "tests/engines/test_ray.py::"
    "test_a_cluster_of_one_command_is_on_this_machine_alone_and_its_workers_save_when_it_is_stopped",
    "attnjax sweep heads_lm --executor ray": "tests/engines/test_ray_hosts.py::"
    "test_a_model_over_two_nodes_one_of_which_is_lost_has_the_bits_of_one_process",
    "attnjax run heads_lm": "tests/test_hosts.py::test_two_processes_have_the_bits_of_one_and_the_second_start_does_nothing",
    "#!/bin/bash # SLURM": "tests/engines/test_hosts.py::"
    "test_a_model_over_two_nodes_that_is_requeued_has_the_bits_of_one_process",
    "python -m tests.engines.scale": "tests/engines/test_scale_record.py::"
    "test_it_can_be_made_and_counts_the_same_files_at_every_size",
    "python -m tests.engines.run --engine slurm": "tests/engines/test_record.py::"
    "test_the_disturbed_sweep_on_slurm_had_the_bits_of_the_undisturbed_one",
    "python -m tests.engines.run --engine ray": "tests/engines/test_record.py::"
    "test_the_disturbed_sweep_on_ray_had_the_bits_of_the_undisturbed_one",
    "python -m tests.engines.run --engine both": "tests/engines/test_record.py::"
    "test_a_sweep_on_slurm_and_ray_at_once_had_the_bits_of_the_undisturbed_one",
}
"""How a command or a script begins, and the test that runs it or reads what it made."""
NAMED = {"attnjax sweep", "attnjax list runs", "attnjax work DIR"}
"""Commands that a sentence names."""
NOT_RUN = re.compile(r"not run", re.IGNORECASE)
SAID_NOT_TO_RUN = {
    "gcloud storage rsync -r shared/theta gs://bucket/theta",
    "pip install -e '.[cloud]'",
    "pip install -e '.[ray]'",
}
"""Commands outside blocks, of which a sentence says that they were not run."""


def scripts() -> list[str]:
    """Blocks of shell and YAML."""
    return re.findall(r"```(?:bash|yaml)\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[str]:
    """Indented lines, and code in sentences, that are commands."""
    text = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    lines += re.findall(r"`([^`\n]+)`", text)
    return [line.split(" #")[0].strip() for line in lines if re.match(r"(attnjax|pip|python -m|gcloud) \S", line)]


def function_of(test: str) -> bool:
    """Whether there is a function of this name in that file."""
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree))


def test_each_is_run_by_a_test_or_marked():
    found = [*commands(), *(" ".join(one.split()) for one in scripts() if not NOT_RUN.search(one.splitlines()[0]))]
    left = {one for one in found if not one.startswith(tuple(RUN_BY))} - NAMED
    assert left == SAID_NOT_TO_RUN
    assert re.search(r"Not run: `gcloud`[^.]*; both installations with pip", PAGE)
    assert [start for start in RUN_BY if not any(one.startswith(start) for one in found)] == []


@pytest.mark.parametrize("test", sorted(set(RUN_BY.values())))
def test_the_test_is_there(test):
    assert function_of(test)


def test_the_program_takes_every_command_and_the_configs_are_there():
    given = [words for program, *words in map(shlex.split, commands()) if program == "attnjax"]
    given = [words for words in given if f"attnjax {' '.join(words)}" not in NAMED]
    assert len(given) >= 9
    for words in given:
        chosen = parser().parse_args(words)
        assert words[0] not in ("sweep", "run") or planned(chosen.config, []).runs


def words_of(value) -> list[list[str]]:
    """The commands in a parsed block of YAML: lists named `command`, and the line named `run`."""
    if isinstance(value, list):
        return [words for one in value for words in words_of(one)]
    found = []
    for key, one in (value if isinstance(value, dict) else {}).items():
        if key == "command" or (key == "run" and isinstance(one, str)):
            found.append(shlex.split(one) if isinstance(one, str) else one)
        else:
            found += words_of(one)
    return found


def test_the_program_takes_the_commands_of_other_schedulers():
    """Kubernetes puts an environment variable in the place of $(NAME), here the number of the process."""
    yaml = pytest.importorskip("yaml", reason="NOT RUN: needs PyYAML, which comes with Ray")
    blocks = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    found = [words_of(block) for block in blocks]
    assert [len(one) for one in found] == [1, 1, 1]
    for ((program, *words),) in found:
        assert program == "attnjax"
        chosen = parser().parse_args([word.replace("$(JOB_COMPLETION_INDEX)", "3") for word in words])
        assert words[0] != "run" or planned(chosen.config, []).runs


def test_extras_and_profiles_are_known(tmp_path):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"attnjax\[(\w+)\]", PAGE)) <= extras.keys()
    tables = re.findall(r"```toml\n(\[(\w+)\].*?)```", PAGE, re.DOTALL)
    assert [engine for _, engine in tables] == ["slurm", "ray", "ray"]
    for (table, engine), gpus, processes in zip(tables, (1, 1, 8), (1, 1, 2), strict=True):
        (tmp_path / "cluster.toml").write_text(table, encoding="utf-8")
        found = profile(tmp_path / "cluster.toml", engine)
        assert (found.gpus, found.processes) == (gpus, processes)
