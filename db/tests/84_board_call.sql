-- functions/84_board_call: the board's door.
select no_plan();
\pset fieldsep '\n'
select test.set_up(), test.stop_clock() \g /dev/null
select test.human('a') as ada, test.human('b') as bob \gset
create table test.keys as select h.name, t.token_id, sha256(convert_to(t.token, 'UTF8')) as digest from switchboard.humans h cross join lateral switchboard.create_operator_token(h.id, 'test') t;
create function test.board(p_page text, p_args jsonb default '{}', p_human text default 'Ada') returns jsonb language sql as $$
    select switchboard.call_board(t.digest, p_page, p_args) from test.keys t where t.name = p_human
$$;
create function test.error_code(p_answer jsonb) returns text language sql as $$ select p_answer -> 'error' ->> 'code' $$;
select test.make('dead') as dead, test.make('claimed', 'b') as foreign, test.receiver('r') as receiver, test.made(test.deliver('r', '{}', 'd-1')) as delivered \gset
select test.event_of(:'delivered') as event \gset

-- who looks
select is(switchboard.call_board(d, 'exchange'), null, 'nothing for ' || n) from (values (sha256('x'), 'an unknown digest'), (null, 'none'), (''::bytea, 'an empty one')) v(d, n);
select is(switchboard.call_board(sha256('x'), 'nothing', '[]'), null, 'before anything else is looked at');
select is(last_used_at, null, 'no use is noted yet') from switchboard.list_operator_tokens(:'ada');
select is(test.board('exchange') -> 'me', jsonb_build_object('id', :'ada', 'name', 'Ada'), 'the human whose token it is');
select isnt(last_used_at, null, 'the use of a token is noted') from switchboard.list_operator_tokens(:'ada');
select switchboard.open_session_by_token((select digest from test.keys where name = 'Ada'), sha256('session')) \g /dev/null
select is(switchboard.call_board(sha256('session'), 'exchange') #>> '{me,name}', 'Ada', 'a session of the board opens it, too');
select switchboard.close_session(sha256('session')) \g /dev/null
select is(switchboard.call_board(sha256('session'), 'exchange'), null, 'but not once it is closed');

-- every page has the frame
create table test.pages (name text, args jsonb);
insert into test.pages values ('exchange', '{}'), ('todo', jsonb_build_object('id', :'dead')), ('endpoints', '{}'), ('endpoint', '{"slug": "test-a"}'), ('receivers', '{}'), ('deliveries', '{}'),
    ('delivery', jsonb_build_object('id', :'event')), ('hooks', '{}'), ('budget', '{"slug": "test-a", "queue": "q"}'), ('health', '{}');
select is(p ->> 'page', name, name || ' is a page'), is(p ->> 'now', '2026-03-02T12:00:00.000Z', 'its clock'), is(p #>> '{status,dead}', '1', 'its rail'), is(p #>> '{me,name}', 'Ada', 'and who looks: ' || name)
from test.pages cross join lateral test.board(name, args) p;
select is(test.board(name, args || '{"endpoint": "", "before": "", "after": "", "quarantine": ""}') - 'filter', test.board(name, args) - 'filter', name || ': empty arguments are none') from test.pages;
select is(test.board(name, null) -> 'error' -> 'message', case when name in ('todo', 'endpoint', 'delivery', 'budget') then test.board(name) -> 'error' -> 'message' end, name || ' without arguments') from test.pages;

-- errors are values
select is(test.error_code(test.board(p)), 'not_found', 'there is no page ' || coalesce(p, 'without a name')) from unnest(array['nothing', '', null, 'board_todo']) p;
select is((test.board('exchange', '{"state": "asleep"}') -> 'error') - 'message', '{"code": "invalid_argument", "field": "state", "reason": "must be pending, claimed, done or failed, or waiting, deferred, connected, parked, dead or quarantined"}', 'what is wrong is named');
alter function switchboard.board_choices(uuid) rename to board_choices_away;
select is(test.board('exchange') -> 'error', jsonb_build_object('code', 'internal', 'message', (select message from switchboard.error_table() where code = 'internal')), 'a foreign error keeps its text');
alter function switchboard.board_choices_away(uuid) rename to board_choices;

-- tenancy: foreign and unknown are one, on every page
select is((select count(distinct test.board(page, jsonb_build_object(field, v))) from unnest(values_) v), 1::bigint, format('%s with a foreign %s, or none', page, field)), is(test.error_code(test.board(page, jsonb_build_object(field, values_[1]))), 'not_found', 'not found')
from (values ('todo', 'id', array[:'foreign', test.unknown(), 'x', '']), ('endpoint', 'slug', array['test-b', 'nobody', test.b()]), ('delivery', 'id', array[test.unknown(), 'x'])) v(page, field, values_);
select is(test.error_code(test.board('delivery', jsonb_build_object('id', :'event'), 'Bob')), 'not_found', 'a delivery of Ada''s is none of Bob''s');
select is(strpos(test.board(name, p_human => 'Bob')::text, w), 0, format('%s of Bob tells nothing of %s', name, w)) from test.pages, unnest(array['test-a', test.a(), :'dead', :'receiver', :'delivered', :'event', 'Ada']) w
where name not in ('todo', 'endpoint', 'delivery', 'budget');
select is(test.error_code(test.board('budget', '{"slug": "test-b", "queue": "q"}')), 'not_found', 'nor is a budget');

-- a page changes nothing, and holds nothing
begin read only;
select isnt(switchboard.board_page(:'ada', name, args), null, name || ' can be read where nothing can be written') from test.pages;
commit;
select test.not_found(format('select switchboard.board_page(%L, ''exchange'', ''{}'')', test.unknown()), 'a page of nobody');

-- what changed
begin isolation level repeatable read;  -- of its own snapshot: transactions of other databases count, too
select switchboard.board_changes() as before \gset
select is(switchboard.board_changes(), :'before', 'nothing has changed'), isnt(:'before'::text, '', 'says a text');
commit;
select test.create() \g /dev/null
select isnt(switchboard.board_changes(), :'before', 'a transition changes it');

-- who may call
select is((select array_agg(r order by r) from unnest(g.roles) r), '{app}', g.signature || ' is for the gateway') from switchboard.granted() g where g.signature ~ '^(call_board|board_)';
select is((select count(*) from switchboard.granted() g where g.signature ~ '^(call_board|board_)'), 2::bigint, 'nothing else of the board is for anybody');

select * from finish();
