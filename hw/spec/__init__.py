"""What every part of P4SGD agrees on: configuration, registers, packet, arithmetic and memory image.

Pure Python and NumPy. No module of this package imports Amaranth, the simulator or the host.
"""
