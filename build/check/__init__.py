"""Checks of generated folders, also of edited ones, without AMD's tools."""
