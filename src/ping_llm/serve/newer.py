"""Looks for a newer model in the run: a training that goes on, a fit that was run again."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from ping_llm.model.export import state_of


async def reload_when_newer(run: Path, seconds: float, reload: Callable[[], None]) -> None:
    """Call `reload` whenever another model is finished in `run`; looks every so many seconds, for ever."""
    known = await asyncio.to_thread(state_of, run)
    while True:
        await asyncio.sleep(seconds)
        found = await asyncio.to_thread(state_of, run)
        # None: the model is being replaced, or its disk is away.
        if found is not None and found != known:
            known = found
            reload()
