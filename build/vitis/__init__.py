"""Folders from which Vitis makes what a board is loaded with."""
