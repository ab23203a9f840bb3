"""A kernel must not outlive what it was compiled from, wherever that stands."""

import shutil
import subprocess
import sys

from ping_llm import compiled

CONSTANTS = "STEP = {step}\n"
HELPER = (
    "from ping_llm.compiled import kernel\n"
    "from ping_llm.toys import constants\n\n\n"
    "@kernel\ndef add(x):\n    return x + constants.STEP\n"
)
CALLER = (
    "from ping_llm.compiled import kernel\n"
    "from ping_llm.toys.helper import (\n    add,\n)\n\n\n"
    "@kernel\ndef twice(x):\n    return add(add(x))\n"
)


def test_a_changed_constant_two_files_away_compiles_afresh(tmp_path):
    package = tmp_path / "ping_llm"
    toys = package / "toys"
    toys.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(compiled.__file__, package)
    (toys / "__init__.py").touch()
    (toys / "helper.py").write_text(HELPER)
    (toys / "caller.py").write_text(CALLER)

    def result(step):
        (toys / "constants.py").write_text(CONSTANTS.format(step=step))
        code = "from ping_llm.toys.caller import twice; print(twice(1), sum(twice.stats.cache_hits.values()))"
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return tuple(map(int, done.stdout.split()))

    assert result(1) == (3, 0)
    assert result(1) == (3, 1)  # from the cache
    assert result(10) == (21, 0)  # not from the cache
