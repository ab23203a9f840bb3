"""Names in requests: AS3333, NL and probe:1234 from the server's data and places, and host names if allowed.

The look-up of a host name cannot be interrupted, so each has its own thread, `Limits.look_ups` at most. One
that takes longer than `Limits.look_up_seconds` is refused; its thread continues, and counts until it ends.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ping_llm.answer.known_ends import EndsOfData, KnownEnds
from ping_llm.answer.names import (
    End,
    Named,
    NameIndex,
    Names,
    QuestionEnds,
    Resolver,
    is_host,
    is_name,
    look_up,
)
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.places import Places
from ping_llm.recent import Recent
from ping_llm.serve.model_thread import ModelThread
from ping_llm.serve.options import Limits, ServeOptions
from ping_llm.serve.refusals import Refused
from ping_llm.serve.requests import within

#: Number of host names whose addresses are cached, and seconds for which they are.
_KEPT = 10_000
_KEPT_SECONDS = 60.0

#: Result of looking up a host name: its addresses, or the error.
Outcome = Sequence[Prefix] | Exception


#: Source and destination of a question in a request, as texts.
Ends = QuestionEnds[str]


def noted(notes: Sequence[str]) -> dict[str, list[str]]:
    """Return the fields to add to an answer that has no notes of its own."""
    return {"notes": list(notes)} if notes else {}


class HostLookup:
    """Resolves host names within limits, off the event loop."""

    def __init__(self, limits: Limits, resolve: Resolver = look_up):
        self._seconds, self._resolve = limits.look_up_seconds, resolve
        self._slots = asyncio.Semaphore(limits.look_ups)
        self._kept: Recent[str, tuple[float, Outcome]] = Recent(_KEPT)

    async def all(self, hosts: Iterable[str]) -> dict[str, Outcome]:
        """Return the addresses of each host name, or its error; those not found in time are refused."""
        wanted = {host: self._known(host) for host in hosts}
        tasks = {
            host: asyncio.create_task(self._look_up(host)) for host, known in wanted.items() if known is None
        }
        if tasks:
            await asyncio.wait(tasks.values(), timeout=self._seconds)
        late = Refused(503, f"not all host names were resolved within {self._seconds:g} s", retry_after=5)
        for host, task in tasks.items():
            wanted[host] = task.result() if task.done() else late
            task.cancel()
        return {host: outcome for host, outcome in wanted.items() if outcome is not None}

    def _known(self, host: str) -> Outcome | None:
        kept = self._kept.get(host)
        return None if kept is None or kept[0] < time.monotonic() else kept[1]

    async def _look_up(self, host: str) -> Outcome:
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Outcome] = loop.create_future()

        def settle(outcome: Outcome) -> None:
            self._slots.release()
            self._kept.put(host, (time.monotonic() + _KEPT_SECONDS, outcome))
            if not found.done():
                found.set_result(outcome)

        def run() -> None:
            try:
                outcome: Outcome = self._resolve(host)
            except Exception as error:
                outcome = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, outcome)

        # A daemon thread: a resolver that does not answer must not keep the process from ending.
        threading.Thread(target=run, name="host name", daemon=True).start()
        return await found


class RequestNames:
    """Replaces names in requests by addresses.

    Attributes:
      places: places of prefixes; None: the server was given none.
    """

    def __init__(self, thread: ModelThread, options: ServeOptions):
        self.places = Places(options.places) if options.places else None
        self._thread = thread
        self._ends = EndsOfData()
        self._hosts = HostLookup(options.limits) if options.resolve_hosts else None
        self._index: tuple[KnownEnds | None, NameIndex] = (None, NameIndex(self.places))
        self._lock = threading.Lock()

    def known(self) -> KnownEnds | None:
        """Return the known ends of the data; None without data. Not for the event loop, because it reads."""
        data = self._thread.model.data
        return None if data is None else self._ends.of(data)

    async def pairs(
        self, asked: Sequence[tuple[str | None, str | None]], fields: tuple[str, str] = ("src", "dst")
    ) -> list[Ends | Refused]:
        """Return source and destination of each question, or its refusal.

        Args:
          fields: names of the two fields in the request.
        """
        out: list[Ends | Refused] = [Ends(src, dst) for src, dst in asked]
        named = [place for place, pair in enumerate(asked) if any(text and is_name(text) for text in pair)]
        if named:
            texts = [text for place in named for text in asked[place] if text]
            made = await self._with_names(
                texts, lambda names: [_pair(names, *asked[place], fields) for place in named]
            )
            for place, ends in zip(named, made, strict=True):
                out[place] = ends
        return out

    async def pair(self, src: str | None, dst: str | None, fields: tuple[str, str] = ("src", "dst")) -> Ends:
        """Return source and destination of one question.

        Raises:
          Refused: a name is unknown, or stands for several addresses.
        """
        (found,) = await self.pairs([(src, dst)], fields)
        if isinstance(found, Refused):
            raise found
        return found

    async def lists(
        self, sources: Sequence[tuple[str, str]], destinations: Sequence[tuple[str, str]]
    ) -> tuple[list[str], list[str], list[str]]:
        """Return all addresses that two lists stand for, of one IP version if there is a choice, and notes.

        Args:
          sources, destinations: (field, text) of each.

        Raises:
          Refused: a name is unknown.
        """
        texts = [text for _, text in (*sources, *destinations)]
        if not any(map(is_name, texts)):
            return [text for _, text in sources], [text for _, text in destinations], []
        return await self._with_names(texts, lambda names: _lists(names, sources, destinations))

    async def one(self, text: str, end: End, version: int | None) -> Named:
        """Return everything that a name or an address stands for.

        Raises:
          Refused: the name is unknown.
        """
        return await self._with_names([text], lambda names: within("name", names.find, text, end, version))

    async def _with_names[T](self, texts: Sequence[str], find: Callable[[Names], T]) -> T:
        hosts: Mapping[str, Outcome] = {}
        if self._hosts is not None:
            hosts = await self._hosts.all(dict.fromkeys(text.strip() for text in texts if is_host(text)))

        def resolve(host: str) -> Sequence[Prefix]:
            found = hosts[host]
            if isinstance(found, Exception):
                raise found.with_traceback(None)  # it is cached, and its traceback would grow with each raise
            return found

        def run() -> T:
            return find(Names(self._current(), resolve=None if self._hosts is None else resolve))

        return await asyncio.to_thread(run)

    def _current(self) -> NameIndex:
        """Return the name index of the current model's data: a newer model may have newer data."""
        known = self.known()
        with self._lock:
            if self._index[0] is not known:
                self._index = (known, NameIndex(self.places, known))
            return self._index[1]


def _pair(names: Names, src: str | None, dst: str | None, fields: tuple[str, str]) -> Ends | Refused:
    try:
        found = names.ends(src, dst, lambda end, _, find: within(fields[end == "destination"], find))
    except Refused as refused:
        return refused
    first, second = (None if one is None else str(one) for one in (found.src, found.dst))
    return Ends(first, second, found.notes)


def _lists(
    names: Names, sources: Sequence[tuple[str, str]], destinations: Sequence[tuple[str, str]]
) -> tuple[list[str], list[str], list[str]]:
    fields = {"source": [field for field, _ in sources], "destination": [field for field, _ in destinations]}
    first, second, notes = names.lists(
        [text for _, text in sources],
        [text for _, text in destinations],
        lambda end, place, find: within(fields[end][place], find),
    )
    return list(map(str, first)), list(map(str, second)), list(notes)
