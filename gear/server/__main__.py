"""`python -m gear.server` is `gear-server`."""

from __future__ import annotations

import sys

from gear.server.cli import server_main

if __name__ == "__main__":
    sys.exit(server_main())
