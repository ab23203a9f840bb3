"""Bearer tokens: a file with one `name: token` per line, read again when it changes."""

import hmac
import os
from pathlib import Path

from ping_llm.errors import PingError

#: Smallest length of a token, characters; shorter ones can be guessed.
SHORTEST = 16


class TokenFile:
    """The tokens of a file, each with the name of its owner."""

    def __init__(self, path: Path):
        self._path = path
        self._seen = self._state()
        self._tokens = read(path)
        #: Reason why the newest content of the file is not used, or None.
        self.trouble: str | None = None

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def name_of(self, token: bytes) -> str | None:
        """Return the owner of a token, or None. All are compared in constant time, which reveals nothing."""
        state = self._state()
        if state != self._seen:
            self._seen = state
            try:
                self._tokens, self.trouble = read(self._path), None
            except PingError as error:
                self.trouble = f"{error}; the tokens read before stay in force"
        found = None
        for name, known in self._tokens.items():
            if hmac.compare_digest(known, token):
                found = name
        return found


def read(path: Path) -> dict[str, bytes]:
    """Return the tokens by name.

    Raises:
      PingError: the file cannot be read, or a line is not `name: token`. No message holds a token.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PingError(f"the token file {path} cannot be read: {error}") from None
    tokens: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, token = (part.strip() for part in line.partition(":"))
        if not colon or not name or any(character.isspace() for character in token):
            raise PingError(f"{path}, line {number}: must be `name: token`, the token without spaces")
        if len(token) < SHORTEST:
            raise PingError(f"{path}, line {number}: the token must have at least {SHORTEST} characters")
        if name in tokens:
            raise PingError(f"{path}, line {number}: the name {name} occurs twice")
        tokens[name] = token.encode()
    if not tokens:
        raise PingError(f"the token file {path} has no token: write lines `name: token`")
    return tokens
