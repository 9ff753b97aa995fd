"""How others do the same work: a file for each of them."""
