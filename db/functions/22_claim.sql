-- Claiming.
--
-- A claim takes the oldest todo that is claimable, under a lease, and never waits for another claim.
-- Claimable, everywhere (claim, claim_next, claim_batch, the operator twins): pending; or held under
-- a lease that lapsed with attempts left; or parked with its backoff over. A todo with an assignee is
-- claimable by that owner only. Oldest is (created_at, id), across all the queues that are named.
--
-- How claim_next finds it. An array of queues in one ORDER BY loses the index order and sorts the
-- backlog, so claim_oldest() probes the head of each queue's pool (one index descent each) and, once an
-- endpoint, the heads of what is assigned to the owner and of what is due; the oldest head wins.
-- take() then locks the first row there that nobody else has locked (SKIP LOCKED) and makes it the
-- owner's. When everything at that head is locked the head is left out and the
-- next oldest is tried, so one stuck claimer hides nothing but the row it sits on. A claim waits for no
-- lock; but before it answers that there is nothing although it saw something locked, it looks again a
-- few milliseconds later: a doorbell locks what it marks for the time of its commit.
--
-- Marks. An old snapshot held open by anyone keeps dead index entries at the heads, and every scan
-- walks them. So each queue has a low-water mark from which claims look: about one claim in 300 moves
-- it up to the oldest that is left; whatever puts an older todo back to pending lowers it; a claim that finds
-- nothing looks once more from the very start; and each sweep sets it back to the oldest pending
-- (settle_marks in functions/sweeps), which finds what surfaced below it: the create of a
-- long transaction, a claim rolled back, a lowering skipped because the mark was locked. Marks are
-- hints: a wrong one costs at most a sweep's delay, never a todo. Nobody waits for their locks.
--
-- A claim in a queue that was nudged notes the progress (functions/stall). One in a queue with a budget passes its policy
-- (functions/admission); a queue without one pays for it with a probe of an index, in claim_terms().
-- Lock order: todo, then policy, window, ledger. The claimed row is locked first, then updated.

do $$  -- here and not in a migration: the functions that build these terms change in the same transaction, and no claim fails in between
begin
    alter type switchboard.claim_terms add attribute stalled text[];
exception when duplicate_column then null;
end $$;

create or replace function switchboard.claim_terms(
    p_endpoint_id text, p_verb text, p_owner text, p_queues text[], p_lease_ttl_seconds integer)
returns switchboard.claim_terms
language plpgsql stable
as $$
declare
    v_endpoint uuid := switchboard.scope(p_endpoint_id, p_verb);
    v_at       timestamptz := switchboard.clock();
    v_grant    record;
    v_queue    text;
begin
    if p_owner is null or p_owner = '' or length(p_owner) > 128 then
        perform switchboard.check_text('owner', p_owner, 128, true);
    elsif p_lease_ttl_seconds < 1 then
        perform switchboard.refuse_argument('lease_ttl_seconds', 'must be at least 1');
    elsif cardinality(p_queues) > 32 then
        perform switchboard.refuse_argument('queues', 'must name at most 32 queues');
    end if;
    if array_ndims(p_queues) > 1 or array_lower(p_queues, 1) <> 1 then
        p_queues := array(select unnest(p_queues));
    end if;
    select e.queues, e.revoked_at is null and (e.expires_at is null or e.expires_at > v_at) as open, coalesce(p_lease_ttl_seconds, e.default_lease_seconds, (select i.default_lease_seconds from switchboard.settings i)) as lease_seconds,
           e.due_from, e.stalled_queues, array(select p.queue from switchboard.admission_policies p where p.endpoint_id = e.id) as budgeted,
           case when cardinality(coalesce(p_queues, e.queues)) = 1 then (
               select k.pending_from from switchboard.queue_marks k
               where k.endpoint_id = e.id and k.queue = (coalesce(p_queues, e.queues))[1]) end as only_from,
           (select t.due_at from switchboard.todos t where t.endpoint_id = e.id and t.due_at between e.due_from and v_at
            order by t.due_at limit 1) is not null as any_due,
           (select t.id from switchboard.todos t where t.endpoint_id = e.id and t.assignee = p_owner and t.state = 'pending'
            order by t.queue, t.created_at, t.id limit 1) is not null as any_assigned
    into v_grant
    from switchboard.endpoints e where e.id = v_endpoint;
    if not p_queues <@ v_grant.queues then
        foreach v_queue in array p_queues loop
            perform switchboard.check_queue(v_queue, v_grant.queues);
        end loop;
    end if;
    if v_grant.open then
        return (v_endpoint, p_owner, coalesce(p_queues, v_grant.queues),
                least(v_grant.lease_seconds, 86400),
                v_at, v_grant.due_from, v_grant.any_due, v_grant.any_assigned, timestamptz 'epoch',
                case when not v_grant.any_due and not v_grant.any_assigned and not coalesce(p_queues, v_grant.queues) && v_grant.budgeted then v_grant.only_from end, v_grant.stalled_queues,
                v_grant.budgeted, null, null)::switchboard.claim_terms;
    end if;
    return (null, null, null, null, v_at, null, null, null, null, null, null, '{}', null, null)::switchboard.claim_terms;
end $$;
comment on function switchboard.claim_terms(text, text, text, text[], integer) is
'Checks the arguments of a claim against the endpoint''s grant. Lease: per call, else the endpoint''s, else the installation''s; above 86400 clamped. An endpoint out of scope or inactive gives terms without an endpoint, which claim nothing. On the path of every claim, so it qualifies names instead of pinning search_path. Errors: invalid_argument, forbidden. Reads endpoints, settings.';

create or replace function switchboard.end_attempt(p_held switchboard.todos, p_at timestamptz, p_outcome text, p_state text) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    insert into todo_attempts (endpoint_id, todo_id, seq, attempt, claimed_at, ended_at, queue, owner, outcome, state)
    values (p_held.endpoint_id, p_held.id, p_held.claims, p_held.attempt, p_held.claimed_at, p_at, p_held.queue, p_held.owner, p_outcome, p_state);
end $$;
comment on function switchboard.end_attempt(switchboard.todos, timestamptz, text, text) is
'Writes the history row of the attempt that p_held, as it was while claimed, is in. Writes todo_attempts.';

create or replace function switchboard.lock_claimable(p_endpoint_id uuid, p_id uuid, p_at timestamptz) returns switchboard.todos
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_row todos;
begin
    select * into v_row from todos t
    where t.endpoint_id = p_endpoint_id and t.id = p_id
      and case t.state when 'pending' then true when 'claimed' then t.attempt < t.max_attempts and t.due_at <= p_at
                       when 'failed' then t.due_at <= p_at else false end
    for no key update skip locked;
    if v_row.state = 'claimed' then
        perform end_attempt(v_row, p_at, 'lapsed', 'claimed');
    end if;
    return v_row;
end $$;
comment on function switchboard.lock_claimable(uuid, uuid, timestamptz) is
'Locks and returns one todo if it is claimable and nobody else has it locked, else NULLs; never waits. The lapsed attempt of its last holder ends in the history. Writes todo_attempts.';

create or replace function switchboard.lock_other(p_terms switchboard.claim_terms, p_kind text, p_queue text) returns uuid
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_id uuid;
begin
    if p_kind = 'assigned' then
        select t.id into v_id from todos t
        where t.endpoint_id = p_terms.endpoint_id and t.assignee = p_terms.owner and t.queue = p_queue and t.state = 'pending'
        order by t.created_at, t.id limit 1 for no key update skip locked;
    else
        select t.id into v_id from todos t
        where t.endpoint_id = p_terms.endpoint_id and t.due_at <= p_terms.at and (t.state = 'failed' or t.attempt < t.max_attempts)
          and t.queue = any (p_terms.queues) and (t.state = 'claimed' or array_position(p_terms.busy, t.queue) is null)
          and (t.assignee is null or t.assignee = p_terms.owner)
        order by t.due_at limit 1 for no key update skip locked;
    end if;
    return v_id;
end $$;
comment on function switchboard.lock_other(switchboard.claim_terms, text, text) is
'When the oldest that is due, or assigned in p_queue, is locked by somebody: locks and returns the first that is not; NULL: all are. Never waits. Reads todos.';

create or replace function switchboard.take(p_terms switchboard.claim_terms, p_id uuid, p_queue text default null, p_from timestamptz default null)
returns switchboard.todo
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_row todos;
begin
    update todos t
    set state = 'claimed', owner = p_terms.owner, lease_seconds = p_terms.lease_seconds,
        lease_token = translate(encode(substring(uuid_send(gen_random_uuid()) for 9), 'base64'), '+/', '-_'),
        due_at = p_terms.at + make_interval(secs => p_terms.lease_seconds), claimed_at = p_terms.at, updated_at = p_terms.at,
        attempt = t.attempt + 1, claims = t.claims + 1, ring_attempts = 0, last_ringed_at = null
    where t.endpoint_id = p_terms.endpoint_id and t.id = coalesce(p_id, (
        select h.id from todos h
        where h.endpoint_id = p_terms.endpoint_id and h.assignee is null and h.queue = p_queue and h.state = 'pending' and h.created_at >= p_from
        order by h.created_at, h.id limit 1 for no key update skip locked))
    returning * into v_row;
    if v_row.queue = any (p_terms.stalled) then
        perform note_progress(v_row.endpoint_id, v_row.queue, p_terms.at);
    end if;
    return show(v_row, true);
end $$;
comment on function switchboard.take(switchboard.claim_terms, uuid, text, timestamptz) is
'Makes a todo the owner''s under a new lease with a new token and returns it as the claimer sees it: the one p_id, which is locked and claimable; with p_id NULL the first of the pool of p_queue from p_from on that nobody has locked (NULLs: none). Writes todos.';

create or replace function switchboard.raise_mark(p_endpoint_id uuid, p_queue text) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    if current_setting('transaction_isolation') = 'read committed' then  -- above it, a hint is not worth a 40001
        update queue_marks m set pending_from = t.created_at
        from (select t.created_at from todos t
              where t.endpoint_id = p_endpoint_id and t.queue = p_queue and t.state = 'pending' and t.assignee is null
                and t.created_at >= (select k.pending_from from queue_marks k where k.endpoint_id = p_endpoint_id and k.queue = p_queue)
              order by t.created_at, t.id limit 1) t
        where (m.endpoint_id, m.queue) = (
            select k.endpoint_id, k.queue from queue_marks k
            where k.endpoint_id = p_endpoint_id and k.queue = p_queue and k.pending_from < t.created_at for no key update skip locked);
    end if;
end $$;
comment on function switchboard.raise_mark(uuid, text) is
'Moves the low-water mark of a queue up to the oldest of its pool that is still pending, unless somebody has the mark locked. Reads todos; writes queue_marks.';

create or replace function switchboard.lower_mark(p_endpoint_id uuid, p_queue text, p_to timestamptz) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    if current_setting('transaction_isolation') = 'read committed' then
        update queue_marks m set pending_from = least(m.pending_from, p_to), rung_from = least(m.rung_from, p_to)
        where (m.endpoint_id, m.queue) = (
            select k.endpoint_id, k.queue from queue_marks k
            where k.endpoint_id = p_endpoint_id and k.queue = p_queue and greatest(k.pending_from, k.rung_from) > p_to for no key update skip locked);
    end if;
end $$;
comment on function switchboard.lower_mark(uuid, text, timestamptz) is
'Moves the low-water marks of a queue (pending_from, and rung_from for the doorbell) down to p_to, unless somebody has it locked (then the next sweep does). Writes queue_marks.';

create or replace function switchboard.claim_oldest(p_terms switchboard.claim_terms) returns switchboard.todo
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_head       record;
    v_assigned   record;
    v_id         uuid;
    v_todo       todo;
    v_taken      admitted;
    v_skip       text[] := '{}';
    v_from_start boolean := false;
    v_tries      integer := 0;
    v_budgets    boolean := p_terms.budgeted && p_terms.queues;
begin
    if v_budgets and p_terms.rooms is null then
        p_terms := heed_budgets(p_terms);
    end if;
    while p_terms.endpoint_id is not null loop
        select h.* into v_head from (
            select t.created_at, t.id, 'pool' as kind, m.queue
            from queue_marks m cross join lateral (
                select t.created_at, t.id from todos t
                where t.endpoint_id = p_terms.endpoint_id and t.assignee is null and t.queue = m.queue and t.state = 'pending'
                  and t.created_at >= case when v_from_start then 'epoch' else m.pending_from end
                order by t.created_at, t.id limit 1) t
            where m.endpoint_id = p_terms.endpoint_id and 'pool ' || m.queue <> all (v_skip)
              and array_position(p_terms.queues, m.queue) > 0  -- = any () would descend the index once an element
              and array_position(p_terms.busy, m.queue) is null
            union all
            (select t.created_at, t.id, 'due', '' from todos t
             where (p_terms.any_due or v_from_start) and 'due ' <> all (v_skip) and t.endpoint_id = p_terms.endpoint_id and t.due_at <= p_terms.at
               and t.due_at >= case when v_from_start then 'epoch' else p_terms.due_from end
               and (t.state = 'failed' or t.attempt < t.max_attempts) and t.queue = any (p_terms.queues)
               and (t.state = 'claimed' or array_position(p_terms.busy, t.queue) is null)
               and (t.assignee is null or t.assignee = p_terms.owner)
             order by t.due_at limit 16)
        ) h
        order by h.created_at, h.id limit 1;
        if p_terms.any_assigned then
            v_assigned := older_assigned(p_terms, v_skip, v_head.created_at, v_head.id);
            if v_assigned.id is not null then
                v_head := v_assigned;
            end if;
        end if;
        if v_head.id is null then
            if v_from_start and v_skip <> '{}' and v_tries < 3 then  -- all there is was locked: perhaps by a doorbell, which is gone at once
                v_tries := v_tries + 1;
                perform pg_sleep(0.002);
            else
                exit when v_from_start;
            end if;
            v_from_start := true;
            v_skip := '{}';
            continue;
        elsif v_budgets and (v_head.kind = 'due' or v_head.queue = any (p_terms.budgeted)) then
            v_taken := take_admitted(p_terms, v_head.kind, v_head.id, v_head.queue, v_head.created_at);
            if v_taken.refused is not null then
                p_terms := turn_away(p_terms, v_taken.queue, v_taken.refused);
                continue;
            end if;
            v_todo := v_taken.todo;
        elsif v_head.kind = 'pool' then
            v_todo := take(p_terms, null, v_head.queue, v_head.created_at);
        else
            v_id := (lock_claimable(p_terms.endpoint_id, v_head.id, p_terms.at)).id;
            if v_id is null then
                v_id := (lock_claimable(p_terms.endpoint_id, lock_other(p_terms, v_head.kind, v_head.queue), p_terms.at)).id;
            end if;
            v_todo := case when v_id is not null then take(p_terms, v_id) end;
        end if;
        if v_todo.id is null then
            v_skip := v_skip || (v_head.kind || ' ' || v_head.queue);
            continue;
        elsif v_head.kind = 'pool' and v_from_start then
            perform lower_mark(p_terms.endpoint_id, v_head.queue, v_todo.created_at);
        elsif v_head.kind = 'pool' and random() < 0.0033 then
            perform raise_mark(p_terms.endpoint_id, v_head.queue);
        end if;
        return v_todo;
    end loop;
    return null;
end $$;
comment on function switchboard.claim_oldest(switchboard.claim_terms) is
'Claims the oldest claimable todo by these terms; NULL when there is none that is not locked. A head is the first of a queue''s pool, of what is assigned to the owner in a queue, or of what is due; one whose todos are all locked is left out, and each is tried once from the marks and once from the start, so it ends; when something was there but all of it was locked, three times more, 2 ms apart. Of what is due the 16 that have been so longest are looked at. Reads queue_marks; writes todos, todo_attempts, queue_marks.';

create or replace function switchboard.older_assigned(
    p_terms switchboard.claim_terms, p_skip text[], p_created_at timestamptz, p_id uuid,
    out created_at timestamptz, out id uuid, out kind text, out queue text)
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    select a.created_at, a.id, 'assigned', q into created_at, id, kind, queue
    from unnest(p_terms.queues) q cross join lateral (
        select t.created_at, t.id from todos t
        where t.endpoint_id = p_terms.endpoint_id and t.assignee = p_terms.owner and t.queue = q and t.state = 'pending'
          and t.created_at >= p_terms.assigned_from
        order by t.created_at, t.id limit 1) a
    where 'assigned ' || q <> all (p_skip) and array_position(p_terms.busy, q) is null and (p_id is null or (a.created_at, a.id) < (p_created_at, p_id))
    order by a.created_at, a.id limit 1;
end $$;
comment on function switchboard.older_assigned(switchboard.claim_terms, text[], timestamptz, uuid) is
'The oldest todo assigned to the owner of these terms, if it is older than (p_created_at, p_id), as a head; NULLs: none. Reads todos.';

create or replace function switchboard.claim_next(
    p_endpoint_id text, p_owner text, p_queues text[] default null, p_lease_ttl_seconds integer default null)
returns setof switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_terms claim_terms := claim_terms(p_endpoint_id, 'claim_next', p_owner, p_queues, p_lease_ttl_seconds);
    v_todo  todo;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform pin_policies(v_terms.endpoint_id);
    end if;
    -- The common case, one queue and nothing that is due or assigned, needs no comparison of heads: what
    -- claim_oldest() would do there, in one statement. It is half of what a claim costs.
    if v_terms.only_from is not null then
        return query update todos t
        set state = 'claimed', owner = v_terms.owner, lease_seconds = v_terms.lease_seconds,
            lease_token = translate(encode(substring(uuid_send(gen_random_uuid()) for 9), 'base64'), '+/', '-_'),
            due_at = v_terms.at + make_interval(secs => v_terms.lease_seconds),
            claimed_at = v_terms.at, updated_at = v_terms.at, attempt = t.attempt + 1, claims = t.claims + 1,
            ring_attempts = 0, last_ringed_at = null
        where t.endpoint_id = v_terms.endpoint_id and t.id = (
            select h.id from todos h
            where h.endpoint_id = v_terms.endpoint_id and h.assignee is null and h.queue = v_terms.queues[1] and h.state = 'pending'
              and h.created_at >= v_terms.only_from
            order by h.created_at, h.id limit 1 for no key update skip locked)
        returning t.id, t.endpoint_id, t.queue, 'claimed'::text, t.kind, t.source, t.title, t.payload, t.assignee, t.owner, t.due_at, t.lease_token,
            t.claimed_at, t.attempt, t.max_attempts, null::timestamptz, false, t.result, t.idempotency_key, t.trust_mode::text, t.trust_mode not in ('token', 'open'),
            t.ring_attempts, t.last_ringed_at, t.event_id, t.created_at, t.updated_at, t.completed_at, t.claims, null::jsonb;
        if found then
            if v_terms.queues[1] = any (v_terms.stalled) then
                perform note_progress(v_terms.endpoint_id, v_terms.queues[1], v_terms.at);
            end if;
            if random() < 0.0033 then
                perform raise_mark(v_terms.endpoint_id, v_terms.queues[1]);
            end if;
            return;
        end if;
    end if;
    v_todo := claim_oldest(v_terms);
    if v_todo.id is not null then
        return next v_todo;
    elsif v_terms.budgeted && v_terms.queues then
        perform note_held_back(v_terms);
    end if;
end $$;
comment on function switchboard.claim_next(text, text, text[], integer) is
'Claims the oldest claimable todo under a lease (SPEC-0003, Atomic Claim). p_owner: 1 to 128 characters; p_queues: up to 32 granted queues, NULL: all granted, empty: none; p_lease_ttl_seconds: from 1, above 86400 clamped, NULL: the default. Returns one row with lease_token, or no row when nothing is claimable: deferred_queues says what a budget holds back. Errors: invalid_argument, forbidden. Writes todos, todo_attempts, queue_marks, and in budgeted queues admission_policies, admission_windows, admission_refusals.';

create or replace function switchboard.claim(p_endpoint_id text, p_id text, p_owner text, p_lease_ttl_seconds integer default null) returns switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_terms claim_terms := claim_terms(p_endpoint_id, 'claim', p_owner, null, p_lease_ttl_seconds);
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform pin_policies(v_terms.endpoint_id);
    end if;
    return claim_by_id(coalesce(v_terms.endpoint_id, scope(p_endpoint_id)), p_id, v_terms);
end $$;
comment on function switchboard.claim(text, text, text, integer) is
'Claims one todo under a lease. Arguments and lease as claim_next. Errors: not_found; conflict: not claimable now, assigned to somebody else, or being claimed; forbidden: its queue is no longer granted; deferred: its queue is over budget; invalid_argument. Writes todos, todo_attempts, admission_policies, admission_windows.';

create or replace function switchboard.claim_by_id(p_endpoint_id uuid, p_id text, p_terms switchboard.claim_terms) returns switchboard.todo
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_row       todos;
    v_at        timestamptz;
    v_admission jsonb;
    v_todo      todo;
begin
    if p_terms.endpoint_id is null and exists (select from todos t where t.endpoint_id = p_endpoint_id and t.id = as_uuid(p_id) and t.queue <> 'quarantine') then
        perform refuse('conflict', 'the endpoint is revoked or expired: nothing on it can be claimed');
    end if;
    v_row := lock_claimable(p_endpoint_id, as_uuid(p_id), p_terms.at);
    for v_try in 1 .. 3 loop  -- pending, but locked: perhaps by a doorbell, which is gone at once
        exit when v_row.id is not null
            or not exists (select from todos t where t.endpoint_id = p_endpoint_id and t.id = as_uuid(p_id) and case t.state when 'pending' then true else false end);
        perform pg_sleep(0.002);
        v_row := lock_claimable(p_endpoint_id, as_uuid(p_id), p_terms.at);
    end loop;
    if v_row.id is null or v_row.queue = 'quarantine' then  -- absent, not claimable, or locked by somebody: a claim waits for nobody
        perform refuse_todo(p_endpoint_id, p_id);
    elsif v_row.assignee <> p_terms.owner then
        perform refuse_todo(p_endpoint_id, p_id);
    end if;
    perform check_queue(v_row.queue, p_terms.queues);
    if v_row.queue = any (p_terms.budgeted) then
        select a.* into v_at, v_admission from admit_claim(p_endpoint_id, v_row.queue, v_row.state = 'claimed') a;
        p_terms.at := coalesce(v_at, p_terms.at);
    end if;
    v_todo := take(p_terms, v_row.id);
    v_todo.admission := v_admission;
    return v_todo;
end $$;
comment on function switchboard.claim_by_id(uuid, text, switchboard.claim_terms) is 'Locks one todo without waiting, checks that it is claimable by these terms and admitted by the policy of its queue, and takes it; else not_found, conflict or deferred.';

create or replace function switchboard.refuse_todo(p_endpoint_id uuid, p_id text) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_state todo_state;
    v_at    timestamptz;
begin
    select t.state, t.due_at into v_state, v_at
    from todos t where t.endpoint_id = p_endpoint_id and t.id = as_uuid(p_id) and t.queue <> 'quarantine';
    if not found then
        perform refuse('not_found', 'there is no such todo here: list_todos shows what there is');
    end if;
    perform refuse('conflict',
        case v_state
            when 'pending' then 'the todo is pending, or assigned to somebody else: claim it before you change it, or take another with claim_next'
            when 'claimed' then 'the todo is held under a lease that is not this caller''s: take another with claim_next'
            when 'done' then 'the todo is done: nothing more happens to it'
            else case when v_at is null then 'the todo is a dead letter: only retry brings it back'
                      else 'the todo waits for its retry: claim it after next_retry_at, or retry it now' end
        end, jsonb_strip_nulls(jsonb_build_object('state', v_state, 'next_retry_at', case when v_state = 'failed' then v_at end)));
end $$;
comment on function switchboard.refuse_todo(uuid, text) is
'Classifies a transition that matched no row (SPEC-0003, Error Handling): not_found when the endpoint has no such todo, else conflict with its state. Always raises.';

create or replace function switchboard.claim_batch(
    p_endpoint_id text, p_owner text, p_limit integer, p_queues text[] default null, p_lease_ttl_seconds integer default null)
returns setof switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_limit integer     := check_limit(p_limit, 1, 1000);
    v_terms claim_terms := claim_terms(p_endpoint_id, 'claim_next', p_owner, p_queues, p_lease_ttl_seconds);
    v_todo  todo;
    v_asked text[]      := v_terms.queues;
    v_tight boolean     := v_terms.budgeted && v_terms.queues;
    v_over  boolean;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform pin_policies(v_terms.endpoint_id);
    end if;
    if v_tight then
        v_terms := open_rooms(v_terms);
    end if;
    for v_n in 1 .. v_limit loop
        v_todo := claim_oldest(v_terms);
        exit when v_todo.id is null;
        if v_tight then
            v_over := v_todo.admission is not null;  -- taken over: not one more in flight
            v_todo.admission := null;
        end if;
        if v_terms.rooms ? v_todo.queue then
            v_terms := use_room(v_terms, v_todo.queue, v_over);
            v_todo.admission := headroom(jsonb_populate_record(null::admission_state, v_terms.rooms -> v_todo.queue));
        end if;
        return next v_todo;
        -- what this call took stands dead at the heads until it commits: look from behind it
        if v_todo.assignee is not null and v_todo.claims = 1 then
            v_terms.assigned_from := v_todo.created_at;
        end if;
        if v_n % 50 = 0 then
            perform raise_mark(v_terms.endpoint_id, v_todo.queue);
            v_terms.due_from := coalesce((
                select t.due_at from todos t where t.endpoint_id = v_terms.endpoint_id and t.due_at between v_terms.due_from and v_terms.at
                order by t.due_at limit 1), v_terms.at);
        end if;
    end loop;
    if v_tight then
        perform charge_rooms(v_terms);
    end if;
    if v_tight and v_todo.id is null then  -- less than was asked for
        v_terms.queues := v_asked;
        perform note_held_back(v_terms);
    end if;
end $$;
comment on function switchboard.claim_batch(text, text, integer, text[], integer) is
'Claims up to p_limit todos (1..1000, above is clamped, NULL: 1) as claim_next would one after the other, in one transaction, and of a budgeted queue no more than its budget leaves. Arguments, errors and tables as claim_next.';
