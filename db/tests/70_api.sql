-- functions/70_api: the REST interface, without HTTP.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
select test.human('a') as ada, test.human('b') as bob, slug as slug_a, 'endpoint:' || slug as scope_a, 'endpoint:' || id as by_id from test.endpoints where name = 'a' \gset
select 'endpoint:' || slug as scope_b from test.endpoints where name = 'b' \gset
create function test.error_code(p_answer jsonb) returns text language sql as $$ select p_answer -> 'error' ->> 'code' $$;
select test.api('whoami') \g /dev/null
create function test.at(p_scope text, p_queue text default 'q') returns jsonb language sql as $$ select jsonb_build_object('scope', p_scope, 'queue', p_queue) $$;

-- the register
select is_empty($$ select name from switchboard.api_operations() where path !~ '^/api/v1/[a-z/{}-]+$' or method not in ('GET', 'PUT', 'POST', 'DELETE') or description = '' $$, 'every operation has method, path and description');
select is_empty($$ select method, path from switchboard.api_operations() group by 1, 2 having count(*) > 1 $$, 'an address and a method are one operation');
select is_empty($$ select o.name, k from switchboard.api_operations() o, jsonb_each(o.input) i (k, v) where i.v ->> 'in' not in ('path', 'query', 'body', 'whole body') or (i.v ->> 'in' = 'path') <> (o.path like '%{' || k || '}%') $$, 'what is in the path is said to be');
select is_empty($$ select o.name, k from switchboard.api_operations() o, unnest(o.required) k where not o.input ? k $$, 'what is required is an argument');
select is_empty($$ select o.name from switchboard.api_operations() o where (o.body_limit = 0) <> (o.method in ('GET', 'DELETE')) $$, 'what changes something has a body');
-- every one has its branch: it says what is wrong, and never that the case was not found
create function test.body_for(p_input jsonb, p_required text[]) returns jsonb language sql as $$
    select jsonb_object_agg(k, case when v ->> 'type' = 'array' then '["q"]' when v ? 'enum' then v -> 'enum' -> 0 when k in ('slug', 'name') then '"made-here"' else '"x"' end) from jsonb_each(p_input) i (k, v) where v ->> 'in' = 'body' and k = any (p_required)
$$;
select is(test.error_code(test.api(o.name, (select coalesce(jsonb_object_agg(k, 'x'), '{}') from jsonb_each(o.input) i (k, v) where i.v ->> 'in' = 'path'),
        case when o.name = 'set_admission' then '{}'::jsonb else test.body_for(o.input, o.required) end)),
    case when o.name !~ '^list_(todos|queues|endpoints|webhooks|events|hooks|admission|tokens)$' and o.name not in ('whoami', 'health', 'vend_endpoint', 'create_token') then 'not_found' end,
    'dispatched: ' || o.name) from switchboard.api_operations() o;
select is(test.api('whoami'), jsonb_build_object('human', jsonb_build_object('id', :'ada', 'name', 'Ada')), 'who one is');
select is_empty($$ select o.name from switchboard.api_operations() o where not exists (select from jsonb_object_keys(o.answer)) $$, 'every answer has a shape');
create function test.types_of(p_shape jsonb) returns setof text language sql as $$
    select regexp_replace(t, '[|]null$', '') from jsonb_each(p_shape) f (k, v), jsonb_array_elements_text(case when jsonb_typeof(v) = 'array' then v else jsonb_build_array(v) end) t where t is not null and t !~ '^='
$$;
select is_empty($$ select u.name, t from (select name, shape from switchboard.api_shapes() union all select name, answer from switchboard.api_operations()) u (name, shape), test.types_of(u.shape) t
    where t not in ('text', 'uuid', 'time', 'integer', 'number', 'boolean', 'object', 'any') and t not in (select s.name from switchboard.api_shapes() s) $$, 'of types that there are');
select is_empty($$ select s.name from switchboard.api_shapes() s where s.name not in (select t from (select shape from switchboard.api_shapes() union all select answer from switchboard.api_operations()) u (shape), test.types_of(u.shape) t) $$, 'and each shape is used');
select is_empty($$ select o.name, k from switchboard.api_operations() o, jsonb_each_text(o.shell) s (k, v) where k not in ('secret', 'outbound_url', 'public_url') or v <> 'true' and not o.input ? v $$, 'what the shell adds are things it knows');

-- who calls
select is(switchboard.call_api(d, 'list_admission', '{}'), switchboard.unauthenticated(), 'refused: ' || n) from (values (sha256('x'), 'an unknown token'), (null, 'none'), (''::bytea, 'an empty one')) v(d, n);
select is(switchboard.call_api(sha256('x'), 'nothing', '{"path": 1}'), switchboard.unauthenticated(), 'before anything else is looked at');
select is(test.error_code(test.api('nothing')), 'not_found', 'there is no such operation');
select isnt(last_used_at, null, 'the use of a token is noted') from switchboard.list_operator_tokens(:'ada') where name = 'test';

-- arguments
select is(test.api(o, p, b, q) -> 'error' ->> 'field', f, format('%s refuses %s: %s', o, f, n)) from (values
    ('list_todos', '{}'::jsonb, null::jsonb, '{"x": "1"}'::jsonb, 'x', 'unknown'),
    ('list_todos', '{}', '{"limit": 1}', '{}', 'limit', 'in the wrong place'),
    ('list_todos', '{}', null, '{"limit": "1.5"}', 'limit', 'not a number'),
    ('list_todos', '{}', null, '{"limit": "9999999999"}', 'limit', 'too many digits'),
    ('list_todos', '{}', null, '{"limit": "0"}', 'limit', 'out of range'),
    ('list_todos', '{}', null, '{"limit": ""}', 'limit', 'empty'),
    ('list_todos', '{}', null, '{"state": "asleep"}', 'state', 'no state'),
    ('list_todos', '{}', null, '{"cursor": "x"}', 'cursor', 'no cursor'),
    ('list_admission', '{}', '{"x": 1}', '{}', 'x', 'a body where there is none'),
    ('claim', '{"id": "x"}', '{"lease_ttl_seconds": "60"}', '{}', 'lease_ttl_seconds', 'a text'),
    ('claim', '{"id": "x"}', '{"id": "y"}', '{}', 'id', 'in the wrong place'),
    ('claim', '{}', null, '{}', 'id', 'missing'),
    ('complete', '{"id": "x"}', '{"force": 1}', '{}', 'force', 'not a boolean'),
    ('complete', '{"id": "x"}', '{"": 1}', '{}', 'a field', 'no name'),
    ('set_admission', '{"scope": "x", "queue": "q"}', null, '{}', 'policy', 'missing'),
    ('set_admission', '{"scope": "x", "queue": "q"}', '[]', '{}', 'policy', 'not an object')) v(o, p, b, q, f, n);

-- budgets
select is(test.api('list_admission'), '{"policies": [], "next_cursor": null}', 'no budget yet');
select is(test.api('get_admission', test.at(:'scope_a')) -> 'policy', 'null', 'an own queue without one');
select is(test.api('set_admission', test.at(:'scope_a'), '{"max_in_flight": 2}') #>> '{policy,max_in_flight}', '2', 'one is set, by slug');
select is(test.api('set_admission', test.at(:'by_id'), '{"max_in_flight": 1}') #>> '{policy,max_in_flight}', '1', 'replaced, by id');
select is(test.api('set_admission', test.at(:'scope_a'), '{"max_claims_per_window": 5, "window": {"period": "day", "tz": "UTC", "start": "00:00"}}') #>> '{policy,max_in_flight}', null, 'whole: what is left out is gone');
select is(jsonb_array_length(test.api('list_admission') -> 'policies'), 1, 'listed');
select is(jsonb_array_length(test.api('list_admission', p_human => 'Bob') -> 'policies'), 0, 'for their human alone');
select is(test.error_code(test.api('set_admission', test.at(:'scope_a'), b)), 'invalid_argument', 'refused: ' || b::text) from unnest(array['{}', '{"max_in_flight": 1, "x": 1}']::jsonb[]) b;
select is(test.error_code(test.api('set_admission', test.at(:'scope_a'), jsonb_build_object('max_in_flight', 1, 'x', repeat('x', 16384)))), 'too_large', 'a policy over 16 KiB');
select is(test.api('clear_admission', test.at(:'scope_a')) ->> 'cleared', 'true', 'cleared');
select is(test.error_code(test.api('clear_admission', test.at(:'scope_a'))), 'not_found', 'not twice');

-- a foreign scope, an unknown one and what is no scope at all: one and the same
create table test.scopes (scope text);
insert into test.scopes values ('endpoint:' || test.unknown()), ('endpoint:nobody'), ('endpoint:'), (''), ('x'), ('team:x'), ('Endpoint:' || :'slug_a'), (:'slug_a'), ('endpoint:' || :'slug_a' || ' '), (E'endpoint:\n'), (:'scope_b'), ('endpoint:' || test.b());
select test.api('set_admission', test.at(:'scope_b'), '{"max_in_flight": 3}', p_human => 'Bob') \g /dev/null
select is((select count(distinct test.api(o, test.at(s.scope), b)) from test.scopes s), 1::bigint, o || ' of a scope that is not one''s own') from (values ('get_admission', null::jsonb), ('set_admission', '{"max_in_flight": 1}'), ('set_admission', '{"x": 1}'), ('clear_admission', null)) v(o, b);
select is(test.error_code(test.api('get_admission', test.at(:'scope_b'))), 'not_found', 'it is not there');
select is(test.api('get_admission', test.at(:'scope_b'), p_human => 'Bob') #>> '{policy,max_in_flight}', '3', 'and is untouched');

-- todos
select test.make('pending', 'a') as p1, test.pass('1 s'), test.make('pending', 'a2') as p2, test.pass('1 s'), test.create('a', 'r', p_assignee => 'ann') as p3, test.pass('1 s'), test.make('done', 'a') as d1, test.make('pending', 'b') as foreign \gset
create function test.ids(p_answer jsonb) returns text[] language sql as $$ select array_agg(t ->> 'id') from jsonb_array_elements(p_answer -> 'todos') t $$;
select is(test.ids(test.api('list_todos')), array[:'d1', :'p3', :'p2', :'p1'], 'newest first, of the human alone');
select is(test.ids(test.api('list_todos', p_query => '{"state": "pending"}')), array[:'p1', :'p2', :'p3'], 'pending ones oldest first');
select is(test.ids(test.api('list_todos', p_query => jsonb_build_object('endpoint', :'slug_a', 'queue', 'q'))), array[:'d1', :'p1'], 'of one endpoint and queue');
select is(test.error_code(test.api('list_todos', p_query => jsonb_build_object('endpoint', e))), 'not_found', 'of an endpoint that is not one''s own') from unnest(array[test.b(), test.unknown(), 'x', '']) e;
select is(test.pages('list_todos', 'todos', q, n), test.ids(test.api('list_todos', p_query => q)), format('page by page: %s, %s a page', q, n)) from unnest('{1,2,3,4}'::int[]) n, unnest(array['{}', '{"state": "pending"}', '{"queue": "q"}', '{"state": "done"}']::jsonb[]) q;
select is(test.api('get_todo', jsonb_build_object('id', :'p1')) #>> '{todo,endpoint}', :'slug_a', 'one todo, with its endpoint');
select is(jsonb_array_length(test.api('get_todo', jsonb_build_object('id', :'d1')) -> 'attempts'), 1, 'and its attempts');
select is((select count(distinct test.api(o.name, jsonb_build_object('id', i))) from unnest(array[:'foreign', test.unknown(), 'x', '']) i), 1::bigint, o.name || ' of a todo that is not one''s own: one answer')
    from switchboard.api_operations() o where o.input ? 'id';
select is(test.api('claim', jsonb_build_object('id', :'p1'), '{"lease_ttl_seconds": 60}') #>> '{todo,owner}', 'op:Ada', 'claimed by the human');
select is(test.api('extend', jsonb_build_object('id', :'p1'), '{"lease_ttl_seconds": 600}') #>> '{todo,lease_expires_at}', to_jsonb(switchboard.now() + interval '600 s') #>> '{}', 'extended');
select is(test.api('complete', jsonb_build_object('id', :'p1'), '{"result": {"n": 1.10}}') #>> '{todo,state}', 'done', 'completed');
select is(test.api('get_todo', jsonb_build_object('id', :'p1')) #>> '{todo,result}', '{"n": 1.10}', 'with its result');
select test.make('claimed', 'a') as held \gset
select is(test.error_code(test.api('fail', jsonb_build_object('id', :'held'))), 'conflict', 'an agent''s lease');
select is(test.api('fail', jsonb_build_object('id', :'held'), '{"force": true}') #>> '{todo,state}', 'failed', 'with force');
select is(test.api('retry', jsonb_build_object('id', :'held')) #>> '{todo,state}', 'pending', 'retried');
select test.api('claim', jsonb_build_object('id', :'held')) \g /dev/null
select is(test.api('release', jsonb_build_object('id', :'held')) #>> '{todo,state}', 'pending', 'released');

-- over budget: deferred, counted, with the seconds to wait
select test.api('set_admission', test.at(:'scope_a'), '{"max_in_flight": 1}'), test.make('claimed', 'a') \g /dev/null
select test.api('claim', jsonb_build_object('id', :'held')) as answer \gset
select is(test.error_code(:'answer'::jsonb), 'deferred', 'a claim over budget is deferred');
select is((:'answer'::jsonb) - 'error', '{"retry_after": 60}', 'until the lease ends');
select is((select array_agg(queue || ' ' || reason) from switchboard.admission_refusals where endpoint_id = test.a()::uuid), '{"q in_flight_full"}', 'and counted');
select test.api('set_admission', test.at(:'scope_a'), '{"max_in_flight": 0}') \g /dev/null
select is(test.api('claim', jsonb_build_object('id', :'held')) -> 'retry_after', '60', 'a queue that is paused: look again in a minute');
select is(test.api('get_admission', test.at(:'scope_a')) ->> 'status', 'paused', 'and its status says so');
select test.api('clear_admission', test.at(:'scope_a')), test.api('set_admission', test.at(:'scope_a'), '{"max_in_flight": 9}') \g /dev/null
select is(test.api('claim', jsonb_build_object('id', :'held')) #>> '{admission,max_in_flight}', '9', 'a claim within the budget tells the headroom');

-- what fails inside leaks nothing
create function test.broken() returns trigger language plpgsql as $$ begin raise exception 'secret %', new.id; end $$;
create trigger broken before update on switchboard.todos for each row execute function test.broken();
select is(test.api('retry', jsonb_build_object('id', test.unknown())) -> 'error' ->> 'code', 'not_found', 'a refusal');
select is(test.api('claim', jsonb_build_object('id', :'p2')) -> 'error', jsonb_build_object('code', 'internal', 'message', (select message from switchboard.error_table() where code = 'internal')), 'a foreign error keeps its text');

select * from finish();
