-- Overview: how every queue stands, for people who watch: `switchboard top`, `queue list`, `health`, `todo list`.
--
-- One row a queue of every endpoint that is not revoked, each count from the partial index that holds just those
-- todos; counts stop at 100,000, so that a look costs little however long the backlog is. What came in and what
-- was done are counters that only grow: the totals of the last fold and what came since, in one snapshot, so that
-- the difference of two looks is a rate. Quarantine is left out: it is no queue that anybody works on.

create or replace function switchboard.queue_overview(p_human_id uuid default null)
returns table (endpoint text, queue text, granted boolean, waiting bigint, held bigint, parked bigint, dead bigint, capped boolean, oldest_waiting_at timestamptz,
               created bigint, done bigint, status text, used integer, max_claims_per_window integer, in_flight integer, max_in_flight integer,
               window_resets_at timestamptz, next_eligible_at timestamptz, nudges integer, seen_at timestamptz)
language plpgsql stable security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_custom_plan set jit = off
as $$
declare
    v_from uuid := (select f.folded_to from created_fold f);  -- known to the planner, as in created_metrics()
    v_now  timestamptz := clock();
begin
    perform acting_owner(p_human_id);
    return query
    with own as materialized (
        select e.id, e.slug, e.queues from endpoints e where e.revoked_at is null and (p_human_id is null or e.human_id = p_human_id)
    ), assigned as materialized (
        select a.endpoint_id, a.queue, count(*) as n, min(a.created_at) as oldest from own o cross join lateral (
            select t.endpoint_id, t.queue, t.created_at from todos t where t.endpoint_id = o.id and t.state = 'pending' and t.assignee is not null limit 100000) a
        group by 1, 2
    ), taken as materialized (
        select d.endpoint_id, d.queue, count(*) filter (where d.state = 'claimed') as held, count(*) filter (where d.state = 'failed') as parked from own o cross join lateral (
            select t.endpoint_id, t.queue, t.state from todos t where t.endpoint_id = o.id and t.due_at is not null limit 100000) d
        group by 1, 2
    ), came as materialized (
        select c.endpoint_id, c.queue, sum(c.n)::bigint as n from (
            select t.endpoint_id, t.queue, t.total as n from created_totals t
            union all
            select k.* from created_fold f cross join own o cross join lateral (
                select t.endpoint_id, t.queue, 1 from todos t where t.endpoint_id = o.id and t.id >= v_from and t.id >= f.folded_to) k) c
        group by 1, 2
    ), went as materialized (
        select d.endpoint_id, d.queue, sum(d.n)::bigint as n from (
            select t.endpoint_id, t.queue, t.total as n from attempt_totals t where t.state = 'done'
            union all
            select a.endpoint_id, a.queue, 1 from attempt_fold f join todo_attempts a on a.xid >= f.folded_to where a.state = 'done') d
        group by 1, 2
    )
    select o.slug, m.queue, m.queue = any (o.queues), p.n + coalesce(a.n, 0), coalesce(h.held, 0), coalesce(h.parked, 0), x.n,
           greatest(p.n, x.n, a.n, h.held + h.parked) >= 100000, least(p.oldest, a.oldest), coalesce(c.n, 0), coalesce(w.n, 0),
           s.status, s.used, s.max_claims_per_window, s.in_flight, s.max_in_flight, s.window_end, s.next_eligible_at, l.nudges, v_now
    from own o join queue_marks m on m.endpoint_id = o.id and m.queue <> 'quarantine'
    cross join lateral (select count(*) as n, min(k.created_at) as oldest from (
        select t.created_at from todos t where t.endpoint_id = o.id and t.queue = m.queue and t.state = 'pending' and t.assignee is null
        order by t.created_at, t.id limit 100000) k) p
    cross join lateral (select count(*) as n from (
        select from todos t where t.endpoint_id = o.id and t.queue = m.queue and t.state = 'failed' and t.completed_at is not null limit 100000) k) x
    left join assigned a on a.endpoint_id = o.id and a.queue = m.queue
    left join taken h on h.endpoint_id = o.id and h.queue = m.queue
    left join came c on c.endpoint_id = o.id and c.queue = m.queue
    left join went w on w.endpoint_id = o.id and w.queue = m.queue
    left join queue_stall_nudges l on l.endpoint_id = o.id and l.queue = m.queue and l.progressed_at is null
    left join lateral queue_admission(o.id, m.queue, v_now) s on s.status is not null
    order by o.slug, m.queue;
end $$;
comment on function switchboard.queue_overview(uuid) is
'How the queues of the human''s endpoints stand (NULL: of all, for members of switchboard_operator), revoked endpoints and quarantine left out. endpoint: its slug; granted: whether its grant names the queue; waiting (pending), held (claimed), parked and dead todos, which stop at 100,000 (then capped); oldest_waiting_at: when the oldest waiting one was created; created and done: todos ever, counters; status and what follows: of its budget, NULLs when it has none; nudges: calls to hooks that have not helped, NULL: not stalled; seen_at: the time of this look. Errors: forbidden, not_found (human). Reads endpoints, queue_marks, todos, todo_attempts, the counters, admission_policies, queue_stall_nudges.';

create or replace function switchboard.stalls(p_human_id uuid)
returns table (endpoint text, queue text, waiting bigint, oldest_waiting_at timestamptz, nudges integer, last_nudged_at timestamptz, next_nudge_at timestamptz, progressed boolean)
language sql stable set search_path = switchboard, pg_temp
as $$
    select e.slug, l.queue, p.n, p.oldest, l.nudges, l.last_nudged_at,
           case when l.progressed_at is null and l.nudges < 5 then l.last_nudged_at + (array[interval '20 minutes', '1 hour', '6 hours', '6 hours'])[l.nudges] end,
           l.progressed_at is not null
    from queue_stall_nudges l join endpoints e on e.id = l.endpoint_id
    cross join lateral (select count(*) as n, min(k.created_at) as oldest from (
        (select t.created_at from todos t where t.endpoint_id = l.endpoint_id and t.queue = l.queue and t.state = 'pending' and t.assignee is null order by t.created_at, t.id limit 10000)
        union all
        (select t.created_at from todos t where t.endpoint_id = l.endpoint_id and t.queue = l.queue and t.state = 'pending' and t.assignee is not null limit 10000)) k) p
    where e.revoked_at is null and (p_human_id is null or e.human_id = p_human_id)
    order by l.progressed_at is not null, l.nudges desc, p.oldest
$$;
comment on function switchboard.stalls(uuid) is 'stalled_queues() for whoever has been found to be p_human_id; NULL: all. Reads queue_stall_nudges, endpoints, todos.';

create or replace function switchboard.stalled_queues(p_human_id uuid default null)
returns table (endpoint text, queue text, waiting bigint, oldest_waiting_at timestamptz, nudges integer, last_nudged_at timestamptz, next_nudge_at timestamptz, progressed boolean)
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
begin
    perform acting_owner(p_human_id);
    return query select * from stalls(p_human_id);
end $$;
comment on function switchboard.stalled_queues(uuid) is
'The queues that were nudged because nobody worked on them (NULL: of all humans, for members of switchboard_operator), those without progress first: waiting todos, which stop at 10,000, when the oldest was created, nudges since progress, when the last one was and when the next one will be (NULL: none), and whether a claim has come since. Errors: forbidden, not_found (human). Reads queue_stall_nudges, endpoints, todos.';

create or replace function switchboard.find_todos_any_endpoint(
    p_q text default null, p_endpoint_id text default null, p_queue text default null, p_state text default null, p_limit integer default 50,
    p_before text default null, p_actor_human_id uuid default null)
returns setof switchboard.todo
language plpgsql stable security definer set search_path = switchboard, pg_temp set jit = off
as $$
declare
    v_limit integer := check_limit(p_limit, 50, 200);
begin
    perform acting_owner(p_actor_human_id);
    return query
        select s.* from humans h cross join lateral find_todos(h.id, p_q, as_uuid(p_endpoint_id), p_queue, p_state, v_limit, as_uuid(p_before)) t
        cross join lateral show(t) s
        where (p_actor_human_id is null or h.id = p_actor_human_id) and (p_endpoint_id is null or h.id = (select e.human_id from endpoints e where e.id = as_uuid(p_endpoint_id)))
        order by s.id desc limit v_limit;
end $$;
comment on function switchboard.find_todos_any_endpoint(text, text, text, text, integer, text, uuid) is
'find_todos for the operator (NULL: over all humans, for members of switchboard_operator): todos by what one knows of them, newest first, without lease tokens. p_limit: 1..200, above is clamped, NULL: 50; p_before: only todos with a smaller id. Errors: invalid_argument, forbidden, not_found (human). Reads humans and what find_todos reads.';
