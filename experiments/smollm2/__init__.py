"""A pretrained decoder read past its trained length: SmolLM2, which comes inside a Python package."""
