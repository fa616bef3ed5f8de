"""One suite for every implementation of the aggregator: vectors, and what runs them."""
