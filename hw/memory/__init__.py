"""Memory traffic: reading lines and labels, moving the model, keeping lines between forward and backward."""
