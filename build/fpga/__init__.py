"""Folders from which AMD's Vitis or Vivado builds the bitstream of an FPGA."""
