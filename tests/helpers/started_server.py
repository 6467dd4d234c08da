"""A mock server as a process, for tests of servers that are started.

Start one with ``python -m tests.helpers.started_server ENGINE --port P``.
"""

from __future__ import annotations

import argparse
import json
import os

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.helpers.mock_servers import ENGINES
from tests.helpers.mock_servers.model import Wrong
from tests.helpers.mock_servers.state import State
from tests.helpers.mock_servers.transport import Faulty


class Dying:
    """Ends the whole process, as a crash does, at the ``after``-th answer."""

    def __init__(self, app: ASGIApp, after: int) -> None:
        self.app = app
        self.left = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in {"/completion", "/generate"}:
            self.left -= 1
            if self.left == 0:
                print("CUDA error: an illegal memory access was encountered", flush=True)
                os._exit(134)
        await self.app(scope, receive, send)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--speculative", action="store_true")
    parser.add_argument("--version", help="of the engine")
    parser.add_argument("--wrong-at", type=int, help="token at which answers go wrong")
    parser.add_argument("--flip-at", type=int, help="token at which the second choice is taken")
    parser.add_argument("--die-after", type=int, default=0, help="answers after which it crashes")
    parser.add_argument("--faults", type=json.loads, default={})
    parser.add_argument("--started-by", help="a mark by which a test knows its own")
    options = parser.parse_args()
    module = ENGINES[options.engine]
    wrong = Wrong(wrong_at=options.wrong_at) if options.wrong_at else Wrong(flip_at=options.flip_at)
    state = State(options.engine, options.version or module.VERSION, options.speculative, options.faults, wrong, 1, {})
    app: ASGIApp = Faulty(Starlette(routes=module.routes(state)), state)
    if options.die_after:
        app = Dying(app, options.die_after)
    print("serving", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="critical", lifespan="off", ws="none")


if __name__ == "__main__":
    main()
