"""Errors that a user sees: one sentence each, and the exit code that goes with it."""


class TfrunError(Exception):
    """Base of every error of ours; its text says what was given, the rule, and what to do."""

    exit_code = 1


class InvalidJobError(TfrunError):
    """The job file or the command is wrong; nothing was started."""

    exit_code = 2


class LaunchError(TfrunError):
    """Nothing could be started, or what was started never came up."""

    exit_code = 3


class DeadlineError(TfrunError):
    """What was waited for did not come in time."""

    exit_code = 4


class ReaderGoneError(TfrunError):
    """Whoever read our output went away (`tfrun logs digits | head`); nothing is to be said, as with any program that SIGPIPE ends."""

    exit_code = 141
