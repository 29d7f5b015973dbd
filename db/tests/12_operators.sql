-- functions/12_operators: tokens of humans.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
select test.human('a') as ada, test.human('b') as bob \gset

-- made, shown once, stored as a digest
select * from switchboard.create_operator_token(:'ada', 'laptop') \gset t_
select matches(:'t_token'::text, '^sbo_[A-Za-z0-9_-]{43}$', 'a token is sbo_ and 32 bytes');
select is((select digest from switchboard.operator_tokens where id = :'t_token_id'), sha256(convert_to(:'t_token', 'UTF8')), 'what is stored is its SHA-256');
select is_empty(format('select * from switchboard.operator_tokens t where t::text like %L', '%' || :'t_token' || '%'), 'and nothing else of it');
select isnt((select token from switchboard.create_operator_token(:'ada', 'other')), :'t_token', 'each is another one');
select test.invalid(format('select * from switchboard.create_operator_token(%L, %L)', :'ada', n), 'name', 'no name such as ' || coalesce(left(to_json(n)::text, 20), 'NULL')) from unnest(array['', null, repeat('x', 101), E'two\nlines']) n;
select test.invalid(format('select * from switchboard.create_operator_token(%L, %L, %L)', :'ada', 'late', e), 'expires_at', 'no end at ' || e) from unnest(array[switchboard.now()::text, '-infinity', 'infinity']) e;
select test.conflict(format('select * from switchboard.create_operator_token(%L, %L)', :'ada', 'laptop'), 'a name is there once');
select isnt((select token_id from switchboard.create_operator_token(:'bob', 'laptop')), null, 'but each human may have it');
select test.not_found(format('select * from switchboard.create_operator_token(%L, %L)', h, 'x'), 'no token for nobody') from unnest(array[test.unknown(), null]) h;

-- who it is
select is((switchboard.identify_operator(sha256(convert_to(:'t_token', 'UTF8')))).human_id, :'ada'::uuid, 'it names its human');
select is(switchboard.authenticate_operator(sha256(convert_to(:'t_token', 'UTF8'))), jsonb_build_object('token_id', :'t_token_id', 'human_id', :'ada', 'human', 'Ada'), 'to the gateway, too');
select is(switchboard.authenticate_operator(d), null, 'nothing else opens anything: ' || n) from (values (sha256('x'), 'another digest'), (''::bytea, 'an empty one'), (null, 'none'),
    ((select digest from switchboard.credentials c where c.endpoint_id = test.a()::uuid), 'the credential of an endpoint')) v(d, n);

-- when it was used, to the minute
select is(last_used_at, null, 'a new one was never used') from switchboard.operator_tokens where id = :'t_token_id';
select switchboard.note_token_use(:'t_token_id', null) \g /dev/null
select is(last_used_at, date_trunc('minute', switchboard.now()), 'a use is noted') from switchboard.operator_tokens where id = :'t_token_id';
select ctid as before from switchboard.operator_tokens where id = :'t_token_id' \gset
select switchboard.note_token_use(id, last_used_at) from switchboard.operator_tokens where id = :'t_token_id' \g /dev/null
select is(ctid::text, :'before'::text, 'once a minute') from switchboard.operator_tokens where id = :'t_token_id';

-- it ends: by its time, or revoked
select token, token_id from switchboard.create_operator_token(:'ada', 'short', switchboard.now() + interval '1 h') \gset s_
select isnt(switchboard.authenticate_operator(sha256(convert_to(:'s_token', 'UTF8'))), null, 'one that expires opens until then');
select test.pass('1 h') \g /dev/null
select is(switchboard.authenticate_operator(sha256(convert_to(:'s_token', 'UTF8'))), null, 'and not at that instant');
select is((select array_agg(name || ' ' || active order by name) from switchboard.list_operator_tokens(:'ada')), '{"laptop true","other true","short false"}', 'the list of a human');
select is((select count(*) from switchboard.list_operator_tokens()), 4::bigint, 'the list of all');
select is_empty($$ select * from switchboard.list_operator_tokens() l where to_jsonb(l)::text like '%sbo_%' or to_jsonb(l)::text like '%\\x%' $$, 'shows neither tokens nor digests');
select is(switchboard.revoke_operator_token(:'ada', 'laptop'), :'t_token_id'::uuid, 'revoked by name');
select is(switchboard.authenticate_operator(sha256(convert_to(:'t_token', 'UTF8'))), null, 'a revoked one opens nothing');
select test.not_found(format('select switchboard.revoke_operator_token(%L, %L)', h, n), w) from (values (:'ada', 'laptop', 'once'), (:'ada', :'t_token_id', 'once, by id'), (:'ada', 'none', 'no such name'), (:'ada', test.unknown(), 'no such id'),
    (:'bob', :'s_token_id', 'not of somebody else'), (:'ada', null, 'no name'), (null, 'other', 'of nobody')) v(h, n, w);
select is(switchboard.revoke_operator_token(:'ada', :'s_token_id'), :'s_token_id'::uuid, 'revoked by id, although expired');
select isnt((select token_id from switchboard.create_operator_token(:'ada', 'laptop')), :'t_token_id'::uuid, 'its name is free again');
select is((select count(*) from switchboard.list_operator_tokens(:'ada') where name = 'laptop'), 2::bigint, 'the revoked one stays on record');

select * from finish();
