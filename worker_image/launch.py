"""The child of an agent: import TensorFlow early, wait for the start, then run the user's program as Python itself would.

`launch --link FD [--standby] [--no-compat] script PATH|module NAME [ARGS…]`
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import signal
import socket
import sys
import threading
import types
from typing import Any, Callable, List, NoReturn, Optional

from worker_image import protocol
from worker_image.link import Link
from worker_image.scan import Findings, scan

STACKS_SIGNAL = signal.SIGRTMIN + 11  # writes all Python stacks to stderr; real-time, so that no program's own use is in the way
LOW_PRIORITY = 19  # the niceness of a standby's imports: training comes first
_OURS = os.path.dirname(os.path.abspath(__file__))
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(argv: List[str]) -> NoReturn:
    """Run one program in this process; never returns."""
    link_fd = int(argv[argv.index("--link") + 1])
    kinds = [i for i, word in enumerate(argv) if word in ("script", "module")]
    flags, (kind, target, *arguments) = argv[: kinds[0]], argv[kinds[0] :]
    _die_with_the_agent()
    sock = socket.socket(fileno=link_fd)
    sock.set_inheritable(False)
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
    link = Link(sock)
    found = scan(kind, target)
    preloaded = _preload(found, low_priority="--standby" in flags)
    link.send(protocol.Loaded(_resident_bytes(), preloaded))
    orders = _wait_for_run(sock)
    os.environ.update(orders.environ)
    os.environ["TF_CONFIG"] = json.dumps(orders.tf_config)
    _warn(found, link)
    link.start()
    if "--no-compat" not in flags and sum(map(len, orders.tf_config["cluster"].values())) > 1:
        from worker_image import keras_compat

        keras_compat.install(lambda text: link.send(protocol.Note(text)))
    _line_buffered()
    run = _script if kind == "script" else _module
    _run(lambda: run(target, arguments), link)


def _die_with_the_agent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the kernel knew of our wish
        os._exit(1)


def _preload(found: Findings, low_priority: bool) -> bool:
    """Import the frameworks that the program uses. Returns whether TensorFlow is among them."""
    if found.unsure or not found.imports:
        return False
    os.environ.update(found.environ)
    if low_priority:
        # The niceness of a thread is for good without privileges, so the imports get a thread of their own, and the program's threads
        # come from the main one. numpy's pool of threads stays for the program's life: the main thread starts it.
        _import(["numpy"])
        thread = threading.Thread(target=_import_nicely, args=(found.imports,))
        thread.start()
        thread.join()
    else:
        _import(found.imports)
    return "tensorflow" in sys.modules


def _import_nicely(names: List[str]) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
    _import(names)


def _import(names: List[str]) -> None:
    # TensorFlow's import makes half a million objects, most of which stay; the collector would go through them again and again, for a
    # fifth of the time. Afterwards they are put where it never looks (gc.freeze), or its next pass would go through all of them at once.
    gc.disable()
    try:
        for name in names:
            with contextlib.suppress(Exception):  # whatever it is, the program's own import meets it again and tells the user
                importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def _resident_bytes() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _wait_for_run(sock: socket.socket) -> protocol.Run:
    line = b""
    while not line.endswith(b"\n"):
        chunk = sock.recv(65536)
        if not chunk:
            os._exit(0)  # the agent left, and this child was not needed
        line += chunk
    return protocol.expect(line, protocol.Run)


def _warn(found: Findings, link: Link) -> None:
    if found.sets_tf_config:
        link.send(
            protocol.Note(
                f"{found.sets_tf_config} sets TF_CONFIG itself, which replaces the one that tfrun made for this worker; remove that line"
            )
        )
    if found.unsure:
        link.send(protocol.Note(f"TensorFlow is imported only after the start, because {found.unsure} before that, at run time"))


def _line_buffered() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _script(path: str, arguments: List[str]) -> None:
    """As `python PATH ARGS…` does."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(__file__=path, __builtins__=__builtins__)
    sys.modules["__main__"] = main_module
    with io.open_code(os.path.abspath(path)) as f:
        code = compile(f.read(), path, "exec")
    exec(code, main_module.__dict__)  # noqa: S102 # running the user's program is the purpose


def _module(name: str, arguments: List[str]) -> None:
    """As `python -m NAME ARGS…` does."""
    import runpy

    sys.argv = [name, *arguments]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run(program: Callable[[], None], link: Link) -> NoReturn:
    try:
        program()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as e:
        own = _without_our_frames(e.__traceback__)
        link.send(_describe(e, own))
        sys.excepthook(type(e), e.with_traceback(own), own)
        sys.exit(1)
    sys.exit(0)


def _without_our_frames(tb: Optional[types.TracebackType]) -> Optional[types.TracebackType]:
    while tb and (tb.tb_frame.f_code.co_filename == __file__ or tb.tb_frame.f_globals.get("__name__") == "runpy"):
        tb = tb.tb_next
    return tb


def _describe(e: BaseException, tb: Optional[types.TracebackType]) -> protocol.Raised:
    name = type(e).__name__
    message = " ".join(str(e).split())
    text = (f"{name}: {message}" if message else name)[: protocol.TEXT_LIMIT]
    where = _where(e, tb)
    return protocol.Raised(text, f"{name} at {where}" if where else name, _tells_of_a_lost_peer(e))


def _where(e: BaseException, tb: Optional[types.TracebackType]) -> str:
    """The deepest line that is the user's own: not a library's, not the standard library's, not ours."""
    if isinstance(e, SyntaxError) and e.filename:
        return f"{os.path.basename(e.filename)}:{e.lineno}"
    place = ""
    while tb:
        path = tb.tb_frame.f_code.co_filename
        name = os.path.basename(path)
        # AutoGraph's files have names made by chance: the same failure would never be at the same place.
        library = "site-packages" in path or path.startswith((sys.base_prefix, _OURS, "<")) or name.startswith("__autograph_generated_file")
        if not place or not library:
            place = f"{name}:{tb.tb_lineno}"
        tb = tb.tb_next
    return place


def _tells_of_a_lost_peer(e: Any) -> bool:
    """TensorFlow's word for "another worker is gone": see the table in docs/design.md."""
    while e is not None:
        kind = type(e)
        if kind.__module__.startswith("tensorflow") and kind.__name__ in (
            "UnavailableError",
            "AbortedError",
            "DeadlineExceededError",
            "CancelledError",
        ):
            return True
        e = e.__cause__ or e.__context__
    return False
