-- functions/73_api_todos: REST on todos and budgets. What was there with the first operations is in 70_api.sql.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
select slug as slug_a, id as id_a from test.endpoints where name = 'a' \gset
select slug as slug_a2 from test.endpoints where name = 'a2' \gset
select slug as slug_b from test.endpoints where name = 'b' \gset
create function test.todo_for(p_more jsonb default '{}') returns jsonb language sql as $$
    select jsonb_build_object('endpoint', test.a(), 'queue', 'q', 'title', 'a title') || p_more
$$;

-- creating
select test.api('create_todo', p_body => test.todo_for(jsonb_build_object('endpoint', :'slug_a', 'payload', '{"n": 1.10}'::jsonb, 'idempotency_key', 'k', 'kind', 'x', 'max_attempts', 3))) as made \gset
select is((:'made'::jsonb) - 'todo', '{"created": true}', 'a todo is created');
select is(((:'made'::jsonb) #> '{todo}') - '{id,created_at}'::text[], jsonb_build_object('endpoint', :'slug_a', 'endpoint_id', :'id_a', 'queue', 'q', 'state', 'pending', 'title', 'a title', 'kind', 'x', 'attempt', 0,
    'max_attempts', 3, 'trust_mode', 'operator', 'verified', true, 'payload_bytes', 11), 'and answered');
select is(test.api('create_todo', p_body => test.todo_for('{"idempotency_key": "k"}')) #- '{todo,payload_bytes}', (:'made'::jsonb || '{"created": false}') #- '{todo,payload_bytes}', 'with the same key it is the same one');
select is(test.api_on('get_todo', (:'made'::jsonb) #>> '{todo,id}') #>> '{todo,payload}', '{"n": 1.10}', 'its payload is as it was sent');
select is(test.api('create_todo', p_body => test.todo_for(b)) -> 'error' ->> 'field', f, 'refused: ' || b::text) from (values
    ('{"queue": "Q"}'::jsonb, 'queue'), ('{"title": ""}', 'title'), ('{"title": null}', 'title'), ('{"title": 1}', 'title'), ('{"idempotency_key": ""}', 'idempotency_key'), ('{"max_attempts": 0}', 'max_attempts'), ('{"x": 1}', 'x'), ('{"endpoint": null}', 'endpoint')) v(b, f);
select is(test.code(test.api('create_todo', p_body => test.todo_for('{"queue": "nowhere"}'))), 'forbidden', 'a queue that is not granted');
select is((select count(distinct test.api('create_todo', p_body => test.todo_for(jsonb_build_object('endpoint', e)))) from unnest(array[test.b(), :'slug_b', 'nobody', test.unknown(), '']) e), 1::bigint, 'an endpoint that is not one''s own: one answer');
select is((select count(*) from switchboard.todos where endpoint_id = test.b()::uuid), 0::bigint, 'and no todo');
select is(test.api('create_todo', p_body => test.todo_for('{"payload": null, "kind": null}')) -> 'created', 'true', 'null is as good as left out');

-- looking for one
select test.api('create_todo', p_body => test.todo_for('{"title": "Findable", "queue": "r"}')) #>> '{todo,id}' as found \gset
select test.create('b', 'q', 'k') as foreign \gset
create function test.ids(p_answer jsonb) returns text[] language sql as $$ select array(select t ->> 'id' from jsonb_array_elements(p_answer -> 'todos') t) $$;
select is(test.ids(test.api('list_todos', p_query => jsonb_build_object('q', q))), array[:'found'], 'found by ' || n) from (values (:'found', 'id'), ('findab', 'the beginning of its title')) v(q, n);
select is(test.ids(test.api('list_todos', p_query => '{"q": "k"}')), array[(:'made'::jsonb) #>> '{todo,id}'], 'by key, of the human alone');
select is(test.ids(test.api('list_todos', p_query => jsonb_build_object('q', :'found') || q)), '{}', 'not there: ' || q::text) from unnest(array['{"queue": "q"}', '{"state": "done"}', jsonb_build_object('endpoint', :'slug_a2')]::jsonb[]) q;
select is(test.ids(test.api('list_todos', p_query => jsonb_build_object('q', q))), '{}', 'nothing is found by ' || q) from unnest(array[:'foreign', test.unknown(), '%', '_']) q;
select is(cardinality(test.ids(test.api('list_todos', p_query => '{"q": ""}'))), 3, 'an empty q is none');
select is(test.pages('list_todos', 'todos', '{"q": "a ti"}', 1), test.ids(test.api('list_todos', p_query => '{"q": "a ti"}')), 'page by page');

-- attempts of a todo: the last 100
insert into switchboard.todo_attempts (endpoint_id, todo_id, seq, attempt, claimed_at, ended_at, queue, owner, outcome, state)
select :'id_a', :'found', n, n, switchboard.now(), switchboard.now(), 'r', 'w', 'released', 'pending' from generate_series(1, 100) n;
select is((a -> 'more_attempts', jsonb_array_length(a -> 'attempts'))::text, '(false,100)', '100 attempts are all') from test.api_on('get_todo', :'found') a;
insert into switchboard.todo_attempts (endpoint_id, todo_id, seq, attempt, claimed_at, ended_at, queue, owner, outcome, state)
select :'id_a', :'found', 101, 101, switchboard.now(), switchboard.now(), 'r', 'w', 'released', 'pending';
select is((a -> 'more_attempts', a #> '{attempts,0,seq}', a #> '{attempts,-1,seq}')::text, '(true,2,101)', 'of 101 the last 100, oldest first') from test.api_on('get_todo', :'found') a;

-- quarantine
select test.receiver('one') as hook, test.receiver('two', 'b') as foreign_hook \gset
select switchboard.hold_webhook(:'hook', true), switchboard.hold_webhook(:'foreign_hook', true) \g /dev/null
select test.made(test.deliver('one', '{}', 'd1')) as held1, test.made(test.deliver('one', '{}', 'd2')) as held2, test.made(test.deliver('two', '{}', 'd3'), 'b') as held3 \gset
select is(test.code(test.api_on('claim', :'held1')), 'conflict', 'what is held in quarantine cannot be claimed');
select is(test.api_on('release_quarantined', :'held1') #>> '{todo,queue}', 'q', 'released to its queue');
select is(test.api_on('discard_quarantined', :'held2') #> '{todo}' -> 'dead_letter', 'true', 'discarded');
select is(test.code(test.api_on(o, :'held2')), 'conflict', 'not twice: ' || o) from unnest('{release_quarantined,discard_quarantined}'::text[]) o;
select is((select count(distinct test.api_on(o, i)) from unnest(array[:'held3', test.unknown(), 'x', :'found']) i), 1::bigint, o || ' of what is not there, or not in quarantine') from unnest('{release_quarantined,discard_quarantined}'::text[]) o;
select is(test.situation(:'held3'), 'pending', 'what is somebody else''s stays');

-- budgets, page by page
select test.api('set_admission', jsonb_build_object('scope', 'endpoint:' || e, 'queue', q), '{"max_in_flight": 1}') from unnest(array[:'slug_a', :'slug_a2']) e, unnest('{q,r}'::text[]) q \g /dev/null
select is(test.pages('list_admission', 'policies', '{}', n, 'scope'), array['endpoint:' || :'slug_a', 'endpoint:' || :'slug_a', 'endpoint:' || :'slug_a2', 'endpoint:' || :'slug_a2'], 'budgets, ' || n || ' a page') from generate_series(1, 5) n;
select is(test.pages('list_admission', 'policies', jsonb_build_object('endpoint', :'slug_a2'), 1, 'queue'), '{q,r}', 'of one endpoint');
select is((select count(distinct test.api('list_admission', p_query => jsonb_build_object('endpoint', e))) from unnest(array[test.b(), :'slug_b', 'nobody', '']) e), 1::bigint, 'of an endpoint that is not one''s own: one answer');
select is(test.api('list_admission', p_query => jsonb_build_object('cursor', c)) -> 'error' ->> 'field', 'cursor', 'no cursor: ' || c) from unnest('{x,"",a/b/c}'::text[]) c;

-- what helps
select is(switchboard.read_cursor(switchboard.cursor_of(at, id))::text, (at, id)::text, 'a cursor is read as it was written: ' || at)
    from (values ('2026-03-02 12:00:00.123456Z'::timestamptz), ('1969-12-31 23:59:59.999999Z'), ('epoch'), ('4000-01-01Z')) t(at), (values (test.unknown()::uuid)) i(id);
select is((switchboard.read_cursor(null)).id, null, 'none is none');
select is(test.error_of(format('select switchboard.read_cursor(%L)', c)) ->> 'sqlstate', 'SB400', 'no cursor: ' || c) from unnest(array['', '.', '1.x', 'x.' || test.unknown(), '9999999999999999999.' || test.unknown(), test.unknown(), '1.' || test.unknown() || 'x', E'1.' || test.unknown() || E'\n']) c;
select is(switchboard.time_argument(jsonb_build_object('t', t), 't'), '2026-12-31 18:00Z'::timestamptz, 'a time: ' || t)
    from unnest('{2026-12-31T18:00:00Z,2026-12-31t18:00:00z,"2026-12-31 18:00:00.000Z",2026-12-31T19:00+01:00,2026-12-31T13:30:00-0430}'::text[]) t;
select is((test.error_of(format('select switchboard.time_argument(%L, ''t'')', jsonb_build_object('t', t))) ->> 'detail')::jsonb ->> 'field', 't', 'no time: ' || t)
    from unnest('{now,infinity,-infinity,epoch,tomorrow,"",2026-12-31,2026-12-31T18:00:00,2026-02-30T18:00:00Z,2026-13-01T18:00:00Z,2026-12-31T25:00:00Z,2026-12-31T18:00:00+99:00,0000-01-01T00:00:00Z,"2026-12-31T18:00:00Z "}'::text[]) t;
select is(switchboard.time_argument('{"t": null}', 't'), null, 'null is none');

select * from finish();
