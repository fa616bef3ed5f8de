"""How big a worker is and how long its paths are, by yosys."""
