"""Loss: sums and labels to residuals and their deltas (Round 2)."""
