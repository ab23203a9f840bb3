"""Names that users write for addresses: a host name, AS3333, country:NL or probe:1234.

A host name stands for the address that it resolves to. The others stand for the addresses of the data that
are there, the most measured first, or, where the data have none, for the prefixes of a table of places.
"""

import re
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import Prefix, parse_prefix

if TYPE_CHECKING:
    from ping_llm.answer.known_ends import KnownEnds
    from ping_llm.answer.past import Data
    from ping_llm.measurements.places import Place, Places

End = Literal["source", "destination"]
#: Function that returns the addresses of a host, the one that programs use first. It raises UsageError if
#: there are none.
Resolver = Callable[[str], Sequence[Prefix]]
#: Function that runs a lookup, given the kind of end, the position in a list, and the lookup itself. A server
#: uses it to add the name of the field to an error.
Attempt = Callable[[End, int, Callable[[], "Named"]], "Named"]

#: Default limit on the number of addresses that a name stands for.
MOST = 20

_HOST = re.compile(r"(?=.*[a-zA-Z])(?!-)[\w-]{1,63}(\.[\w-]{1,63})*\.?")
_AS = re.compile(r"AS(\d{1,10})", re.IGNORECASE)
_COUNTRY = re.compile(r"(?:country:)?([a-z]{2})", re.IGNORECASE)
_PROBE = re.compile(r"probe:(\d{1,18})", re.IGNORECASE)


def is_name(text: str | Prefix) -> bool:
    """Whether a text has the form of a name; whether the name is known is not checked."""
    if isinstance(text, Prefix):
        return False
    text = text.strip()
    return any(one.fullmatch(text) for one in (_HOST, _PROBE, _COUNTRY))


def is_host(text: str) -> bool:
    """Whether a text has the form of a host name."""
    text = text.strip()
    return bool(_HOST.fullmatch(text)) and not (_AS.fullmatch(text) or _COUNTRY.fullmatch(text))


@dataclass(frozen=True)
class Named:
    """A text and the addresses or prefixes that it stands for.

    Attributes:
      text: the text as written.
      ends: addresses or prefixes.
      note: sentence on how the text was understood; None for an address or prefix.
    """

    text: str
    ends: tuple[Prefix, ...]
    note: str | None = None

    @property
    def addresses(self) -> list[str]:
        return [str(end) for end in self.ends]

    @property
    def version(self) -> int | None:
        """The IP version, if all have the same."""
        versions = {end.version for end in self.ends}
        return versions.pop() if len(versions) == 1 else None

    def only(self) -> "Named":
        """Return self, if it is a single address or prefix.

        Raises:
          UsageError: the name stands for several.
        """
        if len(self.ends) > 1:
            raise UsageError(f"{self.note}; name one of them")
        return self

    def matching(self, other: "Named") -> "Named":
        """Keep the ends whose IP version the other name has too; all, if there are none."""
        shared = {end.version for end in other.ends}
        kept = tuple(end for end in self.ends if end.version in shared)
        return Named(self.text, kept or self.ends, self.note)


@dataclass(frozen=True)
class QuestionEnds[Address]:
    """Source and destination of a question, with names resolved.

    Attributes:
      notes: sentences on what the names stand for.
    """

    src: Address | None
    dst: Address | None
    notes: tuple[str, ...] = ()


class NameIndex:
    """Addresses and prefixes found in places and data, by AS, country and probe.

    Each index is made once, when it is first needed: 100,000 addresses take 2 s. Safe to use from several
    threads.

    Args:
      places: locations of prefixes, or files with them, read when needed.
      data: the ends of data, or the data, or a folder of probe rows, read when needed.
    """

    def __init__(
        self, places: "Places | Sequence[Path] | None" = None, data: "KnownEnds | Data | Path | None" = None
    ):
        self._given, self._data = places, data
        self._lock = threading.RLock()
        self._by_end: dict[End, _ByPlace] = {}

    def at(self, place: int | str, end: End, version: int | None) -> tuple[Sequence[Prefix], str]:
        """Addresses of the data in an AS (a number) or country, or else its prefixes; and a noun for them."""
        with self._lock:
            if found := self._of_data(end).at(place, version):
                return found, f"{end}s of the data"
            return self._listed.at(place, version), "prefixes of --places"

    def of_probe(self, number: int) -> Sequence[Prefix]:
        with self._lock:
            found = [] if self._known is None else self._known.of_probe(number)
            return self._places.probe(number) if not found and self._places is not None else found

    @property
    def has_places(self) -> bool:
        return bool(self._given)

    @property
    def has_data(self) -> bool:
        return self._data is not None

    def _of_data(self, end: End) -> "_ByPlace":
        if end not in self._by_end:
            ends: list[Prefix] = []
            if self._known is not None:
                known = self._known.sources if end == "source" else self._known.destinations
                ends = [Prefix.of(packed) for packed in known.packed]
            assert self._places is not None
            self._by_end[end] = _ByPlace((one, self._places.place(one)) for one in ends)
        return self._by_end[end]

    @cached_property
    def _listed(self) -> "_ByPlace":
        assert self._places is not None
        return _ByPlace(self._places.listed())

    @cached_property
    def _places(self) -> "Places | None":
        from ping_llm.measurements.places import Places

        if isinstance(self._given, Sequence):
            return Places(self._given) if self._given else None
        return self._given

    @cached_property
    def _known(self) -> "KnownEnds | None":
        from ping_llm.answer.known_ends import KnownEnds
        from ping_llm.answer.past import Data

        if self._data is None or isinstance(self._data, KnownEnds):
            return self._data
        return KnownEnds(Data(self._data) if isinstance(self._data, Path) else self._data)


class _ByPlace:
    """Addresses or prefixes by AS number and by country, in the given order."""

    def __init__(self, places: "Iterable[tuple[Prefix, Place]]"):
        found: dict[int | str, dict[Prefix, None]] = {}
        for one, place in places:
            for key in (place.asn, place.country):
                if key is not None:
                    found.setdefault(key, {})[one] = None
        self._found = {key: list(several) for key, several in found.items()}

    def at(self, key: int | str, version: int | None) -> Sequence[Prefix]:
        return [one for one in self._found.get(key, ()) if _is_wanted(one, version)]


def look_up(host: str) -> list[Prefix]:
    """Resolve a host by the system's resolver; the address that programs use comes first.

    Raises:
      UsageError: the host has no address.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"the host name {host} cannot be resolved: {why}") from None
    return list(dict.fromkeys(parse_prefix(str(one[4][0]).partition("%")[0]) for one in found))


class Names:
    """Resolver of names.

    Args:
      index: addresses of places and data.
      resolve: function that returns the addresses of a host; None: host names are refused.
      most: largest number of addresses that a name stands for.
    """

    def __init__(
        self, index: NameIndex | None = None, *, resolve: Resolver | None = look_up, most: int = MOST
    ):
        self._index, self._resolve, self._most = index or NameIndex(), resolve, most

    @property
    def resolves_hosts(self) -> bool:
        return self._resolve is not None

    def without_hosts(self) -> Self:
        """Return a copy that refuses host names."""
        made = copy(self)
        made._resolve = None
        return made

    def find(self, text: str | Prefix, end: End = "destination", version: int | None = None) -> Named:
        """Return the addresses or prefixes that a text stands for.

        Args:
          end: whether a name stands for sources or for destinations of the data.
          version: IP version, if only one can be used.

        Raises:
          UsageError: the text is neither an address nor a known name.
        """
        if isinstance(text, Prefix):
            return Named(str(text), (text,))
        text = text.strip()
        try:
            return Named(text, (parse_prefix(text),))
        except ValueError as error:
            problem = error
        if found := _AS.fullmatch(text):
            return self._at(text, int(found[1]), end, version)
        if found := _COUNTRY.fullmatch(text):
            return self._at(text, found[1].upper(), end, version)
        if found := _PROBE.fullmatch(text):
            return self._probe(text, int(found[1]), version)
        if self._resolve is not None and _HOST.fullmatch(text):
            return _resolved(text, self._resolve(text), version)
        raise UsageError(f"the {end} {problem}")

    def one(self, text: str, end: End = "destination", version: int | None = None) -> Named:
        """Return the single address or prefix that a text stands for.

        Raises:
          UsageError: as for `find`, or the name stands for several.
        """
        return self.find(text, end, version).only()

    def pair(self, src: str, dst: str) -> tuple[Named, Named]:
        """Resolve the ends of one or several questions, to the same IP version where there is a choice."""
        source = self.find(src, "source", version_of(dst))
        destination = self.find(dst, "destination", source.version)
        return source.matching(destination), destination

    def ends(
        self,
        src: str | Prefix | None,
        dst: str | Prefix | None,
        attempt: Attempt = lambda end, place, find: find(),
    ) -> QuestionEnds[Prefix]:
        """Resolve the ends of a single question, to the same IP version where there is a choice.

        Raises:
          UsageError: a name is unknown, or stands for several addresses.
        """
        source = destination = None
        if src is not None:
            version = None if dst is None else version_of(dst)
            source = attempt("source", 0, lambda: self.find(src, "source", version))
        if dst is not None:
            wanted = None if source is None else source.version
            destination = attempt("destination", 0, lambda: self.find(dst, "destination", wanted))
        if source is not None:
            chosen = source if destination is None else source.matching(destination)
            source = attempt("source", 0, chosen.only)
        if destination is not None:
            destination = attempt("destination", 0, destination.only)
        first, second = (None if one is None else one.ends[0] for one in (source, destination))
        return QuestionEnds(first, second, notes_of(source, destination))

    def lists(
        self,
        sources: Sequence[str | Prefix],
        destinations: Sequence[str | Prefix],
        attempt: Attempt = lambda end, place, find: find(),
    ) -> tuple[list[Prefix], list[Prefix], tuple[str, ...]]:
        """Resolve two lists, to one IP version where there is a choice; returns the ends and notes.

        Written addresses of both versions are kept; the model refuses pairs of different versions.

        Raises:
          UsageError: a name is unknown.
        """
        written = {version_of(text) for text in (*sources, *destinations)} - {None}
        version = written.pop() if len(written) == 1 else None
        is_open = version is None and not written
        out: list[list[Prefix]] = []
        every: list[Named] = []
        ends: tuple[End, End] = ("source", "destination")
        for end, several in zip(ends, (sources, destinations), strict=True):
            found: list[Prefix] = []
            for place, text in enumerate(several):
                named = attempt(end, place, partial(self.find, text, end, version))
                if is_open:
                    version, is_open = named.ends[0].version, False
                found += [one for one in named.ends if version in (None, one.version)]
                every.append(named)
            out.append(list(dict.fromkeys(found)))
        return out[0], out[1], notes_of(*every)

    def _at(self, text: str, place: int | str, end: End, version: int | None) -> Named:
        if not self._index.has_places:
            raise UsageError(f"{text} needs --places: a table or database that knows the AS or country")
        found, what = self._index.at(place, end, version)
        if not found:
            where = f", nor does any {end} of the data" if self._index.has_data else ""
            raise UsageError(
                f"no prefix in the tables of --places belongs to {text}{where}; a database (.mmdb) cannot "
                "list prefixes: give --data, whose addresses are looked up in it"
            )
        return self._named(text, found, what)

    def _probe(self, text: str, number: int, version: int | None) -> Named:
        found = [one for one in self._index.of_probe(number) if _is_wanted(one, version)]
        if not found:
            raise UsageError(
                f"{text}: neither the data nor --places know the probe; "
                "`ping-llm fetch probes` stores a table of all probes"
            )
        return self._named(text, found, "addresses of the probe")

    def _named(self, text: str, found: Sequence[Prefix], what: str) -> Named:
        kept = tuple(found[: self._most])
        listed = ", ".join(map(str, kept[:3])) + (", …" if len(kept) > 3 else "")
        count = f"{len(kept)}" if len(kept) == len(found) else f"the first {len(kept)} of {len(found):,}"
        note = f"{text} is {kept[0]}" if len(found) == 1 else f"{text} stands for {count} {what}: {listed}"
        return Named(text, kept, note)


def notes_of(*named: Named | None) -> tuple[str, ...]:
    """Sentences on what each name stands for."""
    return tuple(one.note for one in named if one is not None and one.note is not None)


def version_of(text: str | Prefix) -> int | None:
    """The IP version of an address; None for a name."""
    if isinstance(text, Prefix):
        return text.version
    try:
        return parse_prefix(text).version
    except ValueError:
        return None


def _is_wanted(one: Prefix, version: int | None) -> bool:
    return version is None or one.version == version


def _resolved(host: str, found: Sequence[Prefix], version: int | None) -> Named:
    wanted = [one for one in found if _is_wanted(one, version)]
    if not wanted:
        raise UsageError(f"the host name {host} cannot be resolved to an IPv{version} address")
    return Named(host, (wanted[0],), f"{host} is {wanted[0]}")
