"""Kernels: the tops that the vendor's tools take, around the worker, the aggregator and the Ethernet MAC."""
