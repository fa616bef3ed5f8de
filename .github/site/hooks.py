"""Pages of the site: each document of the repository at its path, and a page of the API for each folder of modules.

The environment variable P4SGD_REPOSITORY is the address of the repository (https://…). Links to files that are no pages
lead there, at the tag of the version; without it only their text remains.
"""

import os
import posixpath
import re
import tempfile
import tomllib
from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[2]
ROOMS = ("hw", "sim", "host", "build")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def documents():
    """Documents by their path; templates, whose names end in ``_readme.md``, are none."""
    found = [ROOT / "README.md", *(ROOT / ".github").glob("*.md")]
    for room in (*ROOMS, "tests"):
        found += [path for path in (ROOT / room).rglob("*.md") if not path.name.endswith("_readme.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found if "out" not in path.relative_to(ROOT).parts[1:2])


def api_pages():
    """Text of the page of each folder with modules, by the folder's package, and of the list of these pages."""
    pages = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "out" in parts[1:2] or (parts[-1].startswith("__") and parts[-1] != "__init__"):
                continue
            package = ".".join(("p4sgd", *parts[:-1]))
            module = package if parts[-1] == "__init__" else f"{package}.{parts[-1]}"
            options = "\n    options:\n      members: false\n      show_root_heading: false" * (module == package)
            pages.setdefault(package, [f"# `{package}`\n"]).append(f"\n::: {module}{options}\n")
    listed = ["# API\n\nEach folder of modules has a page. Programs that train need `p4sgd.host.estimators`.\n\n"]
    listed += [f"- [`{package}`]({package}.md)\n" for package in pages]
    return {package: "".join(lines) for package, lines in ({"index": listed} | pages).items()}


@event_priority(100)  # before mkdocstrings reads its configuration
def on_config(config):
    """Name the version, and lay the package out as griffe reads it: `build` has no ``__init__.py`` of its own."""
    config.site_name = f"P4SGD {VERSION}"
    layout = tempfile.TemporaryDirectory()
    package = Path(layout.name) / "p4sgd"
    (package / "build").mkdir(parents=True)
    (package / "build" / "__init__.py").touch()
    for path in (ROOT / ".packages/p4sgd/__init__.py", *(ROOT / room for room in ROOMS if room != "build")):
        (package / path.name).symlink_to(path)
    for path in (ROOT / "build").glob("*/__init__.py"):
        (package / "build" / path.parent.name).symlink_to(path.parent)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [layout.name]
    config.extra["layout"] = layout  # removed with the configuration
    return config


def on_files(files, config):
    """Add documents and API."""
    for name in documents():
        path = str(ROOT / name)
        files.append(File.generated(config, name, abs_src_path=path, inclusion=InclusionLevel.INCLUDED))
    for package, text in api_pages().items():
        files.append(File.generated(config, f"api/{package}.md", content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead links to folders to their README, and links to other files that are no pages to the repository."""

    def led(match):
        target, heading = match[1], match[2] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target))
        if files.get_file_from_path(f"{path}/README.md"):
            return f"]({target.rstrip('/')}/README.md{heading})"
        if files.get_file_from_path(path) or not (ROOT / path).exists():
            return match[0]
        repository = os.environ.get("P4SGD_REPOSITORY")
        if not repository:
            return "]"
        return f"]({repository}/{'tree' if (ROOT / path).is_dir() else 'blob'}/v{VERSION}/{path}{heading})"

    return _LINK.sub(led, markdown)
