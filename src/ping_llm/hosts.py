"""Which hosts are this machine. Imports little: the parent of a server's workers must have no threads."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address, or localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
