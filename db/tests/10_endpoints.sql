-- functions/10_endpoints: humans, endpoints, credentials, bound logins.
select no_plan();
select test.stop_clock() \g /dev/null

-- humans
select id as ada from switchboard.create_human('Ada Lovelace') \gset
select results_eq($$ select name, endpoints from switchboard.list_humans() $$, $$ values ('Ada Lovelace', 0::bigint) $$, 'a human is added');
select test.conflict($$ select switchboard.create_human('Ada Lovelace') $$, 'names are unique');
select test.invalid(format('select switchboard.create_human(%L)', n), 'name', 'no name: ' || coalesce(left(to_json(n)::text, 20), 'NULL')) from unnest(array[null, '', E'a\nb', repeat('x', 101)]) n;

-- vending
select * from switchboard.vend_endpoint(:'ada', 'alpha', '{reviews,inbox,inbox}') \gset
select matches(:'credential'::text, '^sbk_[A-Za-z0-9_-]{43}$', 'a credential is sbk_ and 32 bytes in base64url');
select is((select queues from switchboard.list_endpoints() where slug = 'alpha'), '{inbox,reviews}'::text[], 'queues are stored once each');
select set_eq($$ select unnest(verbs) from switchboard.list_endpoints() where slug = 'alpha' $$,
    '{list_todos,get_todo,read_event,claim,claim_next,heartbeat,complete,fail,release}'::text[], 'the default grant is the drain verbs');
select set_hasnt($$ select unnest(webhook_source_types) from switchboard.list_endpoints() where slug = 'alpha' $$, $$ values ('open') $$, 'the default source types are all but open');
select is((select array[digest] from switchboard.credentials where endpoint_id = :'endpoint_id'), array[sha256(convert_to(:'credential', 'UTF8'))], 'only the SHA-256 of the credential is stored');
select is_empty(format('select * from switchboard.%I t where t::text like %L', relname, '%' || :'credential' || '%'), 'the credential is not in table ' || relname)
    from pg_class where relnamespace = 'switchboard'::regnamespace and relkind = 'r';
select test.conflict(format('select switchboard.vend_endpoint(%L, ''alpha'', ''{q}'')', :'ada'), 'a slug is unique');
select test.not_found($$ select switchboard.vend_endpoint(gen_random_uuid(), 'beta', '{q}') $$, 'an unknown human');
select test.not_found($$ select switchboard.vend_endpoint(null, 'beta', '{q}') $$, 'no human');
select test.invalid(format('select switchboard.vend_endpoint(%L, %s)', :'ada', args), field, 'vend: ' || name) from (values
    ('''Beta'', ''{q}''', 'slug', 'slug in upper case'), ('''-b'', ''{q}''', 'slug', 'slug with a leading hyphen'), ('''b_b'', ''{q}''', 'slug', 'slug with an underscore'),
    (quote_literal(repeat('b', 64)) || ', ''{q}''', 'slug', 'slug of 64 characters'), ('null, ''{q}''', 'slug', 'no slug'),
    ('''beta'', null', 'queues', 'no queues'), ('''beta'', ''{}''', 'queues', 'an empty grant'), ('''beta'', ''{Q}''', 'queue', 'a malformed queue'),
    ('''beta'', ''{q,NULL}''', 'queue', 'a NULL queue'), ('''beta'', ''{quarantine}''', 'queues', 'quarantine'),
    ('''beta'', (select array_agg(''q'' || n) from generate_series(1, 33) n)', 'queues', '33 queues'),
    ('''beta'', ''{q}'', ''{fly}''', 'verbs', 'an unknown verb'), ('''beta'', ''{q}'', ''{NULL}''', 'verbs', 'a NULL verb'),
    ('''beta'', ''{q}'', p_webhook_max => -1', 'webhook_max', 'less than no webhook'), ('''beta'', ''{q}'', p_webhook_max => null', 'webhook_max', 'NULL webhooks'),
    ('''beta'', ''{q}'', p_webhook_source_types => ''{fax}''', 'webhook_source_types', 'an unknown source type'),
    ('''beta'', ''{q}'', p_expires_at => switchboard.now()', 'expires_at', 'expired from the start'), ('''beta'', ''{q}'', p_expires_at => ''infinity''', 'expires_at', 'an infinite expiry')) v(args, field, name);
select lives_ok(format('select switchboard.vend_endpoint(%L, ''many'', (select array_agg(''q'' || n) from generate_series(1, 32) n), p_verbs => ''{}'')', :'ada'), '32 queues and no verb');
select is((select count(*) from switchboard.endpoints), 2::bigint, 'a refused vend leaves nothing');
select is((select count(distinct c) from (select switchboard.mint_credential(:'endpoint_id') as c from generate_series(1, 50)) m), 50::bigint, 'credentials are random');
delete from switchboard.credentials where digest <> sha256(convert_to(:'credential', 'UTF8'));

-- finding
select is(switchboard.find_endpoint(k), :'endpoint_id'::uuid, 'found by ' || n) from (values ('alpha', 'slug'), (:'endpoint_id', 'id'), (upper(:'endpoint_id'), 'id in upper case')) v(k, n);
select is(switchboard.find_endpoint(k), null, 'not found: ' || coalesce(quote_literal(k), 'NULL')) from unnest(array[null, '', 'omega', test.unknown()]) k;
select is((select count(*) from switchboard.list_endpoints(:'ada')), 2::bigint, 'a human''s endpoints');
select is_empty($$ select * from switchboard.list_endpoints(gen_random_uuid()) $$, 'an unknown human has none');

-- authentication
select is(switchboard.authenticate('alpha', test.digest(:'credential')) - 'credential_id' - 'verbs', jsonb_build_object('endpoint_id', :'endpoint_id', 'slug', 'alpha', 'human_id', :'ada'),
    'a credential opens its endpoint');
select is(switchboard.authenticate(s, d), null, 'refused: ' || n) from (values ('omega', test.digest(:'credential'), 'an unknown slug'), ('alpha', test.digest('sbk_x'), 'an unknown credential'),
    ('many', test.digest(:'credential'), 'the credential of another slug'), (null, test.digest(:'credential'), 'no slug'), ('alpha', null, 'no credential'), ('alpha', '\x00', 'a short digest')) v(s, d, n);

-- rotation
select test.listen('switchboard_control') \g /dev/null
select switchboard.rotate_credential(:'endpoint_id', 60) as second \gset
select is(test.heard('switchboard_control'), array[:'endpoint_id'], 'a rotation tells the gateways');
select isnt(switchboard.authenticate('alpha', test.digest(c)), null, 'within the grace: ' || n) from (values (:'credential', 'the old one'), (:'second', 'the new one')) v(c, n);
select test.pass('60 s') \g /dev/null
select is(switchboard.authenticate('alpha', test.digest(:'credential')), null, 'after the grace the old one is refused');
select isnt(switchboard.authenticate('alpha', test.digest(:'second')), null, 'and the new one goes on');
select switchboard.rotate_credential(:'endpoint_id') as third \gset
select is(switchboard.authenticate('alpha', test.digest(:'second')), null, 'without a grace the old one ends at once');
select switchboard.rotate_credential(:'endpoint_id', 600) as fourth \gset
select switchboard.rotate_credential(:'endpoint_id', 60) as fifth \gset
select test.pass('61 s') \g /dev/null
select is(switchboard.authenticate('alpha', test.digest(:'third')), null, 'a shorter grace shortens an older one');
select switchboard.rotate_credential(:'endpoint_id', 60) \g /dev/null
select switchboard.rotate_credential(:'endpoint_id', 6000) \g /dev/null
select test.pass('61 s') \g /dev/null
select is(switchboard.authenticate('alpha', test.digest(:'fifth')), null, 'a longer one does not lengthen it');
select test.invalid(format('select switchboard.rotate_credential(%L, %s)', :'endpoint_id', s), 'grace_seconds', 'no grace: ' || s) from unnest('{-1,604801}'::int[]) s;
select test.not_found(format('select switchboard.rotate_credential(%L)', e), 'no credential for ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, '', 'alpha', test.unknown()]) e;

-- settings of an endpoint
select lives_ok(format('select switchboard.set_default_lease(%L, %s)', :'endpoint_id', s), 'a default lease of ' || s) from unnest(array['60', '86400', 'null']) s;
select test.invalid(format('select switchboard.set_default_lease(%L, %s)', :'endpoint_id', s), 'lease_ttl_seconds', 'no default lease: ' || s) from unnest('{59,86401,-1,0}'::int[]) s;
select test.not_found($$ select switchboard.set_default_lease(test.unknown(), 60) $$, 'the lease of an unknown endpoint');
select lives_ok(format('select switchboard.set_retention(%L, 1, 0)', :'endpoint_id'), 'a retention of one day and no rows');
select test.invalid(format('select switchboard.set_retention(%L, 0)', :'endpoint_id'), 'days', 'no retention: 0 days');
select test.invalid(format('select switchboard.set_retention(%L, null, -1)', :'endpoint_id'), 'rows', 'no retention: -1 rows');
select test.not_found($$ select switchboard.set_retention('x') $$, 'the retention of a malformed endpoint');

-- the grant
select test.heard('switchboard_control') \g /dev/null
select switchboard.set_grant(:'endpoint_id', '{inbox,new,new}', '{claim}', 3, '{github}') \g /dev/null
select results_eq($$ select queues, verbs, webhook_max, webhook_source_types from switchboard.list_endpoints() where slug = 'alpha' $$, $$ values ('{inbox,new}'::text[], '{claim}'::text[], 3, '{github}'::text[]) $$, 'set_grant sets all of it');
select is(test.heard('switchboard_control'), array[:'endpoint_id'], 'and tells the gateways');
select switchboard.set_grant(:'endpoint_id', p_verbs => switchboard.default_verbs()) \g /dev/null
select is((select queues from switchboard.list_endpoints() where slug = 'alpha'), '{inbox,new}'::text[], 'NULL leaves a part as it is');
select is((switchboard.create_todo(:'endpoint_id', 'new', 't')).queue, 'new', 'a queue that was added takes todos');
select is((select queue from switchboard.claim_next(:'endpoint_id', 'w', '{new}')), 'new', 'and gives them to claims');
select test.forbidden(format('select switchboard.create_todo(%L, ''reviews'', ''t'')', :'endpoint_id'), 'one that was taken away is forbidden');
select test.invalid(format('select switchboard.set_grant(%L, %s)', :'endpoint_id', a), f, 'no grant: ' || a) from (values ('''{}''', 'queues'), ('''{Q}''', 'queue'), ('''{quarantine}''', 'queues'), ('null, ''{fly}''', 'verbs'), ('null, null, -1', 'webhook_max'), ('null, null, 1001', 'webhook_max'), ('null, null, null, ''{fax}''', 'webhook_source_types')) v(a, f);
select test.not_found(format('select switchboard.set_grant(%L, ''{q}'')', e), 'no grant for ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, '', 'alpha', test.unknown()]) e;
truncate switchboard.todos, switchboard.todo_attempts cascade;

-- bound logins
select test.login('w', 'switchboard_worker') as login, test.login('app', 'switchboard_app') as app \gset
select lives_ok(format('select switchboard.bind_login(%L, %L)', :'endpoint_id', :'login'), 'a worker''s login is bound');
select test.conflict(format('select switchboard.bind_login(%L, %L)', :'endpoint_id', :'login'), 'once only');
select test.invalid(format('select switchboard.bind_login(%L, %L)', :'endpoint_id', l), 'login', 'not bound: ' || n)
    from (values (:'app', 'a login that is no worker'), ('nobody at all', 'no login'), (session_user::text, 'a superuser'), ('switchboard_worker', 'a group'), (null, 'NULL')) v(l, n);
select test.not_found(format('select switchboard.bind_login(test.unknown(), %L)', :'login'), 'to an unknown endpoint');
select lives_ok(format('select switchboard.unbind_login(%L)', :'login'), 'it is unbound');
select test.not_found(format('select switchboard.unbind_login(%L)', :'login'), 'once only');

-- revoking: every live todo dead-letters in the same transaction
truncate test.endpoints;
insert into test.endpoints values ('a', :'endpoint_id', 'alpha', :'credential', :'ada');
update switchboard.endpoints set queues = '{q,r}' where slug = 'alpha';
insert into switchboard.queue_marks (endpoint_id, queue) values (:'endpoint_id', 'q'), (:'endpoint_id', 'r') on conflict do nothing;
create table test.before as select s as situation, test.make(s, 'a', 'q', 'k ' || s) as id from unnest('{done,dead,parked,pending,claimed}'::text[]) s;
insert into test.before values ('assigned', test.create('a', 'r', p_assignee => 'ann'));
create table test.was as select b.situation, b.id, test.stored(b.id) as row from test.before b;
select test.heard('switchboard_control') \g /dev/null
select is(switchboard.revoke_endpoint(:'endpoint_id'), 4::bigint, 'revoking dead-letters the live todos');
select is(test.situation(id), case situation when 'done' then 'done' else 'dead' end, 'revoked: a ' || situation || ' todo') from test.was;
select is(test.stored(id), row, 'revoked: a ' || situation || ' todo is left as it was') from test.was where situation in ('done', 'dead');
select is((select array_agg(outcome || ' ' || state) from switchboard.todo_attempts a join test.was w on w.id = a.todo_id::text where w.situation = 'claimed'), '{revoked failed}'::text[],
    'the held attempt ends as revoked');
select is(test.heard('switchboard_control'), array[:'endpoint_id'], 'a revocation tells the gateways');
select is_empty(format('select * from switchboard.credentials where endpoint_id = %L', :'endpoint_id'), 'its credentials are gone');
select is((select active from switchboard.list_endpoints() where slug = 'alpha'), false, 'it is listed as not active');
select test.conflict(format('select switchboard.%s', c), 'on a revoked endpoint: ' || c) from (values (format('revoke_endpoint(%L)', :'endpoint_id')), (format('rotate_credential(%L)', :'endpoint_id')),
    (format('set_default_lease(%L, 60)', :'endpoint_id')), (format('bind_login(%L, %L)', :'endpoint_id', :'login')), (format('create_todo(%L, ''q'', ''t'')', :'endpoint_id')),
    (format('retry(%L, %L)', :'endpoint_id', (select id from test.was where situation = 'dead')))) v(c);
select is_empty(format('select * from switchboard.claim_next(%L, ''w'')', :'endpoint_id'), 'nothing is claimed from it');
select test.conflict(format('select switchboard.vend_endpoint(%L, ''alpha'', ''{q}'')', :'ada'), 'its slug is never used again');
select test.not_found(format('select switchboard.revoke_endpoint(%L)', e), 'no revoking ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, '', 'alpha', test.unknown()]) e;

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
