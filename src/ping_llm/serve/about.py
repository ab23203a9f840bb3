"""Description of the model of a server."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ping_llm import __version__
from ping_llm.errors import PingError
from ping_llm.model.card import model_card
from ping_llm.model.export import Exported
from ping_llm.model.packaged import NAME
from ping_llm.serve.options import ServeOptions

if TYPE_CHECKING:
    from ping_llm.answer.model import Model


def describe(model: "Model", options: ServeOptions) -> dict[str, Any]:
    """Return card, calibration and training of a model, without any path of the server."""
    stack = model.stack
    return {
        "version": __version__,
        "name": options.run.resolve().name,
        **_network(model),
        "rtt_encoding": model.tokens.get("rtt_encoding", "compact"),
        "has_time": model.has_time,
        "optional_fields": list(model.optional_fields),
        "trained_on": None if stack is None else stack.about.get("trained_on", _tuned_to(model)),
        "calibration": None if stack is None else stack.as_dict(),
        "held_out": None if stack is None else stack.about.get("held_out"),
        "methods": [] if stack is None else list(stack.components),
        "method_words": {} if stack is None else _words(stack.components),
        "lost_to": model.lost_to,
        "data": None if model.data is None else {"fingerprint": model.data.fingerprint},
        "has_places": bool(options.places),
        "report": _report(options),
        "card": _card(model, options),
    }


def _network(model: "Model") -> dict[str, Any]:
    """Describe the network that answers: the transformer, or `relations`, which has no layers of tokens."""
    from ping_llm.answer.base import BaseModel

    config = model.config
    if isinstance(model, BaseModel) and model.recipe.network != NAME:
        weights = model.recipe.tuned_relations or model.recipe.relations or {}
        parameters = sum(part.size for part in weights.values())
        sizes: tuple[int | None, ...] = (None, None, None)
        name = model.recipe.network
    else:
        parameters, name = config.parameters, "transformer"
        sizes = (config.layers, config.width, config.max_length)
    return {"network": name, "parameters": parameters} | dict(
        zip(("layers", "width", "max_length"), sizes, strict=True)
    )


def _tuned_to(model: "Model") -> dict[str, Any] | None:
    from ping_llm.answer.base import BaseModel

    return model.recipe.about.get("tuned_to") if isinstance(model, BaseModel) else None


def _words(names: Sequence[str]) -> dict[str, str]:
    from ping_llm.evaluate.verdict import METHODS

    return {name: METHODS.get(name, name) for name in names}


#: Metrics of the leaderboard: key in the report, and title.
_METRICS = {"medae_ms": "Median absolute error, ms", "crps_ms": "CRPS, ms", "bits": "Bits per result"}


def _report(options: ServeOptions) -> dict[str, Any] | None:
    """Return leaderboard and calibration of the run's report, or None; in the leaderboard, less is better."""
    from ping_llm.evaluate import report, verdict

    try:
        result = report.read(options.run / "report")
    except PingError:
        return None
    splits = result["splits"]
    subject = verdict.subject_of(result)
    return {
        "summary": verdict.overall(verdict.verdicts(result)),
        "subject": subject,
        "metrics": _METRICS,
        "tests": [
            {
                "name": name,
                "title": verdict.title_of(name),
                "questions": result["data"]["asked"].get(name, {}).get("questions"),
                "methods": {
                    method: {metric: values.get(metric) for metric in _METRICS}
                    for method, values in methods.items()
                },
                # Share of the results below the quantiles of 5 %, 10 % …; if calibrated, it equals the level.
                "calibration": {
                    method: [round(share, 4) for share in itertools.accumulate(values["pit"])]
                    for method, values in methods.items()
                    if method in (subject, "network") and values.get("pit")
                },
            }
            for name, methods in splits.items()
        ],
    }


def _card(model: "Model", options: ServeOptions) -> str | None:
    if model.origin is None:
        return None
    run = options.run if (options.run / "run.json").is_file() else None
    try:
        return model_card(Exported(model.config, {}, model.tokens, model.origin), run)
    except PingError:
        return None
