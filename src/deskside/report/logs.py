"""Whether the log is shown: on standard error, one line an event, when it was asked for.

Without it nothing is printed but what this machine loses of its speed: a failure is one line of its
own, whoever logged it before.
"""

import logging
import sys

__all__ = ["show_logs"]

MACHINE = "deskside.machine"
SILENT = logging.CRITICAL + 1


def show_logs(*, verbose: bool, debug: bool) -> None:
    """Choose for the whole process: `verbose` shows all events, `debug` faults with tracebacks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("deskside: %(message)s"))
    handler.setLevel(logging.INFO if verbose else logging.WARNING if debug else SILENT)
    handler.addFilter(lambda record: not _is_loss(record))
    logger = logging.getLogger("deskside")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    losses = logging.StreamHandler(sys.stderr)
    losses.setFormatter(logging.Formatter("deskside: warning: %(message)s"))
    losses.addFilter(_is_loss)
    logging.getLogger(MACHINE).handlers = [losses]


def _is_loss(record: logging.LogRecord) -> bool:
    return record.name.startswith(MACHINE) and record.levelno >= logging.WARNING
