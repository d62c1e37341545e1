"""`deskside` with a scripted engine: `python -m tests.server.start serve --port 0`."""

import sys

from deskside.cli import main
from deskside.config.engine import EngineOptions
from deskside.config.server import ServerOptions
from deskside.server.serve import serve


class _Services:
    def serve(self, model: str, engine: EngineOptions, options: ServerOptions) -> int:
        return serve(model, engine, options, "tests.server.double")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], _Services()))  # type: ignore[arg-type]
