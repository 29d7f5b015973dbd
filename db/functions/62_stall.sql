-- Stall nudges: waking the consumer of a queue that holds work while nothing moves (SPEC-0038).
--
-- Every other wake needs a transition. A queue whose oldest pending todo past the sender gate is older than
-- two minutes, on an active endpoint with an enabled hook that covers it, is stalled; it is nudged by one
-- call through the outbox, with reason stalled, that names this todo. It changes no todo and rings no
-- session. The ledger queue_stall_nudges paces it: the first nudge when the todo is 5 minutes old, then 20
-- minutes, 1 h, 6 h and 6 h after the last; five without progress, then silence. Progress is a claim in
-- the queue after the last nudge: the queue is then due again at once and counts from 1. A drained queue's
-- row is deleted.
-- How progress is seen: the sweep writes the names of nudged queues into the endpoint's row, which every
-- claim reads anyway; the first claim in one of them notes it in the ledger. A claim whose snapshot is older
-- is seen by what it holds.
-- Lock order: todo, then ledger, then outbox. Claims skip a ledger row that is locked, and so does the sweep,
-- as it skips the row of an endpoint: whoever leaves a transaction open holds up nobody else's nudges.

create or replace function switchboard.note_progress(p_endpoint_id uuid, p_queue text, p_at timestamptz) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    update queue_stall_nudges l set progressed_at = p_at
    where (l.endpoint_id, l.queue) = (
        select k.endpoint_id, k.queue from queue_stall_nudges k
        where k.endpoint_id = p_endpoint_id and k.queue = p_queue and k.last_nudged_at < p_at and (k.progressed_at is null or k.progressed_at <= k.last_nudged_at)
        for no key update skip locked);
exception when serialization_failure then  -- above read committed: somebody has just noted it, or nudged; no claim fails for a note
    null;
end $$;
comment on function switchboard.note_progress(uuid, text, timestamptz) is 'Notes in the ledger that a todo of a nudged queue was claimed at p_at, the first time only. Writes queue_stall_nudges.';

create or replace function switchboard.has_progressed(p_ledger switchboard.queue_stall_nudges) returns boolean
language sql stable set search_path = switchboard, pg_temp
as $$
    select coalesce(p_ledger.progressed_at > p_ledger.last_nudged_at, false)
        or exists (select from todos t where t.endpoint_id = p_ledger.endpoint_id and t.due_at is not null and t.queue = p_ledger.queue
                   and t.claimed_at > p_ledger.last_nudged_at)
$$;
comment on function switchboard.has_progressed(switchboard.queue_stall_nudges) is
'Whether a todo of the queue was claimed after its last nudge: as a claim noted, or as one shows that is held or parked. Reads todos.';

create or replace function switchboard.nudge_due(p_ledger switchboard.queue_stall_nudges, p_at timestamptz) returns boolean
language sql stable set search_path = switchboard, pg_temp
as $$
    select p_ledger.nudges < 5 and p_ledger.last_nudged_at + (array[interval '20 minutes', '1 hour', '6 hours', '6 hours'])[p_ledger.nudges] <= p_at
        or has_progressed(p_ledger)
$$;
comment on function switchboard.nudge_due(switchboard.queue_stall_nudges, timestamptz) is
'Whether a queue that was nudged before is due again (SPEC-0038, Nudge Pacing): after progress at once, else 20 min, 1 h, 6 h, 6 h after the last nudge, at most five in a row.';

create or replace function switchboard.oldest_waiting(p_endpoint_id uuid, p_queue text)
returns table (id uuid, created_at timestamptz)
language sql stable set search_path = switchboard, pg_temp
as $$
    select o.id, o.created_at from (
        (select t.id, t.created_at from todos t
         where t.endpoint_id = p_endpoint_id and t.assignee is null and t.queue = p_queue and t.state = 'pending' and t.trust_mode <> 'open'
         order by t.created_at, t.id limit 1)
        union all
        (select t.id, t.created_at from todos t
         where t.endpoint_id = p_endpoint_id and t.assignee is not null and t.queue = p_queue and t.state = 'pending' and t.trust_mode <> 'open'
         order by t.created_at, t.id limit 1)) o
    order by o.created_at, o.id limit 1
$$;
comment on function switchboard.oldest_waiting(uuid, text) is 'The oldest pending todo of the queue that passes the sender gate. Reads todos.';

create or replace function switchboard.sweep_stalled(p_limit integer default 4)
returns table (endpoint_id uuid, queue text, todo_id uuid, nudges integer)
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_limit integer     := check_limit(p_limit, 4, 4);
    v_now   timestamptz := clock();
begin
    return query
    with receivers as materialized (
        select h.endpoint_id, h.id, q.queue
        from notify_hooks h join endpoints e on e.id = h.endpoint_id cross join lateral unnest(coalesce(h.queues, e.queues)) q (queue)
        where h.disabled_at is null and h.sealed_secret is not null and is_active(e.revoked_at, e.expires_at, v_now)
          and q.queue = any (e.queues) and q.queue <> 'quarantine'
    ), pairs as (
        select distinct r.endpoint_id, r.queue from receivers r
    ), fresh as materialized (  -- not nudged since it was last empty
        select p.endpoint_id, p.queue, o.id as todo_id, o.created_at, 0 as spent
        from pairs p cross join lateral oldest_waiting(p.endpoint_id, p.queue) o
        where not exists (select from queue_stall_nudges l where l.endpoint_id = p.endpoint_id and l.queue = p.queue)
          and o.created_at <= v_now - interval '5 minutes'
        order by o.created_at limit v_limit
    ), again as materialized (  -- one whose ledger row a claimer holds in an open transaction is making progress; nobody waits for it
        select l.endpoint_id, l.queue, o.id as todo_id, o.created_at, case when has_progressed(l) then 0 else l.nudges end as spent
        from pairs p join queue_stall_nudges l on l.endpoint_id = p.endpoint_id and l.queue = p.queue
        cross join lateral oldest_waiting(p.endpoint_id, p.queue) o
        where nudge_due(l, v_now) and o.created_at < v_now - interval '2 minutes'
        order by 5, 4 limit v_limit for no key update of l skip locked
    ), due as materialized (
        select * from fresh union all select * from again order by spent, created_at limit v_limit
    ), charged as (
        insert into queue_stall_nudges as l (endpoint_id, queue, nudges, last_nudged_at)
        select d.endpoint_id, d.queue, 1, v_now from due d order by d.endpoint_id, d.queue
        on conflict on constraint queue_stall_nudges_pkey do update
            set nudges = case when has_progressed(l) then 1 else l.nudges + 1 end, last_nudged_at = v_now, progressed_at = null
            where nudge_due(l, v_now)  -- again, under the lock: another instance may have been here
        returning l.endpoint_id, l.queue, l.nudges
    ), posted as (
        insert into notify_deliveries (endpoint_id, id, hook_id, todo_id, queue, reason, due_at, created_at)
        select c.endpoint_id, new_id(v_now), r.id, d.todo_id, c.queue, 'stalled', v_now, v_now
        from charged c join due d on d.endpoint_id = c.endpoint_id and d.queue = c.queue
        join receivers r on r.endpoint_id = c.endpoint_id and r.queue = c.queue
    ), told as (
        select pg_notify('switchboard_outbox', '') where exists (select from charged)
    )
    select c.endpoint_id, c.queue, d.todo_id, c.nudges
    from charged c join due d on d.endpoint_id = c.endpoint_id and d.queue = c.queue where (select count(*) from told) >= 0;
    perform settle_stalls();
end $$;
comment on function switchboard.sweep_stalled(integer) is
'Nudges stalled queues (SPEC-0038), at most 4 a call, least-nudged first: one statement finds them, charges the ledger, checks again under its lock and writes the calls to the outbox. Returns endpoint, queue, the todo named, and the nudges since progress. Touches no todo. Notifies switchboard_outbox. Writes queue_stall_nudges, notify_deliveries, endpoints.';

create or replace function switchboard.settle_stalls() returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    with empty as materialized (
        select l.endpoint_id, l.queue from queue_stall_nudges l
        where not exists (select from todos t where t.endpoint_id = l.endpoint_id and t.assignee is null and t.queue = l.queue and t.state = 'pending')
          and not exists (select from todos t where t.endpoint_id = l.endpoint_id and t.assignee is not null and t.queue = l.queue and t.state = 'pending')
        for update skip locked
    )
    delete from queue_stall_nudges l using empty e where l.endpoint_id = e.endpoint_id and l.queue = e.queue;
    with noted as materialized (
        select k.id, (select array_agg(l.queue order by l.queue) from queue_stall_nudges l
                      where l.endpoint_id = k.id and (l.progressed_at is null or l.progressed_at <= l.last_nudged_at)) as queues
        from endpoints k
        where k.stalled_queues is not null or exists (select from queue_stall_nudges l where l.endpoint_id = k.id)
    ), changed as materialized (
        select e.id, n.queues from noted n join endpoints e on e.id = n.id
        where e.stalled_queues is distinct from n.queues for no key update of e skip locked
    )
    update endpoints e set stalled_queues = c.queues from changed c where e.id = c.id;
end $$;
comment on function switchboard.settle_stalls() is
'Deletes the ledger rows of queues where nothing is pending any more, and writes into each endpoint which of its queues wait for progress. Writes queue_stall_nudges, endpoints.';
