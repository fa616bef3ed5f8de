"""Programs that serve: a software aggregator, and workers as processes."""
