-- REST on todos and budgets: the branches of run_operation() that look at work, and act on it.
--
-- Each takes the human first and answers as the register says. What changes something is an operator twin
-- (functions/operator) or a function on a scope (functions/policies): nothing is decided here. A list reads its
-- page along an index, from the cursor on: find_todos() (functions/search), which the board uses too, and
-- pending_page() for pending todos, which are listed oldest first, in the order of their turn.
-- An endpoint is named by slug or id, and found among the human's own alone.

create or replace function switchboard.api_page(p_name text, p_rows jsonb[], p_cursors text[], p_limit integer) returns jsonb
language sql immutable set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object(p_name, to_jsonb(coalesce(p_rows, '{}')), 'next_cursor', p_cursors[p_limit])
$$;
comment on function switchboard.api_page(text, jsonb[], text[], integer) is
'A page of a list as it is answered: its rows under p_name, and next_cursor, that of the last of p_limit rows; null when there were fewer. p_cursors: one a row.';

create or replace function switchboard.cursor_of(p_at timestamptz, p_id uuid) returns text
language sql stable set search_path = switchboard, pg_temp
as $$
    select (extract(epoch from p_at) * 1000000)::bigint || '.' || p_id
$$;
comment on function switchboard.cursor_of(timestamptz, uuid) is 'The cursor of a row in a list by time and id: microseconds since 1970, and the id.';

create or replace function switchboard.read_cursor(p_cursor text, out at timestamptz, out id uuid)
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    id := as_uuid(substring(p_cursor from '^-?[0-9]{1,17}\.(.{36})$'));
    if id is not null then
        at := timestamptz 'epoch' + split_part(p_cursor, '.', 1)::bigint * interval '1 microsecond';
    elsif p_cursor is not null then
        perform refuse_cursor();
    end if;
end $$;
comment on function switchboard.read_cursor(text) is 'What cursor_of() wrote: time and id; NULLs for NULL. Errors: invalid_argument.';

create or replace function switchboard.refuse_cursor() returns void
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    perform refuse_argument('cursor', 'must be next_cursor of the page before');
end $$;
comment on function switchboard.refuse_cursor() is 'Refuses a cursor that no page gave.';

create or replace function switchboard.time_argument(p_args jsonb, p_field text) returns timestamptz
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_text text := p_args ->> p_field;
begin
    if v_text !~* '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})$' then
        perform refuse_argument(p_field, 'must be a time with its zone, such as 2026-12-31T18:00:00Z');
    end if;
    return v_text::timestamptz;
exception when datetime_field_overflow or invalid_datetime_format or invalid_time_zone_displacement_value then
    perform refuse_argument(p_field, 'must be a time that exists, such as 2026-12-31T18:00:00Z');
    return null;
end $$;
comment on function switchboard.time_argument(jsonb, text) is 'A time among the arguments, as RFC 3339 writes it; NULL when left out. Errors: invalid_argument.';

create or replace function switchboard.texts_argument(p_args jsonb, p_field text) returns text[]
language sql immutable set search_path = switchboard, pg_temp
as $$
    select case when jsonb_typeof(p_args -> p_field) = 'array' then array(select jsonb_array_elements_text(p_args -> p_field)) end
$$;
comment on function switchboard.texts_argument(jsonb, text) is 'A list of texts among the arguments; NULL when left out.';

create or replace function switchboard.own_endpoint_asked(p_args jsonb, p_human_id uuid) returns uuid
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return case when nullif(p_args -> 'endpoint', 'null') is not null then own_endpoint_named(p_args ->> 'endpoint', p_human_id) end;
end $$;
comment on function switchboard.own_endpoint_asked(jsonb, uuid) is 'The endpoint that the argument endpoint names, among the human''s; NULL when it names none. Errors: not_found.';

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
    v_state    text    := p_args ->> 'state';
    v_cursor   uuid    := as_uuid(p_args ->> 'cursor');
    v_endpoint uuid    := own_endpoint_asked(p_args, p_human_id);
    v_todo     todo;
    v_rows     jsonb[] := '{}';
begin
    if p_args ->> 'cursor' is not null and v_cursor is null then
        perform refuse_cursor();
    end if;
    for v_todo in
        select s.* from listed_rows(p_human_id, nullif(p_args ->> 'q', ''), v_endpoint, v_queue, v_state, v_limit, v_cursor) t
        cross join lateral with_admission(show(t), case when t.state = 'pending' then pending_admission(t.endpoint_id, array[t.queue], clock()) end) s
    loop
        v_rows := v_rows || api_todo(v_todo, false);
    end loop;
    return api_page('todos', v_rows, array(select r ->> 'id' from unnest(v_rows) r), v_limit);
end $$;
comment on function switchboard.api_list_todos(uuid, jsonb) is 'A page of the human''s todos, and the cursor for the next one (null: there is none). Errors: invalid_argument, not_found (endpoint).';

create or replace function switchboard.listed_rows(
    p_human_id uuid, p_q text, p_endpoint_id uuid, p_queue text, p_state text, p_limit integer, p_cursor uuid)
returns setof switchboard.todos
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    if p_state = 'pending' and p_q is null then
        return query select * from pending_page(p_human_id, p_endpoint_id, p_queue, p_limit, p_cursor);
    else
        return query select * from find_todos(p_human_id, p_q, p_endpoint_id, p_queue, p_state, p_limit, p_cursor);
    end if;
end $$;
comment on function switchboard.listed_rows(uuid, text, uuid, text, text, integer, uuid) is 'The rows of a page: pending ones oldest first, unless they are searched for (p_q), all others newest first.';

create or replace function switchboard.api_create_todo(p_human_id uuid, p_args jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_created created_todo;
begin
    v_created := create_todo_any_endpoint(own_endpoint_asked(p_args, p_human_id)::text, p_args ->> 'queue', p_args ->> 'title', nullif(p_args -> 'payload', 'null'),
        p_args ->> 'idempotency_key', p_args ->> 'kind', p_args ->> 'source', p_args ->> 'assignee', (p_args ->> 'max_attempts')::numeric::integer, p_human_id);
    return jsonb_build_object('todo', api_todo(get_todo_any_endpoint(v_created.id::text, p_human_id), false), 'created', v_created.created);
end $$;
comment on function switchboard.api_create_todo(uuid, jsonb) is 'create_todo for the human, on an endpoint of theirs: the todo, and whether this call created it.';

create or replace function switchboard.api_attempts(p_id text, p_human_id uuid) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object('attempts', coalesce(jsonb_agg(jsonb_strip_nulls(to_jsonb(a) - 'n') order by a.seq) filter (where a.n <= 100), '[]'), 'more_attempts', count(*) > 100)
    from (select h.*, row_number() over (order by h.seq desc) as n from todo_history_any_endpoint(p_id, p_human_id) h order by h.seq desc limit 101) a
$$;
comment on function switchboard.api_attempts(text, uuid) is 'The last 100 ended attempts of a todo of the human, oldest first, and whether there were more.';

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
            return jsonb_build_object('todo', api_todo(get_todo_any_endpoint(v_id, p_human_id), true)) || api_attempts(v_id, p_human_id);
        when 'claim' then
            v_todo := claim_any_endpoint(v_id, v_lease, p_human_id);
            return jsonb_build_object('todo', api_todo(v_todo, true) - 'admission')
                || case when v_todo.admission is null then '{}' else jsonb_build_object('admission', v_todo.admission) end;
        when 'complete' then v_todo := complete_any_endpoint(v_id, v_result, p_human_id, v_force);
        when 'fail' then v_todo := fail_any_endpoint(v_id, v_result, p_human_id, v_force);
        when 'extend' then v_todo := heartbeat_any_endpoint(v_id, v_lease, p_human_id, v_force);
        when 'release' then v_todo := release_any_endpoint(v_id, p_human_id, v_force);
        when 'retry' then v_todo := retry_any_endpoint(v_id, p_human_id);
        when 'release_quarantined' then v_todo := release_quarantined(v_id, p_human_id);
        when 'discard_quarantined' then v_todo := discard_quarantined(v_id, p_human_id);
    end case;
    return jsonb_build_object('todo', api_todo(v_todo, false));
end $$;
comment on function switchboard.api_about_todo(uuid, text, jsonb) is 'The part of run_operation() that is about one todo: the operator twins, for the human.';

create or replace function switchboard.api_list_admission(p_human_id uuid, p_args jsonb) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_limit    integer := check_limit((p_args ->> 'limit')::integer, 50, 200);
    v_cursor   text[]  := string_to_array(p_args ->> 'cursor', '/');
    v_endpoint uuid    := own_endpoint_asked(p_args, p_human_id);
    v_rows     jsonb[];
    v_cursors  text[];
begin
    if cardinality(v_cursor) <> 2 then
        perform refuse_cursor();
    end if;
    select array_agg(admission_json(k.e, k.queue) order by k.slug, k.queue), array_agg(k.slug || '/' || k.queue order by k.slug, k.queue) into v_rows, v_cursors
    from (select e, e.slug, p.queue from endpoints e join admission_policies p on p.endpoint_id = e.id
          where e.human_id = p_human_id and (v_endpoint is null or e.id = v_endpoint) and e.revoked_at is null
            and (v_cursor is null or (e.slug, p.queue) > (v_cursor[1], v_cursor[2]))
          order by e.slug, p.queue limit v_limit) k;
    return api_page('policies', v_rows, v_cursors, v_limit);
end $$;
comment on function switchboard.api_list_admission(uuid, jsonb) is 'A page of the budgets of the human''s endpoints, by slug and queue, as admission_json. Errors: invalid_argument, not_found (endpoint). Reads endpoints, admission_policies.';

create or replace function switchboard.api_admission(p_human_id uuid, p_operation text, p_args jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_scope text := p_args ->> 'scope';
    v_queue text := p_args ->> 'queue';
begin
    case p_operation
        when 'list_admission' then return api_list_admission(p_human_id, p_args);
        when 'get_admission' then return get_admission(v_scope, v_queue, p_human_id);
        when 'set_admission' then return put_admission(v_scope, v_queue, p_args -> 'policy', p_human_id);
        when 'clear_admission' then return delete_admission(v_scope, v_queue, p_human_id);
    end case;
    return null;
end $$;
comment on function switchboard.api_admission(uuid, text, jsonb) is 'The part of run_operation() that is about budgets.';
