"""The simulated cluster: workers, aggregator, links and memories in one model compiled by Verilator.

Importing `p4sgd.sim.cluster` itself imports neither Amaranth nor cocotb; its modules do.
"""
