"""Worker: engines, sequencing, counters and the top level."""
