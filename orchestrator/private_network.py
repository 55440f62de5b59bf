"""A network of the job's own: a namespace with nothing in it but a loopback, so that nobody reaches TensorFlow's open servers.

Linux only. `enter` moves this process, and so all that it starts later, into it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

from orchestrator.errors import InvalidJobError

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, linux/if.h


def enter() -> None:
    """Enter a new network namespace (and a user namespace, where this user needs one for that). Raises InvalidJobError."""
    if sys.platform != "linux":
        raise InvalidJobError("--private-network needs Linux's namespaces, which this system does not have; leave it out")
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            reason = errno.errorcode.get(ctypes.get_errno(), "?")
            raise InvalidJobError(
                f"--private-network: this system lets user {user} make no namespace ({reason}); "
                "leave it out, or ask for unprivileged user namespaces"
            )
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _raise_loopback()


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(s, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(s, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def other_addresses() -> list[str]:
    """This machine's addresses that others may reach, such as 192.0.2.2."""
    import psutil

    found = []
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            text = address.address.partition("%")[0]
            if address.family in (socket.AF_INET, socket.AF_INET6) and not text.startswith(("127.", "::1", "fe80:")):
                found.append(text)
    return found
