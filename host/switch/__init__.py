"""Controllers of aggregators: what a switch must be told before workers can use it."""
