"""Checks that a generated folder agrees with itself and with the specification, without AMD's tools."""
