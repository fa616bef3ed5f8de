"""The hardware of P4SGD, described in Amaranth HDL."""
