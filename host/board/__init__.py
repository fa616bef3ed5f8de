"""Emulated boards: workers as processes of their own, with a network interface and a control socket."""
