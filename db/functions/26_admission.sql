-- Admission: a budget per queue that nothing exceeds (SPEC-0030).
--
-- A policy bounds the claims of a queue per window, those in flight, or both. Every claim that commits spends
-- one unit, a retry and a takeover as much as a first attempt, and nothing gives one back: a claim is a
-- dispatch, and so limit times nothing is what is dispatched at most. What is in flight is counted, not kept:
-- everybody who raises it passes the gate, and who lowers it only makes the count too high.
--
-- The gate is the policy's row. admit_claim() writes it, which waits for whoever is claiming in the queue,
-- and looks under that lock; it is written and not only locked since a caller at REPEATABLE READ would get a
-- locked row and go on with an old count. A refusal is an exception: the caller's subtransaction, or its
-- statement, takes the lock, the charge and the candidate back. Before that, without any lock, a claim leaves
-- out what is shut already (heed_budgets), so that 100,000 todos over budget cost an open queue nothing.
-- When only the in-flight cap is hit, a lapsed todo may still be taken over: that adds nothing.
-- A policy that cannot be read admits nothing. A policy that is made while a claim is under way does not see
-- that claim; one that is changed does.
--
-- Whether a queue is deferred is computed when it is asked, never stored; only that a wake is owed is
-- (functions/reopen). Lock order: todo, policy, window, what is owed. claim_batch locks its policies first, by name.

do $$  -- here and not in a migration: the functions that build this type change in the same transaction
begin
    alter type switchboard.claim_terms add attribute budgeted text[], add attribute busy text[], add attribute rooms jsonb;
exception when duplicate_column then null;
end $$;

create or replace function switchboard.admission_state(p_policy switchboard.admission_policies, p_at timestamptz, p_takeover boolean default false)
returns switchboard.admission_state
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_state admission_state;
begin
    v_state.policy_id := p_policy.id;
    v_state.queue := p_policy.queue;
    v_state.max_in_flight := p_policy.max_in_flight;
    v_state.max_claims_per_window := p_policy.max_claims_per_window;
    if p_policy.max_in_flight is not null then
        v_state.in_flight := (select count(*) from todos t where t.endpoint_id = p_policy.endpoint_id and t.queue = p_policy.queue and t.state = 'claimed');
    end if;
    if p_policy.max_claims_per_window is not null then
        begin
            select w.* into v_state.window_start, v_state.window_end
            from admission_window(p_policy.window_period, p_policy.window_tz, p_policy.window_start, p_policy.window_weekday, p_at) w;
            v_state.used := coalesce((select w.used from admission_windows w where w.endpoint_id = p_policy.endpoint_id
                                      and w.policy_id = p_policy.id and w.window_start = v_state.window_start), 0);
        exception when others then  -- its zone is gone, say: nothing is admitted, and every surface says why
            v_state.window_start := null;
        end;
    end if;
    v_state.status := case
        when p_policy.max_in_flight = 0 or p_policy.max_claims_per_window = 0 then 'paused'
        when p_policy.max_claims_per_window is not null and v_state.used is null then 'admission_unavailable'
        when v_state.used >= p_policy.max_claims_per_window then 'window_exhausted'
        when v_state.in_flight - p_takeover::integer >= p_policy.max_in_flight then 'in_flight_full'
        else 'open' end;
    if v_state.status = 'window_exhausted' then
        v_state.next_eligible_at := v_state.window_end;
    elsif v_state.status = 'in_flight_full' then
        v_state.next_eligible_at := (select greatest(min(h.due_at), p_at) from (  -- not along todos_due, past what other queues hold
            select t.due_at from todos t
            where t.endpoint_id = p_policy.endpoint_id and t.queue = p_policy.queue and t.state = 'claimed' offset 0) h);
    end if;
    v_state.exact := case when v_state.status <> 'open' then v_state.status = 'window_exhausted' end;
    return v_state;
end $$;
comment on function switchboard.admission_state(switchboard.admission_policies, timestamptz, boolean) is
'What a policy says at p_at: status open, or why claims are deferred: paused (a limit is 0), admission_unavailable (it cannot be read), window_exhausted, in_flight_full, in this order; what is used; and when it may change: at the end of the window (exact), or with the earliest lease that ends (not exact). p_takeover: for a claim that replaces its own lapsed one. Reads todos, admission_windows.';

create or replace function switchboard.queue_admission(p_endpoint_id uuid, p_queue text, p_at timestamptz) returns switchboard.admission_state
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_policy admission_policies;
begin
    select * into v_policy from admission_policies p where p.endpoint_id = p_endpoint_id and p.queue = p_queue;
    if not found then
        return null;
    end if;
    return admission_state(v_policy, p_at);
end $$;
comment on function switchboard.queue_admission(uuid, text, timestamptz) is 'admission_state of the policy of a queue; NULL: it has none. Reads admission_policies.';

create or replace function switchboard.is_deferred(p_endpoint_id uuid, p_queue text, p_at timestamptz) returns boolean
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return coalesce((queue_admission(p_endpoint_id, p_queue, p_at)).status <> 'open', false);
end $$;
comment on function switchboard.is_deferred(uuid, text, timestamptz) is 'Whether a policy keeps claims in the queue waiting at p_at.';

create or replace function switchboard.deferred_of(p_endpoint_id uuid, p_queues text[], p_at timestamptz) returns text[]
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return array(
        select p.queue from admission_policies p cross join lateral admission_state(p, p_at) s
        where p.endpoint_id = p_endpoint_id and (p_queues is null or p.queue = any (p_queues)) and s.status <> 'open');
end $$;
comment on function switchboard.deferred_of(uuid, text[], timestamptz) is 'Those of p_queues (NULL: all) in which a policy keeps claims waiting at p_at. Reads admission_policies.';

create or replace function switchboard.deferral(p_state switchboard.admission_state) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return jsonb_strip_nulls(jsonb_build_object('queue', p_state.queue, 'reason', p_state.status,
                                                'next_eligible_at', p_state.next_eligible_at, 'exact', p_state.exact));
end $$;
comment on function switchboard.deferral(switchboard.admission_state) is 'A refusal for programs: {queue, reason, next_eligible_at, exact}; the time is left out when only a person can say it.';

create or replace function switchboard.headroom(p_state switchboard.admission_state) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return jsonb_strip_nulls(jsonb_build_object(
        'max_in_flight', p_state.max_in_flight, 'in_flight', p_state.in_flight, 'max_claims_per_window', p_state.max_claims_per_window,
        'used', p_state.used, 'remaining', case when p_state.used > p_state.max_claims_per_window then 0 else p_state.max_claims_per_window - p_state.used end, 'window_resets_at', p_state.window_end));
end $$;
comment on function switchboard.headroom(switchboard.admission_state) is 'What a claim that was admitted learns: {max_in_flight, in_flight, max_claims_per_window, used, remaining, window_resets_at}, itself counted; without what does not apply.';

create or replace function switchboard.refuse_deferred(p_state switchboard.admission_state) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    perform refuse('deferred', case p_state.status
        when 'window_exhausted' then 'the budget of the queue is spent for this window: wait until next_eligible_at, then claim again'
        when 'in_flight_full' then 'as many todos of the queue are held as its budget allows: wait until one ends, at next_eligible_at perhaps, or finish yours'
        when 'paused' then 'the budget of the queue is set to 0: its owner has to raise it'
        else 'the budget of the queue cannot be read, so nothing is admitted: its owner has to set it again, with a time zone that exists' end, deferral(p_state));
end $$;
comment on function switchboard.refuse_deferred(switchboard.admission_state) is 'Raises deferred for a policy that is not open, with queue, reason, next_eligible_at and exact.';

create or replace function switchboard.admit_claim(p_endpoint_id uuid, p_queue text, p_takeover boolean, out at timestamptz, out admission jsonb)
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_policy admission_policies;
    v_state  admission_state;
begin
    for v_try in 1 .. 5 loop  -- one that was cleared and set again while this waited is another row
        update admission_policies p set charged = p.charged + 1
        where p.endpoint_id = p_endpoint_id and p.queue = p_queue returning * into v_policy;
        exit when found;
        if not exists (select from admission_policies p where p.endpoint_id = p_endpoint_id and p.queue = p_queue) then
            return;
        elsif v_try = 5 then
            perform refuse('unavailable');
        end if;
    end loop;
    at := clock();  -- after the wait: a lease begins now
    v_state := admission_state(v_policy, at, p_takeover);
    if v_state.status <> 'open' then
        perform refuse_deferred(v_state);
    end if;
    v_state := charge(v_policy, v_state, at, 1, 1 - p_takeover::integer);
    admission := headroom(v_state);
end $$;
comment on function switchboard.admit_claim(uuid, text, boolean) is
'Locks the policy of the queue, checks it and charges one claim of a todo that the caller has locked. p_takeover: of one whose lapsed lease counts as in flight. Returns the time from which the claim counts, and the headroom left; NULLs: the queue has no policy. Errors: deferred; the caller''s subtransaction or statement undoes what was locked and charged. Writes admission_policies, admission_windows, admission_owed.';

create or replace function switchboard.charge(
    p_policy switchboard.admission_policies, p_state switchboard.admission_state, p_at timestamptz, p_claims integer, p_in_flight integer)
returns switchboard.admission_state
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    if p_state.used is not null then
        insert into admission_windows as w (endpoint_id, policy_id, window_start, used, updated_at)
        values (p_policy.endpoint_id, p_policy.id, p_state.window_start, p_claims, p_at)
        on conflict (endpoint_id, policy_id, window_start) do update set used = w.used + excluded.used, updated_at = excluded.updated_at;
    end if;
    p_state.used := p_state.used + p_claims;
    p_state.in_flight := p_state.in_flight + p_in_flight;
    if p_state.used >= p_state.max_claims_per_window or p_state.in_flight >= p_state.max_in_flight then
        perform owe_wake(p_policy.endpoint_id, p_policy.queue);
    end if;
    return p_state;
end $$;
comment on function switchboard.charge(switchboard.admission_policies, switchboard.admission_state, timestamptz, integer, integer) is
'Charges p_claims to the window of a policy whose lock the caller holds, p_in_flight of them beyond what was in flight, and returns the state after it. When that uses up a limit, a wake is owed. Writes admission_windows, admission_owed.';

create or replace function switchboard.turn_away(p_terms switchboard.claim_terms, p_queue text, p_reason text) returns switchboard.claim_terms
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_reason = 'in_flight_full' and (p_queue = any (p_terms.busy)) is not true then
        p_terms.busy := p_terms.busy || p_queue;
    else
        p_terms.queues := array_remove(p_terms.queues, p_queue);
    end if;
    return p_terms;
end $$;
comment on function switchboard.turn_away(switchboard.claim_terms, text, text) is
'The terms of a claim after the policy of a queue refused: with a full cap only lapsed todos may be taken over there (busy), and when such a one was refused, or for every other reason, nothing is taken there.';

create or replace function switchboard.heed_budgets(p_terms switchboard.claim_terms) returns switchboard.claim_terms
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_state admission_state;
begin
    for v_state in
        select s.* from admission_policies p cross join lateral admission_state(p, p_terms.at) s
        where p.endpoint_id = p_terms.endpoint_id and p.queue = any (p_terms.queues) and s.status <> 'open'
    loop
        p_terms := turn_away(p_terms, v_state.queue, v_state.status);
    end loop;
    return p_terms;
end $$;
comment on function switchboard.heed_budgets(switchboard.claim_terms) is 'Leaves out of a claim the queues that are shut now, without a lock: a hint, for speed; admit_claim decides. Reads admission_policies.';

create or replace function switchboard.take_admitted(
    p_terms switchboard.claim_terms, p_kind text, p_id uuid, p_queue text, p_from timestamptz)
returns switchboard.admitted
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_row    todos;
    v_at     timestamptz;
    v_room   jsonb;
    v_detail text;
    v_taken  admitted;
begin
    if p_kind = 'pool' then
        select h.* into v_row from todos h
        where h.endpoint_id = p_terms.endpoint_id and h.assignee is null and h.queue = p_queue and h.state = 'pending' and h.created_at >= p_from
        order by h.created_at, h.id limit 1 for no key update skip locked;
    else
        v_row := lock_claimable(p_terms.endpoint_id, p_id, p_terms.at);
        if v_row.id is null then
            v_row := lock_claimable(p_terms.endpoint_id, lock_other(p_terms, p_kind, p_queue), p_terms.at);
        end if;
    end if;
    if v_row.id is null then
        return null;
    end if;
    if p_terms.rooms is null then
        select a.* into v_at, v_room from admit_claim(v_row.endpoint_id, v_row.queue, v_row.state = 'claimed') a;
        p_terms.at := coalesce(v_at, p_terms.at);
    elsif v_row.state = 'claimed' then
        v_room := '{"takeover": true}';
    end if;
    v_taken.todo := take(p_terms, v_row.id);
    v_taken.todo.admission := v_room;
    return v_taken;
exception when sqlstate 'SB429' then  -- the lock, the charge and the candidate are given back
    get stacked diagnostics v_detail = pg_exception_detail;
    return (null, v_detail::jsonb ->> 'queue', v_detail::jsonb ->> 'reason')::admitted;
end $$;
comment on function switchboard.take_admitted(switchboard.claim_terms, text, uuid, text, timestamptz) is
'Takes a head of claim_oldest, or what is behind it if that is locked, past the policy of its queue. refused: why the policy of queue (of what is due another one than p_queue, perhaps) did not admit it; nothing is locked or charged then. All NULL: all there is is locked. With rooms (claim_batch) the policies are locked and counted by the caller. Writes todos, todo_attempts, admission_policies, admission_windows, admission_owed.';

create or replace function switchboard.open_rooms(p_terms switchboard.claim_terms) returns switchboard.claim_terms
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_asked  claim_terms := p_terms;
    v_queues text[];
    v_locked uuid[];
    v_state  admission_state;
    v_detail text;
begin
    for v_try in 1 .. 40 loop  -- each time a queue less, or a policy that was replaced while this waited
        p_terms := heed_budgets(v_asked);
        p_terms.rooms := '{}';
        v_queues := array(select b from unnest(p_terms.budgeted) b where b = any (p_terms.queues) order by b);
        begin
            v_locked := lock_policies(p_terms.endpoint_id, v_queues);
            p_terms.at := clock();  -- after the last wait: what is taken and what is charged have one time, and so one window
            for v_state in
                select s.* from admission_policies p cross join lateral admission_state(p, p_terms.at) s
                where p.endpoint_id = p_terms.endpoint_id and p.queue = any (v_queues)
            loop
                if v_state.policy_id <> all (v_locked) then
                    perform refuse('unavailable');
                elsif v_state.status not in ('open', 'in_flight_full') or v_state.in_flight > v_state.max_in_flight then
                    perform refuse_deferred(v_state);
                end if;
                p_terms.rooms := p_terms.rooms || jsonb_build_object(v_state.queue, to_jsonb(v_state) || '{"taken": 0, "added": 0}');
                if v_state.status = 'in_flight_full' and (v_state.queue = any (p_terms.busy)) is not true then
                    p_terms := turn_away(p_terms, v_state.queue, v_state.status);
                end if;
            end loop;
            return p_terms;
        exception  -- which gives the locks back
            when sqlstate 'SB503' then null;
            when sqlstate 'SB429' then
                get stacked diagnostics v_detail = pg_exception_detail;
                v_asked.queues := array_remove(v_asked.queues, v_detail::jsonb ->> 'queue');
        end;
    end loop;
    perform refuse('unavailable');
    return null;
end $$;
comment on function switchboard.open_rooms(switchboard.claim_terms) is
'For claim_batch: locks the policies of its queues, in order of name, and notes what each has left at one instant after the last of these locks; those that are shut are left out and not locked. Errors: unavailable, when policies are replaced all the time. Reads admission_policies.';

create or replace function switchboard.lock_policies(p_endpoint_id uuid, p_queues text[]) returns uuid[]
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_queue  text;
    v_id     uuid;
    v_locked uuid[] := '{}';
begin
    foreach v_queue in array p_queues loop
        select p.id into v_id from admission_policies p where p.endpoint_id = p_endpoint_id and p.queue = v_queue for no key update;
        if found then
            v_locked := v_locked || v_id;
        end if;
    end loop;
    return v_locked;
end $$;
comment on function switchboard.lock_policies(uuid, text[]) is 'Locks the policies of these queues one after the other, and returns their ids: one that is deleted meanwhile is not among them. Reads admission_policies.';

create or replace function switchboard.use_room(p_terms switchboard.claim_terms, p_queue text, p_takeover boolean) returns switchboard.claim_terms
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_state admission_state;
    v_room  jsonb := p_terms.rooms -> p_queue;
begin
    v_state := jsonb_populate_record(null::admission_state, v_room);
    v_state.used := v_state.used + 1;
    v_state.in_flight := v_state.in_flight + case when p_takeover then 0 else 1 end;
    p_terms.rooms := p_terms.rooms || jsonb_build_object(p_queue, to_jsonb(v_state) || jsonb_build_object(
        'taken', (v_room ->> 'taken')::integer + 1, 'added', (v_room ->> 'added')::integer + case when p_takeover then 0 else 1 end));
    if v_state.used >= v_state.max_claims_per_window then
        p_terms := turn_away(p_terms, p_queue, 'window_exhausted');
    elsif v_state.in_flight >= v_state.max_in_flight and (p_queue = any (p_terms.busy)) is not true then
        p_terms := turn_away(p_terms, p_queue, 'in_flight_full');
    end if;
    return p_terms;
end $$;
comment on function switchboard.use_room(switchboard.claim_terms, text, boolean) is 'The terms of a claim_batch after it took one todo of a budgeted queue: one less in its window, and, unless it took over a lapsed one, one slot less.';

create or replace function switchboard.charge_rooms(p_terms switchboard.claim_terms) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_room   record;
    v_policy admission_policies;
    v_state  admission_state;
begin
    for v_room in
        select r.key as queue, r.value as room, (r.value ->> 'taken')::integer as taken, (r.value ->> 'added')::integer as added
        from jsonb_each(p_terms.rooms) r where (r.value ->> 'taken')::integer > 0 order by r.key
    loop
        update admission_policies p set charged = p.charged + v_room.taken
        where p.endpoint_id = p_terms.endpoint_id and p.queue = v_room.queue returning * into strict v_policy;
        v_state := jsonb_populate_record(null::admission_state, v_room.room);
        v_state.used := v_state.used - v_room.taken;
        v_state.in_flight := v_state.in_flight - v_room.added;
        perform charge(v_policy, v_state, p_terms.at, v_room.taken, v_room.added);
    end loop;
end $$;
comment on function switchboard.charge_rooms(switchboard.claim_terms) is 'Charges what a claim_batch took, once a queue. Writes admission_policies, admission_windows, admission_owed.';

create or replace function switchboard.pin_policies(p_endpoint_id uuid) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    perform from admission_changes c where c.endpoint_id = p_endpoint_id for share;
end $$;
comment on function switchboard.pin_policies(uuid) is
'For callers above READ COMMITTED, whose snapshot may be older than a policy: locks the row of admission_changes that whoever sets one writes, so that such a caller fails with 40001 and does not pass the policy by.';

create or replace function switchboard.held_back(p_endpoint_id uuid, p_queues text[], p_owner text, p_at timestamptz)
returns setof switchboard.admission_state
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return query  -- subqueries with limit, since exists may be planned as a hash of all that is pending
    select s.* from admission_policies p cross join lateral admission_state(p, p_at) s
    where p.endpoint_id = p_endpoint_id and p.queue = any (p_queues) and p.queue <> 'quarantine' and s.status <> 'open' and (
        (select true from todos t where t.endpoint_id = p_endpoint_id and t.queue = p.queue and t.state = 'pending' and t.assignee is null limit 1)
        or case when p_owner is null then (select true from todos t where t.endpoint_id = p_endpoint_id and t.queue = p.queue and t.state = 'pending' and t.assignee is not null limit 1)
                else (select true from todos t where t.endpoint_id = p_endpoint_id and t.queue = p.queue and t.state = 'pending' and t.assignee = p_owner limit 1) end
        or (select true from todos t where t.endpoint_id = p_endpoint_id and t.due_at <= p_at and t.queue = p.queue
                     and (t.state = 'failed' or (s.status <> 'in_flight_full' or s.in_flight > s.max_in_flight) and t.attempt < t.max_attempts)
                     and (p_owner is null or t.assignee is null or t.assignee = p_owner) limit 1))
    order by p.queue;
end $$;
comment on function switchboard.held_back(uuid, text[], text, timestamptz) is
'The states of those of p_queues in which p_owner (NULL: anybody) could claim something but for the policy. Reads admission_policies, todos.';

create or replace function switchboard.pending_in(p_endpoint_id uuid, p_queue text) returns bigint
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return (select count(*) from todos t where t.endpoint_id = p_endpoint_id and t.queue = p_queue and t.state = 'pending' and t.assignee is null)
        + (select count(*) from todos t where t.endpoint_id = p_endpoint_id and t.queue = p_queue and t.state = 'pending' and t.assignee is not null);
end $$;
comment on function switchboard.pending_in(uuid, text) is 'How many todos of the queue are pending, assigned ones included; counted, some milliseconds for 100,000. Reads todos.';

create or replace function switchboard.deferred_queues(p_endpoint_id text, p_queues text[] default null, p_owner text default null)
returns table (queue text, reason text, pending bigint, next_eligible_at timestamptz, exact boolean)
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_now      timestamptz := clock();
    v_endpoint endpoints;
    v_queue    text;
begin
    select * into v_endpoint from endpoints e where e.id = scope(p_endpoint_id, 'admission_status');
    if not found or not is_active(v_endpoint.revoked_at, v_endpoint.expires_at, v_now) then
        return;
    end if;
    foreach v_queue in array coalesce(p_queues, '{}') loop
        perform check_queue(v_queue, v_endpoint.queues);
    end loop;
    return query
        select s.queue, s.status,
               pending_in(v_endpoint.id, s.queue), s.next_eligible_at, s.exact
        from held_back(v_endpoint.id, coalesce(p_queues, v_endpoint.queues), p_owner, v_now) s;
end $$;
comment on function switchboard.deferred_queues(text, text[], text) is
'The queues where something could be claimed now but for a policy (SPEC-0030): reason window_exhausted, in_flight_full, paused or admission_unavailable; how many todos are pending; when claims may go on: exactly, or the earliest lease that ends; NULL: when its owner changes it. p_queues: NULL: all granted; p_owner: what that owner may claim, NULL: what anybody may. Errors: forbidden, invalid_argument. Reads admission_policies, todos.';

create or replace function switchboard.deferred_json(p_endpoint_id text, p_queues text[], p_owner text) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select coalesce(jsonb_agg(jsonb_strip_nulls(to_jsonb(d))), '[]') from deferred_queues(p_endpoint_id, p_queues, p_owner) d
$$;
comment on function switchboard.deferred_json(text, text[], text) is 'deferred_queues as the list in the empty answer of claim_next.';

create or replace function switchboard.note_refusal(p_endpoint_id uuid, p_queue text, p_reason text) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    insert into admission_refusals (endpoint_id, queue, reason) values (p_endpoint_id, p_queue, p_reason);
end $$;
comment on function switchboard.note_refusal(uuid, text, text) is 'Counts a claim that a policy refused, for the metrics; never waits. Writes admission_refusals.';

create or replace function switchboard.note_held_back(p_terms switchboard.claim_terms) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    perform note_refusal(p_terms.endpoint_id, s.queue, s.status) from held_back(p_terms.endpoint_id, p_terms.budgeted, p_terms.owner, p_terms.at) s
    where s.queue = any (p_terms.queues);
end $$;
comment on function switchboard.note_held_back(switchboard.claim_terms) is 'Counts a refusal for each queue whose policy made a claim come back with less than was asked for. Writes admission_refusals.';

create or replace function switchboard.fold_refusals() returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_count bigint;
begin
    with gone as (
        delete from admission_refusals r where (r.endpoint_id, r.id) in (
            select k.endpoint_id, k.id from admission_refusals k limit 100000 for update skip locked)
        returning r.endpoint_id, r.queue, r.reason
    ), counted as (
        select g.endpoint_id, g.queue, g.reason, count(*) as n from gone g group by 1, 2, 3 order by 1, 2, 3
    ), added as (
        insert into admission_totals as t (endpoint_id, queue, kind, total) select c.* from counted c
        on conflict (endpoint_id, queue, kind) do update set total = t.total + excluded.total
    )
    select coalesce(sum(c.n), 0) into v_count from counted c;
    return v_count;
end $$;
comment on function switchboard.fold_refusals() is 'Adds the refusals counted since the last time to admission_totals, each exactly once. Returns how many. Writes admission_refusals, admission_totals.';

create or replace function switchboard.pending_admission(p_endpoint_id uuid, p_queues text[], p_at timestamptz) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select coalesce(jsonb_object_agg(p.queue, jsonb_strip_nulls(jsonb_build_object('status', s.status, 'next_eligible_at', s.next_eligible_at, 'exact', s.exact))), '{}')
    from admission_policies p cross join lateral admission_state(p, p_at) s
    where p.endpoint_id = p_endpoint_id and (p_queues is null or p.queue = any (p_queues))
$$;
comment on function switchboard.pending_admission(uuid, text[], timestamptz) is 'What pending todos of budgeted queues (p_queues, NULL: all) show as admission: {queue: {status, next_eligible_at, exact}}. Reads admission_policies.';

create or replace function switchboard.with_admission(p_todo switchboard.todo, p_states jsonb) returns switchboard.todo
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_todo.state = 'pending' then
        p_todo.admission := p_states -> p_todo.queue;
    end if;
    return p_todo;
end $$;
comment on function switchboard.with_admission(switchboard.todo, jsonb) is 'A todo with the admission of its queue from pending_admission(), if it is pending.';
