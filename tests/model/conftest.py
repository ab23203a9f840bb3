import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock


@pytest.fixture(scope="session")
def maxtext_runs(tmp_path_factory) -> Path:
    """scanned/ and unscanned/: checkpoints made by MaxText, with the logits it computes from them."""
    # The folder above is common to the workers of one test run: MaxText starts once, not once a worker.
    common = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        common = common.parent
    out = common / "maxtext_runs"
    script = Path(__file__).with_name("maxtext_reference.py")
    with FileLock(f"{out}.lock"):
        if not (out / "unscanned" / "logits.npz").is_file():
            done = subprocess.run(
                [sys.executable, str(script), str(out)],
                capture_output=True,
                text=True,
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
            )
            assert done.returncode == 0, done.stderr[-3000:]
    return out
