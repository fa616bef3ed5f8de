"""Is kernel.xml of the form that UG1393 describes?"""

from collections.abc import Iterator
from importlib.resources import files
from xml.etree import ElementTree

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.report import Problem

__all__ = ["check_schema"]


def check_schema(folder: Folder) -> Iterator[Problem]:
    """Every kernel's XML is valid by `kernel.xsd`.

    Raises
    ------
    ImportError
        If the package ``xmlschema`` is not there.
    """
    import xmlschema

    schema = xmlschema.XMLSchema((files("p4sgd.build.check") / "kernel.xsd").read_text(encoding="utf-8"))
    for name in folder.described:
        file = f"{name}.xml"
        try:
            root = ElementTree.fromstring(folder.text(file))
        except ElementTree.ParseError as error:
            yield Problem(file, f"is no XML: {error}", error.position[0])
            continue
        for fault in schema.iter_errors(root):
            yield Problem(file, f"{fault.path}: {fault.reason}")
