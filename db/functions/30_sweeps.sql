-- Sweeps: what time does to todos.
--
-- Nothing depends on a sweep to be claimable: a lapsed lease and an elapsed backoff are found by the
-- claim itself. The sweeps make it visible, dead-letter what is spent, clean up, and heal the marks.
-- They are exempt from endpoint scoping (SPEC-0003, Background sweeps are exempt) and return rows to
-- no tenant. Each selects and changes its rows in one statement, under their locks, so that a todo
-- completed in between stays completed, and skips what is locked: nobody waits for a sweep.
--
-- tick() may be called by anybody allowed to, at any time, any number of times, from pg_cron and from
-- every server: it takes the row of each sweep with SKIP LOCKED (an advisory lock could be held by
-- any login), runs a sweep whose last run is 30 s old, in a subtransaction, and notes the outcome.
-- Lock order: the sweep's row, then todos.

create or replace function switchboard.reap_expired(p_limit integer default 1000)
returns table (endpoint_id uuid, id uuid, queue text, state text)
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_limit integer     := check_limit(p_limit, 1000, 100000);
    v_now   timestamptz := clock();
begin
    return query
    with lapsed as materialized (
        select l.* from endpoints e cross join lateral (
            select t.endpoint_id, t.id, t.owner from todos t
            where t.endpoint_id = e.id and t.due_at <= v_now and case t.state when 'claimed' then true else false end  -- by todos_due, not by the index of claimed ones
            order by t.due_at limit v_limit for no key update skip locked) l
        limit v_limit
    ), moved as (
        update todos t
        set state = case when t.attempt < t.max_attempts then 'pending'::todo_state else 'failed' end,
            owner = case when t.attempt < t.max_attempts then null else t.owner end,
            completed_at = case when t.attempt >= t.max_attempts then v_now end,
            due_at = null, lease_token = null, updated_at = v_now
        from lapsed l where t.endpoint_id = l.endpoint_id and t.id = l.id
        returning t.endpoint_id, t.id, t.queue, t.state, t.claims, t.attempt, t.claimed_at, t.created_at, l.owner
    ), ended as (
        insert into todo_attempts (endpoint_id, todo_id, seq, attempt, claimed_at, ended_at, queue, owner, outcome, state)
        select m.endpoint_id, m.id, m.claims, m.attempt, m.claimed_at, v_now, m.queue, m.owner, 'lapsed', m.state::text from moved m
    ), woken as (
        select wake_queue(w.endpoint_id, w.queue, w.oldest, w.ids)
        from (select m.endpoint_id, m.queue, min(m.created_at) as oldest, array_agg(m.id order by m.id) as ids
              from moved m where m.state = 'pending' group by 1, 2) w
    )
    select m.endpoint_id, m.id, m.queue, m.state::text from moved m where (select count(*) from woken) >= 0;
end $$;
comment on function switchboard.reap_expired(integer) is
'Moves up to p_limit todos whose lease lapsed: back to pending while attempts are left, else to the dead letters (SPEC-0003, Reaper). Returns them. Notifies todo_ready once a queue. Writes todos, todo_attempts, queue_marks.';

create or replace function switchboard.requeue_due_retries(p_limit integer default 1000)
returns table (endpoint_id uuid, id uuid, queue text, state text)
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_limit integer     := check_limit(p_limit, 1000, 100000);
    v_now   timestamptz := clock();
begin
    return query
    with due as materialized (
        select d.* from endpoints e cross join lateral (
            select t.endpoint_id, t.id from todos t
            where t.endpoint_id = e.id and t.due_at <= v_now and t.state = 'failed'
            order by t.due_at limit v_limit for no key update skip locked) d
        limit v_limit
    ), moved as (
        update todos t set state = 'pending', owner = null, due_at = null, updated_at = v_now
        from due d where t.endpoint_id = d.endpoint_id and t.id = d.id
        returning t.endpoint_id, t.id, t.queue, t.state, t.created_at
    ), woken as (
        select wake_queue(w.endpoint_id, w.queue, w.oldest, w.ids)
        from (select m.endpoint_id, m.queue, min(m.created_at) as oldest, array_agg(m.id order by m.id) as ids from moved m group by 1, 2) w
    )
    select m.endpoint_id, m.id, m.queue, m.state::text from moved m where (select count(*) from woken) >= 0;
end $$;
comment on function switchboard.requeue_due_retries(integer) is
'Moves up to p_limit parked todos whose backoff is over back to pending (SPEC-0003, Bounded Retries). Returns them. Notifies todo_ready once a queue. Writes todos, queue_marks.';

create or replace function switchboard.retire_endpoints(p_limit integer default 1000) returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint uuid;
    v_count    bigint := 0;
    v_now      timestamptz := clock();
begin
    for v_endpoint in
        select e.id from endpoints e where not is_active(e.revoked_at, e.expires_at, v_now)
    loop
        v_count := v_count + retire_todos(v_endpoint, p_limit);
    end loop;
    return v_count;
end $$;
comment on function switchboard.retire_endpoints(integer) is
'Dead-letters live todos of endpoints that expired, and stragglers on revoked ones (a create that raced the revocation); up to p_limit an endpoint. Returns how many. Writes todos, todo_attempts.';

create or replace function switchboard.settle_marks() returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_mark   record;
    v_oldest timestamptz;
    v_count  bigint := 0;
    v_now    timestamptz := clock();
begin
    for v_mark in select m.endpoint_id, m.queue, m.pending_from from queue_marks m where m.pending_from > 'epoch' loop
        select t.created_at into v_oldest from todos t
        where t.endpoint_id = v_mark.endpoint_id and t.assignee is null and t.queue = v_mark.queue and t.state = 'pending'
        order by t.created_at, t.id limit 1;
        if v_oldest < v_mark.pending_from then
            perform lower_mark(v_mark.endpoint_id, v_mark.queue, v_oldest);
            v_count := v_count + 1;
        end if;
    end loop;
    -- what is due: the first that is left, or now when none is left before
    for v_mark in
        select e.id as endpoint_id, e.due_from, least(v_now, (
            select t.due_at from todos t where t.endpoint_id = e.id and t.due_at is not null order by t.due_at limit 1)) as first
        from endpoints e
    loop
        -- down at once; up in steps of five minutes, since every claim reads this row
        if v_mark.first < v_mark.due_from or v_mark.first > v_mark.due_from + interval '5 minutes' then
            update endpoints e set due_from = v_mark.first
            where e.id = (select k.id from endpoints k where k.id = v_mark.endpoint_id for no key update skip locked);
            v_count := v_count + 1;
        end if;
    end loop;
    return v_count;
end $$;
comment on function switchboard.settle_marks() is
'Sets each low-water mark back to the oldest row that is really there, which finds what surfaced below it. Returns how many moved. Reads todos; writes queue_marks, endpoints.';

create or replace function switchboard.fold_attempts() returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_from  xid8;
    v_to    xid8;
    v_count bigint;
    v_restored boolean;
begin
    select f.folded_to into v_from from attempt_fold f for no key update;
    v_to := pg_snapshot_xmin(pg_current_snapshot());  -- after the lock: another fold may have gone further meanwhile
    v_restored := v_from > pg_snapshot_xmax(pg_current_snapshot());
    if v_restored then  -- into a younger cluster: count all that came along, then number it as old
        v_to := '18446744073709551615';
    end if;
    with counted as (
        select a.endpoint_id, a.queue, a.outcome, a.state, a.attempt, count(*) as n,
               max(a.ended_at) filter (where a.outcome in ('done', 'failed', 'released') and a.owner not like 'op:%') as seen_at
        from todo_attempts a where a.xid >= v_from and a.xid < v_to group by 1, 2, 3, 4, 5
    ), seen as (
        insert into endpoint_seen as s (endpoint_id, via, seen_at)
        select c.endpoint_id, 'attempt', max(c.seen_at) from counted c group by 1 having max(c.seen_at) is not null order by 1
        on conflict (endpoint_id, via) do update set seen_at = greatest(s.seen_at, excluded.seen_at)
    ), added as (
        insert into attempt_totals as t (endpoint_id, queue, outcome, state, attempt, total)
        select c.endpoint_id, c.queue, c.outcome, c.state, c.attempt, c.n from counted c
        on conflict (endpoint_id, queue, outcome, state, attempt) do update set total = t.total + excluded.total
    )
    select coalesce(sum(c.n), 0) into v_count from counted c;
    if v_restored then
        update todo_attempts a set xid = '0' where a.xid > '0';
        update attempt_fold f set folded_to = pg_snapshot_xmin(pg_current_snapshot());
    elsif v_count > 0 and v_to > v_from then
        update attempt_fold f set folded_to = v_to;
    end if;
    return v_count;
end $$;
comment on function switchboard.fold_attempts() is
'Adds the attempts ended by transactions that are all over to attempt_totals, each exactly once, and returns how many. An attempt counts from here on even when it is pruned. Notes when the agent of an endpoint ended its last. Reads todo_attempts; writes attempt_totals, attempt_fold, endpoint_seen.';

create or replace function switchboard.prune(p_limit integer default 10000) returns bigint
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_limit bigint := check_limit(p_limit, 10000, 1000000);
    v_total bigint := 0;
    v_gone  bigint;
    v_upto  uuid;
    v_queue record;
begin
    perform fold_attempts(), fold_created();
    for v_queue in
        select m.endpoint_id, m.queue, s.state, b.keep_from, b.excess_to
        from endpoints e cross join lateral keep_bounds(e) b join queue_marks m on m.endpoint_id = e.id,
             (values ('done'::todo_state), ('failed')) s (state)
    loop
        exit when v_total >= v_limit;
        v_upto := greatest(v_queue.excess_to, new_id(v_queue.keep_from));  -- volatile: within the query it would be no index condition
        with old as materialized (
            select t.endpoint_id, t.id, t.event_id from todos t
            where t.endpoint_id = v_queue.endpoint_id and t.queue = v_queue.queue and t.state = v_queue.state and t.completed_at is not null
              and (t.completed_at < v_queue.keep_from or t.id <= v_queue.excess_to) and is_folded(t)
              and t.id <= v_upto  -- what is younger has not ended before it was made
            order by t.id limit v_limit - v_total for update skip locked
        ), gone as (
            delete from todos t using old where t.endpoint_id = old.endpoint_id and t.id = old.id returning t.endpoint_id, t.id, t.queue, t.trust_mode, t.source
        ), counted as (  -- what fold_created() has not come to yet; it is locked out until this ends
            insert into created_totals as c (endpoint_id, queue, source, total)
            select g.endpoint_id, g.queue, source_label(g.trust_mode, g.source), count(*) from created_fold f join gone g on g.id >= f.folded_to group by 1, 2, 3
            on conflict (endpoint_id, queue, source) do update set total = c.total + excluded.total
        ), history as (
            delete from todo_attempts a using old where a.endpoint_id = old.endpoint_id and a.todo_id = old.id
        ), deliveries as (
            delete from events v using old where v.endpoint_id = old.endpoint_id and v.id = old.event_id
              and not exists (select from webhook_audit a  -- replayed: other todos may need it
                              where a.endpoint_id = v.endpoint_id and a.event_id = v.id and a.action = 'replayed')
        )
        select count(*) into v_gone from gone;
        v_total := v_total + v_gone;
    end loop;
    v_total := v_total + prune_events(greatest(v_limit - v_total, 1));
    v_total := v_total + prune_deliveries(greatest(v_limit - v_total, 1));
    v_total := v_total + prune_sign_in(greatest(v_limit - v_total, 1));
    return v_total + prune_admission(greatest(v_limit - v_total, 1));
end $$;
comment on function switchboard.prune(integer) is
'Deletes terminal todos (with their attempts and their event), events and audits beyond the retention of their endpoint, calls to hooks after 7 days, windows of budgets after 35, sessions and sign-in links that are over, about p_limit of them; the counters keep what was deleted. Returns how many. Writes todos, todo_attempts, events, webhook_audit, notify_deliveries, admission_windows, admission_policy_audit, human_sessions, sign_in_links, attempt_totals, attempt_fold, created_totals, created_fold.';

create or replace function switchboard.is_folded(p_todo switchboard.todos) returns boolean
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return not exists (select from todo_attempts a, attempt_fold f
                       where a.endpoint_id = p_todo.endpoint_id and a.todo_id = p_todo.id and a.xid >= f.folded_to);
end $$;
comment on function switchboard.is_folded(switchboard.todos) is 'Whether every ended attempt of the todo is in attempt_totals, so that it may be deleted.';

create or replace function switchboard.keep_bounds(p_endpoint switchboard.endpoints, out keep_from timestamptz, out excess_to uuid)
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_rows bigint;
begin
    select clock() - make_interval(days => coalesce(p_endpoint.retention_days, s.retention_days)),
           coalesce(p_endpoint.retention_rows, s.retention_rows) into keep_from, v_rows
    from settings s;
    -- no endpoint is over its bound while the whole table is under it
    if v_rows < 10000 or (select c.reltuples from pg_class c where c.oid = 'todos'::regclass) > v_rows then
        select o.id into excess_to from todos o
        where o.endpoint_id = p_endpoint.id and o.completed_at is not null
        order by o.id desc offset v_rows limit 1;
    end if;
end $$;
comment on function switchboard.keep_bounds(switchboard.endpoints) is
'The retention of an endpoint: terminal todos completed before keep_from go, and those up to the id excess_to (NULL: none), which are more than it keeps. Reads settings, todos.';

create or replace function switchboard.run_sweep(p_name text, out moved bigint, out finished boolean)
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_batch   bigint;
    v_started timestamptz := clock_timestamp();
begin
    moved := 0;
    finished := true;
    loop
        case p_name
            when 'reap_expired'        then select count(*) into v_batch from reap_expired(1000);
            when 'requeue_due_retries' then select count(*) into v_batch from requeue_due_retries(1000);
            when 'retire_endpoints'    then v_batch := retire_endpoints(1000);
            when 'prune'               then v_batch := prune(1000);
            when 'reopen_admission'    then select count(*) into moved from reopen_admission(); return;
            when 'sweep_stalled'       then select count(*) into moved from sweep_stalled(4); return;
            when 'settle_marks'        then moved := settle_marks() + settle_presence(); return;
            when 'fold_attempts'       then moved := fold_attempts() + fold_refusals() + fold_created(); return;
        end case;
        moved := moved + v_batch;
        exit when v_batch = 0;
        if clock_timestamp() > v_started + interval '0.8 seconds' then
            finished := false;
            return;
        end if;
    end loop;
end $$;
comment on function switchboard.run_sweep(text) is
'Runs one sweep in batches, for about a second at most: what moved, and whether nothing was left. A tick is one transaction and must end well within the statement timeout of whoever calls it.';

create or replace function switchboard.sweep_names() returns text[]
language sql immutable set search_path = switchboard, pg_temp
as $$
    select array['reap_expired', 'requeue_due_retries', 'retire_endpoints', 'reopen_admission', 'sweep_stalled', 'settle_marks', 'fold_attempts', 'prune']
$$;
comment on function switchboard.sweep_names() is 'The sweeps, in the order in which tick() runs them.';

create or replace function switchboard.tick() returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp set lock_timeout = '1s' set jit = off
as $$
declare
    v_name   text;
    v_run    record;
    v_error  text;
    v_counts jsonb := '{}';
    v_now    timestamptz := clock();
begin
    foreach v_name in array sweep_names() loop
        perform from sweeps s
        where s.name = v_name
          and not s.last_run_at between v_now - interval '29 seconds' and v_now + interval '29 seconds'  -- later: a tick that began after this one
        for no key update skip locked;
        continue when not found;  -- ran just now, or runs elsewhere
        v_error := null;
        begin
            v_run := run_sweep(v_name);
        exception when others then
            v_error := sqlstate;
            select 0::bigint as moved, true as finished into v_run;
        end;
        -- one that was cut short keeps its time, so that the next tick goes on with it at once
        update sweeps s set last_run_at = case when v_run.finished then v_now else s.last_run_at end,
            last_count = v_run.moved, last_error = v_error where s.name = v_name;
        v_counts := v_counts || jsonb_build_object(v_name, coalesce(to_jsonb('error ' || v_error), to_jsonb(v_run.moved)))
            || case when v_run.finished then '{}' else '{"more": true}'::jsonb end;
    end loop;
    return v_counts;
end $$;
comment on function switchboard.tick() is
'Runs every sweep that has not run for 30 seconds and that nobody else is running; safe from anywhere, any number of times. Each gets about a second, so that a tick ends within seconds whatever waits; more: true says that the next one should follow at once. Returns {sweep: rows moved, or «error SQLSTATE»} of those it ran. Writes sweeps and what the sweeps write.';

create or replace function switchboard.sweep_age() returns interval
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select clock() - min(s.last_run_at) from sweeps s having min(s.last_run_at) > 'epoch'
$$;
comment on function switchboard.sweep_age() is 'How long ago the sweep that ran longest ago ran; NULL: one has never run. Reads sweeps.';

create or replace function switchboard.sweep_status()
returns table (name text, last_run_at timestamptz, last_count bigint, last_error text)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select s.name, s.last_run_at, s.last_count, s.last_error from sweeps s order by array_position(sweep_names(), s.name)
$$;
comment on function switchboard.sweep_status() is 'When each sweep last ran, how many rows it moved and the SQLSTATE of its failure, if it failed. Reads sweeps.';
