"""Model: the weights and their update (Round 3)."""
