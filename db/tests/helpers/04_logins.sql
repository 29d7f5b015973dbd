-- Logins of the roles under test. Roles are cluster-wide and test files run side by side: names carry the backend's pid.

-- Makes a login that is a member of p_role; the caller drops nothing, scripts/sql removes the logins with the server.
create function test.login(p_name text, p_role text) returns text language plpgsql as $$
declare
    v_login text := format('test_%s_%s', p_name, pg_backend_pid());
begin
    execute format('create role %I login', v_login);
    execute format('grant %I to %I', p_role, v_login);
    return v_login;
end
$$;

create function test.login_name(p_name text) returns text language sql stable as $$ select format('test_%s_%s', p_name, pg_backend_pid()) $$;

-- What a query of one column gives to that login, its rows as text in a jsonb array, or {"error": sqlstate, …}.
create function test.as_login(p_login text, p_sql text) returns jsonb language plpgsql as $$
declare
    v_result jsonb;
    v_state text;
    v_message text;
    v_detail text;
begin
    execute format('set local session authorization %I', p_login);
    execute format('select coalesce(jsonb_agg(to_jsonb(r)), ''[]'') from (%s) r', p_sql) into v_result;
    reset session authorization;
    return v_result;
exception when others then
    get stacked diagnostics v_state = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail;
    return jsonb_build_object('error', v_state, 'message', v_message, 'detail', v_detail);
end
$$;
