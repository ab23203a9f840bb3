"""Places of prefixes: coordinates, country and AS, from tables and from databases in the MMDB format.

Maps and reports show them, names such as AS3333 are looked up in them, and measurements and answers are
checked with them: no RTT can be shorter than the travel time of light in fibre.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ping_llm.errors import PingError, UsageError
from ping_llm.extras import need
from ping_llm.measurements.addresses import Prefix, parse_prefix, unpack_one

#: Speed of light in fibre in km per ms, one way: two thirds of that in vacuum.
FIBRE_KM_PER_MS = 199.86
EARTH_KM = 6371.0

Location = tuple[float, float]


@dataclass(frozen=True)
class Place:
    """Known facts about a prefix.

    Attributes:
      location: Latitude and longitude in degrees.
      country: Country code of two letters, such as NL.
      asn: Number of the autonomous system.
    """

    location: Location | None = None
    country: str | None = None
    asn: int | None = None

    def __or__(self, other: "Place") -> "Place":
        """This place, with unknown facts filled in from the other."""
        own = ((getattr(self, one.name), getattr(other, one.name)) for one in fields(self))
        return Place(*(first if first is not None else second for first, second in own))

    @property
    def is_complete(self) -> bool:
        return None not in (self.location, self.country, self.asn)


NOWHERE = Place()


class Places:
    """Places of prefixes. Each fact comes from the longest prefix that covers an address and has it.

    Args:
      paths: One or several of: a table of `prefix` and any of `latitude`, `longitude`, `country` and `asn`
        (.csv, .parquet, .jsonl); the table of `fetch probes`; a database of cities, countries or autonomous
        systems (.mmdb). If several have a fact, the first one is used.
    """

    def __init__(self, paths: Path | Sequence[Path]):
        sources = [paths] if isinstance(paths, Path) else list(paths)
        self._sources = [_Database(path) if path.suffix == ".mmdb" else _Table(path) for path in sources]
        self._found: dict[bytes, Place] = {}

    @property
    def prefixes(self) -> list[Prefix]:
        """The prefixes with coordinates in the tables; databases are not listed."""
        return [prefix for prefix, place in self.listed() if place.location is not None]

    def listed(self) -> Iterable[tuple[Prefix, Place]]:
        """Every prefix of the tables with its place."""
        for source in self._sources:
            if isinstance(source, _Table):
                yield from source.places.items()

    def probe(self, number: int) -> list[Prefix]:
        """The addresses of a RIPE Atlas probe, from the table of `fetch probes`."""
        tables = [source for source in self._sources if isinstance(source, _Table)]
        return list(dict.fromkeys(one for table in tables for one in table.probes.get(number, ())))

    def place(self, address: Prefix) -> Place:
        """All known facts about an address or prefix."""
        key = address.packed + bytes([address.bits])
        found = self._found.get(key)
        if found is None:
            found = NOWHERE
            for source in self._sources:
                found |= source.place(address)
            if len(self._found) < _REMEMBERED:
                self._found[key] = found
        return found

    def of(self, address: Prefix) -> Location | None:
        """The coordinates of an address or prefix."""
        return self.place(address).location

    def of_all(self, packed: np.ndarray) -> list[Place]:
        """The places of many addresses, uint8 [n, 16]; each distinct one is looked up once."""
        distinct, inverse = np.unique(packed, axis=0, return_inverse=True)
        found = [self.place(Prefix.of(one)) for one in distinct]
        return [found[place] for place in inverse.ravel().tolist()]

    def least_rtts(self, src: Prefix, addresses: Sequence[Prefix]) -> list[float | None]:
        """The least possible RTT from `src` to each address, in ms; None where a location is unknown."""
        here = self.of(src)
        places = [self.of(address) for address in addresses]
        return [
            None if here is None or there is None else round(least_rtt_ms(here, there), 3) for there in places
        ]


#: Largest number of addresses whose place is cached.
_REMEMBERED = 1_000_000


class _Table:
    def __init__(self, path: Path):
        self.places: dict[Prefix, Place] = {}
        self.probes: dict[int, list[Prefix]] = {}
        table = _read_table(path)
        names = set(table.schema.names)
        if {"probe_id", "address_v4"} <= names:
            self._read_probes(table, path)
        elif "prefix" not in names or not names & {"latitude", "country", "asn"}:
            raise PingError(
                f"{path} must have the column prefix, and latitude and longitude, country or asn; "
                f"it has {', '.join(table.schema.names)}"
            )
        else:
            self._read_prefixes(table, path)
        self._bits = sorted({(prefix.version, prefix.bits) for prefix in self.places}, reverse=True)

    def _read_prefixes(self, table: pa.Table, path: Path) -> None:
        for row, record in enumerate(table.to_pylist()):
            try:
                self._add(str(record["prefix"]), _place_of(record))
            except (TypeError, ValueError) as error:
                raise PingError(f"{path}, row {row}: {error}") from None

    def _read_probes(self, table: pa.Table, path: Path) -> None:
        for row, record in enumerate(table.to_pylist()):
            for version in ("v4", "v6"):
                facts = {**record, "asn": record.get(f"asn_{version}")}
                address, prefix = record.get(f"address_{version}"), record.get(f"prefix_{version}")
                try:
                    place = _place_of(facts)
                    if prefix:
                        self._add(prefix, Place(None, place.country, place.asn))
                    if address:
                        self._add(address, place)
                        self.probes.setdefault(int(record["probe_id"]), []).append(parse_prefix(address))
                except (TypeError, ValueError) as error:
                    raise PingError(f"{path}, row {row}: {error}") from None

    def _add(self, prefix: str, place: Place) -> None:
        parsed = parse_prefix(prefix)
        self.places[parsed] = place | self.places.get(parsed, NOWHERE)

    def place(self, address: Prefix) -> Place:
        number = int.from_bytes(address.packed)
        found = NOWHERE
        for version, bits in self._bits:
            if version == address.version and bits <= address.bits:
                rest = address.address_bits - bits
                found |= self.places.get(Prefix((number >> rest << rest).to_bytes(16), bits), NOWHERE)
                if found.is_complete:
                    break
        return found


class _Database:
    def __init__(self, path: Path):
        need("mmdb")
        import maxminddb

        try:
            self._reader = maxminddb.open_database(path)
        except (OSError, maxminddb.InvalidDatabaseError) as error:
            raise PingError(f"{path}: {error}") from None

    def place(self, address: Prefix) -> Place:
        try:
            record, bits = self._reader.get_with_prefix_len(unpack_one(address.packed))
        except ValueError:  # an IPv6 address looked up in a database of IPv4
            return NOWHERE
        if bits > address.bits or not isinstance(record, dict):
            return NOWHERE
        return Place(*(_or_none(read, record) for read in (_location, _country, _asn)))


def _or_none(read: Any, record: dict[str, Any]) -> Any:
    """A fact from a database record; an invalid one is None."""
    try:
        return read(record)
    except (KeyError, TypeError, ValueError):
        return None


def _place_of(record: dict[str, Any]) -> Place:
    return Place(_location(record), _country(record), _asn(record))


def _location(record: dict[str, Any]) -> Location | None:
    """Coordinates in a table row, or in a record of GeoLite2 or DB-IP."""
    where = record.get("location", record)
    if where.get("latitude") is None or where.get("longitude") is None:
        return None
    place = float(where["latitude"]), float(where["longitude"])
    if not (-90 <= place[0] <= 90 and -180 <= place[1] <= 180):
        raise ValueError(f"{place[0]:g}, {place[1]:g} must be degrees of latitude (-90 to 90) and longitude")
    return place


def _country(record: dict[str, Any]) -> str | None:
    """Country in a table row, or in a record of GeoLite2, DB-IP or IPinfo."""
    country = record.get("country_code") or record.get("country")
    if isinstance(country, dict):
        country = country.get("iso_code")
    if country in (None, "") or (isinstance(country, float) and math.isnan(country)):
        return None
    if not re.fullmatch(r"[A-Za-z]{2}", str(country)):
        raise ValueError(f"{country!r} is not a country of two letters, such as NL")
    return str(country).upper()


def _asn(record: dict[str, Any]) -> int | None:
    asn = record.get("autonomous_system_number", record.get("asn"))
    if asn in (None, "") or (isinstance(asn, float) and math.isnan(asn)):
        return None
    number = int(re.sub(r"^[Aa][Ss]", "", str(asn).removesuffix(".0")))
    if not 0 <= number < 2**32:
        raise ValueError(f"{asn!r} is not the number of an AS")
    return number


def _read_table(path: Path) -> pa.Table:
    """Read a table in the format of its suffix: Parquet, CSV or JSON lines."""
    from pyarrow import csv, json, parquet

    readers = {".parquet": parquet.read_table, ".csv": csv.read_csv}
    readers |= dict.fromkeys((".jsonl", ".ndjson"), json.read_json)
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if path.suffix not in readers:
        raise UsageError(f"{path}: the name of a table must end in {', '.join(readers)}, or be an .mmdb")
    try:
        return readers[path.suffix](path)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PingError(f"{path} is not a table: {str(error).splitlines()[0]}") from None


def distance_km(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Great-circle distances in km between locations, float64 [n, 2] in degrees; NaN if one is NaN."""
    (phi1, lambda1), (phi2, lambda2) = np.radians(here).T, np.radians(there).T
    half = np.sin((phi2 - phi1) / 2) ** 2
    half = half + np.cos(phi1) * np.cos(phi2) * np.sin((lambda2 - lambda1) / 2) ** 2
    out: np.ndarray = 2 * EARTH_KM * np.arcsin(np.sqrt(np.minimum(half, 1.0)))
    return out


def least_rtt_ms(here: Sequence[float], there: Sequence[float]) -> float:
    """The least possible RTT in ms, of light in a straight fibre. Arguments are (latitude, longitude)."""
    return 2 * float(distance_km(np.array([here]), np.array([there]))[0]) / FIBRE_KM_PER_MS


def locations(places: Sequence[Place]) -> np.ndarray:
    """Latitude and longitude of each place, float64 [n, 2]; NaN where unknown."""
    return np.array([one.location or (math.nan, math.nan) for one in places], np.float64).reshape(-1, 2)
