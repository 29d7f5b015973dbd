-- The REST interface: what a human does over HTTP.
--
-- api_operations() is the register: method, path, arguments and where each comes from (path, query, a field of
-- the body, or the body as a whole). The shell makes its routes and the OpenAPI document from it and has no code
-- per operation: a new one is a row here and a branch in api_dispatch(). call_api() does a whole call in one
-- round trip, as call_tool() does for agents: authenticate the human, check the arguments against the register,
-- dispatch in one subtransaction, answer as a value. Whatever is reached gets the human whom the token names,
-- so that foreign and unknown are one: the same not_found, word for word.
-- Lists go on from a cursor, the id of the last row; ids are time-ordered, so that a page stays where it was.

create or replace function switchboard.policy_schema() returns jsonb
language sql immutable set search_path = switchboard, pg_temp
as $$
    select '{"type": "object", "additionalProperties": false, "properties": {
        "max_in_flight": {"type": "integer", "minimum": 0, "maximum": 10000},
        "max_claims_per_window": {"type": "integer", "minimum": 0, "maximum": 1000000},
        "window": {"type": "object", "additionalProperties": false, "required": ["period", "tz"], "properties": {
            "period": {"enum": ["hour", "day", "week"]}, "tz": {"type": "string", "description": "an IANA zone"},
            "start": {"type": "string", "description": "HH:MM, 00:00 if left out"}, "weekday": {"enum": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]}}}}}'::jsonb
$$;
comment on function switchboard.policy_schema() is 'The JSON Schema of a policy, for the OpenAPI document; what a policy may be is decided by set_admission_policy.';

create or replace function switchboard.api_operations()
returns table (name text, method text, path text, description text, input jsonb, required text[], answer text, body_limit integer)
language sql immutable set search_path = switchboard, pg_temp
as $$
    with fields (id, scope, queue, result, lease, force) as (
        values ('{"id": {"in": "path", "type": "string"}}'::jsonb,
                '{"scope": {"in": "path", "type": "string", "description": "endpoint: and the slug or id of an endpoint of yours"}}'::jsonb,
                '{"queue": {"in": "path", "type": "string"}}'::jsonb,
                '{"result": {"in": "body", "description": "any JSON but null"}}'::jsonb,
                '{"lease_ttl_seconds": {"in": "body", "type": "integer", "minimum": 1}}'::jsonb,
                '{"force": {"in": "body", "type": "boolean", "description": "although somebody else holds it"}}'::jsonb)
    )
    select t.* from fields f, lateral (values
        ('list_admission', 'GET', '/api/v1/admission', 'The budgets of your endpoints'' queues, with what is used and whether claims go on.',
         '{}'::jsonb, '{}'::text[], 'policies', 0),
        ('get_admission', 'GET', '/api/v1/admission/{scope}/{queue}', 'One budget (policy: null when the queue has none), its status, its last 30 windows and its latest changes.',
         f.scope || f.queue, '{scope,queue}', 'policy', 0),
        ('set_admission', 'PUT', '/api/v1/admission/{scope}/{queue}', 'Set the budget of a queue, all of it: what is left out is not bounded any more.',
         f.scope || f.queue || jsonb_build_object('policy', jsonb_build_object('in', 'whole body', 'type', 'object', 'schema', policy_schema())), '{scope,queue,policy}', 'policy', 16384),
        ('clear_admission', 'DELETE', '/api/v1/admission/{scope}/{queue}', 'Take the budget of a queue away; what was changed when stays on record.',
         f.scope || f.queue, '{scope,queue}', 'cleared', 0),
        ('list_todos', 'GET', '/api/v1/todos', 'Todos of your endpoints, newest first, pending ones oldest first, without payloads. Go on from next_cursor.',
         '{"limit": {"in": "query", "type": "integer", "minimum": 1, "maximum": 200}, "cursor": {"in": "query", "type": "string"}, "queue": {"in": "query", "type": "string"},
           "state": {"in": "query", "enum": ["pending", "claimed", "done", "failed"]}, "endpoint": {"in": "query", "type": "string", "description": "slug or id"}}',
         '{}', 'todos', 0),
        ('get_todo', 'GET', '/api/v1/todos/{id}', 'One todo, whole, with the attempts that ended.', f.id, '{id}', 'todo', 0),
        ('claim', 'POST', '/api/v1/todos/{id}/claim', 'Take a todo yourself, under a lease.', f.id || f.lease, '{id}', 'todo', 65536),
        ('complete', 'POST', '/api/v1/todos/{id}/complete', 'Say that a todo is done.', f.id || f.result || f.force, '{id}', 'todo', 65536),
        ('fail', 'POST', '/api/v1/todos/{id}/fail', 'Say that it failed: retried after a backoff, or a dead letter after the last attempt.', f.id || f.result || f.force, '{id}', 'todo', 65536),
        ('extend', 'POST', '/api/v1/todos/{id}/extend', 'Extend a lease.', f.id || f.lease || f.force, '{id}', 'todo', 65536),
        ('release', 'POST', '/api/v1/todos/{id}/release', 'Give a todo back undone; the attempt is spent.', f.id || f.force, '{id}', 'todo', 65536),
        ('retry', 'POST', '/api/v1/todos/{id}/retry', 'Put a failed todo back to pending with fresh attempts.', f.id, '{id}', 'todo', 65536)
    ) t (name, method, path, description, input, required, answer, body_limit)
$$;
comment on function switchboard.api_operations() is
'The register of the REST operations: method and path, arguments as JSON Schema properties (input) with where each comes from (in: path, query, body, or whole body), which are required, the field an answer has, and how many bytes of body there may be.';

create or replace function switchboard.query_value(p_schema jsonb, p_name text, p_text text) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    case p_schema ->> 'type'
        when 'integer' then
            if p_text !~ '^-?[0-9]{1,9}$' then
                perform refuse_argument(p_name, 'must be of type integer, of at most nine digits');
            end if;
            return to_jsonb(p_text::integer);
        when 'boolean' then
            if p_text not in ('true', 'false') then
                perform refuse_argument(p_name, 'must be true or false');
            end if;
            return to_jsonb(p_text::boolean);
        else return to_jsonb(p_text);
    end case;
end $$;
comment on function switchboard.query_value(jsonb, text, text) is 'A value of a query string as what its schema says it is.';

create or replace function switchboard.checked_request(p_request jsonb, p_input jsonb, p_required text[]) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_whole text := (select k from jsonb_each(p_input) i (k, v) where i.v ->> 'in' = 'whole body');
    v_field record;
    v_args  jsonb := '{}';
begin
    for v_field in
        select s.place, f.key, f.value from (values ('path'), ('query'), ('body')) s (place)
        cross join lateral jsonb_each(case when s.place = 'body' and v_whole is not null then '{}' else coalesce(nullif(p_request -> s.place, 'null'), '{}') end) f
    loop
        if p_input -> v_field.key ->> 'in' is distinct from v_field.place then
            perform refuse_argument(coalesce(nullif(one_line(v_field.key, 40), ''), 'a field'), 'is not an argument of this address: /api/v1/openapi.json lists them');
        end if;
        v_args := v_args || jsonb_build_object(v_field.key, case when v_field.place = 'query'
            then query_value(p_input -> v_field.key, v_field.key, v_field.value #>> '{}') else v_field.value end);
    end loop;
    if v_whole is not null then
        v_args := v_args || jsonb_build_object(v_whole, coalesce(p_request -> 'body', 'null'));
    end if;
    perform check_arguments(v_args, p_input, p_required);
    return v_args;
end $$;
comment on function switchboard.checked_request(jsonb, jsonb, text[]) is
'The arguments of a REST call ({path, query, body}: objects; body may be null) in one object, checked against the register: unknown, misplaced, missing and wrongly typed ones are refused, naming the field (invalid_argument). Ranges are for the functions themselves.';

create or replace function switchboard.own_endpoint_named(p_slug_or_id text, p_human_id uuid) returns uuid
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_id uuid;
begin
    select e.id into v_id from endpoints e
    where e.human_id = p_human_id and (e.slug = p_slug_or_id or e.id = as_uuid(p_slug_or_id)) order by e.slug = p_slug_or_id desc limit 1;
    if v_id is null then
        perform refuse('not_found', 'there is no such endpoint: name one of yours by its slug or id');
    end if;
    return v_id;
end $$;
comment on function switchboard.own_endpoint_named(text, uuid) is 'The endpoint of the human with this slug or id; foreign and unknown ones are not_found alike. Reads endpoints.';

create or replace function switchboard.api_todo(p_todo switchboard.todo, p_whole boolean) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select case when p_whole then whole_json(p_todo, true) else todo_json(p_todo) || jsonb_build_object('payload_bytes', octet_length(p_todo.payload::text)) end
        || jsonb_strip_nulls(jsonb_build_object('endpoint_id', p_todo.endpoint_id, 'admission', p_todo.admission,
               'endpoint', (select e.slug from endpoints e where e.id = p_todo.endpoint_id)))
$$;
comment on function switchboard.api_todo(switchboard.todo, boolean) is 'A todo as its human sees it: with its endpoint, and payload and result when p_whole. Reads endpoints.';

create or replace function switchboard.id_time(p_id uuid) returns timestamptz
language sql immutable set search_path = switchboard, pg_temp
as $$
    select to_timestamp(('x' || left(replace(p_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)
$$;
comment on function switchboard.id_time(uuid) is 'The millisecond for which a time-ordered id was made; what was made with it is not older.';

create or replace function switchboard.pending_page(p_human_id uuid, p_endpoint_id uuid, p_queue text, p_limit integer, p_after uuid)
returns setof switchboard.todos
language sql stable set search_path = switchboard, pg_temp
as $$
    select u.* from (
     select t.* from endpoints e join queue_marks m on m.endpoint_id = e.id cross join lateral (
         select * from todos t
         where t.endpoint_id = m.endpoint_id and t.assignee is null and t.queue = m.queue and t.state = 'pending'
           and t.created_at >= coalesce(id_time(p_after), '-infinity') and (p_after is null or t.id > p_after)
         order by t.created_at, t.id limit p_limit) t
     where e.human_id = p_human_id and e.id = coalesce(p_endpoint_id, e.id) and m.queue = coalesce(p_queue, nullif(m.queue, 'quarantine'))
     union all
     select t.* from endpoints e join todos t on t.endpoint_id = e.id
     where e.human_id = p_human_id and e.id = coalesce(p_endpoint_id, e.id) and t.assignee is not null and t.state = 'pending'
       and (p_queue is null or t.queue = p_queue) and (p_after is null or t.id > p_after)) u
    order by u.created_at, u.id limit p_limit
$$;
comment on function switchboard.pending_page(uuid, uuid, text, integer, uuid) is
'Pending todos of a human''s endpoints (p_endpoint_id: of one), oldest first, beyond the id p_after; p_queue: NULL: all but quarantine. Reads todos, endpoints, queue_marks.';

create or replace function switchboard.api_list_todos(p_human_id uuid, p_args jsonb) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_limit    integer := check_limit((p_args ->> 'limit')::integer, 50, 200);
    v_queue    text    := p_args ->> 'queue';
    v_cursor   uuid    := as_uuid(p_args ->> 'cursor');
    v_endpoint uuid;
    v_todo     todo;
    v_rows     jsonb[] := '{}';
begin
    if p_args ->> 'cursor' is not null and v_cursor is null then
        perform refuse_argument('cursor', 'must be next_cursor of the page before');
    elsif p_args ->> 'endpoint' is not null then
        v_endpoint := own_endpoint_named(p_args ->> 'endpoint', p_human_id);
    end if;
    if p_args ->> 'state' = 'pending' then
        for v_todo in
            select s.* from pending_page(p_human_id, v_endpoint, v_queue, v_limit, v_cursor) t
            cross join lateral with_admission(show(t), pending_admission(t.endpoint_id, array[t.queue], clock())) s
        loop
            v_rows := v_rows || api_todo(v_todo, false);
        end loop;
    else
        for v_todo in select * from list_todos_any_endpoint(v_queue, p_args ->> 'state', v_limit, v_endpoint::text, v_cursor::text, p_human_id) loop
            v_rows := v_rows || api_todo(v_todo, false);
        end loop;
    end if;
    return jsonb_build_object('todos', to_jsonb(v_rows), 'next_cursor', case when cardinality(v_rows) = v_limit then v_rows[v_limit] -> 'id' end);
end $$;
comment on function switchboard.api_list_todos(uuid, jsonb) is 'A page of the human''s todos, and the cursor for the next one (null: there is none). Errors: invalid_argument, not_found (endpoint).';

create or replace function switchboard.api_about_todo(p_human_id uuid, p_operation text, p_args jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_id     text    := p_args ->> 'id';
    v_force  boolean := coalesce((p_args ->> 'force')::boolean, false);
    v_lease  integer := (p_args ->> 'lease_ttl_seconds')::numeric::integer;
    v_result jsonb   := nullif(p_args -> 'result', 'null');
    v_todo   todo;
begin
    case p_operation
        when 'get_todo' then
            return jsonb_build_object('todo', api_todo(get_todo_any_endpoint(v_id, p_human_id), true), 'attempts', coalesce(
                (select jsonb_agg(jsonb_strip_nulls(to_jsonb(a)) order by a.seq) from todo_history_any_endpoint(v_id, p_human_id) a), '[]'));
        when 'claim' then
            v_todo := claim_any_endpoint(v_id, v_lease, p_human_id);
            return jsonb_build_object('todo', api_todo(v_todo, true) - 'admission')
                || case when v_todo.admission is null then '{}' else jsonb_build_object('admission', v_todo.admission) end;
        when 'complete' then v_todo := complete_any_endpoint(v_id, v_result, p_human_id, v_force);
        when 'fail' then v_todo := fail_any_endpoint(v_id, v_result, p_human_id, v_force);
        when 'extend' then v_todo := heartbeat_any_endpoint(v_id, v_lease, p_human_id, v_force);
        when 'release' then v_todo := release_any_endpoint(v_id, p_human_id, v_force);
        when 'retry' then v_todo := retry_any_endpoint(v_id, p_human_id);
    end case;
    return jsonb_build_object('todo', api_todo(v_todo, false));
end $$;
comment on function switchboard.api_about_todo(uuid, text, jsonb) is 'The part of api_dispatch() that is about one todo: the operator twins, for the human.';

create or replace function switchboard.api_dispatch(p_human_id uuid, p_operation text, p_args jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_scope text := p_args ->> 'scope';
    v_queue text := p_args ->> 'queue';
begin
    case p_operation
        when 'list_admission' then return jsonb_build_object('policies', list_admission(p_human_id));
        when 'get_admission' then return get_admission(v_scope, v_queue, p_human_id);
        when 'set_admission' then return put_admission(v_scope, v_queue, p_args -> 'policy', p_human_id);
        when 'clear_admission' then return delete_admission(v_scope, v_queue, p_human_id);
        when 'list_todos' then return api_list_todos(p_human_id, p_args);
        else return api_about_todo(p_human_id, p_operation, p_args);
    end case;
end $$;
comment on function switchboard.api_dispatch(uuid, text, jsonb) is 'Runs one REST operation for the authenticated human; arguments are checked. A plain CASE: no stored text is ever executed.';

create or replace function switchboard.retry_after(p_error jsonb) returns integer
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    case p_error ->> 'code'
        when 'deferred' then  -- without a time only a person can say: look again in a minute
            return greatest(1, coalesce(ceil(extract(epoch from (p_error ->> 'next_eligible_at')::timestamptz - clock()))::integer, 60));
        when 'unavailable' then return 1;
        else return null;
    end case;
end $$;
comment on function switchboard.retry_after(jsonb) is 'Seconds for Retry-After of an error object; NULL: the same call would be refused again.';

create or replace function switchboard.call_api(p_token_digest bytea, p_operation text, p_args jsonb) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_who       record := identify_operator(p_token_digest);
    v_operation record;
    v_args      jsonb;
    v_answer    jsonb;
    v_message   text;
    v_detail    text;
begin
    if v_who.human_id is null then
        return unauthenticated();
    end if;
    perform note_token_use(v_who.token_id, v_who.last_used_at);
    select o.* into v_operation from api_operations() o where o.name = p_operation;
    if not found then
        return error_value('SB404', 'there is nothing at this address: check it', null);
    end if;
    begin
        v_args := checked_request(coalesce(p_args, '{}'), v_operation.input, v_operation.required);
        return api_dispatch(v_who.human_id, p_operation, v_args);
    exception when others then
        get stacked diagnostics v_message = message_text, v_detail = pg_exception_detail;
        v_answer := error_value(sqlstate, v_message, v_detail);
    end;
    if v_answer -> 'error' ->> 'code' = 'deferred' then  -- a claim, all of which was undone
        perform note_refusal(endpoint_of(v_args ->> 'id', v_who.human_id), v_answer -> 'error' ->> 'queue', v_answer -> 'error' ->> 'reason');
    end if;
    return v_answer || jsonb_strip_nulls(jsonb_build_object('retry_after', retry_after(v_answer -> 'error')));
end $$;
comment on function switchboard.call_api(bytea, text, jsonb) is
'One REST call, whole: authenticates the human by the SHA-256 of an operator token, checks the arguments ({path, query, body}: objects) against api_operations(), runs the operation for that human, and returns its answer, or {"error": {code, message, …details}, "retry_after": seconds}. Never raises for errors of the product. Writes operator_tokens, admission_refusals, and what the operation writes.';
