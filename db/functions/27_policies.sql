-- Policies: who sets, clears and reads the budget of a queue (SPEC-0030). What a budget does is in functions/admission.
--
-- A policy belongs to one queue of one endpoint and is replaced as a whole. Its owner sets it: the human, at a prompt,
-- over REST or on the command line; or, when its grant names the verb, the agent or the database login of that
-- endpoint, for which its human answers. Every change is in the audit, which outlives the policy. Setting what is
-- set already changes nothing. Redefining the window counts anew, since what is used belongs to the instant at
-- which its window began.
-- Who sets or clears locks the endpoint's row, and writes that of admission_changes: a claimer above READ COMMITTED
-- with an older snapshot has that one locked, or fails on it (pin_policies). Then the policy, which waits for the
-- claim that is at its gate. Then what is owed: a queue that is shut now owes a wake, one that opened pays it.

create or replace function switchboard.policy_json(p_policy switchboard.admission_policies) returns jsonb
language sql immutable set search_path = switchboard, pg_temp
as $$
    select case when p_policy.id is not null then jsonb_strip_nulls(jsonb_build_object(
        'max_in_flight', p_policy.max_in_flight, 'max_claims_per_window', p_policy.max_claims_per_window,
        'window', case when p_policy.window_period is not null then jsonb_build_object(
            'period', p_policy.window_period, 'tz', p_policy.window_tz, 'start', p_policy.window_start, 'weekday', p_policy.window_weekday) end)) end
$$;
comment on function switchboard.policy_json(switchboard.admission_policies) is 'A policy as set_admission_policy takes it: {max_in_flight, max_claims_per_window, window: {period, tz, start, weekday}}, without what is not limited; NULL for none.';

create or replace function switchboard.policy_limit(p_policy jsonb, p_field text, p_max integer) returns integer
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_value jsonb := nullif(p_policy -> p_field, 'null');
begin
    if v_value is null then
        return null;
    elsif jsonb_typeof(v_value) = 'number' and v_value::numeric between 0 and p_max and v_value::numeric = trunc(v_value::numeric) then
        return v_value::numeric::integer;
    end if;
    perform refuse_argument('policy.' || p_field, format('must be a whole number from 0 (nothing is claimed) to %s, or left out for no limit', p_max));
    return null;
end $$;
comment on function switchboard.policy_limit(jsonb, text, integer) is 'A limit of a policy document: 0 to p_max; NULL: no limit. Errors: invalid_argument.';

create or replace function switchboard.policy_text(p_window jsonb, p_field text, p_default text, p_form text, p_reason text) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_value jsonb := nullif(p_window -> p_field, 'null');
begin
    if v_value is null and p_default is not null then
        return p_default;
    elsif jsonb_typeof(v_value) is distinct from 'string' or v_value #>> '{}' !~ p_form then
        perform refuse_argument('policy.window.' || p_field, p_reason);
    end if;
    return v_value #>> '{}';
end $$;
comment on function switchboard.policy_text(jsonb, text, text, text, text) is 'A text of a policy''s window that matches p_form, or p_default when it is left out and that is not NULL. Errors: invalid_argument, with p_reason.';

create or replace function switchboard.refuse_unknown_keys(p_document jsonb, p_path text, p_known text[]) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_key text;
begin
    if jsonb_typeof(p_document) is distinct from 'object' then
        perform refuse_argument(p_path, 'must be an object');
    end if;
    select k into v_key from jsonb_object_keys(p_document) k where k <> all (p_known) order by k limit 1;
    if found then
        perform refuse_argument(p_path || '.' || one_line(v_key, 40), 'is not known here: ' || array_to_string(p_known, ', ') || ' are');
    end if;
end $$;
comment on function switchboard.refuse_unknown_keys(jsonb, text, text[]) is 'Refuses (invalid_argument) what is no object, and one with keys other than p_known.';

create or replace function switchboard.checked_policy(p_policy jsonb) returns switchboard.admission_policies
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_row    admission_policies;
    v_window jsonb := nullif(p_policy -> 'window', 'null');
begin
    if pg_column_size(p_policy) > 16384 then  -- not as rendered: 16 KiB of 1e131000 are 130 MB as text
        perform refuse('too_large', 'a policy has at most 16384 bytes: send the limits only', '{"limit": 16384}');
    end if;
    perform refuse_unknown_keys(p_policy, 'policy', '{max_in_flight,max_claims_per_window,window}');
    v_row.max_in_flight := policy_limit(p_policy, 'max_in_flight', 10000);
    v_row.max_claims_per_window := policy_limit(p_policy, 'max_claims_per_window', 1000000);
    if num_nonnulls(v_row.max_in_flight, v_row.max_claims_per_window) = 0 then
        perform refuse_argument('policy', 'must limit something: max_in_flight, max_claims_per_window, or both');
    elsif (v_row.max_claims_per_window is null) <> (v_window is null) then
        perform refuse_argument('policy.window', 'and max_claims_per_window belong together: give both, or neither');
    elsif v_window is null then
        return v_row;
    end if;
    perform refuse_unknown_keys(v_window, 'policy.window', '{period,tz,start,weekday}');
    v_row.window_period := policy_text(v_window, 'period', null, '^(hour|day|week)$', 'must be hour, day or week');
    v_row.window_start := policy_text(v_window, 'start', '00:00', '^([01][0-9]|2[0-3]):[0-5][0-9]$', 'must be a local time, HH:MM from 00:00 to 23:59');
    if v_row.window_period = 'week' then
        v_row.window_weekday := policy_text(v_window, 'weekday', 'Mon', '^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)$', 'must be Mon, Tue, Wed, Thu, Fri, Sat or Sun');
    elsif nullif(v_window -> 'weekday', 'null') is not null then
        perform refuse_argument('policy.window.weekday', 'is for weeks only: leave it out');
    end if;
    v_row.window_tz := known_zone(policy_text(v_window, 'tz', null, '^[A-Za-z0-9_+/-]{1,64}$', 'must be the name of a time zone, such as America/Los_Angeles'));
    if v_row.window_tz is null then
        perform refuse_argument('policy.window.tz', 'is not a time zone that is known here: select name from pg_timezone_names lists them');
    end if;
    return v_row;
end $$;
comment on function switchboard.checked_policy(jsonb) is
'A policy document as columns, with the zone in its canonical spelling; left out: start 00:00, weekday Mon. Errors: invalid_argument, naming the field; too_large.';

create or replace function switchboard.lock_policy(p_endpoint switchboard.endpoints, p_queue text) returns switchboard.admission_policies
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_row admission_policies;
begin
    insert into admission_changes as c (endpoint_id, changes) values (p_endpoint.id, 1) on conflict (endpoint_id) do update set changes = c.changes + 1;
    select * into v_row from admission_policies p where p.endpoint_id = p_endpoint.id and p.queue = p_queue for no key update;
    return v_row;
end $$;
comment on function switchboard.lock_policy(switchboard.endpoints, text) is 'Notes a change of the budgets of an endpoint whose row is locked, and locks and returns the policy of the queue; NULLs: none. Writes admission_changes.';

create or replace function switchboard.note_policy(p_endpoint_id uuid, p_policy_id uuid, p_queue text, p_human_id uuid, p_actor_endpoint_id uuid, p_before jsonb, p_after jsonb) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    insert into admission_policy_audit (endpoint_id, policy_id, queue, actor_human_id, actor_endpoint_id, action, before, after, at)
    values (p_endpoint_id, p_policy_id, p_queue, p_human_id, p_actor_endpoint_id,
            case when p_before is null then 'create' when p_after is null then 'delete' else 'update' end, p_before, p_after, clock());
    if is_deferred(p_endpoint_id, p_queue, clock()) then
        perform owe_wake(p_endpoint_id, p_queue);
    else
        perform reopen_queue(p_endpoint_id, p_queue);
    end if;
end $$;
comment on function switchboard.note_policy(uuid, uuid, text, uuid, uuid, jsonb, jsonb) is
'What follows a change of a policy: its entry in the audit, and the wake that it owes or pays. Writes admission_policy_audit, and as owe_wake and reopen_queue.';

create or replace function switchboard.write_policy(p_endpoint switchboard.endpoints, p_queue text, p_policy jsonb, p_human_id uuid, p_actor_endpoint_id uuid) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_new admission_policies;
    v_old admission_policies;
    v_row admission_policies;
begin
    perform check_queue(p_queue, p_endpoint.queues);
    v_new := checked_policy(p_policy);
    v_old := lock_policy(p_endpoint, p_queue);
    v_new.id := coalesce(v_old.id, gen_random_uuid());
    if policy_json(v_old) is distinct from policy_json(v_new) then
        insert into admission_policies as p (endpoint_id, id, queue, max_in_flight, max_claims_per_window, window_period, window_tz, window_start, window_weekday,
                                             created_by_human_id, updated_by_human_id, created_at, updated_at)
        values (p_endpoint.id, v_new.id, p_queue, v_new.max_in_flight, v_new.max_claims_per_window, v_new.window_period, v_new.window_tz, v_new.window_start,
                v_new.window_weekday, p_human_id, p_human_id, clock(), clock())
        on conflict (endpoint_id, queue) do update
            set max_in_flight = excluded.max_in_flight, max_claims_per_window = excluded.max_claims_per_window, window_period = excluded.window_period,
                window_tz = excluded.window_tz, window_start = excluded.window_start, window_weekday = excluded.window_weekday,
                updated_by_human_id = excluded.updated_by_human_id, updated_at = excluded.updated_at
        returning * into v_row;
        perform note_policy(p_endpoint.id, v_row.id, p_queue, p_human_id, p_actor_endpoint_id, policy_json(v_old), policy_json(v_row));
    end if;
    return admission_json(p_endpoint, p_queue);
end $$;
comment on function switchboard.write_policy(switchboard.endpoints, text, jsonb, uuid, uuid) is
'set_admission_policy for an endpoint whose row is locked; p_human_id answers for it, p_actor_endpoint_id: the endpoint whose agent or login does it. Returns admission_json. Errors: invalid_argument, forbidden, too_large. Writes admission_changes, admission_policies, admission_policy_audit, admission_owed.';

create or replace function switchboard.drop_policy(p_endpoint switchboard.endpoints, p_queue text, p_human_id uuid, p_actor_endpoint_id uuid) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_old admission_policies := lock_policy(p_endpoint, p_queue);
begin
    if v_old.id is null then
        perform refuse('not_found', 'that queue has no budget here: admission_status shows those there are');
    end if;
    delete from admission_policies p where p.endpoint_id = p_endpoint.id and p.id = v_old.id;
    insert into admission_totals as t (endpoint_id, queue, kind, total) values (p_endpoint.id, p_queue, 'charged', v_old.charged)
    on conflict (endpoint_id, queue, kind) do update set total = t.total + excluded.total;
    perform note_policy(p_endpoint.id, v_old.id, p_queue, p_human_id, p_actor_endpoint_id, policy_json(v_old), null);
    return jsonb_build_object('queue', p_queue, 'cleared', true);
end $$;
comment on function switchboard.drop_policy(switchboard.endpoints, text, uuid, uuid) is
'clear_admission_policy for an endpoint whose row is locked; arguments as write_policy. Errors: not_found. Writes admission_changes, admission_policies, admission_windows, admission_policy_audit, admission_totals, admission_owed.';

create or replace function switchboard.acting_for(p_endpoint switchboard.endpoints, p_actor_human_id uuid, out human_id uuid, out actor_endpoint_id uuid)
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    human_id := p_endpoint.human_id;
    if exists (select from endpoint_logins l where l.login = session_user) then
        actor_endpoint_id := p_endpoint.id;
    elsif p_actor_human_id is null then
        perform acting_owner(null);  -- at a prompt: for members of switchboard_operator
    end if;
    if p_actor_human_id <> p_endpoint.human_id then
        perform refuse('not_found', 'there is no such endpoint: list_endpoints shows them');
    end if;
end $$;
comment on function switchboard.acting_for(switchboard.endpoints, uuid) is
'Who answers for a change of the endpoint, its human, and, when a bound login makes it, the endpoint. p_actor_human_id: who acts; another one than the owner: not_found; NULL: an operator at a prompt, in the owner''s name, else forbidden.';

create or replace function switchboard.set_admission_policy(p_endpoint_id text, p_queue text, p_policy jsonb, p_actor_human_id uuid default null) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_who      record    := acting_for(own_endpoint(p_endpoint_id, 'set_admission_policy', true), p_actor_human_id);
    v_endpoint endpoints := own_endpoint(p_endpoint_id, 'set_admission_policy');  -- not before: only its owner learns that it is revoked
begin
    return write_policy(v_endpoint, p_queue, p_policy, v_who.human_id, v_who.actor_endpoint_id);
end $$;
comment on function switchboard.set_admission_policy(text, text, jsonb, uuid) is
'Sets the budget of a granted queue (SPEC-0030), as a whole. p_policy: {max_in_flight: 0..10000, max_claims_per_window: 0..1000000, window: {period: hour, day or week, tz, start: HH:MM, weekday: Mon..Sun}}, the window with max_claims_per_window only; p_actor_human_id: the owner, who answers for it; NULL: an operator at a prompt, or a bound login. Returns the budget with its status, as admission_json. Errors: not_found, conflict (revoked), forbidden, invalid_argument (field names what is wrong), too_large. Writes admission_changes, admission_policies, admission_policy_audit, admission_owed; may notify todo_ready.';

create or replace function switchboard.clear_admission_policy(p_endpoint_id text, p_queue text, p_actor_human_id uuid default null) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints := own_endpoint(p_endpoint_id, 'clear_admission_policy', true);
    v_who      record    := acting_for(v_endpoint, p_actor_human_id);
begin
    return drop_policy(v_endpoint, p_queue, v_who.human_id, v_who.actor_endpoint_id);
end $$;
comment on function switchboard.clear_admission_policy(text, text, uuid) is
'Removes the budget of a queue, whose work may be claimed at once; the audit stays. Arguments as set_admission_policy. Returns {queue, cleared}. Errors: not_found, also for a queue without a budget; forbidden. Writes admission_changes, admission_policies, admission_windows, admission_policy_audit, admission_totals; may notify todo_ready.';

create or replace function switchboard.on_the_clock(p_at timestamptz, p_tz text) returns text
language plpgsql stable set search_path = switchboard, pg_temp set timezone = 'UTC'
as $$
begin
    if p_at is not null then  -- as admission_window does it: at time zone 'CET' would be without summer time
        p_tz := set_config('TimeZone', p_tz, true);
    end if;
    return to_char(p_at, 'Dy YYYY-MM-DD HH24:MI');
end $$;
comment on function switchboard.on_the_clock(timestamptz, text) is 'p_at as the local clock of the zone p_tz shows it, for people: Mon 2026-03-02 06:30; NULL for NULL. Errors: 22023 for an unknown zone.';

create or replace function switchboard.admission_json(p_endpoint switchboard.endpoints, p_queue text, p_at timestamptz default switchboard.clock()) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_policy admission_policies;
    v_state  admission_state;
begin
    select * into v_policy from admission_policies p where p.endpoint_id = p_endpoint.id and p.queue = p_queue;
    v_state := admission_state(v_policy, p_at);
    return jsonb_build_object('scope', 'endpoint:' || p_endpoint.slug, 'queue', p_queue, 'policy', policy_json(v_policy))
        || case when v_policy.id is null then '{}' else jsonb_strip_nulls(jsonb_build_object(
            'status', v_state.status, 'used', v_state.used, 'max_claims_per_window', v_policy.max_claims_per_window,
            'remaining', case when v_state.used <= v_policy.max_claims_per_window then v_policy.max_claims_per_window - v_state.used when v_state.used is not null then 0 end,
            'in_flight', (select count(*) from todos t where t.endpoint_id = p_endpoint.id and t.queue = p_queue and t.state = 'claimed'),
            'max_in_flight', v_policy.max_in_flight,
            'pending', pending_in(p_endpoint.id, p_queue),
            'window_started_at', v_state.window_start, 'window_resets_at', v_state.window_end,
            'window_resets_local', on_the_clock(v_state.window_end, v_policy.window_tz),
            'next_eligible_at', v_state.next_eligible_at, 'exact', v_state.exact, 'charged', v_policy.charged,
            'granted', case when not p_queue = any (p_endpoint.queues) then false end,
            'created_at', v_policy.created_at, 'updated_at', v_policy.updated_at,
            'updated_by', (select h.name from humans h where h.id = v_policy.updated_by_human_id))) end;
end $$;
comment on function switchboard.admission_json(switchboard.endpoints, text, timestamptz) is
'The budget of a queue and how it stands: {scope, queue, policy (null: none), status, used, max_claims_per_window, remaining, in_flight, max_in_flight, pending, window_started_at, window_resets_at, window_resets_local (on the clock of its zone), next_eligible_at, exact, charged (ever), granted (false: the queue is no longer), created_at, updated_at, updated_by}, without what does not apply. Reads admission_policies, admission_windows, todos, humans.';

create or replace function switchboard.admission_status(p_endpoint_id text, p_queue text default null)
returns table (queue text, status text, used integer, max_claims_per_window integer, remaining integer, in_flight bigint, max_in_flight integer, pending bigint,
               window_period text, window_tz text, window_start text, window_weekday text, window_started_at timestamptz, window_resets_at timestamptz,
               window_resets_local text, next_eligible_at timestamptz, exact boolean, charged bigint, updated_at timestamptz)
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints;
begin
    select * into v_endpoint from endpoints e where e.id = scope(p_endpoint_id, 'admission_status');
    if p_queue is not null and v_endpoint.id is not null then
        perform check_queue(p_queue, v_endpoint.queues);
    end if;
    return query
        select p.queue, r.status, r.used, r.max_claims_per_window, r.remaining, r.in_flight, r.max_in_flight, r.pending,
               p.window_period, p.window_tz, p.window_start, p.window_weekday, r.window_started_at, r.window_resets_at,
               r.window_resets_local, r.next_eligible_at, r.exact, r.charged, r.updated_at
        from admission_policies p cross join lateral jsonb_to_record(admission_json(v_endpoint, p.queue)) r (
            status text, used integer, max_claims_per_window integer, remaining integer, in_flight bigint, max_in_flight integer, pending bigint,
            window_started_at timestamptz, window_resets_at timestamptz, window_resets_local text, next_eligible_at timestamptz, exact boolean,
            charged bigint, updated_at timestamptz)
        where p.endpoint_id = v_endpoint.id and (p_queue is null or p.queue = p_queue)
        order by p.queue;
end $$;
comment on function switchboard.admission_status(text, text) is
'The budgets of the endpoint, or of one queue, and how they stand: status open, window_exhausted, in_flight_full, paused or admission_unavailable; what is used of the claims of this window, what is held, what is pending; when the window began and resets, also on the clock of its zone. No row for a queue without a budget. Errors: forbidden. Reads admission_policies, admission_windows, todos.';

create or replace function switchboard.find_admission(p_scope text, p_actor_human_id uuid) returns switchboard.endpoints
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_row  endpoints;
    v_name text := substring(p_scope from '^endpoint:(.*)$');
begin
    perform acting_owner(p_actor_human_id);
    select * into v_row from endpoints e  -- among their own only: nobody's slug hides an id of theirs
    where (e.slug = v_name or e.id = as_uuid(v_name)) and (p_actor_human_id is null or e.human_id = p_actor_human_id)
    order by e.slug = v_name desc limit 1;
    if not found then
        perform refuse('not_found', 'there is no such scope: it is endpoint:SLUG, of an endpoint of yours');
    end if;
    return v_row;
end $$;
comment on function switchboard.find_admission(text, uuid) is 'The endpoint of a scope, endpoint:<slug or id>, among those of the human (NULL: all, for members of switchboard_operator). Errors: not_found, for foreign and unknown ones alike; forbidden.';

create or replace function switchboard.list_admission(p_actor_human_id uuid default null, p_scope text default null) returns jsonb
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_only uuid := case when p_scope is not null then (find_admission(p_scope, p_actor_human_id)).id end;
begin
    perform acting_owner(p_actor_human_id);
    return coalesce((
        select jsonb_agg(admission_json(e, p.queue) order by e.slug, p.queue)
        from endpoints e join admission_policies p on p.endpoint_id = e.id
        where (p_actor_human_id is null or e.human_id = p_actor_human_id) and (v_only is null or e.id = v_only) and e.revoked_at is null), '[]');
end $$;
comment on function switchboard.list_admission(uuid, text) is
'The budgets of the human''s endpoints (NULL: all), or of one scope, as admission_json. Errors: not_found, forbidden. Reads endpoints, admission_policies and what admission_json reads.';

create or replace function switchboard.get_admission(p_scope text, p_queue text, p_actor_human_id uuid default null) returns jsonb
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints := find_admission(p_scope, p_actor_human_id);
    v_policy   uuid;
begin
    if p_queue is null or p_queue !~ '^[a-z0-9][a-z0-9._-]{0,62}$' then
        perform refuse('not_found', 'there is no such queue: it is one of the endpoint''s');
    end if;
    select p.id into v_policy from admission_policies p where p.endpoint_id = v_endpoint.id and p.queue = p_queue;
    return admission_json(v_endpoint, p_queue) || jsonb_build_object(
        'windows', coalesce((
            select jsonb_agg(jsonb_build_object('window_start', w.window_start, 'used', w.used) order by w.window_start desc)
            from (select * from admission_windows k where k.endpoint_id = v_endpoint.id and k.policy_id = v_policy order by k.window_start desc limit 30) w), '[]'),
        'audit', coalesce((
            select jsonb_agg(jsonb_strip_nulls(jsonb_build_object('at', a.at, 'action', a.action, 'human', h.name, 'endpoint', n.slug)) || jsonb_build_object('before', a.before, 'after', a.after) order by a.at desc, a.id desc)
            from (select * from admission_policy_audit k where k.endpoint_id = v_endpoint.id and k.queue = p_queue order by k.at desc, k.id desc limit 20) a
            left join humans h on h.id = a.actor_human_id left join endpoints n on n.id = a.actor_endpoint_id), '[]'));
end $$;
comment on function switchboard.get_admission(text, text, uuid) is
'The budget of one queue as admission_json (policy null: it has none), with its last 30 windows and the newest 20 entries of its audit. p_scope: endpoint:<slug or id>. Errors: not_found, forbidden. Reads admission_policies, admission_windows, admission_policy_audit, humans, endpoints.';

create or replace function switchboard.put_admission(p_scope text, p_queue text, p_policy jsonb, p_actor_human_id uuid default null) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return set_admission_policy((find_admission(p_scope, p_actor_human_id)).id::text, p_queue, p_policy, p_actor_human_id);
end $$;
comment on function switchboard.put_admission(text, text, jsonb, uuid) is 'set_admission_policy by scope, endpoint:<slug or id>.';

create or replace function switchboard.delete_admission(p_scope text, p_queue text, p_actor_human_id uuid default null) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return clear_admission_policy((find_admission(p_scope, p_actor_human_id)).id::text, p_queue, p_actor_human_id);
end $$;
comment on function switchboard.delete_admission(text, text, uuid) is 'clear_admission_policy by scope, endpoint:<slug or id>.';

create or replace function switchboard.prune_admission(p_limit bigint) returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_windows bigint;
    v_audit   bigint;
begin
    with old as materialized (
        select w.endpoint_id, w.policy_id, w.window_start from admission_windows w
        where w.window_start < clock() - interval '35 days' limit p_limit for update skip locked
    ), gone as (
        delete from admission_windows w using old
        where w.endpoint_id = old.endpoint_id and w.policy_id = old.policy_id and w.window_start = old.window_start returning 1
    )
    select count(*) into v_windows from gone;
    with old as materialized (
        select o.* from endpoints e cross join lateral keep_bounds(e) b cross join lateral (
            select a.endpoint_id, a.id from admission_policy_audit a where a.endpoint_id = e.id and a.at < b.keep_from
            limit greatest(p_limit - v_windows, 1) for update skip locked) o
        limit greatest(p_limit - v_windows, 1)
    ), gone as (
        delete from admission_policy_audit a using old where a.endpoint_id = old.endpoint_id and a.id = old.id returning 1
    )
    select count(*) into v_audit from gone;
    return v_windows + v_audit;
end $$;
comment on function switchboard.prune_admission(bigint) is
'Deletes about p_limit windows of budgets that began more than 35 days ago, and entries of their audit beyond the retention of the endpoint. Returns how many. Writes admission_windows, admission_policy_audit.';
