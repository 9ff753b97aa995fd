"""Does RoPE break where a pair first shows an unseen phase, whatever the base? Correlations, and clamps of single pairs."""
