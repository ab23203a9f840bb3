"""A simulated world, determined by a seed and a few sizes; built in seconds, and saved as its options."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ping_llm import files
from ping_llm.errors import PingError
from ping_llm.measurements import addresses
from ping_llm.simulate.latency import Latency, Truth
from ping_llm.simulate.options import WORLD_VERSION, Draw, WorldOptions, stream_key, uniform
from ping_llm.simulate.schedule import Schedule, make_schedule, survey
from ping_llm.simulate.topology import (
    PLACES,
    Ases,
    Hosts,
    Sites,
    make_ases,
    make_hosts,
    packed_addresses,
    spread_evenly,
)

WORLD_FILE = "world.json"
#: File with the place of each AS, in the format that `query inverse --places` and `serve --places` read.
PLACES_FILE = "places.csv"


@dataclass(frozen=True)
class Access:
    """A type of access link of probes. Delays are in ms."""

    share: float
    delay: tuple[float, float]
    congestion: float
    jitter: float
    shape: float
    spike_weight: float
    spike_scale: float
    failure: float  # relative failure rate; the total is scaled to the wanted share
    mbit: float  # Mbit/s, up and down, which determine the delay per byte if `size_delay` is above 0


ACCESSES = {
    "fibre": Access(0.46, (1, 5), 1.0, 0.4, 3.5, 0.010, 10, 1.0, 100),
    "dsl": Access(0.36, (7, 22), 4.0, 1.1, 3.0, 0.020, 15, 1.5, 8),
    "mobile": Access(0.14, (20, 45), 8.0, 4.0, 2.5, 0.040, 40, 5.0, 10),
    "satellite": Access(0.04, (28, 55), 6.0, 6.0, 2.5, 0.050, 50, 5.0, 20),
}

#: Share of probes that have the usual access type of their AS.
USUAL_ACCESS = 0.75

#: Share of failures caused by the probe's access; the rest are caused by the target.
ACCESS_FAILURE_SHARE = 0.2

SIZES = np.array([48, 64, 100, 1_000])
SIZE_SHARES = np.array([0.6, 0.8, 0.9, 1.0])


@dataclass(frozen=True)
class World:
    """A synthetic Internet, made by `World.build(options)` or `World.load(folder)`."""

    options: WorldOptions
    ases: Ases
    hosts: Hosts  # probes first, then targets
    sites: Sites
    schedule: Schedule
    latency: Latency
    access: np.ndarray  # uint8 [probes]: index in ACCESSES
    source_is_ipv6: np.ndarray  # bool [probes]
    per_hour: np.ndarray  # measurements in each hour since the start
    sizes: np.ndarray  # int64 [2 * targets]: payload of each (target, version)

    @classmethod
    def build(cls, options: WorldOptions) -> "World":
        return _build(options.resolved())

    @classmethod
    def load(cls, folder: Path | str) -> "World":
        """Load the world whose measurements `ping-llm simulate` wrote into `folder`."""
        return cls.build(read_options(Path(folder)))

    def save(self, folder: Path) -> None:
        """Write world.json, with the version and the options that determine the world, and places.csv."""
        files.write_json(folder / WORLD_FILE, {"version": WORLD_VERSION, "options": self.options.to_json()})
        lines = ["prefix,latitude,longitude"]
        columns = (self.ases.ipv4_prefix, self.ases.ipv6_prefix, self.ases.place)
        for short, long, place in zip(*(column.tolist() for column in columns), strict=True):
            where = f"{PLACES[place].latitude},{PLACES[place].longitude}"
            lines.append(f"{short >> 8}.{short & 255}.0.0/16,{where}")
            lines.append(f"{long >> 16:x}:{long & 0xFFFF:x}::/32,{where}")
        files.write_text(folder / PLACES_FILE, "\n".join(lines) + "\n")

    @property
    def probes(self) -> int:
        return len(self.access)

    @property
    def targets(self) -> int:
        return len(self.latency.target_as)

    @cached_property
    def sources(self) -> np.ndarray:
        """The address of each probe, uint8 [probes, 16]."""
        rows = slice(0, self.probes)
        return self._packed(rows, self.source_is_ipv6, server=False)

    @cached_property
    def destinations(self) -> np.ndarray:
        """Addresses of targets, uint8 [2 * targets, 16]: IPv4 of target t in row 2 t, IPv6 in 2 t + 1."""
        rows = slice(self.probes, self.probes + self.targets)
        both = [self._packed(rows, np.full(self.targets, ipv6), server=True) for ipv6 in (False, True)]
        return np.stack(both, axis=1).reshape(-1, 16)

    def truth(self, src: Any, dst: Any, time: Any, size: Any = None) -> Truth:
        """The exact distributions of results from sources to destinations at given times.

        Args:
          src, dst: Texts (list, Arrow array) or packed uint8 [n, 16].
          time: Arrow timestamps, datetime64, datetimes, or integers in µs since 1970 as in the table.
          size: Bytes of the payload; needed if the RTTs of the world depend on it (`size_delay`).
        """
        if size is None and self.options.size_delay > 0:
            raise PingError("The RTTs of this world depend on the size of the packets: give the sizes.")
        sizes = np.asarray(0 if size is None else size, np.int64)
        probe = positions_of(self.sources, src, "source", "probe")
        target = positions_of(self.destinations, dst, "destination", "target") // 2
        return Truth.of(self.latency, probe, target, _seconds(time), sizes)

    def sizes_of(self, slots: np.ndarray, rounds: np.ndarray, endpoint: np.ndarray) -> np.ndarray:
        """The payload of each measurement, int64 [n]: its own if `size_delay` > 0, else its target's."""
        if self.options.size_delay == 0:
            return self.sizes[endpoint]
        return _sizes(uniform(self.options.seed, Draw.SIZE, slots, rounds))

    def _packed(self, rows: slice, ipv6: np.ndarray, server: bool) -> np.ndarray:
        return packed_addresses(self.options.seed, self.ases, self.hosts, self.sites, rows, ipv6, server)


def read_options(folder: Path) -> WorldOptions:
    path = folder / WORLD_FILE
    try:
        saved = json.loads(path.read_bytes())
        version, options = saved["version"], WorldOptions(**saved["options"])
    except FileNotFoundError:
        raise PingError(f"{path} is not there: {folder} does not hold a simulated world.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise PingError(f"{path} is not a description of a world ({error}).") from None
    if version != WORLD_VERSION:
        raise PingError(
            f"{path} is of version {version}, and this program makes worlds of version {WORLD_VERSION}: "
            "the truth would be another one. Simulate again."
        )
    return options


def _build(options: WorldOptions) -> World:
    assert options.probes is not None
    assert options.targets is not None
    assert options.days is not None
    seed, probes, targets = options.seed, options.probes, options.targets
    ases = make_ases(options)
    hosts, sites = make_hosts(seed, ases)
    target_ids = np.arange(targets)
    rank = np.argsort(uniform(seed, Draw.TARGET_RANK, target_ids), kind="stable")
    schedule = make_schedule(options, (3.0 + rank) ** -0.7)
    per_hour = np.zeros(options.days * 24, np.int64)
    per_target = np.zeros(targets, np.int64)
    survey(schedule, per_hour, per_target)

    access = _choose_access(seed, ases, hosts, probes)
    column = {
        name: np.array([getattr(kind, name) for kind in ACCESSES.values()], np.float32)[access]
        for name in ("congestion", "jitter", "shape", "spike_weight", "spike_scale", "failure", "mbit")
    }
    probe_failure = column["failure"] * np.float32(
        ACCESS_FAILURE_SHARE
        * options.failed_share
        * options.measurements
        / (column["failure"] @ schedule.measurements)
    )
    target_site = hosts.site[probes:]
    probe_ids = np.arange(probes)
    vary = (0.5 + uniform(seed, Draw.PROBE_JITTER, probe_ids)).astype(np.float32)
    as_congestion = 2 * uniform(seed, Draw.AS_CONGESTION, np.arange(len(ases.hosts)))
    latency = Latency(
        probe_as=hosts.as_index[:probes],
        probe_site=hosts.site[:probes],
        probe_delay=_access_delay(seed, hosts.site[:probes], access),
        probe_congestion=column["congestion"]
        * np.float32(options.congestion)
        * as_congestion.astype(np.float32)[hosts.as_index[:probes]],
        probe_jitter=column["jitter"] * np.float32(options.jitter) * vary,
        probe_shape=column["shape"],
        probe_spike_weight=column["spike_weight"],
        probe_spike_scale=column["spike_scale"],
        probe_failure=probe_failure,
        # Both directions, 8 bits per byte.
        probe_byte_delay=np.float32(options.size_delay * 2 * 8 / 1_000) / column["mbit"],
        target_as=hosts.as_index[probes:],
        target_site=target_site,
        target_delay=(0.2 + 1.3 * uniform(seed, Draw.TARGET_DELAY, target_ids)).astype(np.float32),
        target_failure=_target_failure(options, per_target),
        target_zone=np.rint(sites.longitude[target_site] / 15).astype(np.int64),
        site_longitude=sites.longitude,
        site_direction=sites.direction,
        ases=len(ases.hosts),
        inflation_key=stream_key(seed, Draw.PAIR_INFLATION),
        detour_key=stream_key(seed, Draw.PAIR_DETOUR),
        route_length_key=stream_key(seed, Draw.ROUTE_LENGTH),
        route_offset_key=stream_key(seed, Draw.ROUTE_OFFSET),
        route_change_key=stream_key(seed, Draw.ROUTE_CHANGE),
        failure_key=stream_key(seed, Draw.FAILURE),
        component_key=stream_key(seed, Draw.COMPONENT),
        jitter_key=stream_key(seed, Draw.JITTER),
        loss_key=stream_key(seed, Draw.PACKET_LOSS),
        anycast_key=stream_key(seed, Draw.ANYCAST),
        anycast_share=options.anycast_share,
        detour_share=options.detour_share,
        changed_share=options.changed_share,
    )
    size_draw = uniform(seed, Draw.TARGET_SIZE, np.arange(2 * targets))
    return World(
        options=options,
        ases=ases,
        hosts=hosts,
        sites=sites,
        schedule=schedule,
        latency=latency,
        access=access,
        source_is_ipv6=_choose_versions(schedule.measurements, options.ipv6_share),
        per_hour=per_hour,
        sizes=_sizes(size_draw),
    )


def _sizes(drawn: np.ndarray) -> np.ndarray:
    return SIZES[np.searchsorted(SIZE_SHARES, drawn)]


def _choose_access(seed: int, ases: Ases, hosts: Hosts, probes: int) -> np.ndarray:
    shares = np.array([kind.share for kind in ACCESSES.values()])
    order = np.argsort(uniform(seed, Draw.AS_ACCESS, np.arange(ases.access)), kind="stable")
    usual = np.empty(ases.access, np.int64)
    usual[order] = spread_evenly(ases.hosts[: ases.access][order] + 1e-9, shares)
    ids = np.arange(probes)
    own = np.searchsorted(np.cumsum(shares), uniform(seed, Draw.PROBE_ACCESS, ids, 1)).clip(
        0, len(shares) - 1
    )
    is_usual = uniform(seed, Draw.PROBE_ACCESS, ids, 0) < USUAL_ACCESS
    return np.where(is_usual, usual[hosts.as_index[:probes]], own).astype(np.uint8)


def _access_delay(seed: int, site: np.ndarray, access: np.ndarray) -> np.ndarray:
    """The delay of each access link, mostly determined by the site, as neighbours share an exchange."""
    ranges = np.array([kind.delay for kind in ACCESSES.values()])[access]
    shared = uniform(seed, Draw.PROBE_DELAY, site, 1)
    own = uniform(seed, Draw.PROBE_DELAY, np.arange(len(site)), 0)
    return (ranges[:, 0] + (ranges[:, 1] - ranges[:, 0]) * (0.7 * shared + 0.3 * own)).astype(np.float32)


def _choose_versions(count: np.ndarray, ipv6_share: float) -> np.ndarray:
    """Whether each probe uses IPv6: if its share so far is too small. Exact even with ten probes."""
    reached = np.rint(np.cumsum(count) * ipv6_share)
    ipv6 = np.zeros(len(count), bool)
    done = 0
    for index, (size, goal) in enumerate(zip(count.tolist(), reached.tolist(), strict=True)):
        if goal - done >= size / 2:
            ipv6[index] = True
            done += size
    return ipv6


def _target_failure(options: WorldOptions, per_target: np.ndarray) -> np.ndarray:
    """Failure probability of each target in each local hour, float64 [targets, 24].

    Most targets hardly ever fail, a few fail often, and in some hours more than in others. The values are
    scaled such that the wanted share of the world's measurements fails.
    """
    seed, targets = options.seed, len(per_target)
    ids = np.arange(targets)
    order = np.argsort(uniform(seed, Draw.TARGET_FAILURE, ids), kind="stable")
    base = np.empty(targets)
    base[order] = np.log((np.arange(targets) + 0.5) / targets) ** 2
    base *= (1 - ACCESS_FAILURE_SHARE) * options.failed_share * options.measurements / (base @ per_target)
    worst_hour = 18 + 6 * uniform(seed, Draw.TARGET_HOUR, ids)
    daily = 1 + 0.6 * np.cos((np.arange(24)[None, :] - worst_hour[:, None]) * (2 * np.pi / 24))
    return np.minimum(base[:, None] * daily, 0.95)


def positions_of(known: np.ndarray, wanted: Any, what: str, role: str) -> np.ndarray:
    """The row of `known` for each wanted address.

    Args:
      known: Packed addresses, uint8 [n, 16].
      wanted: Texts (list, Arrow array) or packed uint8 [n, 16].
      what, role: What the error calls an address ("source"), and what it is not in this world ("probe").
    """
    if isinstance(wanted, np.ndarray) and wanted.dtype == np.uint8 and wanted.ndim == 2:
        packed, inverse = np.ascontiguousarray(wanted), np.arange(len(wanted))
    else:
        texts = wanted if isinstance(wanted, pa.Array | pa.ChunkedArray) else pa.array(wanted, pa.string())
        if isinstance(texts, pa.ChunkedArray):
            texts = texts.combine_chunks()
        coded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
        packed, _ = addresses.pack(coded.dictionary.cast(pa.string()))
        inverse = coded.indices.to_numpy(zero_copy_only=False)
    keys = np.ascontiguousarray(known).view("S16")[:, 0]
    order = np.argsort(keys, kind="stable")
    queries = packed.view("S16")[:, 0]
    found = order[np.searchsorted(keys, queries, sorter=order).clip(0, len(keys) - 1)]
    strangers = keys[found] != queries
    if strangers.any():
        address = addresses.unpack_one(packed[strangers.argmax()].tobytes())
        raise PingError(f"The {what} {address} is not a {role} of this world: it has no true distribution.")
    return found[inverse]


def _seconds(time: Any) -> np.ndarray:
    if isinstance(time, pa.Array | pa.ChunkedArray):
        if pa.types.is_timestamp(time.type):
            time = time.cast(pa.timestamp("us", time.type.tz)).cast(pa.int64())
        time = time.to_numpy()
    values = np.asarray(time)
    if values.dtype == object:
        # datetimes with a time zone, which NumPy refuses
        values = np.array([round(moment.timestamp() * 1e6) for moment in values.ravel()], np.int64)
    if np.issubdtype(values.dtype, np.datetime64):
        values = values.astype("datetime64[us]").astype(np.int64)
    return np.atleast_1d(values.astype(np.int64)) // 1_000_000
