-- functions/74_api_places: REST on endpoints, queues, tokens and health.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
select slug as slug_a, id as id_a from test.endpoints where name = 'a' \gset
select slug as slug_a2 from test.endpoints where name = 'a2' \gset
select slug as slug_b, id as id_b from test.endpoints where name = 'b' \gset
select test.human('a') as ada \gset
create function test.on_endpoint(p_operation text, p_endpoint text, p_body jsonb default '{}') returns jsonb language sql as $$
    select test.api(p_operation, jsonb_build_object('endpoint', p_endpoint), case when p_operation <> 'get_endpoint' then p_body end)
$$;
create function test.opens(p_slug text, p_credential text) returns boolean language sql as $$ select switchboard.authenticate(p_slug, test.digest(p_credential)) is not null $$;

-- vending
select test.api('vend_endpoint', p_body => '{"slug": "vended", "queues": ["r", "q", "q"], "verbs": ["claim"], "webhook_max": 0, "webhook_source_types": [], "expires_at": "2027-01-01T00:00:00+02:00"}') as made \gset
select is(((:'made'::jsonb) -> 'endpoint') - '{id,created_at,updated_at}'::text[], '{"slug": "vended", "queues": ["q", "r"], "verbs": ["claim"], "webhook_max": 0, "webhook_source_types": [], "default_lease_seconds": null,
    "retention_days": null, "retention_rows": null, "active": true, "expires_at": "2026-12-31T22:00:00+00:00", "revoked_at": null, "last_seen_at": null}', 'vended as asked for');
select is((:'made'::jsonb) ->> 'mcp_url', '$public_url/mcp/vended', 'with its address, but for where we are');
select ok(test.opens('vended', (:'made'::jsonb) ->> 'credential'), 'and a credential that opens it');
select is(test.api('vend_endpoint', p_body => '{"slug": "plain", "queues": ["q"]}') #> '{endpoint,verbs}', to_jsonb(array(select distinct v from unnest(switchboard.default_verbs()) v)), 'the verbs of the drain loop unless said otherwise');
select is((test.api('vend_endpoint', p_body => '{"slug": "days", "queues": ["q"], "expires_in_days": 3}') #>> '{endpoint,expires_at}')::timestamptz, switchboard.now() + interval '3 days', 'for some days');
select is(test.api('vend_endpoint', p_body => '{"slug": "new", "queues": ["q"]}' || b) -> 'error' ->> 'field', f, 'refused: ' || b::text) from (values
    ('{"slug": "New"}'::jsonb, 'slug'), ('{"slug": ""}', 'slug'), ('{"queues": []}', 'queues'), ('{"queues": ["Q"]}', 'queue'), ('{"queues": [1]}', 'queues'), ('{"queues": "q"}', 'queues'), ('{"queues": null}', 'queues'),
    ('{"verbs": ["fly"]}', 'verbs'), ('{"webhook_max": 1001}', 'webhook_max'), ('{"webhook_source_types": ["x"]}', 'webhook_source_types'), ('{"expires_at": "2026-01-01T00:00:00Z"}', 'expires_at'), ('{"expires_at": "soon"}', 'expires_at'),
    ('{"expires_in_days": 0}', 'expires_in_days'), ('{"expires_in_days": 1, "expires_at": "2027-01-01T00:00:00Z"}', 'expires_in_days'), ('{"human_id": "x"}', 'human_id')) v(b, f);
select is(test.code(test.api('vend_endpoint', p_body => jsonb_build_object('slug', s, 'queues', '["q"]'::jsonb))), 'conflict', 'a slug that is taken, by whomever') from unnest(array['vended', :'slug_b']) s;

-- seeing
select is(test.pages('list_endpoints', 'endpoints', '{}', n, 'slug'), array['days', 'plain', :'slug_a', :'slug_a2', 'vended'], 'listed by slug, ' || n || ' a page') from generate_series(1, 6) n;
select is(test.pages('list_endpoints', 'endpoints', '{}', 2, 'slug', 'Bob'), array[:'slug_b'], 'for their human alone');
select is(test.on_endpoint('get_endpoint', e) #>> '{endpoint,slug}', :'slug_a', 'one, by slug or id') from unnest(array[:'slug_a', :'id_a']) e;
select is(test.on_endpoint('get_endpoint', 'vended') -> 'credentials', jsonb_build_array(jsonb_build_object('created_at', switchboard.now(), 'expires_at', null)), 'with when its credential was made, and no more');

-- changing
select is(test.on_endpoint('set_grant', 'vended', '{"queues": ["z"], "webhook_max": 5}') -> 'endpoint' -> k, v, 'the grant: ' || k) from (values ('queues', '["z"]'::jsonb), ('webhook_max', '5'), ('verbs', '["claim"]')) t(k, v);
select is(test.on_endpoint('set_default_lease', 'vended', b) #> '{endpoint,default_lease_seconds}', v, 'the lease: ' || b::text) from (values ('{"lease_ttl_seconds": 120}'::jsonb, '120'::jsonb), ('{}', 'null')) t(b, v);
select is(test.on_endpoint('set_default_lease', 'vended', '{"lease_ttl_seconds": 59}') -> 'error' ->> 'field', 'lease_ttl_seconds', 'too short a lease');
select is(test.on_endpoint('set_retention', 'vended', b) #> '{endpoint}' -> k, v, 'the retention: ' || b::text || ', ' || k) from (values ('{"days": 7}'::jsonb, 'retention_days', '7'::jsonb), ('{"rows": 9}', 'retention_rows', '9'), ('{"rows": 9}', 'retention_days', 'null')) t(b, k, v);
select is(test.on_endpoint('set_retention', 'vended', '{"days": 0}') -> 'error' ->> 'field', 'days', 'no days');
select test.on_endpoint('rotate_credential', 'vended', '{"grace_seconds": 60}') as turned \gset
select ok(test.opens('vended', (:'turned'::jsonb) ->> 'credential') and test.opens('vended', (:'made'::jsonb) ->> 'credential'), 'rotated with a grace: both open');
select is(jsonb_array_length(test.on_endpoint('get_endpoint', 'vended') -> 'credentials'), 2, 'both are listed');
select test.on_endpoint('rotate_credential', 'vended') as turned2 \gset
select is((test.opens('vended', (:'turned2'::jsonb) ->> 'credential'), test.opens('vended', (:'turned'::jsonb) ->> 'credential'))::text, '(t,f)', 'without one: at once');
select test.create('a'), test.create('a') \g /dev/null
select is(test.on_endpoint('revoke_endpoint', :'slug_a') -> 'dead_lettered', '2', 'revoked, with its todos');
select is(test.on_endpoint('get_endpoint', :'slug_a') #>> '{endpoint,active}', 'false', 'and still there to be seen');
select is(test.code(test.on_endpoint(o, :'slug_a', '{}')), 'conflict', o || ' of a revoked one') from unnest('{set_grant,set_default_lease,set_retention,rotate_credential,revoke_endpoint}'::text[]) o;

-- a foreign endpoint is as unknown as one that never was, for every operation
select is((select count(distinct test.on_endpoint(o, e)) from unnest(array[:'slug_b', :'id_b', 'nobody', test.unknown(), '', ' ', upper(:'slug_a2')]) e), 1::bigint, o || ' of an endpoint that is not one''s own: one answer')
    from unnest('{get_endpoint,set_grant,set_default_lease,set_retention,rotate_credential,revoke_endpoint}'::text[]) o;
select is(test.code(test.on_endpoint('revoke_endpoint', :'slug_b')), 'not_found', 'it is not there');
select ok((select revoked_at is null and queues = '{inbox,q,r}' from switchboard.endpoints where id = :'id_b'), 'and untouched');
-- nobody's slug hides an id of one's own
select test.api('vend_endpoint', p_body => jsonb_build_object('slug', id, 'queues', '["q"]'::jsonb), p_human => 'Bob') from test.endpoints where name = 'a2' \g /dev/null
select is(test.on_endpoint('get_endpoint', id) #>> '{endpoint,slug}', :'slug_a2', 'an id of one''s own, though somebody has it as a slug') from test.endpoints where name = 'a2';

-- queues
select test.create('a2', 'q'), test.create('a2', 'q'), test.make('dead', 'a2', 'r') \g /dev/null
select is(q - '{oldest_pending_seconds}'::text[], jsonb_build_object('endpoint_id', test.endpoint('a2'), 'endpoint', :'slug_a2', 'queue', 'q', 'granted', true, 'pending', 2, 'claimed', 0, 'parked', 0, 'dead', 0, 'done', 0), 'a queue with what is in it')
    from jsonb_array_elements(test.api('list_queues', p_query => jsonb_build_object('endpoint', :'slug_a2')) -> 'queues') q where q ->> 'queue' = 'q';
select is(test.pages('list_queues', 'queues', '{}', n, 'endpoint'), (select array_agg(q ->> 'endpoint') from jsonb_array_elements(test.api('list_queues') -> 'queues') q), 'the queues of ' || n || ' endpoints a page') from generate_series(1, 5) n;
select is((select count(*) from jsonb_array_elements(test.api('list_queues') -> 'queues') q where q ->> 'endpoint' = :'slug_b'), 0::bigint, 'of the human alone');
select is((select q -> 'granted' from jsonb_array_elements(test.api('list_queues', p_query => '{"endpoint": "vended"}') -> 'queues') q where q ->> 'queue' = 'q'), 'false', 'one that is no longer granted');
select is((select count(distinct test.api('list_queues', p_query => jsonb_build_object('endpoint', e))) from unnest(array[:'id_b', :'slug_b', 'nobody']) e), 1::bigint, 'of an endpoint that is not one''s own: one answer');

-- tokens
select test.pass('1 s') \g /dev/null
select test.api('create_token', p_body => '{"name": "second", "expires_at": "2026-04-01T00:00:00Z"}') as token \gset
select is(switchboard.authenticate_operator(test.digest((:'token'::jsonb) ->> 'secret')) ->> 'human', 'Ada', 'a token that is one''s own');
select is(((:'token'::jsonb) -> 'token') - '{id,created_at}'::text[], '{"name": "second", "active": true, "expires_at": "2026-04-01T00:00:00+00:00", "revoked_at": null, "last_used_at": null}', 'as it is listed');
select is(test.pages('list_tokens', 'tokens', '{}', n, 'name'), '{second,test}', 'listed, newest first, ' || n || ' a page') from generate_series(1, 3) n;
select is(test.api('list_tokens') #> '{tokens,0}', (:'token'::jsonb) -> 'token', 'without the token itself');
select is(test.code(test.api('create_token', p_body => '{"name": "second"}')), 'conflict', 'one of a name');
select is(test.api('create_token', p_body => b) -> 'error' ->> 'field', f, 'refused: ' || b::text) from (values ('{}'::jsonb, 'name'), ('{"name": ""}', 'name'), (E'{"name": "a\\nb"}', 'name'), ('{"name": "n", "expires_at": "2026-01-01T00:00:00Z"}', 'expires_at'), ('{"name": "n", "expires_at": 1}', 'expires_at')) v(b, f);
select is((select count(distinct test.api('revoke_token', jsonb_build_object('token', t), p_human => 'Bob')) from unnest(array['second', (:'token'::jsonb) #>> '{token,id}', 'nothing', '']) t), 1::bigint, 'somebody else''s token is as unknown as none');
select is(test.api('revoke_token', jsonb_build_object('token', 'second')), jsonb_build_object('id', (:'token'::jsonb) #> '{token,id}', 'revoked', true), 'revoked, by name');
select is(switchboard.authenticate_operator(test.digest((:'token'::jsonb) ->> 'secret')), null, 'and opens nothing any more');
select is(test.code(test.api('revoke_token', jsonb_build_object('token', 'second'))), 'not_found', 'not twice');
select is(test.api('list_tokens') #> '{tokens,0,active}', 'false', 'it stays on record');
select is(test.api('list_tokens', p_query => '{"cursor": "x"}') -> 'error' ->> 'field', 'cursor', 'no cursor');

-- health
select is((select array_agg(s ->> 'name') from jsonb_array_elements(test.api('health') -> 'sweeps') s), (select array_agg(name) from switchboard.sweep_status()), 'the sweeps');
insert into switchboard.queue_stall_nudges (endpoint_id, queue, nudges, last_nudged_at) select e.id::uuid, q, 2, switchboard.now() from test.endpoints e, unnest('{q,r}'::text[]) q where e.name in ('a2', 'b');
select is(test.api('health') -> 'stalled', jsonb_build_array(s || '{"queue": "q"}', s || '{"queue": "r"}'), 'the stalled queues of the human alone')
    from jsonb_build_object('endpoint_id', test.endpoint('a2'), 'endpoint', :'slug_a2', 'nudges', 2, 'last_nudged_at', switchboard.now(), 'progressed_at', null) s;

select * from finish();
