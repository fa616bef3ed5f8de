"""Memory traffic: reading lines and labels, moving the model."""
