-- Creating todos.
--
-- A create is idempotent on (endpoint, idempotency key) among live todos: pending, claimed or parked
-- (SPEC-0003, Per-Endpoint Idempotency). The unique index todos_live_key decides, not a look
-- beforehand: insert, on conflict do nothing, then find the live row. It may end between the two, so
-- both are tried again, a bounded number of times; a create never succeeds without a row.
-- A create waits for an uncommitted create of the same key, and for nothing else. A batch inserts in
-- order of key, so that two batches with the same keys cannot wait for each other, and answers in
-- the caller's order. Every new todo rings todo_ready, '<endpoint_id>:<queue>', once a transaction, and is
-- written to the outbox of the hooks that cover its queue, unless its budget shuts the queue (functions/reopen). What is plain, almost all there is, is told
-- by one expression; only for the rest are the checks called that know what is wrong.

create or replace function switchboard.checked_title(
    p_queues text[], p_queue text, p_title text, p_payload jsonb, p_idempotency_key text, p_kind text, p_source text, p_assignee text, p_max_attempts integer)
returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_title text := one_line(p_title, 500);
begin
    perform check_queue(p_queue, p_queues);
    perform check_text('title', v_title, 500, true);
    if p_payload is not null then
        perform check_json('payload', p_payload);
    end if;
    if p_idempotency_key = '' or octet_length(p_idempotency_key) > 512 then
        perform refuse_argument('idempotency_key', 'must have 1 to 512 bytes');
    end if;
    perform check_text('kind', p_kind, 128);
    perform check_text('source', p_source, 128);
    perform check_text('assignee', p_assignee, 128);
    if p_max_attempts not between 1 and 100 then
        perform refuse_argument('max_attempts', 'must be 1 to 100');
    end if;
    return v_title;
end $$;
comment on function switchboard.checked_title(text[], text, text, jsonb, text, text, text, text, integer) is
'Checks what a todo is to be made of against the granted queues, and returns its title as it is stored: one line of at most 500 characters. Errors: invalid_argument, forbidden.';

create or replace function switchboard.enqueue(
    p_endpoint_id uuid, p_queues text[], p_at timestamptz, p_trust_mode text, p_queue text, p_title text, p_payload jsonb, p_idempotency_key text,
    p_kind text, p_source text, p_assignee text, p_max_attempts integer, p_event_id uuid default null, p_held boolean default false)
returns switchboard.created_todo
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_todo  created_todo;
    v_row   todos;
    v_queue text := case when p_held then 'quarantine' else p_queue end;
begin
    -- a delivery comes checked: its title and payload are the same for all its targets
    if p_event_id is null and (p_queue = any (p_queues) and p_title ~ '^[!-~]+( [!-~]+)*$' and length(p_title) <= 500
            and pg_column_size(coalesce(p_payload, '{}')) < 200 and octet_length(coalesce(p_payload, '{}')::text) < 130 and coalesce(p_payload <> 'null', true) and num_nonnulls(p_kind, p_source, p_assignee) = 0
            and octet_length(coalesce(p_idempotency_key, 'k')) between 1 and 512 and coalesce(p_max_attempts, 5) between 1 and 100) is not true then
        p_title := checked_title(p_queues, p_queue, p_title, p_payload, p_idempotency_key, p_kind, p_source, p_assignee, p_max_attempts);
    end if;
    for v_try in 1 .. 20 loop
        insert into todos as t (endpoint_id, id, created_at, updated_at, queue, trust_mode, title, payload, idempotency_key, kind, source, assignee, max_attempts, event_id)
        values (p_endpoint_id, new_id(p_at), p_at, p_at, v_queue, p_trust_mode, p_title, coalesce(p_payload, '{}'), p_idempotency_key, p_kind, p_source, p_assignee,
                coalesce(p_max_attempts, 5), p_event_id)
        on conflict (endpoint_id, idempotency_key)
            where completed_at is null and idempotency_key is not null
            do nothing
        returning t.id, t.endpoint_id, t.queue, 'pending', t.kind, t.source, t.title, t.payload, t.assignee, null, null::timestamptz, null, null::timestamptz, 0, t.max_attempts,
            null::timestamptz, false, null::jsonb, t.idempotency_key, t.trust_mode, t.trust_mode not in ('token', 'open'), 0, null::timestamptz, t.event_id, t.created_at, t.updated_at,
            null::timestamptz, 0, true
        into v_todo;
        if v_todo.id is not null then
            if not p_held then
                perform tell_created(p_endpoint_id, v_queue, v_todo.id);
            end if;
            return v_todo;
        end if;
        select * into v_row from todos t
        where t.endpoint_id = p_endpoint_id and t.idempotency_key = p_idempotency_key
          and t.completed_at is null;
        if found then
            if v_row.queue = 'quarantine' and p_event_id is null then  -- a delivery finds what it was; nobody else is shown it
                perform refuse('conflict', 'that idempotency key is taken: use another', '{"field": "idempotency_key"}');
            end if;
            return with_created(show(v_row), false);
        end if;
    end loop;
    perform refuse('unavailable', 'todos with that idempotency key come and go too quickly: try again');
    return null;
end $$;
comment on function switchboard.enqueue(uuid, text[], timestamptz, text, text, text, jsonb, text, text, text, text, integer, uuid, boolean) is
'Makes a todo, created at p_at, unless a live todo of the endpoint has its key, and returns the one or the other; one that is held in quarantine is returned to deliveries only, for all others it is a conflict. p_queues: the granted queues; p_event_id: the delivery it is made of, whose fields are checked already; p_held: in the queue quarantine, which rings nobody. Errors: invalid_argument, forbidden, conflict, unavailable. Notifies todo_ready and the hooks. Writes todos, notify_deliveries.';

create or replace function switchboard.tell_created(p_endpoint_id uuid, p_queue text, p_id uuid) returns void
language plpgsql volatile
as $$
declare
    v_budget boolean;
    v_hooks  boolean;
begin
    select exists (select from switchboard.admission_policies p where p.endpoint_id = p_endpoint_id and p.queue = p_queue),
           exists (select from switchboard.notify_hooks h where h.endpoint_id = p_endpoint_id) into v_budget, v_hooks;
    if v_budget then
        if switchboard.is_deferred(p_endpoint_id, p_queue, switchboard.clock()) then
            perform switchboard.owe_wake(p_endpoint_id, p_queue);
            return;
        end if;
    end if;
    perform pg_notify('todo_ready', p_endpoint_id || ':' || p_queue);
    if v_hooks then
        perform switchboard.post_wakes(p_endpoint_id, p_queue, array[p_id], 'created');
    end if;
end $$;
comment on function switchboard.tell_created(uuid, text, uuid) is
'Wakes whoever waits for a todo that was just created; in a queue that its budget shuts nobody, but a wake is owed (functions/reopen). On the path of every create, so it qualifies names instead of pinning search_path. Notifies todo_ready and the hooks. Reads admission_policies, notify_hooks; writes notify_deliveries, admission_owed.';

create or replace function switchboard.with_created(p_todo switchboard.todo, p_created boolean) returns switchboard.created_todo
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_out created_todo;
begin
    select p_todo.id, p_todo.endpoint_id, p_todo.queue, p_todo.state, p_todo.kind, p_todo.source, p_todo.title, p_todo.payload, p_todo.assignee, p_todo.owner,
           p_todo.lease_expires_at, p_todo.lease_token, p_todo.claimed_at, p_todo.attempt, p_todo.max_attempts, p_todo.next_retry_at, p_todo.dead_letter,
           p_todo.result, p_todo.idempotency_key, p_todo.trust_mode, p_todo.verified, p_todo.ring_attempts, p_todo.last_ringed_at, p_todo.event_id,
           p_todo.created_at, p_todo.updated_at, p_todo.completed_at, p_todo.claims, p_created into v_out;
    return v_out;
end $$;
comment on function switchboard.with_created(switchboard.todo, boolean) is 'A todo with the flag whether this call created it.';

create or replace function switchboard.creating_endpoint(p_endpoint_id text, p_at timestamptz) returns switchboard.endpoints
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_row endpoints;
begin
    select * into v_row from endpoints e where e.id = scope(p_endpoint_id, 'create_todo');
    if not found then
        perform refuse('not_found', 'there is no such endpoint: check its id');
    elsif not (v_row.revoked_at is null and (v_row.expires_at is null or v_row.expires_at > p_at)) then
        perform refuse('conflict', 'the endpoint is revoked or expired: create on an active one');
    end if;
    return v_row;
end $$;
comment on function switchboard.creating_endpoint(text, timestamptz) is 'The endpoint a create is for: in scope and active, else not_found or conflict.';

create or replace function switchboard.create_todo(
    p_endpoint_id text, p_queue text, p_title text, p_payload jsonb default '{}', p_idempotency_key text default null,
    p_kind text default null, p_source text default null, p_assignee text default null, p_max_attempts integer default 5)
returns switchboard.created_todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_now      timestamptz := clock();
    v_endpoint record;
begin
    select e.id, e.queues into v_endpoint from endpoints e
    where e.id = scope(p_endpoint_id, 'create_todo') and e.revoked_at is null and (e.expires_at is null or e.expires_at > v_now);
    if not found then
        v_endpoint := creating_endpoint(p_endpoint_id, v_now);  -- says why
    end if;
    return enqueue(v_endpoint.id, v_endpoint.queues, v_now, 'sql', p_queue, p_title, p_payload, p_idempotency_key, p_kind, p_source, p_assignee, p_max_attempts);
end $$;
comment on function switchboard.create_todo(text, text, text, jsonb, text, text, text, text, integer) is
'Creates a pending todo, or returns the live one with the same idempotency key (SPEC-0003, Idempotent Enqueue). p_queue: a granted queue; p_title: cut to 500 characters; p_payload: any JSON but null, 256 KiB; p_idempotency_key: up to 512 bytes; p_assignee: only this owner may claim it; p_max_attempts: 1..100. Returns the todo and created. Errors: not_found, forbidden, invalid_argument, conflict (endpoint not active). Notifies todo_ready and the hooks. Writes todos, notify_deliveries.';

create or replace function switchboard.checked_element(p_queues text[], p_element jsonb, p_ordinal integer) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_field   text;
    v_state   text;
    v_message text;
    v_detail  text;
begin
    if jsonb_typeof(p_element) is distinct from 'object' then
        perform refuse_argument('todos', 'must hold objects');
    end if;
    select k into v_field from jsonb_object_keys(p_element) k
    where k not in ('queue', 'title', 'payload', 'idempotency_key', 'kind', 'source', 'assignee', 'max_attempts') limit 1;
    if found then
        perform refuse_argument(one_line(v_field, 40), 'is not a field of a todo');
    end if;
    select k into v_field from jsonb_each(p_element) e (k, v)
    where k <> 'payload' and jsonb_typeof(v) not in ('null', case k when 'max_attempts' then 'number' else 'string' end)
       or k = 'max_attempts' and jsonb_typeof(v) = 'number' and v::text !~ '^[0-9]{1,4}$' limit 1;
    if found then
        perform refuse_argument(v_field, 'has the wrong type');
    end if;
    return p_element || jsonb_build_object('title', checked_title(p_queues, p_element ->> 'queue', p_element ->> 'title', p_element -> 'payload',
        p_element ->> 'idempotency_key', p_element ->> 'kind', p_element ->> 'source', p_element ->> 'assignee', (p_element ->> 'max_attempts')::integer));
exception when others then  -- again, with the element named
    get stacked diagnostics v_state = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail;
    perform refuse(coalesce((select e.code from error_table() e where e.sqlstate = v_state), 'internal'),
                   format('element %s: %s', p_ordinal, v_message), coalesce(nullif(v_detail, '')::jsonb, '{}') || jsonb_build_object('element', p_ordinal));
    return null;
end $$;
comment on function switchboard.checked_element(text[], jsonb, integer) is
'One element of create_todos, checked, with its title as it is stored; p_ordinal (from 1) is named in errors.';

create or replace function switchboard.all_plain(p_queues text[], p_todos jsonb) returns boolean
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return not exists (
        select from jsonb_array_elements(p_todos) e cross join lateral (select case when pg_column_size(e -> 'payload') < 1500 then (e -> 'payload')::text when e ? 'payload' then null else '{}' end) p (payload)
        where (jsonb_typeof(e) = 'object' and e - '{queue,title,payload,idempotency_key}'::text[] = '{}'
            and jsonb_typeof(e -> 'queue') = 'string' and e ->> 'queue' = any (p_queues)
            and jsonb_typeof(e -> 'title') = 'string' and length(e ->> 'title') <= 500 and e ->> 'title' ~ '^[!-~]+( [!-~]+)*$'
            and (not e ? 'idempotency_key' or jsonb_typeof(e -> 'idempotency_key') = 'string' and octet_length(e ->> 'idempotency_key') between 1 and 512)
            and p.payload <> 'null' and is_small(p.payload)) is not true);
end $$;
comment on function switchboard.all_plain(text[], jsonb) is
'Whether every element of create_todos is one that needs no closer look: a granted queue, a title of plain text, at most a key and a small payload besides. One pass over all of them.';

create or replace function switchboard.create_todos(p_endpoint_id text, p_todos jsonb)
returns table (id uuid, created boolean)
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_now      timestamptz := clock();
    v_endpoint endpoints   := creating_endpoint(p_endpoint_id, v_now);
    v_time     text        := left(new_id(v_now)::text, 19);
    v_shut     text[]      := deferred_of(v_endpoint.id, null, v_now);
    v_ids      uuid[];
    v_made     uuid[];
begin
    if jsonb_typeof(p_todos) is distinct from 'array' or jsonb_array_length(p_todos) > 10000 then
        perform refuse_argument('todos', 'must be an array of at most 10000 todos');
    elsif not all_plain(v_endpoint.queues, p_todos) then
        p_todos := (select jsonb_agg(checked_element(v_endpoint.queues, e, n::integer) order by n) from jsonb_array_elements(p_todos) with ordinality s (e, n));
    end if;
    -- ids in the array's order: new_id() with an ordinal, without a call for each
    v_ids := array(select (v_time || to_hex(32768 + n) || substring(gen_random_uuid()::text from 25))::uuid from generate_series(1, jsonb_array_length(p_todos)) n);
    with made as (
        insert into todos as t (endpoint_id, id, created_at, updated_at, trust_mode, queue, title, payload, idempotency_key, kind, source, assignee, max_attempts)
        select v_endpoint.id, r.id, v_now, v_now, 'sql', r.e ->> 'queue', r.e ->> 'title', coalesce(r.e -> 'payload', '{}'), r.e ->> 'idempotency_key',
               r.e ->> 'kind', r.e ->> 'source', r.e ->> 'assignee', coalesce((r.e ->> 'max_attempts')::integer, 5)
        from rows from (unnest(v_ids), jsonb_array_elements(p_todos)) r (id, e) order by r.e ->> 'idempotency_key', r.id
        on conflict (endpoint_id, idempotency_key)
            where completed_at is null and idempotency_key is not null
            do nothing
        returning t.id, t.queue
    ), rung as (
        select case when q.queue = any (v_shut) then owe_wake(v_endpoint.id, q.queue)
                    else pg_notify('todo_ready', v_endpoint.id || ':' || q.queue) end
        from (select distinct made.queue from made) q
    )
    select coalesce(array_agg(made.id), '{}') into v_made from made where (select count(*) from rung) >= 0;
    if exists (select from notify_hooks h where h.endpoint_id = v_endpoint.id) then
        perform post_wakes(v_endpoint.id, q.queue, q.ids, 'created')
        from (select t.queue, array_agg(t.id order by t.id) as ids from todos t
              where t.endpoint_id = v_endpoint.id and t.id = any (v_made) and t.queue <> all (v_shut) group by t.queue) q;
    end if;
    return query select * from settle_batch(v_endpoint, v_now, p_todos, v_ids, v_made);
end $$;
comment on function switchboard.create_todos(text, jsonb) is
'create_todo for an array of up to 10,000 objects whose fields are the arguments of create_todo without p_; one bad element refuses the whole call. Returns id and created in the array''s order; todo_ready rings once per queue. Errors: as create_todo. Writes todos, notify_deliveries.';

create or replace function switchboard.settle_batch(p_endpoint switchboard.endpoints, p_at timestamptz, p_todos jsonb, p_ids uuid[], p_made uuid[])
returns table (id uuid, created boolean)
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_left  record;
    v_found created_todo;
begin
    if cardinality(p_made) < cardinality(p_ids) then
        for v_left in  -- the ones whose key was taken, again in order of key
            select r.n, r.e from rows from (unnest(p_ids), jsonb_array_elements(p_todos)) with ordinality r (id, e, n)
            where not exists (select from unnest(p_made) m where m = r.id) order by r.e ->> 'idempotency_key', r.id
        loop
            v_found := enqueue(p_endpoint.id, p_endpoint.queues, p_at, 'sql', v_left.e ->> 'queue', v_left.e ->> 'title', v_left.e -> 'payload', v_left.e ->> 'idempotency_key',
                v_left.e ->> 'kind', v_left.e ->> 'source', v_left.e ->> 'assignee', (v_left.e ->> 'max_attempts')::integer);
            p_ids[v_left.n] := v_found.id;
            if v_found.created then
                p_made := p_made || v_found.id;
            end if;
        end loop;
    end if;
    -- of several elements that name one new todo, the first one created it
    return query
        select s.i, m.m is not null and s.first = s.n
        from (select u.i, u.n, min(u.n) over (partition by u.i) as first from unnest(p_ids) with ordinality u (i, n)) s
        left join unnest(p_made) m on m.m = s.i
        order by s.n;
end $$;
comment on function switchboard.settle_batch(switchboard.endpoints, timestamptz, jsonb, uuid[], uuid[]) is
'The answer of create_todos, of whose ids p_ids only p_made were inserted: the others find the todo that has their key, or are created after all if it has ended. Writes todos.';

create or replace function switchboard.create_todo_any_endpoint(
    p_endpoint_id text, p_queue text, p_title text, p_payload jsonb default '{}', p_idempotency_key text default null,
    p_kind text default null, p_source text default null, p_assignee text default null, p_max_attempts integer default 5,
    p_actor_human_id uuid default null)
returns switchboard.created_todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_now      timestamptz := clock();
    v_endpoint endpoints;
begin
    perform acting_owner(p_actor_human_id);
    select * into v_endpoint from endpoints e
    where e.id = as_uuid(p_endpoint_id) and (p_actor_human_id is null or e.human_id = p_actor_human_id);
    if not found then
        perform refuse('not_found', 'there is no such endpoint: list_endpoints shows them');
    elsif not is_active(v_endpoint.revoked_at, v_endpoint.expires_at, v_now) then
        perform refuse('conflict', 'the endpoint is revoked or expired: create on an active one');
    end if;
    return enqueue(v_endpoint.id, v_endpoint.queues, v_now, 'operator', p_queue, p_title, p_payload, p_idempotency_key,
                   p_kind, p_source, p_assignee, p_max_attempts);
end $$;
comment on function switchboard.create_todo_any_endpoint(text, text, text, jsonb, text, text, text, text, integer, uuid) is
'create_todo by a human: trust operator. p_actor_human_id: that human''s endpoints only; NULL: any, for members of switchboard_operator. Errors: as create_todo. Writes todos.';
