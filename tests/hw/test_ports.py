"""The ports that a component's docstring explains are those that it has."""

import inspect
import re

import pytest
from support.components import EXAMPLES, example


def explained(docstring):
    """Names of the section "Members", without those that stand for several, as ``gmem<i>``."""
    section = re.search(r"^Members\n-------\n(.*?)(?=^\w+\n---|\Z)", docstring, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^\S.*", section[1], re.MULTILINE) if section else []
    names = {name.strip() for line in lines for name in line.split(",")}
    return {name for name in names if name.isidentifier()}


def test_names_are_found():
    members = "Members\n-------\ni, o\n    Streams.\nport<i>\n    A port.\n"
    assert explained(f"A component.\n\n{members}\nRaises\n------\nValueError\n    Never.\n") == {"i", "o"}
    assert explained("A component.") == set()


OF_OTHERS = {"kernel.verilog.VendorPorts"}
"""Components that have the ports of what they hold."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_docstring_names_ports_that_are_there(name):
    component = example(name)
    names = explained(inspect.getdoc(type(component)))
    assert names or name in OF_OTHERS, "its docstring has no section Members"
    assert names <= set(component.signature.members)
