"""Start the demo's pair of llama.cpp servers, run a command with their addresses in its environment, stop them.

python servers.py pytest -v
"""

import os
import subprocess
import sys
from pathlib import Path

from verifier.demo import methods


def main(command: list[str]) -> int:
    with methods.pair(methods.packaged_model(), "ngram-simple", Path("server-logs")) as pair:
        addresses = {"LOSSLESS_SPEC": pair.spec_url, "LOSSLESS_REF": pair.ref_url}
        return subprocess.run(command, env=os.environ | addresses, check=False).returncode  # noqa: S603 - the command that was given


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
