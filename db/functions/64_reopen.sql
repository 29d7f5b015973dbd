-- Reopening: telling, once, that a queue which its budget had shut is open again (SPEC-0030, Doorbells and the reopen sweep).
--
-- Nobody is woken for work that cannot be claimed: a create, a requeue, a bell, a hook and a nudge all leave a
-- deferred queue in peace. So somebody has to be told when it opens. Whoever shuts a queue (the claim that uses
-- the last of a limit, a policy that is set) and whoever kept a wake back writes that one is owed; whoever finds
-- it open again pays: the transition that frees a slot, a policy that changes, and the sweep, which also sees that
-- a window has turned. Paying deletes what is owed and sends one todo_ready, one call to each hook, and rings
-- the oldest todo anew though it may have rung before.
--
-- No wake is lost. Owing locks a row that is there against being paid, or inserts one: a payer that cannot lock
-- all it sees leaves them, and one that cannot see a row leaves that for the next sweep. Nobody waits for these
-- rows, and creates and completions never touch the policy, so that they wait for no claim either. A slot that
-- is freed beside a claim that is just shutting the queue is seen by the sweep. Whoever leaves a transaction open
-- in which a wake was kept back holds up the wakes of that queue until it ends.
-- Lock order: what is owed comes last.

create or replace function switchboard.owe_wake(p_endpoint_id uuid, p_queue text) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    begin
        perform from admission_owed o where o.endpoint_id = p_endpoint_id and o.queue = p_queue limit 1 for key share skip locked;
        if found then
            return;
        end if;
    exception when serialization_failure then  -- above read committed: it was paid since
        null;
    end;
    insert into admission_owed (endpoint_id, queue, created_at) values (p_endpoint_id, p_queue, clock());
end $$;
comment on function switchboard.owe_wake(uuid, text) is 'Notes that somebody is to be told when the queue reopens. Never waits. Writes admission_owed.';

create or replace function switchboard.is_owed(p_endpoint_id uuid, p_queue text) returns boolean
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return exists (select from admission_owed o where o.endpoint_id = p_endpoint_id and o.queue = p_queue);
end $$;
comment on function switchboard.is_owed(uuid, text) is 'Whether a wake is owed to the queue: one probe. Reads admission_owed.';

create or replace function switchboard.oldest_eligible(p_endpoint_id uuid, p_queue text, p_at timestamptz, out id uuid, out created_at timestamptz)
language sql stable set search_path = switchboard, pg_temp
as $$
    select o.id, o.created_at
    from endpoints e cross join lateral (
        (select t.id, t.created_at from todos t
         where t.endpoint_id = e.id and t.assignee is null and t.queue = p_queue and t.state = 'pending' and t.trust_mode <> 'open'
         order by t.created_at, t.id limit 1)
        union all
        select a.id, a.created_at from oldest_assigned(e.id) a where a.queue = p_queue) o
    where e.id = p_endpoint_id and is_active(e.revoked_at, e.expires_at, p_at) and p_queue = any (e.queues)
    order by o.created_at, o.id limit 1
$$;
comment on function switchboard.oldest_eligible(uuid, text, timestamptz) is
'The oldest pending todo of the queue for which somebody may be woken: past the sender gate, on an active endpoint that grants the queue. NULLs: none. Reads endpoints, todos.';

create or replace function switchboard.reopen_queue(p_endpoint_id uuid, p_queue text) returns boolean
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_now  timestamptz := clock();
    v_owed record;
    v_todo record;
begin
    if is_deferred(p_endpoint_id, p_queue, v_now) then
        return false;
    end if;
    with locked as materialized (
        select o.id from admission_owed o where o.endpoint_id = p_endpoint_id and o.queue = p_queue for update skip locked
    )
    select array(select l.id from locked l) as ids,
           (select count(*) from admission_owed o where o.endpoint_id = p_endpoint_id and o.queue = p_queue) as seen into v_owed;
    if v_owed.seen = 0 or cardinality(v_owed.ids) < v_owed.seen then  -- somebody pays, or shuts it
        return false;
    end if;
    delete from admission_owed o where o.endpoint_id = p_endpoint_id and o.queue = p_queue and o.id = any (v_owed.ids);
    select * into v_todo from oldest_eligible(p_endpoint_id, p_queue, v_now);
    if v_todo.id is null then
        return false;
    end if;
    update todos t set ring_attempts = 0, last_ringed_at = null  -- told as if it were new
    where t.endpoint_id = p_endpoint_id and t.id = (
        select k.id from todos k where k.endpoint_id = p_endpoint_id and k.id = v_todo.id and k.last_ringed_at is not null for no key update skip locked);
    perform lower_mark(p_endpoint_id, p_queue, v_todo.created_at);
    perform pg_notify('todo_ready', p_endpoint_id || ':' || p_queue);
    perform post_wakes(p_endpoint_id, p_queue, array[v_todo.id], 'reopened');
    return true;
exception when serialization_failure then  -- above read committed; the sweep sees to it
    return false;
end $$;
comment on function switchboard.reopen_queue(uuid, text) is
'Pays the wake that is owed to a queue, if it is open and somebody may be woken for what is pending: whether it did. Notifies todo_ready and the hooks, with the reason reopened. Never waits. Writes admission_owed, todos, queue_marks, notify_deliveries.';

create or replace function switchboard.reopen_admission()
returns table (endpoint_id uuid, queue text)
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    delete from admission_owed o where (o.endpoint_id, o.queue, o.id) in (  -- nobody is to be told there any more
        select k.endpoint_id, k.queue, k.id from admission_owed k join endpoints e on e.id = k.endpoint_id
        where not is_active(e.revoked_at, e.expires_at, clock()) for update of k skip locked);
    for endpoint_id, queue in select distinct o.endpoint_id, o.queue from admission_owed o order by 1, 2 loop
        if reopen_queue(endpoint_id, queue) then
            return next;
        end if;
    end loop;
end $$;
comment on function switchboard.reopen_admission() is
'Tells of every queue that has reopened since its budget shut it (SPEC-0030), once: its window turned, or a slot became free unseen; and forgets what is owed to endpoints that are no longer active. Returns those that somebody was told of. Notifies todo_ready and the hooks. Writes as reopen_queue.';
