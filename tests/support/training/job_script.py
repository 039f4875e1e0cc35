"""Program of the processes of test jobs: `job_script.py DIRECTORY ACTION…`; each first writes DIRECTORY/pid-<pod>.

Actions, one after the other: `print TEXT`, `sleep SECONDS`, `exit CODE`, `exit-worker INDEX CODE`, `once CODE` and
`once-worker INDEX CODE` (only in the first attempt), `child` (start a process that would live on, in a session of its
own), `ignore-term`, `save-on-term` (write DIRECTORY/saved and leave with 143), `environment NAME`, `progress JSON`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    """Run the actions of the command line."""
    directory, words = Path(sys.argv[1]), iter(sys.argv[2:])
    member = f"{os.environ.get('MS_ROLE', 'alone')}-{os.environ.get('MS_NODE_ID', '0')}"

    def write(name: str, text: object) -> None:
        temporary = directory / f".{name}-{os.getpid()}"
        temporary.write_text(str(text))
        temporary.replace(directory / name)

    def save(number: int, frame: object) -> None:
        write("saved", os.getpid())
        sys.exit(143)

    write(f"pid-{member}", os.getpid())
    with (directory / "starts").open("a") as file:
        file.write(f"{member} {time.time()}\n")
    for action in words:
        if action == "print":
            print(next(words))
        elif action == "sleep":
            time.sleep(float(next(words)))
        elif action == "exit":
            sys.exit(int(next(words)))
        elif action == "exit-worker":
            index, code = next(words), int(next(words))
            if member == f"MS_WORKER-{index}":
                sys.exit(code)
        elif action in ("once", "once-worker"):
            index = next(words) if action == "once-worker" else None
            code, marker = int(next(words)), directory / f"seen-{member}"
            if index is not None and member != f"MS_WORKER-{index}":
                continue
            if not marker.exists():
                marker.touch()
                sys.exit(code)
        elif action == "child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            write(f"child-{member}", child.pid)
        elif action == "ignore-term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            write("ready", "")
        elif action == "save-on-term":
            signal.signal(signal.SIGTERM, save)
            write("ready", "")
        elif action == "progress" and "KFP_MINDSPORE_PROGRESS" in os.environ:
            Path(os.environ["KFP_MINDSPORE_PROGRESS"]).write_text(next(words))
        elif action == "environment":
            name = next(words)
            print(f"{name}={os.environ.get(name)}")
        else:
            sys.exit(f"unknown action {action}")


if __name__ == "__main__":
    main()
