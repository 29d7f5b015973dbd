-- Creating todos.
--
-- A create is idempotent on (endpoint, idempotency key) among live todos: pending, claimed or parked
-- (SPEC-0003, Per-Endpoint Idempotency). The unique index todos_live_key decides, not a look
-- beforehand: insert, on conflict do nothing, then find the live row. It may end between the two, so
-- both are tried again, a bounded number of times; a create never succeeds without a row.
-- A create waits for an uncommitted create of the same key, and for nothing else. A batch inserts in
-- order of key, so that two batches with the same keys cannot wait for each other, and answers in
-- the caller's order. Every new todo rings todo_ready, '<endpoint_id>:<queue>', once a transaction.

create or replace function switchboard.enqueue(p_new switchboard.todos) returns switchboard.created_todo
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_row todos;
begin
    for v_try in 1 .. 20 loop
        insert into todos values (p_new.*)
        on conflict (endpoint_id, idempotency_key)
            where completed_at is null and idempotency_key is not null
            do nothing
        returning * into v_row;
        if found then
            if v_row.queue <> 'quarantine' then
                perform pg_notify('todo_ready', v_row.endpoint_id || ':' || v_row.queue);
            end if;
            return with_created(show(v_row), true);
        end if;
        select * into v_row from todos t
        where t.endpoint_id = p_new.endpoint_id and t.idempotency_key = p_new.idempotency_key
          and t.completed_at is null;
        if found then
            if v_row.queue = 'quarantine' and p_new.event_id is null then  -- a delivery finds what it was; nobody else is shown it
                perform refuse('conflict', 'that idempotency key is taken: use another', '{"field": "idempotency_key"}');
            end if;
            return with_created(show(v_row), false);
        end if;
    end loop;
    perform refuse('unavailable', 'todos with that idempotency key come and go too quickly: try again');
    return null;
end $$;
comment on function switchboard.enqueue(switchboard.todos) is
'Inserts p_new unless a live todo has its key, and returns the one or the other; one that is held in quarantine is returned to deliveries only, for all others it is a conflict. Notifies todo_ready, but for the queue quarantine. Writes todos.';

create or replace function switchboard.with_created(p_todo switchboard.todo, p_created boolean) returns switchboard.created_todo
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_out created_todo;
begin
    select p_todo.*, p_created into v_out;
    return v_out;
end $$;
comment on function switchboard.with_created(switchboard.todo, boolean) is 'A todo with the flag whether this call created it.';

create or replace function switchboard.new_todo(
    p_endpoint switchboard.endpoints, p_at timestamptz, p_trust_mode text, p_queue text, p_title text, p_payload jsonb, p_idempotency_key text,
    p_kind text, p_source text, p_assignee text, p_max_attempts integer, p_ordinal integer default null)
returns switchboard.todos
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_new todos;
begin
    perform check_queue(p_queue, p_endpoint.queues);
    v_new.title := one_line(p_title, 500);
    perform check_text('title', v_new.title, 500, true);
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
    v_new.endpoint_id := p_endpoint.id;  v_new.id := new_id(p_at, p_ordinal);
    v_new.created_at := p_at;            v_new.updated_at := p_at;
    v_new.attempt := 0;                  v_new.claims := 0;             v_new.ring_attempts := 0;
    v_new.max_attempts := coalesce(p_max_attempts, 5);
    v_new.state := 'pending';            v_new.queue := p_queue;        v_new.trust_mode := p_trust_mode;
    v_new.kind := p_kind;                v_new.source := p_source;      v_new.assignee := p_assignee;
    v_new.idempotency_key := p_idempotency_key;
    v_new.payload := coalesce(p_payload, '{}');
    return v_new;
end $$;
comment on function switchboard.new_todo(switchboard.endpoints, timestamptz, text, text, text, jsonb, text, text, text, text, integer, integer) is
'The checked row of a todo to come; raises invalid_argument or forbidden. Stores nothing.';

create or replace function switchboard.creating_endpoint(p_endpoint_id text, p_at timestamptz) returns switchboard.endpoints
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_row endpoints;
begin
    select * into v_row from endpoints e where e.id = scope(p_endpoint_id, 'create_todo');
    if not found then
        perform refuse('not_found', 'there is no such endpoint: check its id');
    elsif not is_active(v_row.revoked_at, v_row.expires_at, p_at) then
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
    v_now timestamptz := clock();
begin
    return enqueue(new_todo(creating_endpoint(p_endpoint_id, v_now), v_now, 'sql', p_queue, p_title, p_payload, p_idempotency_key,
                            p_kind, p_source, p_assignee, p_max_attempts));
end $$;
comment on function switchboard.create_todo(text, text, text, jsonb, text, text, text, text, integer) is
'Creates a pending todo, or returns the live one with the same idempotency key (SPEC-0003, Idempotent Enqueue). p_queue: a granted queue; p_title: cut to 500 characters; p_payload: any JSON but null, 256 KiB; p_idempotency_key: up to 512 bytes; p_assignee: only this owner may claim it; p_max_attempts: 1..100. Returns the todo and created. Errors: not_found, forbidden, invalid_argument, conflict (endpoint not active). Notifies todo_ready. Writes todos.';

create or replace function switchboard.element_todo(p_endpoint switchboard.endpoints, p_at timestamptz, p_element jsonb, p_ordinal integer) returns switchboard.todos
language plpgsql volatile set search_path = switchboard, pg_temp
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
    return new_todo(p_endpoint, p_at, 'sql', p_element ->> 'queue', p_element ->> 'title', p_element -> 'payload',
                    p_element ->> 'idempotency_key', p_element ->> 'kind', p_element ->> 'source', p_element ->> 'assignee',
                    (p_element ->> 'max_attempts')::integer, p_ordinal);
exception when others then  -- again, with the element named
    get stacked diagnostics v_state = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail;
    perform refuse(coalesce((select e.code from error_table() e where e.sqlstate = v_state), 'internal'),
                   format('element %s: %s', p_ordinal, v_message), coalesce(nullif(v_detail, '')::jsonb, '{}') || jsonb_build_object('element', p_ordinal));
    return null;
end $$;
comment on function switchboard.element_todo(switchboard.endpoints, timestamptz, jsonb, integer) is
'The checked row for one element of create_todos; p_ordinal (from 1) keeps the order of the batch and is named in errors.';

create or replace function switchboard.create_todos(p_endpoint_id text, p_todos jsonb)
returns table (id uuid, created boolean)
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_now      timestamptz := clock();
    v_endpoint endpoints   := creating_endpoint(p_endpoint_id, v_now);
    v_rows     todos[];
    v_made     uuid[];
    v_found    created_todo;
    v_ids      uuid[];
    v_i        integer;
begin
    if jsonb_typeof(p_todos) is distinct from 'array' or jsonb_array_length(p_todos) > 10000 then
        perform refuse_argument('todos', 'must be an array of at most 10000 todos');
    end if;
    select array_agg(element_todo(v_endpoint, v_now, e, n::integer) order by n) into v_rows
    from jsonb_array_elements(p_todos) with ordinality s (e, n);
    with made as (
        insert into todos select r.* from unnest(v_rows) r order by r.idempotency_key, r.id  -- ids are in the array's order
        on conflict (endpoint_id, idempotency_key)
            where completed_at is null and idempotency_key is not null
            do nothing
        returning todos.id, todos.queue
    ), rung as (
        select pg_notify('todo_ready', v_endpoint.id || ':' || q.queue) from (select distinct made.queue from made) q
    )
    select coalesce(array_agg(made.id), '{}') into v_made from made where (select count(*) from rung) >= 0;
    v_ids := array(select r.id from unnest(v_rows) r order by r.id);
    for v_i in  -- the ones whose key was taken, again in order of key
        select array_position(v_ids, r.id) from unnest(v_rows) r where not r.id = any (v_made) order by r.idempotency_key, r.id
    loop
        v_found := enqueue(v_rows[v_i]);
        v_ids[v_i] := v_found.id;
        if v_found.created then
            v_made := v_made || v_found.id;
        end if;
    end loop;
    -- of several elements that name one new todo, the first one created it
    return query
        select s.i, s.i = any (v_made) and s.first = s.n
        from (select u.i, u.n, min(u.n) over (partition by u.i) as first from unnest(v_ids) with ordinality u (i, n)) s
        order by s.n;
end $$;
comment on function switchboard.create_todos(text, jsonb) is
'create_todo for an array of up to 10,000 objects whose fields are the arguments of create_todo without p_; one bad element refuses the whole call. Returns id and created in the array''s order; todo_ready rings once per queue. Errors: as create_todo. Writes todos.';

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
    return enqueue(new_todo(v_endpoint, v_now, 'operator', p_queue, p_title, p_payload, p_idempotency_key,
                            p_kind, p_source, p_assignee, p_max_attempts));
end $$;
comment on function switchboard.create_todo_any_endpoint(text, text, text, jsonb, text, text, text, text, integer, uuid) is
'create_todo by a human: trust operator. p_actor_human_id: that human''s endpoints only; NULL: any, for members of switchboard_operator. Errors: as create_todo. Writes todos.';
