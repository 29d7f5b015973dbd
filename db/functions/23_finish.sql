-- What may happen to a claimed todo: heartbeat, complete, fail, release; and retry.
--
-- Only the holder moves a claimed todo: state, owner and, when passed, the lease token are tested in
-- the one UPDATE that moves it, and an update of no row is classified afterwards (not_found or
-- conflict), never swallowed. A lapsed lease that nobody has taken yet still belongs to its holder.
-- The token tells one lease from the next of the same owner: a claim makes a new one, a wrong or
-- malformed one is conflict. p_force, for operators only, overrides the holder.
--
-- These updates go by the primary key. The test stands in a CASE on purpose: a bare state = 'claimed'
-- would let the planner take the partial index of leases, which looks empty in the statistics of an
-- idle queue and is full of dead entries under load.
--
-- What ends in a queue that its budget had shut frees a slot, and tells so (functions/reopen).

create or replace function switchboard.backoff(p_attempt integer) returns interval
language sql immutable set search_path = switchboard, pg_temp
as $$
    select make_interval(secs => case when p_attempt < 6 then 30 * (1 << greatest(p_attempt - 1, 0)) else 900 end)
$$;
comment on function switchboard.backoff(integer) is
'How long a todo parks after its failed attempt p_attempt: 30 s doubling to 15 minutes (SPEC-0003, Bounded Retries).';

create or replace function switchboard.renew(
    p_endpoint_id uuid, p_id text, p_owner text, p_lease_ttl_seconds integer, p_lease_token text, p_force boolean default false)
returns switchboard.todo
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_row todos;
    v_now timestamptz := clock();
begin
    if p_lease_ttl_seconds < 1 then
        perform refuse_argument('lease_ttl_seconds', 'must be at least 1');
    end if;
    update todos t
    set due_at = v_now + make_interval(secs => least(coalesce(p_lease_ttl_seconds, t.lease_seconds), 86400)), updated_at = v_now
    where t.endpoint_id = p_endpoint_id and t.id = as_uuid(p_id)
      and case t.state when 'claimed' then p_force or (t.owner = p_owner and t.lease_token = coalesce(p_lease_token, t.lease_token)) else false end
    returning * into v_row;
    if not found then
        perform refuse_todo(p_endpoint_id, p_id);
    end if;
    return show(v_row);
end $$;
comment on function switchboard.renew(uuid, text, text, integer, text, boolean) is
'heartbeat for a resolved endpoint; p_force: whoever holds it. Writes todos.';

create or replace function switchboard.finish(
    p_endpoint_id uuid, p_id text, p_owner text, p_lease_token text, p_outcome text, p_result jsonb default null,
    p_force boolean default false)
returns switchboard.todo
language plpgsql volatile
as $$
declare
    v_id   uuid        := switchboard.as_uuid(p_id);
    v_now  timestamptz := switchboard.clock();
    v_todo switchboard.todo;
begin
    if p_owner is null or p_owner = '' or length(p_owner) > 128 then
        perform switchboard.check_text('owner', p_owner, 128, true);
    elsif pg_column_size(p_result) >= 200 or octet_length(p_result::text) >= 130 or p_result = 'null' then  -- a shorter one cannot break a limit (json_problem)
        perform switchboard.check_json('result', p_result);
    end if;
    -- done ends it; failed parks it and released returns it while attempts are left, else it is a dead letter
    update switchboard.todos t
    set state = case when p_outcome = 'done' then 'done'::switchboard.todo_state
                     when p_outcome = 'released' and t.attempt < t.max_attempts then 'pending' else 'failed' end,
        due_at = case when p_outcome = 'failed' and t.attempt < t.max_attempts then v_now + switchboard.backoff(t.attempt) end,
        completed_at = case when p_outcome = 'done' or t.attempt >= t.max_attempts then v_now end,
        owner = case when p_outcome = 'released' and t.attempt < t.max_attempts then null else t.owner end,
        result = case when p_outcome = 'released' then t.result else p_result end,
        lease_token = null, updated_at = v_now
    where t.endpoint_id = p_endpoint_id and t.id = v_id
      and case t.state when 'claimed' then p_force or (t.owner = p_owner and t.lease_token = coalesce(p_lease_token, t.lease_token)) else false end
    returning t.id, t.endpoint_id, t.queue, t.state, t.kind, t.source, t.title, t.payload, t.assignee, t.owner,
        null::timestamptz, null::text, t.claimed_at, t.attempt, t.max_attempts, t.due_at, t.state = 'failed' and t.due_at is null, t.result, t.idempotency_key, t.trust_mode,
        t.trust_mode not in ('token', 'open'), t.ring_attempts, t.last_ringed_at, t.event_id, t.created_at, t.updated_at, t.completed_at, t.claims
    into v_todo;
    if v_todo.id is null then
        perform switchboard.refuse_todo(p_endpoint_id, p_id);
    end if;
    insert into switchboard.todo_attempts (endpoint_id, todo_id, seq, attempt, claimed_at, ended_at, queue, owner, outcome, state, summary)
    values (p_endpoint_id, v_id, v_todo.claims, v_todo.attempt, v_todo.claimed_at, v_now, v_todo.queue, p_owner,
            case when p_force then 'overridden' else p_outcome end, v_todo.state,
            left(coalesce(p_result ->> 'summary', p_result ->> 'error', p_result #>> '{}'), 200));
    if v_todo.state = 'pending' then
        perform switchboard.wake_queue(p_endpoint_id, v_todo.queue, v_todo.created_at, array[v_id]);
    elsif exists (select from switchboard.admission_owed o where o.endpoint_id = p_endpoint_id and o.queue = v_todo.queue) then
        perform switchboard.reopen_queue(p_endpoint_id, v_todo.queue);
    end if;
    return v_todo;
end $$;
comment on function switchboard.finish(uuid, text, text, text, text, jsonb, boolean) is
'Ends a held attempt as done, failed or released, for a resolved endpoint; p_force: the holder p_owner is overridden, and the history says so. On the path of every call, so it qualifies names instead of pinning search_path. Writes todos, todo_attempts, queue_marks; a released todo notifies todo_ready.';

drop function if exists switchboard.wake_queue(uuid, text, timestamptz);  -- in the transaction that replaces its callers
create or replace function switchboard.wake_queue(
    p_endpoint_id uuid, p_queue text, p_oldest timestamptz, p_ids uuid[], p_reason text default 'requeued')
returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    perform lower_mark(p_endpoint_id, p_queue, p_oldest);
    if is_deferred(p_endpoint_id, p_queue, clock()) then
        perform owe_wake(p_endpoint_id, p_queue);
    elsif not (is_owed(p_endpoint_id, p_queue) and reopen_queue(p_endpoint_id, p_queue)) then  -- told once, not twice
        perform pg_notify('todo_ready', p_endpoint_id || ':' || p_queue);
        perform post_wakes(p_endpoint_id, p_queue, p_ids, p_reason);
    end if;
end $$;
comment on function switchboard.wake_queue(uuid, text, timestamptz, uuid[], text) is
'What every transition back to pending does: lowers the marks of the queue to the oldest todo that came back, rings todo_ready (once a queue and transaction), and writes the calls to the hooks; in a queue that its budget shuts, a wake is owed instead (functions/reopen). Writes queue_marks, notify_deliveries, admission_owed.';

create or replace function switchboard.heartbeat(
    p_endpoint_id text, p_id text, p_owner text, p_lease_ttl_seconds integer default null, p_lease_token text default null)
returns switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
begin
    perform check_text('owner', p_owner, 128, true);
    return renew(scope(p_endpoint_id, 'heartbeat'), p_id, p_owner, p_lease_ttl_seconds, p_lease_token);
end $$;
comment on function switchboard.heartbeat(text, text, text, integer, text) is
'Extends the caller''s lease (SPEC-0003, Visibility Window) to now plus p_lease_ttl_seconds; NULL: what the claim asked for. Errors: not_found, conflict (not the holder), invalid_argument. Writes todos.';

create or replace function switchboard.complete(
    p_endpoint_id text, p_id text, p_owner text, p_result jsonb default null, p_lease_token text default null)
returns switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
begin
    return finish(scope(p_endpoint_id, 'complete'), p_id, p_owner, p_lease_token, 'done', p_result);
end $$;
comment on function switchboard.complete(text, text, text, jsonb, text) is
'The holder reports success: done. p_result: any JSON but null, 256 KiB; p_lease_token: the one of the claim, NULL: not tested. Errors: not_found, conflict, invalid_argument. Writes todos, todo_attempts.';

create or replace function switchboard.fail(
    p_endpoint_id text, p_id text, p_owner text, p_result jsonb default null, p_lease_token text default null)
returns switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
begin
    return finish(scope(p_endpoint_id, 'fail'), p_id, p_owner, p_lease_token, 'failed', p_result);
end $$;
comment on function switchboard.fail(text, text, text, jsonb, text) is
'The holder reports failure: parked with next_retry_at (backoff) while attempts are left, else a dead letter (SPEC-0003, Bounded Retries). Arguments and errors as complete. Writes todos, todo_attempts.';

create or replace function switchboard.release(p_endpoint_id text, p_id text, p_owner text, p_lease_token text default null) returns switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
begin
    return finish(scope(p_endpoint_id, 'release'), p_id, p_owner, p_lease_token, 'released');
end $$;
comment on function switchboard.release(text, text, text, text) is
'The holder gives the todo back, as if the lease lapsed now: pending while attempts are left, else a dead letter; the attempt is spent. Errors: not_found, conflict, invalid_argument. Writes todos, todo_attempts, queue_marks; notifies todo_ready.';

create or replace function switchboard.requeue(p_endpoint_id uuid, p_id text) returns switchboard.todo
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_row todos;
    v_now timestamptz := clock();
begin
    update todos t
    set state = 'pending', attempt = 0, owner = null, result = null, due_at = null, completed_at = null, claimed_at = null,
        ring_attempts = 0, last_ringed_at = null, updated_at = v_now
    where t.endpoint_id = p_endpoint_id and t.id = as_uuid(p_id) and case t.state when 'failed' then true else false end and t.queue <> 'quarantine'
      and exists (select from endpoints e where e.id = p_endpoint_id and is_active(e.revoked_at, e.expires_at, v_now))
    returning * into v_row;
    if not found then
        if exists (select from todos t join endpoints e on e.id = t.endpoint_id
                   where t.endpoint_id = p_endpoint_id and t.id = as_uuid(p_id) and t.queue <> 'quarantine' and not is_active(e.revoked_at, e.expires_at, v_now)) then
            perform refuse('conflict', 'the endpoint is revoked or expired: create the todo on an active one');
        end if;
        perform refuse_todo(p_endpoint_id, p_id);
    end if;
    perform wake_queue(v_row.endpoint_id, v_row.queue, v_row.created_at, array[v_row.id]);
    return show(v_row);
exception when unique_violation then  -- a live todo has its idempotency key; the violation names the key, so it ends here
    perform refuse('conflict', 'a live todo has the same idempotency key: end that one first', '{"field": "idempotency_key"}');
    return null;
end $$;
comment on function switchboard.requeue(uuid, text) is 'retry for a resolved endpoint. Writes todos, queue_marks; notifies todo_ready.';

create or replace function switchboard.retry(p_endpoint_id text, p_id text) returns switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
begin
    return requeue(scope(p_endpoint_id, 'retry'), p_id);
end $$;
comment on function switchboard.retry(text, text) is
'Puts a failed todo (dead letter or parked) back to pending with a fresh attempt budget; result, owner and times are cleared. Errors: not_found; conflict: not failed, endpoint not active, or a live todo has its idempotency key. Writes todos, queue_marks; notifies todo_ready.';

create or replace function switchboard.complete_batch(
    p_endpoint_id text, p_owner text, p_ids text[], p_lease_tokens text[] default null)
returns table (id text, outcome text)
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_endpoint uuid := scope(p_endpoint_id, 'complete');
    v_now      timestamptz := clock();
begin
    perform check_text('owner', p_owner, 128, true);
    if cardinality(p_lease_tokens) <> cardinality(p_ids) then
        perform refuse_argument('lease_tokens', 'must have one token for each id');
    elsif cardinality(p_ids) > 10000 then
        perform refuse_argument('ids', 'must name at most 10000 todos');
    end if;
    return query
    with named as materialized (
        select u.n, u.id as text_id, as_uuid(u.id) as id, u.token from unnest(p_ids, p_lease_tokens) with ordinality u (id, token, n)
    ), locked as materialized (
        select t.id, t.state, t.owner, t.lease_token from todos t
        where t.endpoint_id = v_endpoint and t.id = any (array(select m.id from named m)) and t.queue <> 'quarantine'
        order by t.created_at, t.id for no key update
    ), mine as materialized (  -- named twice: the first naming completes it, the second conflicts
        select distinct on (l.id) l.id, m.n from locked l join named m on m.id = l.id
        where l.state = 'claimed' and l.owner = p_owner and (p_lease_tokens is null or m.token = l.lease_token)
        order by l.id, m.n
    ), done as (
        update todos t
        set state = 'done', completed_at = v_now, updated_at = v_now, due_at = null, lease_token = null, result = null
        where t.endpoint_id = v_endpoint and t.id = any (array(select m.id from mine m))
        returning t.endpoint_id, t.id, t.claims, t.attempt, t.claimed_at, t.queue, t.owner
    ), ended as (
        insert into todo_attempts (endpoint_id, todo_id, seq, attempt, claimed_at, ended_at, queue, owner, outcome, state)
        select d.endpoint_id, d.id, d.claims, d.attempt, d.claimed_at, v_now, d.queue, d.owner, 'done', 'done' from done d
    )
    select m.text_id, case when e.n is not null then 'done' when l.id is not null then 'conflict' else 'not_found' end
    from named m left join mine e on e.n = m.n left join locked l on l.id = m.id
    order by m.n;
    perform reopen_queue(v_endpoint, o.queue) from (select distinct k.queue from admission_owed k where k.endpoint_id = v_endpoint) o;
end $$;
comment on function switchboard.complete_batch(text, text, text[], text[]) is
'complete for up to 10,000 todos: one row per element of p_ids, in its order, with outcome done, conflict or not_found; one outcome does not touch the others. p_lease_tokens: one per id, NULL: not tested. Locks in order of creation. Errors: invalid_argument. Writes todos, todo_attempts.';
