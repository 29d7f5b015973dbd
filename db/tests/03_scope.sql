-- functions/03_scope: whose rows a session may touch.
select no_plan();
select test.set_up() \g /dev/null

-- is_active
select is(switchboard.is_active(r, e, '2026-03-01Z'), a, format('revoked %s, expires %s: active %s', coalesce(r::text, 'never'), coalesce(e::text, 'never'), a))
    from (values (null::timestamptz, null::timestamptz, true), ('2026-02-01Z', null, false), (null, '2026-03-02Z', true), (null, '2026-03-01Z', false), (null, '2026-02-28Z', false)) v(r, e, a);

-- unbound logins
select test.login('app', 'switchboard_app') as app, test.login('operator', 'switchboard_operator') as operator, test.login('bound', 'switchboard_worker') as bound,
    test.login('loose', 'switchboard_worker') as loose, test.login('reader', 'switchboard_readonly') as reader \gset
select test.login('both', 'switchboard_operator') as both \gset
grant switchboard_worker to :"both";
grant usage on schema test, switchboard to public;
create function test.scope_of(p_login text, p_endpoint_id text, p_verb text default null) returns jsonb language sql as $$
    select test.as_login(p_login, format('select test.scope(%L, %L) as id', p_endpoint_id, p_verb))
$$;
-- scope() is internal: reached here through a function of the owner, as the edge functions reach it.
create function test.scope(p_endpoint_id text, p_verb text) returns uuid language sql security definer set search_path = switchboard, pg_temp as $$
    select switchboard.scope(p_endpoint_id, p_verb)
$$;
create function test.ids(p_id text) returns jsonb language sql immutable as $$ select jsonb_build_array(jsonb_build_object('id', p_id)) $$;

select is(test.scope_of(login, test.a()), test.ids(test.a()), role || ' may name any endpoint') from (values (:'app', 'app'), (:'operator', 'operator'), (session_user::text, 'a superuser')) v(login, role);
select is(test.scope_of(:'app', upper(test.a())), test.ids(test.a()), 'in any case');
select is(test.scope_of(:'app', e), test.ids(null), 'owns nothing: ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, '', 'x', 'test-a', '{' || test.a() || '}', test.a() || ' ']) e;
select is(test.scope_of(login, test.a()), test.ids(null), role || ' owns nothing') from (values (:'loose', 'an unbound worker'), (:'reader', 'readonly')) v(login, role);

-- bound logins
select switchboard.bind_login(test.a(), :'bound'), switchboard.bind_login(test.b(), :'both') \g /dev/null
select is(test.scope_of(:'bound', e), test.ids(r), 'bound to A, naming ' || coalesce(n, 'NULL'))
    from (values (null, null, test.a()), ('A', test.a(), test.a()), ('B', test.b(), null), ('an unknown one', test.unknown(), null), ('a malformed one', 'x', null), ('nothing', '', null)) v(n, e, r);
select is(test.scope_of(:'both', test.a()), test.ids(null), 'a bound operator owns its endpoint only');
select is(test.scope_of(:'both', null), test.ids(test.b()), 'and NULL means that one');
select is(test.scope_of(:'bound', null, 'claim'), test.ids(test.a()), 'with a granted verb');
select is(test.scope_of(:'bound', null, 'create_webhook') ->> 'error', 'SB403', 'a verb outside the grant is forbidden');
select is(test.scope_of(:'bound', test.b(), 'create_webhook'), test.ids(null), 'but not for a foreign endpoint: that is unknown');
select is(test.scope_of(:'app', test.a(), 'create_webhook'), test.ids(test.a()), 'the gateway checks verbs itself');

update switchboard.endpoints set expires_at = switchboard.now() + interval '1 s' where id::text = test.a();
select is(test.scope_of(:'bound', null), test.ids(test.a()), 'until it expires');
update switchboard.endpoints set expires_at = switchboard.now() - interval '1 s' where id::text = test.a();
select is(test.scope_of(:'bound', null), test.ids(null), 'an expired endpoint''s login owns nothing');
select switchboard.revoke_endpoint(test.b()) \g /dev/null
select is(test.scope_of(:'both', null), test.ids(null), 'nor a revoked one''s');
select switchboard.unbind_login(:'bound') \g /dev/null
select is(test.scope_of(:'bound', test.a()), test.ids(null), 'nor one that was unbound');

-- inside, the clock is read by clock(): the same as now()
select test.at('2030-01-01T00:00Z') \g /dev/null
select is(switchboard.clock(), switchboard.now(), 'clock: the session''s clock');
select test.real_time() \g /dev/null
update switchboard.settings set is_test = true, test_now = '2031-01-01T00:00Z';
select is(switchboard.clock(), switchboard.now(), 'clock: the stored clock');
create function test.inner_clock() returns timestamptz language sql security definer set search_path = switchboard, pg_temp as 'select clock()';
select is(test.as_login(:'app', 'select set_config(''switchboard.test_now'', ''2000-01-01'', true) is null as x, test.inner_clock() = ''2031-01-01T00:00Z'' as stored') -> 0 ->> 'stored', 'true', 'clock: which a login of no owner cannot move');
update switchboard.settings set is_test = false, test_now = null;
select ok(abs(extract(epoch from switchboard.clock() - clock_timestamp())) < 1, 'clock: the wall clock');

select * from finish();
