-- Metrics: numbers of the whole installation, for Prometheus.
--
-- They come from the tables and not from the processes, so that SQL callers count as much as agents, and a
-- restart loses nothing. metrics(collector) answers one group of them as rows (name, kind, help, labels, value):
-- the shell prints what it gets and has no code per metric; each collector is a statement of its own, so that one
-- that fails or is too slow takes no other with it. A gauge that cannot be read is left out, and never 0.
-- Counters are totals that a sweep has folded plus what it has not come to yet, in one snapshot: exact, and they
-- only grow. Nothing here reads all todos: the live ones are counted in the partial indexes that hold them.
-- A claim is an attempt that has ended, or a todo that is held: claimed = completed + leases expired + held.
-- Labels are names of queues, states and the like, never an id, an endpoint or a URL. The first 50 names of queues
-- keep a label of their own, at the first look the largest ones; all later ones are __other__ for good: a label
-- that moved would make counters fall.

create or replace function switchboard.metric_collectors() returns text[]
language sql immutable set search_path = switchboard, pg_temp
as $$
    select array['queues', 'dead_letters', 'created', 'attempts', 'deliveries', 'notifications', 'admission', 'admission_counters', 'sweeps']
$$;
comment on function switchboard.metric_collectors() is 'The groups that metrics() answers, each by itself.';

create or replace function switchboard.source_label(p_trust_mode text, p_source text) returns text
language sql immutable set search_path = switchboard, pg_temp
as $$
    select case when p_trust_mode not in ('signed', 'token', 'open') then p_trust_mode
                when p_source in ('github', 'gitea', 'stripe', 'slack', 'standard', 'cairn', 'generic', 'open') then p_source else 'other' end
$$;
comment on function switchboard.source_label(text, text) is 'Where a todo came from, as a label: the source type of its receiver, or agent, operator or sql; never a text that somebody chose.';

create or replace function switchboard.fold_created() returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_fold     created_fold;
    v_upto     uuid;
    v_snapshot pg_snapshot;
    v_count    bigint := 0;
begin
    select * into v_fold from created_fold f for no key update;
    -- ten seconds back: between its reading of the clock and its first write a create has no transaction id
    -- and ten minutes at a time, when no sweep has run for long
    v_upto := new_id(least(clock() - interval '10 seconds',
        case when v_fold.next_to > '00000000-0000-0000-0000-000000000000' then id_time(v_fold.next_to) + interval '10 minutes' end));
    v_snapshot := pg_current_snapshot();  -- after that reading
    if current_setting('transaction_isolation') <> 'read committed'  -- where it is from before that reading
            or v_fold.next_xid > pg_snapshot_xmin(v_snapshot) and v_fold.next_xid <= pg_snapshot_xmax(v_snapshot) then
        return 0;  -- above xmax: restored into a younger cluster, and over
    end if;
    v_count := count_created(v_fold.folded_to, v_fold.next_to);
    v_fold.folded_to := v_fold.next_to;
    v_fold.next_to := greatest(v_fold.next_to, v_upto);
    v_fold.next_xid := pg_snapshot_xmax(v_snapshot);
    if pg_snapshot_xmin(v_snapshot) = v_fold.next_xid then  -- nobody is writing: no need to wait for the next time
        v_count := v_count + count_created(v_fold.folded_to, v_fold.next_to);
        v_fold.folded_to := v_fold.next_to;
    end if;
    update created_fold f set folded_to = v_fold.folded_to, next_to = v_fold.next_to, next_xid = v_fold.next_xid;
    return v_count;
end $$;
comment on function switchboard.fold_created() is
'Adds the todos created before all open transactions began to created_totals, each exactly once, and returns how many. Reads todos; writes created_totals, created_fold.';

create or replace function switchboard.count_created(p_from uuid, p_to uuid) returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp set plan_cache_mode = force_custom_plan
as $$
declare
    v_count bigint;
begin
    with counted as (
        select c.endpoint_id, c.queue, c.source, count(*) as n
        from endpoints e cross join lateral (
            select t.endpoint_id, t.queue, source_label(t.trust_mode, t.source) as source from todos t
            where t.endpoint_id = e.id and t.id >= p_from and t.id < p_to) c
        group by 1, 2, 3 order by 1, 2, 3
    ), added as (
        insert into created_totals as t (endpoint_id, queue, source, total) select c.endpoint_id, c.queue, c.source, c.n from counted c
        on conflict (endpoint_id, queue, source) do update set total = t.total + excluded.total
    )
    select coalesce(sum(c.n), 0) into v_count from counted c;
    return v_count;
end $$;
comment on function switchboard.count_created(uuid, uuid) is 'Adds the todos with ids from p_from up to p_to, without it, to created_totals. Returns how many. Reads todos, endpoints; writes created_totals.';

create or replace function switchboard.label_queues() returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    if (select count(*) from metric_queues) >= 50 or not exists (
            select from queue_marks m where not exists (select from metric_queues q where q.queue = m.queue)) then
        return;
    end if;
    insert into metric_queues (slot, queue)
    select f.slot, n.queue from (
        select s.slot, row_number() over (order by s.slot) as place from generate_series(1, 50) s (slot)
        where not exists (select from metric_queues q where q.slot = s.slot)) f
    join (
        select w.queue, row_number() over (order by sum(w.size) desc, w.queue) as place from (
            select m.queue, 0::bigint as size from queue_marks m
            union all select a.queue, sum(a.total) from attempt_totals a group by 1
            union all select t.queue, count(*) from todos t where t.state = 'pending' and t.assignee is null group by 1) w
        where not exists (select from metric_queues q where q.queue = w.queue) group by w.queue) n on n.place = f.place
    on conflict do nothing;
end $$;
comment on function switchboard.label_queues() is 'Gives queues that have no label yet the places that are free, the largest first. Reads queue_marks, attempt_totals, todos; writes metric_queues.';

create or replace function switchboard.queue_label(p_queue text) returns text
language sql stable set search_path = switchboard, pg_temp
as $$
    select coalesce((select q.queue from metric_queues q where q.queue = p_queue), '__other__')
$$;
comment on function switchboard.queue_label(text) is 'The label of a queue. Reads metric_queues.';

create or replace function switchboard.metrics(p_collector text)
returns table (name text, kind text, help text, labels jsonb, value double precision)
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    begin
        perform label_queues();
    exception when others then null;  -- on a standby, say: what has no label is __other__
    end;
    case p_collector
        when 'queues' then return query select * from queue_metrics();
        when 'dead_letters' then return query select * from dead_letter_metrics();
        when 'created' then return query select * from created_metrics();
        when 'attempts' then return query select * from attempt_metrics();
        when 'deliveries' then return query
            select 'switchboard_webhook_deliveries_total', 'counter', 'Webhook deliveries, by what became of them.',
                   jsonb_build_object('provider', c.provider, 'trust_mode', c.trust_mode, 'verdict', c.verdict), sum(c.total)::double precision
            from delivery_counts() c group by c.provider, c.trust_mode, c.verdict;
        when 'notifications' then return query
            select 'switchboard_notify_hook_notifications_total', 'counter', 'Calls to notify hooks, by outcome.',
                   jsonb_build_object('type', c.type, 'outcome', c.outcome), c.total::double precision
            from notify_counts() c;
        when 'admission' then return query select * from admission_metrics();
        when 'admission_counters' then return query select * from admission_counter_metrics();
        when 'sweeps' then return query
            select 'switchboard_sweep_age_seconds', 'gauge', 'Seconds since each sweep last ran; absent while it never has.',
                   jsonb_build_object('sweep', s.name), extract(epoch from clock() - s.last_run_at)::double precision
            from sweeps s where s.last_run_at > 'epoch';
        else perform refuse_argument('collector', 'must be one of metric_collectors()');
    end case;
end $$;
comment on function switchboard.metrics(text) is
'The samples of one collector of metric_collectors(): name, kind (gauge or counter), help, labels (an object of texts) and value. Errors: invalid_argument. Reads what it counts; writes metric_queues.';

create or replace function switchboard.queue_metrics()
returns table (name text, kind text, help text, labels jsonb, value double precision)
language sql volatile set search_path = switchboard, pg_temp
as $$
    with counted (queue, state, n, oldest) as materialized (
        select p.queue, 'pending', count(*), min(p.created_at) from (
            select t.queue, t.created_at from todos t where t.state = 'pending' and t.assignee is null
            union all
            select t.queue, t.created_at from todos t where t.state = 'pending' and t.assignee is not null) p group by 1
        union all
        select t.queue, 'claimed', count(*), null from todos t where t.state = 'claimed' group by 1
        union all
        select t.queue, 'parked', count(*), null from todos t where t.due_at is not null and t.state = 'failed' group by 1
        union all
        select q.queue, s.state, 0, null from metric_queues q, unnest('{pending,claimed,parked}'::text[]) s (state)
    ), labelled as materialized (
        select queue_label(c.queue) as queue, c.state, sum(c.n) as n, min(c.oldest) as oldest from counted c group by 1, 2
    )
    select 'switchboard_queue_todos', 'gauge', 'Todos in a queue now, by state: pending, claimed, parked (failed, waiting for a retry), dead (a dead letter).',
           jsonb_build_object('queue', l.queue, 'state', l.state), l.n::double precision
    from labelled l
    union all
    select 'switchboard_queue_oldest_pending_seconds', 'gauge', 'Seconds since the oldest pending todo of a queue was created; absent while there is none.',
           jsonb_build_object('queue', l.queue), extract(epoch from clock() - l.oldest)::double precision
    from labelled l where l.oldest is not null
$$;
comment on function switchboard.queue_metrics() is 'Live todos by queue and state, and the age of the oldest pending one: each from the partial index that holds just those. Reads todos, metric_queues.';

create or replace function switchboard.dead_letter_metrics()
returns table (name text, kind text, help text, labels jsonb, value double precision)
language sql volatile set search_path = switchboard, pg_temp
as $$
    select 'switchboard_queue_todos', 'gauge', 'Todos in a queue now, by state: pending, claimed, parked (failed, waiting for a retry), dead (a dead letter).',
           jsonb_build_object('queue', queue_label(c.queue), 'state', 'dead'), sum(c.n)::double precision
    from (select m.queue, sum(d.n) as n from queue_marks m cross join lateral (
              select count(*) as n from todos t
              where t.endpoint_id = m.endpoint_id and t.queue = m.queue and t.state = 'failed' and t.completed_at is not null) d
          group by m.queue) c
    group by queue_label(c.queue)
$$;
comment on function switchboard.dead_letter_metrics() is 'Dead letters by queue; apart from the live ones, since there may be as many as retention allows. Reads todos, queue_marks.';

create or replace function switchboard.created_metrics()
returns table (name text, kind text, help text, labels jsonb, value double precision)
language plpgsql volatile set search_path = switchboard, pg_temp set plan_cache_mode = force_custom_plan
as $$
declare
    -- known to the planner, which would read the whole table else; a fold meanwhile only moves it up
    v_from uuid := (select f.folded_to from created_fold f);
begin
    return query
    with counted as (
        select t.queue, t.source, sum(t.total) as n from created_totals t group by 1, 2
        union all
        select c.queue, source_label(c.trust_mode, c.source), count(*) from created_fold f cross join endpoints e cross join lateral (
            select t.queue, t.trust_mode, t.source from todos t where t.endpoint_id = e.id and t.id >= v_from and t.id >= f.folded_to) c
        group by 1, 2
    )
    select 'switchboard_todos_created_total', 'counter', 'Todos created, by source: the type of the sender, or agent, operator or sql.',
           jsonb_build_object('queue', queue_label(c.queue), 'source', c.source), sum(c.n)::double precision
    from counted c group by queue_label(c.queue), c.source;
end $$;
comment on function switchboard.created_metrics() is 'Todos ever created, by queue and source. Reads created_totals, created_fold, todos, endpoints.';

create or replace function switchboard.attempt_metrics()
returns table (name text, kind text, help text, labels jsonb, value double precision)
language sql volatile set search_path = switchboard, pg_temp
as $$
    with raw (queue, outcome, attempt, n) as materialized (
        select t.queue, t.outcome, t.attempt, sum(t.total) from attempt_totals t group by 1, 2, 3
        union all
        select a.queue, a.outcome, a.attempt, count(*) from attempt_fold f join todo_attempts a on a.xid >= f.folded_to group by 1, 2, 3
        union all
        select t.queue, 'held', t.attempt, count(*) from todos t where t.state = 'claimed' group by 1, 3
    ), counted as materialized (
        select l.queue, r.outcome, case when r.attempt >= 5 then '5+' else r.attempt::text end as bucket, sum(r.n) as n
        from raw r cross join lateral (select queue_label(r.queue) as queue) l group by 1, 2, 3
    )
    select 'switchboard_todos_claimed_total', 'counter', 'Claims, retries and takeovers included.', jsonb_build_object('queue', c.queue), sum(c.n)::double precision
    from counted c group by c.queue
    union all
    select 'switchboard_todo_attempts_total', 'counter', 'Claims, by which attempt of the todo they were.',
           jsonb_build_object('queue', c.queue, 'attempt_bucket', c.bucket), sum(c.n)::double precision
    from counted c group by c.queue, c.bucket
    union all
    select 'switchboard_todos_completed_total', 'counter', 'Attempts that somebody ended: done, failed, released, overridden by an operator, or revoked with the endpoint.',
           jsonb_build_object('queue', c.queue, 'outcome', c.outcome), sum(c.n)::double precision
    from counted c where c.outcome not in ('held', 'lapsed') group by c.queue, c.outcome
    union all
    select 'switchboard_todo_leases_expired_total', 'counter', 'Attempts whose lease ran out.', jsonb_build_object('queue', c.queue), sum(c.n)::double precision
    from counted c where c.outcome = 'lapsed' group by c.queue
$$;
comment on function switchboard.attempt_metrics() is 'Claims and what became of them, by queue. Reads attempt_totals, attempt_fold, todo_attempts, todos.';

create or replace function switchboard.admission_metrics()
returns table (name text, kind text, help text, labels jsonb, value double precision)
language sql volatile set search_path = switchboard, pg_temp
as $$
    with states as materialized (
        select p.endpoint_id, p.queue, queue_label(p.queue) as label, s.status from admission_policies p cross join lateral admission_state(p, clock()) s
    )
    select 'switchboard_admission_policies', 'gauge', 'Budgets, by what they say now: open, or why claims are deferred.',
           jsonb_build_object('queue', s.label, 'status', s.status), count(*)::double precision
    from states s group by s.label, s.status
    union all
    select 'switchboard_admission_deferred_todos', 'gauge', 'Pending todos of queues whose budget defers claims now, by reason.',
           jsonb_build_object('queue', s.label, 'reason', s.status), sum(d.n)::double precision
    from states s cross join lateral (
        select (select count(*) from todos t where t.endpoint_id = s.endpoint_id and t.queue = s.queue and t.state = 'pending' and t.assignee is null)
             + (select count(*) from todos t where t.endpoint_id = s.endpoint_id and t.queue = s.queue and t.state = 'pending' and t.assignee is not null) as n) d
    where s.status <> 'open' group by s.label, s.status
$$;
comment on function switchboard.admission_metrics() is 'Budgets by status, and what they defer. Reads admission_policies, admission_windows, todos.';

create or replace function switchboard.admission_counter_metrics()
returns table (name text, kind text, help text, labels jsonb, value double precision)
language sql volatile set search_path = switchboard, pg_temp
as $$
    with charged as (
        select p.queue, sum(p.charged) as n from admission_policies p group by 1
        union all
        select t.queue, sum(t.total) from admission_totals t where t.kind = 'charged' group by 1
    ), refused as (
        select t.queue, t.kind, sum(t.total) as n from admission_totals t where t.kind <> 'charged' group by 1, 2
        union all
        select r.queue, r.reason, count(*) from admission_refusals r group by 1, 2
    )
    select 'switchboard_admission_charged_total', 'counter', 'Claims charged to a budget.', jsonb_build_object('queue', queue_label(c.queue)), sum(c.n)::double precision
    from charged c group by queue_label(c.queue)
    union all
    select 'switchboard_admission_refusals_total', 'counter', 'Claims that a budget refused, by reason.',
           jsonb_build_object('queue', queue_label(r.queue), 'reason', r.kind), sum(r.n)::double precision
    from refused r group by queue_label(r.queue), r.kind
$$;
comment on function switchboard.admission_counter_metrics() is 'Claims charged and refused by budgets. Reads admission_policies, admission_totals, admission_refusals.';
