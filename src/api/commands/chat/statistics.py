"""Times and numbers of tokens of one answer."""

from __future__ import annotations

from dataclasses import dataclass

from .connection.partner import Piece, Usage


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Times and numbers of tokens of one answer."""

    sent_at: float
    first_at: float | None = None
    last_at: float | None = None
    num_pieces: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None

    def note(self, piece: Piece, now: float) -> None:
        """Count a piece that has just arrived."""
        if piece.text or piece.reasoning:
            self.num_pieces += 1
            self.first_at = self.first_at or now
            self.last_at = now
        self.finish_reason = piece.finish_reason or self.finish_reason
        self.usage = piece.usage or self.usage

    def describe(self) -> str:
        """One line for people."""
        if self.first_at is None or self.last_at is None:
            return "no token"
        parts = [f"first token after {self.first_at - self.sent_at:.2f} s"]
        count = self.usage.num_answer_tokens if self.usage else self.num_pieces
        if count > 1 and self.last_at > self.first_at:
            parts.append(f"{(count - 1) / (self.last_at - self.first_at):.1f} tokens/s")
        if self.usage:
            used = self.usage
            parts.append(
                f"{used.num_prompt_tokens} prompt tokens ({used.num_cached_tokens} cached)"
            )
        return ", ".join([*parts, f"{count} answer tokens"])
