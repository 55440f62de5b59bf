"""The worker package as one file for a ConfigMap, the same bytes for the same sources."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import worker_image

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that the format knows
_PACKAGE = Path(worker_image.__file__).parent


def worker_archive() -> bytes:
    """`python worker.zip agent …` runs the agent, wherever there is a Python."""
    files = {f"worker_image/{path.name}": path.read_bytes() for path in _PACKAGE.glob("*.py")}
    return pack({"__main__.py": (_PACKAGE / "bootstrap.py").read_bytes(), **files})


def pack(files: dict[str, bytes]) -> bytes:
    """A zip of some files, path → content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name])
    return buffer.getvalue()
