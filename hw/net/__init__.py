"""Network: packets, the worker's endpoint and the aggregator of the AllReduce protocol."""
