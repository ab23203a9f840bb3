"""Hourly files of the daily dumps: large downloads that continue after a broken connection."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from ping_llm.errors import UsageError
from ping_llm.fetch.folder import Folder, writing
from ping_llm.fetch.server import Broken, Pace, Server
from ping_llm.files import write_json
from ping_llm.progress import Progress

DUMPS = "https://data-store.ripe.net/datasets/atlas-daily-dumps/"
KINDS = ("ping", "traceroute")


def hours_of(text: str) -> list[datetime]:
    """The hour of `2024-05-01T07`, or all 24 hours of `2024-05-01`."""
    for form, count in (("%Y-%m-%dT%H", 1), ("%Y-%m-%dT%H00", 1), ("%Y-%m-%d", 24)):
        try:
            first = datetime.strptime(text, form)
        except ValueError:
            continue
        return [first + timedelta(hours=number) for number in range(count)]
    raise UsageError(f"a dump must be an hour like 2024-05-01T07, or a day like 2024-05-01, not {text!r}")


def fetch_dumps(
    hours: Sequence[datetime], out: Path, kind: str = "ping", base_url: str = DUMPS, pace: Pace | None = None
) -> dict[str, Any]:
    """Fetch the dumps that are missing in the folder `out`; return the totals of the folder."""
    if kind not in KINDS:
        raise UsageError(f"--type must be {' or '.join(KINDS)}, not {kind!r}")
    with (
        Server(base_url, pace=pace) as server,
        writing(out, {"base-url": base_url}) as folder,
        Progress("fetch", len(hours), "dumps") as progress,
    ):
        names = []
        for hour in dict.fromkeys(hours):
            name = f"{kind}-{hour:%Y-%m-%dT%H}00.bz2"
            names.append(name)
            if folder.is_done(name):
                _about(folder.aside(name)).unlink(missing_ok=True)  # left by a kill after `finish`
            else:
                _download(server, folder, f"{hour:%Y-%m-%d}/{name}", name)
            progress.advance(note=name)
        entries = [folder.files[name] for name in names]
    return {"files": len(entries), "bytes": sum(entry["bytes"] for entry in entries)}


def _download(server: Server, folder: Folder, url: str, name: str) -> None:
    part = folder.aside(name)
    server.insist(lambda: _attempt(server, url, part), lambda: _size(part))
    with part.open("rb") as file:
        magic = file.read(3)
    if magic != b"BZh":
        part.unlink()
        _about(part).unlink(missing_ok=True)
        raise UsageError(f"{server.base_url}{url} is not bzip2, so it is no dump: check --base-url")
    folder.finish(name)
    _about(part).unlink(missing_ok=True)


def _attempt(server: Server, url: str, part: Path) -> None:
    """Fetch the missing rest of a file; start again if the file on the server has changed."""
    known, have = _known(part), _size(part)
    headers = {"Accept-Encoding": "identity"}
    if known and have:
        headers |= {"Range": f"bytes={have}-", "If-Range": known["validator"]}
    with server.open(url, headers) as response:
        if response.status_code == 206 and not _continues(response, known, have):
            _forget(part)
            raise Broken(f"{response.request.url}: the file changed, or the server sent another part of it")
        if response.status_code == 200:
            _forget(part)
            have = 0
            known = _describe(response)
            if known:
                write_json(_about(part), known)
        with part.open("ab") as file:
            for piece in response.iter_raw():
                file.write(piece)
        length = known["length"] if known else _length(response)
    if length is not None and _size(part) != length:
        size = _size(part)
        if size > length:
            _forget(part)
        raise Broken(f"{server.base_url}{url}: {size:,} bytes came, the server had announced {length:,}")


def _continues(response: httpx.Response, known: dict[str, Any] | None, have: int) -> bool:
    wanted = None if known is None else f"bytes {have}-{known['length'] - 1}/{known['length']}"
    described = _describe(response)
    same = described is None or known is None or described["validator"] == known["validator"]
    return response.headers.get("content-range") == wanted and same


def _describe(response: httpx.Response) -> dict[str, Any] | None:
    """Validator and length, which tell this version of a file from later ones; None if they are missing."""
    tag, modified = response.headers.get("etag", ""), response.headers.get("last-modified", "")
    validator = tag if tag and not tag.startswith("W/") else modified
    length = _length(response)
    return {"validator": validator, "length": length} if validator and length is not None else None


def _length(response: httpx.Response) -> int | None:
    text = response.headers.get("content-length", "")
    return int(text) if text.isdecimal() else None


def _about(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _known(part: Path) -> dict[str, Any] | None:
    try:
        known = json.loads(_about(part).read_bytes())
        if isinstance(known["validator"], str) and isinstance(known["length"], int):
            return dict(known)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _forget(part: Path) -> None:
    _about(part).unlink(missing_ok=True)
    part.unlink(missing_ok=True)


def _size(part: Path) -> int:
    try:
        return part.stat().st_size
    except OSError:
        return 0
