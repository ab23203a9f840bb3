"""Weights & Biases: names of runs, and a check that records can be sent."""

import hashlib
import netrc
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ping_llm.errors import UsageError
from ping_llm.extras import need

#: Name of the project in place of MaxText's, unless the config names another.
PROJECT, THEIR_PROJECT = "ping-llm", "maxtext"

_OFFLINE = ("offline", "disabled", "dryrun")


def check(config: Any) -> None:
    """Check in advance for problems that would otherwise end in a traceback of wandb after the launch.

    Raises:
        PingError: the package is missing, or there is no API key.
    """
    if not config.enable_wandb:
        return
    need("wandb")
    if os.environ.get("WANDB_MODE", "") in _OFFLINE or os.environ.get("WANDB_API_KEY") or _logged_in():
        return
    raise UsageError(
        "enable_wandb=true needs an API key of Weights & Biases: set WANDB_API_KEY, or run `wandb login`. "
        "With WANDB_MODE=offline, records stay in the run's folder"
    )


def _logged_in() -> bool:
    """Whether `wandb login` has stored an API key for the server."""
    server = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(server) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def name_run(run: Path) -> None:
    """Set a fixed id, so that W&B resumes the same run, and the run's folder for its files."""
    os.environ.setdefault("WANDB_DIR", str(run))
    os.environ.setdefault("WANDB_RUN_ID", hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:12])
    os.environ.setdefault("WANDB_SILENT", "true")
