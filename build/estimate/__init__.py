"""Estimates of resources and timing from a synthesis by yosys."""
