"""The errors a user sees: full sentences that name the file, the value and how to fix it."""


class PingError(Exception):
    """Something failed that the user can understand and act on. Exit code 1."""


class UsageError(PingError):
    """The command was called with arguments that cannot work. Exit code 2."""
