"""Imported before torch, which reads this once: idle threads must not keep a core from others."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
