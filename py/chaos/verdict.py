"""What the judge says of a run: counts, and each thing that is wrong, in a sentence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

# Kinds of what may be wrong.
LOST = "lost"  # acknowledged, and not in the database as it was said
DUPLICATED = "duplicated"  # done, created or delivered twice
UNEXPECTED = "unexpected"  # an answer or a state that no call explains
OVERLAP = "overlap"  # a lease given while another ran
STALE = "stale accepted"  # the call of a lease that was over was taken
BUDGET = "over budget"  # more in flight, or more charged, than a policy allows
KINDS = (LOST, DUPLICATED, UNEXPECTED, OVERLAP, STALE, BUDGET)


@dataclass
class Verdict:
    """What came out of a run.

    Attributes:
        attempted, acknowledged, refused, unknown: calls.
        todos: how many there are in the end; attempts: how often one was claimed.
        most_in_flight, most_charged: by capped queue, over all endpoints.
        most_attempts: of one todo since it was created or retried.
        coverage: what was seen to happen, by name.
        missing: what the run was made to provoke, and never saw.
        violations: (kind, sentence).
    """

    attempted: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    todos: int = 0
    attempts: int = 0
    most_in_flight: dict[str, int] = field(default_factory=dict)
    most_charged: dict[str, int] = field(default_factory=dict)
    most_attempts: int = 0
    coverage: Counter[str] = field(default_factory=Counter)
    missing: list[str] = field(default_factory=list)
    violations: list[tuple[str, str]] = field(default_factory=list)

    def wrong(self, kind: str, sentence: str) -> None:
        """Note a violation."""
        self.violations.append((kind, sentence))

    @property
    def good(self) -> bool:
        """Whether nothing is wrong and nothing is missing."""
        return not self.violations and not self.missing

    def count(self, kind: str) -> int:
        """How many violations of a kind there are."""
        return sum(1 for found, _ in self.violations if found == kind)
