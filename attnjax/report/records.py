"""The stored records of a sweep, from which every number of a report is computed."""

from attnjax.records.stored import (
    SPLITS as SPLITS,
    Result as Result,
    Run as Run,
    Skipped as Skipped,
    Sweep as Sweep,
    encoding_names as encoding_names,
    read as read,
)
