"""HTTP hosts: whether one is this machine, and when a server wants the next try.

This module imports little, because the parent process of a server's workers must have no threads.
"""

import ipaddress
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

#: Seconds after which a server closes an idle connection.
IDLE_SECONDS = 5


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address, or localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds to wait by the Retry-After header, which is a number or a date; 0 without a valid header."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError):
        return 0.0
