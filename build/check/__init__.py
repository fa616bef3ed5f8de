"""What can be checked of a generated folder without the vendor's tools."""
