"""Wrong values: what commands say of runs, beside what is true of them. Each finding is a sentence."""

import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attnjax.records.status import STATES
from tests.fuzz import pages
from tests.fuzz.subjects import Facts, digest, readable

STATE = re.compile(rf" ({'|'.join(STATES)}) +(\d+)( |$)")
"""State and step in a row of `attnjax list runs`, between what the run is and what it scored."""


def loaded(facts: Facts, run: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Parameters that were never those of the run, or not at the step that is named."""
    if run not in facts.states:
        return
    steps = {step for step, known in facts.states[run].items() if found["fingerprint"] in known}
    if not steps:
        yield f"the parameters of {run} are none that it had at any step"
    elif found["step"] is not None and found["step"] not in steps:
        yield f"the parameters of {run} are said to be of step {found['step']} and are of {sorted(steps)}"


def shown(facts: Facts, run: Mapping[str, Any]) -> Iterator[str]:
    """Maps that are of no step, or of one that the page does not name."""
    name = run["name"].split(" · ")[-1]
    if name not in facts.maps:
        return
    steps = {step for step, known in facts.maps[name].items() if pages.maps(run) in known}
    if not steps:
        yield f"the page shows weights of {name} that it had at no step"
    elif not steps & pages.said(run):
        yield f"the page shows {name} at step {sorted(steps)}, and names only {sorted(pages.said(run))}"


def reported(facts: Facts, thing: pathlib.Path, out: pathlib.Path, *, checksums: bool) -> Iterator[str]:
    """Values that were not measured. Lines of an earlier version have no checksum: changed ones are believed."""
    for run, metric, value in pages.scores(out):
        known = {x for (name, what), values in facts.results.items() for x in values if (name, what) == (run, metric)}
        changed = digest(thing / run / "results.jsonl") != facts.files.get(run, {}).get("results.jsonl")
        if not known or (changed and not checksums):
            continue
        if not any(math.isclose(value, x, rel_tol=1e-6, abs_tol=1e-9) for x in known):
            yield f"the report says {metric} {value} of {run}; measured: {sorted(known)}"


def listed(facts: Facts, thing: pathlib.Path, output: str) -> Iterator[str]:
    """A state or step that is not that of a run whose own files are whole."""
    for line in output.splitlines():
        run = line.partition(" ")[0]
        names = ("config.json", "status.json")
        if run not in facts.ends or any(digest(thing / run / name) != facts.files[run][name] for name in names):
            continue
        told = STATE.search(line)
        if not re.search(r" damaged\b", line) and (told is None or (told[1], int(told[2])) != facts.ends[run]):
            yield f"the list says {line!r}; {run} is {facts.ends[run]}"


def trained(facts: Facts, thing: pathlib.Path, before: Mapping[str, str], *, checksums: bool) -> Iterator[str]:
    """Runs that ended done by this command, and otherwise than undisturbed."""
    for run in sorted(facts.ends):
        if state(thing / run) != "done" or before[run] == "done":
            continue
        found = table(thing / run / "manifest.json").get("parameters_sha256")
        if found not in facts.outcomes[run]:
            yield f"{run} ended done with parameters {found}, not those of the undisturbed run"
        lines = readable(thing / run / "results.jsonl").splitlines() if checksums else []
        for line in lines:
            one = parsed(line)
            known = facts.results.get((run, str(one.get("metric"))), set())
            # A line without the fields that ours have was not written by us, and is told as such or not at all.
            if known and one.keys() == facts.fields and one["value"] not in known:
                yield f"{run} is done with a result that was not measured: {line[:200].decode(errors='replace')}"


def claimed(facts: Facts, thing: pathlib.Path, *, all_of_them: bool) -> Iterator[str]:
    """An exit status 0 although not all runs ended."""
    after = {run: state(thing / run) for run in sorted(facts.ends)}
    ended = [run for run in after if after[run] in ("done", "failed")]
    if len(ended) < (len(after) if all_of_them else 1):
        yield f"exit status 0, and the runs are {after}"


def state(run: pathlib.Path) -> str:
    """What the status of a run says; "pending" where it says nothing."""
    return str(table(run / "status.json").get("state", "pending"))


def table(path: pathlib.Path) -> dict[str, Any]:
    """A JSON object in an ordinary file; {} where there is none."""
    return parsed(readable(path))


def parsed(text: bytes) -> dict[str, Any]:
    """A JSON object; {} where the text is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
