-- functions/13_sign_in: sessions of the board, what opens and what ends them. Races are in isolation/specs.
select no_plan();
select test.set_up(), test.stop_clock(), test.listen('switchboard_control') \g /dev/null
select test.human('a') as ada, test.human('b') as bob \gset

create function test.hash(p_secret text) returns bytea language sql immutable as $$ select sha256(convert_to(p_secret, 'UTF8')) $$;
-- Whom a secret opens the interface for, by its name.
create function test.whom(p_secret text) returns text language sql as $$ select switchboard.authenticate_operator(test.hash(p_secret)) ->> 'human' $$;

-- by a token
select token, token_id from switchboard.create_operator_token(:'ada', 'laptop') \gset t_
select switchboard.open_session_by_token(test.hash(:'t_token'), test.hash('s1')) as opened \gset
select is(:'opened'::jsonb - 'session_id', jsonb_build_object('human_id', :'ada', 'human', 'Ada', 'expires_at', switchboard.now() + interval '30 d'), 'a token opens a session of 30 days');
select is(test.whom('s1'), 'Ada', 'which opens what the token opens');
select is((switchboard.identify_operator(test.hash('s1'))).token_id, (:'opened'::jsonb ->> 'session_id')::uuid, 'and is known by its own id');
select is((select last_used_at from switchboard.operator_tokens where id = :'t_token_id'), date_trunc('minute', switchboard.now()), 'the token was used');
select is((select digest from switchboard.human_sessions), test.hash('s1'), 'what is stored is the SHA-256');
select is_empty($$ select * from switchboard.human_sessions s where s::text like '%s1%' $$, 'and nothing else of the secret');
select is(switchboard.open_session_by_token(d, test.hash('x')), null, 'no session by ' || n) from (values (test.hash('sbo_x'), 'an unknown token'), (test.hash('s1'), 'a session'), (null, 'nothing'), (''::bytea, 'an empty digest'),
    ((select digest from switchboard.credentials c where c.endpoint_id = test.a()::uuid), 'the credential of an endpoint')) v(d, n);
select test.invalid(format('select switchboard.open_session_by_token(%L, %L)', test.hash(:'t_token'), d), 'session_digest', 'nor with a secret that is no SHA-256') from unnest(array[null, ''::bytea, '\x00']) d;
select test.conflict(format('select switchboard.open_session_by_token(%L, %L)', test.hash(:'t_token'), test.hash('s1')), 'nor with one that is in use');
select is((select count(*) from switchboard.human_sessions), 1::bigint, 'none of these left anything');

-- when it was used, to the minute; over after seven days without, and after thirty in any case
select switchboard.note_token_use(token_id, last_used_at) from switchboard.identify_operator(test.hash('s1')) \g /dev/null
select is(last_seen_at, created_at, 'a new session was seen when it was opened') from switchboard.human_sessions;
create function test.use(p_secret text) returns void language sql as $$ select switchboard.note_token_use(token_id, last_used_at) from switchboard.identify_operator(test.hash(p_secret)) $$;
select test.pass('90 s'), test.use('s1') \g /dev/null
select is(last_seen_at, date_trunc('minute', switchboard.now()), 'a use is noted') from switchboard.human_sessions;
select ctid as before from switchboard.human_sessions \gset
select test.use('s1') \g /dev/null
select is(ctid::text, :'before'::text, 'once a minute') from switchboard.human_sessions;
select test.pass('6 d 23 h 58 min') \g /dev/null
select is(test.whom('s1'), 'Ada', 'unused for nearly seven days it is good');
select test.pass('2 min') \g /dev/null
select is(test.whom('s1'), null, 'after seven it is over');
select is_empty('select * from switchboard.list_sessions()', 'and in no list');
select is(switchboard.prune(), 1::bigint, 'prune deletes it');
select is((select count(*) from switchboard.human_sessions), 0::bigint, 'it is gone');
select switchboard.open_session_by_token(test.hash(:'t_token'), test.hash('s2')) \g /dev/null
do $$ begin for v_day in 1..5 loop perform test.pass('5 d 23 h'), test.use('s2'); end loop; end $$;
select is(test.whom('s2'), 'Ada', 'in use it lives for nearly thirty days');
select test.pass('5 h'), test.use('s2') \g /dev/null
select is(test.whom('s2'), null, 'and not at that instant');
select switchboard.prune() \g /dev/null

-- it ends with its token
select token, token_id from switchboard.create_operator_token(:'ada', 'short', switchboard.now() + interval '1 h') \gset u_
select is((switchboard.open_session_by_token(test.hash(:'u_token'), test.hash('s3')) ->> 'expires_at')::timestamptz, switchboard.now() + interval '1 h', 'a session lasts no longer than its token');
select switchboard.open_session_by_token(test.hash(:'t_token'), test.hash('s4')) \g /dev/null
select test.heard('switchboard_control') \g /dev/null
select switchboard.revoke_operator_token(:'ada', 'laptop') \g /dev/null
select is(test.whom('s4'), null, 'a session ends when its token is revoked');
select is(test.whom('s3'), 'Ada', 'another token''s does not');
select ok('sessions' = any (test.heard('switchboard_control')), 'and gateways are told');
select is(switchboard.open_session_by_token(test.hash(:'t_token'), test.hash('s5')), null, 'a revoked token opens none');
select test.pass('1 h') \g /dev/null
select is(test.whom('s3'), null, 'a session ends when its token expires');
select is(switchboard.open_session_by_token(test.hash(:'u_token'), test.hash('s5')), null, 'an expired token opens none');
update switchboard.operator_tokens set expires_at = null where id = :'u_token_id';
update switchboard.human_sessions set expires_at = switchboard.now() + interval '1 d';
update switchboard.operator_tokens set revoked_at = switchboard.now() where id = :'u_token_id';
select is(test.whom('s3'), null, 'whatever its own row says, a session of a revoked token opens nothing');
select switchboard.prune() \g /dev/null
select is((select count(*) from switchboard.human_sessions), 0::bigint, 'prune deletes what ended with its token');

-- by a link, once
select * from switchboard.create_sign_in_link(:'bob') \gset l_
select matches(:'l_code'::text, '^sbl_[A-Za-z0-9_-]{43}$', 'a code is sbl_ and 32 bytes');
select is(:'l_expires_at'::timestamptz, switchboard.now() + interval '10 min', 'it is good for ten minutes');
select is_empty(format('select * from switchboard.sign_in_links l where l::text like %L', '%' || :'l_code' || '%'), 'what is stored is not the code');
select is(switchboard.open_session_by_link(d, test.hash('x')), null, 'no session by ' || n) from (values (test.hash('sbl_x'), 'an unknown code'), (null, 'none'), (test.hash(:'u_token'), 'a token')) v(d, n);
select is(switchboard.open_session_by_link(test.hash(:'l_code'), test.hash('b1')) ->> 'human', 'Bob', 'it signs its human in');
select is(test.whom('b1'), 'Bob', 'who is known by the session');
select is(switchboard.open_session_by_link(test.hash(:'l_code'), test.hash('b2')), null, 'once');
select is(test.whom('b2'), null, 'and nobody a second time');
select code from switchboard.create_sign_in_link(:'bob', 1) \gset m_
select test.conflict(format('select switchboard.open_session_by_link(%L, %L)', test.hash(:'m_code'), test.hash('b1')), 'not with a secret that is in use');
select test.pass('59 s') \g /dev/null
select isnt(switchboard.open_session_by_link(test.hash(:'m_code'), test.hash('b3')), null, 'a refusal does not use it up');
select code from switchboard.create_sign_in_link(:'bob', 1) \gset n_
select test.pass('1 min') \g /dev/null
select is(switchboard.open_session_by_link(test.hash(:'n_code'), test.hash('b4')), null, 'an expired one opens nothing');
select test.invalid(format('select switchboard.create_sign_in_link(%L, %L)', :'bob', m), 'minutes', 'not for ' || coalesce(m::text, 'NULL') || ' minutes') from unnest(array[0, -1, 1441, null]) m;
select test.not_found(format('select switchboard.create_sign_in_link(%L)', h), 'no link for nobody') from unnest(array[test.unknown(), null]) h;
select test.pass('10 min') \g /dev/null
select is(switchboard.prune(), 3::bigint, 'prune deletes what has expired, used or not');
select is((select count(*) from switchboard.sign_in_links), 0::bigint, 'all links');

-- by an identity
select switchboard.add_human_identity(:'ada', 'https://id.example.org', 'ada-1') \g /dev/null
select is(switchboard.open_session_by_identity('https://id.example.org', 'ada-1', test.hash('o1')) ->> 'human', 'Ada', 'who a provider vouches for is signed in');
select is(switchboard.open_session_by_identity(i, s, test.hash('x')), null, n) from (values ('https://id.example.org', 'ada-2', 'nobody of another subject'), ('https://id.example.org/', 'ada-1', 'nor of another issuer'),
    ('https://id.example.org', 'ADA-1', 'nor in other letters'), (null, 'ada-1', 'nor without an issuer'), ('https://id.example.org', null, 'nor without a subject')) v(i, s, n);
select test.conflict(format('select switchboard.add_human_identity(%L, %L, %L)', h, 'https://id.example.org', 'ada-1'), 'an identity is somebody''s, once') from unnest(array[:'ada', :'bob']) h;
select switchboard.add_human_identity(:'ada', 'https://other.example.org', 'ada-1'), switchboard.add_human_identity(:'bob', 'https://id.example.org', 'bob') \g /dev/null
select results_eq('select human, issuer, subject from switchboard.list_human_identities()', $$ values ('Ada', 'https://id.example.org', 'ada-1'), ('Ada', 'https://other.example.org', 'ada-1'), ('Bob', 'https://id.example.org', 'bob') $$, 'a human may have several');
select is((select count(*) from switchboard.list_human_identities(:'bob')), 1::bigint, 'the list of a human');
select test.invalid(format('select switchboard.add_human_identity(%L, %L, %L)', :'ada', i, 'x'), 'issuer', 'no issuer such as ' || coalesce(left(to_json(i)::text, 14), 'NULL')) from unnest(array[null, '', 'id.example.org', 'ftp://x', 'https://', 'https://a b', E'https://a\n', 'https://' || repeat('x', 1000)]) i;
select test.invalid(format('select switchboard.add_human_identity(%L, %L, %L)', :'ada', 'https://x', s), 'subject', 'no subject such as ' || coalesce(left(to_json(s)::text, 12), 'NULL')) from unnest(array[null, '', E'a\nb', repeat('x', 256)]) s;
select test.not_found(format('select switchboard.add_human_identity(%L, %L, %L)', h, 'https://x', 'x'), 'no identity of nobody') from unnest(array[test.unknown(), null]) h;
select test.not_found(format('select switchboard.remove_human_identity(%L, %L, %L)', h, i, s), w) from (values (:'bob', 'https://id.example.org', 'ada-1', 'somebody else''s is not removed'), (:'ada', 'https://id.example.org', 'x', 'nor one that is none'), (null, null, null, 'nor nothing')) v(h, i, s, w);
select switchboard.remove_human_identity(:'ada', 'https://id.example.org', 'ada-1') \g /dev/null
select is(test.whom('o1'), null, 'a removed identity''s session ends');
select is(switchboard.open_session_by_identity('https://id.example.org', 'ada-1', test.hash('o2')), null, 'and it opens none');

-- closing
select is(test.whom('b1'), 'Bob', 'Bob is signed in still');
select test.heard('switchboard_control') \g /dev/null
select is(switchboard.close_session(test.hash('b1')), true, 'signed out');
select is(test.whom('b1'), null, 'a closed session opens nothing');
select ok('sessions' = any (test.heard('switchboard_control')), 'gateways are told');
select is(switchboard.close_session(d), false, 'nothing else is closed') from unnest(array[test.hash('b1'), null, ''::bytea]) d;
select code from switchboard.create_sign_in_link(:'bob') \gset c_
select switchboard.open_session_by_identity('https://id.example.org', 'bob', test.hash('b' || n)) from generate_series(5, 6) n \g /dev/null
select switchboard.open_session_by_identity('https://other.example.org', 'ada-1', test.hash('o3')) \g /dev/null
select set_eq($$ select human, how from switchboard.list_sessions() $$, $$ values ('Ada', 'oidc'), ('Bob', 'oidc'), ('Bob', 'link') $$, 'the list of all');
select is((select count(*) from switchboard.list_sessions(:'bob')), 3::bigint, 'the list of a human');
select is_empty($$ select * from switchboard.list_sessions() l where to_jsonb(l)::text like '%\\x%' $$, 'shows no digest');
select session_id from switchboard.list_sessions(:'bob') where how = 'link' \gset
select test.not_found(format('select switchboard.close_sessions(%L, %L)', h, s), w) from (values (:'ada', :'session_id', 'not the session of somebody else'), (:'bob', test.unknown(), 'no unknown one'), (test.unknown(), null, 'of nobody'), (null, null, 'of NULL')) v(h, s, w);
select is(switchboard.close_sessions(:'bob', :'session_id'), 1::bigint, 'one session of a human is closed');
select is(test.whom('b3'), null, 'that one');
select is(test.whom('b5'), 'Bob', 'and no other');
select isnt((select id from switchboard.sign_in_links), null, 'a link that was not used stays');
select is(switchboard.close_sessions(:'bob'), 2::bigint, 'all sessions of a human are closed');
select is(switchboard.open_session_by_link(test.hash(:'c_code'), test.hash('b7')), null, 'and the links that were not used yet');
select is(test.whom('o3'), 'Ada', 'of nobody else');
select is(switchboard.close_sessions(:'bob'), 0::bigint, 'a second time there is nothing to close');

-- no more than a hundred at once
select switchboard.open_session_by_identity('https://id.example.org', 'bob', test.hash('many' || n)) from generate_series(1, 100) n \g /dev/null
select test.pass('1 min'), test.use('many1') \g /dev/null
select switchboard.open_session_by_identity('https://id.example.org', 'bob', test.hash('one more')) \g /dev/null
select is((select count(*) from switchboard.list_sessions(:'bob')), 100::bigint, 'a human has a hundred sessions at most');
select is(test.whom('many1'), 'Bob', 'one that is in use stays');
select is(test.whom('one more'), 'Bob', 'the new one is there');
select is(test.whom('o3'), 'Ada', 'and it is nobody else''s loss');

-- over REST a session is as good as a token
select is(switchboard.call_api(test.hash('one more'), 'list_todos', '{"path": {}, "query": {}, "body": null}') -> 'error', null, 'call_api knows sessions');
select is(switchboard.call_api(test.hash('none'), 'list_todos', '{}') #>> '{error,code}', 'unauthenticated', 'and what is none');
select test.pass('1 min'), switchboard.call_api(test.hash('one more'), 'list_todos', '{}') \g /dev/null
select is(last_seen_at, date_trunc('minute', switchboard.now()), 'a call is a use') from switchboard.human_sessions where digest = test.hash('one more');

select * from finish();
