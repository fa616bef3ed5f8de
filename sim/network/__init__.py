"""State machines of the AllReduce protocol, and a simulated network with faults."""
