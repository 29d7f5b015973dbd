import pytest

from switchboard.errors import Problem
from switchboard.limits import ClientGone, RateLimit, discard, read_body


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_full_bucket_holds_its_burst_and_refills_at_its_rate() -> None:
    clock = Clock()
    limit = RateLimit(10, 5, clock=clock)
    assert [limit.take("a") for _ in range(5)] == [0] * 5
    assert limit.take("a") == pytest.approx(0.1)
    assert limit.wait("a") == pytest.approx(0.1), "asking takes nothing"
    clock.now += 0.1
    assert limit.take("a") == 0
    assert limit.take("a") > 0
    clock.now += 60
    assert [limit.take("a") for _ in range(6)].count(0) == 5, "an idle bucket is full, not more"


def test_keys_do_not_share_a_bucket() -> None:
    limit = RateLimit(1, 1, clock=Clock())
    assert limit.take("a") == 0
    assert limit.take("a") > 0
    assert limit.take("b") == 0


def test_memory_is_bounded_and_the_least_used_key_is_forgotten() -> None:
    limit = RateLimit(1, 1, max_keys=100, clock=Clock())
    limit.take("busy")
    for number in range(1000):
        limit.take(str(number))
    assert len(limit) == 100
    assert limit.wait("999") > 0
    assert limit.wait("busy") == 0


def channel(*parts: bytes | None):
    """An ASGI receive; None is a disconnect."""
    messages = [
        {"type": "http.disconnect"}
        if part is None
        else {"type": "http.request", "body": part, "more_body": number < len(parts) - 1}
        for number, part in enumerate(parts)
    ]
    messages.reverse()

    async def receive() -> dict[str, object]:
        return messages.pop()

    return receive, messages


@pytest.mark.anyio
async def test_a_body_of_just_the_limit_is_read_whole() -> None:
    receive, _ = channel(b"abc", b"de")
    assert await read_body(receive, 5) == b"abcde"


@pytest.mark.anyio
async def test_fault_44_a_body_above_the_limit_is_refused_while_it_streams() -> None:
    receive, left = channel(b"abc", b"def", b"ghi")
    with pytest.raises(Problem) as refused:
        await read_body(receive, 5)
    assert refused.value.code == "too_large"
    assert len(left) == 1, "what follows is not read"


@pytest.mark.anyio
async def test_a_declared_length_above_the_limit_is_refused_unread() -> None:
    receive, left = channel(b"a")
    with pytest.raises(Problem) as refused:
        await read_body(receive, 5, "6")
    assert refused.value.code == "too_large"
    assert len(left) == 1


@pytest.mark.anyio
async def test_a_client_that_goes_away_leaves_nobody_to_answer() -> None:
    receive, _ = channel(b"abc", None)
    with pytest.raises(ClientGone):
        await read_body(receive, 5)


@pytest.mark.anyio
async def test_a_body_that_does_not_arrive_in_time_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import anyio

    monkeypatch.setattr("switchboard.limits.BODY_SECONDS", 0.01)
    with pytest.raises(Problem) as refused:
        await read_body(anyio.sleep_forever, 5)  # type: ignore[arg-type]
    assert refused.value.status == 408


@pytest.mark.anyio
async def test_the_rest_of_a_refused_body_is_discarded_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import anyio

    receive, left = channel(b"abc", b"def")
    await discard(receive)
    assert not left, "to its end"
    receive, left = channel(b"abc", None, b"ghi")
    await discard(receive)
    assert len(left) == 1, "until the client has gone"
    monkeypatch.setattr("switchboard.limits.DISCARD_BYTES", 5)
    receive, left = channel(b"abc", b"def", b"ghi")
    await discard(receive)
    assert len(left) == 1, "no more than so much"
    monkeypatch.setattr("switchboard.limits.DISCARD_SECONDS", 0.01)
    await discard(anyio.sleep_forever)  # type: ignore[arg-type]
