"""How far past its trained lengths does each encoding reach? Fit rate and length factor of every encoding on six tasks."""
