"""Which heads of trained models specialise, what a model loses with its heads, and what it knows of positions."""
