-- functions/20_create: create_todo, create_todos, create_todo_any_endpoint.
select no_plan();
select test.set_up(), test.stop_clock(), test.listen('todo_ready') \g /dev/null

-- what a new todo looks like
select id from switchboard.create_todo(test.a(), 'q', 'a title') \gset
select ok(to_jsonb(t) @> jsonb_build_object('endpoint_id', test.a(), 'queue', 'q', 'state', 'pending', 'title', 'a title', 'payload', '{}'::jsonb, 'attempt', 0, 'max_attempts', 5,
        'owner', null, 'assignee', null, 'kind', null, 'source', null, 'idempotency_key', null, 'lease_expires_at', null, 'claimed_at', null, 'next_retry_at', null,
        'completed_at', null, 'result', null, 'trust_mode', 'sql', 'verified', true, 'ring_attempts', 0, 'last_ringed_at', null, 'dead_letter', false, 'event_id', null)
        and t.created_at = switchboard.now() and t.updated_at = switchboard.now(), 'the defaults')
    from switchboard.get_todo(test.a(), :'id') t;
select is(test.heard('todo_ready'), array[test.a() || ':q'], 'a create rings todo_ready: <endpoint_id>:<queue>');
select ok(to_jsonb(t) @> '{"queue": "r", "payload": [1, "x"], "kind": "k", "source": "s", "assignee": "ann", "max_attempts": 100, "idempotency_key": "key", "created": true}', 'all arguments')
    from switchboard.create_todo(test.a(), 'r', 't', '[1, "x"]', 'key', 'k', 's', 'ann', 100) t;
select is((switchboard.create_todo(test.a(), 'q', 't', p_payload => null, p_max_attempts => null)).payload, '{}', 'NULL is the default: payload');
select is((switchboard.create_todo(test.a(), 'q', 't', p_max_attempts => null)).max_attempts, 5, 'NULL is the default: max_attempts');
select is((switchboard.create_todo(upper(test.a()), 'q', 't')).endpoint_id::text, test.a(), 'an endpoint id in upper case');
select is((switchboard.create_todo(test.a(), 'q', t)).title, e, 'title: ' || n) from (values
    (repeat('ä', 600), repeat('ä', 500), 'cut to 500 characters'), (E' two\nlines ', 'two lines', 'made one line'), ('<b>&', '<b>&', 'kept as it is')) v(t, e, n);
select is((switchboard.create_todo(test.a(), 'q', 't', p)).payload, p, 'payload: ' || p::text) from unnest(array['[]', '"x"', '0', 'false', '{"a": null}']::jsonb[]) p;
select is((switchboard.create_todo(test.a(), 'q', 't', p_idempotency_key => repeat('k', 512))).idempotency_key, repeat('k', 512), 'a key of 512 bytes');

-- what is refused
create table test.refusals (args text, field text, name text);
insert into test.refusals values
    ('''Q'', ''t''', 'queue', 'a malformed queue'), ('null, ''t''', 'queue', 'no queue'), ('''q'', null', 'title', 'no title'), ('''q'', ''''', 'title', 'an empty title'),
    ('''q'', E'' \n''', 'title', 'a blank title'), ('''q'', ''t'', ''null''', 'payload', 'JSON null'), ('''q'', ''t'', to_jsonb(repeat(''x'', 262143))', 'payload', 'a payload over 256 KiB'),
    ('''q'', ''t'', ''1e131000''', 'payload', 'a number that renders long'), ('''q'', ''t'', (repeat(''['', 65) || repeat('']'', 65))::jsonb', 'payload', 'a deep payload'),
    ('''q'', ''t'', p_idempotency_key => ''''', 'idempotency_key', 'an empty key'), ('''q'', ''t'', p_idempotency_key => repeat(''k'', 513)', 'idempotency_key', 'a key of 513 bytes'),
    ('''q'', ''t'', p_idempotency_key => repeat(''ä'', 257)', 'idempotency_key', 'a key of 257 two-byte characters'), ('''q'', ''t'', p_kind => ''''', 'kind', 'an empty kind'),
    ('''q'', ''t'', p_kind => repeat(''k'', 129)', 'kind', 'a long kind'), ('''q'', ''t'', p_source => repeat(''k'', 129)', 'source', 'a long source'),
    ('''q'', ''t'', p_assignee => ''''', 'assignee', 'an empty assignee'), ('''q'', ''t'', p_assignee => repeat(''k'', 129)', 'assignee', 'a long assignee'),
    ('''q'', ''t'', p_max_attempts => 0', 'max_attempts', 'no attempt'), ('''q'', ''t'', p_max_attempts => 101', 'max_attempts', '101 attempts'), ('''q'', ''t'', p_max_attempts => -1', 'max_attempts', 'minus one attempt');
select test.heard('todo_ready') \g /dev/null
select count(*) as before from switchboard.todos \gset
select test.invalid(format('select switchboard.create_todo(test.a(), %s)', args), field, 'refused: ' || name) from test.refusals;
select test.forbidden(format('select switchboard.create_todo(test.a(), %L, ''t'')', q), 'outside the grant: ' || q) from unnest('{other,quarantine}'::text[]) q;
select test.not_found(format('select switchboard.create_todo(%L, ''q'', ''t'')', e), 'no endpoint: ' || coalesce(quote_literal(e), 'NULL'))
    from unnest(array[null, '', 'x', 'test-a', test.unknown(), '{' || test.a() || '}']) e;
update switchboard.endpoints set expires_at = switchboard.now() where id::text = test.endpoint('a2');
select test.conflict($$ select switchboard.create_todo(test.endpoint('a2'), 'q', 't') $$, 'an expired endpoint');
select is(count(*), :before::bigint, 'a refused create leaves nothing') from switchboard.todos;
select is(test.heard('todo_ready'), '{}', 'and rings nobody');

-- dedup (SPEC-0003, Per-Endpoint Idempotency); its scenarios are in spec_0003.sql, its races in isolation/specs
select ok(t.created is false and t.queue = 'r' and t.title = 't', 'the same key in another queue of one endpoint is the same todo') from switchboard.create_todo(test.a(), 'q', 'other', p_idempotency_key => 'key') t;
select is(test.heard('todo_ready'), '{}', 'a duplicate rings nobody');
select ok(t.created, 'fault 23: one key of two endpoints is two todos') from switchboard.create_todo(test.b(), 'r', 't', p_idempotency_key => 'key') t;
select ok(bool_and(t.created) and count(distinct t.id) = 3, 'no key, no dedup') from generate_series(1, 3) n, switchboard.create_todo(test.a(), 'q', 'no key ' || n) t;
select is((switchboard.create_todo(test.a(), 'q', 't', p_idempotency_key => k)).created, true, 'keys differ: ' || to_json(k)::text) from unnest(array['KEY', 'key ', 'kéy', E'ke\u0301y']) k;

-- of an ended and a live todo with one key the live one is returned
select test.make('done', 'a', 'q', 'twice') as ended \gset
select test.create('a', 'q', 'twice') as live \gset
select is((switchboard.create_todo(test.a(), 'q', 't', p_idempotency_key => 'twice')).id::text, :'live', 'a key that also ended todos have names the live one');
select is((select id::text from switchboard.create_todos(test.a(), test.keyed('t', 'twice'))), :'live', 'in a batch, too');

-- fault 20: the live row ends between the conflict and the look-up: a trigger ends it there
create table test.ending (times int);
create function test.end_live() returns trigger language plpgsql security definer as $$
begin
    update test.ending set times = times - 1 where times > 0;
    if found then
        update switchboard.todos set state = 'done', completed_at = switchboard.now() where idempotency_key = 'race' and completed_at is null and state = 'pending';
    end if;
    return null;
end
$$;
create trigger end_live after insert on switchboard.todos for each statement execute function test.end_live();
select test.create('a', 'q', 'race') as first \gset
insert into test.ending values (1);
create table test.raced as select t.id::text as id, t.created from switchboard.create_todo(test.a(), 'q', 't', p_idempotency_key => 'race') t;
select ok(created and id <> :'first' and test.state(id) = 'pending' and test.state(:'first') = 'done', 'fault 20: then a new row is created') from test.raced;
drop trigger end_live on switchboard.todos;

-- fault 34: a queue name of any allowed length never makes the NOTIFY fail the create
select test.vend('long', test.human('a'), array[rpad('q', 63, 'x')]) \g /dev/null
select test.heard('todo_ready') \g /dev/null
select lives_ok($$ select switchboard.create_todo(test.endpoint('long'), rpad('q', 63, 'x'), 't') $$, 'fault 34: a queue name of 63 characters');
select is(test.heard('todo_ready'), array[test.endpoint('long') || ':' || rpad('q', 63, 'x')], 'fault 34: and it rings');

-- fault 19: 20 sessions create one key at once: one row, 20 identical ids, no error
select test.connect('racer ' || n) from generate_series(1, 20) n \g /dev/null
begin;
lock table switchboard.todos in share mode;
select test.dblink_send_query('racer ' || n, format('select id::text, created from switchboard.create_todo(%L, ''q'', ''race'', p_idempotency_key => ''race'')', test.b())) from generate_series(1, 20) n \g /dev/null
commit;
create table test.racers as select r.* from generate_series(1, 20) n, test.dblink_get_result('racer ' || n) as r(id text, created boolean);
select is((select array[count(*), count(distinct id), count(*) filter (where created)] from test.racers), '{20,1,1}'::bigint[], 'fault 19: 20 sessions create one key: one todo, created once');

-- create_todos
create function test.batch(p_todos jsonb) returns table (n bigint, id text, created boolean) language sql as $$
    select r.ordinality, r.id::text, r.created from switchboard.create_todos(test.a(), p_todos) with ordinality r
$$;
select test.heard('todo_ready') \g /dev/null
create table test.b1 as select * from test.batch('[{"queue": "q", "title": "one", "idempotency_key": "z"}, {"queue": "r", "title": "two"}, {"queue": "q", "title": "three", "idempotency_key": "a",
    "payload": {"p": 1}, "kind": "k", "source": "s", "assignee": "ann", "max_attempts": 3}]');
select is((select array_agg(t.title order by b.n) from test.b1 b join switchboard.todos t on t.id::text = b.id), '{one,two,three}'::text[], 'create_todos answers in the caller''s order');
select is((select array_agg(title order by id) from switchboard.todos where id::text in (select id from test.b1)), '{one,two,three}'::text[], 'and they are claimed in that order');
select is((select bool_and(created) from test.b1), true, 'all created');
select ok(to_jsonb(t) @> '{"payload": {"p": 1}, "kind": "k", "source": "s", "assignee": "ann", "max_attempts": 3, "trust_mode": "sql", "idempotency_key": "a"}', 'elements carry the arguments of create_todo')
    from switchboard.todos t where title = 'three';
select is(test.heard('todo_ready'), (select array_agg(test.a() || ':' || q order by q) from unnest('{q,r}'::text[]) q), 'it rings once a queue');
select results_eq($$ select b.id = o.id, b.created from test.batch('[{"queue": "q", "title": "x", "idempotency_key": "new"}, {"queue": "q", "title": "x", "idempotency_key": "z"}, {"queue": "q", "title": "x", "idempotency_key": "new"}]') b,
        test.b1 o where o.n = 1 $$, 'values (false, true), (true, false), (false, false)', 'fault 22: a duplicate inside the batch and a live one, each with its own outcome');
select is((select count(*) from switchboard.todos where idempotency_key = 'new'), 1::bigint, 'fault 22: one row for the key');
select is((select array[count(distinct b.id), count(*) filter (where created)] from test.batch('[{"queue": "q", "title": "x", "idempotency_key": "n2"}, {"queue": "q", "title": "y", "idempotency_key": "n2"}]') b), '{1,1}'::bigint[],
    'fault 22: both of one new key name one todo');
select is_empty($$ select * from test.batch('[]') $$, 'an empty array creates nothing');
select count(*) as before from switchboard.todos \gset
select test.heard('todo_ready') \g /dev/null
select test.invalid(format('select switchboard.create_todos(test.a(), %L)', t), field, 'create_todos refuses: ' || name) from (values
    (null, 'todos', 'NULL'), ('{}', 'todos', 'an object'), ('null', 'todos', 'JSON null'), ('[1]', 'todos', 'a number as element'), ('[null]', 'todos', 'null as element'), ('[[]]', 'todos', 'an array as element'),
    ('[{"queue": "q", "title": "ok"}, {"queue": "q"}]', 'title', 'an element without title'), ('[{"queue": "q", "title": "ok"}, {"title": "t"}]', 'queue', 'an element without queue'),
    ('[{"queue": "q", "title": "t", "color": "red"}]', 'color', 'an unknown field'), ('[{"queue": "q", "title": 1}]', 'title', 'a wrong type'), ('[{"queue": "q", "title": "t", "max_attempts": "5"}]', 'max_attempts', 'a number as text'),
    ('[{"queue": "q", "title": "t", "max_attempts": 1.5}]', 'max_attempts', 'a fraction'), ('[{"queue": "q", "title": "t", "max_attempts": 99999999999}]', 'max_attempts', 'a huge number'),
    ('[{"queue": "q", "title": "t", "payload": null}]', 'payload', 'a payload of null'), ('[{"queue": "q", "title": "t", "idempotency_key": ["k"]}]', 'idempotency_key', 'a key that is an array')) v(t, field, name);
select test.forbidden($$ select switchboard.create_todos(test.a(), '[{"queue": "q", "title": "ok"}, {"queue": "other", "title": "t"}]') $$, 'an element outside the grant');
select test.invalid($$ select switchboard.create_todos(test.a(), (select jsonb_agg('{"queue": "q", "title": "t"}'::jsonb) from generate_series(1, 10001))) $$, 'todos', 'more than 10,000 elements');
select test.not_found(format($$ select switchboard.create_todos(%L, '[{"queue": "q", "title": "t"}]') $$, e), 'create_todos, no endpoint: ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, 'x', test.unknown()]) e;
select is(count(*), :before::bigint, 'one bad element refuses the whole call') from switchboard.todos;
select is(test.heard('todo_ready'), '{}', 'and nothing rings');
select is((select count(*) from test.batch((select jsonb_agg(jsonb_build_object('queue', 'q', 'title', 't ' || n)) from generate_series(1, 1000) n))), 1000::bigint, 'a thousand at once');

-- by a human
select is((switchboard.create_todo_any_endpoint(test.a(), 'q', 't', p_actor_human_id => test.human('a'))).trust_mode, 'operator', 'a human''s push has trust operator');
select is((switchboard.create_todo_any_endpoint(test.b(), 'q', 't')).trust_mode, 'operator', 'without a human: any endpoint, for an operator');
select test.not_found($$ select switchboard.create_todo_any_endpoint(test.b(), 'q', 't', p_actor_human_id => test.human('a')) $$, 'not on an endpoint of somebody else');
select test.not_found(format($$ select switchboard.create_todo_any_endpoint(%L, 'q', 't') $$, e), 'nor on ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, 'x', test.unknown()]) e;
select test.conflict($$ select switchboard.create_todo_any_endpoint(test.endpoint('a2'), 'q', 't') $$, 'nor on an expired one');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
