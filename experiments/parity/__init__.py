"""Our published architectures against those of transformers, number for number."""
