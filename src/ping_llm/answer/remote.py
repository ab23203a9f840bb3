"""Client of `ping-llm serve`, with the methods of a loaded model. It needs neither weights nor JAX."""

import json
import random
import re
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from os import environ
from pathlib import Path
from typing import Any, Self

import numpy as np

from ping_llm.answer import rank as ranking
from ping_llm.answer.conditions import LARGEST, Conditions, Given
from ping_llm.answer.context import Context, Measured, Question
from ping_llm.answer.distribution import RttDistribution
from ping_llm.answer.files import to_columns
from ping_llm.answer.names import End, Named, Names, is_host, is_name
from ping_llm.answer.rank import Ranking
from ping_llm.answer.results import (
    INVERSE_PASSES,
    PASSES,
    RAW,
    STACK,
    Completion,
    Completions,
    Inverse,
    RttAnswer,
)
from ping_llm.answer.table import LEVELS, context_of_table, rtt_table
from ping_llm.errors import PingError, UsageError
from ping_llm.hosts import IDLE_SECONDS, retry_after
from ping_llm.interchange import Table, is_table, to_arrow
from ping_llm.measurements.addresses import Prefix, parse_prefix, unpack
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.times import moment_text

#: Environment variable with the token, where no file is given.
TOKEN_VARIABLE = "PING_LLM_TOKEN"

Address = str | Prefix
Time = datetime | int | float | str
Known = Context | Measured

#: Limits of a request, in questions and bytes: a server accepts 1,000 and 4 MiB, and an answer has 80 kB.
_TOGETHER, _BYTES = 64, 2 << 20
#: Seconds before the first retry, and largest pause; the pause doubles with each retry.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Remote:
    """A server's model. `ping_llm.connect` makes one; answers equal the model's own to the last digit.

    Args:
      url: address of the server, such as http://127.0.0.1:8000.
      token_file: file with the token, alone or as a line `name: token`. None: the environment variable
        PING_LLM_TOKEN, if it is set.
      ca: certificates (PEM) that are trusted besides those of the system.
      patience: seconds during which requests to a busy server (503) are retried.
      timeout: seconds that an answer may take.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: str | Path | None = None,
        ca: str | Path | None = None,
        patience: float = 60.0,
        timeout: float = 120.0,
    ):
        import httpx

        if not url.startswith(("http://", "https://")):
            raise UsageError(f"the URL must start with http:// or https://, not {url!r}")
        token = environ.get(TOKEN_VARIABLE, "") if token_file is None else _read_token(Path(token_file))
        self.url, self._patience = url.rstrip("/"), patience
        if not re.fullmatch(r"[\x21-\x7e]*", token):
            raise UsageError("the token must be printable ASCII without spaces")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            verify = ssl.create_default_context()
            if ca is not None:
                verify.load_verify_locations(ca)
            # Half of the server's time: with the same time, a request could be sent while the server closes
            # its connection.
            limits = httpx.Limits(keepalive_expiry=IDLE_SECONDS / 2)
            self._client = httpx.Client(
                base_url=self.url, headers=headers, timeout=timeout, verify=verify, limits=limits,
                follow_redirects=False,
            )  # fmt: skip
        except (OSError, ValueError, httpx.InvalidURL) as error:
            raise UsageError(f"cannot use {url}: {error}") from None

        local = self._client.base_url.host in ("localhost", "127.0.0.1", "::1")
        #: Whether the token is sent unencrypted over a network.
        self.sends_token_in_the_clear = bool(token) and url.startswith("http://") and not local

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def about(self) -> dict[str, Any]:
        """Return the server's description of its model: card, calibration, training data."""
        values: dict[str, Any] = self._send("GET", "/v1/model").json()
        return values

    @cached_property
    def optional_fields(self) -> tuple[str, ...]:
        """Names of the optional fields that the server's model was trained on."""
        return tuple(self.about().get("optional_fields", ()))

    @cached_property
    def names(self) -> Names:
        """Resolver of names: host names on this machine, others by the server's data and places."""
        return _ServerNames(self)

    def addresses(self, name: str, end: End = "destination", version: int | None = None) -> Named:
        """Resolve a name by the server's data and places: `ends`, and a `note` about them."""
        parameters = {"name": name, "end": end} | ({} if version is None else {"version": str(version)})
        values = self._send("GET", "/v1/names", parameters=parameters).json()
        return Named(values["name"], tuple(map(parse_prefix, values["addresses"])), values["note"])

    def rtt(
        self, src: Address | Table, dst: Address | None = None, at: Time | None = None,
        context: Known | None = None, *, raw: bool = False, method: str = STACK,
        quantiles: Sequence[float] = LEVELS, conditions: Given = None,
    ) -> Any:  # fmt: skip
        """Return P(rtt, failure | src, dst, time, context) of a pair or a table of pairs, as `Model.rtt`.

        Host names are resolved here, names such as `AS3333`, `country:NL` and `probe:1234` by the server.
        """
        if is_table(src):
            how = {"raw": raw, "method": method, "conditions": conditions}
            return rtt_table(self, src, context, quantiles, **how)  # type: ignore[arg-type]
        if dst is None or not isinstance(src, str | Prefix):
            raise UsageError("ask with a source and a destination, or with a table of src_addr and dst_addr")
        ends = self.names.ends(src, dst)
        assert ends.src is not None
        question = Question.of(ends.src, ends.dst, at, context, conditions)
        (answer,) = self.rtt_many([question], raw=raw, method=method)
        return replace(answer, notes=(*ends.notes, *answer.notes))

    def rtt_many(
        self, questions: Sequence[Question], *, raw: bool = False, method: str = STACK
    ) -> list[RttAnswer]:
        """Answer many questions; the answers are in the same order."""
        return [answer for _, answer in self.rtt_stream(questions, raw=raw, method=method)]

    def rtt_stream(
        self, questions: Sequence[Question], *, raw: bool = False, method: str = STACK
    ) -> Iterator[tuple[int, RttAnswer]]:
        """Answer many questions, as an iterator of (index, answer)."""
        how = {"method": RAW if raw else method, "curve": "all"}
        together: list[str] = []
        size = first = 0
        for question in questions:
            body = json.dumps(_question_values(question) | how)
            if together and (len(together) == _TOGETHER or size + len(body) > _BYTES):
                yield from self._ask(questions, first, together)
                first, together, size = first + len(together), [], 0
            together.append(body)
            size += len(body)
        if together:
            yield from self._ask(questions, first, together)

    def _ask(
        self, questions: Sequence[Question], first: int, bodies: list[str]
    ) -> Iterator[tuple[int, RttAnswer]]:
        answers = self._send("POST", "/v1/rtt", f"[{','.join(bodies)}]").json()
        for index, values in enumerate(answers, first):
            yield index, _answer(questions[index], values)

    def rank(
        self,
        src: Address | Sequence[Address],
        dst: Sequence[Address],
        at: Time | None = None,
        context: Known | None = None,
        *,
        objective_ms: float | None = None,
        timeout_ms: float = ranking.TIMEOUT_MS,
        group: ranking.Group = "mean",
        method: str = STACK,
        conditions: Given = None,
    ) -> Ranking:
        """Rank destinations for one or several sources, as `Model.rank`."""
        given = [src] if isinstance(src, str | Prefix) else src
        sources, candidates, notes = self.names.lists(given, dst)
        asked = [Question.of(one, other, at, context, conditions) for one in sources for other in candidates]
        answers = self.rtt_many(asked, method=method)
        return ranking.of_answers(
            answers, candidates, objective_ms=objective_ms, timeout_ms=timeout_ms, group=group, notes=notes
        )

    def complete(
        self,
        src: Address | None = None,
        dst: Address | None = None,
        at: Time | None = None,
        context: Known | None = None,
        *,
        field: str = "dst",
        count: int = 10,
        bits: int | None = None,
        version: int | None = None,
        passes: int = PASSES,
        conditions: Given = None,
    ) -> Completions:
        """Return the most probable completions of a partial address, as `Model.complete`."""
        ends = self.names.ends(src, dst)
        body = {
            "src": _text(ends.src), "dst": _text(ends.dst), "field": field, "at": _moment(at), "bits": bits,
            "context": _context_values(context), "top": count, "version": version, "passes": passes,
            **Conditions.of(conditions).stated,
        }  # fmt: skip
        return _completions(self._post("/v1/complete", body), ends.notes)

    def inverse(
        self,
        src: Address,
        low: float,
        high: float,
        at: Time | None = None,
        context: Known | None = None,
        *,
        within: Address | None = None,
        count: int = 10,
        bits: int | None = None,
        passes: int = INVERSE_PASSES,
        conditions: Given = None,
    ) -> Inverse:
        """Find destinations at low <= RTT < high ms from a source, as `Model.inverse`."""
        ends = self.names.ends(src, within)
        body = {
            "src": _text(ends.src), "low": float(low), "high": float(high), "within": _text(ends.dst),
            "at": _moment(at), "context": _context_values(context), "bits": bits, "passes": passes,
            "top": count, **Conditions.of(conditions).stated,
        }  # fmt: skip
        values = self._post("/v1/inverse", body)
        return Inverse(_completions(values, ends.notes), values["probability"])

    def score(self, measurements: Table | Columns) -> list[dict[str, Any]]:
        """Score how unusual each result is: one object per measurement, as `ping-llm query score --json`.

        Args:
          measurements: a table of `src_addr`, `dst_addr`, `rtt` and, where known, `event_time`.
        """
        if not isinstance(measurements, Columns):
            needs = ("src_addr", "dst_addr", "rtt")
            measurements = to_columns(to_arrow(measurements), "the table", needs=needs, optional=LARGEST)
        lines = "".join(f"{json.dumps(one)}\n" for one in _measurement_values(measurements))
        response = self._send("POST", "/v1/score", lines, "application/x-ndjson")
        scores = [json.loads(line) for line in response.text.splitlines()]
        for one in scores:
            if "error" in one:
                raise PingError(f"{self.url}: line {one.get('line')}: {one['error']}")
        return scores

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        given = {name: value for name, value in body.items() if value is not None}
        return self._send("POST", path, json.dumps(given)).json()

    def _send(
        self,
        method: str,
        path: str,
        body: str | None = None,
        kind: str = "application/json",
        parameters: dict[str, str] | None = None,
    ) -> Any:
        """Send a request and return the response; retry a busy server after the pause that it asks for.

        Retries end when `patience` is used up.
        """
        import httpx

        end, pause = time.monotonic() + self._patience, _FIRST_PAUSE
        headers = {} if body is None else {"Content-Type": kind}
        while True:
            try:
                response = self._client.request(
                    method, path, content=body, headers=headers, params=parameters
                )
            except httpx.HTTPError as error:
                raise PingError(f"{self.url} does not answer: {error or type(error).__name__}") from None
            if response.status_code < 300:
                return response
            wait = max(pause, retry_after(response.headers)) * random.uniform(0.8, 1.2)
            if response.status_code != 503 or time.monotonic() + wait > end:
                raise self._error(response)
            time.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _error(self, response: Any) -> PingError:
        try:
            values = response.json()
            why = str(values["error"]) + (f" ({values['field']})" if values.get("field") else "")
        except (ValueError, KeyError, TypeError):
            why = f"status {response.status_code}, and it is not a ping-llm server's answer"
        if response.status_code == 401:
            why += f"; {TOKEN_VARIABLE} or a token file gives one"
        kind = UsageError if response.status_code in (400, 422) else PingError
        return kind(f"{self.url}: {why}")


class _ServerNames(Names):
    """Resolver that looks names up on a server, except host names, which this machine resolves."""

    def __init__(self, remote: Remote):
        super().__init__()
        self._remote = remote

    def find(self, text: str | Prefix, end: End = "destination", version: int | None = None) -> Named:
        if is_name(text) and not is_host(str(text)):
            return self._remote.addresses(str(text), end, version)
        return super().find(text, end, version)


def _read_token(path: Path) -> str:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the token file {path}: {error}") from None
    for line in lines:
        if line and not line.startswith("#"):
            named = re.fullmatch(r"[^:]+:\s*(\S+)", line)
            return named[1] if named else line
    raise UsageError(f"{path} has no token")


def _text(address: Address | None) -> str | None:
    return None if address is None else str(address)


def _moment(at: Time | None) -> str | int | float | None:
    return at.isoformat() if isinstance(at, datetime) else at


def _question_values(question: Question) -> dict[str, Any]:
    if question.dst is None:
        raise UsageError("an rtt question must have a destination")
    values: dict[str, Any] = {"src": str(question.src), "dst": str(question.dst)}
    values |= question.conditions.stated
    if question.time is not None:
        values["at"] = moment_text(question.time)
    if question.context is not None:
        values["context"] = _measurement_values(question.context.columns())
    return values


def _context_values(known: Known | None) -> list[dict[str, Any]] | None:
    if known is None:
        return None
    if not isinstance(known, Context):
        known = context_of_table(known) if is_table(known) else Context.from_measurements(known)
    return _measurement_values(known.columns())


def _measurement_values(columns: Columns) -> list[dict[str, Any]]:
    ends = zip(unpack(columns.src).to_pylist(), unpack(columns.dst).to_pylist(), strict=True)
    values = [
        {"src_addr": src, "dst_addr": dst, "rtt": rtt}
        | ({} if time < 0 else {"event_time": moment_text(time)})
        for (src, dst), rtt, time in zip(ends, columns.rtt.tolist(), columns.time.tolist(), strict=True)
    ]
    for name, column in columns.optional().items():
        for row in np.flatnonzero((column >= 0) & (column <= LARGEST[name])).tolist():
            values[row][name] = column[row].item()
    return values


def _answer(question: Question, values: dict[str, Any]) -> RttAnswer:
    curve = values["curve"]
    distribution = RttDistribution(
        np.array(curve["ms"]), np.array(curve["below"]), values["failure"], curve["guess"],
        curve["unresolved"],
    )  # fmt: skip
    used = values["context"]
    return RttAnswer(
        question, distribution, values["method"], values["calibrated"], values["rests_on"], used["given"],
        used["used"], tuple(values["notes"]),
    )  # fmt: skip


def _completions(values: dict[str, Any], notes: Sequence[str] = ()) -> Completions:
    best = tuple(
        Completion(parse_prefix(one["address"]), one["probability"], one.get("in_range"))
        for one in values["completions"]
    )
    return Completions(best, values["bound"], values["exact"], (*notes, *values["notes"]))
