-- Doorbells, notify hooks and nudges of the SQL tests.

-- A new hook: its id. p_secret NULL: one that sends nothing.
create function test.notify_hook(p_endpoint text default 'a', p_queues text[] default null, p_secret bytea default '\xaa', p_url text default 'https://agent.example/wake') returns text language sql as $$
    select switchboard.create_notify_hook(test.endpoint(p_endpoint), p_url, p_queues, p_secret) ->> 'hook_id'
$$;

-- Takes doorbells: the ids of the todos that ring, oldest first.
create function test.ring(p_queue text default null, p_limit int default 100, p_endpoint text default 'a', p_attach boolean default false) returns text[] language sql as $$
    select coalesce(array_agg(t.id::text order by t.n), '{}')
    from switchboard.take_doorbells(test.endpoint(p_endpoint), p_limit, p_queue, p_attach) with ordinality t (id, endpoint_id, queue, state, kind, source, title, payload, assignee, owner, lease_expires_at,
        lease_token, claimed_at, attempt, max_attempts, next_retry_at, dead_letter, result, idempotency_key, trust_mode, verified, ring_attempts, last_ringed_at, event_id, created_at, updated_at, completed_at, claims, n)
$$;

-- The outbox: what was posted for a todo (NULL: for any), as its reasons, in order.
create function test.posted(p_id text default null) returns text[] language sql as $$
    select coalesce(array_agg(d.reason order by d.id), '{}') from switchboard.notify_deliveries d where p_id is null or d.todo_id::text = p_id
$$;

-- Calls that a dispatcher takes: their ids, and how the first one that is due ends.
create function test.calls(p_limit int default 100) returns text[] language sql as $$
    select coalesce(array_agg(c ->> 'id' order by n), '{}') from jsonb_array_elements(switchboard.take_deliveries(p_limit)) with ordinality u (c, n)
$$;
create function test.settle(p_call jsonb, p_status text, p_final boolean default false) returns text language sql as $$
    select switchboard.settle_delivery(p_call ->> 'endpoint_id', p_call ->> 'id', (p_call ->> 'attempt')::int, p_status, p_final)
$$;

-- A new pending todo of that trust: its id. Only a delivery has one other than sql.
create function test.trusted(p_trust_mode text, p_queue text default 'q', p_endpoint text default 'a', p_assignee text default null) returns text language sql as $$
    select (switchboard.enqueue(e.id, e.queues, switchboard.now(), p_trust_mode, p_queue, 'of trust ' || p_trust_mode, null, null, null, null, p_assignee, null)).id::text
    from switchboard.endpoints e where e.id::text = test.endpoint(p_endpoint)
$$;
-- Many of them, a millisecond apart, as of now. Straight into the table: no bell, no call.
create function test.many(p_count int, p_trust_mode text default 'sql', p_queue text default 'q', p_endpoint text default 'a', p_assignee text default null) returns void language sql as $$
    insert into switchboard.todos (endpoint_id, id, created_at, updated_at, queue, trust_mode, title, assignee)
    select test.endpoint(p_endpoint)::uuid, switchboard.new_id(at), at, at, p_queue, p_trust_mode, 'one of many', p_assignee
    from (select switchboard.now() - (p_count - n) * interval '1 ms' as at from generate_series(1, p_count) n) s
$$;

-- Nudges: what a sweep did, as '<endpoint> <queue> <nudges>', in order.
create function test.nudge(p_limit int default 4) returns text[] language sql as $$
    select coalesce(array_agg(e.name || ' ' || s.queue || ' ' || s.nudges order by s.n), '{}')
    from switchboard.sweep_stalled(p_limit) with ordinality s (endpoint_id, queue, todo_id, nudges, n) join test.endpoints e on e.id = s.endpoint_id::text
$$;
-- The ledger, as '<endpoint> <queue> <nudges>'.
create function test.ledger() returns text[] language sql as $$
    select coalesce(array_agg(e.name || ' ' || l.queue || ' ' || l.nudges order by e.name, l.queue), '{}') from switchboard.queue_stall_nudges l join test.endpoints e on e.id = l.endpoint_id::text
$$;
