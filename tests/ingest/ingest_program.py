"""The program as a user runs it, and what it leaves in a folder."""

import subprocess
import sys


def program(*arguments, **options):
    command = [sys.executable, "-c", "from ping_llm.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, **options)


def tree(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
