"""Exit 0 when the server of this container can do its work: /readyz answers 200."""

import http.client
import os
import sys

connection = http.client.HTTPConnection(
    "127.0.0.1", int(os.environ.get("SWITCHBOARD_PORT") or 8460), timeout=4
)
try:
    connection.request("GET", "/readyz")
    sys.exit(0 if connection.getresponse().status == 200 else 1)
except OSError:
    sys.exit(1)
