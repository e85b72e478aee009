"""The HTTP server that reports are read from: uvicorn's protocol, with bounds on all that a client can do to it.

uvicorn parses (h11), keeps connections alive and runs the handlers. Added here: admission by address, places for each
source, one deadline for a whole request and one for a whole answer, strict headers, and a bound on what is buffered.
"""

from __future__ import annotations

from sparkd.lib.http_server.messages import Handler, Limits, Request, Response
from sparkd.lib.http_server.server import HttpServer

__all__ = ["Handler", "HttpServer", "Limits", "Request", "Response"]
