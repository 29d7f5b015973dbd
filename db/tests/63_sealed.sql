-- functions/63_sealed: list_sealed and reseal.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
select switchboard.create_webhook(test.a(), 'github', 'q', '\xaa', sha256('a')) ->> 'webhook_id' as receiver,
       switchboard.create_notify_hook(test.a(), 'https://example.org/', p_sealed_secret => '\xbb') ->> 'hook_id' as hook \gset
select switchboard.rotate_webhook(test.a(), :'receiver', '\xcc', sha256('x')), switchboard.rotate_notify_hook(test.a(), :'hook', '\xdd') \g /dev/null
select is((select array_agg(format('%s %s %s', kind, slot, encode(sealed, 'hex'))) from switchboard.list_sealed()), '{"hook current dd","hook previous bb","webhook current cc","webhook previous aa"}', 'every sealed secret is listed');
select ok(switchboard.reseal(kind, endpoint_id::text, id::text, slot, sealed, sealed || '\x01'), format('%s, %s: replaced', kind, slot)) from switchboard.list_sealed();
select is((select array_agg(encode(sealed, 'hex')) from switchboard.list_sealed()), '{dd01,bb01,cc01,aa01}', 'each by its own');
select ok(not switchboard.reseal(kind, endpoint_id::text, id::text, slot, '\xee', '\xff'), format('%s, %s: what was changed meanwhile stays', kind, slot)) from switchboard.list_sealed();
select ok(not switchboard.reseal('hook', e, i, 'current', '\xdd01', '\xff'), 'nothing of ' || n) from (values (test.b(), :'hook', 'another endpoint'), (test.a(), 'x', 'a malformed id'), (null, :'hook', 'no endpoint')) v(e, i, n);
select test.invalid(format($$ select switchboard.reseal(%L, test.a(), %L, %L, '\xdd01', '\xff') $$, k, :'hook', s), 'kind', 'no such slot: ' || coalesce(k, 'NULL') || ' ' || s) from (values ('hook', 'next'), ('todo', 'current'), (null, 'current')) v(k, s);
select test.invalid($$ select switchboard.reseal('hook', test.a(), 'x', 'current', '\xdd01', null) $$, 'new', 'without a new value');
select * from finish();
