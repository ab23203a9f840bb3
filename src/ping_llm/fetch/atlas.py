"""The Atlas API: results as gzipped JSON lines, one file per measurement and time window, and the probes.

The API does not support byte ranges, so a whole window is fetched again after a failure. The same results
give the same bytes: lines in the order of the response, gzip without a date.
"""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.errors import PingError, UsageError
from ping_llm.fetch.folder import Folder, writing
from ping_llm.fetch.server import Broken, Pace, Server
from ping_llm.files import whole_file
from ping_llm.progress import Progress

ATLAS = "https://atlas.ripe.net/api/v2/"
#: Largest length of a line, in bytes, which no result exceeds: a traceroute of 255 hops has some 100 kB.
_LONGEST_LINE = 4 << 20


@dataclass(frozen=True)
class ResultsOptions:
    """The results to fetch.

    Attributes:
      measurements: Measurement ids.
      start, stop: Results from `start` up to, not including, `stop`.
      probes: Probe ids; empty: all.
      window: Time range of one file.
    """

    measurements: Sequence[int]
    start: datetime
    stop: datetime
    probes: Sequence[int] = ()
    window: timedelta = timedelta(days=1)
    base_url: str = ATLAS

    def check(self) -> None:
        if not self.measurements:
            raise UsageError("name at least one measurement with --msm")
        if min((*self.measurements, *self.probes)) < 1:
            raise UsageError("ids of measurements and probes must be at least 1")
        if self.start >= self.stop:
            raise UsageError(f"--start {self.start:%Y-%m-%dT%H:%M} must be earlier than --stop")
        if self.window < timedelta(minutes=1):
            raise UsageError("--window must be at least a minute")

    def windows(self) -> list[tuple[int, datetime, datetime]]:
        """(measurement, start, stop) of each file."""
        out = []
        for measurement in dict.fromkeys(self.measurements):
            start = self.start
            while start < self.stop:
                stop = min(start + self.window, self.stop)
                out.append((measurement, start, stop))
                start = stop
        return out


def fetch_results(
    options: ResultsOptions, out: Path, key: str | None = None, pace: Pace | None = None
) -> dict[str, Any]:
    """Fetch the results that are missing in the folder `out`; return the totals of the folder."""
    options.check()
    made_with = {"base-url": options.base_url, "probes": sorted(set(options.probes)) or "all"}
    windows = options.windows()
    with (
        Server(options.base_url, key, pace) as server,
        writing(out, made_with) as folder,
        Progress("fetch", len(windows), "windows") as progress,
    ):
        names = []
        for measurement, start, stop in windows:
            name = f"{measurement}-{start:%Y%m%dT%H%M%S}-{stop:%Y%m%dT%H%M%S}.jsonl.gz"
            names.append(name)
            if not folder.is_done(name):
                url = _url(measurement, start, stop, options.probes)
                results = server.insist(
                    lambda url=url, name=name, measurement=measurement: _attempt(  # type: ignore[misc]
                        server, folder, url, name, measurement
                    )
                )
                if results:
                    folder.finish(name, results=results)
                else:
                    folder.aside(name).unlink()
                    folder.record(name, bytes=0, results=0)
            progress.advance(note=name)
        entries = [folder.files[name] for name in names]
    return {
        "windows": len(entries),
        "files": sum(1 for entry in entries if entry["bytes"]),
        "results": sum(entry["results"] for entry in entries),
        "bytes": sum(entry["bytes"] for entry in entries),
    }


def _url(measurement: int, start: datetime, stop: datetime, probes: Sequence[int]) -> str:
    # In the API, start and stop are inclusive, in whole seconds.
    query: dict[str, str | int] = {"format": "txt", "start": _seconds(start), "stop": _seconds(stop) - 1}
    if probes:
        query["probe_ids"] = ",".join(str(probe) for probe in sorted(set(probes)))
    return f"measurements/{measurement}/results/?{httpx.QueryParams(query)}"


def _seconds(time: datetime) -> int:
    return int(time.replace(tzinfo=time.tzinfo or UTC).timestamp())


def _attempt(server: Server, folder: Folder, url: str, name: str, measurement: int) -> int:
    """Write a window to its temporary file; return its number of results."""
    results, rest = 0, b""
    with (
        server.open(url) as response,
        folder.aside(name).open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as file,
    ):
        for piece in response.iter_bytes():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                results += _write(file, line, url, measurement)
            if len(rest) > _LONGEST_LINE:
                raise Broken(f"{url}: a line has more than {_LONGEST_LINE:,} bytes")
        results += _write(file, rest, url, measurement)
    return results


def _write(file: gzip.GzipFile, line: bytes, url: str, measurement: int) -> int:
    """Write a line if it is a result of the measurement; raise Broken otherwise (such as a truncated one)."""
    line = line.strip()
    if not line:
        return 0
    try:
        is_result = orjson.loads(line)["msm_id"] == measurement
    except (ValueError, KeyError, TypeError):
        is_result = False
    if not is_result:
        raise Broken(f"{url}: a line is not a result of measurement {measurement}: {line[:80]!r}")
    file.write(line + b"\n")
    return 1


PROBES = pa.schema(
    [
        ("probe_id", pa.int64()),
        ("address_v4", pa.string()),
        ("address_v6", pa.string()),
        ("prefix_v4", pa.string()),
        ("prefix_v6", pa.string()),
        ("asn_v4", pa.int64()),
        ("asn_v6", pa.int64()),
        ("country", pa.string()),
        ("latitude", pa.float64()),
        ("longitude", pa.float64()),
        ("status", pa.string()),
        ("is_anchor", pa.bool_()),
    ]
)
#: Probes per page, the largest number that the API allows.
_PAGE = 500


def fetch_probes(
    out: Path, base_url: str = ATLAS, key: str | None = None, pace: Pace | None = None
) -> dict[str, Any]:
    """Write the table of all probes to the file `out`."""
    found: dict[int, dict[str, Any]] = {}
    with Server(base_url, key, pace) as server, Progress("fetch", unit="probes") as progress:
        url, seen = f"probes/?page_size={_PAGE}&sort=id", set()
        while url:
            if url in seen:
                raise PingError(
                    f"{base_url} listed the page {url} twice, so that reading would not end: check --base-url"
                )
            seen.add(url)
            page = server.insist(lambda url=url: _page(server, url))  # type: ignore[misc]
            found |= {row["probe_id"]: row for row in map(_row, page["results"])}
            progress.advance(len(page["results"]))
            url = page["next"]
    rows = [found[number] for number in sorted(found)]
    with whole_file(out) as aside:
        pq.write_table(pa.Table.from_pylist(rows, PROBES), aside, compression="zstd")
    return {"probes": len(rows), "with_place": sum(row["latitude"] is not None for row in rows)}


def _page(server: Server, url: str) -> dict[str, Any]:
    with server.open(url) as response:
        response.read()
        try:
            page = response.json()
            if isinstance(page["results"], list) and isinstance(page.get("next"), str | None):
                return {"results": page["results"], "next": page.get("next") or ""}
        except (ValueError, KeyError, TypeError):
            pass
        raise Broken(f"{response.request.url}: the answer is not a page of probes")


def _row(probe: Any) -> dict[str, Any]:
    try:
        place = (probe.get("geometry") or {}).get("coordinates") or (None, None)
        status = probe.get("status")
        return {
            "probe_id": int(probe["id"]),
            "country": probe.get("country_code"),
            "longitude": place[0],
            "latitude": place[1],
            "status": status.get("name") if isinstance(status, dict) else status,
            "is_anchor": probe.get("is_anchor"),
        } | {name: probe.get(name) for name in PROBES.names[1:7]}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PingError(f"a probe of the answer cannot be read ({error}): {str(probe)[:120]}") from None
