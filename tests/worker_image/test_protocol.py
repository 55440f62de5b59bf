"""The messages: what is sent is what arrives, and nothing else is taken for one."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_image import protocol
from worker_image.protocol import Beat, Begin, Message, ProtocolError, Ready

_VALUES = {
    "int": st.integers(),
    "str": st.text(),
    "bool": st.booleans(),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "Optional[int]": st.none() | st.integers(),
    "Dict[str, float]": st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    "Dict[str, str]": st.dictionaries(st.text(), st.text()),
    "Dict[str, List[str]]": st.dictionaries(st.text(), st.lists(st.text())),
    "Dict[str, Any]": st.dictionaries(st.text(), st.integers() | st.text()),
}


def message() -> st.SearchStrategy[Message]:
    kinds = [st.builds(kind, **{f.name: _VALUES[str(f.type)] for f in dataclasses.fields(kind)}) for kind in Message.kinds.values()]
    return st.one_of(kinds)


@given(message())
def test_every_message_arrives_as_it_was(sent: Message) -> None:
    """One line, whatever its texts hold."""
    line = protocol.encode(sent)
    assert line.count(b"\n") == 1
    assert protocol.decode(line) == sent


@given(
    st.binary() | st.text().map(str.encode) | st.dictionaries(st.text(), st.integers()).map(lambda d: repr(d).replace("'", '"').encode())
)
def test_anything_else_is_refused(line: bytes) -> None:
    """No input makes another error than ProtocolError."""
    with pytest.raises(ProtocolError):
        protocol.decode(line)


@pytest.mark.parametrize(
    "line",
    [
        b'{"message":"Ready","attempt":"0","address":"x"}',
        b'{"message":"Ready","attempt":true,"address":"x"}',
        b'{"message":"Ready","attempt":0}',
        b'{"message":"Ready","attempt":0,"address":"x","more":1}',
        b'{"message":"Begin","attempt":0,"cluster":[]}',
        b'{"message":"Nonsense"}',
        b"null",
        b"[" * 100_000,
    ],
)
def test_fields_have_their_types(line: bytes) -> None:
    """A message with a wrong, missing or additional field is none."""
    with pytest.raises(ProtocolError):
        protocol.decode(line)


def test_another_kind_than_expected_is_refused() -> None:
    """A handshake can't be answered with something else."""
    with pytest.raises(ProtocolError, match="expected Ready, got Beat"):
        protocol.expect(protocol.encode(Beat()), Ready)
    assert protocol.expect(protocol.encode(Begin(1, {"worker": []})), Begin) == Begin(1, {"worker": []})


def test_a_proof_depends_on_everything() -> None:
    """Another secret, role, worker, incarnation or nonce gives another proof."""
    nonces = ("a", "b")
    proofs = [
        protocol.proof(b"1", "agent", 0, 0, nonces),
        protocol.proof(b"2", "agent", 0, 0, nonces),
        protocol.proof(b"1", "controller", 0, 0, nonces),
        protocol.proof(b"1", "agent", 1, 0, nonces),
        protocol.proof(b"1", "agent", 0, 1, nonces),
        protocol.proof(b"1", "agent", 0, 0, ("b", "a")),
    ]
    assert len(set(proofs)) == len(proofs)
    assert protocol.proven(proofs[0], proofs[0])
    assert not protocol.proven(proofs[0], proofs[1])
    assert not protocol.proven("é", proofs[1])


def test_the_agents_side_needs_the_standard_library_only() -> None:
    """The agent goes into other people's images: nothing but what Python itself brings."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from worker_image import agent, launch, report\n"
        "print({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "{'worker_image'}", out
