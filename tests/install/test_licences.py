"""The licences of what a user installs: listed, and none that would bind the user's own programs.

A changed or new licence fails here and is read by a person. To renew the list after reading:
`python tests/install/test_licences.py > tests/install/licences.txt`.
"""

import importlib.metadata
import re
from pathlib import Path

LIST = Path(__file__).with_name("licences.txt")
#: Extras of users; `dev` has the oracle of the tests, which is GPLv3.
EXTRAS = {"query", "train", "evaluate", "serve", "spark", "modal", "wandb", "onnx"}
#: GPL and AGPL, but neither LGPL nor a GPL with an exception for whoever links to it.
COPYLEFT = re.compile(
    r"(?<!L)GPL(?!.*exception)|GNU (Affero )?General Public|SSPL|Business Source", re.IGNORECASE
)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed() -> set[str]:
    """The package's requirements and theirs, as far as they are installed."""
    found: set[str] = set()
    waiting = [("ping-llm", frozenset(EXTRAS))]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(canonical(name))
        for text in requirements:
            wanted = re.findall(r"extra\s*==\s*['\"]([\w.-]+)['\"]", text)
            if wanted and not {canonical(extra) for extra in wanted} & {canonical(extra) for extra in extras}:
                continue
            match = re.match(r"([\w.-]+)\s*(?:\[([^\]]*)\])?", text)
            assert match is not None
            inner = frozenset(part.strip() for part in (match[2] or "").split(",") if part.strip())
            waiting.append((match[1], inner))
    return found - {"ping-llm"}


def licence(name: str) -> str:
    """As the package declares it: an SPDX expression, classifiers, or the first line of its text."""
    about = importlib.metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return expression
    classifiers = [
        line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if "License ::" in line
    ]
    if classifiers:
        return ", ".join(sorted(classifiers))
    text = (about.get("License") or "").strip().splitlines()
    return text[0].strip() if text else "not declared"


def found() -> dict[str, str]:
    return {name: licence(name) for name in sorted(needed())}


def test_licences_are_those_that_were_read():
    lines = [line.split("\t") for line in LIST.read_text().splitlines()]
    listed = dict(lines)
    here = found()
    assert {name: text for name, text in here.items() if listed.get(name) != text} == {}


def test_nothing_of_a_user_is_copyleft():
    bad = {name: text for name, text in found().items() if COPYLEFT.search(text)}
    assert not bad
    assert COPYLEFT.search("GNU General Public License v3 (GPLv3)")
    assert not COPYLEFT.search("LGPL-2.1-or-later")


if __name__ == "__main__":
    print("\n".join(f"{name}\t{text}" for name, text in found().items()))
