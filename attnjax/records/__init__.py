"""The stored records of runs: sweeps write them; sweeps, reports and the explorer read them. Never imports JAX.

    files.py       whole files: text, JSON tables with a schema
    jsonl.py       logs: appending to them, reading them
    examples.py    scores of single examples (NumPy)
    status.py      how far a run is
    runs.py        which runs a folder holds, and where the records of a run are
    typed.py       the records of runs as reports compute from them
    stored.py      reads them from a folder: live, finished or packed
    packed.py      a folder of runs as three files that can be committed: writing and reading them
    table.py       `attnjax.results`: all measurements as one tidy table (pandas)
    values.py      values in JSON that somebody else may have written

Damage is never fatal: it is reported beside what is sound.
"""
