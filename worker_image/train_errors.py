"""Why the training program gives up; each is shown to the user as one sentence, without a traceback."""

from __future__ import annotations


class TrainError(Exception):
    """The training can't go on."""

    exit_code = 1


class WrongInputError(TrainError):
    """What the user gave can't work, and no training was done."""

    exit_code = 2
