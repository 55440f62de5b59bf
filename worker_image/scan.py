"""What can be told of a program before it runs, from its source: does it use TensorFlow, and what must be set before that is imported.

Only the program's own files are read (those found beside it); nothing is imported or executed.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import sys
import tokenize
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Optional, Set, Tuple

MOST_FILES = 200  # a program of more files of its own is read as far as this

# variables that TensorFlow and what is below it read once, at import or at first use
_READ_AT_IMPORT = (
    *("TF_", "KERAS_", "CUDA_", "XLA_", "TPU_", "PJRT_", "NVIDIA_", "NCCL_"),
    *("OMP_", "MKL_", "OPENBLAS_", "GRPC_", "LD_", "NEXT_PLUGGABLE_"),
)
_FRAMEWORKS = ("tensorflow", "keras", "tf_keras")  # in the order in which they are imported


@dataclass
class Findings:
    """What was found.

    imports: the frameworks to import early, in order. environ: variables that the program sets before it imports them (name → value).
    unsure: where it sets one to something that only running it can tell; then nothing should be imported early.
    sets_tf_config: where it sets TF_CONFIG itself. Places read "train.py line 12"; empty where there is none.
    """

    imports: List[str] = field(default_factory=list)
    environ: Dict[str, str] = field(default_factory=dict)
    unsure: str = ""
    sets_tf_config: str = ""


def scan(kind: str, target: str) -> Findings:
    """Read a program: kind "script" with a path, or "module" with a dotted name."""
    found = Findings()
    folder, path = (os.path.dirname(os.path.abspath(target)), target) if kind == "script" else _find_module(target)
    pending: List[str] = [path] if path else []
    seen: Set[str] = set()
    main = path
    while pending and len(seen) < MOST_FILES:
        path = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        tree = _parse(path)
        if tree:
            _read(tree, path, path == main, found)
            pending.extend(_own_files(tree, folder, path))
    return found


def _find_module(name: str) -> Tuple[str, Optional[str]]:
    """The folder that holds the module's top package, and the file that `python -m` would run, without importing anything."""
    if name.split(".")[0] == "worker_image":
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        return folder, _file_of(name, folder)
    top = importlib.machinery.PathFinder.find_spec(name.split(".")[0], [os.getcwd(), *sys.path])
    origin = (top.origin or next(iter(top.submodule_search_locations or []), "")) if top else ""
    if not origin:
        return "", None
    folder = os.path.dirname(origin)
    if top and top.submodule_search_locations:
        folder = os.path.dirname(next(iter(top.submodule_search_locations)))
    path = _file_of(name, folder)
    if path and os.path.basename(path) == "__init__.py":
        path = os.path.join(os.path.dirname(path), "__main__.py")
    return folder, path


def _file_of(name: str, folder: str) -> Optional[str]:
    base = os.path.join(folder, *name.split("."))
    for path in (base + ".py", os.path.join(base, "__init__.py")):
        if os.path.isfile(path):
            return path
    return None


def _parse(path: str) -> Optional[ast.Module]:
    try:
        with tokenize.open(path) as f:
            return ast.parse(f.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None  # running it tells the user why


def _own_files(tree: ast.Module, folder: str, path: str) -> Iterator[str]:
    """The files beside the program that a file of it imports."""
    for name in _imported(tree, folder, path):
        found = _file_of(name, folder)
        if found:
            yield found


def _imported(tree: ast.Module, folder: str, path: str) -> Iterator[str]:
    package = os.path.relpath(os.path.dirname(os.path.abspath(path)), folder).replace(os.sep, ".").strip(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level and package else []
            parts = parts[: len(parts) - node.level + 1] if node.level else parts
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _read(tree: ast.Module, path: str, main: bool, found: Findings) -> None:
    """Add what one file of the program tells."""
    frameworks = _frameworks(tree)
    top_level = {id(node) for statement in tree.body for node in (statement, getattr(statement, "value", None))}
    for node in ast.walk(tree):
        for name, value, certain in _environment(node):
            place = f"{os.path.basename(path)} line {getattr(node, 'lineno', 0)}"
            if name == "TF_CONFIG":
                found.sets_tf_config = found.sets_tf_config or place
            elif name is None or name.startswith(_READ_AT_IMPORT):
                if main and certain and name and value is not None and id(node) in top_level:
                    found.environ[name] = value
                else:
                    found.unsure = found.unsure or f"{place} sets {name or 'variables'}"
    found.imports += [f for f in _FRAMEWORKS if f in frameworks and f not in found.imports]


def _frameworks(tree: ast.Module) -> Set[str]:
    """The top-level packages that a file imports, and "keras" for a use of tf.keras."""
    found: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Attribute) and node.attr == "keras" and isinstance(node.value, ast.Name):
            found.add("keras")
    return found


def _environment(node: ast.AST) -> Iterator[Tuple[Optional[str], Optional[str], bool]]:
    """(name, value, certain) for each environment variable that a statement sets; None for what is not a literal."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                yield _literal(target.slice), _literal(node.value), True
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "putenv" and node.args:
            yield _literal(node.args[0]), None, False
        elif node.func.attr == "update" and _is_environ(node.func.value):
            names: List[Optional[str]] = [key.arg for key in node.keywords]
            for argument in node.args:
                names += [_literal(key) for key in argument.keys] if isinstance(argument, ast.Dict) else [None]
            yield from ((name, None, False) for name in names)
        elif node.func.attr == "setdefault" and _is_environ(node.func.value) and len(node.args) == 2:
            name, value = _literal(node.args[0]), _literal(node.args[1])
            if name != "TF_CONFIG":  # it is set already, so a default changes nothing
                yield name, os.environ.get(name, value) if name and value is not None else None, True


def _is_environ(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (isinstance(node, ast.Name) and node.id == "environ")


def _literal(node: Optional[ast.AST]) -> Optional[str]:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else None
