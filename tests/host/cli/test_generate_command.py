"""The command in the headers of what `p4sgd generate` writes."""

import pytest

from p4sgd.host.configuration import named_config
from p4sgd.hw.spec.config import NamedConfig


@pytest.mark.parametrize("changes", [{}, {"slots": 32, "lanes": 8}, {"engines": 3, "board": "u50"}], ids=str)
def test_the_command_of_a_header_names_the_configuration_again(changes):
    named = NamedConfig.of("small", **changes)
    _, name, *settings = named.options
    assert named_config(name, settings[1::2]) == named
    assert named_config("u280", [f"base={name}", *settings[1::2]]) == named
