"""Kernels: worker, aggregator and Ethernet MAC as top modules for the vendor's tools."""
