"""The worker's side of the AllReduce protocol: packets, the endpoint with its timers, and probes."""
