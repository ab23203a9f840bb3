"""Hosts: which are this machine, and when one wishes to be asked again.

Imports little: the parent of a server's workers must have no threads.
"""

import ipaddress
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

#: Seconds after which a server closes a connection that is idle.
IDLE_SECONDS = 5


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address, or localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds until another try is wished for, from a number or a date; 0 without one."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError):
        return 0.0
