"""A todo that nobody can do."""

from __future__ import annotations

from chaos.scenario import scenario
from chaos.stage import Stage


@scenario("poison-todo", producers={"poison": 0.3})
def poison_todo(stage: Stage) -> None:
    """A third of what is created fails, lapses or is given back each time, until it is dead."""
    while stage.goes_on():
        stage.pause(1.0, 1.0)
