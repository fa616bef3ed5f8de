"""Folders from which AMD's tools make the image of an FPGA."""
