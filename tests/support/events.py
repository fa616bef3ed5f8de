"""Events of a training run that call functions of a test."""

from typing import Any

from p4sgd.host.training.events import Events


def events(**methods: Any) -> Events:
    """Events whose named methods are these functions."""
    made = Events()
    vars(made).update(methods)
    return made
