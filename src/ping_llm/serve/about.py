"""What a server says of its model."""

from typing import TYPE_CHECKING, Any

from ping_llm import __version__
from ping_llm.errors import PingError
from ping_llm.model.card import model_card
from ping_llm.model.export import Exported
from ping_llm.serve.options import ServeOptions

if TYPE_CHECKING:
    from ping_llm.answer.model import Model


def describe(model: "Model", options: ServeOptions) -> dict[str, Any]:
    """Card, calibration and training of a model, without any path of the server."""
    config, stack = model.config, model.stack
    return {
        "version": __version__,
        "name": options.run.resolve().name,
        "parameters": config.parameters,
        "layers": config.layers,
        "width": config.width,
        "max_length": config.max_length,
        "rtt_encoding": model.tokens.get("rtt_encoding", "compact"),
        "has_time": model.has_time,
        "trained_on": None if stack is None else stack.about.get("trained_on"),
        "calibration": None if stack is None else stack.as_dict(),
        "held_out": None if stack is None else stack.about.get("held_out"),
        "methods": [] if stack is None else list(stack.components),
        "lost_to": model.lost_to,
        "data": None if model.data is None else {"fingerprint": model.data.fingerprint},
        "card": _card(model, options),
    }


def _card(model: "Model", options: ServeOptions) -> str | None:
    if model.origin is None:
        return None
    run = options.run if (options.run / "run.json").is_file() else None
    try:
        return model_card(Exported(model.config, {}, model.tokens, model.origin), run)
    except PingError:
        return None
