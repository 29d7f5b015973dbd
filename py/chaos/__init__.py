"""Faults on purpose: a load, something that goes wrong, and a judge who reads what everybody wrote.

Each run has a PostgreSQL of its own, a server (``switchboard serve``), four workers and two
producers, each a process. A client writes every call into its history before it makes it, and what
came back after; a call whose answer was lost stays *unknown*: it may have happened. Meanwhile one
scenario breaks things, at random, from a seed. Then everything is healed and drained, and
``classify`` compares the histories with what the database holds.

Where to find what:
    scenario   the registry, and how to write one (``scenarios_*.py``)
    stage      what a scenario can reach: PostgreSQL, the server, the clients
    cluster    a PostgreSQL that is killed, started and set; ``processes``: server and clients
    load       what there is to do: endpoints, queues, budgets, and what each client is told
    client     a client's process: ``worker``, ``producer``, over ``hands``
    history    how calls are written down and read back
    facts      what the database holds at the end
    classify   the judge; ``book``, ``leases``, ``attempts``, ``keys``, ``budgets``: its parts
    verdict    what it says; ``report``: for people
    run        one run from beginning to end; ``__main__``: the command line
"""
