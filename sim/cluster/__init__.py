"""Simulated cluster: workers, aggregator, links and memories in one model compiled by Verilator.

Importing this package imports neither Amaranth nor cocotb; some of its modules do.
"""
