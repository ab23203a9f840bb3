"""`ping-llm rank`, `explain`, `matrix` and `plan`: from answers to decisions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from ping_llm.cli import query
from ping_llm.errors import PingError, UsageError

if TYPE_CHECKING:
    from ping_llm.answer.answering import SimpleModel
    from ping_llm.answer.conditions import Conditions
    from ping_llm.answer.context import Question
    from ping_llm.answer.explain import Explanation
    from ping_llm.answer.model import Model
    from ping_llm.answer.names import End, Named, Names
    from ping_llm.answer.plan import Plan
    from ping_llm.answer.rank import Ranking
    from ping_llm.measurements.addresses import Prefix

_ADDRESSES = "Addresses or names (as for `query rtt`) separated by commas, or a file of one per line."
#: Largest number of addresses of a name in a list.
_MOST = 1000


def register(app: typer.Typer) -> None:
    for command in (rank, explain, plan):
        app.command(command.__name__)(query.picture_last(command))
    app.command("matrix")(matrix)


def rank(
    run: Path | None = query.OPTIONAL_RUN,
    src: str = typer.Option(..., "--src", help=f"Sources. {_ADDRESSES}"),
    dst: str = typer.Option(..., "--dst", help=f"Candidates. {_ADDRESSES}"),
    at: str | None = query.AT,
    size: int | None = query.SIZE,
    errors: int | None = query.ERRORS,
    msm_id: int | None = query.MSM_ID,
    probe: int | None = query.PROBE,
    throughput: float | None = query.THROUGHPUT,
    context: Path | None = query.CONTEXT,
    data: Path | None = query.DATA,
    no_data: bool = query.NO_DATA,
    slo: float | None = typer.Option(None, "--slo", help="Objective in ms: also print P(rtt below it)."),
    timeout: float = typer.Option(1000.0, "--timeout", help="Cost of no reply, ms."),
    group: Literal["mean", "worst"] = typer.Option(
        "mean", "--group", help="Several sources: rank by their mean, or by the worst of them."
    ),
    places: list[Path] = query.PLACES,
    as_json: bool = query.JSON,
    png: Path | None = query.PNG,
) -> None:
    """Rank destinations for a source by expected RTT.

    Shows the probability of each to be the fastest, and the cost of a wrong choice."""
    from ping_llm.answer import pictures
    from ping_llm.tables import print_json

    for option, value in (("--slo", slo), ("--timeout", timeout)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{option} must be a number of ms above 0, not {value:g}")
    _addresses(src, "--src"), _addresses(dst, "--dst")  # report errors in them before loading
    if run is not None and _is_address(str(run)):
        raise UsageError(f"{run} is an address, not a RUN: separate several of --src or --dst by commas")
    model, context = query.load_with(run, data, no_data, context, src)
    sources, candidates, notes = _lists(query.names(model, places, _MOST), src, dst)
    if context is not None and len(sources) > 1:
        raise UsageError("--context holds the measurements of one source: give one --src, or --data")
    made = model.rank(
        sources, candidates, at, query.read_context(context, src), objective_ms=slo, timeout_ms=timeout,
        group=group, conditions=query.conditions_of(size, errors, msm_id, probe, throughput),
    )  # fmt: skip
    made = replace(made, notes=(*notes, *made.notes))
    if png is not None:
        pictures.ranking_picture(made, png)
    print_json(made.as_dict()) if as_json else print(_ranking_text(made))


def _ranking_text(made: "Ranking") -> str:
    from ping_llm.tables import table

    header = ["destination", "P(fastest)", "expected", "5 %", "median", "95 %", "no reply", "regret"]
    if made.objective_ms is not None:
        header.insert(2, f"P(< {made.objective_ms:g} ms)")
    rows = []
    for candidate in made.candidates:
        low, middle, high = candidate.quantiles([0.05, 0.5, 0.95])
        row = [candidate.dst, f"{candidate.fastest:.1%}", f"{candidate.expected_ms:.1f} ms"]
        if candidate.below is not None:
            row.insert(2, f"{candidate.below:.1%}")
        row += [f"{low:.1f}", f"{middle:.1f}", f"{high:.1f}"]
        rows.append([*row, f"{candidate.no_reply:.1%}", f"{candidate.regret_ms:.1f} ms"])
    best = made.candidates[0]
    sure = f"the fastest with probability {best.fastest:.0%}"
    first = f"choose {best.dst}: expected {best.expected_ms:.1f} ms, {sure}"
    likely = max(made.candidates, key=lambda candidate: candidate.fastest)
    if likely is not best:
        first += (
            f"\n{likely.dst} is the fastest more often ({likely.fastest:.0%}), but {likely.expected_ms:.1f} "
            f"ms are expected: no reply ({likely.no_reply:.1%}, not {best.no_reply:.1%}) counts as "
            f"{made.timeout_ms:g} ms (--timeout)"
        )
    notes = [*made.notes, *(note for answer in best.answers for note in answer.notes)]
    return "\n".join(
        [first, *(f"note: {note}" for note in dict.fromkeys(notes)), "", table(rows, header), "",
         f"expected: the mean RTT, where no reply within {made.timeout_ms:g} ms counts as that; regret: "
         "the expected cost minus that of always choosing the fastest"]
    )  # fmt: skip


def explain(
    run: Path | None = query.OPTIONAL_RUN,
    src: str = query.SRC,
    dst: str = query.DST,
    at: str | None = query.AT,
    size: int | None = query.SIZE,
    errors: int | None = query.ERRORS,
    msm_id: int | None = query.MSM_ID,
    probe: int | None = query.PROBE,
    throughput: float | None = query.THROUGHPUT,
    context: Path | None = query.CONTEXT,
    data: Path | None = query.DATA,
    no_data: bool = query.NO_DATA,
    top: int = typer.Option(20, "--top", help="Measurements to leave out one by one."),
    places: list[Path] = query.PLACES,
    as_json: bool = query.JSON,
    png: Path | None = query.PNG,
) -> None:
    """Explain an answer by the measurements that it rests on.

    Shows what the answer would be without each of them."""
    from ping_llm.answer import pictures
    from ping_llm.answer.context import Question
    from ping_llm.tables import print_json

    if src is None or dst is None:
        raise UsageError("--src and --dst must be given")
    model, context = query.load_with(run, data, no_data, context, src)
    ends = query.names(model, places).pair(src, dst)
    for end in ends:
        if len(end.ends) > 1:
            raise UsageError(f"{end.note}; name one of them")
    query.say(*ends)
    given = query.conditions_of(size, errors, msm_id, probe, throughput)
    question = Question.of(ends[0].ends[0], ends[1].ends[0], at, query.read_context(context, src), given)
    made = model.explain(question, left_out=top)
    if png is not None:
        pictures.explanation_picture(made, png)
    print_json(made.as_dict()) if as_json else print(_explanation_text(made))


def _explanation_text(made: "Explanation") -> str:
    from ping_llm.answer import show
    from ping_llm.tables import table

    matter = [each for each in made.measurements if each.bits >= 0.005 or abs(each.moved_ms) >= 0.05]
    rows = [
        [f"with {each.rests_on}", f"{each.answer.distribution.median:.1f} ms", f"{each.moved_ms:+.1f} ms",
         f"{each.bits:.2f}"]
        for each in (*made.alternatives, *matter)
    ]  # fmt: skip
    if idle := len(made.measurements) - len(matter):
        rows.append([f"with all but any of {idle:,} other measurements", "the same", "", ""])
    header = ["", "median", "difference", "bits"]
    last = "difference: median of the full answer minus this one; bits: divergence from the full answer"
    return "\n".join([show.rtt_text(made.answer), "", table(rows, header), "", last])


def matrix(
    run: Path | None = query.OPTIONAL_RUN,
    src: str = typer.Option(..., "--src", help=f"Sources. {_ADDRESSES}"),
    dst: str = typer.Option(..., "--dst", help=f"Destinations. {_ADDRESSES}"),
    out: Path = typer.Option(..., "--out", help="Folder to write. An interrupted matrix resumes there."),
    at: str | None = query.AT,
    size: int | None = query.SIZE,
    errors: int | None = query.ERRORS,
    msm_id: int | None = query.MSM_ID,
    probe: int | None = query.PROBE,
    throughput: float | None = query.THROUGHPUT,
    data: Path | None = query.DATA,
    no_data: bool = query.NO_DATA,
    method: str = query.METHOD,
    csv: bool = typer.Option(False, "--csv", help="Also write OUT/matrix.csv."),
    netem: bool = typer.Option(False, "--netem", help="Also write OUT/netem.sh: tc commands per source."),
    device: str = typer.Option("eth0", "--device", help="Network device of the tc commands."),
    simulator: bool = typer.Option(
        False, "--simulator", help="Also write OUT/simulator.json: quantiles of the RTT per pair."
    ),
    html: bool = typer.Option(False, "--html", help="Also write OUT/matrix.html: a heat map to point at."),
    places: list[Path] = query.PLACES,
    png: Path | None = typer.Option(None, "--png", help="Heat map of the medians: .png, .svg or .pdf."),
    as_json: bool = query.JSON,
) -> None:
    """Write the latency matrix of sources and destinations.

    Contains medians, quantiles and loss of every pair."""
    from ping_llm.answer import matrix as matrices
    from ping_llm.answer import pictures
    from ping_llm.tables import print_json

    _addresses(src, "--src"), _addresses(dst, "--dst")
    model: Model | SimpleModel
    if run is None and method not in query.OF_A_MODEL:
        model = query.simple_method(method, data)
        ask = model.rtt_stream
    else:
        model, _ = query.load_with(run, data, no_data, None)
        ask = partial(model.rtt_stream, method=method)
    found = query.names(model, places, _MOST)
    sources, destinations = _named(src, "--src", found), _named(dst, "--dst", found)
    origin = f"{'' if run is None else run.resolve()} {'' if data is None else data.resolve()} {method}"
    given = query.conditions_of(size, errors, msm_id, probe, throughput)
    table = matrices.matrix(ask, sources, destinations, out, at=at, origin=origin, conditions=given)
    _say_left_out(sum((":" in a) != (":" in b) for a in sources for b in destinations))
    written = [table]
    for wanted, name, write in (
        (csv, "matrix.csv", matrices.write_csv),
        (netem, "netem.sh", lambda table, path: matrices.write_netem(table, path, device)),
        (simulator, "simulator.json", matrices.write_simulator),
        (html, "matrix.html", matrices.write_html),
    ):
        if wanted:
            write(table, out / name)
            written.append(out / name)
    if png is not None:
        with query.drawn(png) as aside:
            if aside is not None:
                pictures.matrix_picture(*matrices.medians(table), aside)
        written.append(png)
    if as_json:
        print_json(
            {"sources": len(sources), "destinations": len(destinations), "files": list(map(str, written))}
        )
    else:
        print(f"{len(sources):,} × {len(destinations):,}: " + ", ".join(map(str, written)))


def _say_left_out(pairs: int) -> None:
    if pairs:
        typer.echo(f"note: {pairs:,} of the pairs join IPv4 and IPv6 and are left out", err=True)


def plan(
    run: Path | None = query.OPTIONAL_RUN,
    budget: int = typer.Option(..., "--budget", help="Number of measurements to choose."),
    candidates: Path | None = typer.Option(
        None, "--candidates", help="Table of src_addr and dst_addr: the pairs that can be measured."
    ),
    questions: Path | None = typer.Option(
        None,
        "--questions",
        help="Table of src_addr, dst_addr and, if known, event_time, size …: the questions to answer.  "
        "[default: the candidates]",
    ),
    src: str | None = typer.Option(
        None, "--src", help=f"Instead of a table, with --dst: sources. {_ADDRESSES}"
    ),
    dst: str | None = typer.Option(None, "--dst", help="Destinations: every source × every destination."),
    at: str | None = query.AT,
    size: int | None = query.SIZE,
    errors: int | None = query.ERRORS,
    msm_id: int | None = query.MSM_ID,
    probe: int | None = query.PROBE,
    throughput: float | None = query.THROUGHPUT,
    by: Literal["crps", "bits"] = typer.Option(
        "bits", "--by", help="What to reduce: the entropy in bits, or the expected CRPS in ms."
    ),
    data: Path | None = query.DATA,
    no_data: bool = query.NO_DATA,
    places: list[Path] = query.PLACES,
    as_json: bool = query.JSON,
    png: Path | None = query.PNG,
) -> None:
    """Choose the most informative measurements.

    Lists those that would make the answers to your questions most certain, best first."""
    from ping_llm.answer import pictures
    from ping_llm.answer.files import read_questions
    from ping_llm.tables import print_json

    if (candidates is None) == (src is None or dst is None) or (src is None) != (dst is None):
        raise UsageError("give --candidates FILE, or --src and --dst")
    given = query.conditions_of(size, errors, msm_id, probe, throughput)
    if candidates is not None and given:
        raise UsageError(f"--candidates excludes {query.CONDITIONS}: the table has a column for each")
    model, _ = query.load_with(run, data, no_data, None)
    if candidates is not None:
        possible, _ = read_questions(candidates, model.optional_fields)
    else:
        found = query.names(model, places, _MOST)
        possible = _pairs(_named(src or "", "--src", found), _named(dst or "", "--dst", found), at, given)
    asked = possible if questions is None else read_questions(questions, model.optional_fields)[0]
    made = model.plan(asked, budget, possible, by=by)
    if png is not None:
        pictures.plan_picture(made, png)
    print_json(made.as_dict()) if as_json else print(_plan_text(made))


def _pairs(
    sources: Sequence[str], destinations: Sequence[str], at: str | None, given: "Conditions"
) -> "list[Question]":
    """Return questions about all pairs of the same IP version."""
    from ping_llm.answer.context import Question, as_prefix

    ends = [(as_prefix(a, "source"), as_prefix(b, "destination")) for a in sources for b in destinations]
    made = [Question.of(src, dst, at, conditions=given) for src, dst in ends if src.version == dst.version]
    if not made:
        raise UsageError("no source and destination have the same IP version")
    _say_left_out(len(ends) - len(made))
    return made


def _plan_text(made: "Plan") -> str:
    from ping_llm.tables import table

    unit = "ms" if made.by == "crps" else "bits"
    rows = [
        [str(place), each.src, each.dst, f"{each.drop / made.questions:.3f} {unit}"]
        for place, each in enumerate(made.measurements, 1)
    ]
    name = "CRPS" if made.by == "crps" else "entropy"
    lines = [
        f"expected {name} per question: {made.before:.2f} {unit} now, {made.after:.2f} {unit} after "
        f"{len(made.measurements):,} of {made.candidates:,} possible measurements"
    ]
    if rows:
        lines += ["", table(rows, ["", "source", "destination", "lowers it by"])]
    if made.is_exhausted:
        lines += ["", f"no other possible measurement is expected to lower it: the budget of {made.budget:,} "
                  "is not used up"]  # fmt: skip
    return "\n".join(lines)


def _named(given: str, option: Literal["--src", "--dst"], found: "Names") -> list[str]:
    """Return the addresses of an option, and those that its names stand for."""
    end: End = "source" if option == "--src" else "destination"
    named = [_or_file(given, partial(found.find, text, end)) for text in _addresses(given, option)]
    query.say(*named)
    return list(dict.fromkeys(address for one in named for address in one.addresses))


def _lists(found: "Names", src: str, dst: str) -> "tuple[list[Prefix], list[Prefix], tuple[str, ...]]":
    """Return the addresses of both options, of one IP version if there is a choice, and notes."""
    return found.lists(
        _addresses(src, "--src"),
        _addresses(dst, "--dst"),
        lambda end, _, find: _or_file(src if end == "source" else dst, find),
    )


def _or_file(given: str, find: "Callable[[], Named]") -> "Named":
    """Return what is found; an error about an option of one word also says that it is not a file."""
    try:
        return find()
    except UsageError as error:
        if "," in given or Path(given).is_file():
            raise
        raise UsageError(f"{error}; and there is no file {given}") from None


def _is_address(text: str) -> bool:
    from ping_llm.ingest.tool_text import is_address

    return is_address(text)


def _addresses(given: str, option: str) -> list[str]:
    """Return the addresses of an option: a list, or a file. Blank lines and # comments are skipped."""
    path = Path(given)
    lines: Sequence[str] = given.split(",")
    if path.is_file():
        try:
            lines = [line.partition("#")[0] for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise PingError(f"{path} cannot be read as a list of addresses: {error}") from error
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise UsageError(f"{option} names no address")
    return list(dict.fromkeys(found))
