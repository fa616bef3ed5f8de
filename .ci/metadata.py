"""Hooks of hatchling: links of README.md and addresses of the project, and rooms of an sdist for editable installs.

An index shows README.md without the repository. The environment variable P4SGD_REPOSITORY is the repository's address
(https://…): relative links then lead there, at the tag of the version. Without it they stay, and no address is given.
"""

import os
import re
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class Metadata(MetadataHookInterface):
    """Fields ``readme`` and ``urls``."""

    def update(self, metadata):
        """Add the fields."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("P4SGD_REPOSITORY", "").rstrip("/")
        if repository:
            at = f"{repository}/blob/v{metadata['version']}"
            text = re.sub(r"\]\((?!\w+:|#)", f"]({at}/", text)
            changes = f"{at}/.github/CHANGELOG.md"
            metadata["urls"] = {"Repository": repository, "Changelog": changes, "Issues": f"{repository}/issues"}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class Rooms(BuildHookInterface):
    """Symbolic links to the rooms in ``.packages``, which sdists lack, for `pip install -e`."""

    def initialize(self, version, build_data):
        """Make those that are missing."""
        if version == "editable":
            for room in ("hw", "sim", "host", "build"):
                link = Path(self.root, ".packages", "p4sgd", room)
                if not link.exists():
                    link.symlink_to(Path("..", "..", room))
