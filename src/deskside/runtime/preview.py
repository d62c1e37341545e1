"""What a load would take, told before a byte of weights is read; without torch.

A folder that holds a whole checkpoint is judged by its headers too; config.json alone is enough.
"""

from deskside.checkpoint.foreign import INDEX
from deskside.checkpoint.index import Checkpoint
from deskside.config.engine import EngineOptions
from deskside.layout.folder import resolve
from deskside.planning.plan import Plan, plan_folder
from deskside.runtime.profiles import known_rates

__all__ = ["preview"]


def preview(model: str, options: EngineOptions) -> Plan:
    """Plan a load of a folder or built-in name on this machine.

    Raises:
        InputError: no such folder, or options that cannot be obeyed.
        CapacityError: fewer expert slots than one step can need.
        CheckpointError: config.json is not served, or the headers disagree with it.
    """
    folder = resolve(model)
    if (folder / INDEX).exists():
        Checkpoint.open(folder)
    return plan_folder(model, options, known_rates(model, options))
