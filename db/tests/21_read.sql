-- functions/21_read: get_todo, list_todos, queue_counts, todo_history, unsound_todos.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null

-- One todo in each situation, a second apart.
create table test.made (n int, situation text, queue text, id text);
do $$
declare
    v_situations text[] := '{lapsed,due,parked,dead,done,claimed,pending,pending}';
begin
    for n in 1..8 loop
        perform test.pass('1 s');
        insert into test.made select n, v_situations[n], case when n = 8 then 'r' else 'q' end, test.make(v_situations[n], 'a', case when n = 8 then 'r' else 'q' end);
    end loop;
    perform test.pass('1 s');
    insert into test.made values (9, 'pending', 'q', test.create('a', 'q', p_assignee => 'ann'));
end
$$;
create function test.listed(p_queue text default null, p_state text default null, p_limit int default 50, p_endpoint text default 'a') returns int[] language sql as $$
    select coalesce(array_agg(m.n order by l.ordinality), '{}') from switchboard.list_todos(test.endpoint(p_endpoint), p_queue, p_state, p_limit) with ordinality l join test.made m on m.id = l.id::text
$$;

-- lists
select is(test.listed(), '{9,8,7,6,5,4,3,2,1}', 'newest first');
select is(test.listed(p_state => 'pending'), '{7,8,9}', 'pending: oldest first, as claims take them');
select is(test.listed(p_state => s), e::int[], s || ': newest first') from (values ('claimed', '{6,1}'), ('failed', '{4,3,2}'), ('done', '{5}')) v(s, e);
select is(test.listed('r'), '{8}', 'one queue');
select is(test.listed('q', 'pending'), '{7,9}', 'one queue and state');
select is(test.listed('inbox'), '{}', 'an empty queue');
select is(test.listed(p_limit => 2), '{9,8}', 'a limit');
select is(test.listed(p_state => 'pending', p_limit => 2), '{7,8}', 'a limit of the oldest');
select is(test.listed(p_limit => null), '{9,8,7,6,5,4,3,2,1}', 'a NULL limit is the default');
select is(test.listed(p_endpoint => 'b'), '{}', 'another endpoint lists none of them');
select test.invalid(format('select * from switchboard.list_todos(test.a(), p_limit => %s)', l), 'limit', 'no limit: ' || l) from unnest('{0,-1}'::int[]) l;
select test.invalid($$ select * from switchboard.list_todos(test.a(), p_state => 'parked') $$, 'state', 'no state: parked');
select test.invalid($$ select * from switchboard.list_todos(test.a(), 'Q') $$, 'queue', 'a malformed queue');
select test.forbidden($$ select * from switchboard.list_todos(test.a(), 'other') $$, 'a queue outside the grant');
select is_empty(format('select * from switchboard.list_todos(%L)', e), 'an empty list for ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, '', 'x', test.unknown()]) e;
select switchboard.create_todos(test.endpoint('b'), (select jsonb_agg('{"queue": "q", "title": "t"}'::jsonb) from generate_series(1, 250))) \g /dev/null
select is((select count(*) from switchboard.list_todos(test.b(), p_limit => 1000000)), 200::bigint, 'limits above 200 are clamped');
select is((select count(*) from switchboard.list_todos(test.b())), 50::bigint, 'the default limit is 50');

-- one todo
select is((switchboard.get_todo(test.a(), upper(id))).id::text, id, 'get_todo: ' || situation) from test.made;
select test.not_found(format('select switchboard.get_todo(%L, %L)', e, i), format('get_todo(%s, %s)', coalesce(quote_literal(e), 'NULL'), coalesce(quote_literal(i), 'NULL')))
    from test.made m, lateral (values (test.a(), null), (test.a(), ''), (test.a(), 'x'), (test.a(), test.unknown()), (test.a(), '{' || m.id || '}'), (test.a(), m.id || ' '),
        (test.b(), m.id), (null, m.id), ('', m.id), ('x', m.id), (test.unknown(), m.id)) v(e, i) where m.n = 1;

-- counts
select results_eq($$ select queue, pending, claimed, parked, dead, oldest_pending_seconds from switchboard.queue_counts(test.a()) $$,
    $$ values ('inbox', 0::bigint, 0::bigint, 0::bigint, 0::bigint, null::double precision),
        ('q', 2, 2, 2, 1, (select extract(epoch from switchboard.now() - min(created_at))::double precision from switchboard.todos where queue = 'q' and state = 'pending' and endpoint_id::text = test.a())),
        ('r', 1, 0, 0, 0, (select extract(epoch from switchboard.now() - created_at)::double precision from switchboard.todos where queue = 'r')) $$, 'queue_counts: live and dead ones exactly');
select switchboard.tick() \g /dev/null
select is((select done from switchboard.queue_counts(test.a()) where queue = 'q'), 1::bigint, 'and the done ones as of the last sweep');
select is_empty(format('select * from switchboard.queue_counts(%L)', e), 'no counts for ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, 'x', test.unknown()]) e;

-- history
select test.create('a', 'inbox', p_max_attempts => 2) as id \gset
do $$
declare
    v_id text := (select id::text from switchboard.todos where queue = 'inbox');
begin
    perform switchboard.claim(test.a(), v_id, 'w1'), test.pass('1 s');
    perform switchboard.fail(test.a(), v_id, 'w1', '{"error": "no luck"}'), test.pass('30 s');
    perform switchboard.claim(test.a(), v_id, 'w2', 60), test.pass('60 s');
    perform switchboard.reap_expired();
    perform switchboard.retry(test.a(), v_id);
    perform switchboard.claim(test.a(), v_id, 'w3'), test.pass('1 s');
    perform switchboard.complete(test.a(), v_id, 'w3', '"fine"');
end
$$;
select results_eq(format('select seq, attempt, owner, ended_at - claimed_at, outcome, state, summary from switchboard.todo_history(test.a(), %L)', :'id'),
    $$ values (1, 1, 'w1', interval '1 s', 'failed', 'failed', 'no luck'), (2, 2, 'w2', '60 s', 'lapsed', 'failed', null), (3, 1, 'w3', '1 s', 'done', 'done', 'fine') $$,
    'todo_history: one row an ended attempt, numbered on over a retry');
select is_empty(format('select * from switchboard.todo_history(%L, %L)', e, i), 'no history of ' || n) from (values (test.b(), :'id', 'a foreign todo'), (test.a(), 'x', 'a malformed id'), (null, :'id', 'no endpoint')) v(e, i, n);

-- what holds between the columns of a todo, and the function that tells when it does not
select is_empty($$ select * from switchboard.unsound_todos() $$, 'no todo is unsound');
create table test.broken (change text);
insert into test.broken values ('attempt = max_attempts + 1'), ('attempt = -1'), ('claims = attempt - 1'), ('lease_token = null'), ('due_at = null'), ('owner = null'), ('claimed_at = null'), ('completed_at = now()'), ('state = ''pending'''), ('state = ''done''');
select test.clear() \g /dev/null
select test.make('claimed') as id \gset
create function test.problems(p_change text) returns bigint language plpgsql as $$
declare
    v_count bigint;
begin
    execute 'update switchboard.todos set ' || p_change;
    select count(*) into v_count from switchboard.unsound_todos();
    raise exception using errcode = 'P0001', message = v_count::text;
exception when raise_exception then
    return sqlerrm::bigint;
end
$$;
select cmp_ok(test.problems(change), '>', 0::bigint, 'unsound: a claimed todo with ' || change) from test.broken;
select is(test.problems('title = title'), 0::bigint, 'and nothing else is');

select * from finish();
