"""Autonomous systems and their sites, with places on the globe and hierarchical prefixes.

region (first byte) → AS (IPv4 /16, IPv6 /32) → site (IPv4 /24, IPv6 /48) → host. The longer the common prefix
of two hosts, the more of their path they share.
"""

from typing import NamedTuple

import numpy as np

from ping_llm.measurements.addresses import MAPPED_PREFIX
from ping_llm.simulate.options import Draw, WorldOptions, bits, uniform


class Region(NamedTuple):
    """A region. As with the real registries, the first byte of an address is informative about its place.

    The /8 blocks contain no reserved ranges, so that every address is public.
    """

    ipv4_blocks: tuple[int, ...]
    ipv6_block: int  # the first 12 bits
    probes: float  # factor on the weights of the region's places
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


class City(NamedTuple):
    name: str
    region: str
    latitude: float
    longitude: float
    probes: float  # weight among the region's ASes that have probes
    targets: float  # weight among the region's ASes that have targets


PLACES = (
    City("Amsterdam", "europe", 52.4, 4.9, 6, 10),
    City("Frankfurt", "europe", 50.1, 8.7, 8, 12),
    City("London", "europe", 51.5, -0.1, 7, 8),
    City("Paris", "europe", 48.9, 2.4, 7, 5),
    City("Brussels", "europe", 50.8, 4.4, 3, 1),
    City("Zurich", "europe", 47.4, 8.5, 4, 2),
    City("Vienna", "europe", 48.2, 16.4, 3, 2),
    City("Prague", "europe", 50.1, 14.4, 4, 2),
    City("Warsaw", "europe", 52.2, 21.0, 3, 2),
    City("Milan", "europe", 45.5, 9.2, 4, 2),
    City("Madrid", "europe", 40.4, -3.7, 3, 2),
    City("Stockholm", "europe", 59.3, 18.1, 3, 3),
    City("Helsinki", "europe", 60.2, 24.9, 2, 1),
    City("Kyiv", "europe", 50.5, 30.5, 3, 1),
    City("Moscow", "europe", 55.8, 37.6, 4, 2),
    City("Athens", "europe", 38.0, 23.7, 2, 0),
    City("Istanbul", "europe", 41.0, 29.0, 2, 1),
    City("Tehran", "europe", 35.7, 51.4, 2, 0),
    City("Dubai", "europe", 25.2, 55.3, 1, 1),
    City("New York", "america", 40.7, -74.0, 4, 4),
    City("Ashburn", "america", 39.0, -77.5, 3, 7),
    City("Chicago", "america", 41.9, -87.6, 3, 2),
    City("Dallas", "america", 32.8, -96.8, 2, 3),
    City("Seattle", "america", 47.6, -122.3, 2, 2),
    City("San Jose", "america", 37.3, -121.9, 3, 5),
    City("Los Angeles", "america", 34.1, -118.2, 2, 3),
    City("Miami", "america", 25.8, -80.2, 1, 1),
    City("Toronto", "america", 43.7, -79.4, 2, 1),
    City("Tokyo", "asia", 35.7, 139.7, 2, 4),
    City("Seoul", "asia", 37.6, 127.0, 1, 1),
    City("Hong Kong", "asia", 22.3, 114.2, 1, 3),
    City("Singapore", "asia", 1.35, 103.8, 2, 5),
    City("Jakarta", "asia", -6.2, 106.8, 1, 0),
    City("Mumbai", "asia", 19.1, 72.9, 2, 2),
    City("Sydney", "asia", -33.9, 151.2, 2, 3),
    City("Auckland", "asia", -36.8, 174.8, 1, 0),
    City("Sao Paulo", "latin", -23.5, -46.6, 2, 3),
    City("Buenos Aires", "latin", -34.6, -58.4, 1, 0),
    City("Santiago", "latin", -33.4, -70.7, 1, 0),
    City("Johannesburg", "africa", -26.2, 28.0, 1, 2),
    City("Nairobi", "africa", -1.3, 36.8, 1, 0),
    City("Lagos", "africa", 6.5, 3.4, 1, 0),
)


#: Hosts per site, unless an AS is so large that its 240 sites need more.
HOSTS_PER_SITE = 5
SITES_PER_AS = 240

#: Share of ASes that host targets; the others have the probes.
HOSTING_SHARE = 0.25

#: Spread of the sites of an AS around its centre, in degrees of latitude: a country for access ASes, a town
#: for hosting ASes.
ACCESS_SPREAD, HOSTING_SPREAD = 1.5, 0.3


class Ases(NamedTuple):
    """Arrays by AS. The first `access` ASes have probes, the rest targets."""

    access: int
    place: np.ndarray  # index into PLACES
    hosts: np.ndarray  # probes, or targets, in the AS
    ipv4_prefix: np.ndarray  # uint32: the first 16 bits
    ipv6_prefix: np.ndarray  # uint32: the first 32 bits


class Sites(NamedTuple):
    """Arrays by site."""

    number: np.ndarray  # within its AS
    longitude: np.ndarray
    direction: np.ndarray  # float64 [sites, 3]: unit vector from the centre of the Earth


class Hosts(NamedTuple):
    """Arrays by host, in the order of their ASes."""

    as_index: np.ndarray
    site: np.ndarray
    number: np.ndarray  # within its site


def allocate(total: int, weights: np.ndarray) -> np.ndarray:
    """Integers that add up to `total`, each within 1 of its share."""
    edges = np.rint(np.cumsum(weights) * (total / weights.sum())).astype(np.int64)
    edges[-1] = total
    return np.diff(edges, prepend=0)


def spread_evenly(sizes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A category for each item, such that the *sizes* per category are in proportion to the weights.

    With independent draws, a world of 15 ASes would have only a random half of the categories.
    """
    middles = (np.cumsum(sizes) - sizes / 2) / sizes.sum()
    return np.searchsorted(np.cumsum(weights) / weights.sum(), middles).clip(0, len(weights) - 1)


def as_weights(seed: int, first: int, count: int) -> np.ndarray:
    """Sizes of ASes: a mild power law, in random order."""
    order = np.argsort(bits(seed, Draw.AS_PLACE, np.arange(first, first + count)), kind="stable")
    return (1.0 + order) ** -0.5 if count < 20 else (8.0 + order) ** -0.7


def make_ases(options: WorldOptions) -> Ases:
    assert options.ases is not None
    assert options.probes is not None
    assert options.targets is not None
    seed, count = options.seed, options.ases
    hosting = max(1, round(HOSTING_SHARE * count))
    access = count - hosting
    place = np.empty(count, np.int64)
    hosts = np.empty(count, np.int64)
    for first, number, total, weights in (
        (0, access, options.probes, [place.probes * REGIONS[place.region].probes for place in PLACES]),
        (
            access,
            hosting,
            options.targets,
            [place.targets * REGIONS[place.region].targets for place in PLACES],
        ),
    ):
        sizes = as_weights(seed, first, number)
        hosts[first : first + number] = allocate(total, sizes)
        place[first : first + number] = spread_evenly(sizes, np.array(weights, np.float64))
    ipv4, ipv6 = _prefixes(seed, place)
    return Ases(access, place, hosts, ipv4, ipv6)


def _prefixes(seed: int, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ipv4 = np.empty(len(place), np.uint32)
    ipv6 = np.empty(len(place), np.uint32)
    for number, (name, region) in enumerate(REGIONS.items()):
        members = np.flatnonzero([PLACES[index].region == name for index in place])
        free = np.array([block * 256 + second for block in region.ipv4_blocks for second in range(256)])
        random = bits(seed, Draw.AS_PREFIX, free, number)
        order = np.argsort(random, kind="stable")[: len(members)]
        ipv4[members] = free[order]
        # 4,608 slots of 227 fit in the 20 free bits; distinct slots give distinct prefixes.
        ipv6[members] = (region.ipv6_block << 20) + order * 227 + (random[order] % np.uint64(227)).astype(int)
    return ipv4, ipv6


def make_hosts(seed: int, ases: Ases) -> tuple[Hosts, Sites]:
    """Spread the hosts of each AS over its sites."""
    per_site = np.maximum(HOSTS_PER_SITE, -(-ases.hosts // SITES_PER_AS))
    sites_of_as = -(-ases.hosts // per_site)
    first_site = np.cumsum(sites_of_as) - sites_of_as
    as_index = np.repeat(np.arange(len(ases.hosts)), ases.hosts)
    within_as = np.arange(len(as_index)) - (np.cumsum(ases.hosts) - ases.hosts)[as_index]
    site_number, number = np.divmod(within_as, per_site[as_index])
    hosts = Hosts(
        as_index.astype(np.int32),
        (first_site[as_index] + site_number).astype(np.int32),
        number.astype(np.int32),
    )
    return hosts, _make_sites(seed, ases, sites_of_as, first_site)


def _make_sites(seed: int, ases: Ases, sites_of_as: np.ndarray, first_site: np.ndarray) -> Sites:
    as_index = np.repeat(np.arange(len(sites_of_as)), sites_of_as)
    ids = np.arange(len(as_index))
    north, east = normal_pair(seed, Draw.SITE_PLACE, ids)
    spread = np.where(as_index < ases.access, ACCESS_SPREAD, HOSTING_SPREAD)
    centres = np.array([(place.latitude, place.longitude) for place in PLACES])[ases.place[as_index]]
    latitude = np.radians(centres[:, 0] + spread * north.clip(-2, 2))
    longitude = centres[:, 1] + spread * east.clip(-2, 2) / np.cos(latitude)
    radians = np.radians(longitude)
    direction = np.stack(
        [np.cos(latitude) * np.cos(radians), np.cos(latitude) * np.sin(radians), np.sin(latitude)], axis=1
    )
    return Sites(ids - first_site[as_index], longitude, direction)


def normal_pair(seed: int, stream: Draw, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two independent standard normals (Box and Muller)."""
    radius = np.sqrt(-2 * np.log(uniform(seed, stream, ids, 0)))
    angle = 2 * np.pi * uniform(seed, stream, ids, 1)
    return radius * np.cos(angle), radius * np.sin(angle)


def packed_addresses(
    seed: int, ases: Ases, hosts: Hosts, sites: Sites, rows: slice, ipv6: np.ndarray, server: bool
) -> np.ndarray:
    """The packed addresses of the hosts in `rows`, uint8 [n, 16].

    The IPv6 interface identifier of a server is short, that of a probe is random.
    """
    as_index, number = hosts.as_index[rows], hosts.number[rows]
    site_number = sites.number[hosts.site[rows]]
    ids = np.arange(rows.start, rows.stop)
    salt = bits(seed, Draw.AS_PREFIX, np.arange(len(ases.hosts)), 99)[as_index].astype(np.int64) & 0xFFFF
    packed = np.zeros((len(ids), 16), np.uint8)
    packed[:, :12] = np.frombuffer(MAPPED_PREFIX, np.uint8)
    packed[:, 12:14] = ases.ipv4_prefix[as_index].astype(">u2").view(np.uint8).reshape(-1, 2)
    # Odd factors give permutations, so that neighbouring hosts do not have neighbouring addresses.
    packed[:, 14] = (site_number * 97 + salt) & 0xFF
    packed[:, 15] = (number * 61 + salt) % 251 + 2
    if ipv6.any():
        long = np.zeros((len(ids), 16), np.uint8)
        long[:, 0:4] = ases.ipv6_prefix[as_index].astype(">u4").view(np.uint8).reshape(-1, 4)
        long[:, 4:6] = ((site_number * 40_503 + salt) & 0xFFFF).astype(">u2").view(np.uint8).reshape(-1, 2)
        long[:, 6:8] = (number + 1).astype(">u2").view(np.uint8).reshape(-1, 2)
        if server:
            long[:, 15] = 1 + bits(seed, Draw.TARGET_INTERFACE, ids) % np.uint64(254)
        else:
            interface = bits(seed, Draw.PROBE_INTERFACE, ids)
            long[:, 8:16] = interface.astype(">u8").view(np.uint8).reshape(-1, 8)
        packed[ipv6] = long[ipv6]
    return packed
