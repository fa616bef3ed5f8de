"""Generated Verilog, register and packet documents, floor plans and switch programs."""
