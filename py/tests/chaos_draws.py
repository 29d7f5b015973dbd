"""What test_model.py draws: arguments, mostly good ones, some that must be refused."""

from hypothesis import strategies as st

UNKNOWN = "01890000-0000-7000-8000-00000000dead"
place = st.integers(0, 10**6)
endpoints = st.sampled_from([0] * 7 + [1, 1, 2, 3])
ODD = [UNKNOWN, "", "no-id", "{" + UNKNOWN + "}", "0" * 36, "\u00fc"]
odd_ids = st.sampled_from(ODD)
seldom_odd = st.sampled_from([None] * 50 + ODD)
owners = st.sampled_from(["w1"] * 10 + ["w2"] * 6 + ["op:Ada", ""])
assignees = st.sampled_from([None] * 8 + ["w1", "w2", "op:Ada"])
keys = st.sampled_from([None] * 6 + ["k1", "k2", "k3"])
attempts = st.sampled_from([1, 2, 2, 3] * 2 + [5] * 6 + [0])
leases = st.sampled_from([None, 1, 30, 30, 60] * 4 + [10**6, 0])
limits = st.sampled_from([1, 2, 5, 20, 40, 40, 1000] * 2 + [0])
# Queues by their place in the grant; names stand for ones outside it.
queue = st.sampled_from([0, 0, 1] * 7 + ["s", "No name", "quarantine"])
queue_lists = st.sampled_from(
    [None, None, [0], [0], [0], [1, 0], [0, 1, 0]] * 3 + [[], ["quarantine"], [0, "No name"]]
)
results = st.sampled_from(
    [None, {"summary": "fine"}, {"error": "x" * 300}, {"n": 1}, "text", 7, [True, None]]
)
humans = st.sampled_from([None, "Ada", "Bob"])
verbs = st.sampled_from(["complete", "fail", "release", "release"])
spans = st.sampled_from([0, 1, 29, 30, 31, 60, 120, 300, 900, 86_400, 31 * 86_400])
elements = st.fixed_dictionaries(
    {"queue": queue, "idempotency_key": keys, "assignee": assignees, "max_attempts": attempts}
)
good_elements = st.fixed_dictionaries(
    {
        "queue": st.sampled_from([0, 0, 1]),
        "idempotency_key": keys,
        "assignee": assignees,
        "max_attempts": st.sampled_from([1, 2, 2, 3, 5, 5, 5]),
    }
)
# Which todo a call means: mostly one that the call can move.
aims = st.sampled_from(["fitting"] * 12 + ["any", "foreign", "odd"])
whos = st.sampled_from(["holder"] * 14 + ["other", "nobody"])
tokens = st.sampled_from(["none"] * 4 + ["right"] * 10 + ["wrong", "empty"])
