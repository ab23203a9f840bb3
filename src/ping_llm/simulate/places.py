"""Where the synthetic Internet lives: metropolitan areas, and the address blocks of their regions.

Weights are tuned together so that the default world has the RTT percentiles of the typical dump
(p50 50 ms, p90 239 ms, p99 343 ms): most probes are in Europe, targets are in the usual hosting places.
"""

from typing import NamedTuple


class Region(NamedTuple):
    """As with the real registries, the first byte of an address already says something about the place.

    The /8 blocks hold no reserved range at all, so that every address is a public one.
    """

    ipv4_blocks: tuple[int, ...]
    ipv6_block: int  # the first 12 bits
    probes: float  # factor on the weights of its places below
    targets: float


REGIONS = {
    "europe": Region(
        (2, 5, 31, 37, 46, 62, 77, 80, 85, 91, 94, 109, 176, 178, 185, 188, 193, 212), 0x2A0, 3.4, 4.5
    ),
    "america": Region(
        (12, 24, 50, 63, 66, 71, 73, 76, 96, 98, 104, 108, 173, 184, 207, 216), 0x260, 0.6, 0.3
    ),
    "asia": Region((1, 14, 27, 36, 42, 49, 58, 61, 101, 110, 115, 119, 124, 180, 202, 218), 0x240, 1.4, 3.5),
    "latin": Region((177, 179, 181, 186, 187, 189, 190, 200, 201), 0x280, 1.0, 2.5),
    "africa": Region((41, 102, 105, 154, 196, 197), 0x2C0, 1.0, 1.0),
}


class Place(NamedTuple):
    name: str
    region: str
    latitude: float
    longitude: float
    probes: float  # weight among the region's ASes that have probes
    targets: float  # weight among the region's ASes that have targets


PLACES = (
    Place("Amsterdam", "europe", 52.4, 4.9, 6, 10),
    Place("Frankfurt", "europe", 50.1, 8.7, 8, 12),
    Place("London", "europe", 51.5, -0.1, 7, 8),
    Place("Paris", "europe", 48.9, 2.4, 7, 5),
    Place("Brussels", "europe", 50.8, 4.4, 3, 1),
    Place("Zurich", "europe", 47.4, 8.5, 4, 2),
    Place("Vienna", "europe", 48.2, 16.4, 3, 2),
    Place("Prague", "europe", 50.1, 14.4, 4, 2),
    Place("Warsaw", "europe", 52.2, 21.0, 3, 2),
    Place("Milan", "europe", 45.5, 9.2, 4, 2),
    Place("Madrid", "europe", 40.4, -3.7, 3, 2),
    Place("Stockholm", "europe", 59.3, 18.1, 3, 3),
    Place("Helsinki", "europe", 60.2, 24.9, 2, 1),
    Place("Kyiv", "europe", 50.5, 30.5, 3, 1),
    Place("Moscow", "europe", 55.8, 37.6, 4, 2),
    Place("Athens", "europe", 38.0, 23.7, 2, 0),
    Place("Istanbul", "europe", 41.0, 29.0, 2, 1),
    Place("Tehran", "europe", 35.7, 51.4, 2, 0),
    Place("Dubai", "europe", 25.2, 55.3, 1, 1),
    Place("New York", "america", 40.7, -74.0, 4, 4),
    Place("Ashburn", "america", 39.0, -77.5, 3, 7),
    Place("Chicago", "america", 41.9, -87.6, 3, 2),
    Place("Dallas", "america", 32.8, -96.8, 2, 3),
    Place("Seattle", "america", 47.6, -122.3, 2, 2),
    Place("San Jose", "america", 37.3, -121.9, 3, 5),
    Place("Los Angeles", "america", 34.1, -118.2, 2, 3),
    Place("Miami", "america", 25.8, -80.2, 1, 1),
    Place("Toronto", "america", 43.7, -79.4, 2, 1),
    Place("Tokyo", "asia", 35.7, 139.7, 2, 4),
    Place("Seoul", "asia", 37.6, 127.0, 1, 1),
    Place("Hong Kong", "asia", 22.3, 114.2, 1, 3),
    Place("Singapore", "asia", 1.35, 103.8, 2, 5),
    Place("Jakarta", "asia", -6.2, 106.8, 1, 0),
    Place("Mumbai", "asia", 19.1, 72.9, 2, 2),
    Place("Sydney", "asia", -33.9, 151.2, 2, 3),
    Place("Auckland", "asia", -36.8, 174.8, 1, 0),
    Place("Sao Paulo", "latin", -23.5, -46.6, 2, 3),
    Place("Buenos Aires", "latin", -34.6, -58.4, 1, 0),
    Place("Santiago", "latin", -33.4, -70.7, 1, 0),
    Place("Johannesburg", "africa", -26.2, 28.0, 1, 2),
    Place("Nairobi", "africa", -1.3, 36.8, 1, 0),
    Place("Lagos", "africa", 6.5, 3.4, 1, 0),
)
