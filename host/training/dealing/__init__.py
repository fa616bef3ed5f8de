"""Which columns each worker gets."""
