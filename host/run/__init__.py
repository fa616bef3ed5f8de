"""A training run from the request to the model file: plan it, then execute it."""
