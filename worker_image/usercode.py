"""The user's files, which the program finds in its current folder."""

from __future__ import annotations

import os
import tempfile


def enter(code: str) -> None:
    """Make a folder with the files the current one: the folder `code` itself, or a new one with what is in the archive `code`."""
    if not os.path.isdir(code):
        import zipfile  # late: a local run has no archive

        folder = tempfile.mkdtemp(prefix="code-")
        with zipfile.ZipFile(code) as archive:
            archive.extractall(folder)
        code = folder
    os.chdir(code)
