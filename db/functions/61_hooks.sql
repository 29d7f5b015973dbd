-- Notify hooks: starting, by a signed HTTP call, a consumer that holds no session.
--
-- A transition that makes a todo ready writes, in its own transaction, a row of the outbox for each enabled
-- hook that covers the queue, and says so on switchboard_outbox: the call is made after the commit, or
-- never, and a crash loses nothing. Dispatchers, any number of them, take rows with take_deliveries() and
-- report with settle_delivery(). A row that is taken is due again 15 seconds later, so that one whose
-- dispatcher died is sent again with the same id, and never by two at once; three attempts, 1 s and 5 s
-- (+-20 %) apart. A call whose todo is no longer pending is moot, and so is one whose queue its budget has
-- shut, for which a wake is owed then (functions/reopen). Ten failed deliveries in a row disable a hook and
-- drop what it has waiting; a rotation of its secret enables it again; the stall nudge finds what nobody
-- came for. A hook without a secret sends nothing, one of an inactive endpoint neither.
-- Lock order: todo, hook, outbox row. Who writes to the outbox skips a hook that is being deleted.

create or replace function switchboard.post_wakes(p_endpoint_id uuid, p_queue text, p_ids uuid[], p_reason text) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_now timestamptz := clock();
begin
    insert into notify_deliveries (endpoint_id, id, hook_id, todo_id, queue, reason, due_at, created_at)
    select h.endpoint_id, new_id(v_now), h.id, t.id, t.queue, p_reason, v_now, v_now
    from notify_hooks h join endpoints e on e.id = h.endpoint_id join todos t on t.endpoint_id = h.endpoint_id
    where h.endpoint_id = p_endpoint_id and h.disabled_at is null and h.sealed_secret is not null and p_queue = any (coalesce(h.queues, array[p_queue]))
      and p_queue = any (e.queues) and is_active(e.revoked_at, e.expires_at, v_now) and t.id = any (p_ids) and t.trust_mode <> 'open'
    for key share of h skip locked;  -- one that is being deleted holds up no create and no sweep, and breaks none
    if found then
        perform pg_notify('switchboard_outbox', '');
    end if;
end $$;
comment on function switchboard.post_wakes(uuid, text, uuid[], text) is
'Writes the calls to the hooks that cover the queue, for todos that became ready and pass the sender gate; none for a queue that is not granted, or an endpoint that is not active. p_reason: created, requeued or reopened. Notifies switchboard_outbox. Reads notify_hooks, endpoints, todos; writes notify_deliveries.';

create or replace function switchboard.hook_health(p_hook switchboard.notify_hooks) returns text
language sql immutable set search_path = switchboard, pg_temp
as $$
    select case when p_hook.disabled_at is not null then 'off' when p_hook.sealed_secret is null then 'unsigned' when p_hook.failures > 0 then 'failing' else 'ok' end
$$;
comment on function switchboard.hook_health(switchboard.notify_hooks) is 'How a hook fares: off (disabled after failures), unsigned (it has no secret and sends nothing), failing, ok.';

create or replace function switchboard.check_hook(p_endpoint switchboard.endpoints, p_url text, p_queues text[]) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_queue text;
begin
    if p_url is null or length(p_url) > 2048 or p_url !~ '^https?://[^/?#@\s[:cntrl:]]+([/?][^\s[:cntrl:]#]*)?$' then
        perform refuse_argument('url', 'must be an absolute http or https URL of at most 2048 characters, without user, password and fragment');
    elsif cardinality(p_queues) not between 1 and 32 then
        perform refuse_argument('queues', 'must name 1 to 32 queues, or be left out for all');
    end if;
    foreach v_queue in array coalesce(p_queues, '{}') loop
        perform check_queue(v_queue, p_endpoint.queues);
    end loop;
end $$;
comment on function switchboard.check_hook(switchboard.endpoints, text, text[]) is 'Refuses a malformed URL and queues outside the grant; whether the address may be called is the shell''s question.';

create or replace function switchboard.add_hook(p_endpoint switchboard.endpoints, p_url text, p_queues text[], p_sealed_secret bytea) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_id     uuid;
    v_queues text[] := case when p_queues is not null then array(select distinct q from unnest(p_queues) q order by q) end;
    v_secret bytea  := nullif(p_sealed_secret, '');
begin
    perform check_hook(p_endpoint, p_url, p_queues);
    if (select count(*) from notify_hooks h where h.endpoint_id = p_endpoint.id) >= 5 then
        perform refuse('ceiling_exceeded', 'an endpoint has at most 5 hooks: delete one first', '{"ceiling": 5}');
    end if;
    insert into notify_hooks (endpoint_id, url, queues, sealed_secret, created_at) values (p_endpoint.id, p_url, v_queues, v_secret, clock())
    returning id into v_id;
    return jsonb_build_object('hook_id', v_id, 'url', p_url, 'queues', v_queues, 'signing_secret', case when v_secret is not null then '$secret' end);
end $$;
comment on function switchboard.add_hook(switchboard.endpoints, text, text[], bytea) is 'create_notify_hook for an endpoint whose row is locked, so that the ceiling holds under a race. Writes notify_hooks.';

create or replace function switchboard.create_notify_hook(p_endpoint_id text, p_url text, p_queues text[] default null, p_sealed_secret bytea default null) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return add_hook(own_endpoint(p_endpoint_id, 'create_notify_hook'), p_url, p_queues, p_sealed_secret);
end $$;
comment on function switchboard.create_notify_hook(text, text, text[], bytea) is
'A hook of the endpoint: p_url is called when a todo of p_queues (1 to 32 granted ones, NULL: all) becomes ready. p_sealed_secret: what signs the calls, as the shell sealed it; NULL: the hook sends nothing. Returns hook_id, url, queues, and what the shell fills in: signing_secret. Errors: not_found, conflict, invalid_argument, forbidden, ceiling_exceeded (5). Writes notify_hooks.';

create or replace function switchboard.list_notify_hooks(p_endpoint_id text)
returns table (hook_id uuid, url text, queues text[], enabled boolean, failures integer, disabled_at timestamptz, last_delivered_at timestamptz,
               last_failed_at timestamptz, last_status text, waiting bigint, created_at timestamptz)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select h.id, h.url, h.queues, h.disabled_at is null and h.sealed_secret is not null, h.failures, h.disabled_at, h.last_delivered_at, h.last_failed_at, h.last_status,
           (select count(*) from notify_deliveries d where d.endpoint_id = h.endpoint_id and d.hook_id = h.id and d.due_at is not null), h.created_at
    from notify_hooks h where h.endpoint_id = scope(p_endpoint_id, 'list_notify_hooks') order by h.created_at, h.id
$$;
comment on function switchboard.list_notify_hooks(text) is
'The hooks of the endpoint, oldest first, with their health: failed deliveries in a row, how the last attempt ended, calls that wait; no secrets. Reads notify_hooks, notify_deliveries.';

create or replace function switchboard.turn_hook(p_endpoint switchboard.endpoints, p_hook_id text, p_sealed_secret bytea) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_until timestamptz := clock() + interval '24 hours';
begin
    if not exists (select from notify_hooks h where h.endpoint_id = p_endpoint.id and h.id = as_uuid(p_hook_id)) then
        perform refuse('not_found', 'there is no such hook here: list_notify_hooks shows them');
    elsif coalesce(octet_length(p_sealed_secret), 0) = 0 then
        perform refuse_argument('signing_secret', 'is missing');
    end if;
    update notify_hooks h
    set previous_secret = h.sealed_secret, previous_valid_until = v_until, sealed_secret = p_sealed_secret, failures = 0, disabled_at = null
    where h.endpoint_id = p_endpoint.id and h.id = as_uuid(p_hook_id);
    return jsonb_build_object('hook_id', as_uuid(p_hook_id), 'enabled', true, 'previous_valid_until', v_until, 'signing_secret', '$secret');
end $$;
comment on function switchboard.turn_hook(switchboard.endpoints, text, bytea) is 'rotate_notify_hook for an endpoint whose row is locked.';

create or replace function switchboard.rotate_notify_hook(p_endpoint_id text, p_hook_id text, p_sealed_secret bytea) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return turn_hook(own_endpoint(p_endpoint_id, 'rotate_notify_hook'), p_hook_id, p_sealed_secret);
end $$;
comment on function switchboard.rotate_notify_hook(text, text, bytea) is
'A new secret for a hook, and enables it again if it was disabled; calls are signed with the old one, too, for 24 hours. Returns hook_id, enabled, previous_valid_until, and what the shell fills in. Errors: not_found, conflict, invalid_argument. Writes notify_hooks.';

create or replace function switchboard.drop_hook(p_endpoint switchboard.endpoints, p_hook_id text) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    delete from notify_hooks h where h.endpoint_id = p_endpoint.id and h.id = as_uuid(p_hook_id);
    if not found then
        perform refuse('not_found', 'there is no such hook here: list_notify_hooks shows them');
    end if;
    return jsonb_build_object('hook_id', as_uuid(p_hook_id), 'deleted', true);
end $$;
comment on function switchboard.drop_hook(switchboard.endpoints, text) is 'delete_notify_hook for an endpoint whose row is locked.';

create or replace function switchboard.delete_notify_hook(p_endpoint_id text, p_hook_id text) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return drop_hook(own_endpoint(p_endpoint_id, 'delete_notify_hook'), p_hook_id);
end $$;
comment on function switchboard.delete_notify_hook(text, text) is
'Ends a hook, with what it has waiting and its record of calls. Returns hook_id, deleted. Errors: not_found, conflict. Writes notify_hooks, notify_deliveries.';

create or replace function switchboard.count_notification(p_outcome text, p_n bigint default 1) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    insert into notify_totals as t (shard, type, outcome, total) values (pg_backend_pid() % 64, 'todo.ready', p_outcome, p_n)
    on conflict (shard, type, outcome) do update set total = t.total + excluded.total;
end $$;
comment on function switchboard.count_notification(text, bigint) is 'Adds to the counters of calls to hooks. Writes notify_totals.';

create or replace function switchboard.notify_counts()
returns table (type text, outcome text, total bigint)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select t.type, t.outcome, sum(t.total)::bigint from notify_totals t group by 1, 2 order by 1, 2
$$;
comment on function switchboard.notify_counts() is
'Calls to hooks ever, by type and outcome: delivered, failed, moot, dropped; and how often a hook was disabled. Reads notify_totals.';

create or replace function switchboard.call_body(p_delivery switchboard.notify_deliveries, p_todo switchboard.todos) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'type', 'todo.ready', 'reason', p_delivery.reason, 'todo_id', p_delivery.todo_id, 'queue', p_delivery.queue, 'kind', p_todo.kind,
        'source', p_todo.source, 'summary', one_line(p_todo.title, 200),
        'endpoint', (select e.slug from endpoints e where e.id = p_delivery.endpoint_id), 'attempt', p_todo.attempt, 'created_at', p_todo.created_at))
$$;
comment on function switchboard.call_body(switchboard.notify_deliveries, switchboard.todos) is
'The body of a call (interfaces.md, outbound notify hook). attempt: of the todo so far; summary: its title, text of others.';

create or replace function switchboard.hook_quota(p_hook switchboard.notify_hooks, p_at timestamptz) returns integer
language sql immutable set search_path = switchboard, pg_temp
as $$
    -- 20 at once and 100 a minute after that: no minute sees more than 120
    select least(20, floor(extract(epoch from p_at + interval '12 seconds' - greatest(p_hook.quota_full_at, p_at)) / 0.6))::integer
$$;
comment on function switchboard.hook_quota(switchboard.notify_hooks, timestamptz) is 'How many calls the hook may make at p_at: at most 120 in any minute.';

create or replace function switchboard.hook_room(p_hook_id uuid, p_busy text[]) returns integer
language sql immutable set search_path = switchboard, pg_temp
as $$
    select case when p_busy is null then 100 else 4 - cardinality(array_positions(p_busy, p_hook_id::text)) end
$$;
comment on function switchboard.hook_room(uuid, text[]) is 'How many more calls a dispatcher that makes those of p_busy may make of this hook: 4 at a time, so that a receiver that hangs holds up no other; NULL: no bound.';

create or replace function switchboard.take_deliveries(p_limit integer default 20, p_busy text[] default null) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_now   timestamptz := clock();
    v_left  integer     := check_limit(p_limit, 20, 100);
    v_hook  notify_hooks;
    v_taken jsonb := '[]';
    v_calls jsonb;
begin
    for v_hook in
        select h.* from notify_hooks h join endpoints e on e.id = h.endpoint_id
        where h.disabled_at is null and h.sealed_secret is not null and is_active(e.revoked_at, e.expires_at, v_now) and hook_quota(h, v_now) > 0
          and hook_room(h.id, p_busy) > 0
          and (select d.id from notify_deliveries d  -- not exists: that may become a scan of the whole outbox
               where d.endpoint_id = h.endpoint_id and d.hook_id = h.id and d.due_at <= v_now order by d.due_at limit 1) is not null
        order by h.quota_full_at for no key update of h skip locked
    loop
        exit when v_left <= 0;
        v_calls := take_calls(v_hook, least(v_left, hook_quota(v_hook, v_now), hook_room(v_hook.id, p_busy)), v_now);
        v_left := v_left - jsonb_array_length(v_calls);
        v_taken := v_taken || v_calls;
    end loop;
    return v_taken;
end $$;
comment on function switchboard.take_deliveries(integer, text[]) is
'Takes up to p_limit (1..100) calls that are due, retries first, for the dispatcher that calls it to make at once (p_busy: the hooks of the calls that it is making, one id per call; then no hook gets more than 4 at a time; NULL: no bound): an array of {endpoint_id, id, hook_id, url, sealed_secrets (hex), message_id, attempt, body}. Each comes back 15 seconds later unless settle_delivery says how it ended. At most 120 a minute and hook. Calls whose todo is no longer pending, or whose queue its budget shuts, end as moot. Writes notify_deliveries, notify_hooks, notify_totals, admission_owed.';

create or replace function switchboard.take_calls(p_hook switchboard.notify_hooks, p_limit integer, p_at timestamptz) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_calls jsonb   := '[]';
    v_look  integer := p_limit;
    v_shut  text[]  := deferred_of(p_hook.endpoint_id, null, p_at);
    v_round record;
begin
    for v_n in 1 .. 20 loop
        with old as materialized (  -- retries come first: behind a backlog none would have its second attempt in time
            select d.* from notify_deliveries d
            where d.endpoint_id = p_hook.endpoint_id and d.hook_id = p_hook.id and d.due_at <= p_at and d.attempts > 0
            order by d.due_at limit v_look for no key update skip locked
        ), new as materialized (
            select d.* from notify_deliveries d
            where d.endpoint_id = p_hook.endpoint_id and d.hook_id = p_hook.id and d.due_at <= p_at and d.attempts = 0
            order by d.due_at limit v_look for no key update skip locked
        ), due as materialized (
            select d.endpoint_id, d.id, d.due_at, d.attempts,
                   case when t.state is distinct from 'pending' or t.queue = any (v_shut) then 'moot' when d.attempts >= 3 then 'failed' end as outcome,
                   case when t.state = 'pending' and t.queue = any (v_shut) then t.queue end as kept_back
            from (select * from old union all select * from new) d left join todos t on t.endpoint_id = d.endpoint_id and t.id = d.todo_id
        ), ended as (
            update notify_deliveries d set due_at = null, ended_at = p_at, outcome = due.outcome
            from due where d.endpoint_id = due.endpoint_id and d.id = due.id and due.outcome is not null
            returning d.outcome
        ), taken as (
            update notify_deliveries d set attempts = d.attempts + 1, due_at = p_at + interval '15 seconds'
            from (select * from due where due.outcome is null order by due.attempts = 0, due.due_at limit p_limit - jsonb_array_length(v_calls)) n
            where d.endpoint_id = n.endpoint_id and d.id = n.id
            returning d.*
        )
        select (select jsonb_agg(jsonb_build_object(
                    'endpoint_id', d.endpoint_id, 'id', d.id, 'hook_id', d.hook_id, 'url', p_hook.url, 'attempt', d.attempts,
                    'sealed_secrets', array_remove(array[encode(p_hook.sealed_secret, 'hex'),
                        case when p_hook.previous_valid_until > p_at then encode(p_hook.previous_secret, 'hex') end], null),
                    'message_id', 'msg_' || replace(d.id::text, '-', ''), 'body', call_body(d::notify_deliveries, t)) order by d.id)
                from taken d join todos t on t.endpoint_id = d.endpoint_id and t.id = d.todo_id) as calls,
               (select count(*) from ended e where e.outcome = 'moot') as moot, (select count(*) from ended e where e.outcome = 'failed') as lost,
               array(select distinct due.kept_back from due where due.kept_back is not null) as kept_back
        into v_round;
        v_calls := v_calls || coalesce(v_round.calls, '[]');
        perform owe_wake(p_hook.endpoint_id, k) from unnest(v_round.kept_back) k;  -- shut by a zone that is gone, say, which nobody noticed
        if v_round.moot > 0 then
            perform count_notification('moot', v_round.moot);
        end if;
        for v_i in 1 .. v_round.lost loop  -- the dispatcher of the last attempt never said how it ended
            if note_failure(p_hook.endpoint_id, p_hook.id, p_at, 'timeout') then
                return '[]';  -- disabled: what was taken just now is dropped
            end if;
        end loop;
        exit when v_round.moot + v_round.lost = 0 or jsonb_array_length(v_calls) >= p_limit;
        v_look := 500;  -- what is over hides nothing behind it
    end loop;
    update notify_hooks h set quota_full_at = greatest(h.quota_full_at, p_at) + 0.6 * jsonb_array_length(v_calls) * interval '1 second'
    where h.endpoint_id = p_hook.endpoint_id and h.id = p_hook.id and v_calls <> '[]';
    return v_calls;
end $$;
comment on function switchboard.take_calls(switchboard.notify_hooks, integer, timestamptz) is 'The part of take_deliveries for one hook, whose row is locked and whose quota allows p_limit.';

create or replace function switchboard.note_failure(p_endpoint_id uuid, p_hook_id uuid, p_at timestamptz, p_status text) returns boolean
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_disabled boolean;
    v_dropped  bigint;
begin
    perform count_notification('failed');
    update notify_hooks h
    set failures = h.failures + 1, last_failed_at = p_at, last_status = p_status, disabled_at = case when h.failures + 1 >= 10 then coalesce(h.disabled_at, p_at) end
    where h.endpoint_id = p_endpoint_id and h.id = p_hook_id
    returning h.failures = 10 into v_disabled;
    if v_disabled then
        update notify_deliveries d set due_at = null, ended_at = p_at, outcome = 'dropped'
        where d.endpoint_id = p_endpoint_id and d.hook_id = p_hook_id and d.due_at is not null;
        get diagnostics v_dropped = row_count;
        perform count_notification('disabled'), count_notification('dropped', v_dropped);
    end if;
    return coalesce(v_disabled, false);
end $$;
comment on function switchboard.note_failure(uuid, uuid, timestamptz, text) is
'Counts a failed delivery of a hook; the tenth in a row disables it and drops what waits. Returns whether it was the tenth. Writes notify_hooks, notify_deliveries, notify_totals.';

create or replace function switchboard.settle_delivery(p_endpoint_id text, p_id text, p_attempt integer, p_status text, p_final boolean default false) returns text
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_now timestamptz := clock();
    v_row notify_deliveries;
    v_ok  boolean := p_status = '2xx';
begin
    select * into v_row from notify_deliveries d
    where d.endpoint_id = scope(p_endpoint_id) and d.id = as_uuid(p_id) and d.attempts = p_attempt and d.due_at is not null;
    if not found then  -- taken again since, or ended
        return 'superseded';
    end if;
    perform from notify_hooks h where h.endpoint_id = v_row.endpoint_id and h.id = v_row.hook_id for no key update;  -- the hook before its row
    update notify_deliveries d
    set due_at = case when v_ok or p_final or d.attempts >= 3 then null
                      else v_now + (array[1, 5])[d.attempts] * (0.8 + 0.4 * random()) * interval '1 second' end,
        ended_at = case when v_ok or p_final or d.attempts >= 3 then v_now end,
        outcome = case when v_ok then 'delivered' when p_final or d.attempts >= 3 then 'failed' end
    where d.endpoint_id = v_row.endpoint_id and d.id = v_row.id and d.attempts = p_attempt and d.due_at is not null
    returning * into v_row;
    if not found then
        return 'superseded';
    elsif v_ok then
        update notify_hooks h set failures = 0, last_delivered_at = v_now, last_status = p_status where h.endpoint_id = v_row.endpoint_id and h.id = v_row.hook_id;
        perform count_notification('delivered');
    elsif v_row.outcome = 'failed' then
        perform note_failure(v_row.endpoint_id, v_row.hook_id, v_now, p_status);
    else
        update notify_hooks h set last_failed_at = v_now, last_status = p_status where h.endpoint_id = v_row.endpoint_id and h.id = v_row.hook_id;
    end if;
    return coalesce(v_row.outcome, 'again');
end $$;
comment on function switchboard.settle_delivery(text, text, integer, text, boolean) is
'Says how attempt p_attempt of a call ended. p_status: 2xx, else the class of the answer or why there was none; p_final: another attempt cannot help. Returns delivered, failed, again (a further attempt follows, after 1 s, then 5 s, +-20 %), or superseded (it was taken again meanwhile: nothing changes). The tenth failed delivery in a row disables the hook. Writes notify_deliveries, notify_hooks, notify_totals.';

create or replace function switchboard.prune_deliveries(p_limit bigint) returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_before uuid := new_id(clock() - interval '7 days');  -- volatile: within the query it would be no index condition
    v_count  bigint;
begin
    with old as materialized (
        select o.* from notify_hooks h cross join lateral (
            select d.endpoint_id, d.id from notify_deliveries d
            where d.endpoint_id = h.endpoint_id and d.hook_id = h.id and d.id < v_before
            order by d.id limit p_limit for update skip locked) o
        limit p_limit
    ), gone as (
        delete from notify_deliveries d using old where d.endpoint_id = old.endpoint_id and d.id = old.id returning d.id
    )
    select count(*) into v_count from gone;
    return v_count;
end $$;
comment on function switchboard.prune_deliveries(bigint) is 'Deletes up to p_limit rows of the outbox that are more than 7 days old. Returns how many. Writes notify_deliveries.';
