"""The site of documents and API: it is built without a warning, and has a page for every document and every module."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("hw", "sim", "host", "build")


@pytest.mark.slow
def test_every_document_and_module_has_its_place(tmp_path):
    """Links and headings that are not there are warnings, which --strict refuses."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", ROOT / ".github/site/mkdocs.yml"]
    env = os.environ | {"P4SGD_REPOSITORY": "https://example.org/p4sgd", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([*command, "-d", tmp_path], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.parent.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("index.html")}
    for room in ROOMS:
        documents = [path.parent.relative_to(ROOT).as_posix() for path in (ROOT / room).rglob("README.md")]
        assert set(documents) <= set(pages)
        for path in (ROOT / room).rglob("*.py"):
            name = ".".join(("p4sgd", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
            if not path.stem.startswith("__"):
                assert f'id="{name}"' in pages[f"api/{name.rpartition('.')[0]}"], name
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert f"https://example.org/p4sgd/blob/v{version}/LICENSE" in pages["."]
    assert "GLMClassifier.fit" in pages["api/p4sgd.host.estimators"]
