-- Operations of the SQL tests: what a human does, as the shell passes it on.

create table test.tokens (human text primary key, token text not null);
-- A token of the human, made when it is first asked for.
create function test.token(p_human text) returns text language plpgsql as $$
begin
    if not exists (select from test.tokens t where t.human = p_human) then
        insert into test.tokens select p_human, t.token from switchboard.humans h cross join lateral switchboard.create_operator_token(h.id, 'test') t where h.name = p_human;
    end if;
    return (select t.token from test.tokens t where t.human = p_human);
end
$$;

create function test.api(p_operation text, p_path jsonb default '{}', p_body jsonb default null, p_query jsonb default '{}', p_human text default 'Ada', p_shell jsonb default null)
returns jsonb language sql as $$
    select switchboard.call_api(sha256(convert_to(test.token(p_human), 'UTF8')), p_operation,
        jsonb_strip_nulls(jsonb_build_object('path', p_path, 'query', p_query, 'shell', p_shell)) || case when p_body is null then '{}' else jsonb_build_object('body', p_body) end)
$$;

-- The same about the todo, receiver, event or hook of an id.
create function test.api_on(p_operation text, p_id text, p_body jsonb default null, p_human text default 'Ada', p_shell jsonb default null) returns jsonb language sql as $$
    select test.api(p_operation, jsonb_build_object('id', p_id), p_body, p_human => p_human, p_shell => p_shell)
$$;

-- What the shell adds where a secret is made or given.
create function test.sealed(p_token text default 'new', p_form text default 'made') returns jsonb language sql as $$
    select jsonb_build_object('sealed_secret', 'aabb', 'token_digest', encode(test.digest(p_token), 'hex'), 'secret_form', p_form)
$$;

-- All rows of a list, page by page: their ids, or what p_field names.
create function test.pages(p_operation text, p_name text, p_query jsonb default '{}', p_limit int default 2, p_field text default 'id', p_human text default 'Ada') returns text[] language plpgsql as $$
declare
    v_page jsonb;
    v_ids text[] := '{}';
    v_cursor text;
begin
    for i in 1 .. 50 loop
        v_page := test.api(p_operation, p_query => p_query || jsonb_build_object('limit', p_limit::text) || case when v_cursor is null then '{}' else jsonb_build_object('cursor', v_cursor) end, p_human => p_human);
        if v_page ? 'error' then
            raise exception '%', v_page;
        end if;
        v_ids := v_ids || array(select r ->> p_field from jsonb_array_elements(v_page -> p_name) r);
        v_cursor := v_page ->> 'next_cursor';
        if v_cursor is null then
            return v_ids;
        end if;
    end loop;
    raise exception 'a list without an end: %', p_operation;
end
$$;
