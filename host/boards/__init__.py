"""Boards of this machine, driven through the Xilinx Runtime (XRT)."""
