"""Buses and streams: AXI4, AXI4-Lite, AXI4-Stream, and the register file made from the register map."""
