-- functions/81_board_places: the pages of endpoints, receivers and hooks. Their whole shape, field by field, is in py/tests/test_board_pages.py.
select no_plan();
select test.stop_clock(), test.set_up() \g /dev/null
select test.grant_all(e) from unnest('{a,a2,b}'::text[]) e \g /dev/null
select test.human('a') as ada, test.human('b') as bob \gset
create function test.page(p_page text, p_args jsonb default '{}', p_human text default 'a') returns jsonb language plpgsql as $$
begin
    return case p_page
        when 'endpoints' then switchboard.board_endpoints(test.human(p_human), p_args, switchboard.now())
        when 'endpoint' then switchboard.board_endpoint_page(test.human(p_human), p_args, switchboard.now())
        when 'receivers' then switchboard.board_receivers(test.human(p_human), p_args, switchboard.now())
        when 'hooks' then switchboard.board_hooks(test.human(p_human), p_args, switchboard.now()) end;
end $$;
-- A field of each row of a list, in its order.
create function test.each(p_list jsonb, p_field text) returns text[] language sql immutable as $$
    select coalesce(array_agg(coalesce(r ->> p_field, r #>> '{endpoint,slug}') order by n), '{}') from jsonb_array_elements(p_list) with ordinality u (r, n)
$$;
create function test.row(p_list jsonb, p_field text, p_value text) returns jsonb language sql immutable as $$
    select r from jsonb_array_elements(p_list) r where r ->> p_field = p_value
$$;

-- tenancy: what is somebody else's is not there
select test.not_found(format('select test.page(''endpoint'', %L)', a), 'no endpoint: ' || n) from (values ('{"slug": "test-b"}', 'of another human'), ('{"slug": "test-x"}', 'unknown'), ('{"slug": ""}', 'empty'), ('{"slug": null}', 'null'), ('{}', 'not said')) v(a, n);
select test.not_found(format('select test.page(''endpoint'', %L)', jsonb_build_object('slug', test.a())), 'no endpoint: an id is no slug');
select is(test.error_of($$ select test.page('endpoint', '{"slug": "test-b"}') $$), test.error_of($$ select test.page('endpoint', '{"slug": "test-x"}') $$), 'foreign and unknown, word for word');
select is(test.each(test.page('endpoints', p_human => h) -> 'endpoints', 'slug'), e, 'the endpoints of ' || h) from (values ('a', '{test-a,test-a2}'::text[]), ('b', '{test-b}')) v(h, e);
select test.receiver('ta', 'a', 'github', 'inbox') as hook, test.receiver('tb', 'b', 'github', 'q') as foreign, test.receiver('t2', 'a2', 'open', 'q') as open \gset
select test.notify_hook('a'), test.notify_hook('b') \g /dev/null
select ok(not test.page(p)::text ~ 'test-b|"Bob"', 'nothing of another human: ' || p) from unnest('{endpoints,receivers,hooks}'::text[]) p;
select ok(not test.page('endpoint', '{"slug": "test-a"}')::text ~ 'test-b|"Bob"', 'nor on the page of an endpoint');
select is(jsonb_array_length(test.page('receivers', p_human => 'b') -> 'receivers') + jsonb_array_length(test.page('hooks', p_human => 'b') -> 'hooks'), 2, 'which that one sees');

-- all endpoints
select test.create('a', 'q'), test.create('a', 'q', p_assignee => 'agent:x'), test.create('a', 'r'), test.make('claimed'), test.make('parked'), test.make('done') \g /dev/null
select test.make('dead') as dead \gset
select switchboard.set_admission_policy(test.a(), 'q', '{"max_in_flight": 5}', :'ada') \g /dev/null
select is(test.row(test.page('endpoints') -> 'endpoints', 'slug', 'test-a') - '{id,created,last_seen}'::text[],
    '{"slug": "test-a", "line": "quiet", "attached": null, "expires": null, "revoked": null, "queues_more": 0, "queues": ["inbox", "q", "r"], "waiting": 3, "connected": 1, "dead": 1, "receivers": 1, "hooks": 1, "budgets": 1}', 'an endpoint in the list');
select is(test.row(test.page('endpoints') -> 'endpoints', 'slug', 'test-a2') ->> 'line', 'never', 'one that nobody has come to');
select switchboard.note_presence(gen_random_uuid(), jsonb_build_object(test.endpoint('a2'), '[{"client": "c", "age": 3, "stream": true}, {"client": null, "age": 1, "stream": false}]'::jsonb), array[test.endpoint('a2')]) \g /dev/null
select is(test.row(test.page('endpoints') -> 'endpoints', 'slug', 'test-a2') - '{id,created,queues,queues_more,expires,revoked,waiting,connected,dead,receivers,hooks,budgets}'::text[],
    jsonb_build_object('slug', 'test-a2', 'line', 'attached', 'attached', 1, 'last_seen', switchboard.board_time(date_trunc('minute', switchboard.now()), switchboard.now())), 'one that has a session which listens');
select is(test.page('endpoints', '{"after": "test-a"}') #>> '{endpoints,0,slug}', 'test-a2', 'the next page begins behind a slug');
select is(test.page('endpoints', '{"after": ""}') -> 'after', 'null', 'an empty argument is none');
select is(test.page('endpoints') -> 'next', 'null', 'all of them: there is no next page');
select test.vend('many' || lpad(n::text, 2, '0'), :'bob') from generate_series(1, 50) n \g /dev/null
select is(jsonb_array_length(p -> 'endpoints') || ' ' || (p ->> 'next'), '50 test-many49', 'at most 50 on a page, and from where to go on') from test.page('endpoints', p_human => 'b') p;
select is(test.each(test.page('endpoints', jsonb_build_object('after', test.page('endpoints', p_human => 'b') ->> 'next'), 'b') -> 'endpoints', 'slug'), '{test-many50}', 'and the rest on the next');
select is(test.page('endpoints') -> 'form', jsonb_build_object('slug', '', 'queues', '', 'verbs', switchboard.default_verbs(), 'webhook_max', '1', 'days', '', 'error', null, 'field', null), 'the form to vend one begins with what is usual');
select is((select array_agg(v ->> 'name' order by n) from jsonb_array_elements(test.page('endpoints') -> 'verbs') with ordinality u (v, n)), array(select name from switchboard.tools() with ordinality), 'every verb can be granted');
select is((select array_agg(v ->> 'name' order by v ->> 'name') from jsonb_array_elements(test.page('endpoints') -> 'verbs') v where (v -> 'default')::boolean), array(select v from unnest(switchboard.default_verbs()) v order by v), 'those that are usual are marked');

-- one endpoint
create function test.place(p_slug text default 'test-a') returns jsonb language sql as $$ select test.page('endpoint', jsonb_build_object('slug', p_slug)) $$;
select is(test.place() -> 'endpoint' -> 'queues' -> 1 -> 'waiting', '2', 'an endpoint as on the exchange');
select is(test.place() #> '{endpoint,live_todos}', '5', 'what its revocation would dead-letter: pending, held and parked');
select is(test.place() #> '{endpoint,webhook_max}', '100', 'its grant');
select is(test.place() #>> '{form,queues}', E'inbox\nq\nr', 'the form of the grant begins with what it has');
select test.pass('1 s'), switchboard.rotate_credential(test.a(), 60) \g /dev/null
select is((select array_agg((c #>> '{expires,in}')::numeric order by n) from jsonb_array_elements(test.place() #> '{endpoint,credentials}') with ordinality u (c, n)), '{60,null}', 'while the grace of a rotation lasts there are two credentials');
select test.pass('61 s') \g /dev/null
select is(jsonb_array_length(test.place() #> '{endpoint,credentials}'), 1, 'then the new one alone');
select ok(not test.place()::text ~ 'sbk_|digest|sealed', 'no secret, no digest');
select is(test.place('test-a2') -> 'sessions', '[]', 'a server that fell silent has no sessions any more');
select switchboard.note_presence(gen_random_uuid(), jsonb_build_object(test.endpoint('a2'), '[{"client": "c", "age": 3, "stream": true}, {"client": null, "age": 1}]'::jsonb), '{}') \g /dev/null
select is(test.place('test-a2') -> 'sessions', jsonb_build_array(
    jsonb_build_object('client', 'c', 'since', switchboard.board_time(switchboard.now() - interval '3 s', switchboard.now()), 'stream', true),
    jsonb_build_object('client', null, 'since', switchboard.board_time(switchboard.now() - interval '1 s', switchboard.now()), 'stream', false)), 'its sessions');
select is(test.each(test.place() -> 'receivers', 'id'), array[:'hook'], 'its receivers alone');
select is(jsonb_array_length(test.place('test-a2') -> 'hooks'), 0, 'and its hooks');

-- receivers
select is((select array_agg(i order by i) from unnest(test.each(test.page('receivers') -> 'receivers', 'id')) i), (select array_agg(i order by i) from unnest(array[:'hook', :'open']) i), 'the receivers of all own endpoints');
select is(test.row(test.page('receivers') -> 'receivers', 'id', :'hook') - '{id,created}'::text[], jsonb_build_object('endpoint', jsonb_build_object('id', test.a(), 'slug', 'test-a'), 'source_type', 'github', 'target_queue', 'inbox',
    'trust_mode', 'signed', 'held', false, 'routes', '[]'::jsonb, 'live', true, 'previous_valid_until', null, 'last_delivery', null, 'quarantined', 0), 'a receiver');
select switchboard.add_webhook_route(test.a(), :'hook', 'test-a2'), switchboard.rotate_webhook(test.a(), :'hook', '\xbb', test.digest('tc')) \g /dev/null
select test.deliver('ta', '{"x": 1}', 'd1'), test.pass('10 s'), switchboard.hold_webhook(:'hook', true, :'ada'), test.deliver('ta', '{"x": 2}', 'd2'), test.deliver('ta', '{"x": 3}', 'd3') \g /dev/null
select test.pass('5 s') \g /dev/null
create function test.wire() returns jsonb language sql as $$ select test.row(test.page('receivers') -> 'receivers', 'source_type', 'github') $$;
select is(test.wire() -> 'routes', '[{"slug": "test-a2", "live": true}]', 'where it goes, too');
select is((test.wire() #>> '{last_delivery,in}')::numeric, -5.0, 'its last delivery');
select is((test.wire() #>> '{previous_valid_until,in}')::numeric, 86385.0, 'how long the old secret is accepted');
select is(test.wire() -> 'held', 'true', 'it is held');
select is(test.wire() -> 'quarantined', '4', 'and what waits of it, on all its targets');
select is(test.row(test.page('receivers') -> 'receivers', 'id', :'open') -> 'quarantined', '0', 'of this one alone');
select switchboard.discard_quarantined(id::text, :'ada') from switchboard.todos where queue = 'quarantine' and endpoint_id::text = test.a() \g /dev/null
select is(test.wire() -> 'quarantined', '2', 'what was discarded does not wait');
select switchboard.set_grant(test.endpoint('a2'), '{r}') \g /dev/null
select is(test.wire() -> 'routes', '[{"slug": "test-a2", "live": false}]', 'a target that does not take the queue any more');
select test.pass('1 day') \g /dev/null
select is(test.wire() -> 'previous_valid_until', 'null', 'the old secret is over');
select switchboard.revoke_endpoint(test.a()) \g /dev/null
select is(test.wire() -> 'live', 'false', 'its endpoint is revoked');
select is(test.place() #>> '{endpoint,line}', 'revoked', 'which is still shown');
select is(test.place() #> '{endpoint,live_todos}', '0', 'with nothing left to dead-letter');
-- pages of them; a cursor that is none of theirs begins anew
insert into switchboard.endpoint_webhooks (endpoint_id, source_type, target_queue, trust_mode, token_digest, sealed_secret, created_at)
    select test.endpoint('b')::uuid, 'open', 'q', 'open', sha256(n::text::bytea), '', switchboard.now() + n * interval '1 s' from generate_series(1, 100) n;
select array_agg(id::text order by created_at desc, id desc) as all from switchboard.endpoint_webhooks where endpoint_id::text = test.b() \gset
select test.page('receivers', p_human => 'b') as first \gset
select is(test.each(:'first'::jsonb -> 'receivers', 'id'), (:'all'::text[])[:50], 'the newest 50');
select test.page('receivers', jsonb_build_object('before', :'first'::jsonb -> 'next'), 'b') as second \gset
select is(test.each(:'second'::jsonb -> 'receivers', 'id'), (:'all'::text[])[51:100], 'then the next');
select test.page('receivers', jsonb_build_object('before', :'second'::jsonb -> 'next'), 'b') as third \gset
select is(test.each(:'third'::jsonb -> 'receivers', 'id') || coalesce(:'third'::jsonb ->> 'next', 'end'), (:'all'::text[])[101:] || 'end'::text, 'to the last');
select is(test.page('receivers', jsonb_build_object('before', b)), test.page('receivers'), 'no cursor of theirs: ' || n) from (values (:'foreign', 'a receiver of another human'), ('x', 'malformed'), ('', 'empty')) v(b, n);

-- with many routes a page has fewer of them
insert into switchboard.webhook_routes (endpoint_id, webhook_id, target_endpoint_id) select w.endpoint_id, w.id, e.id::uuid
    from (select * from switchboard.endpoint_webhooks k where k.endpoint_id::text = test.b() order by k.created_at desc, k.id desc limit 20) w, (select * from test.endpoints where name like 'many%' order by name limit 31) e;
select is(test.each(test.page('receivers', p_human => 'b') -> 'receivers', 'id'), (:'all'::text[])[:9], 'with 31 routes each');
select is(test.page('receivers', p_human => 'b') ->> 'next', (:'all'::text[])[9], 'the others follow');

-- hooks
select test.notify_hook('a2') as fine, test.notify_hook('a2', '{r}', null, 'https://agent.example/unsigned') as unsigned, test.notify_hook('a2', null, '\xaa', 'https://agent.example/failing') as failing, test.notify_hook('a2', null, '\xaa', 'https://agent.example/off') as off \gset
update switchboard.notify_hooks set failures = 3, last_failed_at = switchboard.now() - interval '7 s', last_status = 'timeout' where id::text = :'failing';
update switchboard.notify_hooks set failures = 10, disabled_at = switchboard.now() where id::text = :'off';
update switchboard.notify_hooks set last_delivered_at = switchboard.now() - interval '3 s', last_status = '2xx' where id::text = :'fine';
select test.create('a2', 'r') \g /dev/null
select is(test.each(test.page('hooks') -> 'hooks', 'health'), '{off,failing,unsigned,ok,ok}', 'hooks in trouble come first');
select is(test.row(test.page('hooks') -> 'hooks', 'id', :'failing') - '{id,created}'::text[], jsonb_build_object('endpoint', jsonb_build_object('id', test.endpoint('a2'), 'slug', 'test-a2'), 'url', 'https://agent.example/failing',
    'queues', null, 'health', 'failing', 'failures', 3, 'disabled', null, 'last_delivered', null, 'last_failed', switchboard.board_time(switchboard.now() - interval '7 s', switchboard.now()), 'last_status', 'timeout', 'waiting', 1), 'a hook');
select is(test.row(test.page('hooks') -> 'hooks', 'id', :'unsigned') -> 'queues', '["r"]', 'the queues it covers');
select is(test.row(test.page('hooks') -> 'hooks', 'id', :'off') #>> '{disabled,in}', switchboard.board_time(switchboard.now(), switchboard.now()) ->> 'in', 'since when it is off');
select ok(not test.page('hooks')::text ~ 'sealed|\\\\xaa', 'no secret');
insert into switchboard.notify_hooks (endpoint_id, url, created_at) select e.id::uuid, 'https://agent.example/', switchboard.now() from test.endpoints e, generate_series(1, 2) where e.human_id = :'bob';
select is(jsonb_array_length(test.page('hooks', p_human => 'b') -> 'hooks'), 50, 'at most 50');

-- a human without anything
select id as eve from switchboard.create_human('Eve') \gset
select is(switchboard.board_endpoints(:'eve', '{}', switchboard.now()) - '{verbs,form}'::text[], '{"endpoints": [], "next": null, "after": null}', 'no endpoints');
select is(switchboard.board_receivers(:'eve', '{}', switchboard.now()), '{"receivers": [], "next": null}', 'no receivers');
select is(switchboard.board_hooks(:'eve', '{}', switchboard.now()), '{"hooks": [], "hooks_more": 0}', 'no hooks');

select * from finish();
