"""Start a pair of small llama.cpp servers, run a command with their addresses in its environment, stop them.

python servers.py pytest -v
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

LOGS = Path("server-logs")
START_SECONDS = 120


@contextmanager
def server(name: str, kind: str) -> Iterator[str]:
    """One server, with the speculation that ``kind`` names; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = ["lossless", "serve", "--model", "gemma", "--kind", kind, "--port", port]
    with (LOGS / f"{name}.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:  # noqa: S603 - our own words
        try:
            wait(process, f":{port}", log.name)
            yield f":{port}"
        finally:
            process.send_signal(signal.SIGINT)


def wait(process: subprocess.Popen[bytes], address: str, log: str) -> None:
    """Until the server can be asked what it is."""
    deadline = time.monotonic() + START_SECONDS
    while subprocess.run(["lossless", "identify", address], capture_output=True, check=False).returncode != 0:  # noqa: S603, S607
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"The server at {address} did not start; {log} says why.")
        time.sleep(0.5)


def main(command: list[str]) -> int:
    LOGS.mkdir(exist_ok=True)
    with ExitStack() as servers:
        addresses = {
            "LOSSLESS_REF": servers.enter_context(server("reference", "none")),
            "LOSSLESS_SPEC": servers.enter_context(server("speculative", "ngram-simple")),
        }
        return subprocess.run(command, env=os.environ | addresses, check=False).returncode  # noqa: S603 - the command that was given


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
