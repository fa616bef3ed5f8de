"""Verilog, documents and programs of switches, written as whole folders."""
