"""The stored records of runs, read and written in one place: sweeps write them; sweeps, reports and the explorer read them.

    files.py       whole files or none, through no link; tables of JSON with a schema
    lines.py       one line of a log and its checksum
    jsonl.py       logs: appending to them, reading them
    status.py      how far a run is
    inventory.py   what the logs of a run held when it ended
    runs.py        which runs a folder holds, and what the folder of each of them says
    remote.py      the same of a folder in object storage, as a copy of its records
    values.py      values in JSON that somebody else may have written

Nothing here imports JAX, and damage is never fatal: it is told beside what is sound.
"""
