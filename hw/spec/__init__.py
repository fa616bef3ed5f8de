"""The specification that all parts of P4SGD share: configuration, registers, packet, arithmetic and memory image.

Pure Python and NumPy. No module of this package imports Amaranth, the simulator or the host.
"""
