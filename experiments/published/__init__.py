"""Our cells beside published ones, from the records of several sweeps, in one table."""
