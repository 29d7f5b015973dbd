-- functions/75_api_intake: REST on receivers, deliveries and hooks.
select no_plan();
select test.set_up(), test.stop_clock(), test.grant_all('a'), test.grant_all('a2'), test.grant_all('b') \g /dev/null
select slug as slug_a, id as id_a from test.endpoints where name = 'a' \gset
select slug as slug_a2, id as id_a2 from test.endpoints where name = 'a2' \gset
select slug as slug_b, id as id_b from test.endpoints where name = 'b' \gset
create function test.receiver_for(p_more jsonb default '{}') returns jsonb language sql as $$ select '{"source_type": "github", "target_queue": "q"}' || jsonb_build_object('endpoint', test.a()) || p_more $$;
create function test.audited(p_id text) returns text[] language sql as $$
    select array_agg(a ->> 'actor' || ' ' || (a ->> 'action')) from jsonb_array_elements(test.api_on('get_webhook', p_id) -> 'audit') a
$$;

-- a receiver, from its making to its end
select test.api('create_webhook', p_body => test.receiver_for(jsonb_build_object('endpoint', :'slug_a')), p_shell => test.sealed('one')) as made \gset
select (:'made'::jsonb) #>> '{webhook,id}' as hook \gset
select is(((:'made'::jsonb) -> 'webhook') - '{id}'::text[], jsonb_build_object('endpoint_id', :'id_a', 'endpoint', :'slug_a', 'source_type', 'github', 'target_queue', 'q', 'trust_mode', 'signed', 'held', false, 'live', true,
    'routes', 0, 'previous_valid_until', null, 'created_at', switchboard.now()), 'a receiver is made');
select is((:'made'::jsonb) - 'webhook', '{"ingest_url": "$ingest_url", "signing_secret": "$secret"}', 'the shell fills in its address and its secret');
select is(test.api('create_webhook', p_body => test.receiver_for('{"source_type": "cairn"}'), p_shell => test.sealed('token')) ->> 'signing_secret', case when switchboard.signs('cairn') then '$secret' else '$token' end, 'or its token, where it signs nothing');
select ok(count(*) > 0, 'deliveries are taken at its address') from switchboard.endpoint_webhooks where token_digest = test.digest('one');
select is(test.api('create_webhook', p_body => test.receiver_for(b), p_shell => test.sealed('x', f)) -> 'error' ->> 'field', e, 'refused: ' || b::text || ' ' || f) from (values
    ('{"source_type": "fax"}'::jsonb, 'made', 'source_type'), ('{"target_queue": "Q"}', 'made', 'queue'), ('{"source_type": "open"}', 'text', 'signing_secret'), ('{"source_type": "standard"}', 'malformed', 'signing_secret'), ('{"x": 1}', 'made', 'x')) v(b, f, e);
select is(test.api('create_webhook', p_body => test.receiver_for()) -> 'error' ->> 'field', 'signing_secret', 'without what the shell adds there is none');
select is(test.code(test.api('create_webhook', p_body => test.receiver_for('{"target_queue": "nowhere"}'), p_shell => test.sealed('x'))), 'forbidden', 'a queue that is not granted');
select is(test.audited(:'hook'), '{"op:Ada created"}', 'the human stands in the audit');
select is((test.api_on('hold_webhook', :'hook') #> '{webhook,held}', test.api_on('unhold_webhook', :'hook') #> '{webhook,held}')::text, '(true,false)', 'held, and no longer');
select is(test.api_on('rotate_webhook', :'hook', p_shell => test.sealed('y')) - 'webhook', '{"signing_secret": "$secret"}', 'rotated: a new secret at the same address');
select is((test.api_on('get_webhook', :'hook') #>> '{webhook,previous_valid_until}')::timestamptz, switchboard.now() + interval '24 hours', 'the old one is good for a day');

-- routes
select test.api_on('add_webhook_route', :'hook', jsonb_build_object('target_endpoint_id', t)) as routed from unnest(array[:'slug_a2']) t \gset
select is(:'routed'::jsonb, jsonb_build_object('webhook_id', :'hook', 'target_endpoint_id', :'id_a2', 'created', true), 'routed to another endpoint of the human');
select is((select count(distinct test.api_on('add_webhook_route', :'hook', jsonb_build_object('target_endpoint_id', t))) from unnest(array[:'slug_b', :'id_b', 'nobody', test.unknown()]) t), 1::bigint, 'to no other: one answer');
select is((select array_agg(r ->> 'slug') from jsonb_array_elements(test.api_on('list_webhook_routes', :'hook') -> 'routes') r), array[:'slug_a', :'slug_a2'], 'its targets');
select is(test.api_on('get_webhook', :'hook') -> 'routes', test.api_on('list_webhook_routes', :'hook') -> 'routes', 'stand with the receiver, too');
select is(test.api_on('get_webhook', :'hook') #> '{webhook,routes}', '1', 'counted but for its owner');
select is(test.api('remove_webhook_route', jsonb_build_object('id', :'hook', 'target', t)) -> 'removed', r, 'a route ended: ' || t) from (values (:'slug_b', 'false'::jsonb), (:'slug_a2', 'true')) v(t, r);
select is(test.code(test.api('remove_webhook_route', jsonb_build_object('id', :'hook', 'target', :'slug_a'))), 'conflict', 'its owner is always a target');

-- lists
select test.pass('1 s') \g /dev/null
select test.api('create_webhook', p_body => test.receiver_for(jsonb_build_object('endpoint', :'slug_a2')), p_shell => test.sealed('two')) #>> '{webhook,id}' as hook2, test.receiver('three', 'b') as foreign \gset
select is(test.pages('list_webhooks', 'webhooks', '{}', n), array[:'hook2'] || array(select id::text from switchboard.endpoint_webhooks where endpoint_id = :'id_a' order by created_at desc, id desc), 'receivers, newest first, ' || n || ' a page') from generate_series(1, 4) n;
select is(test.pages('list_webhooks', 'webhooks', jsonb_build_object('endpoint', :'slug_a2')), array[:'hook2'], 'of one endpoint');
select is((select count(distinct test.api(o, p_query => jsonb_build_object('endpoint', e))) from unnest(array[:'slug_b', :'id_b', 'nobody', '']) e), 1::bigint, o || ' of an endpoint that is not one''s own: one answer') from unnest('{list_webhooks,list_events,list_hooks}'::text[]) o;
select is(test.code(test.api(o, p_query => '{"endpoint": "nobody"}')), 'not_found', o || ': not there') from unnest('{list_webhooks,list_events,list_hooks}'::text[]) o;
select is(test.api(o, p_query => '{"cursor": "x"}') -> 'error' ->> 'field', 'cursor', o || ': no cursor') from unnest('{list_webhooks,list_events,list_hooks}'::text[]) o;
select is((select count(distinct test.api(o.name, jsonb_build_object('id', i, 'target', 'x') - case when o.input ? 'target' then '' else 'target' end, case when o.input ? 'target_endpoint_id' then '{"target_endpoint_id": "x"}'::jsonb end, p_shell => test.sealed('z')))
    from unnest(array[:'foreign', test.unknown(), 'x', '', upper(test.unknown())]) i), 1::bigint, o.name || ' of a receiver that is not one''s own: one answer') from switchboard.api_operations() o where o.path ~ '^/api/v1/webhooks/';
select is(test.code(test.api_on('delete_webhook', :'foreign')), 'not_found', 'it is not there');
select ok((select not held from switchboard.endpoint_webhooks where id::text = :'foreign'), 'and untouched');

-- deliveries
select test.made(test.deliver('one', '{"a": 1}', 'd1', 'push')) as t1, test.pass('1 s'), test.made(test.deliver('two', '{"a": 2}', 'd2', 'push'), 'a2') as t2, test.deliver('three', '{"a": 3}', 'd3') \gset
select test.event_of(:'t1') as e1, test.event_of(:'t2') as e2, test.event_of(id::text) as e3 from switchboard.todos where endpoint_id = :'id_b' \gset
select is(test.pages('list_events', 'events', '{}', n), array[:'e2', :'e1'], 'deliveries, newest first, of the human alone, ' || n || ' a page') from generate_series(1, 3) n;
select is(e, to_jsonb(l) || jsonb_build_object('endpoint', :'slug_a'), 'as list_events_any_endpoint has them') from switchboard.list_events_any_endpoint(:'hook', 1, null, null, test.human('a')) l, lateral (select test.api('list_events', p_query => jsonb_build_object('webhook', :'hook')) #> '{events,0}') x(e);
select is(test.pages('list_events', 'events', q), w, 'only: ' || n) from (values
    (jsonb_build_object('webhook', :'hook'), array[:'e1'], 'of a receiver'), (jsonb_build_object('endpoint', :'slug_a2'), array[:'e2'], 'of an endpoint'), (jsonb_build_object('webhook', :'foreign'), '{}', 'none of a foreign receiver'),
    ('{"webhook": "x"}', '{}', 'none of what is no id'), ('{"quarantine": "true"}', '{}', 'nothing is in quarantine'), ('{"quarantine": "false"}', array[:'e2', :'e1'], 'no filter')) v(q, w, n);
select is(test.api('list_events', p_query => '{"quarantine": "yes"}') -> 'error' ->> 'field', 'quarantine', 'true or false');
select is(test.api_on('get_event', :'e1') -> 'event', switchboard.get_event_any_endpoint(:'e1', test.human('a')), 'one delivery');
select is(test.api('read_event', jsonb_build_object('id', :'e1'), p_query => '{"offset": "1", "limit": "3"}') - '{id,content_type,event_type,trust_mode}'::text[], '{"bytes": 8, "offset": 1, "text": "\"a\"", "next_offset": 4}', 'its body, in pieces');
select is(test.api('read_event', jsonb_build_object('id', :'e1'), p_query => q) -> 'error' ->> 'field', f, 'refused: ' || q::text) from (values ('{"offset": "-1"}'::jsonb, 'offset'), ('{"limit": "0"}', 'limit')) v(q, f);
select is(test.api_on('replay_event', :'e1') -> 'created', '0', 'a replay finds the todo that is live');
select test.finish(:'t1') \g /dev/null
select is(test.api_on('replay_event', :'e1', jsonb_build_object('endpoint', :'slug_a')) - 'todos', '{"created": 1}', 'or makes another one');
select is((select count(distinct test.api_on('replay_event', :'e1', jsonb_build_object('endpoint', e))) from unnest(array[:'slug_b', :'id_b', 'nobody', test.unknown(), '']) e), 1::bigint, 'to an endpoint that is not one''s own: one answer');
select is(test.code(test.api_on('replay_event', :'e1', jsonb_build_object('endpoint', 'nobody'))), 'not_found', 'which is not there');
select is(test.code(test.api_on('replay_event', :'e1', jsonb_build_object('endpoint', :'slug_a2'))), 'conflict', 'one''s own that is no target');
select is((select count(distinct test.api_on(o.name, i)) from unnest(array[:'e3', test.unknown(), 'x', '', :'t1']) i), 1::bigint, o.name || ' of a delivery that is not one''s own: one answer') from switchboard.api_operations() o where o.path ~ '^/api/v1/events/';
select is((select count(*) from switchboard.todos where endpoint_id = :'id_b'), 1::bigint, 'nothing was made there');

-- quarantine
select test.api_on('hold_webhook', i) from unnest(array[:'hook', :'hook2']) i \g /dev/null
select switchboard.hold_webhook(:'foreign', true), test.pass('1 s'), test.deliver('three', '{}', 'd4') \g /dev/null
select test.pass('1 s'), test.made(test.deliver('one', '{}', 'h1')) as h1, test.pass('1 s'), test.made(test.deliver('two', '{}', 'h2'), 'a2') as h2, test.pass('1 s'), test.made(test.deliver('one', '{}', 'h3')) as h3 \gset
select is(test.pages('list_events', 'events', '{"quarantine": "true"}', n, 'todo_id'), array[:'h3', :'h2', :'h1'], 'what waits in quarantine, ' || n || ' a page') from generate_series(1, 4) n;
select is(test.pages('list_events', 'events', '{"quarantine": "true"}' || q, 2, 'todo_id'), w, 'only: ' || q::text) from (values (jsonb_build_object('webhook', :'hook'), array[:'h3', :'h1']), (jsonb_build_object('endpoint', :'slug_a2'), array[:'h2']), ('{"webhook": "x"}', '{}')) v(q, w);
select is((select array_agg(k order by k) from jsonb_object_keys(test.api('list_events', p_query => '{"quarantine": "true"}') #> '{events,0}') k), (select array_agg(k order by k) from jsonb_object_keys(test.api('list_events') #> '{events,0}') k), 'of the same shape');

-- the end of a receiver, also on an endpoint that is revoked
select is(test.api_on('delete_webhook', :'hook'), jsonb_build_object('id', :'hook', 'deleted', true), 'deleted');
select is(test.code(test.api_on('get_webhook', :'hook')), 'not_found', 'and gone');
select is(cardinality(test.pages('list_events', 'events', jsonb_build_object('webhook', :'hook'))), 3, 'its deliveries stay');

-- hooks
select test.api('create_hook', p_body => jsonb_build_object('endpoint', :'slug_a', 'url', 'https://x.example/', 'queues', '["q"]'::jsonb), p_shell => test.sealed()) as made_hook \gset
select (:'made_hook'::jsonb) #>> '{hook,id}' as nh \gset
select is(((:'made_hook'::jsonb) -> 'hook') - '{id}'::text[], jsonb_build_object('endpoint_id', :'id_a', 'endpoint', :'slug_a', 'url', 'https://x.example/', 'queues', '["q"]'::jsonb, 'health', 'ok', 'failures', 0, 'disabled_at', null, 'last_delivered_at', null,
    'last_failed_at', null, 'last_status', null, 'waiting', 0, 'created_at', switchboard.now()), 'a hook is made');
select is((:'made_hook'::jsonb) ->> 'signing_secret', '$secret', 'the shell fills in its secret');
select is(test.api('create_hook', p_body => jsonb_build_object('endpoint', :'slug_a', 'url', 'https://x.example/') || b, p_shell => s) -> 'error' ->> 'field', f, 'refused: ' || b::text) from (values
    ('{"url": "ftp://x"}'::jsonb, test.sealed(), 'url'), ('{"url": null}', test.sealed(), 'url'), ('{"queues": []}', test.sealed(), 'queues'), ('{"signing_secret": "x"}', test.sealed(), 'signing_secret'), ('{}', null, 'signing_secret')) v(b, s, f);
select is((select count(distinct test.api('create_hook', p_body => jsonb_build_object('endpoint', e, 'url', 'https://x.example/'), p_shell => test.sealed())) from unnest(array[:'slug_b', :'id_b', 'nobody']) e), 1::bigint, 'on an endpoint that is not one''s own: one answer');
select test.pass('1 s'), test.api('create_hook', p_body => jsonb_build_object('endpoint', :'slug_a2', 'url', 'https://y.example/'), p_shell => test.sealed()) #>> '{hook,id}' as nh2, test.notify_hook('b') as nh3 \gset
select is(test.pages('list_hooks', 'hooks', '{}', n), array[:'nh2', :'nh'], 'hooks, newest first, ' || n || ' a page') from generate_series(1, 3) n;
update switchboard.notify_hooks set failures = 10, disabled_at = switchboard.now() where id = :'nh';
select is(test.api('list_hooks', p_query => jsonb_build_object('endpoint', :'slug_a')) #>> '{hooks,0,health}', 'off', 'disabled');
select is(r - 'hook', jsonb_build_object('signing_secret', '$secret', 'previous_valid_until', switchboard.now() + interval '24 hours'), 'a new secret') from test.api_on('rotate_hook', :'nh', p_shell => test.sealed()) r;
select is(test.api('list_hooks', p_query => jsonb_build_object('endpoint', :'slug_a')) #>> '{hooks,0,health}', 'ok', 'enables it');
update switchboard.notify_hooks set failures = 1 where id = :'nh';
select is(test.api('list_hooks', p_query => jsonb_build_object('endpoint', :'slug_a')) #>> '{hooks,0,health}', 'failing', 'failing');
select is((select count(distinct test.api_on(o, i, p_shell => test.sealed())) from unnest(array[:'nh3', test.unknown(), 'x', '']) i), 1::bigint, o || ' of a hook that is not one''s own: one answer') from unnest('{rotate_hook,delete_hook}'::text[]) o;
select ok(exists (select from switchboard.notify_hooks where id = :'nh3'), 'it is untouched');
select is(test.code(test.api_on('rotate_hook', :'nh')), 'invalid_argument', 'without what the shell adds no new secret');
select test.api('revoke_endpoint', jsonb_build_object('endpoint', :'slug_a')) \g /dev/null
select is(test.api_on('delete_hook', :'nh'), jsonb_build_object('id', :'nh', 'deleted', true), 'deleted, also on an endpoint that is revoked');
select is(test.code(test.api_on('delete_hook', :'nh')), 'not_found', 'not twice');

select * from finish();
