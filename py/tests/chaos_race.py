"""One race of test_storm.py: a holder completes, while rivals say that its leases have lapsed."""

from __future__ import annotations

from typing import Any

from chaos_sessions import CLAIM_NEXT, COMPLETE, Row, Session, each


def race(
    endpoint: str, rival: str, held: list[Row], opened: list[Session]
) -> dict[str, str | None]:
    """The holder completes one after the other; what each came to: None or an SQLSTATE."""
    outcomes: dict[str, str | None] = {}

    def complete(session: Session) -> None:
        for row in held:
            token = row["lease_token"]
            outcomes[row["id"]] = session.refused(COMPLETE, endpoint, row["id"], "w", token)

    def sweep(session: Session) -> None:
        while len(outcomes) < len(held):
            session.rows("select * from switchboard.reap_expired(1)")

    def take(session: Session) -> None:  # as the same owner: only the token tells the leases apart
        while len(outcomes) < len(held):
            session.rows(CLAIM_NEXT, endpoint, "w")

    works = {"sweep": [sweep], "claim": [take], "both": [sweep, take]}[rival]
    each(opened[: len(works) + 1], complete, *works)
    return outcomes


def wrong(db: Any, outcomes: dict[str, str | None]) -> list[str]:
    """What is not as it must be after a race."""
    rows = db.rows(
        "select t.id::text, t.state::text, t.claims, t.attempt,"
        " array_agg(a.outcome order by a.seq) as history,"
        " count(*) filter (where a.seq = 1) as first"
        " from switchboard.todos t join switchboard.todo_attempts a on a.todo_id = t.id"
        " group by t.endpoint_id, t.id"
    )
    found = {row["id"]: row for row in rows}
    found_wrong = []
    for todo_id, outcome in outcomes.items():
        row = found.get(todo_id)
        if outcome not in (None, "SB409"):
            found_wrong.append(f"wrong: complete answered {outcome}")
        elif row is None or row["first"] != 1 or row["claims"] != row["attempt"]:
            found_wrong.append(f"wrong: history {row}")
        elif outcome is None and (row["state"], row["history"]) != ("done", ["done"]):
            found_wrong.append(f"wrong: acknowledged as done, {row['state']} {row['history']}")
        elif outcome == "SB409" and (row["state"] == "done" or row["history"][0] != "lapsed"):
            found_wrong.append(f"wrong: refused, {row['state']} {row['history']}")
    return found_wrong
