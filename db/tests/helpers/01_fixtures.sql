-- Fixtures of the SQL tests, in schema test: two humans, two endpoints, todos in any situation of docs/states.md.
-- Every test file runs in a clone of a database that holds these functions (scripts/sql), as a superuser, without a
-- surrounding transaction; nothing has to be cleaned up.

create schema test;
grant usage on schema test to public;

-- The endpoints of the fixture: `a` of Ada, `b` of Bob, both with the queues q, r and inbox; `a2` is Ada's second one.
create table test.endpoints (name text primary key, id text not null, slug text not null, credential text not null, human_id uuid not null);
grant select on test.endpoints to public;

create function test.all_verbs() returns text[] language sql immutable as $$
    select array['list_todos', 'get_todo', 'read_event', 'claim', 'claim_next', 'heartbeat', 'complete', 'fail', 'release', 'retry',
        'create_todo']
$$;

create function test.vend(p_name text, p_human_id uuid, p_queues text[] default '{q,r,inbox}', p_verbs text[] default test.all_verbs())
returns text language plpgsql as $$
declare
    v_endpoint record;
begin
    select * into v_endpoint from switchboard.vend_endpoint(p_human_id, 'test-' || replace(p_name, '_', '-'), p_queues, p_verbs);
    insert into test.endpoints values (p_name, v_endpoint.endpoint_id::text, v_endpoint.slug, v_endpoint.credential, p_human_id);
    return v_endpoint.endpoint_id::text;
end
$$;

create function test.set_up() returns void language plpgsql as $$
declare
    v_ada uuid := (select id from switchboard.create_human('Ada'));
    v_bob uuid := (select id from switchboard.create_human('Bob'));
begin
    perform test.vend('a', v_ada), test.vend('a2', v_ada), test.vend('b', v_bob);
end
$$;

create function test.endpoint(p_name text) returns text language sql stable as $$ select id from test.endpoints where name = p_name $$;
create function test.a() returns text language sql stable as $$ select test.endpoint('a') $$;
create function test.b() returns text language sql stable as $$ select test.endpoint('b') $$;
create function test.human(p_name text) returns uuid language sql stable as $$ select human_id from test.endpoints where name = p_name $$;

-- No todo left: the endpoints as they were vended.
create function test.clear() returns void language plpgsql as $$
begin
    truncate switchboard.todos, switchboard.todo_attempts, switchboard.notify_deliveries, switchboard.queue_stall_nudges, switchboard.admission_owed cascade;
    update switchboard.queue_marks set pending_from = 'epoch', rung_from = 'epoch';
    update switchboard.endpoints set due_from = 'epoch', stalled_queues = null;
end
$$;

-- The empty database again, for isolation specs: theirs share one.
create function test.tear_down() returns void language plpgsql as $$
begin
    truncate switchboard.humans, test.endpoints, switchboard.todo_attempts, switchboard.admission_policy_audit, switchboard.admission_refusals, switchboard.admission_totals, switchboard.delivery_totals, switchboard.notify_totals cascade;
    update switchboard.sweeps set last_run_at = 'epoch';
end
$$;

-- The id of the todo with this title: isolation specs name todos by title, ids differ from run to run.
create function test.titled(p_title text) returns text language sql stable as $$ select id::text from switchboard.todos where title = p_title $$;

-- Elements for create_todos, one a key: braces end a step of an isolation spec.
create function test.keyed(p_title text, variadic p_keys text[]) returns jsonb language sql immutable as $$
    select jsonb_agg(jsonb_build_object('queue', 'q', 'title', p_title, 'idempotency_key', k) order by n) from unnest(p_keys) with ordinality u(k, n)
$$;

-- A canonical id that was never minted.
create function test.unknown() returns text language sql immutable as $$ select '01890000-0000-7000-8000-00000000dead' $$;

-- A new pending todo: its id.
create function test.create(p_endpoint text default 'a', p_queue text default 'q', p_key text default null, p_max_attempts int default 5,
    p_assignee text default null)
returns text language sql as $$
    select (to_jsonb(t) -> 'id') #>> '{}' from switchboard.create_todo(test.endpoint(p_endpoint), p_queue, 'a test', p_idempotency_key => p_key,
        p_max_attempts => p_max_attempts, p_assignee => p_assignee) t
$$;

-- The stored todo as callers see it, with its token, whoever owns it. VOLATILE: it sees what the same statement did before.
create function test.stored(p_id text) returns jsonb language sql as $$
    select to_jsonb(switchboard.show(t, true)) from switchboard.todos t where t.id::text = p_id
$$;

create function test.state(p_id text) returns text language sql as $$ select test.stored(p_id) ->> 'state' $$;

-- The situation of a todo, in the words of docs/states.md: what the state column alone does not tell.
create function test.situation(p_id text) returns text language sql as $$
    select case
        when t.state = 'claimed' and t.lease_expires_at <= switchboard.now() and t.attempt >= t.max_attempts then 'spent'
        when t.state = 'claimed' and t.lease_expires_at <= switchboard.now() then 'lapsed'
        when t.state = 'failed' and t.next_retry_at is null then 'dead'
        when t.state = 'failed' and t.next_retry_at <= switchboard.now() then 'due'
        when t.state = 'failed' then 'parked'
        else t.state::text
    end
    from switchboard.todos r, switchboard.show(r) t where r.id::text = p_id
$$;

-- Every lease is over as of a second ago.
create function test.lapse() returns void language sql as $$
    update switchboard.todos set due_at = switchboard.now() - interval '1 s' where state = 'claimed'
$$;

-- A new todo of endpoint p_endpoint in the given situation, owned by `w1` where it is or was claimed: its id.
-- Moves the clock.
create function test.make(p_situation text, p_endpoint text default 'a', p_queue text default 'q', p_key text default null)
returns text language plpgsql as $$
declare
    v_endpoint text := test.endpoint(p_endpoint);
    v_last boolean := p_situation in ('spent', 'dead');
    v_id text := test.create(p_endpoint, p_queue, p_key, case when v_last then 1 else 5 end);
begin
    if p_situation <> 'pending' then
        perform switchboard.claim(v_endpoint, v_id, 'w1', 60);
    end if;
    case p_situation
        when 'pending', 'claimed' then null;
        when 'lapsed', 'spent' then perform test.pass('61 s');
        when 'parked', 'dead' then perform switchboard.fail(v_endpoint, v_id, 'w1');
        when 'due' then
            perform switchboard.fail(v_endpoint, v_id, 'w1');
            perform test.pass('31 s');
        when 'done' then perform switchboard.complete(v_endpoint, v_id, 'w1');
    end case;
    if test.situation(v_id) is distinct from p_situation then
        raise exception 'the fixture made % where % was asked for', test.situation(v_id), p_situation;
    end if;
    return v_id;
end
$$;

-- The counters wait for every transaction of the cluster that is older than an attempt, and other test files run beside this one.
create function test.settle() returns void language plpgsql as $$
begin
    for n in 1..3000 loop
        exit when not exists (select from switchboard.todo_attempts where xid >= pg_snapshot_xmin(pg_current_snapshot()));
        perform pg_sleep(0.01);
    end loop;
end
$$;
