"""The AllReduce protocol as state machines over packets, and a network that does its worst to them."""
