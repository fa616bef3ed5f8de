"""Controllers of aggregators: which jobs they serve, and for whom."""
