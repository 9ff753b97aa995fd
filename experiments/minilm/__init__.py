"""A pretrained encoder read past the end of its table of positions: MiniLM, which comes inside a Python package."""
