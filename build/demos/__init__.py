"""Designs that try out a card without the vendor's shell."""
