-- functions/02_checks: what may be stored.
select no_plan();

-- texts
select lives_ok($$ select switchboard.check_text('kind', null, 3), switchboard.check_text('kind', 'abc', 3), switchboard.check_text('kind', 'äöü', 3) $$, 'a text up to the limit, in characters');
select test.invalid(format('select switchboard.check_text(''kind'', %L, 3)', t), 'kind', 'not a text of 1 to 3 characters: ' || quote_literal(t)) from unnest('{"",abcd}'::text[]) t;
select test.invalid($$ select switchboard.check_text('owner', null, 3, true) $$, 'owner', 'a required text that is missing');

-- queue names
select lives_ok(format('select switchboard.check_queue(%L, array[%1$L])', q), 'a queue name: ' || q) from unnest(array['q', '0', 'a.b_c-d', rpad('a', 63, 'z')]) q;
select test.invalid(format('select switchboard.check_queue(%L, array[%1$L])', q), 'queue', 'no queue name: ' || coalesce(to_json(q)::text, 'NULL'))
    from unnest(array[null, '', 'Q', '-a', '.a', '_a', 'a b', 'a:b', 'a/b', E'a\n', E'a\nb', 'ä', rpad('a', 64, 'z')]) q;
select test.forbidden($$ select switchboard.check_queue('other', '{q,r}') $$, 'a queue outside the grant is forbidden');
select test.forbidden($$ select switchboard.check_queue('quarantine', '{quarantine}') $$, 'quarantine is forbidden even if granted');

-- JSON values
select is(switchboard.json_problem(v), null, 'may be stored: ' || left(v::text, 40)) from unnest(array['{}', '[]', '""', '0', 'false', '{"a": null}']::jsonb[]) v;
select is(switchboard.json_problem((repeat('[', 64) || repeat(']', 64))::jsonb), null, 'depth 64');
select isnt(switchboard.json_problem((repeat('[', 65) || repeat(']', 65))::jsonb), null, 'not depth 65');
select isnt(switchboard.json_problem((repeat('{"a":', 65) || '1' || repeat('}', 65))::jsonb), null, 'nor of objects');
select is(switchboard.json_problem((repeat('{"a":', 64) || '1' || repeat('}', 64))::jsonb), null, 'a scalar below depth 64');
select isnt(switchboard.json_problem((repeat('[', 65) || '1' || repeat(']', 65))::jsonb), null, 'a deep one among much text: too deep');
select isnt(switchboard.json_problem(('["' || repeat('x', 1000) || '", ' || repeat('[', 65) || repeat(']', 65) || ']')::jsonb), null, 'depth is seen beside long texts');
select is(switchboard.json_problem(to_jsonb(repeat('[', 100))), null, 'brackets within a text are no depth');
select is(switchboard.json_problem(to_jsonb(('1' || repeat('0', 999))::numeric)), null, 'a number of 1,000 digits');
select isnt(switchboard.json_problem(to_jsonb(('1' || repeat('0', 1000))::numeric)), null, 'not of 1,001');
select isnt(switchboard.json_problem(n::jsonb), null, 'nor ' || n) from unnest(array['1e131000', '1e-16000', '[1e5000]', '{"a": -1e5000}']) n;
select isnt(switchboard.json_problem('{"a": 1e2000}'::jsonb), null, 'nor one inside an object');
select is(switchboard.json_problem(to_jsonb(repeat('1', 5000))), null, 'digits within a text are no number');
select is(switchboard.json_problem(to_jsonb(repeat('x', 262142))), null, '262,144 bytes as rendered');
select isnt(switchboard.json_problem(to_jsonb(repeat('x', 262143))), null, 'not 262,145');
select isnt(switchboard.json_problem(to_jsonb(repeat('ä', 131072))), null, 'bytes, not characters');
select isnt(switchboard.json_problem('null'), null, 'not JSON null');
select test.invalid($$ select switchboard.check_json('payload', 'null') $$, 'payload', 'check_json names the field');
select lives_ok($$ select switchboard.check_json('payload', '{}') $$, 'and lets the rest pass');
select lives_ok($$ select switchboard.check_json('payload', null) $$, 'SQL NULL is for the caller to judge');

-- limits
select is(switchboard.check_limit(l, 50, 200), e, 'a limit of ' || coalesce(l::text, 'NULL')) from (values (1, 1), (200, 200), (201, 200), (1000000000, 200), (null, 50)) v(l, e);
select test.invalid(format('select switchboard.check_limit(%s, 50, 200)', l), 'limit', 'no limit: ' || l) from unnest('{0,-1,-2147483648}'::int[]) l;

-- one line
select is(switchboard.one_line(t, 500), e, 'one line: ' || to_json(t)) from (values
    ('plain', 'plain'), (E'  two\nlines\r\n ', 'two lines'), (E'tab\tand  blanks', 'tab and blanks'), (E'bell\x07', 'bell'), (E'sep\u2028arated', 'sep arated'), ('', '')) v(t, e);
select is(length(switchboard.one_line(repeat('ä', 501), 500)), 500, 'cut to 500 characters');

-- what is small but renders to a gigabyte is told before it is rendered, by every way in
select test.set_up(), set_config('statement_timeout', '2s', false) \g /dev/null
create function test.large(p_number text, p_count int) returns jsonb language sql immutable as $$ select ('[' || repeat(p_number || ',', p_count - 1) || p_number || ']')::jsonb $$;
select is(switchboard.json_problem(test.large(n, 8000)), 'must have no number of more than 1000 digits: send it as text', '8,000 times ' || n) from unnest('{1e131000,-1e131000,1e-13100}'::text[]) n;
select is(switchboard.json_problem(test.large('12345', 20000)), null, '20,000 numbers are read in time');
select test.invalid($$ select switchboard.create_todo(test.a(), 'q', 't', test.large('1e131000', 8000)) $$, 'payload', 'create_todo');
select test.invalid($$ select switchboard.create_todos(test.a(), jsonb_build_array(jsonb_build_object('queue', 'q', 'title', 't', 'payload', test.large('1e131000', 8000)))) $$, 'payload', 'create_todos');
select test.create() as id \gset
select switchboard.claim(test.a(), :'id', 'w') \g /dev/null
select test.invalid(format($$ select switchboard.complete(test.a(), %L, 'w', test.large('1e131000', 8000)) $$, :'id'), 'result', 'complete');
select * from finish();
