"""An HTTP handler for tests that answers in JSON, as an admin port does."""

import http.server
import json
from typing import Any


class JsonHandler(http.server.BaseHTTPRequestHandler):
    """Request handler that answers in JSON and logs no requests."""

    def answer(self, fields: dict[str, Any]) -> None:
        body = json.dumps(fields).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None: ...
