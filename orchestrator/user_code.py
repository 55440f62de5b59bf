"""The user's files on this machine, as they go along to a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import InvalidJobError
from orchestrator.spec import JobSpec

RAW_LIMIT = 20_000_000  # bytes before compression: no source is so large, and a ConfigMap holds a twentieth of it


def archive(job: JobSpec) -> bytes | None:
    """What the job brings along as one file; None where the image has it all. Raises InvalidJobError."""
    if not job.ships_code():
        return None
    from orchestrator.archive import pack  # late: a local run packs nothing

    program, what = Path(job.source()[1]), "task" if job.task else "program"
    try:
        if job.code is None:
            source = program.read_bytes()
            _refuse_what_stays_behind(program, source, what)
            return pack({program.name: source})
        return pack(_files(folder(job)))
    except OSError as e:
        where = f"the {what} {program}" if job.code is None else f"{e.filename} in the code {job.code}"
        raise InvalidJobError(f"{where} can't be read ({e.strerror}); give its path from {Path.cwd()}") from e


def folder(job: JobSpec) -> Path:
    """Where the program is looked for: the job's `code`, or the current folder. Raises InvalidJobError for a code without it."""
    found = Path(job.code or ".")
    if not found.is_dir():
        raise InvalidJobError(f"code is {job.code}, which is no folder; give its path from {Path.cwd()}")
    kind, target = job.source()
    if job.code and kind == "script" and not (found / target).is_file():
        raise InvalidJobError(
            f"there is no file {target} in the code {job.code}; the {'task' if job.task else 'program'}'s path is given from there"
        )
    return found


def _files(root: Path) -> dict[str, bytes]:
    paths = list(_walk(root, root.resolve()))
    sizes = {path: path.stat().st_size for path in paths}
    if sum(sizes.values()) > RAW_LIMIT:
        largest = max(paths, key=lambda path: sizes[path])
        raise InvalidJobError(
            f"the code {root} is {sum(sizes.values()) / 1e6:,.0f} MB ({largest} alone {sizes[largest] / 1e6:,.0f}), "
            "and a ConfigMap holds at most 1; put data on a volume, and large code into the image"
        )
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def _walk(at: Path, root: Path) -> Iterator[Path]:
    """Every file, without what is made (compiled files, virtual environments) and what is hidden (.git, .venv)."""
    for path in sorted(at.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__" or path.suffix == ".pyc":
            continue
        if not path.name.isprintable():
            raise InvalidJobError(f"{path!a} has a name that no archive can hold; rename it")
        if path.is_symlink() and (path.is_dir() or not path.resolve().is_relative_to(root)):
            raise InvalidJobError(f"{path} is a link out of the code, or to a folder; put the files themselves there")
        if path.is_dir():
            if not (path / "pyvenv.cfg").exists():
                yield from _walk(path, root)
        elif path.is_file():
            yield path
        else:
            raise InvalidJobError(f"{path} is neither a file nor a folder; remove it from the code")


def _refuse_what_stays_behind(program: Path, source: bytes, what: str) -> None:
    """A script that goes alone must not import what is beside it."""
    import ast  # late, as above

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # Python itself says it better
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        for module in modules:
            beside = program.parent / module.partition(".")[0]
            if beside.with_suffix(".py").exists() or next(beside.glob("*.py"), None):
                raise InvalidJobError(
                    f"{program} imports {beside.name}, which is beside it and would stay behind; "
                    f"add `code: {program.parent}` and `{what}: {program.name}`, and what is in that folder goes along"
                )
