-- Stall nudges: waking the consumer of a queue that holds work while nothing moves (SPEC-0038).
--
-- Every other wake needs a transition. A queue whose oldest pending todo past the sender gate is older than
-- two minutes, on an active endpoint with an enabled hook that covers it, is stalled, unless its budget shuts
-- it; it is nudged by one call through the outbox, with reason stalled, that names this todo. It changes no
-- todo and rings no session. A hook that was called when a budget opened the queue is left alone for 5
-- minutes, or until somebody came for the todo it was told of. The ledger queue_stall_nudges paces nudges:
-- the first when the todo is 5 minutes old, then 20 minutes, 1 h, 6 h and 6 h after the last; five without
-- progress, then silence. Progress is a claim in the queue after the last nudge: the queue is then due again
-- at once and counts from 1. A drained queue's row is deleted.
-- How progress is seen: the sweep writes the names of nudged queues into the endpoint's row, which every
-- claim reads anyway; the first claim in one of them notes it in the ledger, and the next nudge clears the
-- note: no clocks are compared. A claim whose snapshot is older than the nudge is seen by what it holds.
-- Lock order: todo, then ledger, then outbox. Claims skip a ledger row that is locked, and so does the sweep,
-- as it skips the row of an endpoint: whoever leaves a transaction open holds up nobody else's nudges.

create or replace function switchboard.note_progress(p_endpoint_id uuid, p_queue text, p_at timestamptz) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    update queue_stall_nudges l set progressed_at = p_at
    where (l.endpoint_id, l.queue) = (
        select k.endpoint_id, k.queue from queue_stall_nudges k
        where k.endpoint_id = p_endpoint_id and k.queue = p_queue and k.progressed_at is null
        for no key update skip locked);
exception when serialization_failure then  -- above read committed: somebody has just noted it, or nudged; no claim fails for a note
    null;
end $$;
comment on function switchboard.note_progress(uuid, text, timestamptz) is 'Notes in the ledger that a todo of a nudged queue was claimed at p_at, the first time only. Writes queue_stall_nudges.';

create or replace function switchboard.has_progressed(p_ledger switchboard.queue_stall_nudges, p_claimed_at timestamptz) returns boolean
language sql immutable set search_path = switchboard, pg_temp
as $$
    select p_ledger.progressed_at is not null or coalesce(p_claimed_at > p_ledger.last_nudged_at, false)
$$;
comment on function switchboard.has_progressed(switchboard.queue_stall_nudges, timestamptz) is
'Whether a todo of the queue was claimed after its last nudge: as a claim noted, or as p_claimed_at shows, the last claim of what is held or parked there.';

create or replace function switchboard.nudge_due(p_ledger switchboard.queue_stall_nudges, p_claimed_at timestamptz, p_at timestamptz) returns boolean
language sql immutable set search_path = switchboard, pg_temp
as $$
    select has_progressed(p_ledger, p_claimed_at)
        or p_ledger.nudges < 5 and p_ledger.last_nudged_at + (array[interval '20 minutes', '1 hour', '6 hours', '6 hours'])[p_ledger.nudges] <= p_at
$$;
comment on function switchboard.nudge_due(switchboard.queue_stall_nudges, timestamptz, timestamptz) is
'Whether a queue that was nudged before is due again (SPEC-0038, Nudge Pacing): after progress at once, else 20 min, 1 h, 6 h, 6 h after the last nudge, at most five in a row.';

create or replace function switchboard.oldest_assigned(p_endpoint_id uuid)
returns table (queue text, id uuid, created_at timestamptz)
language sql stable set search_path = switchboard, pg_temp
as $$
    with recursive pairs (assignee, queue) as (  -- one descent of the index each, however many todos
        (select t.assignee, t.queue from todos t
         where t.endpoint_id = p_endpoint_id and t.assignee is not null and t.state = 'pending'
         order by t.assignee, t.queue limit 1)
        union all
        select n.* from pairs p cross join lateral (
            select t.assignee, t.queue from todos t
            where t.endpoint_id = p_endpoint_id and t.assignee is not null and t.state = 'pending' and (t.assignee, t.queue) > (p.assignee, p.queue)
            order by t.assignee, t.queue limit 1) n
    )
    select distinct on (p.queue) p.queue, o.id, o.created_at from pairs p cross join lateral (
        select t.id, t.created_at from todos t
        where t.endpoint_id = p_endpoint_id and t.assignee = p.assignee and t.queue = p.queue and t.state = 'pending' and t.trust_mode <> 'open'
        order by t.created_at, t.id limit 1) o
    order by p.queue, o.created_at, o.id
$$;
comment on function switchboard.oldest_assigned(uuid) is 'The oldest pending todo of each queue among those that are assigned to somebody and pass the sender gate. Reads todos.';

create or replace function switchboard.sweep_stalled(p_limit integer default 4)
returns table (endpoint_id uuid, queue text, todo_id uuid, nudges integer)
language plpgsql volatile security definer set search_path = switchboard, pg_temp set jit = off  -- compiling it would take seconds
as $$
declare
    v_limit integer     := check_limit(p_limit, 4, 4);
    v_now   timestamptz := clock();
    v_since uuid        := new_id(v_now - interval '5 minutes');
begin
    return query
    with pairs as materialized (
        select distinct h.endpoint_id, q.queue
        from notify_hooks h join endpoints e on e.id = h.endpoint_id cross join lateral unnest(coalesce(h.queues, e.queues)) q (queue)
        where h.disabled_at is null and h.sealed_secret is not null and is_active(e.revoked_at, e.expires_at, v_now)
          and q.queue = any (e.queues) and q.queue <> 'quarantine'
          and not exists (select from admission_policies p cross join lateral admission_state(p, v_now) s  -- what its budget shuts is not stalled
                          where p.endpoint_id = h.endpoint_id and p.queue = q.queue and s.status <> 'open')
    ), claims as materialized (  -- the last claim of what is held or parked
        select l.endpoint_id, m.* from (select distinct k.endpoint_id from queue_stall_nudges k) l cross join lateral (
            select t.queue, max(t.claimed_at) as at from todos t where t.endpoint_id = l.endpoint_id and t.due_at is not null group by t.queue) m
    ), assigned as materialized (
        select p.endpoint_id, o.* from (select distinct p.endpoint_id from pairs p) p cross join lateral oldest_assigned(p.endpoint_id) o
    ), stalled as materialized (
        select p.endpoint_id, p.queue, o.id as todo_id, o.created_at, l.endpoint_id is null as fresh,
               case when l.endpoint_id is null or has_progressed(l, c.at) then 0 else l.nudges end as spent
        from pairs p left join queue_stall_nudges l on l.endpoint_id = p.endpoint_id and l.queue = p.queue
        left join claims c on c.endpoint_id = p.endpoint_id and c.queue = p.queue
        cross join lateral (
            (select t.id, t.created_at from todos t
             where t.endpoint_id = p.endpoint_id and t.assignee is null and t.queue = p.queue and t.state = 'pending' and t.trust_mode <> 'open'
             order by t.created_at, t.id limit 1)
            union all
            select a.id, a.created_at from assigned a where a.endpoint_id = p.endpoint_id and a.queue = p.queue
            order by created_at, id limit 1) o
        where (l.endpoint_id is null or nudge_due(l, c.at, v_now)) and o.created_at < v_now - interval '2 minutes'
          and (l.endpoint_id is not null or o.created_at <= v_now - interval '5 minutes')
    ), called as materialized (  -- a hook that is being deleted gets no call
        select h.id, s.* from stalled s join notify_hooks h on h.endpoint_id = s.endpoint_id
        where h.disabled_at is null and h.sealed_secret is not null and s.queue = any (coalesce(h.queues, array[s.queue]))
          and not exists (select from notify_deliveries d join todos t on t.endpoint_id = d.endpoint_id and t.id = d.todo_id  -- called when the queue reopened
                          where d.endpoint_id = h.endpoint_id and d.hook_id = h.id and d.id > v_since and d.queue = s.queue and d.reason = 'reopened' and t.state = 'pending')
        for key share of h skip locked
    ), again as materialized (  -- one whose ledger row a claimer holds in an open transaction is making progress
        select l.endpoint_id, l.queue, c.todo_id, c.created_at, c.spent
        from (select distinct k.endpoint_id, k.queue, k.todo_id, k.created_at, k.spent from called k where not k.fresh) c
        join queue_stall_nudges l on l.endpoint_id = c.endpoint_id and l.queue = c.queue
        order by c.spent, c.created_at limit v_limit for no key update of l skip locked
    ), due as materialized (
        select distinct k.endpoint_id, k.queue, k.todo_id, k.created_at, k.spent from called k where k.fresh
        union all select a.* from again a
        order by spent, created_at limit v_limit
    ), charged as (
        insert into queue_stall_nudges as l (endpoint_id, queue, nudges, last_nudged_at)
        select d.endpoint_id, d.queue, 1, v_now from due d order by d.endpoint_id, d.queue
        on conflict on constraint queue_stall_nudges_pkey do update
            set nudges = case when has_progressed(l, (select c.at from claims c where c.endpoint_id = l.endpoint_id and c.queue = l.queue)) then 1 else l.nudges + 1 end,
                last_nudged_at = v_now, progressed_at = null
            -- again, under the lock: another instance may have been here
            where nudge_due(l, (select c.at from claims c where c.endpoint_id = l.endpoint_id and c.queue = l.queue), v_now)
        returning l.endpoint_id, l.queue, l.nudges
    ), posted as (
        insert into notify_deliveries (endpoint_id, id, hook_id, todo_id, queue, reason, due_at, created_at)
        select n.endpoint_id, new_id(v_now), n.id, n.todo_id, n.queue, 'stalled', v_now, v_now
        from called n join charged c on c.endpoint_id = n.endpoint_id and c.queue = n.queue
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
        where case when exists (select from todos t where t.endpoint_id = l.endpoint_id and t.assignee is null and t.queue = l.queue and t.state = 'pending') then false
                   else not exists (select from todos t where t.endpoint_id = l.endpoint_id and t.assignee is not null and t.queue = l.queue and t.state = 'pending') end
        for update skip locked
    )
    delete from queue_stall_nudges l using empty e where l.endpoint_id = e.endpoint_id and l.queue = e.queue;
    with noted as materialized (
        select k.id, (select array_agg(l.queue order by l.queue) from queue_stall_nudges l
                      where l.endpoint_id = k.id and l.progressed_at is null) as queues
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
