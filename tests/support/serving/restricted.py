"""Runs a command as a strict container does: `python restricted.py COMMAND …`.

Every file system is read-only, /tmp too; only /dev/shm can be written, as in a container. A uid without a name in group
0, no capabilities, no new privileges, no HOME, working directory /. Needs user namespaces of Linux 5.12; leaves with 77
without them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000
PR_SET_NO_NEW_PRIVS = 38
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 0x1
UNSUPPORTED = 77
# As OpenShift makes them up: in no user database.
UID = 1000650000

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def check(result: int, what: str) -> None:
    if result != 0:
        print(f"{what}: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        sys.exit(UNSUPPORTED)


def mount(kind: bytes | None, target: bytes, flags: int, data: bytes | None = None) -> None:
    check(libc.mount(kind, target, kind, ctypes.c_ulong(flags), data), f"mount {target.decode()}")


def main() -> None:
    command = sys.argv[1:]
    uid, gid = os.getuid(), os.getgid()
    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{UID} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    mount(None, b"/", MS_REC | MS_PRIVATE)
    read_only = MountAttributes(set=MOUNT_ATTR_RDONLY)
    check(
        libc.syscall(
            SYS_MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, ctypes.byref(read_only), ctypes.sizeof(read_only)
        ),
        "mount_setattr",
    )
    mount(b"tmpfs", b"/dev/shm", MS_NOSUID | MS_NODEV, b"size=64m")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    os.chdir("/")
    os.execve(command[0], command, {"PATH": "/usr/bin:/bin", "GLOG_v": "3"})


if __name__ == "__main__":
    main()
