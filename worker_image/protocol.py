"""The messages between controller and agent, and between an agent and its child: JSON, one object a line.

The only module that both the orchestrator and the worker import; standard library only, Python 3.9 and newer.

A connection opens with a challenge in both directions (`proof`), so that neither side shows the run's secret and each knows that the
other has it. What follows is not encrypted: it holds addresses, step numbers and error texts, never the secret.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Optional, Tuple, Type, TypeVar

VERSION = 1
MAX_LINE = 4 * 1024 * 1024  # bytes: a cluster of 10,000 workers with full DNS names is 0.7 MB
SECRET_BYTES = 32
TEXT_LIMIT = 2000  # characters of an error text that travel; the rest is in the worker's log

LEFT_AFTER_SAVE = 42  # exit code of a program that saved because it was asked to leave, as TensorFlow's own preemption handler does


class ProtocolError(Exception):
    """The other side sent something that is no message of this protocol."""


@dataclass(frozen=True)
class Message:
    """Base of every message; the class name is its kind on the wire."""

    kinds: ClassVar[Dict[str, Type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        Message.kinds[cls.__name__] = cls


# ---- the handshake ----


@dataclass(frozen=True)
class Challenge(Message):
    """Controller → agent, first line of a connection."""

    nonce: str
    version: int = VERSION


@dataclass(frozen=True)
class Join(Message):
    """Agent → controller: who I am, and the proof that I hold the secret.

    attempt: the newest one of which an agent that has joined another controller before knows that it began. holds: what it has of it:
    "running"; "ended", and `Ended` follows; or "", nothing any more.
    """

    worker: int
    incarnation: int
    nonce: str
    proof: str
    version: int = VERSION
    attempt: int = -1
    holds: str = ""


@dataclass(frozen=True)
class Welcome(Message):
    """Controller → agent: the controller's own proof. `beat` is the period of `Beat` messages in seconds."""

    proof: str
    beat: float


@dataclass(frozen=True)
class Refused(Message):
    """Controller → agent: this connection ends, for the reason given. retry: it is to ask again, for the reason may pass."""

    reason: str
    retry: bool = False


# ---- controller → agent ----


@dataclass(frozen=True)
class Prepare(Message):
    """Have a child for this attempt imported and waiting, then say `Ready`."""

    attempt: int


@dataclass(frozen=True)
class Begin(Message):
    """Start the program: `cluster` is TF_CONFIG's "cluster" (role → addresses); the agent adds its own task."""

    attempt: int
    cluster: Dict[str, List[str]]


@dataclass(frozen=True)
class End(Message):
    """End the child of this attempt and say `Ended`.

    grace: seconds between SIGTERM and SIGKILL for a program that handles SIGTERM; 0 kills at once.
    stacks: write the child's Python stacks to its log first.
    """

    attempt: int
    grace: float = 0.0
    stacks: bool = False


@dataclass(frozen=True)
class Dismiss(Message):
    """Leave nothing behind and exit with this code: 0, or how the job failed."""

    code: int = 0


# ---- agent → controller ----


@dataclass(frozen=True)
class Ready(Message):
    """A child is imported and waits. `address` is the host:port reserved for its TensorFlow server."""

    attempt: int
    address: str


@dataclass(frozen=True)
class Beat(Message):
    """The agent is alive; what its child does. Also the child's own report to the agent (then without `stopped` and `busy`).

    step: steps done, None until the first report; total: steps of the whole training, where known.
    longest: the longest pause between two steps of this attempt so far, seconds. activity: "" while stepping, or what it does instead.
    stopped: the child is stopped by a signal. pulse: seconds since the child's interpreter last answered.
    busy: CPU seconds that the child and its descendants have used. saver: the program can save when asked.
    """

    step: Optional[int] = None
    total: Optional[int] = None
    metrics: Dict[str, float] = dataclasses.field(default_factory=dict)
    longest: float = 0.0
    activity: str = ""
    saver: bool = False
    handles_sigterm: bool = False
    stopped: bool = False
    pulse: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True)
class Outcome(Message):
    """How a child ended (sent as Ended).

    kind: "done" · "error" (exception or exit code) · "signal" · "memory" · "peer" (an exception that tells of a lost peer) ·
    "left" (saved and left as asked) · "preempted" (SIGTERM from outside) · "ended" (on the controller's order).
    text: one sentence part, such as "exited with code 3". place: what makes two failures the same, such as "ValueError at train.py:12";
    empty where that can't be known.
    """

    kind: str
    text: str
    place: str = ""
    exit_code: Optional[int] = None
    step: Optional[int] = None


@dataclass(frozen=True)
class Ended(Outcome):
    """The child of this attempt (prepared or running) is gone, and so is everything that it started."""

    attempt: int = -1


@dataclass(frozen=True)
class Leaving(Message):
    """The agent was told to go (SIGTERM): the worker will be gone soon."""


@dataclass(frozen=True)
class Opened(Message):
    """The child's output of this attempt is in the file `log` of the worker's folder (local runs only)."""

    attempt: int
    log: str


@dataclass(frozen=True)
class Note(Message):
    """One line for the user; of several with the same topic the first is shown. Also child → agent."""

    text: str
    topic: str = ""


# ---- the coordinated save: controller ↔ agent ↔ child ----
# In synchronous training no worker can be more than one boundary ahead of another. The worker that is asked (AskSave) stops at its next
# boundary n and names n+2 (SaveTarget); it goes on (SaveGo) only when every other has noted the target (SaveAt → SaveNoted).


@dataclass(frozen=True)
class AskSave(Message):
    """Controller → one worker: choose the boundary at which all save and leave."""


@dataclass(frozen=True)
class SaveTarget(Message):
    """That worker → controller: all save at the boundary with this number (counted from the start of the attempt)."""

    boundary: int


@dataclass(frozen=True)
class SaveAt(Message):
    """Controller → the others."""

    boundary: int


@dataclass(frozen=True)
class SaveNoted(Message):
    """The others → controller. ok is false if the boundary is already behind."""

    ok: bool


@dataclass(frozen=True)
class SaveGo(Message):
    """Controller → the worker that was asked. ok is false if the save is called off."""

    ok: bool


@dataclass(frozen=True)
class Saved(Message):
    """Every worker → controller: my part of the save at this step is complete."""

    step: int


# ---- agent ↔ child only ----


@dataclass(frozen=True)
class AskBeat(Message):
    """Agent → child: report now."""


@dataclass(frozen=True)
class Loaded(Message):
    """Child → agent: everything is imported; memory is its resident size in bytes. tensorflow: whether that was imported."""

    memory: int
    tensorflow: bool


@dataclass(frozen=True)
class Run(Message):
    """Agent → child: run the program with this TF_CONFIG and these variables."""

    tf_config: Dict[str, Any]
    environ: Dict[str, str]


@dataclass(frozen=True)
class Raised(Message):
    """Child → agent: the program ended with this exception."""

    text: str
    place: str
    peer: bool


M = TypeVar("M", bound=Message)

_PLAIN: Dict[str, Tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "float": (int, float),
    "Optional[int]": (int, type(None)),
}


def encode(message: Message) -> bytes:
    """One line of JSON, with the newline."""
    fields = {"message": type(message).__name__, **dataclasses.asdict(message)}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message on a line. Raises ProtocolError for anything that is not one, whatever the bytes."""
    try:
        fields = json.loads(line)
        kind = Message.kinds[fields.pop("message")]
        message = kind(**fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ProtocolError(f"not a message of this protocol: {line[:100]!r}") from e
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        plain = _PLAIN.get(str(field.type), (dict,))
        if not isinstance(value, plain) or (isinstance(value, bool) and bool not in plain):
            raise ProtocolError(f"{kind.__name__}.{field.name} is {value!r:.100}, expected {field.type}")
    return message


def expect(line: bytes, kind: Type[M]) -> M:
    """The message on a line, which must be of one kind. Raises ProtocolError."""
    message = decode(line)
    if not isinstance(message, kind):
        raise ProtocolError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message


def proof(secret: bytes, role: str, worker: int, incarnation: int, nonces: Tuple[str, str]) -> str:
    """HMAC-SHA256 over who answers (role: "agent" or "controller"), for which worker, to which (controller's, agent's) nonces."""
    said = "\n".join((f"tfrun {VERSION}", role, str(worker), str(incarnation), *nonces))
    return hmac.new(secret, said.encode(), hashlib.sha256).hexdigest()


def proven(given: str, wanted: str) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(given.encode(), wanted.encode())
