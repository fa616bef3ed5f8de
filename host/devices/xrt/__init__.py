"""Boards of this machine, through the Xilinx Runtime (XRT)."""
