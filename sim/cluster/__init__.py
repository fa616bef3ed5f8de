"""The simulated cluster: workers, aggregator, cables and memories in one Verilated model.

Importing `p4sgd.sim.cluster` itself imports neither Amaranth nor cocotb; its modules do.
"""
