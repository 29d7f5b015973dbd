-- functions/50_tools: what an agent sees over MCP, and what a call answers.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
select slug as slug, sha256(convert_to(credential, 'UTF8')) as digest from test.endpoints where name = 'a' \gset

-- the register
select is_empty($$ select name from switchboard.tools() where description is null or length(description) > 200 $$, 'every tool has a short description');
select is_empty($$ select t.name, r from switchboard.tools() t, unnest(t.required) r where not t.input ? r $$, 'what is required is an argument');
select is_empty($$ select name from switchboard.tools() where not annotations ?| '{readOnlyHint,destructiveHint}'::text[] $$, 'every tool says whether it changes anything');
select is((select array_agg(name order by name) from switchboard.tools() where 'lease_token' = any (required)), '{complete,fail,heartbeat,release}'::text[], 'those that need a lease require its token');
select set_has('select unnest(switchboard.default_verbs())', 'select name from switchboard.tools() where name = any (switchboard.default_verbs())', 'the default grant is made of tools');
select is_empty($$ select v from unnest(switchboard.default_verbs()) v where v not in (select name from switchboard.tools()) $$, 'of tools only');

-- what initialize and tools/list show
select * from switchboard.vend_endpoint(test.human('a'), 'default-grant', '{q}') \gset
select switchboard.tools_for('default-grant', sha256(convert_to(:'credential', 'UTF8'))) as shown \gset
select is((select array_agg(t ->> 'name' order by t ->> 'name') from jsonb_array_elements(:'shown'::jsonb -> 'tools') t), (select array_agg(v order by v) from unnest(switchboard.default_verbs() || 'admission_status'::text) v), 'exactly the granted ones, and admission_status, which comes with a claim');
select cmp_ok(octet_length((:'shown'::jsonb -> 'tools')::text), '<=', 7200, 'tools/list of the default grant within 7,200 bytes');
select cmp_ok(octet_length(:'shown'::jsonb ->> 'instructions'), '<=', 900, 'instructions within 900 bytes');
select alike(:'shown'::jsonb ->> 'instructions', '%300 s%', 'with the lease''s length');
select is_empty(format($$ select t ->> 'name' from jsonb_array_elements(%L::jsonb -> 'tools') t where not t ?& '{name,description,inputSchema,outputSchema,annotations}'::text[]
    or t #>> '{inputSchema,type}' <> 'object' or t #>> '{outputSchema,type}' <> 'object' or t #> '{inputSchema,additionalProperties}' <> 'false' or not (t -> 'outputSchema')::text like '%%error%%' $$, :'shown'), 'schemas are closed, and admit the error object');
select is((select array_agg(name order by name) from switchboard.tools() where description like '%your own budget%'), '{clear_admission_policy,set_admission_policy}', 'the policy verbs say what they let an agent do');
select is_empty($$ select v from unnest(switchboard.default_verbs()) v where v like '%admission_policy' $$, 'and are granted by name only');
select is(switchboard.granted_tool(g::text[], 'admission_status'), w, 'admission_status with ' || g) from (values ('{claim}', true), ('{claim_next}', true), ('{admission_status}', true), ('{list_todos,set_admission_policy,clear_admission_policy}', false), ('{}', false)) v (g, w);
select is(switchboard.granted_tool('{claim,claim_next,admission_status}', t), false, 'which grants no ' || t) from unnest('{set_admission_policy,clear_admission_policy}'::text[]) t;
select switchboard.set_default_lease(:'endpoint_id', 777) \g /dev/null
select alike(switchboard.tools_for('default-grant', sha256(convert_to(:'credential', 'UTF8'))) ->> 'instructions', '%777 s%', 'the endpoint''s own, if it has one');
select is(test.code(switchboard.tools_for(s, d)), 'unauthenticated', 'unauthenticated: ' || n) from (values ('default-grant', '\x00'::bytea, 'a bad credential'), ('nobody', sha256(convert_to(:'credential', 'UTF8')), 'an unknown slug'), (null, null, 'nothing')) v(s, d, n);

-- one round trip: who, what, with what
select is(test.code(switchboard.call_tool(s, d, 'claim_next', '{}')), 'unauthenticated', 'a call without a valid credential: ' || n) from (values ('default-grant', '\x00'::bytea, 'bad'), ('test-a', sha256(convert_to(:'credential', 'UTF8')), 'of another slug'), ('nobody', sha256(convert_to(:'credential', 'UTF8')), 'unknown slug')) v(s, d, n);
select is(test.call(t) -> 'error', test.call('no_such_tool') -> 'error', 'an ungranted and an unknown tool look the same: ' || coalesce(t, 'NULL')) from unnest(array['create_webhook', '', null, 'tick', 'revoke_endpoint']) t;
select is(test.code(test.call('no_such_tool')), 'unknown_tool', 'namely unknown_tool');
select ok(test.code(a) = 'invalid_argument' and a #>> '{error,field}' = f, format('fault 49: %s %s', t, left(x, 60))) from (values
    ('claim', '{}', 'id'), ('claim', '{"id": null}', 'id'), ('claim', '{"id": 7}', 'id'), ('claim', '{"id": ["x"]}', 'id'), ('claim', '{"id": "x", "color": "red"}', 'color'), ('claim', '[]', 'arguments'), ('claim', '"x"', 'arguments'), ('claim', 'null', 'arguments'),
    ('claim_next', '{"queues": "q"}', 'queues'), ('claim_next', '{"queues": [1]}', 'queues'), ('claim_next', '{"queues": {}}', 'queues'), ('claim_next', '{"lease_ttl_seconds": "60"}', 'lease_ttl_seconds'), ('claim_next', '{"lease_ttl_seconds": 1.5}', 'lease_ttl_seconds'),
    ('claim_next', '{"lease_ttl_seconds": 0}', 'lease_ttl_seconds'), ('claim_next', '{"lease_ttl_seconds": 1e300}', 'lease_ttl_seconds'), ('claim_next', '{"lease_ttl_seconds": 99999999999}', 'lease_ttl_seconds'), ('claim_next', '{"queues": ["Q"]}', 'queue'),
    ('complete', '{"id": "x"}', 'lease_token'), ('complete', '{"id": "x", "lease_token": 1}', 'lease_token'), ('list_todos', '{"state": "parked"}', 'state'), ('list_todos', '{"state": 1}', 'state'), ('list_todos', '{"limit": 0}', 'limit'), ('list_todos', '{"limit": true}', 'limit'),
    ('list_todos', '{"include_payload": "yes"}', 'include_payload'), ('create_todo', '{"queue": "q"}', 'title'), ('create_todo', '{"queue": "q", "title": ""}', 'title'), ('create_todo', '{"queue": "q", "title": "t", "max_attempts": 101}', 'max_attempts')) v(t, x, f), lateral test.call(t, x::jsonb) a;
select is(test.code(test.call('claim_next', '{"queues": ["other"]}')), 'forbidden', 'a queue outside the grant');
select is(test.code(test.call(t, jsonb_build_object('id', i) || case when t in ('claim', 'get_todo', 'retry') then '{}' else '{"lease_token": "x"}'::jsonb end)), 'not_found', format('fault 51: %s of %s', t, coalesce(nullif(left(i, 8), ''), 'an empty id')))
    from unnest('{get_todo,claim,heartbeat,complete,fail,release,retry}'::text[]) t, unnest(array['x', '', test.unknown(), test.create('b')]) i;

-- the loop of an agent
select is(test.call('claim_next'), '{"empty": true, "deferred": []}', 'nothing to do is no error');
select test.call('create_todo', '{"queue": "q", "title": "t", "payload": {"p": 1}, "idempotency_key": "k"}') as made \gset
select ok(:'made'::jsonb @> '{"created": true, "todo": {"state": "pending", "queue": "q", "trust_mode": "agent", "verified": true}}', 'create_todo: trust agent');
select ok(test.call('create_todo', '{"queue": "q", "title": "t", "idempotency_key": "k"}') @> jsonb_build_object('created', false, 'todo', jsonb_build_object('id', :'made'::jsonb #>> '{todo,id}')), 'create_todo again: the same');
select test.call('claim_next') as got \gset
select ok(:'got'::jsonb @> '{"empty": false, "todo": {"attempt": 1, "payload": {"p": 1}}}' and :'got'::jsonb #>> '{todo,lease_token}' is not null, 'claim_next: the todo with payload and token');
select is((select owner from switchboard.todos where id::text = :'got'::jsonb #>> '{todo,id}'), 'agent:test-a', 'held by agent:<slug>');
select cmp_ok(octet_length((:'got'::jsonb #- '{todo,payload}')::text), '<=', 1000, 'within 1,000 bytes beyond its payload');
select (:'got'::jsonb #>> '{todo,id}') as id, (:'got'::jsonb #>> '{todo,lease_token}') as token \gset
select is(test.code(test.call(t, jsonb_build_object('id', :'id', 'lease_token', 'wrong'))), 'conflict', t || ' with a wrong token') from unnest('{heartbeat,complete,fail,release}'::text[]) t;
select ok(test.call('heartbeat', jsonb_build_object('id', :'id', 'lease_token', :'token', 'lease_ttl_seconds', 600)) #>> '{todo,lease_expires_at}' is not null, 'heartbeat');
select ok(test.call('complete', jsonb_build_object('id', :'id', 'lease_token', :'token', 'result', '{"ok": true}'::jsonb)) @> '{"todo": {"state": "done"}}', 'complete');
select ok(test.call('get_todo', jsonb_build_object('id', :'id')) @> '{"todo": {"state": "done", "result": {"ok": true}, "payload": {"p": 1}, "idempotency_key": "k"}}', 'get_todo shows the result');
select is(test.code(test.call('complete', jsonb_build_object('id', :'id', 'lease_token', :'token'))), 'conflict', 'complete again');
select test.call('claim', jsonb_build_object('id', test.create())) #>> '{todo,lease_token}' as token \gset
select id::text as id from switchboard.todos where state = 'claimed' \gset
select ok(test.call('fail', jsonb_build_object('id', :'id', 'lease_token', :'token', 'result', 'no')) @> '{"todo": {"state": "failed"}}', 'claim by id, fail');
select ok(test.call('retry', jsonb_build_object('id', :'id')) @> '{"todo": {"state": "pending", "attempt": 0}}', 'retry');
select test.call('claim', jsonb_build_object('id', :'id')) #>> '{todo,lease_token}' as token \gset
select ok(test.call('release', jsonb_build_object('id', :'id', 'lease_token', :'token')) @> '{"todo": {"state": "pending"}}', 'release');

-- lists leave payloads out unless asked
select ok(t ? 'payload_bytes' and not t ? 'payload' and not t ? 'lease_token', 'list_todos: payload_bytes') from test.call('list_todos', '{"limit": 1}') a, jsonb_array_elements(a -> 'todos') t;
select ok(t ? 'payload', 'list_todos with include_payload') from test.call('list_todos', '{"limit": 1, "include_payload": true}') a, jsonb_array_elements(a -> 'todos') t;
select switchboard.create_todos(test.a(), (select jsonb_agg(jsonb_build_object('queue', 'r', 'title', repeat('ä', 500))) from generate_series(1, 250))) \g /dev/null
select ok(octet_length(a::text) <= 65536 and a -> 'truncated' = 'true', 'no list exceeds 64 KiB, and says so') from test.call('list_todos', '{"limit": 200}') a;

-- an error undoes what the verb did, and nothing of the database's text gets out
create function test.broken() returns trigger language plpgsql as $$ begin raise exception 'secret' using errcode = 'P0042', detail = 'secret'; end $$;
create trigger broken after insert on switchboard.todos for each row execute function test.broken();
select is(test.call('create_todo', '{"queue": "q", "title": "broken"}') -> 'error', (select jsonb_build_object('code', 'internal', 'message', message) from switchboard.error_table() where code = 'internal'), 'a failure inside is internal, without its text');
select is((select count(*) from switchboard.todos where title = 'broken'), 0::bigint, 'and leaves nothing');
drop trigger broken on switchboard.todos;
select is_empty($$ select * from switchboard.error_table() e where e.message ~ '[0-9a-f]{8}-' $$, 'no message holds an id');

-- what the shell adds
select is((select shell from switchboard.tools() where name = 'create_webhook'), '{"secret": true, "ingest_url": true}', 'create_webhook: the shell adds a secret and a URL');
select is((select shell from switchboard.tools() where name = 'rotate_webhook'), '{"secret": true, "ingest_url": true}', 'rotate_webhook, too');
select is((select jsonb_object_agg(name, shell) from switchboard.tools() where name ~ 'hook$' and name !~ 'webhook$' and shell <> '{}'), '{"create_notify_hook": {"secret": true, "outbound_url": "url"}, "rotate_notify_hook": {"secret": true}}', 'create_notify_hook: a secret, and a look at the URL; rotate_notify_hook: a secret');
select is((select shell from switchboard.tools() where name = 'claim_next'), '{"waits": true}', 'claim_next: the shell waits');
select is((select jsonb_object_agg(name, shell) from switchboard.tools() where name !~ '^(claim_next|(create|rotate)_(webhook|notify_hook))$' and shell <> '{}'), null, 'the others need nothing');

-- receivers and routes, as an agent has them
select is(test.call(t, '{"webhook_id": "x", "source_type": "github", "target_queue": "q"}') -> 'error', test.call('no_such_tool') -> 'error', 'not granted: ' || t) from unnest('{create_webhook,list_webhooks,rotate_webhook,delete_webhook,add_webhook_route,list_webhook_routes,remove_webhook_route}'::text[]) t;
update switchboard.endpoints set verbs = array(select name from switchboard.tools()) where id::text in (test.a(), test.b());
create function test.shell(p_token text, p_form text default 'made') returns jsonb language sql immutable as $$
    select jsonb_build_object('sealed_secret', encode(convert_to('sealed ' || p_token, 'UTF8'), 'hex'), 'token_digest', encode(test.digest(p_token), 'hex'), 'secret_form', p_form)
$$;
select is(test.call('create_webhook', a::jsonb, 'a', s) #>> '{error,code}', c, 'create_webhook refuses ' || n) from (values ('{"source_type": "fax", "target_queue": "q"}', test.shell('x'), 'invalid_argument', 'no source type'), ('{"source_type": "github", "target_queue": "q", "trust_mode": "signed"}', test.shell('x'), 'invalid_argument', 'a trust of one''s own'),
    ('{"source_type": "open", "target_queue": "q"}', test.shell('x'), 'forbidden', 'open, unless it is granted by name'), ('{"source_type": "github", "target_queue": "quarantine"}', test.shell('x'), 'forbidden', 'quarantine'), ('{"source_type": "github", "target_queue": "q"}', '{}', 'invalid_argument', 'what the shell has not sealed'),
    ('{"source_type": "generic", "target_queue": "q", "signing_secret": "s"}', test.shell('x', 'text'), 'invalid_argument', 'a secret that is not used'), ('{"source_type": "standard", "target_queue": "q", "signing_secret": "whsec_?"}', test.shell('x', 'malformed'), 'invalid_argument', 'a malformed one')) v(a, s, c, n);
select test.call('create_webhook', '{"source_type": "github", "target_queue": "q"}', 'a', test.shell('t1')) as made \gset
select is(:'made'::jsonb - 'webhook_id', '{"source_type": "github", "target_queue": "q", "trust_mode": "signed", "ingest_url": "$ingest_url", "signing_secret": "$secret"}', 'create_webhook');
select is(switchboard.webhook_for(test.digest('t1')) -> 'sealed_secrets' ->> 0, encode('sealed t1', 'hex'), 'what the shell sealed is stored');
select ok(a #>> '{error,code}' = 'ceiling_exceeded' and a #>> '{error,ceiling}' = '1', 'create_webhook at the ceiling') from test.call('create_webhook', '{"source_type": "github", "target_queue": "q"}', 'a', test.shell('t2')) a;
select (:'made'::jsonb - '{source_type,target_queue,trust_mode,ingest_url,signing_secret}'::text[]) as hook \gset
select ok(a @> jsonb_build_object('webhooks', jsonb_build_array(:'hook'::jsonb || '{"source_type": "github", "held": false, "routes": 0}')) and jsonb_array_length(a -> 'webhooks') = 1, 'list_webhooks') from test.call('list_webhooks') a;
select ok(a @> (:'hook'::jsonb || '{"signing_secret": "$secret", "trust_mode": "signed"}') and a ? 'previous_valid_until' and not a ? 'ingest_url', 'rotate_webhook') from test.call('rotate_webhook', :'hook', 'a', test.shell('t3')) a;
select is(test.call('add_webhook_route', :'hook'::jsonb || jsonb_build_object('target_endpoint_id', t)), :'hook'::jsonb || jsonb_build_object('target_endpoint_id', test.endpoint('a2'), 'created', c), format('add_webhook_route %s: %s', n, c)) from (values ('test-a2', true, 'by slug'), (test.endpoint('a2'), false, 'by id')) v(t, c, n);
select is(test.call('add_webhook_route', :'hook'::jsonb || jsonb_build_object('target_endpoint_id', t)), '{"error": {"code": "forbidden", "field": "target_endpoint_id", "message": "that is no endpoint this receiver may be routed to: it must be an active one of the same owner whose grant covers the receiver''s queue"}}', 'add_webhook_route ' || n) from (values (test.b(), 'to another human''s'), (test.unknown(), 'to an unknown one'), ('x', 'to a malformed one')) v(t, n);
select is((select array_agg(r ->> 'slug' || ' ' || (r ->> 'owner') || ' ' || (r ->> 'live')) from jsonb_array_elements(test.call('list_webhook_routes', :'hook') -> 'routes') r), '{"test-a true true","test-a2 false true"}', 'list_webhook_routes');
select is(test.code(test.call(t, :'hook'::jsonb || a, 'b', test.shell('t4'))), 'not_found', t || ' of another endpoint''s') from (values ('rotate_webhook', '{}'::jsonb), ('delete_webhook', '{}'), ('list_webhook_routes', '{}'), ('add_webhook_route', '{"target_endpoint_id": "test-b"}'), ('remove_webhook_route', '{"target_endpoint_id": "test-a2"}')) v(t, a);
select is(test.call('remove_webhook_route', :'hook'::jsonb || '{"target_endpoint_id": "test-a2"}'), :'hook'::jsonb || jsonb_build_object('target_endpoint_id', 'test-a2', 'removed', r), 'remove_webhook_route: ' || r) from unnest('{true,false}'::boolean[]) r;
select is(test.code(test.call('remove_webhook_route', :'hook'::jsonb || '{"target_endpoint_id": "test-a"}')), 'conflict', 'remove_webhook_route: not the owner');
select is(test.call('delete_webhook', :'hook'), :'hook'::jsonb || '{"deleted": true}', 'delete_webhook');
select is(test.call('list_webhooks'), '{"webhooks": []}', 'then there is none');
select is((select array_agg(distinct actor) from switchboard.webhook_audit), '{agent:test-a}', 'done by the agent');

-- notify hooks, as an agent has them
update switchboard.endpoints set verbs = switchboard.default_verbs() where id::text = test.a();
select is(test.call(t, '{"hook_id": "x", "url": "https://agent.example"}') -> 'error', test.call('no_such_tool') -> 'error', 'not granted: ' || t) from unnest('{create_notify_hook,list_notify_hooks,rotate_notify_hook,delete_notify_hook}'::text[]) t;
update switchboard.endpoints set verbs = array(select name from switchboard.tools()) where id::text = test.a();
select ok(test.call('create_notify_hook', a::jsonb, 'a', '{"sealed_secret": "aa"}') #>> '{error,code}' = c and coalesce(test.call('create_notify_hook', a::jsonb, 'a', '{"sealed_secret": "aa"}') #>> '{error,field}' = f, f is null), 'create_notify_hook refuses ' || n) from (values
    ('{}', 'invalid_argument', 'url', 'no URL'), ('{"url": "agent.example"}', 'invalid_argument', 'url', 'one that is none'), ('{"url": 1}', 'invalid_argument', 'url', 'a number'), ('{"url": "https://agent.example", "queues": []}', 'invalid_argument', 'queues', 'no queue'),
    ('{"url": "https://agent.example", "queues": "q"}', 'invalid_argument', 'queues', 'a text'), ('{"url": "https://agent.example", "queues": ["other"]}', 'forbidden', null, 'an ungranted queue'), ('{"url": "https://agent.example", "queues": ["quarantine"]}', 'forbidden', null, 'quarantine'),
    ('{"url": "https://agent.example", "secret": "x"}', 'invalid_argument', 'secret', 'a secret of one''s own')) v(a, c, f, n);
select test.call('create_notify_hook', '{"url": "https://agent.example/wake", "queues": ["r", "q"]}', 'a', '{"sealed_secret": "aa"}') as made \gset
select (:'made'::jsonb - '{url,queues,signing_secret}'::text[]) as hook \gset
select is(:'made'::jsonb - 'hook_id', '{"url": "https://agent.example/wake", "queues": ["q", "r"], "signing_secret": "$secret"}', 'create_notify_hook');
select is(test.call('create_notify_hook', '{"url": "https://agent.example/all", "queues": null}', 'a', '{"sealed_secret": "aa"}') -> 'queues', 'null', 'queues null: all');
select is((select sealed_secret from switchboard.notify_hooks where url ~ 'wake$'), '\xaa', 'what the shell sealed is stored');
select is((select jsonb_agg(h - '{hook_id,created_at}'::text[] order by h ->> 'url' desc) from jsonb_array_elements(test.call('list_notify_hooks') -> 'hooks') h), '[{"url": "https://agent.example/wake", "queues": ["q", "r"], "enabled": true, "failures": 0, "waiting": 0}, {"url": "https://agent.example/all", "enabled": true, "failures": 0, "waiting": 0}]', 'list_notify_hooks: no secret, nothing empty');
select ok(a @> (:'hook'::jsonb || '{"enabled": true, "signing_secret": "$secret"}') and a ? 'previous_valid_until', 'rotate_notify_hook') from test.call('rotate_notify_hook', :'hook', 'a', '{"sealed_secret": "bb"}') a;
select is(test.code(test.call('rotate_notify_hook', :'hook')), 'invalid_argument', 'rotate_notify_hook without what the shell has sealed');
select test.call('create_notify_hook', '{"url": "https://agent.example/more"}', 'a', '{"sealed_secret": "aa"}') from generate_series(1, 3) \g /dev/null
select ok(a #>> '{error,code}' = 'ceiling_exceeded' and a #>> '{error,ceiling}' = '5', 'create_notify_hook at the ceiling') from test.call('create_notify_hook', '{"url": "https://agent.example"}', 'a', '{"sealed_secret": "aa"}') a;
select is(test.call('delete_notify_hook', :'hook'), :'hook'::jsonb || '{"deleted": true}', 'delete_notify_hook');
select is(test.code(test.call(t, :'hook'::jsonb || a, 'a', '{"sealed_secret": "aa"}')), c, t || ' of ' || n) from unnest('{rotate_notify_hook,delete_notify_hook}'::text[]) t, (values ('{}'::jsonb, 'not_found', 'one that is gone'), ('{"hook_id": "x"}', 'not_found', 'a malformed one'), ('{"hook_id": null}', 'invalid_argument', 'none'), ('{"hook_id": 1}', 'invalid_argument', 'a number')) v(a, c, n);

-- waiting is the shell's: the database takes wait_seconds and answers at once
select test.clear() \g /dev/null
select is(test.call('claim_next', a::jsonb), '{"empty": true, "deferred": []}', 'claim_next with ' || a) from unnest(array['{"wait_seconds": 50}', '{"wait_seconds": 0}', '{"wait_seconds": null, "queues": ["q"]}']) a;
select ok(a #>> '{error,code}' = 'invalid_argument' and a #>> '{error,field}' = 'wait_seconds', 'no wait_seconds: ' || x) from unnest('{"\"1\"",1.5,true,[],1e30}'::text[]) x, lateral test.call('claim_next', ('{"wait_seconds": ' || x || '}')::jsonb) a;
select is((select input -> 'wait_seconds' from switchboard.tools() where name = 'claim_next'), '{"type": "integer", "minimum": 0, "maximum": 50}', 'the schema tells its range');

-- a credential that is revoked never acts
select switchboard.revoke_endpoint(test.a()) \g /dev/null
select is(test.code(test.call('list_todos')), 'unauthenticated', 'after the revocation');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
