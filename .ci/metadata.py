"""Metadata of the distribution that pyproject.toml cannot state: links of README.md and addresses of the project.

An index shows README.md without the repository. The environment variable P4SGD_REPOSITORY is the repository's address
(https://…): relative links then lead there, at the tag of the version. Without it they stay, and no address is given.
"""

import os
import re
from pathlib import Path

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
