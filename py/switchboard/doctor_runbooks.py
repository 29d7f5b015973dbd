"""Which runbook belongs to a check of ``doctor``: a heading of docs/runbooks.md.

The table that opens the page says the same for people; a test holds the two together.
"""

from __future__ import annotations

PAGE = "docs/runbooks.md"
OTHERS = "something-else-that-doctor-says"

# By the name of a check, or by the words with which it begins.
RUNBOOKS = {
    "stalled": "a-queue-stands-still",
    "budget": "a-budget-lets-nothing-through",
    "zones": "a-budget-lets-nothing-through",
    "sweeps": "sweeps-are-late",
    "sweep": "sweeps-are-late",
    "pg_cron": "pg_cron-does-not-tick",
    "server": "a-server-does-not-answer",
    "notifications": "the-listener-is-deaf",
    "connection": "behind-a-connection-pooler",
    "notify queue": "the-queue-of-notes-fills",
    "hook": "a-hook-is-disabled",
    "calls to hooks": "a-hook-is-disabled",
    "secret key": "a-secret-cannot-be-opened",
    "connections": "calls-are-answered-503",
    "database": "calls-are-answered-503",
    "snapshots": "an-old-snapshot-is-held-claims-become-slow",
    "transaction ids": "an-old-snapshot-is-held-claims-become-slow",
    "vacuum": "tables-are-bloated",
    "bloat": "tables-are-bloated",
    "index": "tables-are-bloated",
    "indexes": "tables-are-bloated",
    "data folder": "the-disk-fills",
    "migrations": "the-migrator-was-killed-or-waits",
    "functions": "the-migrator-was-killed-or-waits",
    "roles": "the-migrator-was-killed-or-waits",
}


def runbook(check: str) -> str:
    """Where the documentation says what to do about a finding.

    Args:
        check: the name of the check, such as ``sweeps`` or ``hook 0190…``.

    Returns:
        The page and its heading, such as ``docs/runbooks.md#sweeps-are-late``.
    """
    words = check.split()
    for count in range(len(words), 0, -1):
        if found := RUNBOOKS.get(" ".join(words[:count])):
            return f"{PAGE}#{found}"
    return f"{PAGE}#{OTHERS}"
