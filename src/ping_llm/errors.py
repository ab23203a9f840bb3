"""The errors a user sees: whole sentences that name the file, the value and the way out."""


class PingError(Exception):
    """Something failed that the user can understand and act on. Exit code 1."""


class UsageError(PingError):
    """The command was called with arguments that cannot work. Exit code 2."""
