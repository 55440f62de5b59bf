"""A job on this machine, from the command to the summary."""

from __future__ import annotations

import asyncio
import importlib.machinery
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import names, private_network, spec, user_code
from orchestrator.backends.local import LocalBackend, LocalProgram
from orchestrator.controller import Controller
from orchestrator.errors import InvalidJobError
from orchestrator.group import Ending, Policy, Result, State
from orchestrator.output import Printer
from orchestrator.progress import Progress, duration
from orchestrator.runfolder import RunFolder
from orchestrator.spec import JobSpec

BUILTIN = "builtin:"


@dataclass(frozen=True)
class Options:
    """What the command line says beside the job."""

    python: str | None = None
    log_dir: Path | None = None
    quiet: bool = False
    no_standby: bool = False
    no_compat: bool = False
    private_network: bool = False


def job_from(program: str, args: tuple[str, ...], workers: int | None, module: bool) -> JobSpec:
    """The job that the words of a command line mean. Raises InvalidJobError."""
    if not module and spec.is_job_file(program):
        from orchestrator import jobfile

        job = jobfile.load(Path(program))
        if args:
            raise InvalidJobError(f"{program} is a job file, which has its program's arguments; put {args[0]!r} into its args")
        fields = job.model_dump(exclude_defaults=True)
    elif program.startswith(BUILTIN) and not module:
        fields = {"builtin": program[len(BUILTIN) :], "args": args}
    else:
        fields = {"program": f"-m {program}" if module else program, "args": args}
    return spec.make({**fields, **({} if workers is None else {"workers": workers})}, "the command")


def run(given: JobSpec, options: Options) -> int:
    """Run a job to its end. Returns tfrun's exit code; raises TfrunError before anything is started."""
    job = _with_whole_paths(given)
    python = _interpreter(options.python)
    _check_program(job, same_python=options.python is None)
    if options.private_network:
        private_network.enter()
    folder = RunFolder.create(options.log_dir, job.name)
    _record(folder, job)
    program = LocalProgram(
        command=(*((f"--code={Path(job.code).resolve()}",) if job.code else ()), *job.command()),
        python=python,
        environ=tuple(_environ(job, folder).items()),
        standby=not options.no_standby,
        compat=not options.no_compat,
    )
    started = time.monotonic()
    run = _Run(job, options, folder)
    try:
        result = asyncio.run(run.until_done(program))
    finally:
        run.printer.close()
    _summarize(result, run.state, folder, time.monotonic() - started)
    return result.exit_code


class _Run:
    """The observer of one run: the terminal and the run folder are told."""

    def __init__(self, job: JobSpec, options: Options, folder: RunFolder) -> None:
        self._job = job
        self._options = options
        self._folder = folder
        self._progress = Progress(time.monotonic)
        self.printer = Printer(options.quiet, self._progress.line)
        self.state: State | None = None

    async def until_done(self, program: LocalProgram) -> Result:
        backend = LocalBackend(program, self._job.workers, self._folder.path)
        controller = Controller(Policy.of(self._job), backend, self)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, controller.stop, number)
        try:
            result = await controller.run(names.LOOPBACK)
        finally:
            self.state = controller.state
        assert result, "a local job is never left to another controller"
        return result

    def told(self, text: str) -> None:
        self.printer.say(text)
        self._folder.event("told", text=text)

    def began(self, attempt: int) -> None:
        self._folder.event("began", attempt=attempt)
        if attempt:
            self.printer.say(f"attempt {attempt} runs on every worker")
        elif not self._options.private_network:
            self._warn_of_open_servers()  # not before: it would hold up the start

    def opened(self, worker: int, log: str) -> None:
        self.printer.follow(worker, self._folder.log(worker, log), self._job.workers)

    def progressed(self, state: State) -> None:
        self._progress.update(state)

    def changed(self, state: State) -> None:
        """What is told and began is enough for a terminal."""

    async def concluded(self, state: State) -> None:
        """The run folder gets the result at the end."""

    def _warn_of_open_servers(self) -> None:
        others = private_network.other_addresses()
        if others:
            self.printer.say(
                f"TensorFlow's own servers also listen on {', '.join(others)} and run whatever graph they are sent; "
                "use --private-network unless you trust that network"
            )


def _interpreter(given: str | None) -> str:
    if given is None:
        return sys.executable
    found = shutil.which(given)
    if not found:
        raise InvalidJobError(f"--python {given} is no program that can be run; give the path of an interpreter")
    return found


def _with_whole_paths(job: JobSpec) -> JobSpec:
    """Every folder as seen from here: the program of a job with `code` runs in that folder."""
    update: dict[str, Any] = {}
    if job.checkpoints:
        update["checkpoints"] = job.checkpoints.model_copy(update={"directory": _whole(job.checkpoints.directory)})
    if job.train:
        given = {"tensorboard": job.train.tensorboard, "export": job.train.export}
        update["train"] = job.train.model_copy(update={key: _whole(directory) for key, directory in given.items() if directory})
    return job.model_copy(update=update)


def _whole(directory: str) -> str:
    return directory if "://" in directory else str(Path(directory).absolute())


def _check_program(job: JobSpec, same_python: bool) -> None:
    """Refuse what can't be run before anything is started."""
    kind, target = job.source()
    what = "task" if job.task else "script"
    folder = user_code.folder(job)
    if kind == "module":
        if same_python and not _module_exists(target, folder):
            raise InvalidJobError(f"there is no module {target} here or where Python looks; check the name and the current folder")
        return
    path = folder / target
    if path.is_dir():
        raise InvalidJobError(f"{target} is a folder; give the {what} in it that is to be run")
    if not path.exists():
        raise InvalidJobError(f"there is no file {target}; give the path of a {what}, from {Path.cwd()}")
    try:
        source = path.read_bytes()
    except OSError as e:
        raise InvalidJobError(f"{target} can't be read ({e.strerror})") from e
    if same_python:
        _check_syntax(source, target)


def _check_syntax(source: bytes, target: str) -> None:
    try:
        compile(source, target, "exec", dont_inherit=True)
    except SyntaxError as e:
        line = f" line {e.lineno}" if e.lineno else ""
        raise InvalidJobError(f"{target}{line} is not valid Python: {e.msg}; correct it") from e
    except ValueError as e:  # NUL bytes
        raise InvalidJobError(f"{target} is not a Python script: {e}") from e


def _module_exists(name: str, folder: Path) -> bool:
    """Without importing anything: a package's own code must not run in the launcher."""
    if name.split(".")[0] == "worker_image":
        return True
    where: list[str] | None = [str(folder.absolute()), *sys.path]
    for part in name.split("."):
        found = importlib.machinery.PathFinder.find_spec(part, where)
        if found is None:
            return False
        where = list(found.submodule_search_locations or []) or None
    return True


def _environ(job: JobSpec, folder: RunFolder) -> dict[str, str]:
    directory = job.checkpoints.directory if job.checkpoints else str(folder.path.resolve() / "checkpoints")
    return {**job.env, "TFRUN_STRATEGY": job.strategy, "TFRUN_CHECKPOINT_DIR": directory}


def _record(folder: RunFolder, job: JobSpec) -> None:
    """The job file as understood: JSON is YAML too, and costs the start no YAML library."""
    understood = job.model_dump(mode="json", exclude_none=True)
    folder.write("job.yaml", json.dumps(understood, indent=2) + "\n")


def _summarize(result: Result, state: State | None, folder: RunFolder, seconds: float) -> None:
    history = state.history if state else ()
    attempts = (state.attempt if state else 0) + 1
    folder.write(
        "result.json",
        json.dumps(
            {
                "result": result.ending.name.lower(),
                "reason": result.reason,
                "exit_code": result.exit_code,
                "attempts": attempts,
                "seconds": round(seconds, 3),
                "failures": [vars(failure) for failure in history],
            },
            indent=2,
        )
        + "\n",
    )
    word = {Ending.SUCCEEDED: "done", Ending.STOPPED: result.reason}.get(result.ending, f"failed: {result.reason}")
    times = f"{attempts} attempts" if attempts > 1 else "1 attempt"
    lines = [f"tfrun: {word}", f"       {times}, {duration(seconds)}"]
    if history:
        lines.append(f"       first failure: attempt {history[0].attempt}, {history[0]}")
    lines.append(f"       logs: {os.path.relpath(folder.path)}")
    print("\n".join(lines), file=sys.stderr)
