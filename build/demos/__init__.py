"""Small designs that test an Alveo U280 without the vendor's shell."""
