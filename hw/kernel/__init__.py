"""Kernels: worker, aggregator, self-test and Ethernet MAC as top modules for the vendor's tools."""
