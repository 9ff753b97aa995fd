"""Which heads of a small language model specialise, and whether that depends on the positional encoding."""
