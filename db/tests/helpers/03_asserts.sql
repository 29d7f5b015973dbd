-- Assertions that pgTAP lacks.

-- What a statement does: NULL when it succeeds, else {sqlstate, message, detail, hint}; its effects are undone when it fails.
create function test.error_of(p_sql text) returns jsonb language plpgsql as $$
declare
    v_state text;
    v_message text;
    v_detail text;
    v_hint text;
begin
    execute p_sql;
    return null;
exception when others then
    get stacked diagnostics v_state = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail, v_hint = pg_exception_hint;
    return jsonb_build_object('sqlstate', v_state, 'message', v_message, 'detail', v_detail, 'hint', v_hint);
end
$$;

-- What a query does, in one word or two: its first row as text, `no row`, or its SQLSTATE.
create function test.outcome(p_sql text) returns text language plpgsql as $$
declare
    v_row record;
begin
    execute p_sql into v_row;
    return coalesce(array_to_string(array(select value from jsonb_each_text(to_jsonb(v_row))), ' '), 'no row');
exception when others then
    return sqlstate;
end
$$;

-- A product error as callers know it: SQLSTATE p_sqlstate, DETAIL a JSON object that holds p_detail, a message without any id.
create function test.refused(p_sql text, p_sqlstate text, p_name text, p_detail jsonb default '{}') returns text language plpgsql as $$
declare
    v_error jsonb := test.error_of(p_sql);
    v_detail jsonb;
begin
    begin
        v_detail := nullif(v_error ->> 'detail', '')::jsonb;
    exception when others then
        v_detail := to_jsonb('DETAIL is not JSON'::text);
    end;
    return tap.ok(
        v_error is not null
            and v_error ->> 'sqlstate' = p_sqlstate
            and jsonb_typeof(v_detail) = 'object' and v_detail @> p_detail
            and v_error ->> 'message' <> ''
            and v_error ->> 'message' !~ '[0-9a-f]{8}-[0-9a-f]{4}-',
        p_name)
        || case when v_error ->> 'sqlstate' is not distinct from p_sqlstate and v_detail @> p_detail then ''
            else E'\n' || tap.diag(format('wanted: %s %s', p_sqlstate, p_detail), E'\n', format('  seen: %s', coalesce(v_error::text, 'no error'))) end;
end
$$;

create function test.not_found(p_sql text, p_name text) returns text language sql as $$ select test.refused(p_sql, 'SB404', p_name) $$;
create function test.conflict(p_sql text, p_name text) returns text language sql as $$ select test.refused(p_sql, 'SB409', p_name) $$;
create function test.forbidden(p_sql text, p_name text) returns text language sql as $$ select test.refused(p_sql, 'SB403', p_name) $$;
create function test.invalid(p_sql text, p_field text, p_name text) returns text language sql as $$
    select test.refused(p_sql, 'SB400', p_name, jsonb_build_object('field', p_field))
$$;

-- The rows of a query as a jsonb array, for comparing sets whose column types do not matter.
create function test.rows(p_sql text) returns jsonb language plpgsql as $$
declare
    v_rows jsonb;
begin
    execute format('select coalesce(jsonb_agg(to_jsonb(r)), ''[]'') from (%s) r', p_sql) into v_rows;
    return v_rows;
end
$$;

-- Total and top-level figures of EXPLAIN (ANALYZE, BUFFERS): {buffers, nodes, indexes}. p_sql is executed.
create function test.plan_of(p_sql text) returns jsonb language plpgsql as $$
declare
    v_plan json;
begin
    execute 'explain (analyze, buffers, timing off, summary off, format json) ' || p_sql into v_plan;
    return jsonb_build_object(
        'buffers', (v_plan #>> '{0,Plan,Shared Hit Blocks}')::int + (v_plan #>> '{0,Plan,Shared Read Blocks}')::int,
        'nodes', jsonb_path_query_array(v_plan::jsonb, 'strict $.**."Node Type"'),
        'indexes', jsonb_path_query_array(v_plan::jsonb, 'strict $.**."Index Name"'));
end
$$;
