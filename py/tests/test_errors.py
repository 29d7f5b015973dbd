import psycopg
import pytest
from psycopg import errors as pg

from switchboard.errors import OWN, ErrorTable, Problem, internal

TABLE = ErrorTable([("SB409", "conflict", 409), ("SB429", "deferred", 429)])


def state(code: str) -> psycopg.Error:
    """A foreign error with this SQLSTATE and a text that must stay inside."""
    kind = psycopg.errors.lookup(code)
    return kind("DETAIL: Failing row contains (secret)")


@pytest.mark.parametrize(
    "sqlstate",
    [
        "25006",
        "40001",
        "40P01",
        "55P03",
        "57014",
        "53100",
        "53200",
        "53300",
        "57P01",
        "57P03",
        "08006",
    ],
)
def test_what_another_try_may_mend_is_unavailable(sqlstate: str) -> None:
    problem = TABLE.problem(state(sqlstate))
    assert problem is not None
    assert problem.code == "unavailable"
    assert problem.retry_after
    assert "secret" not in str(problem.body())


@pytest.mark.parametrize("sqlstate", ["22P02", "22P05", "22021", "54001"])
def test_what_cannot_be_stored_is_an_invalid_argument(sqlstate: str) -> None:
    problem = TABLE.problem(state(sqlstate))
    assert problem is not None
    assert problem.code == "invalid_argument"
    assert "secret" not in str(problem.body())


@pytest.mark.parametrize(
    "error",
    [
        psycopg.DataError("PostgreSQL text fields cannot contain NUL"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ],
)
def test_what_never_reached_the_database_is_an_invalid_argument(error: Exception) -> None:
    problem = TABLE.problem(error)
    assert problem is not None
    assert problem.code == "invalid_argument"


def test_a_lost_connection_is_unavailable() -> None:
    problem = TABLE.problem(psycopg.OperationalError("server closed the connection"))
    assert problem is not None
    assert problem.code == "unavailable"


@pytest.mark.parametrize(
    "error", [pg.UniqueViolation("key (id)=(secret)"), pg.CheckViolation("row"), KeyError("x")]
)
def test_fault_49_anything_else_is_ours_and_keeps_its_text(error: Exception) -> None:
    assert TABLE.problem(error) is None
    problem = internal()
    assert problem.details["log_id"]
    assert "secret" not in str(problem.body())


def test_bodies_of_both_transports_hold_the_details() -> None:
    problem = Problem("deferred", "wait", {"queue": "inbox"})
    assert problem.body() == {"error": "wait", "code": "deferred", "queue": "inbox"}
    assert problem.tool_error() == {
        "error": {"code": "deferred", "message": "wait", "queue": "inbox"}
    }
    assert TABLE.status("deferred") == 429
    assert TABLE.status("never heard of") == 500


def test_the_shell_says_what_the_table_says(db) -> None:
    rows = db.rows("select code, http_status, message from switchboard.error_table()")
    table = {row["code"]: (row["http_status"], row["message"]) for row in rows}
    assert {code: table[code] for code in OWN} == dict(OWN)
    own = ErrorTable()
    for code in ("invalid_argument", "forbidden", "not_found", "too_large", *OWN):
        assert own.status(code) == table[code][0]


def test_product_errors_of_sql_keep_message_and_details(db) -> None:
    rows = db.rows("select sqlstate, code, http_status from switchboard.error_table()")
    table = ErrorTable([tuple(row.values()) for row in rows])
    with pytest.raises(psycopg.Error) as refused:
        db.value("select switchboard.refuse_argument('limit', 'must be at least 1')")
    problem = table.problem(refused.value)
    assert problem is not None
    assert problem.code == "invalid_argument"
    assert problem.details == {"field": "limit", "reason": "must be at least 1"}


def test_what_is_unavailable_says_when_to_come_back_whoever_found_it_out() -> None:
    """The database answers by value when a lock is held for too long, and names no time."""
    assert Problem("unavailable", "the database says so").retry_after
    assert Problem("unavailable", "and when", retry_after=30).retry_after == 30
    assert Problem("conflict", "no").retry_after is None
