-- functions/00_clock: the clock and identities.
select no_plan();

-- the clock
select ok(switchboard.now() between clock_timestamp() - interval '1 s' and clock_timestamp() + interval '1 s', 'without a test clock it is the wall clock');
begin;
select switchboard.now() as earlier \gset
select cmp_ok(switchboard.now(), '>', :'earlier'::timestamptz, 'it moves on inside a transaction');
commit;
select test.at('2030-01-01T00:00Z') \g /dev/null
select is(switchboard.now(), '2030-01-01T00:00Z'::timestamptz, 'the setting switchboard.test_now moves it for a member of switchboard_owner');
select test.login('worker', 'switchboard_worker') as worker, test.login('app', 'switchboard_app') as app, test.login('operator', 'switchboard_operator') as operator \gset
select is(test.as_login(login, 'select switchboard.now() < ''2029-12-31'' as real') -> 0, '{"real": true}', 'a login of role ' || role || ' cannot move it')
    from (values (:'app', 'app'), (:'operator', 'operator')) l(login, role);
select ok(not coalesce((test.as_login(:'worker', 'select switchboard.now() < ''2029-12-31'' as real') -> 0 ->> 'real')::boolean = false, false),
    'nor can a worker''s login');
select test.real_time() \g /dev/null

-- the stored clock of a test database
select throws_ok($$ update switchboard.settings set test_now = '2031-01-01Z' $$, '23514', null, 'a database that is no test database has no stored clock');
update switchboard.settings set is_test = true, test_now = '2031-01-01T00:00Z';
select is(switchboard.now(), '2031-01-01T00:00Z'::timestamptz, 'a test database''s stored clock is everybody''s');
select is(test.as_login(:'app', 'select switchboard.now() = ''2031-01-01T00:00Z'' as stored') -> 0, '{"stored": true}', 'the gateway''s login included');
select test.at('2030-01-01T00:00Z') \g /dev/null
select is(switchboard.now(), '2030-01-01T00:00Z'::timestamptz, 'the session''s clock goes before the stored one');
update switchboard.settings set is_test = false, test_now = null;
select test.real_time() \g /dev/null
select is((select provolatile from pg_proc where oid = 'switchboard.now()'::regprocedure), 's', 'it is STABLE: an index condition may use it');

-- identities
select matches(switchboard.new_id(now())::text, '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$', 'a new id is a version 7 uuid');
select is((select array_agg(n order by switchboard.new_id('2026-01-01Z'::timestamptz + n * interval '1 ms')) from generate_series(1, 50) n),
    (select array_agg(n order by n) from generate_series(1, 50) n), 'ids of different milliseconds sort by time');
select is((select array_agg(n order by switchboard.new_id('2026-01-01Z'::timestamptz + n * interval '2 us')) from generate_series(1, 50) n),
    (select array_agg(n order by n) from generate_series(1, 50) n), 'and by the microseconds within');
select is((select array_agg(n order by switchboard.new_id('2026-01-01Z', n)) from generate_series(0, 2000) n),
    (select array_agg(n order by n) from generate_series(0, 2000) n), 'ids of one instant sort by their ordinal');
select is((select count(distinct switchboard.new_id('2026-01-01Z', 1)) from generate_series(1, 1000)), 1000::bigint, 'they are random beside that');
select lives_ok(format('select switchboard.new_id(%L)', t), 'an id for ' || t) from unnest('{1970-01-01Z,1969-12-31T23:59Z,2262-04-11Z,9999-12-31Z}'::text[]) t;

-- as_uuid
select is(switchboard.as_uuid('0189aAbb-0000-7000-8000-00000000dEad'), '0189aabb-0000-7000-8000-00000000dead'::uuid, 'the canonical form is taken in any case');
select is(switchboard.as_uuid(t), null, 'not a canonical uuid: ' || coalesce(to_json(t)::text, 'NULL'))
    from unnest(array[null, '', 'x', '{0189aabb-0000-7000-8000-00000000dead}', '0189aabb00007000800000000000dead', '0189aabb-0000-7000-8000-00000000dea',
        '0189aabb-0000-7000-8000-00000000deadf', ' 0189aabb-0000-7000-8000-00000000dead', E'0189aabb-0000-7000-8000-00000000dead\n',
        '0189aabb-00007000-8000-0000-0000dead0', '٠١٨٩aabb-0000-7000-8000-00000000dead']) t;

select * from finish();
