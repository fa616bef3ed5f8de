"""The worker: engines, the order of a run, counters and the top level."""
