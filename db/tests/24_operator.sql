-- functions/24_operator: the operator twins (SPEC-0003, Operator Twins).
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
select test.human('a') as ada, test.human('b') as bob \gset

-- whose todos
select test.make('pending', 'a') as a, test.pass('1 s'), test.make('pending', 'a2') as a2, test.make('pending', 'b') as b \gset
select is((switchboard.get_todo_any_endpoint(id, h)).id::text, id, n) from (values (:'a', :'ada'::uuid, 'Ada sees hers'), (:'a2', :'ada', 'on each of her endpoints'), (:'b', :'bob', 'Bob sees his'), (:'b', null, 'an operator sees every one')) v(id, h, n);
select test.not_found(format('select switchboard.get_todo_any_endpoint(%L, %L)', id, h), n) from (values (:'b', :'ada', 'Ada does not see Bob''s'), (test.unknown(), :'ada', 'an unknown one looks the same'), ('x', :'ada', 'and a malformed one'), (null, :'ada', 'and NULL'), (:'a', test.unknown(), 'an unknown human')) v(id, h, n);
select is((select array_agg(id::text order by id) from switchboard.list_todos_any_endpoint(p_actor_human_id => :'ada')), array[:'a', :'a2'], 'Ada''s list');
select is((select count(*) from switchboard.list_todos_any_endpoint()), 3::bigint, 'the operator''s list');
select is((select array_agg(id::text) from switchboard.list_todos_any_endpoint(p_endpoint_id => e)), l, 'the list of one endpoint: ' || n) from (values (test.a(), array[:'a'], 'A'), (test.unknown(), null, 'an unknown one'), ('x', null, 'a malformed one')) v(e, l, n);
select is((select array_agg(id::text) from switchboard.list_todos_any_endpoint(p_endpoint_id => test.b(), p_actor_human_id => :'ada')), null, 'Ada''s list of Bob''s endpoint is empty');
select is((select array_agg(id::text) from switchboard.list_todos_any_endpoint(p_before => :'a2', p_actor_human_id => :'ada')), array[:'a'], 'the page before a2');
select test.invalid($$ select * from switchboard.list_todos_any_endpoint(p_state => 'x') $$, 'state', 'an unknown state');
select test.invalid($$ select * from switchboard.list_todos_any_endpoint(p_limit => 0) $$, 'limit', 'a limit of 0');

-- who may act without naming a human
select test.login('app', 'switchboard_app') as app, test.login('bound', 'switchboard_operator') as bound \gset
select switchboard.list_humans() \g /dev/null
select is(test.as_login(:'app', c) ->> 'error', 'SB403', 'the gateway must name the human: ' || split_part(c, '(', 1)) from unnest(array['select * from switchboard.list_todos_any_endpoint()', format('select * from switchboard.get_todo_any_endpoint(%L)', :'a'),
    format('select * from switchboard.claim_any_endpoint(%L)', :'a'), format('select * from switchboard.heartbeat_any_endpoint(%L)', :'a'), format('select * from switchboard.complete_any_endpoint(%L)', :'a'), format('select * from switchboard.fail_any_endpoint(%L)', :'a'),
    format('select * from switchboard.release_any_endpoint(%L)', :'a'), format('select * from switchboard.retry_any_endpoint(%L)', :'a'), format('select * from switchboard.create_todo_any_endpoint(%L, ''q'', ''t'')', test.a()), format('select * from switchboard.todo_history_any_endpoint(%L)', :'a')]) c;
select is(test.as_login(:'app', format('select id from switchboard.get_todo_any_endpoint(%L, %L)', :'a', :'ada')) -> 0 ->> 'id', :'a', 'then it may');
grant switchboard_worker to :"bound";
select switchboard.bind_login(test.b(), :'bound') \g /dev/null
select is(test.as_login(:'bound', 'select * from switchboard.list_todos_any_endpoint()') ->> 'error', 'SB403', 'an operator''s login that is bound to an endpoint is no operator');
select is(test.as_login(:'bound', format('select * from switchboard.list_todos_any_endpoint(p_actor_human_id => %L)', :'ada')) ->> 'error', 'SB403', 'not even when it names a human');

-- transitions, on what is one's own
select is((switchboard.claim_any_endpoint(:'a', 60, :'ada')).owner, 'op:Ada', 'the owner is op:<human>');
select matches((switchboard.claim_any_endpoint(:'b')).owner, '^op:', 'or op:<login>');
select is((switchboard.heartbeat_any_endpoint(:'a', 600, :'ada')).lease_expires_at, switchboard.now() + interval '600 s', 'heartbeat of one''s own lease');
select is((switchboard.complete_any_endpoint(:'a', '"r"', :'ada')).state, 'done', 'complete of one''s own');
select is((select outcome from switchboard.todo_history_any_endpoint(:'a', :'ada')), 'done', 'one''s own lease is not overridden');
select is((switchboard.claim_any_endpoint(:'a2', p_actor_human_id => :'ada')).state || (switchboard.fail_any_endpoint(:'a2', p_actor_human_id => :'ada')).state || (switchboard.retry_any_endpoint(:'a2', :'ada')).state
    || (switchboard.claim_any_endpoint(:'a2', p_actor_human_id => :'ada')).state || (switchboard.release_any_endpoint(:'a2', :'ada')).state, 'claimedfailedpendingclaimedpending', 'claim, fail, retry, claim, release');
select test.invalid(format('select switchboard.claim_any_endpoint(%L, 0)', :'a2'), 'lease_ttl_seconds', 'no lease of 0');
select is((switchboard.claim_any_endpoint(test.create('a', 'q', p_assignee => 'op:Ada'), p_actor_human_id => :'ada')).assignee, 'op:Ada', 'what is assigned to the human');
select test.conflict(format('select switchboard.claim_any_endpoint(%L, null, %L)', test.create('a', 'q', p_assignee => 'ann'), :'ada'), 'but not what is assigned to somebody else');

-- transitions, on what an agent holds: only with force
select test.make('claimed', 'a') as id \gset
select test.conflict(format('select switchboard.%s_any_endpoint(%L, p_actor_human_id => %L)', f, :'id', :'ada'), f || ' on an agent''s lease without force') from unnest('{claim,heartbeat,complete,fail,release}'::text[]) f;
select test.conflict(format('select switchboard.%s_any_endpoint(%L, p_actor_human_id => %L, p_force => %s)', f, :'id', :'ada', p), f || ' with force ' || p) from unnest('{heartbeat,complete,fail,release}'::text[]) f, unnest(array['false', 'null']) p;
select is((switchboard.heartbeat_any_endpoint(:'id', 600, :'ada', true)).owner, 'w1', 'a forced heartbeat leaves the agent its lease');
select is(test.stored(:'id') ->> 'attempt', '1', 'and spends no attempt');
create table test.forced as select f, test.make('claimed', 'a') as id from unnest('{complete,fail,release}'::text[]) f;
select is(test.outcome(format('select state from switchboard.%s_any_endpoint(%L, p_actor_human_id => %L, p_force => true)', f, id, :'ada')), case f when 'complete' then 'done' when 'fail' then 'failed' else 'pending' end, 'forced ' || f) from test.forced;
select is((select outcome || ' of ' || owner from switchboard.todo_history_any_endpoint(id, :'ada')), 'overridden of w1', 'a forced ' || f || ' ends the holder''s attempt as overridden') from test.forced;
select is(test.stored(id) ->> 'attempt', '1', 'a forced ' || f || ' spends no further attempt') from test.forced;
select test.conflict(format('select switchboard.%s_any_endpoint(%L, p_actor_human_id => %L, p_force => true)', f, test.make(s), :'ada'), format('force does not help: %s of a %s todo', f, s))
    from unnest('{heartbeat,complete,fail,release}'::text[]) f, unnest('{pending,parked,due,dead,done}'::text[]) s;
select is((switchboard.claim_any_endpoint(test.make(s), p_actor_human_id => :'ada')).owner, 'op:Ada', 'an operator claims a ' || s || ' todo') from unnest('{pending,lapsed,due}'::text[]) s;
select test.conflict(format('select switchboard.claim_any_endpoint(%L, p_actor_human_id => %L)', test.make(s), :'ada'), 'but no ' || s || ' one') from unnest('{claimed,spent,parked,dead,done}'::text[]) s;
select test.conflict(format('select switchboard.retry_any_endpoint(%L, %L)', test.make(s), :'ada'), 'no retry of a ' || s || ' one') from unnest('{pending,claimed,lapsed,done}'::text[]) s;

-- foreign ones are not found, forced or not
select test.make('claimed', 'b') as id \gset
select test.not_found(format('select switchboard.%s_any_endpoint(%L, p_actor_human_id => %L)', f, i, :'ada'), format('%s of %s', f, n)) from unnest('{get_todo,claim,heartbeat,complete,fail,release,retry}'::text[]) f, (values (:'id', 'Bob''s todo'), (test.unknown(), 'an unknown one'), ('x', 'a malformed id')) v(i, n);
select test.not_found(format('select switchboard.%s_any_endpoint(%L, p_actor_human_id => %L, p_force => true)', f, :'id', :'ada'), f || ' of Bob''s todo with force') from unnest('{heartbeat,complete,fail,release}'::text[]) f;
select is(test.stored(:'id') ->> 'owner', 'w1', 'Bob''s lease is untouched');
select is_empty(format('select * from switchboard.todo_history_any_endpoint(%L, %L)', :'id', :'ada'), 'nor its history');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
