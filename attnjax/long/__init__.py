"""Long-context evaluation: RULER's tasks without a corpus, ranking, perplexity, and reading past the trained length."""
