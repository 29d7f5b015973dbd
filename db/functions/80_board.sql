-- The board: what a human sees of their endpoints, as one JSON document a page.
--
-- The exchange is the first page: a strip of lamps for each queue, the claims that are held, and a list of
-- todos. A page is made of one snapshot and one reading of the clock, which it tells; every time in it is
-- {"at", "in"}: the instant, and the seconds until it. A state is said in the words of the board: waiting,
-- deferred (its queue is shut by a budget), connected, parked, dead, done, quarantined.
-- Every function takes the human and finds only their endpoints, so that foreign and unknown are one:
-- not_found. Nothing here is stored, and nothing locked.
-- A page is asked for again whenever something has changed, so it must cost the same with a million todos as
-- with a thousand: what is live is counted from the index that holds just that, up to a cap, what is done
-- comes from the folded totals, and lists are merged from the heads of such indexes (functions/search).
-- The other pages are in functions/board_places and board_records; functions/board_call puts the frame around.

create or replace function switchboard.board_time(p_at timestamptz, p_now timestamptz) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_at is null then
        return null;
    end if;
    return jsonb_build_object('at', to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'in', round(extract(epoch from p_at - p_now), 3));
end $$;
comment on function switchboard.board_time(timestamptz, timestamptz) is 'A time as the board shows it: {at: ISO in UTC, in: seconds from p_now, negative: ago}; NULL for NULL.';

create or replace function switchboard.board_state(p_todo switchboard.todos, p_deferred boolean) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return case p_todo.state
        when 'claimed' then 'connected'
        when 'done' then 'done'
        when 'failed' then case when p_todo.due_at is null then 'dead' else 'parked' end
        else case when p_todo.queue = 'quarantine' then 'quarantined' when p_deferred then 'deferred' else 'waiting' end end;
end $$;
comment on function switchboard.board_state(switchboard.todos, boolean) is
'The state of a todo in the words of the board: waiting, deferred (pending, p_deferred: a budget shuts its queue), connected (also with a lapsed lease), parked, dead, done, quarantined.';

create or replace function switchboard.board_admission(p_endpoint_id uuid, p_queue text, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_policy admission_policies;
    v_state  admission_state;
begin
    select * into v_policy from admission_policies p where p.endpoint_id = p_endpoint_id and p.queue = p_queue;
    if not found then
        return null;
    end if;
    v_state := admission_state(v_policy, p_now);
    return jsonb_build_object(
        'status', v_state.status, 'used', v_state.used, 'max_claims_per_window', v_policy.max_claims_per_window,
        'in_flight', v_state.in_flight, 'max_in_flight', v_policy.max_in_flight, 'window_period', v_policy.window_period, 'window_tz', v_policy.window_tz,
        'window_resets', board_time(v_state.window_end, p_now), 'window_resets_local', on_the_clock(v_state.window_end, v_policy.window_tz),
        'next_eligible', board_time(v_state.next_eligible_at, p_now), 'exact', v_state.exact);
end $$;
comment on function switchboard.board_admission(uuid, text, timestamptz) is
'The budget of a queue as the board shows it: {status, used, max_claims_per_window, in_flight, max_in_flight, window_period, window_tz, window_resets, window_resets_local, next_eligible, exact}, with nulls for what does not apply; NULL: it has none. Reads admission_policies, admission_windows, todos.';

create or replace function switchboard.board_deferral(p_admission jsonb) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if coalesce(p_admission ->> 'status', 'open') = 'open' then
        return null;
    end if;
    return jsonb_build_object('reason', p_admission -> 'status', 'next_eligible', p_admission -> 'next_eligible', 'exact', p_admission -> 'exact');
end $$;
comment on function switchboard.board_deferral(jsonb) is 'Why a queue is shut: {reason, next_eligible, exact} of what board_admission returned; NULL when nothing shuts it.';

create or replace function switchboard.board_todo_row(p_todo switchboard.todos, p_slug text, p_deferral jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    if p_todo.state <> 'pending' or p_todo.queue = 'quarantine' then
        p_deferral := null;
    end if;
    return jsonb_build_object(
        'id', p_todo.id, 'endpoint', jsonb_build_object('id', p_todo.endpoint_id, 'slug', p_slug), 'queue', p_todo.queue,
        'state', board_state(p_todo, p_deferral is not null), 'title', left(p_todo.title, 160), 'kind', p_todo.kind, 'source', p_todo.source,
        'trust_mode', p_todo.trust_mode::text, 'verified', is_verified(p_todo.trust_mode), 'assignee', p_todo.assignee, 'owner', p_todo.owner,
        'attempt', p_todo.attempt, 'max_attempts', p_todo.max_attempts, 'key', p_todo.idempotency_key,
        'created', board_time(p_todo.created_at, p_now), 'updated', board_time(p_todo.updated_at, p_now), 'completed', board_time(p_todo.completed_at, p_now),
        'lease', case when p_todo.state = 'claimed' then board_time(p_todo.due_at, p_now) end, 'lease_span', p_todo.lease_seconds,
        'retry', case when p_todo.state = 'failed' then board_time(p_todo.due_at, p_now) end, 'deferred', p_deferral);
end $$;
comment on function switchboard.board_todo_row(switchboard.todos, text, jsonb, timestamptz) is
'A todo as a row of a list: {id, endpoint {id, slug}, queue, state, title (160 characters), kind, source, trust_mode, verified, assignee, owner, attempt, max_attempts, key, created, updated, completed, lease, lease_span (seconds), retry, deferred}. p_slug: of its endpoint; p_deferral: board_deferral of its queue, heeded when it is pending.';

create or replace function switchboard.board_stall(p_ledger switchboard.queue_stall_nudges, p_now timestamptz) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_ledger.nudges is null or p_ledger.progressed_at is not null then
        return null;
    end if;
    return jsonb_build_object('nudges', p_ledger.nudges, 'last_nudged', board_time(p_ledger.last_nudged_at, p_now), 'next_nudge', board_time(
        p_ledger.last_nudged_at + (array[interval '20 minutes', '1 hour', '6 hours', '6 hours'])[p_ledger.nudges], p_now));
end $$;
comment on function switchboard.board_stall(switchboard.queue_stall_nudges, timestamptz) is
'A queue that was nudged and has made no progress: {nudges, last_nudged, next_nudge (null after the fifth)}; NULL when it has, or has never been nudged. Pacing is that of nudge_due.';

create or replace function switchboard.board_line(p_endpoint switchboard.endpoints, p_last_seen timestamptz, p_attached integer, p_now timestamptz) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return case
        when p_endpoint.revoked_at is not null then 'revoked'
        when p_endpoint.expires_at <= p_now then 'expired'
        when p_attached > 0 then 'attached'
        when p_last_seen is null then 'never'
        else 'quiet' end;
end $$;
comment on function switchboard.board_line(switchboard.endpoints, timestamptz, integer, timestamptz) is
'The state of an endpoint''s line: revoked, expired, attached (p_attached sessions have an open stream), never (no sign of its agent yet), quiet.';

create or replace function switchboard.board_budgets(p_endpoint_ids uuid[], p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return coalesce((
        select jsonb_object_agg(b.endpoint_id, b.budgets) from (
            select p.endpoint_id, jsonb_object_agg(p.queue, board_admission(p.endpoint_id, p.queue, p_now)) as budgets
            from admission_policies p where p.endpoint_id = any (p_endpoint_ids) group by p.endpoint_id) b), '{}');
end $$;
comment on function switchboard.board_budgets(uuid[], timestamptz) is 'The budgets of these endpoints: {endpoint id: {queue: board_admission}}, of budgeted queues only. Reads admission_policies.';

create or replace function switchboard.board_counts(p_endpoint_ids uuid[], p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_cap integer := greatest(1000, least(10000, 60000 / (select greatest(1, count(*)) from queue_marks m where m.endpoint_id = any (p_endpoint_ids))));
begin
    return (
        with pools as materialized (
            select m.endpoint_id, m.queue, w.n as waiting, w.oldest, c.n as connected, d.n as dead
            from queue_marks m
            cross join lateral (select count(*) as n, min(s.created_at) as oldest from (
                select t.created_at from todos t
                where t.endpoint_id = m.endpoint_id and t.queue = m.queue and t.state = 'pending' and t.assignee is null
                order by t.created_at, t.id limit v_cap) s) w
            cross join lateral (select count(*) as n from (
                select from todos t where t.endpoint_id = m.endpoint_id and t.queue = m.queue and t.state = 'claimed' limit v_cap) s) c
            cross join lateral (select count(*) as n from (
                select from todos t where t.endpoint_id = m.endpoint_id and t.queue = m.queue and t.state = 'failed' and t.completed_at is not null limit v_cap) s) d
            where m.endpoint_id = any (p_endpoint_ids)
        ), assigned as materialized (
            select s.endpoint_id, s.queue, count(*) as n, min(s.created_at) as oldest from unnest(p_endpoint_ids) e (id) cross join lateral (
                select t.endpoint_id, t.queue, t.created_at from todos t
                where t.endpoint_id = e.id and t.state = 'pending' and t.assignee is not null limit v_cap) s
            group by 1, 2
        ), parked as materialized (
            select s.endpoint_id, s.queue, count(*) as n, sum(count(*)) over (partition by s.endpoint_id) as all from unnest(p_endpoint_ids) e (id) cross join lateral (
                select t.endpoint_id, t.queue from todos t
                where t.endpoint_id = e.id and t.due_at is not null and case t.state when 'failed' then true else false end limit 500) s
            group by 1, 2
        ), done as materialized (
            select s.endpoint_id, s.queue, sum(s.n) as n from (
                select n.endpoint_id, n.queue, n.total as n from attempt_totals n where n.endpoint_id = any (p_endpoint_ids) and n.state = 'done'
                union all
                select a.endpoint_id, a.queue, 1 from (  -- what is not folded yet
                    select * from todo_attempts k where k.xid >= (select f.folded_to from attempt_fold f) order by k.xid limit 2000) a
                where a.endpoint_id = any (p_endpoint_ids) and a.state = 'done') s
            group by 1, 2
        )
        select coalesce(jsonb_object_agg(c.endpoint_id, c.queues), '{}') from (
            select p.endpoint_id, jsonb_object_agg(p.queue, jsonb_build_object(
                'waiting', p.waiting + coalesce(a.n, 0), 'connected', p.connected, 'parked', coalesce(k.n, 0), 'dead', p.dead, 'done', coalesce(d.n, 0),
                'counts_capped', p.waiting = v_cap or coalesce(a.n, 0) = v_cap, 'parked_capped', coalesce(k.n, 0) > 0 and k.all = 500, 'dead_capped', p.dead = v_cap, 'oldest_waiting', board_time(least(p.oldest, a.oldest), p_now))) as queues
            from pools p
            left join assigned a on a.endpoint_id = p.endpoint_id and a.queue = p.queue
            left join parked k on k.endpoint_id = p.endpoint_id and k.queue = p.queue
            left join done d on d.endpoint_id = p.endpoint_id and d.queue = p.queue
            group by p.endpoint_id) c);
end $$;
comment on function switchboard.board_counts(uuid[], timestamptz) is
'What is in the queues of these endpoints, for every queue they ever had: {endpoint id: {queue: {waiting, connected, parked, dead, done (ever), counts_capped, parked_capped, dead_capped, oldest_waiting}}}. It stops counting at 10,000, with more than six queues at the share of each in 60,000 but not below 1,000, of a queue that are waiting (counts_capped), connected or dead (dead_capped), at 10,000 of an endpoint that are assigned (counts_capped), and at 500 that are parked (parked_capped): only these are not counted within an index; of what was done and is not folded yet 2,000. Reads todos, queue_marks, attempt_totals, todo_attempts.';

create or replace function switchboard.board_lamps(p_endpoint_id uuid, p_queues text[], p_lamps integer)
returns table (queue text, id uuid, state text, title text)
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return query
    with parked as materialized (
        select t.queue, t.id, left(t.title, 60) as title, row_number() over (order by t.due_at) as place
        from todos t
        where t.endpoint_id = p_endpoint_id and t.due_at is not null and case t.state when 'failed' then true else false end
        order by t.due_at limit p_lamps * cardinality(p_queues)
    ), assigned as materialized (
        select t.queue, t.id from todos t where t.endpoint_id = p_endpoint_id and t.state = 'pending' and t.assignee is not null limit 2000
    ), lit as (  -- turn: who comes first where there is not room for all
        select p.queue, p.id, 'parked' as state, p.title, p.place, 2 as turn from parked p
        union all
        select q.queue, x.* from unnest(p_queues) q (queue) cross join lateral (
            (select t.id, 'connected', left(t.title, 60), 0::bigint, 1 from todos t
             where t.endpoint_id = p_endpoint_id and t.queue = q.queue and t.state = 'claimed' limit p_lamps)
            union all
            (select t.id, 'dead', left(t.title, 60), 0::bigint, 3 from todos t
             where t.endpoint_id = p_endpoint_id and t.queue = q.queue and t.state = 'failed' and t.completed_at is not null
             order by t.id desc limit least(8, p_lamps / 2))
            union all
            (select w.id, 'waiting', null, row_number() over (order by w.id), 5 from (
                (select t.id from todos t
                 where t.endpoint_id = p_endpoint_id and t.assignee is null and t.queue = q.queue and t.state = 'pending'
                 order by t.created_at, t.id limit p_lamps)
                union all select a.id from assigned a where a.queue = q.queue) w order by w.id limit p_lamps)
            union all
            (select n.id, 'done', null, row_number() over (order by n.id desc), case when row_number() over (order by n.id desc) <= p_lamps / 8 then 4 else 6 end from (
                select t.id from todos t
                where t.endpoint_id = p_endpoint_id and t.queue = q.queue and t.state = 'done' and t.completed_at is not null
                order by t.id desc limit 8) n)) x
    ), chosen as (
        select l.*, row_number() over (partition by l.queue order by l.turn, l.place) as rank from lit l where l.queue = any (p_queues)
    )
    select c.queue, c.id, c.state, c.title from chosen c where c.rank <= p_lamps;
end $$;
comment on function switchboard.board_lamps(uuid, text[], integer) is
'The todos of queues of an endpoint that get a lamp, p_lamps a queue at most: all that is connected or parked (of what is parked those of the endpoint that are due first), the newest 8 dead ones, the oldest waiting, the newest 8 done, of which an eighth of the lamps is kept free. title (60 characters): NULL for waiting and done ones. Reads todos.';

create or replace function switchboard.board_held(p_endpoint switchboard.endpoints, p_limit integer, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_ids uuid[] := array(
        select d.id from (
            select t.id, t.state, t.due_at from todos t where t.endpoint_id = p_endpoint.id and t.due_at is not null order by t.due_at limit 100) d
        where d.state = 'claimed' order by d.due_at limit p_limit);
begin
    if cardinality(v_ids) < p_limit then  -- they lie behind much that is parked, or there are no more
        v_ids := array(
            select c.id from (select h.id, h.due_at from todos h where h.endpoint_id = p_endpoint.id and h.state = 'claimed' offset 0) c
            order by c.due_at limit p_limit);
    end if;
    return coalesce((
        select jsonb_agg(board_todo_row(t, p_endpoint.slug, null, p_now) order by t.due_at, t.id)
        from todos t where t.endpoint_id = p_endpoint.id and t.id = any (v_ids)), '[]');
end $$;
comment on function switchboard.board_held(switchboard.endpoints, integer, timestamptz) is 'The claims of an endpoint as rows of todos, the lease that ends first first, up to p_limit. Reads todos.';

create or replace function switchboard.board_queues(p_endpoint switchboard.endpoints, p_counts jsonb) returns text[]
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return (
        select array(
            select q.queue from (
                select g, true from unnest(p_endpoint.queues) g
                union all
                select c.key, false from jsonb_each(p_counts) c
                where c.key <> all (p_endpoint.queues) and c.key <> 'quarantine'
                  and (c.value -> 'waiting')::integer + (c.value -> 'connected')::integer + (c.value -> 'parked')::integer > 0) q (queue, granted)
            order by q.granted desc, q.queue));
end $$;
comment on function switchboard.board_queues(switchboard.endpoints, jsonb) is
'The queues of an endpoint that the board shows: those that are granted, then those that are not any more and still have live todos. p_counts: {queue: counts} of board_counts.';

create or replace function switchboard.board_position(
    p_endpoint switchboard.endpoints, p_counts jsonb, p_budgets jsonb, p_lamps integer, p_held integer, p_now timestamptz)
returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_queues   text[]      := board_queues(p_endpoint, p_counts);
    v_seen     timestamptz := last_seen(p_endpoint.id);
    v_attached integer     := streams_of(p_endpoint.id, p_now);
    v_strips   jsonb;
begin
    select jsonb_agg(
        jsonb_build_object('queue', q.queue, 'granted', q.queue = any (p_endpoint.queues), 'admission', b.admission,
            'stall', (select board_stall(l, p_now) from queue_stall_nudges l where l.endpoint_id = p_endpoint.id and l.queue = q.queue and (c.counts -> 'waiting')::integer > 0),
            'lamps', coalesce(l.lamps, '[]'), 'more', greatest(0, c.live - coalesce(l.live, 0)))
        || c.counts order by q.place)
    into v_strips
    from unnest(v_queues) with ordinality q (queue, place)
    cross join lateral (select p_budgets -> q.queue) b (admission)
    cross join lateral (select p_counts -> q.queue, (p_counts -> q.queue -> 'waiting')::integer + (p_counts -> q.queue -> 'connected')::integer
                            + (p_counts -> q.queue -> 'parked')::integer + (p_counts -> q.queue -> 'dead')::integer) c (counts, live)
    left join (
        select n.queue, count(*) filter (where n.state <> 'done') as live, jsonb_agg(jsonb_build_object('id', n.id, 'title', n.title, 'state',
            case when n.state = 'waiting' and board_deferral(p_budgets -> n.queue) is not null then 'deferred' else n.state end) order by n.id) as lamps
        from board_lamps(p_endpoint.id, v_queues, p_lamps) n group by n.queue) l on l.queue = q.queue;
    return jsonb_build_object(
        'id', p_endpoint.id, 'slug', p_endpoint.slug, 'line', board_line(p_endpoint, v_seen, v_attached, p_now), 'attached', v_attached,
        'last_seen', board_time(v_seen, p_now), 'expires', board_time(p_endpoint.expires_at, p_now), 'revoked', board_time(p_endpoint.revoked_at, p_now),
        'queues', v_strips, 'held', board_held(p_endpoint, p_held, p_now),
        'held_total', (select sum((c.value -> 'connected')::integer) from jsonb_each(p_counts) c));
end $$;
comment on function switchboard.board_position(switchboard.endpoints, jsonb, jsonb, integer, integer, timestamptz) is
'An endpoint as the exchange shows it: {id, slug, line, attached, last_seen, expires, revoked, queues [{queue, granted, waiting, connected, parked, dead, done, counts_capped, oldest_waiting, admission, stall, lamps [{id, state, title}], more}], held, held_total}. p_counts, p_budgets: {queue: …} of board_counts and board_budgets; p_lamps: lamps a queue; p_held: claims that are shown. Reads todos, queue_stall_nudges.';

create or replace function switchboard.board_endpoint(p_endpoint switchboard.endpoints, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_counts jsonb := coalesce(board_counts(array[p_endpoint.id], p_now) -> p_endpoint.id::text, '{}');
begin
    return board_position(p_endpoint, v_counts, coalesce(board_budgets(array[p_endpoint.id], p_now) -> p_endpoint.id::text, '{}'),
                          greatest(8, least(60, 400 / greatest(1, cardinality(board_queues(p_endpoint, v_counts))))), 12, p_now);
end $$;
comment on function switchboard.board_endpoint(switchboard.endpoints, timestamptz) is 'One endpoint as on the exchange, with room for 400 lamps, 60 a queue at most, and 12 claims. Reads what board_position and board_counts read.';

create or replace function switchboard.board_status(p_human_id uuid, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_oldest timestamptz;
    v_failed text;
    v_counts record;
begin
    select min(s.last_run_at), min(s.name) filter (where s.last_error is not null) into v_oldest, v_failed from sweeps s;
    with mine as materialized (
        select e.id from endpoints e where e.human_id = p_human_id
    )
    select (select count(*) from queue_stall_nudges l where l.endpoint_id in (select m.id from mine m) and l.progressed_at is null) as stalled,
           (select count(*) from (
               select from mine e join queue_marks m on m.endpoint_id = e.id and m.queue <> 'quarantine' cross join lateral (
                   select from todos t where t.endpoint_id = m.endpoint_id and t.queue = m.queue and t.state = 'failed' and t.completed_at is not null limit 1000) d
               limit 1000) d) as dead,
           (select count(*) from (
               select from mine e cross join lateral (
                   select from todos t where t.endpoint_id = e.id and t.queue = 'quarantine' and t.state = 'pending' and t.assignee is null limit 1000) q
               limit 1000) q) as quarantined,
           (select count(*) from notify_hooks h where h.endpoint_id in (select m.id from mine m) and h.disabled_at is not null) as hooks_off
    into v_counts;
    return jsonb_build_object(
        'sweep', board_time(nullif(v_oldest, 'epoch'), p_now), 'sweep_error', v_failed,
        'sweep_level', case when v_failed is not null then 'error' when coalesce(v_oldest, 'epoch') = 'epoch' then 'never'
                            when v_oldest < p_now - interval '90 seconds' then 'late' else 'ok' end,
        'stalled', v_counts.stalled, 'dead', v_counts.dead, 'quarantined', v_counts.quarantined, 'hooks_off', v_counts.hooks_off);
end $$;
comment on function switchboard.board_status(uuid, timestamptz) is
'The rail of every page: {sweep: time of the sweep that ran longest ago (null: never), sweep_level: ok, late (over 90 s), never or error, sweep_error: name of a sweep that failed, stalled, dead, quarantined (both up to 1,000), hooks_off}, over the human''s endpoints. Reads sweeps, queue_stall_nudges, queue_marks, todos, notify_hooks.';

create or replace function switchboard.board_shown(p_human_id uuid, p_counts jsonb, p_now timestamptz) returns setof switchboard.endpoints
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return query
    select (s.endpoint).* from (
        select m.endpoint, m.place, sum(m.strips) over (order by m.place) as strips from (
            select e as endpoint, row_number() over (order by not is_active(e.revoked_at, e.expires_at, p_now), e.slug) as place,
                   cardinality(board_queues(e, coalesce(p_counts -> e.id::text, '{}'))) as strips
            from endpoints e where e.human_id = p_human_id and (e.revoked_at is null or e.revoked_at > p_now - interval '7 days')) m) s
    where s.place = 1 or s.place <= 24 and s.strips <= 50
    order by s.place;
end $$;
comment on function switchboard.board_shown(uuid, jsonb, timestamptz) is
'The endpoints that the exchange has room for: active ones first, then by slug; at most 24, with 50 queues in all, though the first one always; revoked ones for 7 days. p_counts: board_counts. Reads endpoints.';

create or replace function switchboard.board_totals(p_endpoint_ids uuid[], p_counts jsonb, p_budgets jsonb) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_sums record;
begin
    select coalesce(sum((q.value -> 'waiting')::integer) filter (where q.key <> 'quarantine'), 0) as waiting,
           coalesce(sum((q.value -> 'waiting')::integer) filter (where q.key <> 'quarantine' and board_deferral(p_budgets -> e.key -> q.key) is not null), 0) as deferred,
           coalesce(sum((q.value -> 'waiting')::integer) filter (where q.key = 'quarantine'), 0) as quarantined,
           coalesce(sum((q.value -> 'dead')::integer) filter (where q.key <> 'quarantine'), 0) as dead,
           coalesce(sum((q.value -> 'connected')::integer), 0) as connected, coalesce(sum((q.value -> 'done')::bigint), 0) as done,
           coalesce(sum((q.value -> 'parked')::integer), 0) as parked, coalesce(bool_or((q.value -> 'parked_capped')::boolean), false) as capped
    into v_sums
    from jsonb_each(p_counts) e cross join lateral jsonb_each(e.value) q;
    if v_sums.capped then  -- what is due is connected or parked
        v_sums.parked := greatest(v_sums.parked, (
            select count(*) from (
                select from unnest(p_endpoint_ids) e (id) cross join lateral (select from todos t where t.endpoint_id = e.id and t.due_at is not null) t limit 100000) t) - v_sums.connected);
    end if;
    return jsonb_build_object(
        'waiting', least(100000, v_sums.waiting), 'deferred', least(100000, v_sums.deferred), 'connected', least(100000, v_sums.connected),
        'parked', least(100000, v_sums.parked), 'dead', least(100000, v_sums.dead), 'done', v_sums.done, 'quarantined', least(100000, v_sums.quarantined));
end $$;
comment on function switchboard.board_totals(uuid[], jsonb, jsonb) is
'Todos by state over these endpoints, each up to 100,000 but done: {waiting (deferred ones too), deferred, connected, parked (also beyond the cap of board_counts), dead, done, quarantined}. p_counts, p_budgets: board_counts and board_budgets of them. Reads todos.';

create or replace function switchboard.board_list(p_human_id uuid, p_filter jsonb, p_budgets jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_limit  constant integer := 30;
    v_before uuid   := as_uuid(p_filter ->> 'before');
    v_only   uuid;
    v_rows   jsonb;
begin
    if as_uuid(p_filter ->> 'q') is not null then  -- an id says all there is to say
        p_filter := p_filter - '{endpoint,queue,state}'::text[];
    end if;
    if p_filter ->> 'before' is not null and v_before is null then
        perform refuse_argument('before', 'must be the id of the last todo of the page before');
    elsif p_filter ->> 'endpoint' is not null then
        v_only := own_endpoint_named(p_filter ->> 'endpoint', p_human_id);
    end if;
    select jsonb_agg(board_todo_row(t, e.slug, board_deferral(p_budgets -> t.endpoint_id::text -> t.queue), p_now) order by t.id desc) into v_rows
    from find_todos(p_human_id, p_filter ->> 'q', v_only, p_filter ->> 'queue', p_filter ->> 'state', v_limit + 1, v_before) t
    join endpoints e on e.id = t.endpoint_id;
    return jsonb_build_object('todos', coalesce(v_rows - v_limit, '[]'), 'next', case when jsonb_array_length(v_rows) > v_limit then v_rows -> v_limit - 1 -> 'id' end);
end $$;
comment on function switchboard.board_list(uuid, jsonb, jsonb, timestamptz) is
'The list of the exchange: {todos: 30 rows, next: the cursor, null at the end}. p_filter: {endpoint (slug or id), queue, state, q, before}, texts or null; p_budgets: board_budgets of all endpoints. Errors: invalid_argument, not_found (endpoint). Reads what find_todos reads.';

create or replace function switchboard.board_arg(p_args jsonb, p_name text) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return nullif(p_args ->> p_name, '');
end $$;
comment on function switchboard.board_arg(jsonb, text) is 'An argument of a page; an empty one is none.';

create or replace function switchboard.board_exchange(p_human_id uuid, p_args jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_ids       uuid[]      := array(select e.id from endpoints e where e.human_id = p_human_id);
    v_counts    jsonb       := board_counts(v_ids, p_now);
    v_budgets   jsonb       := board_budgets(v_ids, p_now);
    v_shown     endpoints[] := array(select e from board_shown(p_human_id, v_counts, p_now) e);
    v_strips    integer;
    v_filter    jsonb       := jsonb_build_object('endpoint', board_arg(p_args, 'endpoint'), 'queue', board_arg(p_args, 'queue'), 'state', board_arg(p_args, 'state'),
                                                  'q', board_arg(p_args, 'q'), 'before', board_arg(p_args, 'before'));
    v_positions jsonb;
begin
    v_strips := (select sum(cardinality(board_queues(e, coalesce(v_counts -> e.id::text, '{}')))) from unnest(v_shown) e);
    select jsonb_agg(board_position(e, coalesce(v_counts -> e.id::text, '{}'), coalesce(v_budgets -> e.id::text, '{}'), greatest(8, least(60, 340 / greatest(1, v_strips))),
                                    greatest(2, least(12, 25 / greatest(1, cardinality(v_shown)))), p_now) order by p.place)
    into v_positions
    from generate_subscripts(v_shown, 1) p (place) cross join lateral (select (v_shown[p.place]).*) e;
    return jsonb_build_object(
        'totals', board_totals(v_ids, v_counts, v_budgets), 'endpoints', coalesce(v_positions, '[]'),
        'endpoints_more', (select count(*) from endpoints e where e.human_id = p_human_id and (e.revoked_at is null or e.revoked_at > p_now - interval '7 days')) - cardinality(v_shown),
        'filter', v_filter, 'choices', board_choices(p_human_id)) || board_list(p_human_id, v_filter, v_budgets, p_now);
end $$;
comment on function switchboard.board_exchange(uuid, jsonb, timestamptz) is
'The first page: {totals, endpoints, endpoints_more, todos, next, filter, choices}. p_args: {endpoint, queue, state, q, before}, empty: none. Errors: invalid_argument, not_found (endpoint). Reads what its parts read.';

create or replace function switchboard.board_choices(p_human_id uuid) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return (
        select jsonb_build_object(
            'endpoints', coalesce((select jsonb_agg(s.slug order by s.slug) from (
                select e.slug from endpoints e where e.human_id = p_human_id order by e.revoked_at is not null, e.slug limit 100) s), '[]'),
            'queues', coalesce((select jsonb_agg(s.queue order by s.queue) from (
                select distinct m.queue from endpoints e join queue_marks m on m.endpoint_id = e.id where e.human_id = p_human_id order by m.queue limit 100) s), '[]')));
end $$;
comment on function switchboard.board_choices(uuid) is 'What can be chosen in the filter of the exchange: {endpoints: slugs, queues: names}, at most 100 each, in order of name. Reads endpoints, queue_marks.';

create or replace function switchboard.board_cut(p_text text) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_limit  constant integer := 16384;
    v_weight constant integer := 33000;
    v_text   text    := left(p_text, v_limit);
    v_long   integer := length(v_text) - length(translate(v_text, E'&<>"\'\u202A\u202B\u202C\u202D\u202E\u2066\u2067\u2068\u2069\u200E\u200F\u061C', ''));
begin
    return left(v_text, (v_limit::bigint * v_weight / greatest(v_weight, octet_length(v_text) + 5 * v_long))::integer);
end $$;
comment on function switchboard.board_cut(text) is
'The beginning of a long text, for a page: 16,384 characters, fewer when it would weigh more than 33 kB in HTML, where &, <, >, quotes and marks that turn the direction take several. NULL for NULL.';

create or replace function switchboard.board_document(p_value jsonb) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_text text;
begin
    if p_value is null or p_value = '{}' then
        return null;
    end if;
    v_text := jsonb_pretty(p_value);
    return jsonb_build_object('text', board_cut(v_text), 'bytes', octet_length(p_value::text), 'cut', length(v_text) > length(board_cut(v_text)));
end $$;
comment on function switchboard.board_document(jsonb) is 'A payload or result to look at: {text: indented, as much as board_cut leaves, bytes: of the whole, not indented, cut}; NULL for nothing and for {}.';

create or replace function switchboard.board_actions(p_todo switchboard.todos, p_endpoint switchboard.endpoints, p_me text, p_admission jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_active boolean := is_active(p_endpoint.revoked_at, p_endpoint.expires_at, p_now) and p_todo.queue <> 'quarantine';
    v_held   boolean := p_todo.state = 'claimed';
    v_open   boolean := board_deferral(p_admission) is null;
begin
    if v_held and p_admission ->> 'status' = 'in_flight_full' then  -- who takes a lapsed one over needs no other line, unless there are too many
        v_open := (p_admission -> 'in_flight')::integer <= (p_admission -> 'max_in_flight')::integer;
    end if;
    return jsonb_build_object(
        'claim', v_active and v_open and coalesce(p_todo.assignee = p_me, true) and case p_todo.state
            when 'pending' then true when 'claimed' then p_todo.due_at <= p_now and p_todo.attempt < p_todo.max_attempts
            when 'failed' then coalesce(p_todo.due_at <= p_now, false) else false end,
        'complete', v_held, 'fail', v_held, 'extend', v_held, 'release', v_held, 'force', v_held and p_todo.owner <> p_me,
        'retry', v_active and p_todo.state = 'failed',
        'release_quarantined', p_todo.queue = 'quarantine' and p_todo.state = 'pending', 'discard_quarantined', p_todo.queue = 'quarantine' and p_todo.state = 'pending',
        'lease_default', coalesce(p_endpoint.default_lease_seconds, (select s.default_lease_seconds from settings s)));
end $$;
comment on function switchboard.board_actions(switchboard.todos, switchboard.endpoints, text, jsonb, timestamptz) is
'What may be done to a todo now: {claim, complete, fail, extend, release, retry, release_quarantined, discard_quarantined, force (somebody else holds it), lease_default (seconds)}. p_me: op:<human>; p_admission: board_admission of its queue. Reads settings.';

create or replace function switchboard.board_event(p_todo switchboard.todos, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return (
        select jsonb_build_object('event', (
                   select jsonb_build_object('id', v.id, 'source_type', v.source_type, 'event_type', v.event_type, 'delivery_id', v.delivery_id,
                              'received', board_time(v.received_at, p_now), 'trust_mode', v.trust_mode, 'verified', is_verified(v.trust_mode), 'verification', v.verification)
                   from events v where v.endpoint_id = p_todo.endpoint_id and v.id = p_todo.event_id))
            || coalesce((select jsonb_build_object('meant_for', v.queue) from events v
                         where v.endpoint_id = p_todo.endpoint_id and v.id = p_todo.event_id and p_todo.queue = 'quarantine'), '{}'));
end $$;
comment on function switchboard.board_event(switchboard.todos, timestamptz) is 'The delivery that a todo was made of: {event: {id, source_type, event_type, delivery_id, received, trust_mode, verified, verification} or null}, and meant_for, the queue of one that is in quarantine. Reads events.';

create or replace function switchboard.board_todo(p_human_id uuid, p_args jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_todo      todos;
    v_endpoint  endpoints;
    v_me        text := (select 'op:' || h.name from humans h where h.id = p_human_id);
    v_admission jsonb;
    v_timeline  jsonb;
    v_attempts  bigint;
begin
    select t.* into v_todo from endpoints e join todos t on t.endpoint_id = e.id where e.human_id = p_human_id and t.id = as_uuid(board_arg(p_args, 'id'));
    if not found then
        perform refuse('not_found', 'there is no such todo: look for it on the exchange');
    end if;
    select * into strict v_endpoint from endpoints e where e.id = v_todo.endpoint_id;
    v_admission := board_admission(v_todo.endpoint_id, v_todo.queue, p_now);
    select jsonb_agg(jsonb_build_object('seq', a.seq, 'attempt', a.attempt, 'owner', a.owner, 'claimed', board_time(a.claimed_at, p_now),
                         'ended', board_time(a.ended_at, p_now), 'outcome', a.outcome, 'state', a.state, 'summary', left(a.summary, 120)) order by a.seq)
    into v_timeline
    from (select * from todo_attempts k where k.endpoint_id = v_todo.endpoint_id and k.todo_id = v_todo.id order by k.seq desc limit 50) a;
    v_attempts := (select count(*) from todo_attempts k where k.endpoint_id = v_todo.endpoint_id and k.todo_id = v_todo.id);
    return jsonb_build_object('todo', board_todo_row(v_todo, v_endpoint.slug, board_deferral(v_admission), p_now) || jsonb_build_object(
        'title', v_todo.title, 'claimed', board_time(v_todo.claimed_at, p_now), 'claims', v_todo.claims, 'ring_attempts', v_todo.ring_attempts,
        'last_ringed', board_time(v_todo.last_ringed_at, p_now), 'mine', v_todo.state = 'claimed' and v_todo.owner = v_me,
        'payload', board_document(v_todo.payload), 'result', board_document(v_todo.result), 'admission', v_admission,
        'timeline', coalesce(v_timeline, '[]'), 'timeline_more', greatest(0, v_attempts - 50),
        'actions', board_actions(v_todo, v_endpoint, v_me, v_admission, p_now)) || board_event(v_todo, p_now));
end $$;
comment on function switchboard.board_todo(uuid, jsonb, timestamptz) is
'The page of a todo: {todo: a row of a list, and what it is made of, what happened to it, what may be done}. p_args: {id}. Errors: not_found, for a foreign one, too. Reads todos, endpoints, humans, todo_attempts, events, admission_policies.';
