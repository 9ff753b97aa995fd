"""Long-context evaluation with texts: the tasks of RULER that need no corpus."""
