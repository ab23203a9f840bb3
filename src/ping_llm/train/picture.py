"""The first batch in words, for a look at what the model is given (grain_visualization_dir)."""

from pathlib import Path

from ping_llm.files import write_text
from ping_llm.tokens.vocab import MEASUREMENT, token_name
from ping_llm.train.feed import Source


def write(source: Source, folder: Path) -> Path:
    """Write first_batch.txt: one measurement a line, below its sequence and segment. The source stays put."""
    place = source.get_state()
    batch = next(source)
    source.set_state(place)
    lines = []
    for sequence, (tokens, segments) in enumerate(
        zip(batch["targets"], batch["targets_segmentation"], strict=True)
    ):
        used = int((segments != 0).sum())
        lines.append(f"sequence {sequence}: {used} of {len(tokens)} tokens, {segments.max()} segments")
        before = 0
        for token, segment in zip(tokens.tolist(), segments.tolist(), strict=True):
            if segment == 0:
                continue
            if segment != before:
                lines.append(f"  segment {segment}")
                before = segment
            if token == MEASUREMENT:
                lines.append("    " + token_name(token))
            else:
                lines[-1] += " " + token_name(token)
    path = folder / "first_batch.txt"
    write_text(path, "\n".join(lines) + "\n")
    return path
