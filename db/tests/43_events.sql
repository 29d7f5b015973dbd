-- functions/43_events: deliveries for the people who look after them: quarantine, lists, replay, audit, retention.
select no_plan();
select test.set_up(), test.stop_clock(), test.listen('todo_ready'), test.login('bound', 'switchboard_worker') as bound \gset
select test.grant_all(e) from unnest('{a,a2,b}'::text[]) e \g /dev/null
select test.human('a') as ada, test.human('b') as bob \gset
select test.receiver('token a', 'a', 'github', 'inbox') as hook, test.receiver('token b', 'b', 'github', 'q') as foreign \gset
select switchboard.add_webhook_route(test.a(), :'hook', 'test-a2') \g /dev/null

-- a receiver is held
select is(switchboard.hold_webhook(:'hook', h, :'ada'), jsonb_build_object('webhook_id', :'hook', 'held', coalesce(h, false)), 'hold_webhook: ' || coalesce(h::text, 'NULL')) from unnest('{true,true,false,null,true}'::boolean[]) h;
select is((select array_agg(action order by action) from switchboard.webhook_audit_of(:'hook') where action ~ 'held'), '{held,held,unheld}', 'what changed something is noted');
select is((select array_agg(held) from switchboard.list_webhooks(test.a())), '{true}', 'its owner sees that it is held');
select test.not_found(format('select switchboard.hold_webhook(%L, true, %L)', w, h), 'no receiver: ' || n) from (values (:'foreign', :'ada', 'of another human'), (test.unknown(), :'ada', 'unknown'), ('x', null, 'malformed'), (null, null, 'NULL'), (:'hook', test.unknown(), 'no human')) v(w, h, n);
select is(switchboard.webhook_endpoint(:'hook', h), test.a(), 'webhook_endpoint for ' || n) from (values (:'ada'::uuid, 'its human'), (null, 'an operator')) v(h, n);
select test.not_found(format('select switchboard.webhook_endpoint(%L, %L)', w, h), 'webhook_endpoint: ' || n) from (values (:'hook', :'bob', 'of another human'), (test.unknown(), null, 'unknown'), ('x', null, 'malformed')) v(w, h, n);

-- for the endpoint, what is in quarantine does not exist
select test.create('a', 'inbox', 'other') as other \gset
select test.heard('todo_ready') \g /dev/null
select test.deliver('token a', '{"secret": 1}', 'h1', 'issues') as got \gset
select is(test.outcomes(:'got'), '{a quarantine new,a2 quarantine new}', 'a held delivery waits in quarantine, on every target');
select test.made(:'got') as id, test.event_of(test.made(:'got')) as event, test.stored(test.made(:'got')) as before \gset
select is(test.heard('todo_ready'), '{}', 'no todo_ready for it');
create table test.by_id (call text);
insert into test.by_id values ('get_todo(%1$L, %2$L)'), ('claim(%1$L, %2$L, ''w'')'), ('heartbeat(%1$L, %2$L, ''w'')'), ('complete(%1$L, %2$L, ''w'')'), ('fail(%1$L, %2$L, ''w'')'), ('release(%1$L, %2$L, ''w'')'), ('retry(%1$L, %2$L)'), ('todo_history(%1$L, %2$L)'), ('complete_batch(%1$L, ''w'', array[%2$L])');
create function test.as_unknown(p_sql text, p_id text) returns text language plpgsql as $$
declare
    v_rows jsonb;
begin
    select test.rows(p_sql) into v_rows;
    return replace(v_rows::text, p_id, 'ID');
exception when others then
    return test.error_of(p_sql)::text;
end
$$;
create function test.same(p_call text, p_id text, p_endpoint text default test.a()) returns boolean language sql as $$
    select test.as_unknown(format('select * from switchboard.' || p_call, p_endpoint, p_id), p_id) = test.as_unknown(format('select * from switchboard.' || p_call, p_endpoint, test.unknown()), test.unknown())
$$;
select ok(test.same(call, :'id'), 'quarantine, as an unknown id: ' || split_part(call, '(', 1)) from test.by_id;
select ok(test.same('read_event(%L, %L)', :'event'), 'quarantine, as an unknown id: read_event');
select switchboard.bind_login(test.a(), :'bound') \g /dev/null
select is(test.as_login(:'bound', format('select * from switchboard.' || call, null, :'id')), test.as_login(:'bound', replace(format('select * from switchboard.' || call, null, test.unknown()), test.unknown(), test.unknown())), 'and for a bound login: ' || split_part(call, '(', 1)) from test.by_id where call !~ 'batch';
select is(test.call(t, a || jsonb_build_object('id', :'id')), test.call(t, a || jsonb_build_object('id', test.unknown())), 'and over MCP: ' || t) from (values ('get_todo', '{}'::jsonb), ('claim', '{}'), ('heartbeat', '{"lease_token": "x"}'), ('complete', '{"lease_token": "x"}'), ('fail', '{"lease_token": "x"}'), ('release', '{"lease_token": "x"}'), ('retry', '{}')) v(t, a);
select is(test.code(test.call('read_event', jsonb_build_object('id', :'event'))), 'not_found', 'and over MCP: read_event');
select is((select array_agg(id::text) from switchboard.list_todos(test.a(), null, s, l)), e, format('not in list_todos: %s, %s', coalesce(s, 'all'), l)) from (values (null, 50, array[:'other']), ('pending', 50, array[:'other']), ('pending', 1, array[:'other']), (null, 1, array[:'other']), ('failed', 50, null), ('claimed', 50, null)) v(s, l, e);
select is(jsonb_path_query_array(test.call('list_todos', a), '$.todos[*].id'), jsonb_build_array(:'other'), 'nor over MCP: ' || a::text) from unnest(array['{}', '{"state": "pending"}', '{"include_payload": true}']::jsonb[]) a;
select is(test.error_of('select * from switchboard.' || format(c, 'quarantine')), test.error_of('select * from switchboard.' || format(c, 'not-granted')), 'the queue is like one that is not granted: ' || split_part(c, '(', 1)) from unnest(array['list_todos(test.a(), %L)', 'claim_next(test.a(), ''w'', array[%L])', 'claim_batch(test.a(), ''w'', 9, array[%L])', 'pending_doorbell_todos(test.a(), array[%L])', 'create_todo(test.a(), %L, ''t'')']) c;
select is(test.call(t, format(a, 'quarantine')::jsonb), test.call(t, format(a, 'not-granted')::jsonb), 'nor over MCP: ' || t) from (values ('list_todos', '{"queue": "%s"}'), ('claim_next', '{"queues": ["%s"]}'), ('create_todo', '{"queue": "%s", "title": "t"}'), ('create_webhook', '{"target_queue": "%s", "source_type": "github"}')) v(t, a);
select is((select array_agg(queue || pending) from switchboard.queue_counts(test.a())), '{inbox1,q0,r0}', 'not in queue_counts');
select is((select array_agg(id::text) from switchboard.pending_doorbell_todos(test.a(), q)), array[:'other'], 'not in pending_doorbell_todos: ' || coalesce(q::text, 'all')) from (values (null::text[]), ('{inbox}')) v(q);
select is((select array_agg(id::text) from switchboard.claim_batch(test.a(), 'w', 100)), array[:'other'], 'claim_batch takes the other one');
select is((select count(*) from switchboard.claim_next(test.a(), 'w')), 0::bigint, 'claim_next finds nothing');
select is(test.call('claim_next'), '{"empty": true, "deferred": []}', 'nor over MCP');
select test.conflict(format('select * from switchboard.create_todo%s', c), 'its key is taken, without saying by what: create_todo' || left(c, 1)) from unnest(array[format('(test.a(), ''q'', ''t'', p_idempotency_key => %L)', :'hook' || ':h1'), format('s(test.a(), test.keyed(''t'', %L))', :'hook' || ':h1')]) c;
select is(a #>> '{error,code}' || coalesce(a #>> '{error,state}', ''), 'conflict', 'nor over MCP') from test.call('create_todo', jsonb_build_object('queue', 'q', 'title', 't', 'idempotency_key', :'hook' || ':h1')) a;
select switchboard.tick() \g /dev/null
select is(test.stored(:'id'), :'before'::jsonb, 'and all that left it alone, a tick, too');
-- for the operator it does
select is((switchboard.get_todo_any_endpoint(:'id', h)).queue, 'quarantine', 'the operator sees it: ' || n) from (values (:'ada'::uuid, 'its human'), (null, 'a member')) v(h, n);
select is((select array_agg(id order by id) from switchboard.list_todos_any_endpoint(p_queue => 'quarantine', p_state => s, p_actor_human_id => :'ada')), (select array_agg((t ->> 'id')::uuid order by (t ->> 'id')::uuid) from jsonb_array_elements(:'got'::jsonb -> 'todos') t), 'and lists it: ' || coalesce(s, 'all')) from unnest('{null,pending}'::text[]) s;
select is((select count(*) from switchboard.list_todos_any_endpoint(p_actor_human_id => :'ada') where queue = 'quarantine'), 0::bigint, 'when asked for that queue');
select is((select count(*) from switchboard.list_todos_any_endpoint(p_queue => 'quarantine', p_actor_human_id => :'bob')), 0::bigint, 'not another human');
select is(switchboard.read_event_any_endpoint(:'event', p_actor_human_id => :'ada') ->> 'text', '{"secret": 1}', 'and reads its event');
select test.conflict(format('select switchboard.%s_any_endpoint(%L)', f, :'id'), 'but does not move it: ' || f) from unnest('{claim,retry}'::text[]) f;
select is(test.error_of(format('select switchboard.%s_any_endpoint(%L, p_force => true)', f, :'id')) ->> 'sqlstate' in ('SB404', 'SB409'), true, 'not with force: ' || f) from unnest('{complete,fail,release,heartbeat}'::text[]) f;
select is(test.state(:'id'), 'pending', 'it is as it was');

-- released, to the queue it was meant for
select test.not_found(format('select switchboard.%s_quarantined(%L, %L)', f, i, h), format('%s: %s', f, n)) from unnest('{release,discard}'::text[]) f, (values (:'id', :'bob', 'of another human'), (:'other', :'ada', 'not in quarantine'), (test.unknown(), :'ada', 'unknown'), ('x', null, 'malformed')) v(i, h, n);
select is(test.heard('todo_ready'), '{}', 'nothing rang until now');
select ok(to_jsonb(t) @> '{"queue": "inbox", "state": "pending", "attempt": 0, "title": "issues", "payload": {"secret": 1}}', 'released, to the queue it was meant for') from switchboard.release_quarantined(:'id', :'ada') t;
select is(test.heard('todo_ready'), array[test.a() || ':inbox'], 'it wakes');
select is(switchboard.read_event(test.a(), :'event') ->> 'text', '{"secret": 1}', 'its event can be read');
select test.not_found(format('select switchboard.read_event(test.endpoint(''a2''), %L)', :'event'), 'but not on the other target, where it is held still');
select is((select id::text from switchboard.claim_next(test.a(), 'w', '{inbox}')), :'id', 'it is claimed');
select test.not_found(format('select switchboard.release_quarantined(%L)', :'id'), 'it is no longer there');
select test.not_found(format('select switchboard.discard_quarantined(%L)', :'id'), 'nor to be discarded');

-- discarded: a dead letter that nothing brings back
select test.made(:'got', 'a2') as id \gset
select ok(to_jsonb(t) @> '{"queue": "quarantine", "state": "failed", "dead_letter": true, "next_retry_at": null, "result": {"discarded_by": "op:Ada"}}', 'discarded: a dead letter') from switchboard.discard_quarantined(:'id', :'ada') t;
select test.conflict(format('select switchboard.%s_quarantined(%L)', f, :'id'), f || ' of a discarded one') from unnest('{release,discard}'::text[]) f;
select ok(test.same(call, :'id', test.endpoint('a2')), 'discarded, as an unknown id: ' || split_part(call, '(', 1)) from test.by_id;
select test.conflict(format('select switchboard.retry_any_endpoint(%L, %L)', :'id', :'ada'), 'no retry of the operator''s');
select is((select count(*) from switchboard.list_todos(test.endpoint('a2'))), 0::bigint, 'not even listed');
select is((select dead from switchboard.queue_counts(test.endpoint('a2')) where queue = 'inbox'), 0::bigint, 'nor counted');
select test.pass('1 h'), switchboard.tick() \g /dev/null
select is(test.situation(:'id'), 'dead', 'it stays one');
select is((select array_agg(action || ' ' || actor || ' ' || (event_id::text = :'event') || ' ' || (todo_id is not null) order by action) from switchboard.webhook_audit_of(:'hook') where event_id is not null), '{"discarded op:Ada true true","released op:Ada true true"}', 'both are noted');

-- the sender tries again, the receiver is no longer held
select test.finish(test.create('a')), switchboard.hold_webhook(:'hook', false) \g /dev/null
select is(test.outcomes(test.deliver('token a', '{"secret": 2}', 'h1', 'issues')), '{a inbox old,a2 inbox new}', 'after a discard the sender''s next try is a new todo');
select switchboard.hold_webhook(:'hook', true) \g /dev/null
select test.deliver('token a', '{}', 'h2') as held \gset
select is(test.outcomes(switchboard.replay_event(test.event_of(test.made(:'held')))), '{a quarantine old,a2 quarantine old}', 'a replay does not go by what is held');
select switchboard.hold_webhook(:'hook', false) \g /dev/null
select is(test.outcomes(test.deliver('token a', '{}', 'h2')), '{a quarantine old,a2 quarantine old}', 'what is held stays held, whatever comes after');
select is(test.deliver('token a', '{}', 'h3') -> 'created', '2', 'what is new does not');

-- a replay of what was discarded
select is(test.outcomes(switchboard.replay_event(:'event', 'test-a2', :'ada')), '{a2 inbox old}', 'a replay does not go by a live todo with its key');
select test.finish(t.id::text, 'a2') from switchboard.list_todos(test.endpoint('a2'), 'inbox', 'pending') t where t.payload = '{"secret": 2}' \g /dev/null
select test.heard('todo_ready') \g /dev/null
select switchboard.replay_event(:'event', 'test-a2', :'ada') as again \gset
select is(test.outcomes(:'again'), '{a2 inbox new}', 'once that has ended it makes a new one');
select is(test.heard('todo_ready'), array[test.endpoint('a2') || ':inbox'], 'which rings');
select is(switchboard.read_event(test.endpoint('a2'), test.event_of(test.made(:'again', 'a2'))) ->> 'text', '{"secret": 1}', 'and whose event can be read, though its first todo is in quarantine still');
select is(test.stored(:'id') ->> 'queue', 'quarantine', 'the discarded one stays what it is');

-- replay: on the live targets, where none is live
select test.clear() \g /dev/null
truncate switchboard.events, switchboard.webhook_audit;
select test.deliver('token a', 'payload=%7B%22number%22%3A7%7D', 'r1', 'issues', '{"number": 7}', 'application/x-www-form-urlencoded') as got \gset
select test.event_of(test.made(:'got')) as event \gset
select is(test.outcomes(switchboard.replay_event(:'event', p_actor_human_id => :'ada')), '{a inbox old,a2 inbox old}', 'replay: where a todo is live, that one stands');
select test.finish(test.made(:'got')) \g /dev/null
select switchboard.replay_event(:'event', p_actor_human_id => :'ada') as again \gset
select is(test.outcomes(:'again'), '{a inbox new,a2 inbox old}', 'where none is live, a new one');
select is((select array_agg(k order by k) from jsonb_object_keys(:'again'::jsonb) k), '{created,todos}', 'the answer');
select ok(test.stored(test.made(:'again')) @> (jsonb_build_object('event_id', :'event', 'idempotency_key', :'hook' || ':r1') || '{"payload": {"number": 7}, "title": "issues #7", "kind": "issues", "source": "github", "trust_mode": "signed", "verified": true, "queue": "inbox", "state": "pending", "attempt": 0}'), 'it is as the delivery was, a form-encoded one');
select is((select jsonb_agg(r - '{at,todo_id}'::text[] order by r ->> 'endpoint_id' = test.a(), r ->> 'created') from jsonb_array_elements(switchboard.get_event_any_endpoint(:'event') -> 'replays') r), jsonb_build_array(
    jsonb_build_object('actor', 'op:Ada', 'endpoint_id', test.endpoint('a2'), 'created', false), jsonb_build_object('actor', 'op:Ada', 'endpoint_id', test.endpoint('a2'), 'created', false), jsonb_build_object('actor', 'op:Ada', 'endpoint_id', test.a(), 'created', false), jsonb_build_object('actor', 'op:Ada', 'endpoint_id', test.a(), 'created', true)), 'each with audit: who, where, whether it made one');
select is((select count(*) from jsonb_array_elements(switchboard.get_event_any_endpoint(:'event') -> 'todos')), 3::bigint, 'the event names all todos that were made of it');
select is((select count(*) from switchboard.events), 2::bigint, 'it is stored once a target still');
select is(test.outcomes(switchboard.replay_event(:'event', e, :'ada')), array['a2 inbox old'], 'to one target: ' || n) from (values (test.endpoint('a2'), 'by id'), ('test-a2', 'by slug')) v(e, n);
select test.conflict(format('select switchboard.replay_event(%L, %L, %L)', :'event', e, :'ada'), 'to no target: ' || n) from (values (test.b(), 'another human''s'), (test.unknown(), 'an unknown one'), ('x', 'a malformed one')) v(e, n);
select test.not_found(format('select switchboard.replay_event(%L, p_actor_human_id => %L)', i, h), 'no event: ' || n) from (values (:'event', :'bob', 'of another human'), (test.unknown(), :'ada', 'unknown'), ('x', null, 'malformed'), (null, null, 'NULL')) v(i, h, n);
-- to a target that was added since, and not to one that is gone
select test.vend('a3', test.human('a'), '{inbox}') \g /dev/null
select switchboard.add_webhook_route(test.a(), :'hook', 'test-a3'), switchboard.revoke_endpoint(test.endpoint('a2')) \g /dev/null
select switchboard.replay_event(:'event') as again \gset
select is(test.outcomes(:'again'), '{a inbox old,a3 inbox new}', 'to the targets that the receiver has now');
select is(array(select (t ->> 'endpoint_id')::uuid from jsonb_array_elements(:'again'::jsonb -> 'todos') with ordinality u(t, n) order by n), array(select id::uuid from test.endpoints where name in ('a', 'a3') order by 1), 'in order of endpoint, as a delivery');
select is(switchboard.read_event(test.endpoint('a3'), :'event') ->> 'text', 'payload=%7B%22number%22%3A7%7D', 'where it is read like any other');
-- held: a replay goes to the queue it was meant for
select switchboard.hold_webhook(:'hook', true), test.finish(test.made(:'again', 'a3'), 'a3') \g /dev/null
select is(test.outcomes(switchboard.replay_event(:'event', 'test-a3')), '{a3 inbox new}', 'a held receiver: a replay is wanted');
-- the receiver is deleted
select switchboard.delete_webhook(test.a(), :'hook') \g /dev/null
select test.finish(t.id::text, e.name) from switchboard.todos t join test.endpoints e on e.id = t.endpoint_id::text where t.state = 'pending' \g /dev/null
select is(test.outcomes(switchboard.replay_event(:'event', p_actor_human_id => :'ada')), '{a inbox new,a3 inbox new}', 'after its receiver was deleted: the endpoints that got it, as far as they are live');
select switchboard.set_grant(test.endpoint('a3'), '{r}'), switchboard.set_grant(test.a(), '{r}') \g /dev/null
select test.conflict(format('select switchboard.replay_event(%L)', :'event'), 'with the queue granted to none: conflict');
select is((switchboard.webhook_endpoint(:'foreign')), test.b(), 'another''s receiver is not touched');
select test.not_found(format('select switchboard.webhook_endpoint(%L)', :'hook'), 'the deleted one is gone');
select ok(count(*) > 9 and bool_or(action = 'deleted'), 'its audit stays') from switchboard.webhook_audit_of(:'hook', 1000, :'ada');
select is_empty(format('select * from switchboard.webhook_audit_of(%L, 50, %L)', w, h), 'no audit: ' || n) from (values (:'hook', :'bob', 'of another human'), (test.unknown(), null, 'unknown'), ('x', null, 'malformed')) v(w, h, n);

-- too large for a payload
select test.made(test.deliver('token b', '[' || to_json(repeat('x', 300000)) || ']', 'large', null), 'b') as id \gset
select test.event_of(:'id') as large, test.finish(:'id', 'b') \gset
select test.made(switchboard.replay_event(:'large'), 'b') as id \gset
select is(test.stored(:'id') -> 'payload', jsonb_build_object('event_id', :'large', 'bytes', 300004, 'content_type', 'application/json', 'reason', 'the body must render to at most 262144 bytes: store it elsewhere and send a reference'), 'of one that was too large for a payload: it names the same event');
select is(switchboard.read_event(test.b(), :'large', 300000) ->> 'text', 'xx"]', 'which it reads');

-- lists
select test.clear() \g /dev/null
truncate switchboard.events, switchboard.webhook_audit;
select switchboard.set_grant(test.a(), '{q,r,inbox}'), switchboard.set_grant(test.endpoint('a3'), '{q,r,inbox}', null, 5) \g /dev/null
select test.receiver('token a', 'a', 'github', 'inbox') as hook, test.receiver('token two', 'a3', 'standard', 'q') as two, test.receiver('token g', 'a3', 'generic', 'q') \gset
select switchboard.add_webhook_route(test.a(), :'hook', 'test-a3') \g /dev/null
create table test.listed (n serial, answer jsonb);
do $$
begin
    for n in 1..3 loop
        perform test.pass('1 s');
        insert into test.listed (answer) values (test.deliver(case n when 2 then 'token b' else 'token a' end, '{"n": 1}', 'l' || n, 'push'));
    end loop;
end
$$;
create function test.events(p_webhook text default null, p_limit int default 50, p_endpoint text default null, p_before text default null, p_human uuid default null) returns text[] language sql as $$
    select array_agg(l.delivery_id || ' ' || e.name order by l.id desc, e.name) from switchboard.list_events_any_endpoint(p_webhook, p_limit, p_endpoint, p_before, p_human) l join test.endpoints e on e.id = l.endpoint_id::text
$$;
select is(test.events(), '{l3 a,l3 a3,l2 b,l1 a,l1 a3}', 'one row a target');
select results_eq('select id, endpoint_id from switchboard.list_events_any_endpoint()', 'select id, endpoint_id from switchboard.events order by id desc, endpoint_id', 'newest first');
select is((select array_agg(distinct split_part(x, ' ', 1)) from unnest(test.events(p_human => h)) x), e, 'of ' || n) from (values (:'ada'::uuid, '{l1,l3}'::text[], 'Ada'), (:'bob', '{l2}', 'Bob')) v(h, e, n);
select is(test.events(w, 50, e, null, h), x, n) from (values (:'foreign', null, null::uuid, '{"l2 b"}'::text[], 'of one receiver'), (:'two', null, null, null, 'of one without any'), (:'foreign', null, :'ada', null, 'of another human''s'), ('x', null, null, null, 'of a malformed one'),
    (null, test.a(), null, '{"l3 a","l1 a"}', 'of one endpoint'), (null, test.b(), :'ada', null, 'of another human''s endpoint'), (null, 'x', null, null, 'of a malformed endpoint')) v(w, e, h, x, n);
create function test.pages(p_limit int) returns text[] language plpgsql as $$
declare
    v_all text[] := '{}';
    v_page text[];
    v_before text;
begin
    loop
        v_page := test.events(null, p_limit, null, v_before);
        exit when v_page is null or cardinality(v_all) > 50;
        v_all := v_all || v_page;
        select id::text into v_before from switchboard.list_events_any_endpoint(null, p_limit, null, v_before) order by id limit 1;
    end loop;
    return v_all;
end
$$;
select is(test.pages(l), test.events(), 'page by page nothing is left out and nothing comes twice: ' || l) from generate_series(1, 6) l;
select test.made(answer) as id, test.event_of(test.made(answer)) as event from test.listed where n = 3 \gset
select ok(to_jsonb(l) @> jsonb_build_object('id', :'event', 'webhook_id', :'hook', 'todo_id', :'id') and to_jsonb(l) @> '{"source_type": "github", "event_type": "push", "delivery_id": "l3", "trust_mode": "signed", "verified": true, "queue": "inbox", "bytes": 8, "todo_state": "pending", "title": "push"}', 'a row') from switchboard.list_events_any_endpoint(p_endpoint_id => test.a(), p_limit => 1) l;
select test.invalid(format('select * from switchboard.list_events_any_endpoint(p_limit => %s)', l), 'limit', 'no limit: ' || l) from unnest('{0,-1}'::int[]) l;
-- one event, and its body
select ok(e @> jsonb_build_object('id', :'event', 'webhook_id', :'hook') and e @> '{"source_type": "github", "event_type": "push", "delivery_id": "l3", "trust_mode": "signed", "verified": true, "queue": "inbox", "content_type": "application/json", "bytes": 8, "headers": {"x": "y"}, "verification": {"scheme": "github", "secret": "current"}, "replays": []}', 'one event')
    from switchboard.get_event_any_endpoint(:'event', :'ada') e;
select is((select array_agg(t ->> 'slug' || ' ' || (t ->> 'queue') || ' ' || (t ->> 'state') order by t ->> 'slug') from jsonb_array_elements(switchboard.get_event_any_endpoint(:'event') -> 'todos') t), '{"test-a inbox pending","test-a3 inbox pending"}', 'with its todos');
select test.not_found(format('select switchboard.%s(%L, p_actor_human_id => %L)', f, i, h), f || ': ' || n) from unnest('{get_event_any_endpoint,read_event_any_endpoint}'::text[]) f, (values (:'event', :'bob', 'of another human'), (test.unknown(), :'ada', 'unknown'), ('x', null, 'malformed'), (null, null, 'NULL')) v(i, h, n);
select is(switchboard.read_event_any_endpoint(:'event', o, l, :'ada') - '{content_type,event_type,trust_mode}'::text[], switchboard.read_event(test.a(), :'event', o, l) - '{content_type,event_type,trust_mode}'::text[], format('read_event_any_endpoint: %s bytes from %s', l, o)) from (values (0, 3), (3, 100), (null, null), (99, 1)) v(o, l);
select test.invalid(format('select switchboard.read_event_any_endpoint(%L, %s, %s)', :'event', o, l), f, format('no piece: offset %s, limit %s', o, l)) from (values (-1, 1, 'offset'), (0, 0, 'limit')) v(o, l, f);
-- a replay on one target that names what another delivery made there
select test.finish(test.made(answer)), test.finish(test.made(answer, 'a3'), 'a3') from test.listed where n = 1 \g /dev/null
select test.deliver('token a', '{"n": 2}', 'l1', 'push') as later \gset
select test.finish(test.made(:'later')) \g /dev/null
select test.event_of(test.made(answer)) as event from test.listed where n = 1 \gset
select is(test.outcomes(switchboard.replay_event(:'event')), '{a inbox new,a3 inbox old}', 'a replay beside the todo of a later delivery with the same id');
select is((select array_agg(t ->> 'slug' order by t ->> 'id') from jsonb_array_elements(switchboard.get_event_any_endpoint(:'event') -> 'todos') t where t ->> 'id' = test.made(:'later', 'a3')), null, 'that todo is none of this event''s');
select is(jsonb_array_length(switchboard.get_event_any_endpoint(:'event') -> 'replays'), 2, 'the replay is, on both');

-- who may
select test.login('app', 'switchboard_app') as app \gset
create table test.operated (call text);
insert into test.operated values ('webhook_endpoint(%1$L, %3$L)'), ('hold_webhook(%1$L, true, %3$L)'), ('release_quarantined(%2$L, %3$L)'), ('discard_quarantined(%2$L, %3$L)'), ('list_events_any_endpoint(p_actor_human_id => %3$L)'), ('get_event_any_endpoint(%2$L, %3$L)'), ('read_event_any_endpoint(%2$L, p_actor_human_id => %3$L)'), ('replay_event(%2$L, p_actor_human_id => %3$L)'), ('webhook_audit_of(%1$L, p_actor_human_id => %3$L)');
select is(test.as_login(:'app', 'select * from switchboard.' || format(call, :'hook', test.unknown(), null)) ->> 'error', 'SB403', 'the gateway must name the human: ' || split_part(call, '(', 1)) from test.operated;
select isnt(test.as_login(:'app', 'select * from switchboard.' || format(call, :'hook', test.unknown(), :'ada')) ->> 'error', 'SB403', 'then it may: ' || split_part(call, '(', 1)) from test.operated;
select is(test.as_login(:'app', 'select * from switchboard.' || format(call, :'hook', test.unknown(), test.unknown())) ->> 'error', 'SB404', 'no such human: ' || split_part(call, '(', 1)) from test.operated;
grant switchboard_operator to :"bound";
select is(test.as_login(:'bound', 'select * from switchboard.' || format(call, :'hook', test.unknown(), h)) ->> 'error', 'SB403', format('a bound login is no operator, %s: %s', n, split_part(call, '(', 1))) from test.operated, (values (null, 'naming none'), (:'ada', 'naming its human')) v(h, n);

-- retention: a replayed event outlives its first todo, and is read by what was replayed; nothing else stays for ever
select test.clear() \g /dev/null
truncate switchboard.events, switchboard.webhook_audit;
-- days later; what ended is folded (which waits for the transactions of other tests) and pruned
create function test.days(p_days int) returns bigint language plpgsql as $$
begin
    perform test.pass(make_interval(days => p_days));
    truncate switchboard.todo_attempts;
    return switchboard.prune();
end
$$;
create function test.kept() returns text language sql as $$
    select format('%s todos, %s events, %s audit', (select count(*) from switchboard.todos), (select count(*) from switchboard.events), (select count(*) from switchboard.webhook_audit))
$$;
select test.deliver('token b', '{"n": "first"}', 'p1') as p1, test.deliver('token b', '{"n": "gone"}', 'p2') as p2, switchboard.hold_webhook(:'foreign', true) \gset
select test.deliver('token b', '{"n": "held"}', 'p3') as p3, test.deliver('token b', '{"n": "discarded"}', 'p4') as p4, switchboard.hold_webhook(:'foreign', false) \gset
select test.event_of(test.made(:'p1', 'b')) as event, test.event_of(test.made(:'p4', 'b')) as discarded, switchboard.discard_quarantined(test.made(:'p4', 'b')), test.finish(test.made(:'p1', 'b'), 'b'), test.finish(test.made(:'p2', 'b'), 'b') \gset
select is(test.days(20), 0::bigint, 'within 30 days nothing goes');
select test.made(switchboard.replay_event(:'event'), 'b') as again \gset
select test.days(20) \g /dev/null
select is((select array_agg(distinct idempotency_key) from switchboard.todos), array[:'foreign' || ':p1', :'foreign' || ':p3'], 'todos that ended are gone, a discarded one, too; what is held stays');
select is((select array_agg(delivery_id order by delivery_id) from switchboard.events), '{p1,p3}', 'so are their events, but for the one that was replayed');
select is(switchboard.read_event(test.b(), :'event') ->> 'text', '{"n": "first"}', 'its replayed todo reads it, after the first todo was pruned');
select is(switchboard.read_event_any_endpoint(:'event') ->> 'text', '{"n": "first"}', 'and so does the operator');
select test.not_found(format('select switchboard.replay_event(%L)', :'discarded'), 'what is gone is not replayed');
select is(test.made(switchboard.replay_event(:'event'), 'b'), :'again', 'a replay while it is live is that one');
select test.finish(:'again', 'b') \g /dev/null
select isnt(test.made(switchboard.replay_event(:'event'), 'b'), :'again', 'once it ended a new one, after the first was pruned');
select test.days(35) \g /dev/null
select is((select array_agg(state || ' ' || (payload ->> 'n') order by payload ->> 'n') from switchboard.todos), '{"pending first","pending held"}', 'days later it waits still');
select is(switchboard.read_event(test.b(), :'event') ->> 'text', '{"n": "first"}', 'with its event');
select test.finish(t.id::text, 'b') from switchboard.list_todos(test.b(), 'q', 'pending') t \g /dev/null
select switchboard.release_quarantined(test.made(:'p3', 'b')) \g /dev/null
select is(switchboard.read_event(test.b(), test.event_of(test.made(:'p3', 'b'))) ->> 'text', '{"n": "held"}', 'what was held for weeks is released with its event');
select test.finish(test.made(:'p3', 'b'), 'b'), test.days(31), test.days(31) \g /dev/null
select is(test.kept(), '0 todos, 0 events, 0 audit', 'in the end nothing is kept');
-- one target's copy goes with its todo; a replay to it brings it back
select test.receiver('token r', 'a', 'github', 'q') as hook \gset
select switchboard.add_webhook_route(test.a(), :'hook', 'test-a3'), test.vend('a9', :'ada', '{q}') \g /dev/null
select test.deliver('token r', '{"n": 1}', 'c1') as got \gset
select test.event_of(test.made(:'got')) as event, test.finish(test.made(:'got')), test.days(31) \gset
select is((select array_agg(e.name) from switchboard.events v join test.endpoints e on e.id = v.endpoint_id::text), '{a3}', 'the copy of the target that still works on it is left');
select is(test.outcomes(switchboard.replay_event(:'event')), '{a q new,a3 q old}', 'a replay from there');
select is(switchboard.read_event(test.a(), :'event') ->> 'text', '{"n": 1}', 'and it can be read on the other one again');

-- an endpoint that is revoked takes what is held on it along
select test.receiver('token v', 'a9') as hook \gset
select switchboard.hold_webhook(:'hook', true), test.made(test.deliver('token v'), 'a9') as held \gset
select switchboard.revoke_endpoint(test.endpoint('a9')) \g /dev/null
select is(test.situation(:'held') || ' in ' || (test.stored(:'held') ->> 'queue'), 'dead in quarantine', 'revoked: what was held is a dead letter');
select test.conflict(format('select switchboard.%s_quarantined(%L)', f, :'held'), 'revoked: no ' || f) from unnest('{release,discard}'::text[]) f;
select test.conflict(format('select switchboard.replay_event(%L)', test.event_of(:'held')), 'revoked: no replay, for there is no target');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
