"""The probes of RIPE Atlas: addresses, networks and places, as one Parquet file."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.errors import PingError
from ping_llm.fetch.results import ATLAS
from ping_llm.fetch.server import Broken, Pace, Server
from ping_llm.files import whole_file
from ping_llm.progress import Progress

SCHEMA = pa.schema(
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
#: The most that the API gives per page.
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
                raise PingError(f"{base_url} names the page {url} twice")
            seen.add(url)
            page = server.insist(lambda url=url: _page(server, url))  # type: ignore[misc]
            found |= {row["probe_id"]: row for row in map(_row, page["results"])}
            progress.advance(len(page["results"]))
            url = page["next"]
    rows = [found[number] for number in sorted(found)]
    with whole_file(out) as aside:
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), aside, compression="zstd")
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
        } | {name: probe.get(name) for name in SCHEMA.names[1:7]}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PingError(f"a probe of the answer cannot be read ({error}): {str(probe)[:120]}") from None
