"""The registry of scenarios, and what one says about itself.

A scenario is a function in a module ``scenarios_*.py`` of this package::

    @scenario("backend-killed", provokes=("lapsed", "relisten"), allows=("connection",))
    def backend_killed(stage: Stage) -> None:
        \"\"\"One database session at a time is ended, politely or with kill -9.\"\"\"
        while stage.goes_on():
            stage.pause(0.5, 2.0)
            ...

It runs while the load does, and returns when ``stage.goes_on()`` says that its time is over. The
first line of its docstring is what ``--list`` shows.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaos.stage import Stage

Act = Callable[["Stage"], None]
# What every run has to have seen, whatever goes wrong in it: the load makes it happen.
ALWAYS = ("stale_refused", "lapsed", "dedupe", "dead_letter")
# What may be answered at any time: the judge checks that each was right.
EXPECTED = frozenset({"conflict", "deferred"})


@dataclass(frozen=True)
class Scenario:
    """One thing that goes wrong.

    Attributes:
        name: for the command line.
        act: breaks things until the stage's time is over.
        provokes: counters that must not be 0 at the end, beside ``ALWAYS``.
        allows: codes that calls may be answered with, beside ``EXPECTED``.
        warns: names (or beginnings of names) of doctor's findings that may be there at the end.
        logs: texts in errors of the server's log that may be there.
        server_kind: ``embedded`` or ``debian`` where the scenario needs that one, else None.
        workers, producers: options of the clients, over those of the load.
        server: settings of the server process, without SWITCHBOARD_.
        postgres: settings for postgresql.conf.
        prepare: called with everything started but the clients.
        heal: called when the time is over, before everything is started again and drained.
    """

    name: str
    act: Act
    provokes: tuple[str, ...] = ()
    allows: tuple[str, ...] = ()
    warns: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    server_kind: str | None = None
    workers: Mapping[str, Any] = field(default_factory=dict)
    producers: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    postgres: Mapping[str, Any] = field(default_factory=dict)
    prepare: Act | None = None
    heal: Act | None = None

    @property
    def summary(self) -> str:
        """One line for ``--list``."""
        return (self.act.__doc__ or "").strip().partition("\n")[0]


SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, **options: Any) -> Callable[[Act], Act]:
    """Register the decorated function as a scenario; options are ``Scenario``'s.

    Raises:
        ValueError: the name is taken, or the function says nothing about itself.
    """

    def register(act: Act) -> Act:
        if name in SCENARIOS or not (act.__doc__ or "").strip():
            raise ValueError(f"the scenario {name} is there already, or has no docstring")
        SCENARIOS[name] = Scenario(name, act, **options)
        return act

    return register


def load() -> dict[str, Scenario]:
    """All scenarios, by name, from the modules ``chaos.scenarios_*``."""
    import chaos

    for module in pkgutil.iter_modules(chaos.__path__):
        if module.name.startswith("scenarios_"):
            importlib.import_module(f"chaos.{module.name}")
    return dict(sorted(SCENARIOS.items()))
