"""The AllReduce protocol as state machines over packets, and a simulated network with faults."""
