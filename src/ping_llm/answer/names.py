"""What users write for an address: a host name, AS3333, country:NL or probe:1234.

A host name stands for what it resolves to. The others stand for the addresses that the data know there, the
most measured first, or, where the data have none, for the prefixes of a table of places. Nobody looks up a
name that a request brought, unless the server was told to.
"""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import Prefix, parse_prefix

if TYPE_CHECKING:
    from ping_llm.answer.known_ends import Ends, KnownEnds
    from ping_llm.measurements.places import Place, Places

End = Literal["source", "destination"]

#: Addresses that a name stands for at most, unless more are asked for.
MOST = 20

_HOST = re.compile(r"(?=.*[a-zA-Z])(?!-)[\w-]{1,63}(\.[\w-]{1,63})*\.?")


@dataclass(frozen=True)
class Named:
    """What a text stands for.

    Attributes:
      text: as it was written.
      ends: addresses or prefixes.
      note: a sentence on how it was understood; None for an address or prefix.
    """

    text: str
    ends: tuple[Prefix, ...]
    note: str | None = None

    @property
    def addresses(self) -> list[str]:
        return [str(end) for end in self.ends]


class Names:
    """Looks names up.

    Args:
      places: where prefixes are, for AS, countries and probes; or files that say it, read when needed.
      data: probe rows whose addresses are known.
      resolve: whether host names may be looked up.
      most: addresses that a name stands for at most.
    """

    def __init__(
        self,
        places: "Places | Sequence[Path] | None" = None,
        data: Path | None = None,
        *,
        resolve: bool = True,
        most: int = MOST,
    ):
        self._given, self._data, self._resolve, self._most = places, data, resolve, most

    def find(self, text: str, end: End = "destination", version: int | None = None) -> Named:
        """The addresses or prefixes that a text stands for.

        Args:
          end: whether a name stands for sources or for destinations of the data.
          version: IP version, if only one is of use.

        Raises:
          UsageError: it is neither an address nor a name that is known.
        """
        text = text.strip()
        try:
            return Named(text, (parse_prefix(text),))
        except ValueError as error:
            problem = error
        if found := re.fullmatch(r"AS(\d{1,10})", text, re.IGNORECASE):
            number = int(found[1])
            return self._at(text, end, version, lambda place: place.asn == number)
        if found := re.fullmatch(r"(?:country:)?([a-z]{2})", text, re.IGNORECASE):
            country = found[1].upper()
            return self._at(text, end, version, lambda place: place.country == country)
        if found := re.fullmatch(r"probe:(\d{1,18})", text, re.IGNORECASE):
            return self._probe(text, int(found[1]), version)
        if self._resolve and ":" not in text and _HOST.fullmatch(text):
            return _resolved(text, version)
        raise UsageError(f"the {end} {problem}")

    def one(self, text: str, end: End = "destination", version: int | None = None) -> Named:
        """The same where only a single address or prefix is of use.

        Raises:
          UsageError: also if the name stands for several.
        """
        found = self.find(text, end, version)
        if len(found.ends) > 1:
            raise UsageError(f"{found.note}; name one of them")
        return found

    def pair(self, src: str, dst: str) -> tuple[Named, Named]:
        """The ends of one or several questions, of the same IP version where there is a choice."""
        source = self.find(src, "source")
        versions = {end.version for end in source.ends}
        destination = self.find(dst, "destination", versions.pop() if len(versions) == 1 else None)
        shared = {end.version for end in destination.ends}
        kept = tuple(end for end in source.ends if end.version in shared)
        return Named(source.text, kept or source.ends, source.note), destination

    def _at(self, text: str, end: End, version: int | None, is_there: "PlaceTest") -> Named:
        if self._places is None:
            raise UsageError(f"{text} needs --places: a table or database that knows the AS or country")
        known = self._known_ends(end)
        found: list[Prefix] = []
        if known is not None:
            for packed in known.packed:
                one = Prefix.of(packed)
                if _is_wanted(one, version) and is_there(self._places.place(one)):
                    found.append(one)
        if found:
            return self._named(text, found, f"{end}s of the data")
        listed = [one for one, place in self._places.listed() if is_there(place) and _is_wanted(one, version)]
        if not listed:
            where = "" if known is None else f", and no {end} of the data is there"
            raise UsageError(
                f"{text}: the tables of --places list no such prefix{where}; "
                "a database (.mmdb) lists none: with one, --data must be given"
            )
        return self._named(text, listed, "prefixes of --places")

    def _probe(self, text: str, number: int, version: int | None) -> Named:
        found = [] if self._known is None else self._known.of_probe(number)
        if not found and self._places is not None:
            found = self._places.probe(number)
        found = [one for one in found if _is_wanted(one, version)]
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

    @cached_property
    def _places(self) -> "Places | None":
        from ping_llm.measurements.places import Places

        if isinstance(self._given, Sequence):
            return Places(self._given) if self._given else None
        return self._given

    @cached_property
    def _known(self) -> "KnownEnds | None":
        from ping_llm.answer.known_ends import KnownEnds

        return None if self._data is None else KnownEnds(self._data)

    def _known_ends(self, end: End) -> "Ends | None":
        if self._known is None:
            return None
        return self._known.sources if end == "source" else self._known.destinations


if TYPE_CHECKING:
    from collections.abc import Callable

    PlaceTest = Callable[[Place], bool]


def _is_wanted(one: Prefix, version: int | None) -> bool:
    return version is None or one.version == version


def _resolved(host: str, version: int | None) -> Named:
    family = {None: socket.AF_UNSPEC, 4: socket.AF_INET, 6: socket.AF_INET6}[version]
    try:
        found = socket.getaddrinfo(host, None, family, socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        suffix = f" to an IPv{version} address" if version else ""
        raise UsageError(f"the host name {host} cannot be resolved{suffix}: {why}") from None
    # The first is the one that programs use, by the rules of the system.
    address = parse_prefix(str(found[0][4][0]).partition("%")[0])
    return Named(host, (address,), f"{host} is {address}")
