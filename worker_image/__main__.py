"""`python PATH/worker_image agent|static|launch …`: run by its folder, so that it needs no installation in the image that it is put into.

The package is loaded from this very folder, and nothing else beside it becomes importable: another Python's site-packages must not
leak into the user's.
"""

import importlib.util
import os
import sys


def _load_package() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.pop(0)  # the folder itself, which Python put there: `train` or `data` must stay the user's names
    spec = importlib.util.spec_from_file_location("worker_image", os.path.join(here, "__init__.py"), submodule_search_locations=[here])
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["worker_image"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    _load_package()
    role, arguments = sys.argv[1], sys.argv[2:]
    if role == "agent":
        from worker_image import agent

        agent.main(arguments)
    elif role == "static":
        from worker_image import static

        static.main(arguments)
    else:
        from worker_image import launch

        launch.main(arguments)
