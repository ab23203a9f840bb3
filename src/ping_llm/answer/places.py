"""Where prefixes are: a table, or a database in the MMDB format.

The map of a server shows them, and an inverse search is checked by them: no RTT can be shorter than light
needs in fibre.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.answer.context import as_prefix
from ping_llm.answer.files import read_table
from ping_llm.errors import PingError
from ping_llm.extras import need
from ping_llm.measurements.addresses import Prefix, parse_prefix, unpack_one

Place = tuple[float, float]


class Places:
    """Latitude and longitude of prefixes; the longest prefix that covers an address is its place.

    Args:
      path: a table of `prefix`, `latitude` and `longitude` (.csv, .parquet, .jsonl), or a database of cities
        (.mmdb).
    """

    def __init__(self, path: Path):
        self._database: Any = None
        self._places: dict[Prefix, Place] = {}
        if path.suffix == ".mmdb":
            self._database = _open_mmdb(path)
        else:
            self._places = _read_places(path)
        self._bits = sorted({(prefix.version, prefix.bits) for prefix in self._places}, reverse=True)

    @property
    def prefixes(self) -> list[Prefix]:
        """Those of a table; a database does not list them."""
        return list(self._places)

    def of(self, address: Prefix) -> Place | None:
        """The place of the longest prefix that covers the address (or prefix)."""
        if self._database is not None:
            return self._of_database(address)
        number = int.from_bytes(address.packed)
        for version, bits in self._bits:
            if version == address.version and bits <= address.bits:
                rest = address.address_bits - bits
                found = self._places.get(Prefix((number >> rest << rest).to_bytes(16), bits))
                if found is not None:
                    return found
        return None

    def _of_database(self, address: Prefix) -> Place | None:
        try:
            record, bits = self._database.get_with_prefix_len(unpack_one(address.packed))
        except ValueError:  # an IPv6 address, and a database of IPv4
            return None
        where = record.get("location") if isinstance(record, dict) else None
        if bits > address.bits or not isinstance(where, dict):
            return None
        try:
            return _checked(where["latitude"], where["longitude"])
        except (KeyError, TypeError, ValueError):
            return None

    def least_rtts(self, src: str, addresses: Sequence[Prefix]) -> list[float | None]:
        """The least possible RTT of each, ms; None where a place is not known."""
        from ping_llm.answer.complete import least_rtt_ms  # imports JAX, which reading a table needs not

        here = self.of(as_prefix(src, "source"))
        places = [self.of(address) for address in addresses]
        known = [None if here is None or there is None else least_rtt_ms(here, there) for there in places]
        return [None if value is None else float(np.round(value, 3)) for value in known]


def _read_places(path: Path) -> dict[Prefix, Place]:
    table = read_table(path)
    for name in ("prefix", "latitude", "longitude"):
        if name not in table.schema.names:
            raise PingError(f"{path} has no column {name}: it needs prefix, latitude and longitude")
    places = {}
    for row, record in enumerate(table.to_pylist()):
        try:
            prefix = parse_prefix(str(record["prefix"]))
            places[prefix] = _checked(record["latitude"], record["longitude"])
        except (TypeError, ValueError) as error:
            raise PingError(f"{path}, row {row}: {error}") from None
    return places


def _checked(latitude: Any, longitude: Any) -> Place:
    place = float(latitude), float(longitude)
    if not (-90 <= place[0] <= 90 and -180 <= place[1] <= 180):
        raise ValueError(f"{latitude}, {longitude} must be degrees of latitude (-90 to 90) and longitude")
    return place


def _open_mmdb(path: Path) -> Any:
    need("mmdb")
    import maxminddb

    try:
        return maxminddb.open_database(path)
    except (OSError, maxminddb.InvalidDatabaseError) as error:
        raise PingError(f"{path}: {error}") from None
