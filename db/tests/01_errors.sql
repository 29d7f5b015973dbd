-- functions/01_errors: one table of errors, one place that raises, one that renders.
select no_plan();

select results_eq($$ select sqlstate, code, http_status from switchboard.error_table() order by sqlstate $$,
    $$ values ('SB400', 'invalid_argument', 400), ('SB401', 'unauthenticated', 401), ('SB403', 'forbidden', 403), ('SB404', 'not_found', 404), ('SB409', 'conflict', 409),
        ('SB411', 'ceiling_exceeded', 409), ('SB413', 'too_large', 413), ('SB429', 'deferred', 429), ('SB430', 'rate_limited', 429), ('SB500', 'internal', 500),
        ('SB503', 'unavailable', 503) $$, 'the errors of interfaces.md');
select set_eq($$ select code from switchboard.error_table() where retry $$, '{deferred,rate_limited,internal,unavailable}'::text[], 'which may succeed when called again');
select is_empty($$ select code from switchboard.error_table() where message is null or message !~ ':' $$, 'every message says what to do next');

select is(test.error_of($$ select switchboard.refuse('conflict') $$) - 'hint', (select jsonb_build_object('sqlstate', 'SB409', 'message', message, 'detail', '{}')
    from switchboard.error_table() where code = 'conflict'), 'refuse raises the table''s SQLSTATE and message, DETAIL an object');
select is(test.error_of($$ select switchboard.refuse('deferred', 'later', '{"queue": "q"}') $$) - 'hint',
    '{"sqlstate": "SB429", "message": "later", "detail": "{\"queue\": \"q\"}"}', 'or what it is given');
select isnt(test.error_of($$ select switchboard.refuse('no such code') $$) ->> 'sqlstate', null, 'an unknown code raises, too');
select is(test.error_of($$ select switchboard.refuse_argument('limit', 'must be at least 1') $$) - 'hint',
    '{"sqlstate": "SB400", "message": "limit must be at least 1", "detail": "{\"field\": \"limit\", \"reason\": \"must be at least 1\"}"}', 'a bad argument names field and reason');

select is(switchboard.error_value('SB400', 'limit must be at least 1', '{"field": "limit"}'),
    '{"error": {"code": "invalid_argument", "message": "limit must be at least 1", "field": "limit"}}', 'a product error as a value keeps its details');
select is(switchboard.error_value('SB404', 'no', null), '{"error": {"code": "not_found", "message": "no"}}', 'without DETAIL');
select is(switchboard.error_value(sqlstate, 'Failing row contains (secret)', 'Key (x)=(secret) exists') #>> '{error,code}', code, sqlstate || ' becomes ' || code)
    from (values ('40001', 'unavailable'), ('40P01', 'unavailable'), ('55P03', 'unavailable'), ('57014', 'unavailable'), ('25006', 'unavailable'),
                 ('53100', 'unavailable'), ('53200', 'unavailable'), ('58030', 'unavailable'), ('23514', 'internal'), ('22P02', 'internal'), ('XX000', 'internal')) f(sqlstate, code);
select unalike(switchboard.error_value(sqlstate, 'Failing row contains (secret)', 'Key (x)=(secret) exists')::text, '%secret%', 'nothing of the text of ' || sqlstate || ' is forwarded')
    from unnest('{25006,40001,40P01,53100,55P03,57014,58030,23514,22P02,XX000,P0001}'::text[]) sqlstate;

select * from finish();
