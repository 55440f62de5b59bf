"""`__main__` of the archive that brings the worker into any image: unpacks it where it may write, and becomes the agent.

Unpacked rather than imported from the archive: the agent starts its children by the package's folder, and they find compiled modules there.
"""

import os
import sys
import tempfile
import zipfile

if __name__ == "__main__":
    folder = tempfile.mkdtemp(prefix="tfrun-")
    with zipfile.ZipFile(sys.argv[0]) as archive:
        archive.extractall(folder)  # our own archive
    os.execv(sys.executable, [sys.executable, os.path.join(folder, "worker_image"), *sys.argv[1:]])  # noqa: S606 # the same interpreter
