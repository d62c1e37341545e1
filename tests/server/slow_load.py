"""`deskside` with an engine of two ranks that loads for a while and then cannot.

`python -m tests.server.slow_load serve --port 0`; without arguments it is that engine.
"""

import sys
import time
from collections.abc import Callable, Sequence

from deskside.cli import main
from deskside.config.engine import EngineOptions
from deskside.config.server import ServerOptions
from deskside.core import RankLoad
from deskside.errors import CapacityError
from deskside.runtime.build import Runtime
from deskside.runtime.worker import serve_order
from deskside.server.serve import serve

STEPS, STEP_SECONDS = 26, 0.25
GIB = 1 << 30


class _Services:
    def serve(self, model: str, engine: EngineOptions, options: ServerOptions) -> int:
        return serve(model, engine, options, "tests.server.slow_load")


def build(
    model: str, options: EngineOptions, progress: Callable[[Sequence[RankLoad]], None]
) -> Runtime:
    """Tell of two ranks, one a step behind the other."""
    for step in range(1, STEPS):
        ahead, behind = (RankLoad(r, (r,), (step - r) * GIB, STEPS * GIB) for r in (0, 1))
        progress([ahead, behind])
        time.sleep(STEP_SECONDS)
    raise CapacityError("the test's own end of a load")


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main(sys.argv[1:], _Services()))  # type: ignore[arg-type]
    sys.exit(serve_order(build))
