"""Where prefixes are, for the one check that no model may fail: nothing is faster than light in fibre."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ping_llm.addresses import Prefix, parse_prefix
from ping_llm.errors import PingError
from ping_llm.query.complete import least_rtt_ms
from ping_llm.query.context import as_prefix
from ping_llm.query.files import read_table


class Places:
    """A table of prefix, latitude, longitude; the longest prefix that covers an address is its place."""

    def __init__(self, path: Path):
        table = read_table(path)
        for name in ("prefix", "latitude", "longitude"):
            if name not in table.schema.names:
                raise PingError(f"{path} has no column {name}: it needs prefix, latitude and longitude")
        self._places: list[tuple[Prefix, tuple[float, float]]] = []
        for row, record in enumerate(table.to_pylist()):
            try:
                prefix = parse_prefix(str(record["prefix"]))
                place = (float(record["latitude"]), float(record["longitude"]))
            except (TypeError, ValueError) as error:
                raise PingError(f"{path}, row {row}: {error}") from None
            self._places.append((prefix, place))

    def of(self, address: Prefix) -> tuple[float, float] | None:
        """The place of the longest prefix that covers the address (or prefix)."""
        covering = [
            (prefix.bits, place)
            for prefix, place in self._places
            if prefix.version == address.version
            and prefix.bits <= address.bits
            and prefix.covers(address.packed)
        ]
        return max(covering)[1] if covering else None

    def least_rtts(self, src: str, addresses: Sequence[Prefix]) -> list[float | None]:
        """The least possible RTT of each, ms; None where a place is not known."""
        here = self.of(as_prefix(src, "source"))
        places = [self.of(address) for address in addresses]
        known = [None if here is None or there is None else least_rtt_ms(here, there) for there in places]
        return [None if value is None else float(np.round(value, 3)) for value in known]
