-- functions/41_receivers: receivers, their secrets, their routes.
select no_plan();
select test.set_up(), test.stop_clock(), test.listen('switchboard_control') \g /dev/null
select test.grant_all(e) from unnest('{a,a2,b}'::text[]) e \g /dev/null
select test.heard('switchboard_control') \g /dev/null

-- a receiver of each type: what is answered, with what the shell fills in
create table test.made_of as select s.source_type, s.trust_mode, switchboard.create_webhook(test.a(), s.source_type, 'inbox', convert_to('sealed ' || s.source_type, 'UTF8'), test.digest(s.source_type)) as answer from switchboard.source_types() s;
select is(answer - 'webhook_id', jsonb_build_object('source_type', source_type, 'target_queue', 'inbox', 'trust_mode', trust_mode, 'ingest_url', '$ingest_url', 'signing_secret', case trust_mode when 'signed' then '$secret' when 'token' then '$token' end), 'a receiver is made: ' || source_type) from test.made_of;
select is(switchboard.webhook_for(test.digest(source_type)), jsonb_build_object('webhook_id', answer ->> 'webhook_id', 'endpoint_id', test.a(), 'source_type', source_type, 'now', extract(epoch from switchboard.now()),
    'sealed_secrets', case trust_mode when 'signed' then jsonb_build_array(encode(convert_to('sealed ' || source_type, 'UTF8'), 'hex')) else '[]' end), 'and found by its token: ' || source_type) from test.made_of;
select is(switchboard.webhook_for(d), null, 'but not by another') from unnest(array[test.digest('x'), '\x', null]) d;
select is((select array_agg(webhook_id::text order by webhook_id) from switchboard.list_webhooks(test.a())), (select array_agg(answer ->> 'webhook_id' order by (answer ->> 'webhook_id')::uuid) from test.made_of), 'they are listed');
select is((select array_agg(k order by k) from switchboard.list_webhooks(test.a()) w, jsonb_object_keys(to_jsonb(w)) k where w.source_type = 'open'), '{created_at,held,previous_valid_until,routes,source_type,target_queue,trust_mode,webhook_id}', 'without secrets, tokens and their digests');
select is_empty(format('select * from switchboard.list_webhooks(%L)', e), 'not on ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[test.b(), null, 'x', test.unknown()]) e;
select is(test.heard('switchboard_control'), array[test.a()], 'gateways are told');

-- what the grant does not cover; trust is no argument
select is((select array_agg(n) from pg_proc p, unnest(p.proargnames) n where p.proname = 'create_webhook' and p.pronamespace = 'switchboard'::regnamespace and n ~ 'trust'), null, 'trust is never supplied');
select test.invalid($$ select switchboard.create_webhook(test.b(), 'github', 'inbox', '\xaa', test.digest('t'), 'signed') $$, 'secret_form', 'not even in another argument''s place');
select test.invalid(format('select switchboard.create_webhook(test.b(), %L, ''inbox'', ''\xaa'', test.digest(''t''))', s), 'source_type', 'no source type: ' || coalesce(quote_literal(s), 'NULL')) from unnest(array['fax', '', 'GitHub', 'signed', null]) s;
select test.invalid(format('select switchboard.create_webhook(test.b(), ''github'', %L, ''\xaa'', test.digest(''t''))', q), 'queue', 'no queue: ' || coalesce(quote_literal(q), 'NULL')) from unnest(array['Q', '', null]) q;
select test.forbidden(format($$ select switchboard.create_webhook(test.b(), 'github', %L, '\xaa', test.digest('t')) $$, q), 'a queue outside the grant: ' || q) from unnest('{other,quarantine}'::text[]) q;
select test.vend(n, test.human('a'), '{q}') from unnest('{plain,narrow,full}'::text[]) n \g /dev/null
select switchboard.set_grant(test.endpoint('narrow'), null, null, null, '{gitea}') \g /dev/null
select test.forbidden(format('select test.receiver(''t'', %L, %L)', e, s), format('%s for the endpoint %s', s, e)) from (values ('plain', 'open'), ('narrow', 'github'), ('narrow', 'open')) v(e, s);
select isnt(test.receiver('of ' || e || s, e, s), null, format('%s for the endpoint %s', s, e)) from (values ('plain', 'generic'), ('narrow', 'gitea')) v(e, s);
select switchboard.set_grant(test.endpoint('narrow'), null, null, 2, '{gitea,open}'), test.receiver('named', 'narrow', 'open') as named \gset
select is((select trust_mode from switchboard.list_webhooks(test.endpoint('narrow')) where webhook_id::text = :'named'), 'open', 'open, when the grant names it, has trust open');
select test.not_found(format($$ select switchboard.create_webhook(%L, 'github', 'inbox', '\xaa', test.digest('t')) $$, e), 'none for ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, 'x', test.unknown()]) e;

-- the ceiling
select test.receiver('full 1', 'full') as full \gset
select test.refused($$ select test.receiver('full 2', 'full') $$, 'SB411', 'the ceiling of the grant', '{"ceiling": 1}');
select is(switchboard.delete_webhook(test.endpoint('full'), :'full'), jsonb_build_object('webhook_id', :'full', 'deleted', true), 'one is deleted');
select isnt(test.receiver('full 2', 'full'), null, 'then there is room');
select switchboard.set_grant(test.endpoint('full'), p_webhook_max => 0) \g /dev/null
select test.refused($$ select test.receiver('full 3', 'full') $$, 'SB411', 'a ceiling lowered below what is there', '{"ceiling": 0}');
select is((select count(*) from switchboard.list_webhooks(test.endpoint('full'))), 1::bigint, 'takes nothing away');

-- secrets
select test.invalid(format('select switchboard.create_webhook(test.b(), %L, ''inbox'', %s)', t, s), f, n) from (values ('github', 'null, test.digest(''t'')', 'signing_secret', 'without a secret'), ('github', '''\x'', test.digest(''t'')', 'signing_secret', 'with an empty one'), ('github', '''\xaa'', null', 'signing_secret', 'without a token'),
    ('github', '''\xaa'', ''\x00''', 'signing_secret', 'without a whole digest'), ('github', '''\xaa'', test.digest(''t''), null', 'secret_form', 'of no form'), ('github', '''\xaa'', test.digest(''t''), ''hex''', 'secret_form', 'of an unknown form'),
    ('generic', '''\xaa'', test.digest(''t''), ''text''', 'signing_secret', 'given, where the token is the secret'), ('open', '''\xaa'', test.digest(''t''), ''base64''', 'signing_secret', 'given, where there is none'), ('standard', '''\xaa'', test.digest(''t''), ''malformed''', 'signing_secret', 'whsec_ and bad base64')) v(t, s, f, n);
select lives_ok(format('select switchboard.create_webhook(test.b(), %L, ''inbox'', ''\xaa'', test.digest(%L), %L)', t, t || f, f), format('a secret given to %s: %s', t, f)) from (values ('standard', 'text'), ('standard', 'base64'), ('github', 'malformed'), ('stripe', 'base64'), ('slack', 'text')) v(t, f);
select is((select count(*) from switchboard.webhook_audit a where a.endpoint_id::text = test.b()), 5::bigint, 'what was refused left no trace');

-- rotation: what it replaces is valid for 24 hours
create function test.rotate(p_token text, p_new text) returns jsonb language plpgsql as $$
begin
    return switchboard.rotate_webhook(test.a(), switchboard.webhook_for(test.digest(p_token)) ->> 'webhook_id', convert_to(p_new, 'UTF8'), test.digest(p_new));
end
$$;
create function test.secrets(p_token text) returns text[] language sql as $$
    select array_agg(convert_from(decode(s, 'hex'), 'UTF8') order by n) from jsonb_array_elements_text(switchboard.webhook_for(test.digest(p_token)) -> 'sealed_secrets') with ordinality u(s, n)
$$;
select is(test.rotate('github', 'g2') - 'webhook_id', jsonb_build_object('source_type', 'github', 'trust_mode', 'signed', 'signing_secret', '$secret', 'previous_valid_until', switchboard.now() + interval '24 h'), 'a type that signs gets a new secret');
select is(test.secrets('github'), '{g2,sealed github}', 'at the same URL, the current one first');
select is(switchboard.webhook_for(test.digest('g2')), null, 'no new URL');
select is(test.rotate('generic', 'n2') - 'webhook_id', jsonb_build_object('source_type', 'generic', 'trust_mode', 'token', 'signing_secret', '$token', 'ingest_url', '$ingest_url', 'previous_valid_until', switchboard.now() + interval '24 h'), 'a token''s type gets a new URL');
select is(test.rotate('open', 'o2') - '{webhook_id,previous_valid_until}'::text[], '{"source_type": "open", "trust_mode": "open", "signing_secret": null, "ingest_url": "$ingest_url"}', 'and so does open');
select is((switchboard.webhook_for(test.digest(n)) ->> 'source_type'), s, format('found by the %s URL: %s', w, s)) from (values ('n2', 'generic', 'new'), ('generic', 'generic', 'old'), ('o2', 'open', 'new'), ('open', 'open', 'old')) v(n, s, w);
select is((select array_agg(source_type order by source_type) from switchboard.list_webhooks(test.a()) where previous_valid_until = switchboard.now() + interval '24 h'), '{generic,github,open}', 'the list says until when');
select test.pass('23:59:59.999999') \g /dev/null
select is(test.secrets('github'), '{g2,sealed github}', 'a moment before the 24 hours are over: both secrets');
select ok(switchboard.webhook_for(test.digest('generic')) is not null and test.deliver('generic', '{}', 'late') -> 'created' = '1', 'and both URLs');
select test.pass('0.000001 s') \g /dev/null
select is(test.secrets('github'), '{g2}', 'when they are over: the new secret');
select is(switchboard.webhook_for(test.digest('generic')), null, 'and the new URL');
select is(test.code(test.deliver('generic', '{}', 'too late')), 'not_found', 'the old one takes nothing');
select is((select count(previous_valid_until) from switchboard.list_webhooks(test.a())), 0::bigint, 'nor is it listed any more');
-- a second rotation ends what the first one kept
select test.rotate('github', 'g3'), test.pass('1 h'), test.rotate('github', 'g4'), test.rotate('n2', 'n3'), test.rotate('n3', 'n4') \g /dev/null
select is(test.secrets('github'), '{g4,g3}', 'a second rotation: of three secrets the last two');
select is(array(select n from unnest('{n2,n3,n4}'::text[]) n where switchboard.webhook_for(test.digest(n)) is not null), '{n3,n4}', 'and of three URLs');
select test.pass('23 h'), test.rotate('github', 'g5'), test.pass('23 h') \g /dev/null
select is(test.secrets('github'), '{g5,g4}', 'each keeps its own for a day from then on');
select test.invalid(format('select switchboard.rotate_webhook(test.a(), %L, %s)', answer ->> 'webhook_id', s), f, format('no rotation of %s: %s', source_type, s)) from test.made_of, (values ('generic', '''\xaa'', test.digest(''r''), ''text''', 'signing_secret'), ('github', 'null, test.digest(''r'')', 'signing_secret'), ('standard', '''\xaa'', test.digest(''r''), ''malformed''', 'signing_secret'), ('github', '''\xaa'', test.digest(''r''), ''x''', 'secret_form')) v(t, s, f) where t = source_type;

-- whose receiver
select answer ->> 'webhook_id' as id from test.made_of where source_type = 'github' \gset
create table test.of_webhooks (call text);
insert into test.of_webhooks values ('rotate_webhook(%L, %L, ''\xaa'', test.digest(''r''))'), ('delete_webhook(%L, %L)'), ('add_webhook_route(%L, %L, test.endpoint(''a2''))'), ('remove_webhook_route(%L, %L, test.endpoint(''a2''))'), ('list_webhook_routes(%L, %L)');
select is(test.error_of(format('select switchboard.' || call, e, i)), test.error_of(format('select switchboard.' || call, test.b(), test.unknown())), format('%s %s', split_part(call, '(', 1), n)) from test.of_webhooks, (values (test.b(), :'id', 'of another endpoint'), (test.endpoint('a2'), :'id', 'of another endpoint of the same human'), (test.a(), 'x', 'of a malformed id'), (test.a(), null, 'of none')) v(e, i, n);
select test.not_found(format('select switchboard.' || call, e, i), format('%s: not_found, %s', split_part(call, '(', 1), n)) from test.of_webhooks, (values (test.b(), :'id', 'a foreign one'), (null, :'id', 'no endpoint'), (test.unknown(), :'id', 'an unknown endpoint')) v(e, i, n);

-- routes: live endpoints of the same human with the queue
select test.vend('expired', test.human('a'), '{q,inbox}'), test.vend('revoked', test.human('a'), '{inbox}'), test.vend('other_queue', test.human('a'), '{other}') \g /dev/null
update switchboard.endpoints set expires_at = switchboard.now() where id::text = test.endpoint('expired');
select switchboard.revoke_endpoint(test.endpoint('revoked')) \g /dev/null
select test.heard('switchboard_control') \g /dev/null
create function test.route(p_target text, p_endpoint text default 'a', p_webhook text default null) returns jsonb language sql as $$
    select switchboard.add_webhook_route(test.endpoint(p_endpoint), coalesce(p_webhook, (select answer ->> 'webhook_id' from test.made_of where source_type = 'github')), p_target)
$$;
select is(test.route(test.endpoint('a2')), jsonb_build_object('webhook_id', :'id', 'target_endpoint_id', test.endpoint('a2'), 'created', true), 'a route is added');
select is(test.heard('switchboard_control'), array[test.a()], 'gateways are told');
select is(test.route(t), jsonb_build_object('webhook_id', :'id', 'target_endpoint_id', e, 'created', false), 'nothing new: ' || n) from (values (test.endpoint('a2'), test.endpoint('a2'), 'the same again'), ('test-a2', test.endpoint('a2'), 'by its slug'), (upper(test.endpoint('a2')), test.endpoint('a2'), 'in capitals'), (test.a(), test.a(), 'the owner'), ('test-a', test.a(), 'the owner''s slug')) v(t, e, n);
select is(test.heard('switchboard_control'), '{}', 'which changes nothing');
select is(test.error_of(format('select test.route(%L)', t)) - 'hint', test.error_of(format('select test.route(%L)', test.unknown())) - 'hint', 'one and the same: ' || n) from (values (test.b(), 'another human''s'), ('test-b', 'another human''s slug'), (test.endpoint('expired'), 'an expired one'), (test.endpoint('revoked'), 'a revoked one'), (test.endpoint('other_queue'), 'one without the queue'),
    ('no-such-slug', 'an unknown slug'), ('x', 'a malformed id'), ('', 'nothing'), (null, 'NULL'), (:'id', 'the receiver itself')) v(t, n);
create function test.routes(p_webhook_id text) returns text[] language sql as $$
    select array_agg(e.name || ' ' || r.owner || ' ' || r.live order by r.n)
    from switchboard.list_webhook_routes(test.a(), p_webhook_id) with ordinality r(target_endpoint_id, slug, owner, live, created_at, n) join test.endpoints e on e.id = r.target_endpoint_id::text and e.slug = r.slug
$$;
select test.refused(format('select test.route(%L)', test.unknown()), 'SB403', 'namely forbidden', '{"field": "target_endpoint_id"}');
select is(test.routes(:'id'), '{"a true true","a2 false true"}', 'the owner comes first');
select is((select routes from switchboard.list_webhooks(test.a()) where webhook_id::text = :'id'), 1, 'and is not counted among the routes');
select test.vend('a0', test.human('a'), '{inbox}'), test.route('test-a0') \g /dev/null
update switchboard.endpoints set expires_at = switchboard.now() where id::text = test.endpoint('a0');
select is(test.routes(:'id'), '{"a true true","a0 false false","a2 false true"}', 'then the others by slug, also one that gets nothing now');
select is(test.error_of(format('select test.route(%L)', test.endpoint('a0'))) ->> 'sqlstate', 'SB403', 'a route that is there to an endpoint that is no longer live: forbidden again');
select test.conflict(format('select switchboard.remove_webhook_route(test.a(), %L, %L)', :'id', t), 'the owner is no route: ' || t) from unnest(array[test.a(), 'test-a']) t;
select is(switchboard.remove_webhook_route(test.a(), :'id', t), jsonb_build_object('webhook_id', :'id', 'target_endpoint_id', t, 'removed', r), format('remove %s: %s', n, r)) from (values ('test-a2', true, 'by slug'), ('test-a2', false, 'again'), (test.endpoint('a0'), true, 'one that is not live'), (test.b(), false, 'a foreign endpoint'), (test.unknown(), false, 'an unknown one'), ('x', false, 'a malformed one'), (null, false, 'none')) v(t, r, n);
select is(test.routes(:'id'), '{a true true}', 'the owner is always a target');
-- at most 32 targets, the owner among them
select test.vend('many_' || n, test.human('a'), '{inbox}') from generate_series(1, 32) n \g /dev/null
select is((select count(*) from generate_series(1, 31) n where test.route('test-many-' || n) -> 'created' = 'true'), 31::bigint, '31 routes');
select test.refused($$ select test.route('test-many-32') $$, 'SB411', 'and no more', '{"ceiling": 32}');
select is(test.route(t) -> 'created', 'false', 'but what is there already is: ' || t) from unnest('{test-many-7,test-a}'::text[]) t;

-- a receiver that is deleted takes its routes along and leaves its todos, events and audit
select test.deliver('github', '{}', 'last', 'push') as last \gset
select test.pass('1 s'), switchboard.delete_webhook(test.a(), :'id') \g /dev/null
select is((switchboard.webhook_for(test.digest('github'))), null, 'its URL is gone');
select is(test.code(test.deliver('github', '{}', 'last')), 'not_found', 'and takes nothing');
select is((select count(*) from switchboard.webhook_routes), 0::bigint, 'so are its routes');
select is((select count(*) from switchboard.todos t join switchboard.events e on (e.endpoint_id, e.id) = (t.endpoint_id, t.event_id) where e.delivery_id = 'last'), 32::bigint, 'its todos and events stay');
select test.not_found(format('select switchboard.delete_webhook(test.a(), %L)', :'id'), 'a second time there is nothing');
select is((select array_agg(action) from switchboard.webhook_audit_of(:'id', 1)), '{deleted}', 'and so does what was done to it, newest first');
select is((select jsonb_object_agg(action, n) from (select action, count(*) as n from switchboard.webhook_audit_of(:'id', 1000) group by 1) s), '{"created": 1, "rotated": 4, "routed": 33, "unrouted": 2, "deleted": 1}', 'each thing once, and nothing that changed nothing');
select is((select detail from switchboard.webhook_audit_of(:'id', 1000) where action = 'unrouted' order by at desc limit 1) ? 'target_endpoint_id', true, 'a route''s target is in it');

-- who did it
select test.login('people', 'switchboard_operator') as people, test.login('bound', 'switchboard_worker') as bound, test.receiver('acted', 'a', 'github', 'q') as id \gset
select switchboard.bind_login(test.a(), :'bound') \g /dev/null
select test.pass('1 s'), test.as_login(:'people', format('select switchboard.rotate_webhook(%L, %L, ''\xbb'', test.digest(''x''))', test.a(), :'id')) \g /dev/null
select test.pass('1 s'), test.as_login(:'bound', format('select switchboard.add_webhook_route(null, %L, ''test-a2'')', :'id')) \g /dev/null
select test.pass('1 s'), test.call('remove_webhook_route', jsonb_build_object('webhook_id', :'id', 'target_endpoint_id', 'test-a2')) \g /dev/null
select is((select array_agg(action || ' ' || actor order by action) from switchboard.webhook_audit_of(:'id')), array['created op:' || session_user, 'rotated op:' || :'people', 'routed sql:' || :'bound', 'unrouted agent:test-a'], 'agents, bound logins and operators go by their names');
select is(test.as_login(:'bound', format(c, test.a(), :'id')) ->> 'error', '42501', 'a bound login has nothing to seal: ' || split_part(c, '(', 1)) from unnest(array['select switchboard.create_webhook(%L, ''github'', ''q'', ''\xaa'', test.digest(''y''))', 'select switchboard.rotate_webhook(%L, %L, ''\xaa'', test.digest(''y''))']) c;
select switchboard.set_grant(test.a(), p_verbs => '{list_webhooks}') \g /dev/null
select is(test.as_login(:'bound', format('select switchboard.' || c, :'id')) ->> 'error', 'SB403', 'a verb outside the grant: ' || split_part(c, '(', 1)) from unnest(array['delete_webhook(null, %L)', 'add_webhook_route(null, %L, ''test-a2'')', 'list_webhook_routes(null, %L)', 'remove_webhook_route(null, %L, ''test-a2'')']) c;

-- of a revoked endpoint
select test.route('test-a2', 'a', :'id'), switchboard.revoke_endpoint(test.a()) \g /dev/null
select test.conflict(format('select switchboard.' || c, test.a(), :'id'), 'a revoked endpoint: ' || split_part(c, '(', 1)) from unnest(array['create_webhook(%L, ''github'', ''q'', ''\xaa'', test.digest(%L))', 'rotate_webhook(%L, %L, ''\xaa'', test.digest(''y''))', 'add_webhook_route(%L, %L, ''test-a2'')']) c;
select is(test.routes(:'id'), '{"a true false","a2 false true"}', 'its routes go on');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
