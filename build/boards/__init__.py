"""Boards for Amaranth, and designs that try one out alone."""
